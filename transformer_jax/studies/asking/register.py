"""Questions that were sealed and verdicts that were shown, beside the cells: register.jsonl.

A contrast is what arm and base are, and the metric; seeds are no part of it. Asked again in another
study it is looked at again, and the first seeds count too. Its reach is one root, whose cells
studies share, and the committed results; what was asked elsewhere nobody knows here.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.options.config import CADENCE, flatten
from transformer_jax.options.schema import completed, stated
from transformer_jax.runs.files import inside
from transformer_jax.studies.inference.outcome import Outcome

NAME = "register.jsonl"
SEALED, LOOK = "sealed", "look"
_NOT_CHANGED = "what the base has without its own changes"


class Contrast(NamedTuple):
    """What an arm beside its base is found by.

    Attributes:
      same: equal for one arm beside one base, judged by one metric.
      related: equal where the same options change from and to the same values, whatever else the
        base is.
    """

    same: str
    related: str


def contrasts_of(sealed: Mapping[str, Any]) -> dict[str, Contrast]:
    """Returns the contrasts of a study, by arm, from what it sealed."""
    base, arms = flatten(sealed["base_config"]), sealed["arms"]
    values, first = completed(base), arms[sealed["base"]]
    whole = {key: value for key, value in stated(base).items() if not key.startswith(CADENCE)}
    found = {}
    for name, changes in arms.items():
        if name == sealed["base"]:
            continue
        both = {
            key: [values.get(key), changes.get(key, _NOT_CHANGED)] for key in {**first, **changes}
        }
        changed = {key: pair for key, pair in both.items() if pair[0] != pair[1]}
        asked = [changed, sealed["metric"], sealed["match"]]
        found[name] = Contrast(_hash([*asked, whole, sealed["tuning"]]), _hash(asked))
    return found


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


class Earlier(NamedTuple):
    """A look at a contrast in another study.

    Attributes:
      row: of the register.
      arm: what the contrast's arm is called there.
    """

    row: dict[str, Any]
    arm: str

    def outcomes(self) -> tuple[dict[int, Outcome], dict[int, Outcome]]:
        """Seed -> outcome, of the base and of the arm."""
        base, arm = (
            {int(seed): Outcome(*values) for seed, values in self.row["outcomes"][name].items()}
            for name in (self.row["base"], self.arm)
        )
        return base, arm

    def told(self) -> dict[str, Any]:
        """What is said of it beside a later verdict."""
        row, found = self.row, self.row["arms"][self.arm]
        return {
            "study": row["study"],
            "time": row["time"],
            "seeds": row["seeds"],
            "words": found["words"],
            "mean": found["mean"],
            "why": row.get("why", ""),
        }


class Register:
    """The register of one root; without a file it is empty."""

    def __init__(self, root: Path) -> None:
        """Reads nothing yet."""
        self._file = inside(root, NAME)

    def rows(self) -> list[dict[str, Any]]:
        """Everything that was noted, oldest first; a torn line is left out."""
        rows = []
        if self._file.exists():
            for line in self._file.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    rows.append(json.loads(line))
        return rows

    def add(self, row: Mapping[str, Any]) -> None:
        """Appends a row, in one write; nothing that stands there is ever changed."""
        torn = self._file.exists() and not self._file.read_bytes().endswith(b"\n")
        line = "\n" * torn + json.dumps(row) + "\n"
        with self._file.open("ab", buffering=0) as file:
            file.write(line.encode())
            os.fsync(file.fileno())

    def looks(self, contrast: Contrast, by: str, study: tuple[str, str]) -> list[Earlier]:
        """Returns the looks of other studies at a contrast.

        Args:
          contrast: which one.
          by: `same`; or `related`, which leaves the same out.
          study: seal and time of sealing of the study that asks.
        """
        found = []
        for row in self.rows():
            if row["event"] != LOOK or (row["seal"], row["sealed_at"]) == study:
                continue
            for arm, its in row["arms"].items():
                is_same = its["same"] == contrast.same
                if is_same if by == "same" else its["related"] == contrast.related and not is_same:
                    found.append(Earlier(row, arm))
        return found


class Pooled(NamedTuple):
    """What is known of a contrast: this study's seeds and those of earlier ones.

    Attributes:
      base: seed -> outcome.
      arm: the same of the arm.
      counts: seeds of each earlier look at other data than all this.
    """

    base: dict[int, Outcome]
    arm: dict[int, Outcome]
    counts: list[int]


def pooled(
    earlier: list[Earlier], base: Mapping[int, Outcome], arm: Mapping[int, Outcome]
) -> Pooled:
    """Puts the seeds of earlier looks beside those of a study, whose own come first."""
    steps: list[tuple[dict, dict]] = []
    known: tuple[dict, dict] = {}, {}
    for look in earlier:
        its_base, its_arm = look.outcomes()
        known = known[0] | its_base, known[1] | its_arm
        steps += [known] if known not in steps else []
    whole = known[0] | dict(base), known[1] | dict(arm)
    return Pooled(*whole, [len(arm) for _, arm in steps if (_, arm) != whole])
