"""Data, from files to Batches, in numpy; nothing here depends on jax, models or training.

A Batch, `{'inputs': {keyword arguments of the model}, 'targets': int, 'weights': float}`, is the
only thing that data and models share.
"""
