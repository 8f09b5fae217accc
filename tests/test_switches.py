"""Switches of the course's questions do what they say, and nothing else."""

import jax
import numpy as np
import pytest

from tests.conftest import attempt, fingerprint_of, random_params, tiny_config
from transformer_jax.models import Encoder, EncoderDecoder
from transformer_jax.runs.progress import Silent
from transformer_jax.studies.judging import decide
from transformer_jax.studies.outcomes import Outcome
from transformer_jax.training.loop import train

TOKENS = jax.random.randint(jax.random.key(0), (3, 6), 0, 11)
SMALL = {"vocab_size": 11, "max_length": 6, "width": 8, "depth": 2, "num_heads": 2}


@pytest.mark.thorough
def test_a_causal_encoder_sees_no_later_token():
    model = Encoder.of(**SMALL, num_classes=0, mask="causal")
    params = random_params(model, tokens=TOKENS)
    changed = TOKENS.at[:, 4].add(1) % 11
    before, after = (model.apply({"params": params}, tokens) for tokens in (TOKENS, changed))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.abs(before[:, 4:] - after[:, 4:]).max() > 0.01


def test_without_cross_attention_the_source_does_not_matter():
    model = EncoderDecoder.of(**SMALL, cross_attention=False)
    params = random_params(model, source=TOKENS, tokens=TOKENS)
    assert "cross_attention" not in str(jax.tree_util.tree_structure(params))
    ours, other = (model.apply({"params": params}, x, TOKENS) for x in (TOKENS, (TOKENS + 3) % 11))
    np.testing.assert_array_equal(ours, other)


def test_a_leak_is_announced():
    done = attempt("train", "--config=tiny", "--config.model.mask=unmasked", "--dry_run")
    assert done.returncode == 0, done.stderr
    assert "shows this decoder the answers" in done.stdout


def trained(folder, **changes):
    short = {"training__steps": 12, "model__dropout_rate": 0.1}
    train(tiny_config(**short, **changes), folder, Silent())
    return fingerprint_of(folder)


@pytest.mark.thorough
@pytest.mark.usefixtures("one_program")
def test_seeds_are_drawn_apart(tmp_path):
    """All three given are the one seed; each alone changes the run, and in its own way."""
    one = trained(tmp_path / "one", seed=3)
    three = {f"seeds__{name}": 3 for name in ("initial", "order", "dropout")}
    assert trained(tmp_path / "three", seed=8, **three)[1:] == one[1:]
    others = {
        name: trained(tmp_path / name, seed=3, **{f"seeds__{name}": 8})
        for name in ("initial", "order", "dropout")
    }
    losses = {name: rows[0]["train/loss"] for name, (_, _, rows) in others.items()}
    assert len({one[1], *(found[1] for found in others.values())}) == 4
    assert len({one[2][0]["train/loss"], *losses.values()}) == 4


def test_equal_because_perfect_is_told_from_changes_that_did_nothing():
    sealed = {"arms": {"base": {}, "arm": {}}, "base": "base", "margin": 0.1, "primary": []}
    sealed |= {"target": None, "tuning": None}
    for value, metric, words in (
        (1.0, "accuracy", "identical: every answer of both is right"),
        (0.9, "accuracy", "identical: the change did nothing"),
        (1.0, "loss", "identical: the change did nothing"),
    ):
        same = {seed: Outcome(value) for seed in range(3)}
        asked = sealed | {"metric": metric, "larger_is_better": metric == "accuracy"}
        assert decide(asked, "arm", same, same, 0.05, 1)["words"].startswith(words)
