"""Plans of training steps, which are compiled for devices that need not be present."""
