"""The original transformer: an encoder, and a decoder that attends to its output."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from transformer_jax.masks import padding_mask, segment_mask
from transformer_jax.models.encoder import OutputBias
from transformer_jax.models.stack import Stack, Transformer
from transformer_jax.options import FrozenOptions, GivenCount, Switch
from transformer_jax.shapes import check_tokens
from transformer_jax.sites import site


class EncoderDecoder(Transformer):
    """An encoder–decoder, by default with the original transformer's architecture.

    Vaswani et al. 2017, arXiv:1706.03762, section 3. Both sides share one vocabulary and `depth`.

    Attributes:
      options: Options of the stacks; see Transformer.
      vocab_size: Number of tokens in the vocabulary, V.
      max_length: Largest length of a source and of a target, L.
      share_embeddings: Whether the source, the target and the output layer share one embedding
        (section 3.4); if not, each has its own.
      tie_output: Whether the output layer uses the shared embedding too; in T5 1.1 it does not.
      scale_embeddings: Whether embeddings are multiplied by sqrt(width) (section 3.4).
      scale_logits: Whether logits are divided by sqrt(width), as in T5, whose output layer is an
        unscaled embedding (Raffel et al. 2020, arXiv:1910.10683; their code).
      output_bias: Whether the logits have a bias, as in Marian and BART.
      cross_attention: Whether the decoder attends to the source; False shows why it should.
    """

    vocab_size: GivenCount
    max_length: GivenCount
    share_embeddings: Switch = True
    tie_output: Switch = True
    scale_embeddings: Switch = True
    scale_logits: Switch = False
    output_bias: Switch = False
    cross_attention: Switch = True
    usual: ClassVar[Mapping[str, Any]] = FrozenOptions(
        width=512, depth=6, num_heads=8, position="sinusoidal", wiring="post", activation="relu"
    )

    def setup(self) -> None:
        """Creates the two stacks, the embeddings and the output layer."""
        options, sizes = self.options, (self.max_length, self.vocab_size)
        self.encoder = Stack(options, False, *sizes, side="encoder")
        self.decoder = Stack(options, True, *sizes, side="decoder")
        self.token_embedding = self.make_embedding(self.vocab_size)
        if not self.share_embeddings:
            self.target_embedding = self.make_embedding(self.vocab_size)
        if not self._is_tied():
            self.output = self.make_output(self.vocab_size, use_bias=False)
        if self.output_bias:
            self.logits_bias = OutputBias()

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
        """Returns the next-token logits, or hidden vectors, at every target position.

        Args:
          source: [..., M] int.
          tokens: [..., L] int, the target shifted right.
          source_segments: [..., M] int, 0 = padding; else numbers of texts, which ignore others.
          segments: [..., L] int, 0 = padding; else the numbers of their sources.
          train: Whether dropout is on; `apply` then needs rngs={'dropout': key}.
          return_hidden: Whether to return hidden vectors, the input of `project`, not logits.
        Returns:
          [..., L, V] float32 or wider, or hidden vectors [..., L, D].
        Raises:
          ValueError: An input is longer than max_length, or a shape or a variant's name is wrong.
        """
        memory = self.encode(source, source_segments=source_segments, train=train)
        return self.decode(
            tokens, memory, segments=segments, train=train, return_hidden=return_hidden
        )

    def encode(
        self, source: Array, *, source_segments: Array | None = None, train: bool = False
    ) -> tuple[Array, Array | None]:
        """Returns the memory of a source, for `decode`, and its segments.

        Args:
          source: [..., M] int.
          source_segments: [..., M] int, 0 = padding.
          train: Whether dropout is on.
        Returns:
          Memory [..., M, D], and source_segments.
        """
        check_tokens(self.max_length, source, source_segments=source_segments)
        embedded_MD = self._scaled(self.token_embedding(source))
        positions = jnp.arange(source.shape[-1])
        memory_MD = self.encoder(
            embedded_MD, positions, tokens=source, segments=source_segments, train=train
        )
        return memory_MD, source_segments

    def decode(
        self,
        tokens: Array,
        memory: tuple[Array, Array | None],
        *,
        segments: Array | None = None,
        train: bool = False,
        return_hidden: bool = False,
    ) -> Array:
        """Returns the next-token logits at every target position, given the result of `encode`.

        `memory` is that result; the other arguments and the returned array are as in `__call__`.
        """
        check_tokens(self.max_length, tokens, segments=segments)
        embedding = self.token_embedding if self.share_embeddings else self.target_embedding
        inputs_LD = self._scaled(embedding(tokens))
        seen, sources = memory if self.cross_attention else (None, None)
        if (mask := sources) is not None:
            mask = padding_mask(mask > 0) if segments is None else segment_mask(segments, mask)
        hidden_LD = self.decoder(
            inputs_LD, tokens=tokens, segments=segments, memory=seen, memory_mask=mask, train=train
        )
        return hidden_LD if return_hidden else self.project(hidden_LD)

    def project(self, hidden: Array) -> Array:
        """Returns the logits for any hidden vectors: [..., D] -> [..., V]."""
        hidden_D = self.scale_for_logits(hidden)
        if self.scale_logits:
            hidden_D = hidden_D * self.options.width**-0.5
        read_out = self.token_embedding.attend if self._is_tied() else self.output
        logits_V = read_out(hidden_D)
        return site(self, "logits", self.logits_bias(logits_V) if self.output_bias else logits_V)

    def _is_tied(self) -> bool:
        return self.share_embeddings and self.tie_output

    def _scaled(self, embedded: Array) -> Array:
        return embedded * self.options.width**0.5 if self.scale_embeddings else embedded

    def example_inputs(self) -> dict[str, Array]:
        """Returns dummy inputs for initialising the parameters."""
        tokens = jnp.zeros((1, self.max_length), jnp.int32)
        return {"source": tokens, "tokens": tokens}
