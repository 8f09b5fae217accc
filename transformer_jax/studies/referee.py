"""Tests of one change after another to a growing base: screening, confirmation, decision.

The screening uses the same few seeds for all changes. A promising change and the base are then
trained on fresh seeds until the e-value suffices (kept), the evidence turns against the change or
the seeds are used up (dropped), or the time is used up (undecided; the try can be continued).
"""

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict
from scipy import optimize, special, stats

from transformer_jax.config_files import changed, flatten, from_json, plain
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.appended import AppendedRows
from transformer_jax.runs.progress import Progress
from transformer_jax.studies.statistics import ALPHA, paired_t
from transformer_jax.studies.study import now

FDR = 0.05  # largest expected share of false changes among the kept
PRIOR = 2.0  # prior variance of the effect, in squared deviations of a difference
SCREENING = 3  # seeds that show whether a change is worth confirming
FEWEST, MOST = 4, 16  # numbers of seeds of a confirmation
_FALL = 1.3
_ROUNDING = 1e-9  # relative error of a difference
_FUTILE = 0.2  # e-value below which a confirmation ends


def e_value(differences: Any, prior: float = PRIOR) -> np.ndarray:
    """Returns the e-value, [...], as evidence that the mean of normal differences is above 0.

    `differences` are independent, [..., n] over n seeds; `prior` is the prior variance of their
    mean, in squared standard deviations of a difference. The e-value is 1 (no evidence) without
    seeds, or if the differences are equal up to rounding.
    """
    d = np.asarray(differences, float)
    n = d.shape[-1]
    if n == 0:
        return np.ones(d.shape[:-1])
    total, mean = (d**2).sum(-1), d.mean(-1)
    shrunk = n / (n + 1 / prior)
    rest = total - shrunk * n * mean**2  # twice the posterior's scale
    with np.errstate(divide="ignore", invalid="ignore"):
        two_sided = -0.5 * np.log1p(n * prior) + n / 2 * np.log(total / rest)
        at = shrunk * mean / np.sqrt(rest / n / (n + 1 / prior))
        log_e = two_sided + np.log(2) + stats.t.logcdf(at, n)
    is_one = (n > 1) & (np.ptp(d, axis=-1) <= _ROUNDING * np.abs(d).max(-1))
    return np.where((total == 0) | is_one, 1.0, np.exp(np.minimum(log_e, 700)))


