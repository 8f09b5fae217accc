"""Scaling of initial values, learning rates and the forward pass with the width.

An entry of PARAMETRISATIONS gives the factors by which a model differs from one of the base width,
for which the other options were chosen.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Standard:
    """Nothing depends on the width, except the scores: 1 / sqrt(d_k)."""

    def kernel_gain(self, width: int) -> float:
        """Multiplier of the standard deviation of the blocks' initial kernels."""
        return 1.0

    def logits_gain(self, width: int) -> float:
        """Factor of the vectors that the output layer reads."""
        return 1.0

    def scale(self, head_dim: int, grows: bool, width: int) -> float | None:
        """The scale of the attention scores, or None for 1 / sqrt(d_k)."""
        return None

    def learning_rate_gain(self, width: int) -> float:
        """Factor of the learning rate of the blocks' kernels."""
        return 1.0


PARAMETRISATIONS = {"standard": Standard, "mup": "transformer_jax.variants.mup:MaximalUpdate"}
