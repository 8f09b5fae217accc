"""The decoder: a language model that reads from left to right."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.models.stack import Stack, Transformer
from transformer_jax.options import GivenCount, Positive, Switch
from transformer_jax.shapes import check_tokens
from transformer_jax.sites import site


class Decoder(Transformer):
    """A decoder-only language model, by default with GPT-2's architecture.

    Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.3.

    Attributes:
      options: Options of the stack; see Transformer.
      vocab_size: Number of tokens in the vocabulary, V.
      max_length: Largest input length, L; longer inputs are refused.
      tie_embeddings: Whether the output layer reuses the token embedding.
      scale_embeddings: Whether embeddings are multiplied by sqrt(width), as in Gemma.
      logits_soft_cap: Bends logits to c * tanh(logit / c), as in Gemma 2 (arXiv:2408.00118, section
        2); None disables it.
      logits_gain: Whether each logit has a learned factor, as in nGPT (arXiv:2410.01131, eq. 3).
      output_bias: Whether the logits have a bias, as in GPT-J.
    """

    vocab_size: GivenCount
    max_length: GivenCount
    tie_embeddings: Switch = True
    scale_embeddings: Switch = False
    logits_soft_cap: Positive | None = None
    logits_gain: Switch = False
    output_bias: Switch = False

    def setup(self) -> None:
        """Creates the embedding, the stack and the output layer."""
        self.token_embedding = self.make_embedding(self.vocab_size)
        self.stack = Stack(self.options, True, self.max_length, self.vocab_size)
        nn.share_scope(self, self.stack)  # the decoder itself holds the blocks' parameters
        if not self.tie_embeddings:
            self.output = self.make_output(self.vocab_size, use_bias=False)
        if self.logits_gain:  # 1, stored as 1 / sqrt(D), beside which Adam's steps are larger
            start = nn.initializers.constant(self.options.width**-0.5)
            self.output_gain = self.param("output_gain", start, (self.vocab_size,))
        if self.output_bias:
            self.logits_bias = self.param("logits_bias", nn.initializers.zeros, (self.vocab_size,))

    def __call__(
        self,
        tokens: Array,
        *,
        segments: Array | None = None,
        positions: Array | None = None,
        train: bool = False,
        return_hidden: bool = False,
    ) -> Array:
        """Returns the next-token logits, or hidden vectors, at every position.

        Args:
          tokens: [..., L] int.
          segments: [..., L] int, separate documents of a packed input; 0 = padding.
          positions: [..., L] int, each token's position in its document; 0 .. L-1 if None.
          train: Whether dropout is on; `apply` then needs rngs={'dropout': key}.
          return_hidden: Whether to return hidden vectors, the input of `project`, not logits.
        Returns:
          [..., L, V] float32 or wider, or hidden vectors [..., L, D].
        Raises:
          ValueError: The input is longer than max_length, or a shape or a variant's name is wrong.
        """
        check_tokens(self.max_length, tokens, segments=segments, positions=positions)
        inputs_LD = self.token_embedding(tokens)
        if self.scale_embeddings:
            inputs_LD = inputs_LD * self.options.width**0.5
        hidden_LD = self.stack(inputs_LD, positions, tokens=tokens, segments=segments, train=train)
        return hidden_LD if return_hidden else self.project(hidden_LD)

    def project(self, hidden: Array) -> Array:
        """Returns the logits for hidden vectors at any positions: [..., D] -> [..., V]."""
        read_out = self.token_embedding.attend if self.tie_embeddings else self.output
        logits_V = read_out(self.scale_for_logits(hidden))
        if self.logits_gain:
            logits_V = logits_V * (self.output_gain * self.options.width**0.5)
        if self.output_bias:
            logits_V = logits_V + self.logits_bias
        if self.logits_soft_cap is not None:
            logits_V = self.logits_soft_cap * jnp.tanh(logits_V / self.logits_soft_cap)
        return site(self, "logits", logits_V)

    def example_inputs(self) -> dict[str, Array]:
        """Returns dummy inputs for initialising the parameters."""
        return {"tokens": jnp.zeros((1, self.max_length), jnp.int32)}
