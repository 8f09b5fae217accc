"""Outcomes of a run, and the words for an arm compared with the base."""

from typing import NamedTuple


class Outcome(NamedTuple):
    """Outcome of a cell.

    Attributes:
      value: Value of the primary metric, or None.
      diverged: Whether it is not finite, or worse than an untrained model in training and test.
        Such an outcome is never dropped.
      first: Update at which the validation score first reached the target, or None if it never did
        or there is no target.
      last: Last update of the run.
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