def anytime_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Returns an anytime-valid 95 % confidence interval for the mean of n differences.

    It contains every mean for which both one-sided e-values are below 2 / 0.05. The probability
    that it excludes the true mean at any number of seeds is at most 5 %.
    """
    d = np.asarray(differences, float)
    if len(d) < 2 or np.ptp(d) == 0:
        return -math.inf, math.inf
    wide = 1e3 * float(np.ptp(d))

    def end(sign: int) -> float:
        def excess(shift: float) -> float:
            return float(np.log(e_value(sign * (d - d.mean()) + shift))) - math.log(2 / ALPHA)

        return float(optimize.brentq(excess, 0, wide)) if excess(wide) > 0 else math.inf

    return float(d.mean()) - end(1), float(d.mean()) + end(-1)


def share_of(test: int) -> float:
    """Returns gamma_t, the share of FDR for confirmation t = `test` >= 1; all shares sum to 1.

    As gamma_t decays like t^-1.3, effects of 1.5 deviations are still found after hundreds of
    confirmations; with 1 / t^2, they would not be.
    """
    return test**-_FALL / float(special.zeta(_FALL))


def needed(test: int, num_kept: int) -> float:
    """Returns the e-value required in confirmation `test`, after `num_kept` kept changes."""
    return 1 / (FDR * share_of(test) * (num_kept + 1))


def looks_good(differences: Any) -> bool:
    """Returns whether a change passes the screening: its mean is a standard error above 0."""
    if not len(differences):
        return False
    mean, error, _ = paired_t(differences)
    return bool(mean > 0 and not mean < error)  # the error of one seed is nan


def is_futile(differences: Any) -> bool:
    """Returns whether a confirmation can end early, since the evidence is against the change."""
    return len(differences) >= FEWEST and float(e_value(differences)) < _FUTILE


KEPT, DROPPED, UNDECIDED = "kept", "dropped", "undecided"
_FIRST_FRESH = 100  # first seed of confirmations; the screening uses seeds from 0 on


class Confirmation(NamedTuple):
    """A test of a change: the e-value required to keep it, and fresh seeds in order of use."""

    needed: float
    seeds: range


class Try(NamedTuple):
    """An attempt to change a base.

    Attributes:
      number: Number of the try, starting at 1.
      change: The changed options, full key -> value as text.
      base: Changes that the base had at that time, full key -> value as text.
      confirmation: The try's confirmation, or None if none has begun.
      ended: The journal's entry for the latest result, or None if there is none.
    """

    number: int
    change: dict[str, str]
    base: dict[str, str]
    confirmation: Confirmation | None = None
    ended: dict[str, Any] | None = None

    @property
    def is_kept(self) -> bool:
        """True if the change became part of the base."""
        return self.ended is not None and self.ended["outcome"] == KEPT


class Journal:
    """The record of all tries in the folder `path`."""

    def __init__(self, path: str | Path) -> None:
        """Keeps the path; the file is read on first use."""
        self.path = Path(path)
        self._rows = AppendedRows(self.path, "journal.jsonl")
        self._made: dict[str, dict[str, Any]] = {}  # base and change -> config, flattened

    def begin(self, config: ConfigDict, facts: Mapping[str, Any]) -> None:
        """Writes the first event: the base's config, and the facts metric, margin and gate."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._made.clear()
        self.add("begun", {"config": plain(config), **facts})

    def add(self, event: str, facts: Mapping[str, Any]) -> None:
        """Appends an event, with the current time and further facts."""
        self._rows.add({"event": event, "time": now(), **facts})

    @property
    def begun(self) -> dict[str, Any] | None:
        """The event that `begin` wrote, with the settings, or None if there is none."""
        rows = [row for row in self._rows.rows() if row["event"] == "begun"]
        return rows[-1] if rows else None

    def may_begin(self) -> bool:
        """Returns whether nothing has been tried yet, so that settings can still change."""
        return all(row["event"] == "begun" for row in self._rows.rows())

    def config(self) -> ConfigDict:
        """Returns the config of the base as `begin` wrote it."""
        return from_json(json.dumps((self.begun or {})["config"]), str(self.path))

    def tries(self) -> list[Try]:
        """Returns all tries, oldest first."""
        tries: dict[int, Try] = {}
        for row in self._rows.rows():
            event, number = row["event"], row.get("try", 0)
            if event == "tried":
                tries[number] = Try(number, row["change"], row["base"])
            elif event == "confirming":
                confirmation = Confirmation(row["needed"], range(*row["seeds"]))
                tries[number] = tries[number]._replace(confirmation=confirmation)
            elif event == "ended":
                tries[number] = tries[number]._replace(ended=row)
        return list(tries.values())

    def base(self) -> dict[str, str]:
        """Returns the kept changes, full key -> value as text."""
        base: dict[str, str] = {}
        for attempt in self.tries():
            if attempt.is_kept:
                base |= attempt.change
        return base

    def try_of(self, change: Mapping[str, str]) -> Try:
        """Returns the recorded try of a change on the current base, or else a new, unrecorded one.

        For a change that is already part of the base, returns the try that added the change.

        Raises:
          InvalidInput: The change is empty, has no effect, or does not give a valid config.
        """
        base, config = self.base(), self.config()
        before = changed(config, texts=base)

        def made(change: Mapping[str, str]) -> dict[str, Any]:
            key = json.dumps([base, change], sort_keys=True)
            if key not in self._made:
                self._made[key] = flatten(changed(before, texts=change))
            return self._made[key]

        after = made(change)
        is_part = flatten(before) == after
        for attempt in self.tries():
            may_be = (
                attempt.is_kept and attempt.change.keys() == change.keys()
                if is_part
                else attempt.base == base
            )
            # Equal values may be spelled differently: .01 is 1e-2.
            with contextlib.suppress(InvalidInput):  # on the present base it may be invalid
                if may_be and made(attempt.change) == after:
                    return attempt
        if is_part:
            raise InvalidInput(f"--change={spelled(change)}: the base has this change already")
        return Try(len(self.tries()) + 1, dict(change), base)

    @property
    def files(self) -> dict[str, str]:
        """Digests of all tries' data and initial weights, as same_files returns them."""
        return next((r["files"] for r in self._rows.rows()[::-1] if r["event"] == "tried"), {})

    def note(self, this: Try, files: Mapping[str, str]) -> None:
        """Records a try, and digests of its files, in the journal if it is new."""
        if all(attempt.number != this.number for attempt in self.tries()):
            told = {"try": this.number, "change": this.change, "base": this.base, "files": files}
            self.add("tried", told)

    def confirm(self, number: int) -> Confirmation:
        """Records and returns a confirmation of try `number`: fresh seeds, required e-value."""
        tries = self.tries()
        used = [attempt.confirmation.seeds.stop for attempt in tries if attempt.confirmation]
        num_kept = sum(attempt.is_kept for attempt in tries)
        test, first = len(used) + 1, max(used, default=_FIRST_FRESH)
        confirmation = Confirmation(needed(test, num_kept), range(first, first + MOST))
        facts = {"test": test, "kept_before": num_kept, "needed": confirmation.needed}
        self.add("confirming", {"try": number, **facts, "seeds": [first, first + MOST]})
        return confirmation

    def level_left(self) -> float:
        """Returns the share of the false discovery rate that is left for later confirmations."""
        tests = sum(attempt.confirmation is not None for attempt in self.tries())
        return 1 - sum(map(share_of, range(1, tests + 1)))


