"""How one cell ended, for those who judge."""

from typing import NamedTuple


class Outcome(NamedTuple):
    """What a cell counts as.

    Attributes:
      value: of the primary metric; None where there is none.
      diverged: not finite, or worse than an untrained model in training and after it. An outcome,
        never dropped.
    """

    value: float | None
    diverged: bool = False
