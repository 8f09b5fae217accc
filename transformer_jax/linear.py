"""A base class of modules, and two maps with a matrix: affine maps, and tables of embeddings."""

import contextlib
import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.options import check_values
from transformer_jax.placement import cut_at_site, cuts_sequence
from transformer_jax.shapes import as_int32

Initializer = Callable[..., Array]
ModuleFactory = Callable[..., nn.Module]


class Checked(nn.Module):
    """Base class of modules whose typed fields are checked when an instance is made."""

    def __post_init__(self) -> None:
        """Raises ValueError, naming the field, if its type does not allow its value."""
        with contextlib.suppress(NameError):  # a subclass may import types for type checkers alone
            check_values(type(self), vars(self))
        super().__post_init__()


def linear(
    inputs: Array, kernel: Array, bias: Array | None = None, out_dtype: DTypeLike | None = None
) -> Array:
    """Returns `inputs @ kernel + bias`.

    Leading axes are flattened into one before the product. The result is the same without this, but
    for rank-3 inputs the kernel's gradient would contract two axes, which XLA on CPU does not hand
    to its fast matrix routine; flattening cuts the time of a training step to about two thirds. If
    a text is divided over devices, the axes are kept, since one axis would mix the parts.

    Args:
      inputs: [..., D].
      kernel: [D, F].
      bias: [F].
      out_dtype: Dtype of sums and result, at least as wide as the inputs'; theirs if None.
    Returns:
      [..., F].
    """
    flat = inputs if cuts_sequence() else inputs.reshape(-1, inputs.shape[-1])
    is_wider = out_dtype is not None and out_dtype != flat.dtype
    flat = _wide_product(flat, kernel, out_dtype) if is_wider else jnp.matmul(flat, kernel)
    if bias is not None:
        flat = flat + bias
    return flat.reshape(*inputs.shape[:-1], kernel.shape[-1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _wide_product(inputs: Array, kernel: Array, out_dtype: DTypeLike) -> Array:
    """Returns a product with sums in `out_dtype`; its gradient's products are in the inputs' dtype.

    The derivative of jnp.matmul would multiply in `out_dtype`, at half the speed or less.
    """
    return jnp.matmul(inputs, kernel, preferred_element_type=out_dtype)


def _pull_back(_: DTypeLike, factors: tuple[Array, Array], cotangent: Array) -> tuple:
    inputs, kernel = factors
    narrow, leading = cotangent.astype(inputs.dtype), tuple(range(inputs.ndim - 1))
    return narrow @ kernel.T, jnp.tensordot(inputs, narrow, (leading, leading))


_wide_product.defvjp(lambda a, b, dtype: (_wide_product(a, b, dtype), (a, b)), _pull_back)


def logits_layer(
    features: int, use_bias: bool, kernel_init: Initializer, dtype: DTypeLike | None
) -> "Linear":
    """Returns the layer that maps to logits, with sums in float32 or wider for every dtype."""
    wide = jnp.promote_types(dtype or jnp.float32, jnp.float32)
    return Linear(features, use_bias, kernel_init, dtype, wide)


class Linear(nn.Module):
    """Affine map with a kernel [D, F] and a bias [F].

    Attributes:
      features: Number of outputs, F.
      use_bias: Whether a bias, initially 0, is added.
      kernel_init: Initial values of the kernel.
      dtype: Computation dtype; promoted from inputs and parameters if None.
      out_dtype: Dtype of sums and result, if wider than that of the computation.
    """

    features: int
    use_bias: bool = True
    kernel_init: Initializer = nn.initializers.normal(0.02)
    dtype: DTypeLike | None = None
    out_dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., features]."""
        kernel = self.param("kernel", self.kernel_init, (inputs.shape[-1], self.features))
        zeros, size = nn.initializers.zeros, (self.features,)
        bias = self.param("bias", zeros, size) if self.use_bias else None
        inputs, kernel, bias = promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        wide = self.out_dtype and jnp.promote_types(inputs.dtype, self.out_dtype)
        return linear(inputs, kernel, bias, wide)


class TokenEmbedding(nn.Module):
    """A table with one vector for each token of the vocabulary.

    Looking up a row is equivalent to multiplying a one-hot vector by the table. A token outside the
    vocabulary gives NaN instead of a wrong row; data sources reject it earlier.

    Attributes:
      vocab_size: Number of tokens, V.
      width: Model width, D.
      embedding_init: Initial values of the table.
      dtype: Dtype of the result; the table's if None.
    """

    vocab_size: int
    width: int
    embedding_init: Initializer = nn.initializers.normal(0.02)
    dtype: DTypeLike | None = None

    def setup(self) -> None:
        """Creates the table [V, D]."""
        shape = (self.vocab_size, self.width)
        table_VD = self.param("embedding", self.embedding_init, shape)
        self.embedding = cut_at_site("token_embedding.table", table_VD)

    def __call__(self, tokens: Array) -> Array:
        """[...] int -> [..., D].

        Raises:
          ValueError: Tokens are not integers.
        """
        if not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise ValueError(f"tokens: expected integers, got {tokens.dtype}")
        embedded = lookup(self.embedding, tokens)
        return embedded if self.dtype is None else embedded.astype(self.dtype)

    def attend(self, hidden: Array) -> Array:
        """Returns the logits [..., V] of the tied output layer (Press and Wolf 2017).

        Products are in the dtype of `hidden`, sums in float32 or wider.
        """
        wide = jnp.promote_types(hidden.dtype, jnp.float32)
        return linear(hidden, self.embedding.T.astype(hidden.dtype), out_dtype=wide)


def lookup(table: Array, indices: Array) -> Array:
    """Returns rows of a table; an index outside it gives NaN.

    Args:
      table: [V, D].
      indices: [...] int.
    Returns:
      [..., D].
    """
    indices = as_int32(indices)
    indices = jnp.where(indices < 0, table.shape[0], indices)  # -1 would mean the last row
    return jnp.asarray(table).at[indices].get(mode="fill", fill_value=jnp.nan)
