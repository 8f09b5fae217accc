"""Short causal convolutions over the latest tokens of a document."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.blocks import Context
from transformer_jax.cache import CacheSlot, keep_state, kept_state
from transformer_jax.linear import Linear
from transformer_jax.masks import Mask
from transformer_jax.options import Count, InitialNumber
from transformer_jax.variants.running_sums import document_starts


class CanonConvolution(nn.Module):
    """x_t + sum over j of w_j * x_(t-j): a convolution of what each branch of a block reads.

    Allen-Zhu 2025, "Physics of language models: part 4.1", the canon layers A (before attention)
    and C (before the feed-forward layer), with a residual connection, for each feature apart.

    Attributes:
      size: Length of the convolution in tokens; 4 in the paper.
    """

    size: Count = 4

    @nn.compact
    def __call__(self, inputs: Array, context: Context) -> Array:
        """[..., L, D] -> [..., L, D]."""
        kernel = self.param("conv_kernel", uniform, (self.size, inputs.shape[-1]))
        segment = segments_of(context, "convolution")
        return inputs + convolved(self, 0, inputs, kernel, segment, context.slot)


class Smear(nn.Module):
    """x_t + a sigmoid(x_t W) x_(t-1): embeddings that hold some of the previous token's.

    A stem of modded-nanogpt (Jordan et al. 2024) and nanochat (Karpathy 2025); a starts at 0.

    Attributes:
      gate_features: Number of features that the gate reads; all if the input has fewer.
      initial: Initial a.
    """

    gate_features: Count = 24
    initial: InitialNumber = 0.0

    @nn.compact
    def __call__(self, inputs: Array, context: Context) -> Array:
        """[..., L, D] -> [..., L, D]."""
        gate = Linear(1, False, dtype=inputs.dtype, name="gate")(inputs[..., : self.gate_features])
        gain = self.param("gain", nn.initializers.constant(self.initial), (1,))
        only_previous = jnp.zeros((2, inputs.shape[-1])).at[0].set(1)
        segment = segments_of(context, "stem")
        previous = convolved(self, 0, inputs, only_previous, segment, context.slot)
        return inputs + gain.astype(inputs.dtype) * jax.nn.sigmoid(gate) * previous


def convolved(
    module: nn.Module,
    state: int,
    inputs: Array,
    kernel: Array,
    segment: Array | None,
    slot: CacheSlot | None,
) -> Array:
    """Returns the sum over j of kernel[size - 1 - j] * x_(t-j), within documents.

    Args:
      module: Module that keeps the latest inputs in a cache.
      state: Index of this state among those of the module.
      inputs: [..., L, C].
      kernel: [size, C]; its last row is for the token itself.
      segment: [..., L] int, or None; a run of equal segments is a document.
      slot: Slot in the cache, or None.
    Returns:
      [..., L, C], dtype of the inputs.
    """
    (size, channels), reads_on = kernel.shape, slot is not None
    empty = jnp.zeros((*inputs.shape[:-2], size - 1, channels), inputs.dtype)
    read = jnp.concatenate([kept_state(module, state, reads_on, empty), inputs], axis=-2)
    keep_state(module, state, reads_on, read[..., read.shape[-2] - (size - 1) :, :])
    length, mixed_LC = inputs.shape[-2], jnp.zeros_like(inputs)
    documents = None if segment is None else jnp.cumsum(document_starts(segment), axis=-1)
    for back in range(size):
        first = size - 1 - back
        shifted_LC = read[..., first : first + length, :] * kernel[first].astype(inputs.dtype)
        if documents is not None and back:
            ahead = [(0, 0)] * (documents.ndim - 1)
            before = jnp.pad(documents, [*ahead, (back, 0)], constant_values=-1)
            is_same = documents == before[..., : documents.shape[-1]]
            shifted_LC = jnp.where(is_same[..., None], shifted_LC, 0)
        mixed_LC = mixed_LC + shifted_LC
    return mixed_LC


def segments_of(context: Context, key: str) -> Array | None:
    """Returns the segments [..., L] of a block's input, or None if it is one document.

    Raises:
      ValueError: The mask is an array, which does not say where documents begin.
    """
    mask = context.mask
    if isinstance(mask, Mask):
        return mask.query.segment
    if mask is not None:
        raise ValueError(f"{key}: expected a mask as a rule (transformer_jax.Mask), got an array")
    return None


def uniform(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
    """Draws kernels [size, C] uniformly in +-1 / sqrt(size), as PyTorch's convolutions do."""
    bound = shape[0] ** -0.5
    return jax.random.uniform(key, shape, dtype, -bound, bound)
