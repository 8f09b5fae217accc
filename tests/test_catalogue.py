"""The catalogue is the tables: every row, in their words, with the laws that it keeps."""

import json
import re

import numpy as np
import pytest

from experiments.catalogue import _TITLES, ablations, entries_of, entry, sites
from experiments.field import ROWS
from tests.conftest import ROOT, TINY
from transformer_jax.config import VARIANT_SECTIONS
from transformer_jax.config_files import load_config
from transformer_jax.laws import LAWS
from transformer_jax.training.loop import train

PAGE = (ROOT / "docs" / "catalogue.md").read_text()


def test_every_row_is_described_in_its_own_words_with_its_options():
    """`python -m experiments.catalogue` writes the page again."""
    elsewhere = {"data.task", "model.architecture", "model.query_key_norm"}  # norms, once
    assert set(VARIANT_SECTIONS) - elsewhere <= set(_TITLES)
    for key in _TITLES:
        for name, row in entries_of(key).items():
            assert entry(key, name, row, None).strip() in PAGE, f"{key}={name}"
    assert PAGE.endswith(f"{sites()}\n{ablations()}\n")


def test_every_row_says_who_thought_of_it():
    """A name and a year, or a model that is known for it, stands in the first paragraphs."""
    source = r"\b(19|20)\d\d\b|GPT-2|BERT|paper"
    for key in VARIANT_SECTIONS.keys() - {"schedule.name", "data.task", "model.architecture"}:
        for name, row in entries_of(key).items():
            exempt = name in ("none", "standard") or re.search(source, row.says)
            assert exempt, f"{key}={name}: {row.says}"


def test_all_laws_were_kept_when_the_page_was_written():
    kept = re.findall(r"(\d+) of (\d+) laws kept", PAGE)
    assert len(kept) >= 44
    broken = [pair for pair in kept if pair != (str(len(LAWS)), str(len(LAWS)))]
    assert broken == [(str(len(LAWS) - 1), str(len(LAWS)))]  # that of the mask `unmasked`


@pytest.mark.thorough
@pytest.mark.parametrize("row", [row for row in ROWS if row.options], ids=lambda row: row.variant)
def test_an_ablation_that_is_a_config_trains(row, tmp_path):
    """20 updates, after which the loss has fallen."""
    short = {"training.steps": 20, "schedule.warmup_steps": 2, "model.depth": 2}
    short |= {"sample.num_tokens": 0, "logging.every": 1, "evaluation.every": 20}
    config = TINY
    if "model.registers" in row.options:
        config = str(ROOT / "configs" / "digits.py")
    changes = {key: str(value) for key, value in (short | row.options).items()}
    train(load_config(config, changes), tmp_path / "a")
    rows = [json.loads(row) for row in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train/loss"] for row in rows]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    assert np.isfinite(rows[-1]["test/loss"])
