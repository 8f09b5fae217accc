"""Plans of a training step, compiled for devices that need not be present."""
