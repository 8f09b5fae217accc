"""Data: from files to Batches. Numpy only; nothing here knows jax, models or training.

A Batch is `{'inputs': {keyword arguments of the model}, 'targets': int, 'weights': float}`, and it
is the only thing that data and models share.
"""
