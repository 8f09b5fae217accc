"""The outcome of a run, and the words for a verdict on an arm."""

from typing import NamedTuple


class Outcome(NamedTuple):
    """Outcome of a cell.

    Attributes:
      value: Final test score in the primary metric, or None without one.
      diverged: True if the run's values were not finite, or if its final training and test losses
        were worse than an untrained model's. Such an outcome is never dropped.
      first: Update at which the validation score first reached the target, if any; else None.
      last: Last update of the run.
    """

    value: float | None
    diverged: bool = False
    first: int | None = None
    last: int = 0


class Word:
    """Words for a verdict on an arm."""

    BETTER, WORSE, SAME = "better", "worse", "no different within the margin"
    UNRESOLVED, UNSTABLE, IDENTICAL = "unresolved", "unstable", "identical"
    NO_VERDICT, REFUSED, NOT_PRIMARY = "no verdict", "refused", "not primary"
    CANNOT_TELL = "cannot tell"  # models have not learned, or can learn no more
    UNTUNED = ", at the base's hyper-parameters"  # appended if only the base is tuned
    CLAIMS = (BETTER, WORSE, SAME, UNRESOLVED, IDENTICAL)  # about the models
    UNDECIDED = (CANNOT_TELL, REFUSED, NO_VERDICT, UNSTABLE)
