"""Less common wirings of a block."""

from collections.abc import Callable
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.blocks import Block, Carry, Context
from transformer_jax.linear import Initializer
from transformer_jax.options import InitialSize, Switch
from transformer_jax.sites import site


class Sequential(Block):
    """Abstract base class of wirings that connect all branches in sequence, in the same way."""

    def connect(
        self, name: str, branch: Callable[[Array], Array], hidden: Array, context: Context
    ) -> Array:
        """Returns the stream [..., L, D] after a branch, given the branch's name and the stream."""
        raise NotImplementedError

    @nn.compact
    def __call__(self, hidden: Array, carry: Carry, context: Context) -> tuple[Array, Carry]:
        """[..., L, D] -> [..., L, D]; parts may add to the carry."""
        drop = self.branch_dropout(context)
        mix = lambda read: drop(self.mix(read, carry, context))  # noqa: E731
        hidden = self.connect(self.kind, mix, hidden, context)
        if context.memory is not None:
            attend = lambda read: drop(self.attend_memory(read, context))  # noqa: E731
            hidden = self.connect("cross_attention", attend, hidden, context)
        if self.feed_forward is not None:
            feed = lambda read: drop(self.feed(read, context))  # noqa: E731
            hidden = self.connect("feed_forward", feed, hidden, context)
        return site(self, "residual", hidden), carry


class Gain(nn.Module):
    """Learned factors of the features: one for each feature, or a single one for all."""

    features: int
    initial: Initializer

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., D]."""
        gain = self.param("gain", self.initial, (self.features,))
        return inputs * gain.astype(inputs.dtype)


class SandwichNorm(Sequential):
    """x + norm(f(norm(x))): CogView's wiring (Ding et al. 2021, arXiv:2105.13290, section 2.4)."""

    @nn.nowrap
    def connect(
        self, name: str, branch: Callable[[Array], Array], hidden: Array, context: Context
    ) -> Array:
        """[..., L, D] -> [..., L, D]."""
        return hidden + self.normed(f"{name}_out", branch(self.normed(name, hidden)))


class DepthScaledNorm(Sequential):
    """x + f(norm(x) / sqrt(l)) in block l = 1, 2, ...: norms that shrink with the depth.

    Sun et al. 2025, arXiv:2502.05795, equation 5 ("LayerNorm scaling").
    """

    @nn.nowrap
    def connect(
        self, name: str, branch: Callable[[Array], Array], hidden: Array, context: Context
    ) -> Array:
        """[..., L, D] -> [..., L, D]."""
        gain = jax.lax.rsqrt(jnp.float32(context.layer + 1)).astype(hidden.dtype)
        return hidden + branch(self.normed(name, hidden) * gain)


class NoResidual(Sequential):
    """f(norm(x)), which shows the purpose of residual connections (He et al. 2016).

    arXiv:1512.03385.
    """

    @nn.nowrap
    def connect(
        self, name: str, branch: Callable[[Array], Array], hidden: Array, context: Context
    ) -> Array:
        """[..., L, D] -> [..., L, D]."""
        return branch(self.normed(name, hidden))


class ReZero(Sequential):
    """x + alpha f(x), without norms; alpha is a learned number that starts at 0.

    Bachlechner et al. 2020, arXiv:2003.04887, equation 2.
    """

    final_norm: ClassVar[bool] = False

    @nn.nowrap
    def connect(
        self, name: str, branch: Callable[[Array], Array], hidden: Array, context: Context
    ) -> Array:
        """[..., L, D] -> [..., L, D]."""
        return hidden + Gain(1, nn.initializers.zeros, name=f"{name}_gain")(branch(hidden))


class LayerScale(Sequential):
    """x + diag(gains) f(norm(x)) with learned gains (Touvron et al. 2021, arXiv:2103.17239, eq. 4).

    Attributes:
      initial: Initial gains; in the paper 0.1 up to 18 blocks, 1e-5 up to 24, then 1e-6.
    """

    initial: InitialSize = 0.1

    @nn.nowrap
    def connect(
        self, name: str, branch: Callable[[Array], Array], hidden: Array, context: Context
    ) -> Array:
        """[..., L, D] -> [..., L, D]."""
        start = nn.initializers.constant(self.initial)
        gain = Gain(hidden.shape[-1], start, name=f"{name}_gain")
        return hidden + gain(branch(self.normed(name, hidden)))


class DeepNorm(Sequential):
    """norm(alpha x + f(x)): post-norm for very deep stacks; beta makes branches start smaller.

    Beta scales the initial kernels of values, feed-forward layers and outputs. Wang et al. 2022,
    arXiv:2203.00555, figure 2: an encoder or a decoder of N blocks alone has alpha = (2N)^(1/4) and
    beta = (8N)^(-1/4). In a model with both, of N blocks each, the encoder has 0.81 N^(5/16) and
    0.87 N^(-5/16), and the decoder (3N)^(1/4) and (12N)^(-1/4).
    """

    final_norm: ClassVar[bool] = False

    @classmethod
    def branch_gain(cls, depth: int, side: str) -> float:
        """Returns beta, the factor for the initial standard deviation of the kernels it scales."""
        return _deep_norm_gains(depth, side)[1]

    @nn.nowrap
    def connect(
        self, name: str, branch: Callable[[Array], Array], hidden: Array, context: Context
    ) -> Array:
        """[..., L, D] -> [..., L, D]."""
        alpha, _ = _deep_norm_gains(self.depth, self.side)
        return self.normed(name, alpha * hidden + branch(hidden))


def _deep_norm_gains(depth: int, side: str) -> tuple[float, float]:
    """Returns DeepNorm's alpha and beta."""
    blocks = max(depth, 1)
    if side == "encoder":
        return 0.81 * blocks ** (5 / 16), 0.87 * blocks ** (-5 / 16)
    stretch = 3 if side == "decoder" else 2
    return (stretch * blocks) ** 0.25, (4 * stretch * blocks) ** -0.25


class Parallel(Block):
    """x + f(norm(x)) + g(norm(x)): GPT-J's and GPT-NeoX's wiring (Black et al. 2022, section 2.1).

    arXiv:2204.06745.

    Attributes:
      share_norm: Whether all branches share a norm (GPT-J), or each has its own (GPT-NeoX).
    """

    share_norm: Switch = False

    @nn.compact
    def __call__(self, hidden: Array, carry: Carry, context: Context) -> tuple[Array, Carry]:
        """[..., L, D] -> [..., L, D]; parts may add to the carry."""
        drop = self.branch_dropout(context)
        first = self.normed(self.kind, hidden)

        def normed(branch: str) -> Array:
            return first if self.share_norm else self.normed(branch, hidden)

        total = hidden + drop(self.mix(first, carry, context))
        if context.memory is not None:
            total = total + drop(self.attend_memory(normed("cross_attention"), context))
        if self.feed_forward is not None:
            total = total + drop(self.feed(normed("feed_forward"), context))
        return site(self, "residual", total), carry
