"""Heads that predict further tokens in training, for a better trunk or for drafts.

An entry of HEADS is called in training with the output of the stack, the embedded tokens, factories
of a Head and of a norm, initial values, and a Context. It sows, under `ahead`, the vectors from
which token i + 1 + k is predicted at position i, for k = 1, 2, ...; training/objectives.py scores
them, with the output layer of the model, and adds their mean loss times `weight`. Evaluation and
generation use the model alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.blocks import Carry, Context
from transformer_jax.linear import Initializer, Linear, ModuleFactory
from transformer_jax.options import Count, FrozenOptions, NonNegative
from transformer_jax.paths import by_path


class ParallelHeads(nn.Module):
    """One block for each further token, all of which read the output of the stack.

    Gloeckle et al. 2024, arXiv:2404.19737, section 2. There the blocks, and that of the next token,
    read a trunk; here the next token is predicted by the whole stack.

    Attributes:
      count: Number of further tokens.
      weight: Weight of the mean of their losses.
    """

    count: Count = 1
    weight: NonNegative = 1.0

    @nn.compact
    def __call__(
        self,
        hidden: Array,
        embedded: Array,
        make_head: ModuleFactory,
        norm: ModuleFactory,
        init: Initializer,
        context: Context,
    ) -> None:
        """Sows vectors for `count` further tokens, from [..., L, D]."""
        steps = range(1, self.count + 1)
        self.hand_on([make_head(name=f"head_{n}")(hidden, context) for n in steps], norm)

    @nn.nowrap
    def hand_on(self, hidden: Sequence[Array], norm: ModuleFactory) -> None:
        """Sows the normalised vectors [..., L, D] for each further token."""
        normed = [norm(name=f"norm_{step}")(each) for step, each in enumerate(hidden, 1)]
        self.sow("ahead", "vectors", tuple(normed))
        self.sow("ahead", "weight", jnp.float32(self.weight / self.count))


class SequentialHeads(ParallelHeads):
    """A chain of blocks; each reads the vectors of the one before, and one token more.

    h^k_i = block([norm(h^(k-1)_i), norm(E[t_(i+k)])] M^k). DeepSeek-AI 2024, arXiv:2412.19437,
    equations 21 to 25, with h^0 the normalised output of the stack.

    Attributes:
      weight: Weight of the mean of their losses; 0.3, later 0.1, in the paper.
    """

    weight: NonNegative = 0.3

    @nn.compact
    def __call__(
        self,
        hidden: Array,
        embedded: Array,
        make_head: ModuleFactory,
        norm: ModuleFactory,
        init: Initializer,
        context: Context,
    ) -> None:
        """Sows vectors for `count` further tokens, from [..., L, D] and embeddings [..., L, D]."""
        width, length, predicted = hidden.shape[-1], hidden.shape[-2], []
        for step in range(1, self.count + 1):
            ahead = [(0, 0)] * (embedded.ndim - 2) + [(0, step), (0, 0)]
            later = jnp.pad(embedded, ahead)[..., step : step + length, :]
            parts = (
                norm(name=f"hidden_norm_{step}")(hidden),
                norm(name=f"token_norm_{step}")(later),
            )
            merge = Linear(width, False, init, hidden.dtype, name=f"merge_{step}")
            merged = merge(jnp.concatenate(parts, axis=-1))
            hidden = make_head(name=f"head_{step}")(merged, context)
            predicted.append(hidden)
        self.hand_on(predicted, norm)


class Head(nn.Module):
    """A stack of one block, with streams of its own."""

    make_block: ModuleFactory
    wiring: Any
    options_of_wiring: FrozenOptions

    @nn.compact
    def __call__(self, hidden: Array, context: Context) -> Array:
        """[..., L, D] -> [..., L, D]."""
        stream = self.wiring.enter(hidden, **self.options_of_wiring)
        stream, carry = self.make_block(name="block_0")(stream, Carry(), context)
        return self.wiring.leave(stream, carry, **self.options_of_wiring)


def loss_ahead(sown: Any, batch: Mapping[str, Any], score: Callable[[Array, Any], tuple]) -> Array:
    """Returns the weighted loss of further tokens.

    Args:
      sown: The collection `ahead`.
      batch: Batch of the model.
      score: Function from hidden vectors and a batch to (total loss, anything).
    """
    leaves = by_path(sown)
    weight = next(leaf for path, leaf in leaves.items() if "/weight/" in path)
    vectors = [leaf for path, leaf in leaves.items() if "/vectors/" in path]
    losses = [score(each, _shifted(batch, step))[0] for step, each in enumerate(vectors, 1)]
    return weight * sum(losses)


def _shifted(batch: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Returns a batch with the targets that come `step` positions later, in the same document."""
    shift = lambda array: jnp.pad(array[:, step:], ((0, 0), (0, step)))  # noqa: E731
    weights, segments = shift(batch["weights"]), batch["inputs"].get("segments")
    if segments is not None:
        weights = jnp.where(segments == shift(segments), weights, 0)
    return {**batch, "targets": shift(batch["targets"]), "weights": weights}
