"""Latent attention: keys and values that are maps of one small cached vector for each token."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.attention import scaled_dot_product_attention, split_heads
from transformer_jax.blocks import Context
from transformer_jax.cache import append_to_cache
from transformer_jax.linear import Initializer, Linear
from transformer_jax.masks import as_array
from transformer_jax.norms import RMSNorm
from transformer_jax.options import Count, Positive
from transformer_jax.positions import rotate


class LatentAttention(nn.Module):
    """Multi-head attention whose keys and values are linear maps of a latent vector (MLA).

    c = norm(x W_down); keys and values of head h are c W_key^h and c W_value^h. Rotary positions
    act on R further features of queries and keys, which all heads share among the keys. DeepSeek-AI
    2024, arXiv:2405.04434, equations 9 to 19. Here model.head_dim is K = R + the features that are
    not rotated, with R = position_options.fraction * K, and model.value_dim is V. The cache holds c
    and the rotated key, rank + R numbers for each token; with it, W_key is applied to the queries
    and W_value to the mixtures of c, as in the paper's section 2.1.2. Without rotary positions, R
    is 0. Weights have no dropout.

    Attributes:
      use_bias: Whether the maps from x to queries and latents, and the output map, have a bias.
      kernel_init: Initial values of all kernels but that of the output map.
      out_init: Initial values of the output kernel.
      dtype: Computation dtype; promoted from inputs and parameters if None.
      rank: Number of features of the latent vector c.
      query_rank: Number of features of a latent vector for the queries, or None for maps of x.
      epsilon: Added to the mean square in the norms of the latent vectors.
    """

    use_bias: bool = True
    kernel_init: Initializer = nn.initializers.normal(0.02)
    out_init: Initializer = nn.initializers.normal(0.02)
    dtype: DTypeLike | None = None
    rank: Count = 64
    query_rank: Count | None = None
    epsilon: Positive = 1e-6

    @nn.compact
    def __call__(self, inputs: Array, context: Context) -> Array:
        """[..., L, D] -> [..., L, D].

        Raises:
          ValueError: All features would be rotated, or a bias depends on queries and keys.
        """
        sizes, rotation, slot = context.sizes, context.terms.rotation, context.slot
        heads, value_dim = sizes.num_heads, sizes.value_dim
        rotated = 0 if rotation is None else 2 * rotation.cos.shape[-1]
        plain = sizes.head_dim - rotated
        if plain < 1:
            raise ValueError(
                "position_options: latent attention rotates a part of each head's features; "
                f"expected a fraction below 1, got {rotated} of {sizes.head_dim} features"
            )
        if callable(context.terms.bias):
            raise ValueError(
                "position: latent attention does not form keys in a cache; expected positions that "
                "do not depend on queries and keys, e.g. rotary"
            )
        query_HLK = split_heads(self._queries(inputs, heads * sizes.head_dim), heads)
        latent_LC = RMSNorm(self.epsilon, name="norm")(self._linear("down", self.rank, inputs))
        if rotation is not None:
            query_HLK = rotate(query_HLK, rotation)
            key_1LR = self._linear("rotated_key", rotated, inputs)[..., None, :, :]
            key_LR = rotate(key_1LR, rotation)[..., 0, :, :]
            key_MR = append_to_cache(self, "keys", key_LR, slot)
        else:
            key_MR = jnp.zeros((*inputs.shape[:-2], 1, 0), latent_LC.dtype)
        latent_MC = append_to_cache(self, "values", latent_LC, slot)
        key_MR = jnp.broadcast_to(key_MR, (*latent_MC.shape[:-1], rotated))
        to_keys, to_values = (
            UpKernel(self.rank, heads, features, self.kernel_init, self.dtype, name=f"{name}_up")()
            for name, features in (("key", plain), ("value", value_dim))
        )
        mask = as_array(context.mask)
        if mask is not None and mask.ndim == inputs.ndim:
            mask = mask[..., None, :, :]
        options: Any = {"scale": sizes.scale}
        if slot is None:
            key_HMK = jnp.einsum("...MC,CHK->...HMK", latent_MC, to_keys)
            of_all = jnp.broadcast_to(key_MR[..., None, :, :], (*key_HMK.shape[:-1], rotated))
            key_HMK = jnp.concatenate([of_all, key_HMK], axis=-1)
            value_HMV = jnp.einsum("...MC,CHV->...HMV", latent_MC, to_values)
            given = (query_HLK, key_HMK, value_HMV, mask, context.terms.bias)
            mixed_HLV = scaled_dot_product_attention(*given, **options)
        else:
            in_latents_HLC = jnp.einsum("...HLK,CHK->...HLC", query_HLK[..., rotated:], to_keys)
            query_HLC = jnp.concatenate([query_HLK[..., :rotated], in_latents_HLC], axis=-1)
            key_1MC = jnp.concatenate([key_MR, latent_MC], axis=-1)[..., None, :, :]
            value_1MC = latent_MC[..., None, :, :]
            given = (query_HLC, key_1MC, value_1MC, mask, context.terms.bias)
            mixed_HLC = scaled_dot_product_attention(*given, **options)
            mixed_HLV = jnp.einsum("...HLC,CHV->...HLV", mixed_HLC, to_values)
        mixed_LF = jnp.swapaxes(mixed_HLV, -3, -2).reshape(*inputs.shape[:-1], heads * value_dim)
        out = Linear(inputs.shape[-1], self.use_bias, self.out_init, self.dtype, name="out")
        return out(mixed_LF)

    @nn.nowrap
    def _queries(self, inputs: Array, features: int) -> Array:
        if self.query_rank is None:
            return self._linear("query", features, inputs)
        latent = self._linear("query_down", self.query_rank, inputs)
        latent = RMSNorm(self.epsilon, name="query_norm")(latent)
        return Linear(features, False, self.kernel_init, self.dtype, name="query_up")(latent)

    @nn.nowrap
    def _linear(self, name: str, features: int, inputs: Array) -> Array:
        return Linear(features, self.use_bias, self.kernel_init, self.dtype, name=name)(inputs)


class UpKernel(nn.Module):
    """The kernel of a map from latents to the keys or values of each head."""

    rank: int
    heads: int
    features: int
    kernel_init: Initializer
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self) -> Array:
        """Returns the kernel, [rank, H, features]."""
        shape = (self.rank, self.heads * self.features)
        kernel = self.param("kernel", self.kernel_init, shape)
        kernel = kernel if self.dtype is None else kernel.astype(self.dtype)
        return kernel.reshape(self.rank, self.heads, self.features)
