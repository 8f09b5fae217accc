"""What all transformers here share: fields, a stack of blocks, and how a row is chosen."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import flax.linen as nn
import jax.numpy as jnp
from flax.core import FrozenDict
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.layers.attention import MultiHeadAttention
from transformer_jax.layers.blocks import WIRINGS, Block, ModuleFactory, Wiring
from transformer_jax.layers.embeddings import TokenEmbedding
from transformer_jax.layers.feedforward import ACTIVATIONS, FeedForward
from transformer_jax.layers.linear import Initializer, Linear
from transformer_jax.layers.norms import NORMS
from transformer_jax.layers.positions import POSITIONS
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


class Transformer(nn.Module):
    """The fields of every transformer, and the stack of blocks that they describe; abstract.

    Kernels and embeddings start from a normal distribution of deviation `init_std`; kernels that
    write into the residual stream from `init_std / sqrt(2 * depth)` (Radford et al. 2019, 2.3).

    Attributes:
      width: model width, D.
      depth: number of blocks.
      num_heads: attention heads, H.
      head_dim: features of one head, K; width / num_heads if not given.
      mlp_dim: features inside the feed-forward layer, F; 4 * width if not given.
      position: a name in POSITIONS, or a class like those in it.
      position_options: further fields of that class.
      norm: a name in NORMS, or a class.
      norm_epsilon: what each norm adds before it takes the root.
      embedding_norm: whether a norm follows the sum of the embeddings, as in BERT and BART.
      wiring: a name in WIRINGS, or a Wiring.
      activation: a name in ACTIVATIONS, or a function.
      attention: the attention module's class, taking the fields of MultiHeadAttention.
      use_bias: whether projections, feed-forward maps and layer norms have a bias.
      dropout_rate: share dropped in training after the embedding, on the attention weights and
        after each sublayer.
      init_std: deviation of the initial values.
      dtype: dtype of the computation, bfloat16 say; parameters, norms, softmax and logits stay
        float32. None takes the parameters' dtype.
    """

    width: int = 128
    depth: int = 4
    num_heads: int = 4
    head_dim: int | None = None
    mlp_dim: int | None = None
    position: str | ModuleFactory = "learned"
    position_options: Mapping[str, Any] = FrozenDict()
    norm: str | ModuleFactory = "layer_norm"
    norm_epsilon: float = 1e-5
    embedding_norm: bool = False
    wiring: str | Wiring = "pre"
    activation: str | Callable[[Array], Array] = "gelu"
    attention: ModuleFactory = MultiHeadAttention
    use_bias: bool = True
    dropout_rate: float = 0.0
    init_std: float = 0.02
    dtype: DTypeLike | None = None

    @property
    def embedding_init(self) -> Initializer:
        """Initial values of embeddings and of kernels outside the blocks."""
        return nn.initializers.normal(self.init_std)

    def make_embedding(self, vocab_size: int, name: str | None = None) -> TokenEmbedding:
        """Makes a token embedding of this width."""
        return TokenEmbedding(vocab_size, self.width, self.embedding_init, self.dtype, name=name)

    def make_output(self, features: int, use_bias: bool, name: str | None = None) -> Linear:
        """Makes the map to logits, whose sums are float32 or wider whatever the dtype."""
        wide = jnp.promote_types(self.dtype or jnp.float32, jnp.float32)
        return Linear(features, use_bias, self.embedding_init, self.dtype, wide, name=name)

    @property
    def make_norm(self) -> ModuleFactory:
        """Makes a norm, in whichever module it is called."""
        known = {"use_bias": self.use_bias, "epsilon": self.norm_epsilon}
        return functools.partial(make_with_known_fields, row(NORMS, self.norm, "norm"), known)

    def run_blocks(
        self,
        embedded: Array,
        positions: Array,
        mask: Array | None,
        train: bool,
        memory: Array | None = None,
        memory_mask: Array | None = None,
        **known: Any,
    ) -> Array:
        """Adds positions to what is embedded and sends it through the blocks.

        To be called once, inside the compact `__call__` of a model, whose parameters these are.

        Args:
          embedded: [..., L, D].
          positions: [..., L] int.
          mask: [..., L, L] bool, True = may attend.
          train: whether dropout is on.
          memory: [..., M, D], what cross-attention looks at, in blocks that then have one.
          memory_mask: [..., L, M] bool.
          **known: what a position encoding may want to know, `max_length` say.
        Returns:
          [..., L, D], normalised.
        """
        terms = self._position_encoding(known)(positions)
        hidden = embedded
        if terms.embedding is not None:
            hidden = hidden + terms.embedding.astype(hidden.dtype)
        if self.embedding_norm:
            hidden = self.make_norm(name="embedding_norm")(hidden)
        hidden = nn.Dropout(self.dropout_rate, deterministic=not train)(hidden)
        wiring = row(WIRINGS, self.wiring, "wiring")
        make_block = self._block_factory(wiring)
        masks = {"mask": mask, "memory_mask": memory_mask}
        for layer in range(self.depth):
            block = make_block(name=f"block_{layer}")
            hidden = block(hidden, memory, terms=terms, train=train, **masks)
        return self.make_norm(name="final_norm")(hidden) if wiring.final_norm else hidden

    def _position_encoding(self, known: Mapping[str, Any]) -> nn.Module:
        head_dim = self.head_dim or self.width // self.num_heads
        known = {"width": self.width, "num_heads": self.num_heads, "head_dim": head_dim, **known}
        chosen = row(POSITIONS, self.position, "position")
        return make_with_known_fields(chosen, known, **self.position_options, name="positions")

    def _block_factory(self, wiring: Wiring) -> ModuleFactory:
        shared = {
            "use_bias": self.use_bias,
            "kernel_init": self.embedding_init,
            "out_init": nn.initializers.normal(self.init_std / math.sqrt(2 * max(self.depth, 1))),
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
        return functools.partial(
            Block, attention, feed_forward, self.make_norm, wiring, self.dropout_rate
        )


class Stack(Transformer):
    """The blocks alone, with positions and final norm: one half of an encoder–decoder."""

    @nn.compact
    def __call__(self, embedded: Array, positions: Array, *arguments: Any, **known: Any) -> Array:
        """[..., L, D] -> [..., L, D]; the arguments are those of `run_blocks`."""
        return self.run_blocks(embedded, positions, *arguments, **known)


def shared_fields(model: Transformer) -> dict[str, Any]:
    """Returns what a model hands to the stacks that it is made of."""
    names = dataclasses.fields(cast(Any, Stack))
    own = [field.name for field in names if field.name not in ("parent", "name")]
    return {name: getattr(model, name) for name in own}


def check_tokens(max_length: int, tokens: Array, **alike: Array | None) -> None:
    """Refuses an input that is too long, or arrays [..., L] that do not go with it.

    Args:
      max_length: longest input.
      tokens: [..., L], or what stands for them.
      **alike: name -> [..., L] or None.
    Raises:
      ValueError: naming the argument.
    """
    length = tokens.shape[-1]
    if length > max_length:
        raise ValueError(f"tokens: length {length} is beyond max_length {max_length}")
    for name, array in alike.items():
        if array is not None:
            check_shapes(tokens=(tokens, "... L"), **{name: (array, "... L")})
