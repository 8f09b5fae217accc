"""Pretrained weights: import from and export to Hugging Face.

Flax NNX needs no code from this package: `flax.nnx.bridge.ToNNX(module, rngs=...)` takes the
package's modules unchanged (docs/own-loop.md has a tested example).
"""

from transformer_jax.interop.huggingface import from_huggingface, to_huggingface

__all__ = ["from_huggingface", "to_huggingface"]
