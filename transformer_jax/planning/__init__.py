"""A training step on a device that is not here: compiled, not run."""
