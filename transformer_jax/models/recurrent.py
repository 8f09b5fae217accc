"""Recurrent baselines: the same jobs without attention, through flax's cells."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.layers.cache import keep_state, kept_state, uses_cache
from transformer_jax.layers.embeddings import TokenEmbedding
from transformer_jax.layers.linear import Linear
from transformer_jax.models.families import row
from transformer_jax.options import Count, Switch
from transformer_jax.shapes import check_tokens
from transformer_jax.sites import site

# Elman 1990; Cho et al. 2014, arXiv:1406.1078; Hochreiter and Schmidhuber 1997.
CELLS = {"rnn": nn.SimpleCell, "gru": nn.GRUCell, "lstm": nn.OptimizedLSTMCell}


class Recurrence(nn.Module):
    """One recurrent layer in one direction.

    Attributes:
      cell: a name in CELLS, or a class like flax's cells.
      features: of the state, D.
      reverse: whether it reads from the end.
      dtype: dtype of the computation.
    """

    cell: str | type[nn.RNNCellBase]
    features: int
    reverse: bool = False
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(
        self, inputs: Array, segments: Array, carry: Any = None, *, is_fresh: Array | None = None
    ) -> tuple[Any, Array]:
        """Reads a sequence.

        Args:
          inputs: [..., L, F].
          segments: [..., L] int, 0 = padding, which leaves the state as it is.
          carry: the state to start with; zeros if not given.
          is_fresh: [..., L] bool, where a document begins and the state starts anew.
        Returns:
          The last state, and the outputs [..., L, D].
        """
        cell = row(CELLS, self.cell, "cell")(self.features, dtype=self.dtype, name="cell")
        empty = cell.initialize_carry(jax.random.key(0), (*inputs.shape[:-2], inputs.shape[-1]))
        carry = empty if carry is None else carry
        is_fresh = jnp.zeros(segments.shape, bool) if is_fresh is None else is_fresh

        def choose(condition: Array, chosen: Any, other: Any) -> Any:
            pick = lambda a, b: jnp.where(condition[..., None], a, b)  # noqa: E731
            return jax.tree.map(pick, chosen, other)

        def read(cell: nn.RNNCellBase, carry: Any, place: tuple) -> tuple[Any, Array]:
            features, is_token, begins = place
            before = choose(begins, empty, carry)
            after, output = cell(before, features)
            kept = choose(is_token, after, before)
            return jax.tree.map(lambda new, old: new.astype(old.dtype), kept, carry), output

        scan = nn.scan(
            read, variable_broadcast="params", split_rngs={"params": False}, reverse=self.reverse
        )
        by_time = (
            jnp.moveaxis(inputs, -2, 0),
            *(jnp.moveaxis(a, -1, 0) for a in (segments > 0, is_fresh)),
        )
        carry, outputs = scan(cell, carry, by_time)
        return carry, jnp.moveaxis(outputs, 0, -2)


def fresh_places(segments: Array) -> Array:
    """Returns where another document begins: [..., L] int -> [..., L] bool."""
    changes = segments[..., 1:] != segments[..., :-1]
    return jnp.concatenate([jnp.ones_like(segments[..., :1], bool), changes], axis=-1)


class RecurrentDecoder(nn.Module):
    """A recurrent language model: embedding, layers of cells, output layer.

    Mikolov et al. 2010; Zaremba et al. 2014, arXiv:1409.2329 (dropout between layers only).

    Attributes:
      vocab_size: tokens, V.
      max_length: longest input, L.
      width: features of embedding and state, D.
      depth: number of layers.
      cell: a name in CELLS.
      tie_embeddings: whether the output layer is the token embedding.
      dropout_rate: share dropped in training after the embedding and after each layer.
      init_std: deviation of the initial embedding; cells start as flax's do.
      dtype: dtype of the computation; None takes the parameters'.
    """

    vocab_size: int
    max_length: int
    width: int = 128
    depth: Count = 2
    cell: str = "lstm"
    tie_embeddings: bool = True
    dropout_rate: float = 0.0
    init_std: float = 0.02
    dtype: DTypeLike | None = None

    def setup(self) -> None:
        """Makes what reads tokens and what gives logits."""
        init = nn.initializers.normal(self.init_std)
        self.token_embedding = TokenEmbedding(self.vocab_size, self.width, init, self.dtype)
        if not self.tie_embeddings:
            wide = jnp.promote_types(self.dtype or jnp.float32, jnp.float32)
            self.output = Linear(self.vocab_size, False, init, self.dtype, wide)

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
        """Returns the logits of each next token.

        Args:
          tokens: [..., L] int.
          segments: [..., L] int, document numbers of a packed input, 0 = padding; the state
            starts anew where a document begins.
          positions: not needed: order is in the recurrence.
          train: whether dropout is on; then apply needs rngs={'dropout': key}.
          return_hidden: whether to return what `project` reads in place of the logits.
        Returns:
          [..., L, V] float32 or wider.
        Raises:
          ValueError: the input is longer than max_length, or a shape is wrong.
        """
        check_tokens(self.max_length, tokens, segments=segments)
        reads_on = uses_cache(self)
        if segments is not None and reads_on:
            raise ValueError("cache: it holds one text; give no segments")
        segments = jnp.ones_like(tokens) if segments is None else segments
        embedded = self.token_embedding(tokens)
        hidden = nn.Dropout(self.dropout_rate, deterministic=not train)(embedded)
        hidden = site(self, "embedded", hidden)
        is_fresh = None if reads_on else fresh_places(segments)
        for layer in range(self.depth):
            recurrence = Recurrence(self.cell, self.width, dtype=self.dtype, name=f"layer_{layer}")
            before = kept_state(self, layer, reads_on)
            state, hidden = recurrence(hidden, segments, before, is_fresh=is_fresh)
            keep_state(self, layer, reads_on, state)
            hidden = site(self, f"layer_{layer}.out", hidden)
            hidden = nn.Dropout(self.dropout_rate, deterministic=not train)(hidden)
        hidden = site(self, "hidden", hidden)
        return hidden if return_hidden else self.project(hidden)

    def project(self, hidden: Array) -> Array:
        """Returns the logits of any part of `hidden`: [..., D] -> [..., V]."""
        tied = self.tie_embeddings
        logits = self.token_embedding.attend(hidden) if tied else self.output(hidden)
        return site(self, "logits", logits)

    def can_cache(self) -> bool:
        """A state is right whatever follows; see Transformer."""
        return True

    def example_inputs(self) -> dict[str, Array]:
        """Returns inputs that parameters can be drawn for."""
        return {"tokens": jnp.zeros((1, 1), jnp.int32)}


class RecurrentEncoderDecoder(nn.Module):
    """Sequence to sequence through one state: Sutskever et al. 2014, arXiv:1409.3215.

    The encoder's last states are the decoder's first ones; of two directions, through a linear map.
    There is no attention: all that the decoder knows of the source is that state.

    Attributes:
      vocab_size: tokens of both sides, V.
      max_length: longest source and longest target, L.
      width: features of embedding and states, D.
      depth: layers on each side.
      cell: a name in CELLS.
      bidirectional: whether the encoder also reads from the end.
      share_embeddings: whether source, target and output layer use one embedding.
      dropout_rate: share dropped in training after the embedding and after each layer.
      init_std: deviation of the initial embedding; cells start as flax's do.
      dtype: dtype of the computation; None takes the parameters'.
    """

    vocab_size: int
    max_length: int
    width: int = 128
    depth: Count = 2
    cell: str = "lstm"
    bidirectional: Switch = False
    share_embeddings: Switch = True
    dropout_rate: float = 0.0
    init_std: float = 0.02
    dtype: DTypeLike | None = None

    def setup(self) -> None:
        """Makes embeddings, the layers of both sides, and the bridge between them."""
        init = nn.initializers.normal(self.init_std)
        wide = jnp.promote_types(self.dtype or jnp.float32, jnp.float32)

        def layers(reverse: bool = False) -> list[Recurrence]:
            make = lambda: Recurrence(self.cell, self.width, reverse, self.dtype)  # noqa: E731
            return [make() for _ in range(self.depth)]

        def embedding() -> TokenEmbedding:
            return TokenEmbedding(self.vocab_size, self.width, init, self.dtype)

        self.token_embedding = embedding()
        if not self.share_embeddings:
            self.target_embedding = embedding()
            self.output = Linear(self.vocab_size, False, init, self.dtype, wide)
        self.encoder = layers()
        self.decoder = layers()
        self.dropout = nn.Dropout(self.dropout_rate)
        if self.bidirectional:
            self.backward = layers(reverse=True)
            self.bridge = [
                Linear(self.width, True, nn.initializers.lecun_normal(), self.dtype)
                for _ in range(2 * self.depth)
            ]

    def __call__(
        self,
        source: Array,
        tokens: Array,
        *,
        source_segments: Array | None = None,
        segments: Array | None = None,
        train: bool = False,
        return_hidden: bool = False,
    ) -> Array:
        """Returns the logits of each next target token; arguments as in EncoderDecoder."""
        memory = self.encode(source, source_segments=source_segments, train=train)
        return self.decode(
            tokens, memory, segments=segments, train=train, return_hidden=return_hidden
        )

    def encode(
        self, source: Array, *, source_segments: Array | None = None, train: bool = False
    ) -> list[Any]:
        """Reads the source [..., M]; returns the state that each decoder layer starts with."""
        check_tokens(self.max_length, source, source_segments=source_segments)
        segments = jnp.ones_like(source) if source_segments is None else source_segments
        hidden = self.dropout(self.token_embedding(source), deterministic=not train)
        hidden = site(self, "encoder.embedded", hidden)
        carries = []
        for layer, forward in enumerate(self.encoder):
            carry, outputs = forward(hidden, segments)
            if self.bidirectional:
                back, back_outputs = self.backward[layer](hidden, segments)
                carry = self._join(layer, carry, back)
                outputs = jnp.concatenate([outputs, back_outputs], axis=-1)
            carries.append(carry)
            outputs = site(self, f"encoder.layer_{layer}.out", outputs)
            hidden = self.dropout(outputs, deterministic=not train)
        return carries

    def _join(self, layer: int, forward: Any, backward: Any) -> Any:
        """Maps the two directions' states to one; an LSTM's has two parts, each with its map."""
        leaves, treedef = jax.tree.flatten(forward)
        pairs = zip(leaves, jax.tree.leaves(backward), strict=True)
        joined = [
            self.bridge[2 * layer + part](jnp.concatenate(pair, axis=-1)).astype(pair[0].dtype)
            for part, pair in enumerate(pairs)
        ]
        return jax.tree.unflatten(treedef, joined)

    def decode(
        self,
        tokens: Array,
        memory: list[Any],
        *,
        segments: Array | None = None,
        train: bool = False,
        return_hidden: bool = False,
    ) -> Array:
        """Returns the logits of each next target token, [..., L, V]."""
        check_tokens(self.max_length, tokens, segments=segments)
        segments = jnp.ones_like(tokens) if segments is None else segments
        embedding = self.token_embedding if self.share_embeddings else self.target_embedding
        reads_on = uses_cache(self)
        hidden = self.dropout(embedding(tokens), deterministic=not train)
        hidden = site(self, "decoder.embedded", hidden)
        for layer, recurrence in enumerate(self.decoder):
            before = kept_state(self, layer, reads_on, memory[layer])
            state, hidden = recurrence(hidden, segments, before)
            keep_state(self, layer, reads_on, state)
            hidden = site(self, f"decoder.layer_{layer}.out", hidden)
            hidden = self.dropout(hidden, deterministic=not train)
        hidden = site(self, "decoder.hidden", hidden)
        return hidden if return_hidden else self.project(hidden)

    def project(self, hidden: Array) -> Array:
        """Returns the logits of any part of `hidden`: [..., D] -> [..., V]."""
        tied = self.share_embeddings
        logits = self.token_embedding.attend(hidden) if tied else self.output(hidden)
        return site(self, "logits", logits)

    def can_cache(self) -> bool:
        """A state is right whatever follows; see Transformer."""
        return True

    def example_inputs(self) -> dict[str, Array]:
        """Returns inputs that parameters can be drawn for."""
        tokens = jnp.zeros((1, 1), jnp.int32)
        return {"source": tokens, "tokens": tokens}
