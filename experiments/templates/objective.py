"""A component of my own: what training makes small."""

import dataclasses

import jax

from transformer_jax.options import NonNegative
from transformer_jax.training.objectives import by_example, sums_of


@dataclasses.dataclass(frozen=True)
class Mine:
    """Cross-entropy, and a fine on large logits: the z-loss of PaLM.

    Attributes:
      coefficient: Of the square of log Z, the logarithm of the softmax's denominator.
    """

    coefficient: NonNegative = 1e-4

    def sums(self, hidden, project, targets, weights, key):
        """Sums of each example; `project` gives the logits of any part of `hidden`."""
        logits = project(hidden)
        sums = sums_of(logits, targets, weights)
        fines = weights * jax.nn.logsumexp(logits, axis=-1) ** 2
        return sums._replace(loss=sums.loss + self.coefficient * by_example(fines))
