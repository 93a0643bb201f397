"""From files to batches: atomic files, downloads, flat sequences, prefix samples."""
