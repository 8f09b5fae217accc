"""How one cell ended, for those who judge."""

from typing import NamedTuple


class Outcome(NamedTuple):
    """What a cell counts as.

    Attributes:
      value: of the primary metric; None where there is none.
      diverged: not finite, or worse than an untrained model in training and after it. An outcome,
        never dropped.
      first: update at which the validation score first reached the target; None where it never did,
        or there is none.
      last: update of the run.
    """

    value: float | None
    diverged: bool = False
    first: int | None = None
    last: int = 0
