"""Outcomes of a run, and the words for an arm compared with the base."""

from typing import NamedTuple


class Outcome(NamedTuple):
    """Outcome of a cell.

    Attributes:
      value: Of the primary metric; None where there is none.
      diverged: Not finite, or worse than an untrained model in training and after it. An outcome,
        never dropped.
      first: Update at which the validation score first reached the target; None where it never did,
        or there is none.
      last: Update of the run.
    """

    value: float | None
    diverged: bool = False
    first: int | None = None
    last: int = 0


# ---------------------------------------------------------------- words

BETTER, WORSE, SAME = "better", "worse", "no different within the margin"
UNRESOLVED, UNSTABLE, IDENTICAL = "unresolved", "unstable", "identical"
NO_VERDICT, REFUSED, NOT_PRIMARY = "no verdict", "refused", "not primary"
CANNOT_TELL = "cannot tell"  # of models that had not learned, or could learn no more
UNTUNED = ", at the base's hyper-parameters"  # what words end in where only the base is tuned
