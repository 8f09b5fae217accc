"""One change at a time against a base that moves: screened, confirmed on fresh seeds, kept or not.

The screening compares a change and the base over the same few seeds for all changes, and gives no
word. What looks good is trained again, with the base, on seeds that nothing was decided by, one
pair after another, until the e-value is enough (kept), the evidence turns or the seeds are used up
(dropped), or the time is (undecided; the same change again goes on). See inference/evidence.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.runs.progress import Progress
from transformer_jax.studies.asking.tries import (
    DROPPED,
    KEPT,
    UNDECIDED,
    Confirmation,
    Journal,
    Try,
)
from transformer_jax.studies.inference import evidence

_TIME_IS_UP = "the time is used up; the same change again goes on"


class CannotTrain(Exception):
    """The change makes a model that diverges, does not fit or fails."""


class Referee:
    """Tries changes in one folder.

    Attributes:
      journal: that has begun.
    """

    def __init__(
        self,
        journal: Journal,
        pairs_of: Callable[[Try], Any],
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads nothing yet.

        Args:
          journal: that has begun.
          pairs_of: makes a change and its base ready, see running.pairs.TrainedPairs.
          progress: where to tell how it goes.
          clock: seconds.
        """
        self.journal, self._pairs_of = journal, pairs_of
        self._progress, self._clock = progress, clock
        self._pair_seconds = 0.0  # of the last pairs that were trained

    def attempt(self, change: Mapping[str, str], budget: float) -> dict[str, Any]:
        """Tries a change, or goes on with it; what was kept or dropped before is told again.

        Args:
          change: full key -> text of the value.
          budget: seconds, after which no further pair begins.
        Returns:
          What the journal holds of its end; `known` where nothing was trained for it now.
        Raises:
          InvalidInput: the change is wrong or does nothing, or the base has not learned.
        """
        this, began = self.journal.try_of(change), self._clock()
        if this.ended is not None and this.ended["outcome"] != UNDECIDED:
            return {**this.ended, "known": True}
        pairs, confirmation = self._pairs_of(this), this.confirmation
        self.journal.note(this)
        screened: list[float] = []
        fresh: list[float] = []
        outcome, reason = DROPPED, "it does not look good in the screening"
        try:
            screened = self._screen(this, pairs, began + budget)
            if len(screened) < evidence.SCREENING:
                outcome, reason = UNDECIDED, _TIME_IS_UP
            elif confirmation is None and evidence.looks_good(self._beyond_margin(screened)):
                confirmation = self.journal.confirm(this.number)
            if confirmation is not None:
                outcome, reason = self._confirm(confirmation, pairs, fresh, began + budget)
        except CannotTrain as error:
            outcome, reason = DROPPED, str(error)
        before = (this.ended or {}).get("seconds", 0.0)
        decided = self._beyond_margin(fresh)
        low, high = evidence.anytime_interval(fresh)
        facts = {
            "try": this.number,
            "change": this.change,
            "outcome": outcome,
            "reason": reason,
            "estimate": float(np.mean(fresh)) if fresh else None,
            "screening": float(np.mean(screened)) if screened else None,
            "interval": [_finite(low), _finite(high)],
            "seeds": len(fresh),
            "e_value": float(evidence.e_value(decided)) if fresh else None,
            "needed": confirmation.needed if confirmation else None,
            "level_left": self.journal.level_left(),
            "cost": list(pairs.cost),
            "seconds": round(before + self._clock() - began, 1),
        }
        self.journal.add("ended", facts)
        return facts

    def _screen(self, this: Try, pairs: Any, ends: float) -> list[float]:
        """Differences of the screening; fewer where the time is used up."""
        seeds = range(evidence.SCREENING)
        is_trained = self._train(pairs, seeds, ends)
        differences = pairs.differences(seeds)
        if not is_trained:
            return differences
        if this.confirmation is None:
            self.journal.add("screened", {"try": this.number, "differences": differences})
        return differences

    def _train(self, pairs: Any, seeds: Sequence[int], ends: float) -> bool:
        """Trains what is missing, unless the time is up or pairs took too long; says whether."""
        missing, now = pairs.missing(seeds), self._clock()
        if missing and (now >= ends or now + missing * self._pair_seconds > ends):
            return False
        pairs.train(seeds)
        if missing:
            self._pair_seconds = (self._clock() - now) / missing
        return True

    def _confirm(
        self, confirmation: Confirmation, pairs: Any, fresh: list[float], ends: float
    ) -> tuple[str, str]:
        """Fills `fresh` with differences; returns what became of the change, and why."""
        for count in range(evidence.FEWEST, len(confirmation.seeds) + 1):
            seeds = confirmation.seeds[:count]
            if not self._train(pairs, seeds, ends):
                return UNDECIDED, _TIME_IS_UP
            fresh[:] = pairs.differences(seeds)
            decided = self._beyond_margin(fresh)
            e = float(evidence.e_value(decided))
            self._progress.say(f"{count} fresh seeds: e-value {e:.3g} of {confirmation.needed:.3g}")
            if e >= confirmation.needed:
                return KEPT, "the evidence is enough"
            if evidence.is_futile(decided):
                return DROPPED, "the evidence turned against it"
        return DROPPED, f"the evidence of {len(confirmation.seeds)} fresh seeds is not enough"

    def _beyond_margin(self, differences: Sequence[float]) -> list[float]:
        margin = (self.journal.begun or {})["margin"]
        return [difference - margin for difference in differences]


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
