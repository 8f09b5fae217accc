"""Initial values of parameters.

A row of INITIALISATIONS gives the initial values of the embeddings and of the three kinds of
kernels in a block: those of the scores, those inside a branch, and those that write into the
residual stream.
"""

import math
from typing import Any, NamedTuple

import flax.linen as nn

from transformer_jax.linear import Initializer
from transformer_jax.options import Positive


class Initializers(NamedTuple):
    """Initial values by what a parameter is for.

    Attributes:
      embedding: of embeddings, and of kernels outside the blocks.
      query_key: of the kernels of queries and keys.
      value: of the values' kernel, and of those that read in a feed-forward layer.
      output: of kernels that write into the residual stream.
    """

    embedding: Initializer
    query_key: Initializer
    value: Initializer
    output: Initializer


def normal(std: float, depth: int, kernel_gain: float, branch_gain: float) -> Initializers:
    """All from a normal distribution of one deviation (Devlin et al. 2019, BERT's code).

    Args:
      std: deviation of the initial values.
      depth: number of blocks.
      kernel_gain: what the parametrisation multiplies the kernels of blocks with.
      branch_gain: what the wiring multiplies values and writing kernels with.
    """
    plain, branch = nn.initializers.normal(std * kernel_gain), std * kernel_gain * branch_gain
    written = nn.initializers.normal(branch)
    return Initializers(nn.initializers.normal(std), plain, written, written)


def depth_scaled(std: float, depth: int, kernel_gain: float, branch_gain: float) -> Initializers:
    """Normal; kernels that write into the residual stream have std / sqrt(2 depth).

    Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.3: the
    stream is a sum of 2 depth branches. A wiring that has a gain of its own (deep_norm) has that
    in its place. Arguments as in `normal`.
    """
    starts = normal(std, depth, kernel_gain, branch_gain)
    if branch_gain != 1:
        return starts
    branch = std / math.sqrt(2 * max(depth, 1)) * kernel_gain
    return starts._replace(output=nn.initializers.normal(branch))


def xavier(
    std: float, depth: int, kernel_gain: float, branch_gain: float, gain: Positive = 1.0
) -> Initializers:
    """Kernels uniform with variance 2 / (inputs + outputs); embeddings normal of deviation std.

    Glorot and Bengio 2010, equation 16; torch.nn.Transformer's choice.

    Args:
      std: deviation of the embeddings.
      depth: number of blocks.
      kernel_gain: what the parametrisation multiplies the kernels of blocks with.
      branch_gain: what the wiring multiplies values and writing kernels with.
      gain: multiplies all kernels.
    """
    return _by_fan(std, gain * kernel_gain, branch_gain, "fan_avg", "uniform")


def fan_in(
    std: float, depth: int, kernel_gain: float, branch_gain: float, gain: Positive = 1.0
) -> Initializers:
    """Kernels normal with variance 1 / inputs; embeddings normal of deviation std.

    LeCun et al. 1998, "Efficient BackProp", equation 16.

    Args:
      std: deviation of embeddings.
      depth: blocks of the model.
      kernel_gain: see normal.
      branch_gain: see normal.
      gain: multiplies the deviation of the kernels.
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
