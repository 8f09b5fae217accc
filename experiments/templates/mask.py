"""A component of my own: what self-attention may see."""

from transformer_jax.options import Count


def mine(positions, causal, stride: Count = 2):
    """Every other position, and oneself: positions [..., L] and [L, L] bool -> [..., L, L] bool."""
    distance = positions[..., :, None] - positions[..., None, :]
    seen = distance % stride == 0
    return seen if causal is None else seen & causal
