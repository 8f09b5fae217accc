"""Data pipeline from files to Batches, in numpy, independent of jax, models and training.

A Batch, `{'inputs': {keyword arguments of the model}, 'targets': int, 'weights': float}`, is the
only value that data and models share.
"""
