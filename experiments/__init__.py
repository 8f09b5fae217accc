"""Thin commands over the library: `python -m experiments.VERB --help`."""
