"""Plans of a training step on devices that need not be present: compiled, not run."""
