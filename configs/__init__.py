"""Experiments as data: `reference.py` explains every option; the others change a few."""
