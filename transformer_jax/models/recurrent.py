"""Recurrent models without attention, as baselines for transformers; they use flax's cells."""

from collections.abc import Callable
from typing import Annotated, Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.cache import keep_state, kept_state, uses_cache
from transformer_jax.linear import Checked, Linear, TokenEmbedding, logits_layer
from transformer_jax.options import (
    Count,
    GivenCount,
    GivenNatural,
    GivenShare,
    Natural,
    Switch,
    Variant,
)
from transformer_jax.pooling import Pooling, pooling_of
from transformer_jax.shapes import check_tokens
from transformer_jax.sites import site
from transformer_jax.variants.running_sums import document_starts

# Elman 1990; Cho et al. 2014, arXiv:1406.1078; Hochreiter and Schmidhuber 1997.
CELLS = {"rnn": nn.SimpleCell, "gru": nn.GRUCell, "lstm": nn.OptimizedLSTMCell}
Cell = Annotated[str | Callable[..., nn.RNNCellBase], Variant("models.recurrent:CELLS")]


def _cell_of(choice: str | Callable[..., nn.RNNCellBase]) -> Callable[..., nn.RNNCellBase]:
    if isinstance(choice, str) and choice not in CELLS:
        raise ValueError(f"cell: expected one of {', '.join(CELLS)}, got {choice!r}")
    return CELLS[choice] if isinstance(choice, str) else choice


class Recurrence(nn.Module):
    """One recurrent layer in one direction.

    Attributes:
      cell: One of flax's cell classes, or a class with the same interface.
      features: Number of state features, D.
      reverse: Whether the layer reads its input from the end.
      dtype: Computation dtype.
    """

    cell: Callable[..., nn.RNNCellBase]
    features: int
    reverse: bool = False
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(
        self, inputs: Array, segments: Array, carry: Any = None, *, is_fresh: Array | None = None
    ) -> tuple[Any, Array]:
        """Applies the cell along a sequence.

        Args:
          inputs: [..., L, F].
          segments: [..., L] int, 0 = padding, which does not change the state.
          carry: Initial state; zeros if None.
          is_fresh: [..., L] bool, True where a document begins and the state is reset.
        Returns:
          The final state, and the outputs [..., L, D].
        """
        cell = self.cell(self.features, dtype=self.dtype, name="cell")
        empty = cell.initialize_carry(jax.random.key(0), (*inputs.shape[:-2], inputs.shape[-1]))
        is_fresh = jnp.zeros(segments.shape, bool) if is_fresh is None else is_fresh

        def choose(condition: Array, chosen: Any, otherwise: Any) -> Any:
            pick = lambda a, b: jnp.where(condition[..., None], a, b)  # noqa: E731
            return jax.tree.map(pick, chosen, otherwise)

        def read(cell: nn.RNNCellBase, carry: Any, place: tuple) -> tuple[Any, Array]:
            features, is_token, begins = place
            before = choose(begins, empty, carry)
            after, output = cell(before, features)
            state = choose(is_token, after, before)
            return jax.tree.map(lambda new, old: new.astype(old.dtype), state, carry), output

        scan = nn.scan(
            read, variable_broadcast="params", split_rngs={"params": False}, reverse=self.reverse
        )
        flags = [jnp.moveaxis(array, -1, 0) for array in (segments > 0, is_fresh)]
        places = (jnp.moveaxis(inputs, -2, 0), *flags)
        carry, outputs = scan(cell, empty if carry is None else carry, places)
        return carry, jnp.moveaxis(outputs, 0, -2)


