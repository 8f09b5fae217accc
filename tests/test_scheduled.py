"""Numbers that change in training: the optimizer's, the objective's, and those of masks."""

import jax
import numpy as np
import optax
import pytest

from tests.conftest import TINY, attempt, refused, tiny_config
from tests.test_train import EndAt, terminate
from transformer_jax.config_files import flatten, load_config
from transformer_jax.curves import tokens_of
from transformer_jax.runs.interruption import Interrupted
from transformer_jax.training import loop
from transformer_jax.training.loop import train
from transformer_jax.training.prepared import prepare
from transformer_jax.training.step import make_train_step

SMALL = {"model__depth": 1, "training__steps": 6, "schedule__name": "constant"}


def steps_of(*curves, **options):
    """The states after each of six updates, under these curves."""
    scheduled = {"training__scheduled": ",".join(curves)} if curves else {}
    prepared = prepare(tiny_config(**SMALL | options | scheduled))
    batches = prepared.stacked_batches(0, 0, 6)
    steps = {first: jax.jit(prepared.at(first).advance) for first in prepared.starts}
    states = [prepared.draw(np.uint32(0))]
    for number in range(6):
        advance = steps[prepared.at(number).first]
        one = jax.tree.map(lambda leaf, n=number: leaf[n : n + 1], batches)
        states.append(advance(prepared.numbers(), states[-1], one, np.int32(1))[0])
    return prepared, batches, states


def test_weight_decay_and_smoothing_follow_their_curves():
    """Each update is that of a config with the value at this update, from the same state."""
    curves = "optimizer.weight_decay=0.4@1/0.0@4", "objective.smoothing=0@0/0.3@3"
    prepared, batches, states = steps_of(*curves)
    decays, smoothings = [0.4, 0.4, 0.4 * 2 / 3, 0.4 / 3, 0, 0], [0, 0.1, 0.2, 0.3, 0.3, 0.3]
    for number, values in enumerate(zip(decays, smoothings, strict=True)):
        more = dict(zip(("optimizer__weight_decay", "objective__smoothing"), values, strict=True))
        plain = prepare(tiny_config(**SMALL | more), task=prepared.task)
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


def test_batches_grow_and_every_example_occurs_once_per_epoch():
    """Batch sizes 2, then 4, then 8: the examples are those of batches of 2 one after another."""
    curve = {"training__scheduled": "training.batch_size=2@0/4@3/8@5", "training__steps": 9}
    task = prepare(tiny_config(**SMALL | curve)).task
    plain = prepare(tiny_config(**SMALL | {"training__batch_size": 2})).task
    grown = [task.batch(7, step)["targets"] for step in range(9)]
    assert [len(rows) for rows in grown] == [2, 2, 2, 4, 4, 8, 8, 8, 8]
    expected = [plain.batch(7, step)["targets"] for step in range(sum(map(len, grown)) // 2)]
    np.testing.assert_array_equal(np.concatenate(grown), np.concatenate(expected))


def test_windows_grow_from_the_tokens_that_were_read():
    curve = "data.length=4@0/8@5,training.batch_size=4@0/2@3"
    curve = {"training__scheduled": curve, "training__steps": 9, "data__length": 8}
    prepared = prepare(tiny_config(**SMALL | curve))
    shapes = [prepared.task.batch(0, step)["targets"].shape for step in range(7)]
    assert shapes == 3 * [(4, 4)] + 2 * [(2, 4)] + 2 * [(2, 8)]
    assert [prepared.spent(n)[0] for n in (1, 3, 5, 6, 9)] == [16, 48, 64, 80, 128]
    wide = prepare(tiny_config(**SMALL | {"data__length": 8, "training__batch_size": 2})).task
    for step in (5, 6):  # 64 tokens before are four batches of 2 x 8
        expected, found = wide.batch(0, step - 1), prepared.task.batch(0, step)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_run_in_stages_equals_itself_after_an_interruption(tmp_path, monkeypatch):
    """Updates are those of steps on the batches; a resumed run begins in the stage it was in."""
    scheduled = "training.batch_size=4@0/8@5,data.length=8@0/16@7"
    changes = {"training.scheduled": scheduled, "data.length": "16", "training.steps": "10"}
    changes |= {"checkpoint.every": "6", "logging.every": "1", "schedule.warmup_steps": "2"}
    config = load_config(TINY, changes)
    rows = train(config, tmp_path / "a")
    counts = [4 * 8] * 5 + [8 * 8] * 2 + [8 * 16] * 3
    prepared = prepare(config)
    assert prepared.spent(10)[0] == sum(counts) == tokens_of(flatten(config))
    state = prepared.draw(np.uint32(0))
    for step in range(10):
        stage = prepared.at(step)
        batch = stage.stacked_batches(0, step, 1)
        assert stage.count_of_update == counts[step]
        state, record = jax.jit(stage.advance)(prepared.numbers(), state, batch, np.int32(1))
    assert float(record.loss[0]) == pytest.approx(rows["train/loss"], rel=1e-5)
    monkeypatch.setattr(loop, "_SECONDS_PER_CALL", 0.0)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "b", EndAt(8, terminate))
    assert train(config, tmp_path / "b")["eval/loss"] == rows["eval/loss"]


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
        ("data.length=4@0/64@5", ["data.length", "at most data.length=16", "64"]),
        ("training.batch_size=4@0/0@5", ["training.batch_size=0"]),
        ("data.length=1@0/16@5", ["data.length=1"]),
        ("optimizer.weight_decay", ["KEY=VALUE@UPDATE"]),
        ("optimizer.weight_dekay=0.1@5", ["optimizer.weight_dekay"]),
    ],
)
def test_a_wrong_curve_is_refused(curve, words, tmp_path):
    run = f"--workdir={tmp_path / 'a'}"
    refused(attempt("train", "--config=tiny", run, f"--config.training.scheduled={curve}"), *words)
