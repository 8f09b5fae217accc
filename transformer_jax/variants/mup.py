"""muP: one learning rate for all widths."""

import dataclasses

from transformer_jax.initialisation import Standard
from transformer_jax.options import Count


@dataclasses.dataclass(frozen=True)
class MaximalUpdate(Standard):
    """muP, which aims for one learning rate, found at the base width, to suit all widths.

    Yang et al. 2022, arXiv:2203.03466, table 8 and section 5, for Adam and similar optimizers. Let
    r = width / base_width. Kernels of blocks start with std / sqrt(r) and learn at rate / r; the
    output layer reads vectors / r. Scores are divided by d_k instead of its root, and scaled so
    that nothing changes at r = 1. Weight decay times rate is unchanged. Embeddings, norms and
    biases keep their deviation and rate. It is meant for decoders and vision transformers. If the
    number of heads grows with the width, give head_dim; otherwise the size is assumed to grow.
    `experiments.coordinates` measures how activations and their changes grow with the width;
    configs/ablations/mup.py tests whether the best rate stays from width 64 to 512.

    Attributes:
      base_width: Width for which the initial deviation and the learning rate were chosen.
    """

    base_width: Count = 64

    def kernel_gain(self, width: int) -> float:
        """Returns 1 / sqrt(r); `depth_scaled` and `normal` give the deviation at base_width."""
        return (self.base_width / width) ** 0.5

    def logits_gain(self, width: int) -> float:
        """Returns 1 / r with r = width / base_width, the factor for the output layer's input."""
        return self.base_width / width

    def scale(self, head_dim: int, grows: bool, width: int) -> float | None:
        """Returns sqrt(base d_k) / d_k; base d_k is d_k if head_dim is the same for all widths."""
        ratio = width / self.base_width if grows else 1.0
        return (ratio * head_dim) ** -0.5

    def learning_rate_gain(self, width: int) -> float:
        """Returns 1 / r with r = width / base_width, the factor for the rate of block kernels."""
        return self.base_width / width
