"""Training of a model on a task: from one config to one run directory."""
