"""Masked diffusion: the bound, the task, and drawing by unmasking."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from tests.conftest import TINY, attempt, refused, tiny_config
from transformer_jax.config_files import load_config
from transformer_jax.data.sources.stream import TokenStream
from transformer_jax.errors import InvalidInput
from transformer_jax.training.build import make_task
from transformer_jax.training.loading import load_run
from transformer_jax.training.loop import train
from transformer_jax.training.unmasking import unmask, unmask_text

DIFFUSION = {"data.task": "masked_diffusion", "model.architecture": "encoder"}
LENGTH = 4
TEXTS = np.array(list(itertools.product((0, 1), repeat=LENGTH)))
JOINT = np.random.default_rng(0).dirichlet(np.full(len(TEXTS), 0.4))
MASK = 2


def conditionals(seen):
    """log p(x_i | the tokens of `seen` that are not masked) of JOINT, [L, 2], by enumeration."""
    agrees = ((seen == MASK) | (seen == TEXTS)).all(-1)
    weights = jnp.where(agrees, JOINT, 0.0)
    ones = (weights[:, None] * TEXTS).sum(0) / weights.sum()
    return jnp.log(jnp.stack([1 - ones, ones], -1))


def task_of(**changes):
    changes = {key.replace(".", "__"): value for key, value in (DIFFUSION | changes).items()}
    return make_task(tiny_config(**changes))


def test_the_loss_of_exact_conditionals_is_the_entropy():
    """Over all k and all masks, the weighted loss is -log p(x) per token, for any p."""
    task = task_of(**{"data.length": LENGTH + 1})
    stream = TokenStream(TEXTS.ravel(), np.array([0]), 0, TEXTS.size, "all texts")
    task = dataclasses.replace(task, splits=task.splits | {"test": stream})
    logits, losses, weights = jax.jit(jax.vmap(conditionals)), np.zeros(len(TEXTS)), 0.0
    starts = LENGTH * np.arange(len(TEXTS))
    for order in itertools.permutations(range(LENGTH)):
        for count in range(LENGTH):
            places = np.full(len(TEXTS), (count + 0.5) / LENGTH)
            batch = task._masked("test", starts, places, np.tile(order, (len(TEXTS), 1)))
            hidden = batch["inputs"]["tokens"][:, 1:] == task.specials.mask
            log_probs = logits(np.where(hidden, MASK, TEXTS))
            chosen = np.take_along_axis(np.asarray(log_probs), TEXTS[..., None], -1)[..., 0]
            losses += (np.where(hidden, -chosen, 0) * batch["weights"][:, 1:]).sum(-1)
            weights += batch["weights"].sum(-1).mean()
    np.testing.assert_allclose(losses / weights, -np.log(JOINT) / LENGTH, rtol=1e-5)


def test_numbers_of_masked_tokens_are_spread_evenly():
    task = task_of(**{"data.length": 9, "training.batch_size": 16})
    batch = task.batch(0, 3)
    counts = (batch["weights"] > 0).sum(-1)
    np.testing.assert_array_equal(np.bincount(counts), [0, *8 * [2]])
    np.testing.assert_allclose(batch["weights"].sum(-1), 8, rtol=1e-5)
    hidden = batch["inputs"]["tokens"] == task.specials.mask
    np.testing.assert_array_equal(hidden, batch["weights"] > 0)
    np.testing.assert_array_equal(
        batch["inputs"]["tokens"][~hidden], np.where(hidden, -1, batch["targets"])[~hidden]
    )
    other = task.batch(0, 4)
    assert (hidden != (other["weights"] > 0)).any()


def test_evaluation_masks_every_window_and_counts_every_byte():
    task = task_of(**{"data.length": 9, "data.maskings": 3})
    rows, texts, size = [], [], 0
    for batch in task.evaluation_batches("test", 64):
        real = batch["weights"].any(-1)
        rows += [*(batch["weights"][real] > 0).sum(-1)]
        texts += [*batch["targets"][real].tolist()]
        size += task.scored_bytes(batch).sum()
        found = batch["inputs"]["segments"][:, 1:].sum(-1)
        np.testing.assert_allclose(batch["weights"].sum(-1), found, rtol=1e-5)
    count = len(task.splits["test"])
    assert len(rows) == 3 * -(-count // 8) == len(task.clusters("test"))
    assert texts[0] == texts[1] == texts[2] != texts[3]
    assert size == 3 * count  # one byte for each character of this text
    assert abs(np.mean(rows) - 4.5) < 0.05


@pytest.mark.parametrize("steps", [LENGTH, 1])
def test_texts_are_drawn_from_the_model_distribution(steps):
    """With a step for each token it is the joint one, with one step the product of marginals."""
    draw = lambda key: unmask(conditionals, jnp.full(LENGTH, MASK), MASK, key, steps)
    drawn = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(1), 20_000)))
    found = np.bincount(drawn @ (2 ** np.arange(LENGTH)[::-1]), minlength=len(TEXTS))
    ones = JOINT @ TEXTS
    product = np.where(TEXTS == 1, ones, 1 - ones).prod(-1)
    expected = {LENGTH: JOINT, 1: product}[steps]
    often = expected > 1e-3
    statistic = scipy.stats.chisquare(
        found[often], found[often].sum() * expected[often] / expected[often].sum()
    )
    assert statistic.pvalue > 1e-3
    assert np.abs(JOINT - product).max() > 0.05  # so that the two could be told apart


def test_the_surest_tokens_come_first_and_given_ones_stay():
    sure = jnp.array([[0.0, 1.0], [0.0, 9.0], [9.0, 0.0], [0.0, 5.0]])
    seen = []

    def apply(tokens):
        jax.debug.callback(lambda t: seen.append(t.tolist()), tokens, ordered=True)
        return sure

    tokens = jnp.array([MASK, MASK, 1, MASK])
    drawn = unmask(apply, tokens, MASK, jax.random.key(0), 3, temperature=0, by_confidence=True)
    jax.block_until_ready(drawn)
    assert drawn.tolist() == [1, 1, 1, 1]
    assert seen == [[2, 2, 1, 2], [2, 1, 1, 2], [2, 1, 1, 1]]


def test_a_run_writes_texts_around_a_prompt(tmp_path):
    config = load_config(TINY, DIFFUSION | {"training.steps": "12", "schedule.name": "constant"})
    row = train(config, tmp_path / "a")
    assert row["eval/bits_per_byte"] == pytest.approx(row["eval/loss"] / np.log(2), rel=0.01)
    assert len((tmp_path / "a/samples/step-00000012.txt").read_text()) >= 15
    run = load_run(tmp_path / "a")
    told = json.loads((tmp_path / "a" / "evaluation.json").read_text())["test"]["protocol"]
    assert told["targets"] == told["bytes"]  # characters of one byte; weights n / k are rounded
    text = unmask_text(run, "To___be", num_tokens=6, seed=3)
    assert (len(text), text[:2], text[-2:]) == (10, "To", "be")
    assert unmask_text(run, "To___be", 6, seed=3) == text != unmask_text(run, "To___be", 6, seed=4)
    assert len(unmask_text(run, num_tokens=15, num_steps=2, by_confidence=True)) == 15
    for wrong in ({"num_tokens": 12}, {"num_steps": 0}, {"temperature": -1.0}, {"seed": -1}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            unmask_text(run, "To be", **{"num_tokens": 5} | wrong)
    where = f"--workdir={tmp_path / 'a'}"
    with pytest.warns(UserWarning, match="there is room for 11 of 99 tokens"):
        said = attempt("sample", where, "--prompt=To___be", "--num_tokens=99")
    assert said.returncode == 0, said.stderr
    assert len(said.stdout.strip("\n")) >= 14
    refused(attempt("sample", where, f"--prompt={'x' * 40}"), "num_tokens=300", "room for 0 tokens")
    refused(attempt("sample", where, "--prompt=To", "--stop=x"), "--stop", "any order")