class RecurrentDecoder(Checked):
    """A recurrent language model: embedding, layers of cells, output layer.

    Mikolov et al. 2010; Zaremba et al. 2014, arXiv:1409.2329 (dropout between layers only).

    Attributes:
      vocab_size: Number of tokens in the vocabulary, V.
      max_length: Largest input length, L.
      width: Number of features of the embedding and of the state, D.
      recurrent_depth: Number of layers.
      cell: A name in CELLS.
      tie_embeddings: Whether the output layer reuses the token embedding.
      dropout_rate: Dropout rate in training after the embedding and after each layer.
      init_std: Standard deviation of the initial embedding; cells keep flax's initial values.
      dtype: Computation dtype; the parameters' dtype if None.
    """

    vocab_size: GivenCount
    max_length: GivenCount
    width: GivenCount = 128
    recurrent_depth: Count = 2
    cell: Cell = "lstm"
    tie_embeddings: Switch = True
    dropout_rate: GivenShare = 0.0
    init_std: float = 0.02
    dtype: DTypeLike | None = None

    def setup(self) -> None:
        """Creates the input and output layers."""
        init = nn.initializers.normal(self.init_std)
        self.token_embedding = TokenEmbedding(self.vocab_size, self.width, init, self.dtype)
        if not self.tie_embeddings:
            self.output = logits_layer(self.vocab_size, False, init, self.dtype)

    @nn.compact
    def __call__(
        self,
        tokens: Array,
        *,
        segments: Array | None = None,
        positions: Array | None = None,
        train: bool = False,
        return_hidden: bool = False,
    ) -> Array:
        """Returns the next-token logits, or hidden vectors; the arguments are as in Decoder.

        Positions are ignored: a recurrence depends on the order. Documents begin with a new state.

        Returns:
          [..., L, V] float32 or wider, or hidden vectors [..., L, D].
        Raises:
          ValueError: The input is longer than max_length, or a shape is wrong.
        """
        check_tokens(self.max_length, tokens, segments=segments)
        reads_on = uses_cache(self)
        if segments is not None and reads_on:
            raise ValueError("segments: expected none with a cache, which holds one text")
        segments = jnp.ones_like(tokens) if segments is None else segments
        embedded_LD = self.token_embedding(tokens)
        hidden_LD = nn.Dropout(self.dropout_rate, deterministic=not train)(embedded_LD)
        hidden_LD = site(self, "embedded", hidden_LD)
        is_fresh = None if reads_on else document_starts(segments)
        cell = _cell_of(self.cell)
        for layer in range(self.recurrent_depth):
            recurrence = Recurrence(cell, self.width, dtype=self.dtype, name=f"layer_{layer}")
            before = kept_state(self, layer, reads_on)
            state, hidden_LD = recurrence(hidden_LD, segments, before, is_fresh=is_fresh)
            keep_state(self, layer, reads_on, state)
            hidden_LD = site(self, f"layer_{layer}.out", hidden_LD)
            hidden_LD = nn.Dropout(self.dropout_rate, deterministic=not train)(hidden_LD)
        hidden_LD = site(self, "hidden", hidden_LD)
        return hidden_LD if return_hidden else self.project(hidden_LD)

    def project(self, hidden: Array) -> Array:
        """Returns the logits for hidden vectors at any positions: [..., D] -> [..., V]."""
        read_out = self.token_embedding.attend if self.tie_embeddings else self.output
        return site(self, "logits", read_out(hidden))

    def with_options(self, **changes: Any) -> Self:
        """Returns a copy of the model with changed fields."""
        return self.clone(**changes)

    def can_cache(self) -> bool:
        """Returns True: a recurrent state stays valid if tokens follow (Transformer.can_cache)."""
        return True

    def example_inputs(self) -> dict[str, Array]:
        """Returns dummy inputs for initialising the parameters."""
        return {"tokens": jnp.zeros((1, 1), jnp.int32)}


