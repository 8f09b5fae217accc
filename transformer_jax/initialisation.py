"""Initial values of parameters.

An entry of INITIALISATIONS returns the initialisers of the embeddings and three kinds of kernels:
query and key; value and first feed-forward; and those that write into the residual stream.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import flax.linen as nn

from transformer_jax.linear import Initializer
from transformer_jax.options import Positive


class Initializers(NamedTuple):
    """Initialisers for each kind of parameter.

    Attributes:
      embedding: For embeddings, and kernels outside the blocks.
      query_key: For the kernels of queries and keys.
      value: For the value kernel, and the first kernels of a feed-forward layer.
      output: For kernels that write into the residual stream.
    """

    embedding: Initializer
    query_key: Initializer
    value: Initializer
    output: Initializer


def normal(std: float, depth: int, kernel_gain: float, branch_gain: float) -> Initializers:
    """Normal initial values with one deviation, as in BERT's code (Devlin et al. 2019).

    Args:
      std: Standard deviation of the initial values.
      depth: Number of blocks.
      kernel_gain: Factor for the blocks' kernels, from the parametrisation.
      branch_gain: Factor for value and output kernels, from the wiring.
    """
    plain, branch = nn.initializers.normal(std * kernel_gain), std * kernel_gain * branch_gain
    written = nn.initializers.normal(branch)
    return Initializers(nn.initializers.normal(std), plain, written, written)


def depth_scaled(std: float, depth: int, kernel_gain: float, branch_gain: float) -> Initializers:
    """Normal initial values, with std / sqrt(2 depth) for kernels that write into the stream.

    Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.3: the
    residual stream is a sum of 2 depth branches. A wiring with its own gain (deep_norm) uses that
    gain instead. Arguments as in `normal`.
    """
    starts = normal(std, depth, kernel_gain, branch_gain)
    if branch_gain != 1:
        return starts
    branch = std / math.sqrt(2 * max(depth, 1)) * kernel_gain
    return starts._replace(output=nn.initializers.normal(branch))


def xavier(
    std: float, depth: int, kernel_gain: float, branch_gain: float, gain: Positive = 1.0
) -> Initializers:
    """Uniform kernels with variance 2 / (inputs + outputs), and normal embeddings.

    Glorot and Bengio 2010, equation 16, as in torch.nn.Transformer.

    Args:
      std: Standard deviation of the embeddings.
      depth, kernel_gain, branch_gain: As in normal.
      gain: Factor for all kernels.
    """
    return _by_fan(std, gain * kernel_gain, branch_gain, "fan_avg", "uniform")


def fan_in(
    std: float, depth: int, kernel_gain: float, branch_gain: float, gain: Positive = 1.0
) -> Initializers:
    """Normal kernels with variance 1 / inputs, and normal embeddings.

    LeCun et al. 1998, "Efficient BackProp", equation 16.

    Args:
      std, depth, kernel_gain, branch_gain: As in xavier.
      gain: Factor for all kernels.
    """
    return _by_fan(std, gain * kernel_gain, branch_gain, "fan_in", "normal")


def _by_fan(std: float, gain: float, branch_gain: float, mode: Any, kind: Any) -> Initializers:
    def kernel(factor: float) -> Initializer:
        return nn.initializers.variance_scaling((gain * factor) ** 2, mode, kind)

    written = kernel(branch_gain)
    return Initializers(nn.initializers.normal(std), kernel(1.0), written, written)


INITIALISATIONS = {
    "normal": normal,
    "depth_scaled": depth_scaled,
    "xavier": xavier,
    "fan_in": fan_in,
}


@dataclasses.dataclass(frozen=True)
class Standard:
    """Standard parametrisation: the only size-dependent factor is 1 / sqrt(d_k), for the scores."""

    def kernel_gain(self, width: int) -> float:
        """Returns the factor for the standard deviation of the blocks' initial kernels."""
        return 1.0

    def logits_gain(self, width: int) -> float:
        """Returns the factor for the vectors that the output layer reads."""
        return 1.0

    def scale(self, head_dim: int, grows: bool, width: int) -> float | None:
        """Returns the scale of the attention scores, or None for 1 / sqrt(d_k).

        `grows` says whether head_dim grows with the width.
        """
        return None

    def learning_rate_gain(self, width: int) -> float:
        """Returns the factor for the learning rate of the blocks' kernels."""
        return 1.0


PARAMETRISATIONS = {"standard": Standard, "mup": "transformer_jax.variants.mup:MaximalUpdate"}
