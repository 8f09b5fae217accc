"""Training, where models and data meet: one config, one step, one run directory."""
