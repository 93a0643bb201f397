"""Many runs with a purpose: a plan, what came of it, and a page that shows it."""
