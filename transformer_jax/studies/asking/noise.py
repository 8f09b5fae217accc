"""The noise ledger of a base: how much runs of one config differ, found again by the config."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.options.config import flatten
from transformer_jax.options.schema import stated
from transformer_jax.runs.files import read_json

_CADENCE = ("logging.", "checkpoint.", "sample.", "evaluation.every")


def config_hash_of(config: Any) -> str:
    """Returns the hash of all that decides a run of a config, but for its seeds and its cadence."""
    kept = {
        key: value
        for key, value in stated(flatten(config)).items()
        if not key.startswith(("seed", *_CADENCE))
    }
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def known_noise(config: Any, folder: Path, metric: str) -> dict[str, Any] | None:
    """Returns the ledger of a config and a test metric, if a folder has one.

    Raises:
      InvalidInput: a ledger there is damaged.
    """
    config_hash = config_hash_of(config)
    for path in sorted(folder.glob("*.json")):
        ledger = read_json(path)
        if ledger.get("config_hash") == config_hash and ledger["metric"] == f"test/{metric}":
            return ledger
    return None


def as_lines(ledger: Mapping[str, Any]) -> list[str]:
    """A ledger as text."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in ledger["shares"].items())
    seeds = ", ".join(
        f"{margin}: {'more than 10,000' if count is None else count}"
        for margin, count in ledger["seeds_by_margin"].items()
    )
    return [
        f"{ledger['metric']} {ledger['mean']:.4f}, deviation {ledger['deviation']:.4f} between "
        f"runs: {shares}",
        f"deviation {ledger['deviation_of_text']:.4f} of the mean over {ledger['sequences']} test "
        "sequences, if they were drawn anew",
        f"seeds that a margin needs, of one arm at one look, if pairing helped nothing: {seeds}",
    ]
