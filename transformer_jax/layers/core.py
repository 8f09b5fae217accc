"""From queries, keys and values to what attention gives: the weighted sum, and ways around it.

A row of ATTENTIONS is one of two things. Most give weights (weights.py), and the sum over values is
taken for them. A `Core` mixes the values itself, so it may never make the weights [..., L, M]: it
can keep a running state in their place, or call a kernel.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.layers.weights import check_broadcasts, product, weights_shape
from transformer_jax.masks import Mask, as_array

# Added to scores: an array [..., H, L, M], or what makes one of (query, key, mask as an array).
Bias = Array | Callable[[Array, Array, Array | None], Array]


class Core(nn.Module):
    """What attention does with the queries, keys and values of its heads.

    One that could say its weights has a method `weights(query, key, *, mask, bias)`, which is asked
    when somebody wants to see them.

    Attributes:
      gates: name -> features that each head reads of the inputs by a learned map of that name.
    """

    gates: ClassVar[Mapping[str, int]] = MappingProxyType({})

    def keeps_state(self, mask: Array | Mask | None) -> bool:
        """Whether, reading on, it needs its state alone and no earlier keys and values."""
        return False

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        *,
        mask: Array | Mask | None,
        bias: Bias | None,
        gates: Mapping[str, Array],
        dropout: Callable[[Array], Array] | None,
        state: Any,
    ) -> tuple[Array, Any]:
        """Mixes the values.

        A core that cannot do what it is asked for, a bias or dropout say, raises ValueError.

        Args:
          query: [..., H, L, K].
          key: [..., G, M, K]; G divides H, see serve_groups.
          value: [..., G, M, V].
          mask: what may be seen; None hides nothing.
          bias: added to scores.
          gates: name -> [..., H, L, features].
          dropout: drops a share of weights; None: no training, or no share.
          state: after the last token that was read; None at the first, and where nothing is kept.
        Returns:
          [..., H, L, V] in the dtype of the values; the state after these tokens, None if none.
        """
        raise NotImplementedError


def weighted_sum(weights: Array, value: Array) -> Array:
    """[..., L, M] and [..., M, V] -> [..., L, V], in the dtype of the values."""
    return product("...LM,...MV->...LV", weights.astype(value.dtype), value)


def serve_groups(array: Array, num_heads: int) -> Array:
    """[..., G, M, K] -> [..., H, M, K]: a head of keys or values serves H / G query heads."""
    served = num_heads // array.shape[-3]
    return array if served == 1 else jnp.repeat(array, served, axis=-3)


def weights_by(
    weigh: Callable[..., Array], query: Array, key: Array, mask: Any, bias: Bias | None
) -> Array:
    """Returns the weights that a row gives, [..., H, L, M].

    Args:
      weigh: (query, key, *, mask, bias as arrays) -> weights.
      query: [..., H, L, K].
      key: [..., G, M, K].
      mask: as in Core.
      bias: as in Core.
    Raises:
      ValueError: the mask's or the weights' shape is wrong.
    """
    key = serve_groups(key, query.shape[-3])
    shape = weights_shape(query, key)
    mask_HLM = _with_heads(as_array(mask), shape)
    bias_HLM = bias(query, key, mask_HLM) if callable(bias) else bias
    weights_HLM = weigh(query, key, mask=mask_HLM, bias=bias_HLM)
    if weights_HLM.shape != shape:  # a row of the user's own; what broadcasts would be taken
        raise ValueError(f"attention: expected weights {shape}, got {weights_HLM.shape}")
    return weights_HLM


def _with_heads(mask: Array | None, shape: tuple[int, ...]) -> Array | None:
    """[..., L, M], or [..., H or 1, L, M] -> the latter, for weights of shape (..., H, L, M)."""
    if mask is None or mask.ndim == len(shape):
        check_broadcasts(shape, mask=mask)
        return mask
    check_broadcasts((*shape[:-3], *shape[-2:]), mask=mask)
    return mask[..., None, :, :]
