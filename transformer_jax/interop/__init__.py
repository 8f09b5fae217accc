"""Pretrained weights: Hugging Face models in and out.

Flax NNX needs no code of ours: `flax.nnx.bridge.ToNNX(module, rngs=...)` takes these
modules unchanged (docs/own-loop.md has a tested example).
"""

from transformer_jax.interop.huggingface import from_huggingface, to_huggingface

__all__ = ["from_huggingface", "to_huggingface"]
