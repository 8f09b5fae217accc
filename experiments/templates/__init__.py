"""Templates of `python -m experiments.new`, one file per family; `Mine` becomes your name."""
