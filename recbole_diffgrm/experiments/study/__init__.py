"""A study: many runs with one plan, a summary of their results, and a page that shows it."""
