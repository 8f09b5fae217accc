"""Whole models: what the layers add up to."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.core import FrozenDict
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.layers.attention import MultiHeadAttention
from transformer_jax.layers.blocks import WIRINGS, Block, ModuleFactory, Wiring
from transformer_jax.layers.embeddings import TokenEmbedding
from transformer_jax.layers.feedforward import ACTIVATIONS, FeedForward
from transformer_jax.layers.linear import Linear
from transformer_jax.layers.norms import NORMS
from transformer_jax.layers.positions import POSITIONS
from transformer_jax.masks import causal_mask, segment_mask
from transformer_jax.shapes import check_shapes


def row(table: Mapping[str, Any], choice: Any, argument: str) -> Any:
    """Returns the row of a table that a name chooses; what is not a name stands for itself.

    Raises:
      ValueError: the name is in no row; the text lists the rows.
    """
    if not isinstance(choice, str):
        return choice
    if choice not in table:
        raise ValueError(f"{argument}: expected one of {', '.join(table)}, got {choice!r}")
    return table[choice]


def make_with_known_fields(module: Any, known: Mapping, **own: Any) -> nn.Module:
    """Makes a module from what its class declares among the known values, and from its own ones.

    So a row of a table takes what it needs (`max_length`, `width`, `head_dim`, ...) and nobody has
    to know which row it is.
    """
    declared = {field.name for field in dataclasses.fields(module)}
    return module(**{name: known[name] for name in declared & known.keys()}, **own)


class Decoder(nn.Module):
    """A decoder-only language model: GPT-2's shape unless told otherwise.

    Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.3.
    Kernels and embeddings start from a normal distribution of deviation `init_std`; kernels that
    write into the residual stream from `init_std / sqrt(2 * depth)`.

    Attributes:
      vocab_size: tokens, V.
      max_length: longest input, L; a longer one is refused.
      width: model width, D.
      depth: number of blocks.
      num_heads: attention heads, H.
      head_dim: features of one head, K; width / num_heads if not given.
      mlp_dim: features inside the feed-forward layer, F; 4 * width if not given.
      position: a name in POSITIONS, or a class like those in it.
      position_options: further fields of that class.
      norm: a name in NORMS, or a class.
      wiring: a name in WIRINGS, or a Wiring.
      activation: a name in ACTIVATIONS, or a function.
      attention: the attention module's class, taking the fields of MultiHeadAttention.
      use_bias: whether projections, feed-forward maps and layer norms have a bias.
      tie_embeddings: whether the output layer is the token embedding.
      dropout_rate: share dropped in training after the embedding, on the attention weights and
        after each sublayer.
      init_std: deviation of the initial values.
      dtype: dtype of the computation, bfloat16 say; parameters, norms, softmax and logits stay
        float32. None takes the parameters' dtype.
    """

    vocab_size: int
    max_length: int
    width: int = 128
    depth: int = 4
    num_heads: int = 4
    head_dim: int | None = None
    mlp_dim: int | None = None
    position: str | ModuleFactory = "learned"
    position_options: Mapping[str, Any] = FrozenDict()
    norm: str | ModuleFactory = "layer_norm"
    wiring: str | Wiring = "pre"
    activation: str | Callable[[Array], Array] = "gelu"
    attention: ModuleFactory = MultiHeadAttention
    use_bias: bool = True
    tie_embeddings: bool = True
    dropout_rate: float = 0.0
    init_std: float = 0.02
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(
        self,
        tokens: Array,
        *,
        segments: Array | None = None,
        positions: Array | None = None,
        train: bool = False,
    ) -> Array:
        """Returns the logits of each next token.

        Args:
          tokens: [..., L] int.
          segments: [..., L] int, document numbers of a packed input, 0 = padding; documents do
            not see each other.
          positions: [..., L] int, each token's position in its document; 0 .. L-1 if not given.
          train: whether dropout is on; then apply needs rngs={'dropout': key}.
        Returns:
          [..., L, V] float32 or wider.
        Raises:
          ValueError: the input is longer than max_length, or a shape or a name is wrong.
        """
        length = tokens.shape[-1]
        if length > self.max_length:
            raise ValueError(f"tokens: length {length} is beyond max_length {self.max_length}")
        for name, array in (("segments", segments), ("positions", positions)):
            if array is not None:
                check_shapes(tokens=(tokens, "... L"), **{name: (array, "... L")})
        positions = jnp.arange(length) if positions is None else positions
        mask = causal_mask(length)
        if segments is not None:
            mask = mask & segment_mask(segments)

        token_embedding, make_block, make_norm, wiring = self._parts()
        terms = self._position_encoding()(positions)
        hidden = token_embedding(tokens)
        if terms.embedding is not None:
            hidden = hidden + terms.embedding.astype(hidden.dtype)
        hidden = nn.Dropout(self.dropout_rate, deterministic=not train)(hidden)
        for layer in range(self.depth):
            block = make_block(name=f"block_{layer}")
            hidden = block(hidden, mask=mask, terms=terms, train=train)
        if wiring.final_norm:
            hidden = make_norm(name="final_norm")(hidden)
        if self.tie_embeddings:
            return token_embedding.attend(hidden)
        init = nn.initializers.normal(self.init_std)
        wide = jnp.promote_types(hidden.dtype, jnp.float32)
        output = Linear(self.vocab_size, False, init, self.dtype, wide, name="output")
        return output(hidden)

    def _position_encoding(self) -> nn.Module:
        known = {
            "max_length": self.max_length,
            "width": self.width,
            "num_heads": self.num_heads,
            "head_dim": self.head_dim or self.width // self.num_heads,
        }
        chosen = row(POSITIONS, self.position, "position")
        return make_with_known_fields(chosen, known, **self.position_options, name="positions")

    def _parts(self) -> tuple[TokenEmbedding, ModuleFactory, ModuleFactory, Wiring]:
        """The token embedding, makers of blocks and norms, and the wiring."""
        init = nn.initializers.normal(self.init_std)
        out_init = nn.initializers.normal(self.init_std / math.sqrt(2 * self.depth))
        shared = {
            "use_bias": self.use_bias,
            "kernel_init": init,
            "out_init": out_init,
            "dtype": self.dtype,
        }
        attention = functools.partial(
            self.attention,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            dropout_rate=self.dropout_rate,
            **shared,
        )
        feed_forward = functools.partial(
            FeedForward,
            mlp_dim=self.mlp_dim,
            activation=row(ACTIVATIONS, self.activation, "activation"),
            **shared,
        )
        norm = functools.partial(
            make_with_known_fields, row(NORMS, self.norm, "norm"), {"use_bias": self.use_bias}
        )
        wiring = row(WIRINGS, self.wiring, "wiring")
        make_block = functools.partial(
            Block, attention, feed_forward, norm, wiring, self.dropout_rate
        )
        embedding = TokenEmbedding(
            self.vocab_size, self.width, init, self.dtype, name="token_embedding"
        )
        return embedding, make_block, norm, wiring


MODELS = {"decoder": Decoder}
