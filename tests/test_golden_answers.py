"""Losses and gradients of version 1, which later versions have to reproduce."""

import functools
import gzip
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import traverse_util

from tests.conftest import ROOT
from transformer_jax.config_files import load_config
from transformer_jax.data.sources.files import EMBEDDED
from transformer_jax.paths import by_path
from transformer_jax.training.prepared import prepare
from transformer_jax.training.step import TrainState, make_mean_gradients, make_train_step

FOLDER = ROOT / "tests" / "golden" / "answers"
STEPS = 20

_SHARED = {"model.dropout_rate": "0.0", "training.batch_size": "4", "training.steps": "200"}
_NARROW = {**_SHARED, "model.width": "16"}
_TINY = {**_NARROW, "data.length": "16"}
_T5 = {"model.position": "t5", "data.vocab_size": "300", "schedule.warmup_steps": "50"}
_ROTARY = {
    **{"model.position": "rotary", "model.norm": "rms_norm", "model.feed_forward": "gated"},
    **{"model.activation": "silu", "model.num_heads": "4", "model.num_kv_heads": "2"},
}
_WINDOWS = {"model.depth": "4", "model.layer_types.L.mask_options.size": "4"}
# name -> (config file, overrides)
CASES = {
    "decoder": ("tiny", {**_TINY, "model.use_bias": "true"}),
    "encoder": ("masked_lm", {**_TINY, "model.depth": "2", "data.vocab_size": "300"}),
    "encoder_decoder_t5": ("translation", {**_NARROW, **_T5}),
    "vision": ("digits", {**_NARROW, "model.depth": "2"}),
    "lstm": ("tiny", {**_TINY, "model.architecture": "recurrent_decoder"}),
    "rotary": ("tiny", {**_TINY, **_ROTARY}),
    "experts": ("tiny", {**_TINY, "model.feed_forward": "mixture", "model.position": "alibi"}),
    "windows": ("local_global", {**_TINY, **_WINDOWS}),
    "state_space": ("hybrid", {**_TINY, "model.depth": "4"}),
    "mup": ("tiny", {**_TINY, "model.parametrisation": "mup", "training.accumulation": "2"}),
}
# test_numerics.py pins a dozen configs in `make test`; `make thorough` has all of these too.
NAMES = [
    pytest.param(name, marks=[] if name in ("decoder", "vision") else [pytest.mark.thorough])
    for name in CASES
]


@functools.cache
def prepared_of(name):
    file, overrides = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        if name == "encoder":
            overrides = {**overrides, "data.source": without_equal_rows(folder)}
        return prepare(load_config(str(ROOT / "configs" / f"{file}.py"), overrides))


def without_equal_rows(folder):
    """The film sentences without the two that are there twice, of which version 1 read one each."""
    rows = gzip.decompress(EMBEDDED["text"]["movie_snippets"].read_bytes()).splitlines(True)
    path = Path(folder, "movies.tsv")
    path.write_bytes(b"".join({row.split(b"\t")[2]: row for row in rows}.values()))
    return str(path)


def drawn(name):
    """Initial values by path, as they are drawn from seed 0."""
    return by_path(jax.device_get(prepared_of(name).initial_state(0).params))


def disturbed(params):
    """Every parameter with a little noise, so that no bias is 0 and no gain is 1."""
    noise = np.random.default_rng(0)
    return {
        path: (value + 0.02 * noise.standard_normal(value.shape)).astype(np.float32)
        for path, value in sorted(params.items())
    }


def batches_of(name):
    return [by_path(prepared_of(name).task.batch(0, step)) for step in range(STEPS)]


def nested(flat):
    return traverse_util.unflatten_dict(flat, sep="/")


def computed(name, params, batches):
    """First loss and gradients by path, and the losses of STEPS updates."""
    prepared = prepared_of(name)
    accumulation = prepared.config.training.accumulation
    params = nested(params)
    gradients = make_mean_gradients(prepared.model, prepared.objective, accumulation)
    first, sums, _ = jax.jit(gradients)(params, nested(batches[0]), jax.random.key(0))
    step = jax.jit(
        make_train_step(prepared.model, prepared.optimizer, 0, accumulation, prepared.objective)
    )
    state = TrainState(np.int32(0), params, prepared.optimizer.init(params))
    losses = []
    for batch in batches:
        state, record = step(state, nested(batch))
        losses.append(float(record.loss))
    return float(sums.loss / sums.weight), by_path(jax.device_get(first)), losses


def stored(name):
    with np.load(FOLDER / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def part(answers, prefix):
    return {k.removeprefix(prefix): v for k, v in answers.items() if k.startswith(prefix)}


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_gradients_are_those_of_version_1(name):
    answers = stored(name)
    batches = part(answers, "batches/")
    for key in batches:  # the data order
        now = np.stack([batch[key] for batch in batches_of(name)])
        np.testing.assert_array_equal(now, batches[key], err_msg=key)
    by_step = [{key: value[step] for key, value in batches.items()} for step in range(STEPS)]
    loss, gradients, losses = computed(name, part(answers, "params/"), by_step)
    assert loss == pytest.approx(float(answers["loss"]), rel=1e-5)
    expected = part(answers, "gradients/")
    assert gradients.keys() == expected.keys()
    sizes = {path: np.abs(gradient).max() for path, gradient in expected.items()}
    rounding = np.finfo(np.float32).eps * max(sizes.values())  # all there is of a key bias's
    for path, gradient in gradients.items():
        atol = max(1e-5 * sizes[path], rounding)
        np.testing.assert_allclose(gradient, expected[path], rtol=1e-5, atol=atol)
    np.testing.assert_allclose(losses, answers["losses"], rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_initial_values_are_those_of_version_1(name):
    expected = part(stored(name), "initial/")
    values = drawn(name)
    assert values.keys() == expected.keys()
    for path, first in expected.items():
        np.testing.assert_allclose(values[path].ravel()[:4], first, rtol=1e-6, err_msg=path)
