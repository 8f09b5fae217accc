"""The journal of a referee: which changes were tried on which base, and what came of each.

DIR/base.json       the config that everything began with
DIR/journal.jsonl   a line an event, appended and never changed:
  begun        metric, margin and gate; the last one counts, none comes after a try
  tried        a change, by number, and the base that it was tried on
  screened     paired differences of the screening
  confirming   its fresh seeds, and the e-value that it needs
  ended        what is told of it: kept, dropped or undecided
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from transformer_jax.config_files import changed, flatten, from_json, to_json
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.appended import AppendedRows
from transformer_jax.runs.files import inside, replace
from transformer_jax.studies.asking.study import now
from transformer_jax.studies.inference import evidence

KEPT, DROPPED, UNDECIDED = "kept", "dropped", "undecided"
_FIRST_FRESH = 100  # seeds of confirmations; screening has the first ones


class Confirmation(NamedTuple):
    """A change on fresh seeds.

    Attributes:
      test: its number among all confirmations, from 1 on.
      needed: e-value from which on the change is kept.
      seeds: that may be used, in this order.
    """

    test: int
    needed: float
    seeds: range


class Try(NamedTuple):
    """A change on a base.

    Attributes:
      number: of the try, from 1 on.
      change: full key -> text of the value.
      base: what the base had been changed by, full key -> text.
      confirmation: None before there is one.
      ended: what was told last; None before.
    """

    number: int
    change: dict[str, str]
    base: dict[str, str]
    confirmation: Confirmation | None
    ended: dict[str, Any] | None

    @property
    def is_kept(self) -> bool:
        """Whether it ended as a part of the base."""
        return self.ended is not None and self.ended["outcome"] == KEPT


class Journal:
    """Everything that was tried in a folder.

    Attributes:
      path: of the folder.
    """

    def __init__(self, path: str | Path) -> None:
        """Reads nothing yet."""
        self.path = Path(path)
        self._made: dict[str, dict[str, Any]] = {}  # base and change -> config, flattened

    @property
    def _rows(self) -> AppendedRows:
        return AppendedRows(self.path, "journal.jsonl")

    def begin(self, config: ConfigDict, facts: Mapping[str, Any]) -> None:
        """Writes the base and the first event.

        Args:
          config: of the base.
          facts: metric, margin, gate.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._made.clear()
        text = to_json(config)
        replace(self.path, "base.json", text)
        self.add("begun", {"config_sha256": _sha256(text), **facts})

    def add(self, event: str, facts: Mapping[str, Any]) -> None:
        """Appends an event."""
        self._rows.add({"event": event, "time": now(), **facts})

    @property
    def begun(self) -> dict[str, Any] | None:
        """What was fixed at the beginning, the last one; None before it."""
        begun_rows = [row for row in self._rows.rows() if row["event"] == "begun"]
        return begun_rows[-1] if begun_rows else None

    def may_begin(self) -> bool:
        """Whether nothing was tried yet, so that all may be fixed otherwise."""
        return all(row["event"] == "begun" for row in self._rows.rows())

    def config(self) -> ConfigDict:
        """The config that everything began with.

        Raises:
          InvalidInput: it was edited since.
        """
        file = inside(self.path, "base.json")
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        begun = self.begun
        if begun is None or _sha256(text) != begun["config_sha256"]:
            raise InvalidInput(
                f"{file}: it was edited since the first try; begin in another --base"
            )
        return from_json(text, str(file))

    def tries(self) -> list[Try]:
        """All of them, oldest first."""
        tries: dict[int, Try] = {}
        for row in self._rows.rows():
            if row["event"] == "tried":
                tries[row["try"]] = Try(row["try"], row["change"], row["base"], None, None)
            elif row["event"] == "confirming":
                seeds = range(row["seeds"][0], row["seeds"][1])
                confirmation = Confirmation(row["test"], row["needed"], seeds)
                tries[row["try"]] = tries[row["try"]]._replace(confirmation=confirmation)
            elif row["event"] == "ended":
                tries[row["try"]] = tries[row["try"]]._replace(ended=row)
        return list(tries.values())

    def base(self) -> dict[str, str]:
        """What was kept so far, full key -> text of the value."""
        base: dict[str, str] = {}
        for each in self.tries():
            if each.is_kept:
                base |= each.change
        return base

    def try_of(self, change: Mapping[str, str]) -> Try:
        """Returns the try of a change on the base of now, a new one if there is none; see `note`.

        A change that is part of the base by now is the try by which it came.

        Raises:
          InvalidInput: the change is none, or no config can be made of it.
        """
        base, config = self.base(), self.config()
        before = changed(config, texts=base)

        def made(change: Mapping[str, str]) -> dict[str, Any]:
            key = json.dumps([base, change], sort_keys=True)
            if key not in self._made:  # of earlier tries too, whose configs are asked for each time
                self._made[key] = flatten(changed(before, texts=change))
            return self._made[key]

        after = made(change)
        is_part = flatten(before) == after
        for each in self.tries():
            may_be = (
                each.is_kept and each.change.keys() == change.keys()
                if is_part
                else each.base == base
            )
            # However a value is spelled: .01 is 1e-2. On the base of now it may be none.
            with contextlib.suppress(InvalidInput):
                if may_be and made(each.change) == after:
                    return each
        if is_part:
            raise InvalidInput(f"--change={spelled(change)}: the base has it already")
        return Try(len(self.tries()) + 1, dict(change), base, None, None)

    def note(self, this: Try) -> None:
        """Writes a try that can be made, where it is new."""
        if all(each.number != this.number for each in self.tries()):
            self.add("tried", {"try": this.number, "change": this.change, "base": this.base})

    def confirm(self, number: int) -> Confirmation:
        """Spends a confirmation on a try; returns its fresh seeds and what it needs."""
        tries = self.tries()
        confirmations = [each.confirmation for each in tries if each.confirmation is not None]
        kept = sum(each.is_kept for each in tries)
        test = len(confirmations) + 1
        first = max((each.seeds.stop for each in confirmations), default=_FIRST_FRESH)
        confirmation = Confirmation(
            test, evidence.needed(test, kept), range(first, first + evidence.MOST)
        )
        facts = {"test": test, "kept_before": kept, "needed": confirmation.needed}
        self.add("confirming", {"try": number, **facts, "seeds": [first, confirmation.seeds.stop]})
        return confirmation

    def level_left(self) -> float:
        """Share of the false discovery rate that later confirmations may still spend."""
        tests = sum(each.confirmation is not None for each in self.tries())
        return 1 - sum(map(evidence.share_of, range(1, tests + 1)))


def spelled(change: Mapping[str, str]) -> str:
    """A change as it was typed."""
    return ",".join(f"{key}={value}" for key, value in change.items())


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
