"""From YAML files and the command line to a checked configuration."""
