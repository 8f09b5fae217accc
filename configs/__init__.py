"""Experiments as data: `reference.py` is where the others begin; docs/options.md explains all."""