def spelled(change: Mapping[str, str]) -> str:
    """Returns a change as typed on the command line, KEY=VALUE,KEY=VALUE."""
    return ",".join(f"{key}={value}" for key, value in change.items())


_TIME_IS_UP = "the time is used up; try the same change again to continue"


class CannotTrain(Exception):
    """Training with the change diverged, ran out of memory, or failed."""


class Referee:
    """Referee that trains and decides tries, in the folder of a journal that has begun."""

    def __init__(
        self,
        journal: Journal,
        pairs_of: Callable[[Try], Any],
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Trains nothing yet; `pairs_of` returns pairs.TrainedPairs for a try."""
        self.journal, self._pairs_of = journal, pairs_of
        self._progress, self._clock = progress, clock
        self._pair_seconds = 0.0  # per pair, for the last pairs that were trained

    def attempt(self, change: Mapping[str, str], budget: float) -> dict[str, Any]:
        """Tries a change or continues its try; a decided try is only reported.

        `budget` is the number of seconds after which no further pair of runs is started.

        Returns:
          The journal's entry for the end of the try, with `known` if it was decided before.

        Raises:
          InvalidInput: The change is not valid or has no effect, or the base has not learned.
        """
        this, began = self.journal.try_of(change), self._clock()
        if this.ended is not None and this.ended["outcome"] != UNDECIDED:
            return {**this.ended, "known": True}
        pairs, confirmation, ends = self._pairs_of(this), this.confirmation, began + budget
        self.journal.note(this, pairs.files)
        screened: list[float] = []
        fresh: list[float] = []
        outcome, reason = DROPPED, "it does not look promising in the screening"
        try:
            is_trained = self._train(pairs, range(SCREENING), ends)
            screened = pairs.differences(range(SCREENING))
            if not is_trained:
                outcome, reason = UNDECIDED, _TIME_IS_UP
            elif confirmation is None:
                self.journal.add("screened", {"try": this.number, "differences": screened})
                if looks_good(self._beyond_margin(screened)):
                    confirmation = self.journal.confirm(this.number)
            if confirmation is not None:
                outcome, reason = self._confirm(confirmation, pairs, fresh, ends)
        except CannotTrain as error:
            outcome, reason = DROPPED, str(error)
        before = (this.ended or {}).get("seconds", 0.0)
        facts = {
            "try": this.number,
            "change": this.change,
            "outcome": outcome,
            "reason": reason,
            "estimate": float(np.mean(fresh)) if fresh else None,
            "screening": float(np.mean(screened)) if screened else None,
            "interval": [end if math.isfinite(end) else None for end in anytime_interval(fresh)],
            "seeds": len(fresh),
            "e_value": float(e_value(self._beyond_margin(fresh))) if fresh else None,
            "needed": confirmation.needed if confirmation else None,
            "level_left": self.journal.level_left(),
            "cost": list(pairs.cost),
            "seconds": round(before + self._clock() - began, 1),
        }
        self.journal.add("ended", facts)
        return facts

    def _train(self, pairs: Any, seeds: Sequence[int], ends: float) -> bool:
        """Trains the missing pairs; returns False, training nothing, if too little time is left."""
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
        """Runs a confirmation, and returns the try's outcome and the reason.

        The differences on fresh seeds are stored in `fresh`.
        """
        for count in range(FEWEST, len(confirmation.seeds) + 1):
            seeds = confirmation.seeds[:count]
            if not self._train(pairs, seeds, ends):
                return UNDECIDED, _TIME_IS_UP
            fresh[:] = pairs.differences(seeds)
            decided = self._beyond_margin(fresh)
            e = float(e_value(decided))
            self._progress.say(f"{count} fresh seeds: e-value {e:.3g} of {confirmation.needed:.3g}")
            if e >= confirmation.needed:
                return KEPT, "the evidence is enough"
            if is_futile(decided):
                return DROPPED, "the evidence turned against it"
        return DROPPED, f"the evidence of {len(confirmation.seeds)} fresh seeds is not enough"

    def _beyond_margin(self, differences: Sequence[float]) -> list[float]:
        margin = (self.journal.begun or {})["margin"]
        return [difference - margin for difference in differences]
