"""report.html of a run, a comparison or a study: one file to look at, with all that it needs inside."""