class RecurrentEncoder(Checked, kw_only=True):
    """A recurrent classifier: layers of cells over the whole input, pooling and a linear head.

    Attributes:
      vocab_size: Number of tokens in the vocabulary, V; None if the inputs are vectors.
      num_features: Number of features of an input vector, F; None if the inputs are tokens.
      max_length: Largest input length, L.
      num_classes: Number of classes, C.
      num_types: Number of text types in one input, e.g. 2 for BERT's two sentences; 0 for none.
      width: Number of features of the embedding and of the states, D.
      recurrent_depth: Number of layers.
      cell: A name in CELLS.
      bidirectional: Whether each layer also reads from the end (Graves and Schmidhuber 2005).
      pooling: A name in POOLINGS other than `class_token`. Each direction is pooled in its reading
        order, so that `last` takes its final state; `max`: Conneau et al., arXiv:1705.02364.
      dropout_rate: Dropout rate in training after the embedding and after each layer.
      init_std: Standard deviation of the initial embedding; cells keep flax's initial values.
      dtype: Computation dtype; the parameters' dtype if None.
    """

    vocab_size: GivenCount | None = None
    num_features: GivenCount | None = None
    max_length: GivenCount
    num_classes: GivenNatural
    num_types: Natural = 0
    width: GivenCount = 128
    recurrent_depth: Count = 2
    cell: Cell = "lstm"
    bidirectional: Switch = False
    pooling: Annotated[str | Callable[[], Pooling], Variant("pooling:POOLINGS")] = "last"
    dropout_rate: GivenShare = 0.0
    init_std: float = 0.02
    dtype: DTypeLike | None = None

    def setup(self) -> None:
        """Creates the output layer."""
        init = nn.initializers.normal(self.init_std)
        self.head = logits_layer(self.num_classes, True, init, self.dtype)

    @nn.compact
    def __call__(
        self,
        tokens: Array | None = None,
        *,
        vectors: Array | None = None,
        segments: Array | None = None,
        types: Array | None = None,
        positions: Array | None = None,
        train: bool = False,
        return_hidden: bool = False,
    ) -> Array:
        """Returns the class logits, [..., C] float32 or wider; the arguments are as in Encoder.

        Positions are ignored, since a recurrence depends on the order anyway. Segments only mark
        padding (0); the state is not reset between documents.

        Raises:
          ValueError: The input is longer than max_length, or a shape or a name is wrong.
        """
        pooling = pooling_of(self.pooling)
        if pooling.adds_token:
            raise ValueError(f"pooling: expected last, mean or max, got {self.pooling!r}")
        hidden_LD = self._embed(tokens, vectors, types)
        check_tokens(self.max_length, hidden_LD[..., 0], segments=segments, types=types)
        segments = jnp.ones(hidden_LD.shape[:-1], jnp.int32) if segments is None else segments
        dropout = nn.Dropout(self.dropout_rate, deterministic=not train)
        hidden_LD = site(self, "embedded", dropout(hidden_LD))
        outputs = [hidden_LD]  # one array per direction
        cell = _cell_of(self.cell)
        for layer in range(self.recurrent_depth):
            ways = {"layer": False} | ({"backward": True} if self.bidirectional else {})
            read = [
                Recurrence(cell, self.width, reverse, self.dtype, name=f"{way}_{layer}")
                for way, reverse in ways.items()
            ]
            outputs = [recurrence(hidden_LD, segments)[1] for recurrence in read]
            hidden_LD = jnp.concatenate(outputs, axis=-1)
            hidden_LD = dropout(site(self, f"layer_{layer}.out", hidden_LD))
        forward_LD, *backward = jnp.split(hidden_LD, len(outputs), axis=-1)
        is_token_L = jnp.broadcast_to(segments > 0, hidden_LD.shape[:-1])
        pooled = [pooling(forward_LD, is_token_L)]
        pooled += [pooling(jnp.flip(b_LD, -2), jnp.flip(is_token_L, -1)) for b_LD in backward]
        pooled_D = site(self, "pooled", jnp.concatenate(pooled, axis=-1))
        return pooled_D if return_hidden else self.project(pooled_D)

    def project(self, hidden: Array) -> Array:
        """Returns the logits for the pooled vector: [..., D or 2 D] -> [..., C]."""
        return site(self, "logits", self.head(hidden))

    def with_options(self, **changes: Any) -> Self:
        """Returns a copy of the model with changed fields."""
        return self.clone(**changes)

    def _embed(self, tokens: Array | None, vectors: Array | None, types: Array | None) -> Array:
        """Returns the input of the first layer, [..., L, D]."""
        init = nn.initializers.normal(self.init_std)
        if self.vocab_size is None:
            if vectors is None or vectors.shape[-1] != self.num_features:
                got = "none" if vectors is None else vectors.shape
                raise ValueError(f"vectors: expected [..., L, F={self.num_features}], got {got}")
            return Linear(self.width, True, init, self.dtype, name="projection")(vectors)
        if tokens is None:
            raise ValueError("tokens: expected [..., L] int, since vocab_size is set, got None")
        if types is not None and not self.num_types:
            raise ValueError("types: expected none, since num_types is 0")
        sizes = (self.width, init, self.dtype)
        embedded_LD = TokenEmbedding(self.vocab_size, *sizes, name="token_embedding")(tokens)
        if not self.num_types:
            return embedded_LD
        types = jnp.zeros_like(tokens) if types is None else types
        return embedded_LD + TokenEmbedding(self.num_types, *sizes, name="type_embedding")(types)

    def example_inputs(self) -> dict[str, Array]:
        """Returns dummy inputs for initialising the parameters."""
        if self.vocab_size is not None:
            return {"tokens": jnp.zeros((1, self.max_length), jnp.int32)}
        return {"vectors": jnp.zeros((1, self.max_length, self.num_features))}
