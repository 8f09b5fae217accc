"""What `python -m experiments.new` writes, one file for each family; `Mine` becomes your name."""
