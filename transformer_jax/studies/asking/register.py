"""Register of the verdicts that were shown, next to the cells: register.jsonl.

A contrast is an arm, its baseline and the metric; seeds are no part of it. A contrast that another
study under the same root has shown before is looked at again, and every further look halves the
level. The register knows nothing of what was asked under another root.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.config_files import CADENCE, flatten
from transformer_jax.metrics import arguments_of_metric
from transformer_jax.resolve import completed, stated
from transformer_jax.runs.appended import AppendedRows

NAME = "register.jsonl"
_NOT_CHANGED = "what the baseline has without its own changes"


def contrasts_of(sealed: Mapping[str, Any]) -> dict[str, str]:
    """Returns arm -> hash of its contrast, from what a study sealed."""
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
        asked = [changed, sealed["metric"], sealed["match"], whole, sealed["tuning"]]
        text = json.dumps(asked, sort_keys=True)
        contrasts[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return contrasts


class Register(AppendedRows):
    """The register of one root; empty without a file."""

    def __init__(self, root: Path) -> None:
        """Reads nothing yet."""
        super().__init__(root, NAME)

    def note(self, look: Mapping[str, Any]) -> bool:
        """Adds a look that is not there yet, and returns whether the register can be written.

        Args:
          look: `study` (seal and time of sealing), `seeds`, `contrasts` (arm -> hash), `families`
            (hash -> of how many arms it was one), `words`, `time`.
        """
        if any({**row, "time": ""} == {**look, "time": ""} for row in self.rows()):
            return True
        try:
            self.add(json.loads(json.dumps(look)))
        except OSError:  # a root that only others may write
            return False
        return True

    def earlier_looks(
        self, contrast: str, study: Sequence[str], seeds: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Returns the looks of other studies at a contrast, one for each study and its seeds.

        Args:
          contrast: Hash of the contrast.
          study: Seal and time of sealing of the study that asks.
          seeds: Of its look. Where the study has shown this look already, later looks of others
            are left out: showing it again is no look.
        """
        rows = [row for row in self.rows() if contrast in row["contrasts"].values()]
        own = [row for row in rows if row["study"] == list(study)]
        shown = min((r["time"] for r in own if r["seeds"] == list(seeds)), default=None)
        others = {
            (*row["study"], *row["seeds"]): row
            for row in rows
            if row not in own and (shown is None or row["time"] <= shown)
        }
        return list(others.values())
