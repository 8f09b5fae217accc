"""The residual block: how attention, feed-forward layer and norms are wired together."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
from jax import Array

from transformer_jax.layers.positions import NO_TERMS, PositionTerms

Map = Callable[[Array], Array]
ModuleFactory = Callable[..., nn.Module]


def pre_norm(inputs: Array, sublayer: Map, norm: Map) -> Array:
    """Returns x + sublayer(norm(x)): GPT-2's and ViT's wiring (Xiong et al. 2020, section 3)."""
    return inputs + sublayer(norm(inputs))


def post_norm(inputs: Array, sublayer: Map, norm: Map) -> Array:
    """Returns norm(x + sublayer(x)): the first transformer's wiring (Vaswani et al. 2017, 3.1)."""
    return norm(inputs + sublayer(inputs))


class Wiring(NamedTuple):
    """Where the norm stands, and what follows from it.

    Attributes:
      connect: joins a residual stream, a sublayer and its norm.
      final_norm: whether the stack ends with a norm: its last block's sum is not normalised yet.
    """

    connect: Callable[[Array, Map, Map], Array]
    final_norm: bool


WIRINGS = {
    "pre": Wiring(pre_norm, final_norm=True),
    "post": Wiring(post_norm, final_norm=False),
}


class Block(nn.Module):
    """Self-attention, then a feed-forward layer, each with a norm around a residual connection.

    Given a memory, there is cross-attention over it in between (Vaswani et al. 2017, section 3.1).

    The parts come as factories (a class, or a partial of one) and are named here, so the paths of
    the parameters are the same whatever the wiring.

    Attributes:
      attention: makes the attention module.
      feed_forward: makes the feed-forward module.
      norm: makes a norm.
      wiring: where the norms stand.
      dropout_rate: share of each sublayer's output that is dropped in training.
    """

    attention: ModuleFactory
    feed_forward: ModuleFactory
    norm: ModuleFactory
    wiring: Wiring = WIRINGS["pre"]
    dropout_rate: float = 0.0

    @nn.compact
    def __call__(
        self,
        inputs: Array,
        memory: Array | None = None,
        *,
        mask: Array | None = None,
        memory_mask: Array | None = None,
        terms: PositionTerms = NO_TERMS,
        train: bool = False,
    ) -> Array:
        """[..., L, D] -> [..., L, D].

        Args:
          inputs: [..., L, D].
          memory: [..., M, D], the output of an encoder; without it there is no cross-attention.
          mask: [..., L, L] bool, True = may attend.
          memory_mask: [..., L, M] bool, the same for the memory.
          terms: what the position encoding gives to self-attention.
          train: whether dropout is on.
        """
        attention = self.attention(name="attention")
        feed_forward = self.feed_forward(name="feed_forward")
        dropout = nn.Dropout(self.dropout_rate, deterministic=not train)

        def attend(hidden: Array) -> Array:
            positional = {"bias": terms.bias, "rotation": terms.rotation}
            return dropout(attention(hidden, mask=mask, **positional, train=train))

        def look(hidden: Array) -> Array:
            cross = self.attention(name="cross_attention")
            return dropout(cross(hidden, memory, mask=memory_mask, train=train))

        def think(hidden: Array) -> Array:
            return dropout(feed_forward(hidden))

        connect = self.wiring.connect
        hidden = connect(inputs, attend, self.norm(name="attention_norm"))
        if memory is not None:
            hidden = connect(hidden, look, self.norm(name="cross_attention_norm"))
        return connect(hidden, think, self.norm(name="feed_forward_norm"))
