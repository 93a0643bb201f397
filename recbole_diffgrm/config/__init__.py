"""From YAML files and the command line to a checked configuration."""

from recbole_diffgrm.config.config import Config, build_config

__all__ = ["Config", "build_config"]
