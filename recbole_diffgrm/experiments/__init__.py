"""Runs: their directories, their results, and comparisons of them."""
