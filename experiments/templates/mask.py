"""A component of my own: what self-attention may see."""

import dataclasses

from transformer_jax.masks import Rule
from transformer_jax.options import Count


@dataclasses.dataclass(frozen=True)
class Mine(Rule):
    """Every other position, and oneself; in a causal model, of those before.

    Attributes:
      stride: distance between positions that are seen; an option of the config.
    """

    stride: Count = 2

    def allowed(self, query, key):
        """Places of queries [..., L] and keys [..., M] -> [..., L, M] bool."""
        distance = key.position[..., None, :] - query.position[..., :, None]
        return distance % self.stride == 0
