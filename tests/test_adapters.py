"""Low-rank adapters: what is trained, what stays, and what everybody else sees."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conftest import attempt, refused, tiny_config
from transformer_jax import load_run
from transformer_jax.laws import small_decoder
from transformer_jax.models.layouts import stack_blocks
from transformer_jax.paths import by_path
from transformer_jax.runs.progress import Silent
from transformer_jax.training.adapters import Adapted, merge
from transformer_jax.training.build import make_task
from transformer_jax.training.evaluation import evaluate, make_score
from transformer_jax.training.loop import train
from transformer_jax.training.objectives import score_batch
from transformer_jax.training.prepared import prepare
from transformer_jax.training.step import draw_state, make_train_step

MODEL = small_decoder(depth=2)
LORA = Adapted(MODEL, rank=3, alpha=6.0, maps=("query", "up"))
TOKENS = np.random.default_rng(0).integers(0, 11, (4, 7))
BATCH = {
    "inputs": {"tokens": TOKENS[:, :-1]},
    "targets": TOKENS[:, 1:],
    "weights": np.ones((4, 6), np.float32),
}
SHORT = {"training__steps": 8, "schedule__warmup_steps": 2, "evaluation__every": 8}
ADAPTED = {"adapters__rank": 2, "adapters__maps": "query,value,up", "checkpoint__every": 4}


@pytest.fixture(scope="module")
def state():
    """A state whose adapters are all random."""
    drawn = draw_state(LORA, optax.sgd(0.1), 0)
    rng = np.random.default_rng(1)
    draw = lambda leaf: jnp.asarray(rng.normal(scale=0.2, size=leaf.shape), jnp.float32)
    return drawn._replace(params=jax.tree.map(draw, drawn.params))


def test_an_adapter_is_added_to_its_kernel(state):
    merged, base = by_path(merge(state.params, state.state)), by_path(state.state["base"])
    assert merged.keys() == base.keys()
    for path, kernel in base.items():
        expected = np.asarray(kernel, np.float64)
        if path.split("/")[-2] in ("query", "up") and path.endswith("kernel"):
            a, b = (by_path(state.params)[f"{path}/{name}"] for name in "ab")
            expected = expected + 6.0 / 3 * np.asarray(a, np.float64) @ np.asarray(b, np.float64)
            assert a.shape == (kernel.shape[0], 3)
        np.testing.assert_allclose(merged[path], expected, atol=1e-6)


def test_it_begins_as_the_model():
    drawn, plain = draw_state(LORA, optax.sgd(0.1), 0), draw_state(MODEL, optax.sgd(0.1), 0)
    merged = merge(drawn.params, drawn.state)
    jax.tree.map(np.testing.assert_array_equal, merged, plain.params)


def test_an_update_is_that_of_the_chain_rule_and_leaves_the_kernels(state):
    step = jax.jit(make_train_step(LORA, optax.sgd(0.1), 0, 2))
    after, record = step(state, BATCH)
    assert record.applied
    jax.tree.map(np.testing.assert_array_equal, after.state, state.state)
    loss = lambda params: score_batch(MODEL, params, BATCH).loss / 24
    gradients = by_path(jax.grad(loss)(merge(state.params, state.state)))
    before, moved = by_path(state.params), by_path(after.params)
    for path in {name.rpartition("/")[0] for name in before}:
        a, b, gradient = before[f"{path}/a"], before[f"{path}/b"], gradients[path]
        expected = {"a": 2.0 * gradient @ b.T, "b": 2.0 * a.T @ gradient}
        for name, of_it in expected.items():
            step_taken = moved[f"{path}/{name}"] - before[f"{path}/{name}"]
            np.testing.assert_allclose(step_taken, -0.1 * of_it, atol=1e-6)


def test_stacked_kernels_have_an_adapter_each():
    experts = Adapted(small_decoder(feed_forward="mixture"), rank=2, alpha=2.0, maps=("down",))
    drawn = by_path(draw_state(experts, optax.sgd(0.1), 0).params)
    assert {path: leaf.shape for path, leaf in drawn.items()} == {
        "block_0/feed_forward/down/kernel/a": (4, 64, 2),
        "block_0/feed_forward/down/kernel/b": (4, 2, 16),
    }


def test_a_run_is_tuned_and_loaded_with_merged_weights(tiny_run, tmp_path):
    """From the weights of another run, in a scan over blocks; only kernels with adapters move."""
    options = SHORT | ADAPTED | {"initial__weights": str(tiny_run), "model__scan_layers": True}
    prepared = prepare(tiny_config(**options))
    state, (remark,) = prepared.start(prepared.config)
    source = load_run(tiny_run)
    held = prepared.unstacked(state.state["base"])
    jax.tree.map(np.testing.assert_array_equal, held, source.params)
    assert "arrays" in remark
    train(tiny_config(**options), tmp_path / "a", Silent())
    tuned = load_run(tmp_path / "a")
    assert jax.tree.map(jnp.shape, tuned.params) == jax.tree.map(jnp.shape, source.params)
    old, new = by_path(source.params), by_path(tuned.params)
    changed = {path for path in old if (np.asarray(old[path]) != np.asarray(new[path])).any()}
    assert {path.split("/")[-2] for path in changed} == {"query", "value", "up"}
    task = make_task(tuned.config, tuned.tokenizer)
    means = evaluate(make_score(tuned.model), tuned.params, task, "test", 8).means
    stored = json.loads((tmp_path / "a" / "evaluation.json").read_text())
    np.testing.assert_allclose(means["loss"], stored["test"]["loss"], rtol=1e-5)
    assert tuned.sample("a", num_tokens=3) is not None


def test_a_map_that_is_not_there_is_refused(tmp_path):
    flags = ("--config=tiny", f"--workdir={tmp_path / 'a'}", "--config.adapters.rank=2")
    refused(
        attempt("train", *flags, "--config.adapters.maps=q_proj"),
        *("adapters.maps=q_proj", "expected some of", "query"),
    )


def test_adapters_of_some_layer_types_are_trained_in_a_scan():
    types = {"M": {"mixer": "state_space"}}
    model = small_decoder(depth=4, position="none", layers="MA", layer_types=types)
    lora = Adapted(model.with_options(scan_layers=True), rank=2, alpha=2.0, maps=("query",))
    state = stack_blocks(draw_state(lora, optax.sgd(0.1), 0), 2)
    after, _ = jax.jit(make_train_step(lora, optax.sgd(0.1), 0))(state, BATCH)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), state.params, after.params)
    assert by_path(moved)["blocks/block_1/attention/query/kernel/b"] > 0
    with pytest.raises(ValueError, match="adapters of block_9, which the model lacks"):
        merge({"block_9": {}}, state.state)


def test_weights_of_a_run_bring_their_state_to_adapters(tmp_path):
    experts = {"model__feed_forward": "mixture", "model__feed_forward_options__bias_rate": 0.05}
    options = SHORT | experts
    train(tiny_config(**options), tmp_path / "a", Silent())
    source = load_run(tmp_path / "a").params["state"]
    more = {"initial__weights": str(tmp_path / "a"), "adapters__rank": 2}
    prepared = prepare(tiny_config(**options | more))
    state, _ = prepared.start(prepared.config)
    assert {"base", "scale"} < set(state.state)
    for name, part in source.items():
        jax.tree.map(np.testing.assert_array_equal, state.state[name], part)


def test_adapters_decay_as_their_kernels_do():
    options = {"adapters__rank": 2, "schedule__name": "constant", "training__steps": 1}
    prepared = prepare(tiny_config(**options, optimizer__weight_decay=0.5))
    params = jax.tree.map(jnp.ones_like, prepared.draw(np.uint32(0)).params)
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, _ = prepared.optimizer.update(zeros, prepared.optimizer.init(params), params)
    rate = prepared.config.optimizer.learning_rate * 0.5
    jax.tree.map(lambda u: np.testing.assert_allclose(u, -rate, rtol=1e-5), updates)


@pytest.mark.parametrize("optimizer", ["muon", "soap"])
def test_optimizers_of_whole_kernels_refuse_adapters(optimizer, tmp_path):
    flags = ("--config=tiny", f"--workdir={tmp_path / 'a'}", "--config.adapters.rank=2")
    done = attempt("train", *flags, f"--config.optimizer.name={optimizer}")
    refused(done, f"optimizer.name={optimizer}", "for whole kernels, not for adapters")
