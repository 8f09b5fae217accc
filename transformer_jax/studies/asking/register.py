"""Questions that were sealed and verdicts that were shown, beside the cells: register.jsonl.

A contrast is what arm and base are, and the metric; seeds are no part of it. Asked again in another
study it is looked at again, and the first seeds count too. Its reach is one root, whose cells
studies share, and the committed results; what was asked elsewhere nobody knows here.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from transformer_jax.options.config import CADENCE, flatten
from transformer_jax.options.marks import arguments_of_metric
from transformer_jax.options.schema import completed, stated
from transformer_jax.runs.appended import AppendedRows
from transformer_jax.studies.inference.outcome import Outcome

NAME = "register.jsonl"
Pair = tuple[Outcome, Outcome]  # of the base and of the arm, with one seed
SEALED, LOOK = "sealed", "look"
_NOT_CHANGED = "what the base has without its own changes"


class ContrastKey(NamedTuple):
    """What an arm beside its base is found by.

    Attributes:
      same: equal for one arm beside one base, judged by one metric.
      related: equal where the same options change from and to the same values, whatever else the
        base is.
    """

    same: str
    related: str


def contrasts_of(sealed: Mapping[str, Any]) -> dict[str, ContrastKey]:
    """Returns the contrasts of a study, by arm, from what it sealed."""
    base, arms = flatten(sealed["base_config"]), sealed["arms"]
    values, first = completed(base), arms[sealed["base"]]
    whole = {key: value for key, value in stated(base).items() if not key.startswith(CADENCE)}
    if "target" in arguments_of_metric(sealed["metric"].removeprefix("test/")):
        whole["evaluation.target"] = values["evaluation.target"]
    contrasts = {}
    for name, changes in arms.items():
        if name == sealed["base"]:
            continue
        both = {
            key: [values.get(key), changes.get(key, _NOT_CHANGED)] for key in {**first, **changes}
        }
        changed = {key: pair for key, pair in both.items() if pair[0] != pair[1]}
        asked = [changed, sealed["metric"], sealed["match"]]
        contrasts[name] = ContrastKey(_hash([*asked, whole, sealed["tuning"]]), _hash(asked))
    return contrasts


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

    def pairs(self) -> dict[int, Pair]:
        """Seed -> outcome of the base and of the arm, of seeds that have both."""
        base, arm = (
            {int(seed): Outcome(*values) for seed, values in self.row["outcomes"][name].items()}
            for name in (self.row["base"], self.arm)
        )
        return {seed: (base[seed], arm[seed]) for seed in base.keys() & arm.keys()}

    def is_of(self, cells: tuple[str, str], target: float | None) -> bool:
        """Whether its runs are of these cells of base and arm, with updates until this target.

        What has no cells in the register, older committed results, is taken by its config.
        """
        if target is not None and self.row.get("target") != target:
            return False
        hashes = self.row.get("cells")
        return hashes is None or (hashes[self.row["base"]], hashes[self.arm]) == cells

    @property
    def family(self) -> int:
        """How many contrasts it may be chosen of: those that shared the level there.

        One that the question was not about could be any of those that were shown.
        """
        arms = self.row["arms"]
        if arms[self.arm].get("words", "").startswith("not primary"):
            return len(arms)
        return self.row.get("family") or len(arms)

    def told(self) -> dict[str, Any]:
        """What is said of it beside a later verdict."""
        row, verdict = self.row, self.row["arms"][self.arm]
        return {
            "study": row["study"],
            "arm": self.arm,
            "base": row["base"],
            "time": row["time"],
            "seeds": row["seeds"],
            "words": verdict["words"],
            "mean": verdict["mean"],
            "why": row.get("why", ""),
        }


class Register(AppendedRows):
    """The register of one root; without a file it is empty."""

    def __init__(self, root: Path) -> None:
        """Reads nothing yet."""
        super().__init__(root, NAME)

    def note(self, row: Mapping[str, Any]) -> bool:
        """Adds a look that is not there yet, and says whether the register can be written."""
        what = ("event", "seal", "sealed_at", "seeds", "arms", "outcomes")
        if any(all(row_there.get(key) == row[key] for key in what) for row_there in self.rows()):
            return True
        try:
            self.add(json.loads(json.dumps(row)))
        except OSError:  # a root that only others may write
            return False
        return True

    def about(self, contrasts: Collection[ContrastKey]) -> list[dict[str, Any]]:
        """Returns the looks at any of these contrasts, the same or related ones."""
        keys = {key for contrast in contrasts for key in contrast}
        return [
            row
            for row in self.rows()
            if row["event"] == LOOK
            and any(keys & {its["same"], its["related"]} for its in row["arms"].values())
        ]

    def looks(
        self,
        contrast: ContrastKey,
        by: str,
        study: tuple[str, str],
        seeds: Sequence[int] = (),
        cells: Mapping[str, str] = MappingProxyType({}),
    ) -> list[Earlier]:
        """Returns the looks of other studies at a contrast, before this one.

        Args:
          contrast: which one.
          by: `same`; or `related`, which leaves the same out.
          study: seal and time of sealing of the study that asks.
          seeds: of its look.
          cells: arm -> the hash of its cells. Where a look at these seeds of these cells was noted,
            later looks of others are left out: to show it again is no look.
        """
        rows, looks, asked = self.about([contrast]), [], (list(seeds), dict(cells))
        own = [row for row in rows if (row["seal"], row["sealed_at"]) == study]
        times = [row["time"] for row in own if (row["seeds"], row.get("cells", cells)) == asked]
        shown = min(times, default=None)
        for row in rows:
            if row in own or (shown is not None and row["time"] > shown):
                continue
            for arm, its in row["arms"].items():
                is_same = its["same"] == contrast.same
                if is_same if by == "same" else its["related"] == contrast.related and not is_same:
                    looks.append(Earlier(row, arm))
        return looks


class Pooled(NamedTuple):
    """What is known of a contrast: this study's seeds and those of earlier ones.

    Attributes:
      base: seed -> outcome.
      arm: the same of the arm.
      counts: seeds of each look in another study, at other data than all this.
    """

    base: dict[int, Outcome]
    arm: dict[int, Outcome]
    counts: list[int]


def pooled(
    earlier: Sequence[Earlier],
    base: Mapping[int, Outcome],
    arm: Mapping[int, Outcome],
    cells: tuple[str, str] = ("", ""),
    target: float | None = None,
) -> Pooled:
    """Puts the seeds of earlier looks beside those of a study, whose own pairs come first.

    Args:
      earlier: looks in other studies; those at runs of other cells count as looks, and their seeds
        do not.
      base: seed -> outcome, of this study.
      arm: the same of the arm.
      cells: of base and arm.
      target: of the study.
    """
    own = {seed: (base[seed], arm[seed]) for seed in base.keys() & arm.keys()}
    pairs: dict[int, Pair] = {}
    others, steps = [], []
    for look in earlier:
        if look.is_of(cells, target):
            pairs = pairs | look.pairs()
            steps += [pairs] if pairs not in steps else []
        else:  # one whose words changed since was noted again, and is one look
            its = look.row.get("seal"), look.row.get("sealed_at"), look.pairs()
            others += [its] if its not in others else []
    whole = pairs | own
    counts = [len(step) for step in steps if step != whole] + [0] * len(others)
    bases, arms = ({seed: pair[side] for seed, pair in whole.items()} for side in (0, 1))
    # Runs without a partner are told of, and compared with nothing.
    return Pooled({**base, **bases}, {**arm, **arms}, counts)
