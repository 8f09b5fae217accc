"""A component of my own: an objective, which training minimises."""

import dataclasses

import jax

from transformer_jax.options import NonNegative
from transformer_jax.training.objectives import by_example, sums_of


@dataclasses.dataclass(frozen=True)
class Mine:
    """Cross-entropy with a penalty on large logits, the z-loss of PaLM.

    Attributes:
      coefficient: Factor of the square of log Z, the logarithm of the softmax's denominator.
    """

    coefficient: NonNegative = 1e-4

    def sums(self, hidden, project, targets, weights, key):
        """Returns sums for each example; `project` maps any part of `hidden` to logits."""
        logits = project(hidden)
        sums = sums_of(logits, targets, weights)
        fines = weights * jax.nn.logsumexp(logits, axis=-1) ** 2
        return sums._replace(loss=sums.loss + self.coefficient * by_example(fines))
