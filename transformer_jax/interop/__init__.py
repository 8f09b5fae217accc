"""Weights of others: Hugging Face's in and out.

Use from Flax NNX needs no code of ours: `flax.nnx.bridge.ToNNX(module, rngs=...)` takes these
modules as they are (an example is in docs/own-loop.md, tested).
"""

from transformer_jax.interop.huggingface import from_huggingface, to_huggingface

__all__ = ["from_huggingface", "to_huggingface"]
