"""The encoder, in which every position attends to all positions."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.linear import Linear
from transformer_jax.models.stack import Stack, Transformer, norm_factory, variant
from transformer_jax.options import FrozenOptions, GivenCount, GivenNatural, Natural, Variant
from transformer_jax.pooling import ClassToken, Pooling, adds_token, pooling_of
from transformer_jax.shapes import as_int32, check_tokens
from transformer_jax.sites import site


class Encoder(Transformer, kw_only=True):
    """A bidirectional encoder with a head, by default with BERT's architecture.

    Devlin et al. 2019, arXiv:1810.04805, section 3. It reads tokens, or vectors (time series,
    features) through a linear projection; for vectors, `vocab_size` is None and `num_features` is
    given. The output depends on `num_classes`.

    Attributes:
      options: Options of the stack; see Transformer.
      vocab_size: Number of tokens in the vocabulary, V; None if the inputs are vectors.
      num_features: Number of features of an input vector, F; None if the inputs are tokens.
      max_length: Largest input length, L; longer inputs are refused.
      num_classes: None for token logits at each position (masked language modelling), 0 for
        hidden vectors, C > 0 for logits of C classes for the whole input.
      num_types: Number of text types in one input, e.g. 2 for BERT's two sentences; 0 for none.
      pooling: A name in POOLINGS. `class_token` passes the first token's vector through BERT's
        tanh layer; if the inputs are vectors, a learned vector is put in front and takes the
        token's place, without that layer. `mean` and `max` are over all tokens.
    """

    vocab_size: GivenCount | None = None
    num_features: GivenCount | None = None
    max_length: GivenCount
    num_classes: GivenNatural | None = None
    num_types: Natural = 0
    pooling: Annotated[str | Callable[[], Pooling], Variant("pooling:POOLINGS")] = "class_token"
    usual: ClassVar[Mapping[str, Any]] = FrozenOptions(embedding_norm=True, wiring="post")

    def setup(self) -> None:
        """Creates the input layers, the stack and the output layers."""
        has_token = self.vocab_size is None and adds_token(self.pooling)
        length = self.max_length + has_token
        self.stack = Stack(self.options, False, length, self.vocab_size)
        nn.share_scope(self, self.stack)  # the encoder itself holds the blocks' parameters
        if self.vocab_size is not None:
            self.token_embedding = self.make_embedding(self.vocab_size)
        elif self.num_classes is None:
            raise ValueError("num_classes: expected 0 or more for vector inputs, got None")
        if self.num_classes:
            self.head = self.make_output(self.num_classes, use_bias=True)
        elif self.num_classes is None:
            self.transform = self._to_width()
            self.transform_norm = norm_factory(self.options)()
            self.output_bias = OutputBias()

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
        """Returns logits or hidden vectors, depending on `num_classes`.

        Args:
          tokens: [..., L] int.
          vectors: [..., L, F] float, instead of tokens.
          segments: [..., L] int, separate documents of a packed input; 0 = padding.
          types: [..., L] int, type of the text that each token belongs to; 0 if None.
          positions: [..., L] int; 0 .. L-1 if None.
          train: Whether dropout is on; `apply` then needs rngs={'dropout': key}.
          return_hidden: Whether to return hidden vectors, the input of `project`, not logits.
        Returns:
          Logits [..., L, V] or [..., C]; or hidden vectors [..., L, D], or [..., D] if pooled.
        Raises:
          ValueError: The input is longer than max_length, or a shape or a variant's name is wrong.
        """
        pooling = pooling_of(self.pooling)
        alike = {"segments": segments, "types": types, "positions": positions}
        if self.vocab_size is not None:
            if tokens is None:
                raise ValueError("tokens: expected [..., L] int, since vocab_size is set, got None")
            check_tokens(self.max_length, tokens, **alike)
            inputs_LD = self.token_embedding(tokens)
        else:
            if vectors is None or vectors.shape[-1] != self.num_features:
                got = "none" if vectors is None else vectors.shape
                raise ValueError(f"vectors: expected [..., L, F={self.num_features}], got {got}")
            check_tokens(self.max_length, vectors[..., 0], **alike)
            inputs_LD = self._to_width("projection")(vectors)
            if pooling.adds_token:
                inputs_LD = ClassToken(self.embedding_init, name="class_token")(inputs_LD)
                segments = _with_first(segments, 1)
                types = _with_first(types, 0)
                positions = None if positions is None else as_int32(positions) + 1
                positions = _with_first(positions, 0)
        positions = jnp.arange(inputs_LD.shape[-2]) if positions is None else positions
        if types is not None and not self.num_types:
            raise ValueError("types: expected none, since num_types is 0")
        if self.num_types:
            types = jnp.zeros(inputs_LD.shape[:-1], jnp.int32) if types is None else types
            inputs_LD += self.make_embedding(self.num_types, name="type_embedding")(types)
        hidden_LD = self.stack(inputs_LD, positions, tokens=tokens, segments=segments, train=train)
        if not self.num_classes:
            return hidden_LD if return_hidden else self.project(hidden_LD)
        pooled_D = pooling(hidden_LD, None if segments is None else segments > 0)
        if pooling.adds_token and self.vocab_size is not None:
            pooled_D = jnp.tanh(self._to_width("pooler")(pooled_D))
        rate = self.options.dropout_rate
        dropout = nn.Dropout(rate, deterministic=not train, name="pooled_dropout")
        pooled_D = site(self, "pooled", dropout(pooled_D))
        return pooled_D if return_hidden else self.project(pooled_D)

    def project(self, hidden: Array) -> Array:
        """Returns the logits for any hidden vectors: [..., D] -> [..., V or C].

        If `num_classes` is 0, it returns `hidden`. Token logits are computed as in BERT: a layer,
        an activation, a norm, then the tied embedding and a bias.
        """
        if self.num_classes == 0:
            return hidden
        if self.num_classes is not None:
            return site(self, "logits", self.head(self.scale_for_logits(hidden)))
        activation = variant(self.options, "activation")
        hidden_D = self.transform_norm(activation(self.transform(hidden)))
        logits_V = self.token_embedding.attend(self.scale_for_logits(hidden_D))
        return site(self, "logits", self.output_bias(logits_V))

    def _to_width(self, name: str | None = None) -> Linear:
        """Returns an affine map to the width of the model."""
        options = self.options
        return Linear(options.width, True, self.embedding_init, options.dtype, name=name)

    def example_inputs(self) -> dict[str, Array]:
        """Returns dummy inputs for initialising the parameters."""
        if self.vocab_size is not None:
            return {"tokens": jnp.zeros((1, self.max_length), jnp.int32)}
        return {"vectors": jnp.zeros((1, self.max_length, self.num_features))}


def _with_first(array: Array | None, value: int) -> Array | None:
    """Prepends a value: [..., L] -> [..., L + 1]; None stays None."""
    if array is None:
        return None
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(1, 0)], constant_values=value)


class OutputBias(nn.Module):
    """A bias added to logits, initially 0, for output layers that are tied to an embedding."""

    @nn.compact
    def __call__(self, logits: Array) -> Array:
        """[..., V] -> [..., V]."""
        return logits + self.param("bias", nn.initializers.zeros, logits.shape[-1:])
