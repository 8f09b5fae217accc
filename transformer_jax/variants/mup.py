"""muP: a learning rate that is meant to serve every width."""

import dataclasses

from transformer_jax.options import Count
from transformer_jax.parametrisation import Standard


@dataclasses.dataclass(frozen=True)
class MaximalUpdate(Standard):
    """muP: a learning rate found at the base width is meant to serve every width.

    Yang et al. 2022, arXiv:2203.03466, table 8 and section 5, for Adam and optimizers like it. With
    r = width / base_width: kernels of blocks start with std / sqrt(r) and learn at rate / r, the
    output layer reads vectors / r, and scores are divided by d_k in place of its root, so that all
    is as it was where r = 1. Weight decay times rate stays what it is. Embeddings, norms and biases
    keep their deviation and rate. Worked out for decoders and vision transformers. Where heads grow
    in number with the width and not in size, give head_dim: without it their size counts as grown.
    How activations and their changes go with the width, `experiments.coordinates` measures; whether
    the best rate of a small decoder stays from width 64 to 512, configs/ablations/mup.py asks.

    Attributes:
      base_width: width for which initial deviation and learning rate were chosen.
    """

    base_width: Count = 64

    def kernel_gain(self, width: int) -> float:
        """1 / sqrt(r), with `depth_scaled` and `normal`, whose deviation is that of base_width."""
        return (self.base_width / width) ** 0.5

    def logits_gain(self, width: int) -> float:
        """1 / r."""
        return self.base_width / width

    def scale(self, head_dim: int, grows: bool, width: int) -> float | None:
        """sqrt(base d_k) / d_k; base d_k is d_k if head_dim does not grow with the width."""
        ratio = width / self.base_width if grows else 1.0
        return (ratio * head_dim) ** -0.5

    def learning_rate_gain(self, width: int) -> float:
        """1 / r."""
        return self.base_width / width
