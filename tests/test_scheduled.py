"""Numbers that change in training: the optimizer's, the objective's, and those of masks."""

import jax
import numpy as np
import optax
import pytest

from tests.conftest import TINY, attempt, refused, tiny_config
from transformer_jax.config_files import load_config
from transformer_jax.training.loop import train
from transformer_jax.training.prepared import prepare
from transformer_jax.training.step import make_train_step

SMALL = {"model__depth": 1, "training__steps": 6, "schedule__name": "constant"}


def steps_of(*curves, **options):
    """The states after each of six updates, under these curves."""
    scheduled = {"training__scheduled": ",".join(curves)} if curves else {}
    prepared = prepare(tiny_config(**SMALL | options | scheduled))
    batches = prepared.stacked_batches(0, 0, 6)
    advance, states = jax.jit(prepared.advance), [prepared.draw(np.uint32(0))]
    for number in range(6):
        one = jax.tree.map(lambda leaf, n=number: leaf[n : n + 1], batches)
        states.append(advance(prepared.numbers(), states[-1], one, np.int32(1))[0])
    return prepared, batches, states


def test_weight_decay_and_smoothing_follow_their_curves():
    """Each update is that of a config with the value at this update, from the same state."""
    curves = "optimizer.weight_decay=0.4@1/0.0@4", "objective.smoothing=0@0/0.3@3"
    prepared, batches, states = steps_of(*curves)
    decays, smoothings = [0.4, 0.4, 0.4 * 2 / 3, 0.4 / 3, 0, 0], [0, 0.1, 0.2, 0.3, 0.3, 0.3]
    for number, values in enumerate(zip(decays, smoothings, strict=True)):
        changes = dict(
            zip(("optimizer__weight_decay", "objective__smoothing"), values, strict=True)
        )
        plain = prepare(tiny_config(**SMALL | changes), task=prepared.task)
        step = make_train_step(plain.model, plain.optimizer, 0, 1, plain.objective)
        batch = jax.tree.map(lambda leaf, n=number: leaf[n], batches)
        expected, _ = jax.jit(step)(states[number], batch)
        for found, wanted in zip(
            jax.tree.leaves(states[number + 1].params),
            jax.tree.leaves(expected.params),
            strict=True,
        ):
            np.testing.assert_allclose(found, wanted, atol=2e-6)


@pytest.mark.parametrize("letter", ["", "layer_types.L."])
def test_a_window_grows_in_training(letter):
    """Steps at the given updates; between them the window is that of the update before."""
    masks = {f"model__{letter.replace('.', '__')}mask": "window"}
    masks |= {"model__layers": "L"} if letter else {}
    size = f"model.{letter}mask_options.size"
    options = {size.replace(".", "__"): 9}
    _, _, grown = steps_of(f"{size}=2@0/5@2/9@4", **masks, **options)
    for first, window in ((0, 2), (2, 5), (4, 9)):
        prepared, batches, _ = steps_of(**masks | {size.replace(".", "__"): window})
        step = make_train_step(prepared.model, prepared.optimizer, 0, 1, prepared.objective)
        for number in (first, first + 1):
            batch = jax.tree.map(lambda leaf, n=number: leaf[n], batches)
            expected, _ = jax.jit(step)(grown[number], batch)
            distance = optax.tree.norm(optax.tree.sub(expected.params, grown[number + 1].params))
            assert distance < 1e-5, (window, number)


def test_a_scheduled_run_is_trained_and_evaluated_with_its_option(tmp_path):
    changes = {"training.scheduled": "model.mask_options.size=2@0/8@10,optimizer.b1=0.5@0/0.9@20"}
    changes |= {"model.mask": "window", "model.mask_options.size": "8", "training.steps": "20"}
    row = train(load_config(TINY, changes), tmp_path / "a")
    assert row["step"] == 20
    assert np.isfinite(row["eval/loss"])


@pytest.mark.parametrize(
    ("curve", "words"),
    [
        ("optimizer.learning_rate=1@0/0.1@5", ["has a schedule of its own", "schedule.name"]),
        ("model.width=8@0/16@5", ["expected a numeric option of", "model.mask_options."]),
        ("model.mask_options.size=8@0/16@5", ["model.mask_options.size", "that is in use"]),
        ("optimizer.weight_decay=0.1@5/0.2@5", ["increasing order"]),
        ("optimizer.weight_decay=0.1@5/-0.2@9", ["optimizer.weight_decay=-0.2", ">= 0"]),
        ("optimizer.weight_decay=a@5", ["expected numbers"]),
        ("model.layer_types.L.mask_options.size=4@0/8@5", ["that is in use"]),
        ("optimizer.weight_decay", ["KEY=VALUE@UPDATE"]),
        ("optimizer.weight_dekay=0.1@5", ["optimizer.weight_dekay"]),
    ],
)
def test_a_wrong_curve_is_refused(curve, words, tmp_path):
    run = f"--workdir={tmp_path / 'a'}"
    refused(attempt("train", "--config=tiny", run, f"--config.training.scheduled={curve}"), *words)
