"""A component of my own: how branches and norms are joined."""

import dataclasses
from typing import ClassVar

from transformer_jax.options import Positive


@dataclasses.dataclass(frozen=True)
class Mine:
    """x + factor * f(norm(x)).

    Attributes:
      factor: of each branch; an option of the config.
    """

    factor: Positive = 0.5
    final_norm: ClassVar[bool] = True
    branch_gain: ClassVar[float] = 1.0

    def __call__(self, hidden, branches, make_norm):
        """[..., L, D] -> [..., L, D]."""
        for name, branch in branches.items():
            hidden = hidden + self.factor * branch(make_norm(name=f"{name}_norm")(hidden))
        return hidden
