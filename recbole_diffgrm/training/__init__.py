"""Training that can be stopped at any moment and repeated exactly."""
