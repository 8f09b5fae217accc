"""A component of my own: an objective, which training minimises."""

import dataclasses

import jax

from transformer_jax.options import NonNegative
from transformer_jax.training.objectives import cross_entropy


@dataclasses.dataclass(frozen=True)
class Mine:
    """Cross-entropy with a penalty on large logits, the z-loss of PaLM.

    Attributes:
      coefficient: Factor of the square of log Z, the logarithm of the softmax's denominator.
    """

    coefficient: NonNegative = 1e-4

    def losses(self, logits, targets):
        """Returns the loss of each target from its row of logits: [..., V] and [...] -> [...]."""
        fines = jax.nn.logsumexp(logits, axis=-1) ** 2
        return cross_entropy(logits, targets) + self.coefficient * fines
