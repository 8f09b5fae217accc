"""Pins what a cell's hash leaves out: defaults, and the losses of a dozen configs.

A cell is found by the options that are not at their default and by one number, NUMERICS. So a
default or an update that changed without that number would find cells of another computation.
After an intended change: raise NUMERICS in transformer_jax/runs/provenance.py, and write the file
anew with `python -m tests.test_numerics`.
"""

import json

import jax
import numpy as np
import pytest

from tests.conftest import ROOT, TINY, a_few_of
from transformer_jax.config import DEFAULTS
from transformer_jax.config_files import load_config
from transformer_jax.resolve import all_options
from transformer_jax.runs.provenance import NUMERICS
from transformer_jax.training.prepared import prepare

FILE = ROOT / "tests" / "golden" / "numerics.json"
SMALL = {"model.depth": "1", "training.steps": "4", "schedule.warmup_steps": "2"}
CONFIGS = {
    "tiny": {},
    "dropout": {"model.dropout_rate": "0.3", "model.attention_dropout_rate": "0.1"},
    "rotary": {"model.position": "rotary", "model.wiring": "post", "model.norm": "rms_norm"},
    "linear": {"model.attention": "linear", "model.feed_forward": "gated"},
    "mixture": {"model.feed_forward": "mixture"},
    "state_space": {"model.mixer": "state_space", "model.position": "none"},
    "recurrent": {"model.architecture": "recurrent_decoder"},
    "muon": {"optimizer.name": "muon", "training.clip_norm": "0.1"},
    "schedule_free": {"optimizer.name": "schedule_free", "schedule.name": "constant"},
    "accumulated": {"training.accumulation": "2", "training.weight_ema": "0.9"},
    "bfloat16": {"model.dtype": "bfloat16"},
    "encoder": {"model.architecture": "encoder", "data.task": "masked_language_modelling"},
    "translation": {
        **{"model.architecture": "encoder_decoder", "data.task": "translation"},
        "data.source": "tatoeba_en_es",
    },
    "synthetic": {"data.task": "synthetic", "data.source": "reverse"},
}


def losses_of(name):
    """Losses of four updates."""
    prepared = prepare(load_config(TINY, {**SMALL, **CONFIGS[name]}))
    batches = prepared.stacked_batches(0, 0, 4)
    start = prepared.draw(np.uint32(0))
    _, records = jax.jit(prepared.advance)(prepared.numbers(), start, batches, np.int32(4))
    return [float(loss) for loss in jax.device_get(records.loss)[:4]]


def defaults():
    """As text; a default that is another option's value has its key."""
    found = {key: str(getattr(value, "key", value)) for key, value in DEFAULTS.items()}
    for key, owners in all_options().items():
        found |= {f"{key} of {name}": str(option.default) for name, option in owners}
    return found


KEPT = ("tiny", "dropout", "rotary", "muon", "schedule_free", "accumulated", "bfloat16")
STORED = json.loads(FILE.read_text())


# The others are of components and tasks that more tests look at.
@pytest.mark.parametrize("name", a_few_of(CONFIGS, KEPT))
def test_a_dozen_configs_train_as_they_did(name):
    assert losses_of(name) == pytest.approx(STORED["losses"][name], rel=2e-4)


def test_the_version_of_the_numerics_goes_with_its_defaults():
    assert (STORED["numerics"], STORED["defaults"]) == (NUMERICS, defaults())


if __name__ == "__main__":
    losses = {name: losses_of(name) for name in CONFIGS}
    held = {"numerics": NUMERICS, "defaults": defaults(), "losses": losses}
    FILE.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n")
