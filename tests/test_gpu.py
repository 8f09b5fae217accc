"""On a GPU: cuDNN's attention, steps beside a CPU's, a killed run's bits, a study, what a plan says."""

import functools
import json
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import ROOT, command, fingerprint_of, start_command
from tests.test_fused import mix, taken, values_and_gradients
from transformer_jax.config_files import load_config
from transformer_jax.generation import generate_from
from transformer_jax.masks import Causal, Full, Mask, Places, Window
from transformer_jax.models import Decoder
from transformer_jax.models.layouts import stack_blocks, unstack_blocks
from transformer_jax.training.prepared import prepare
from transformer_jax.variants.fused import FusedAttention

pytestmark = pytest.mark.gpu

TINY = ("--config=tiny", "--config.training.steps=400", "--config.checkpoint.every=20")
FAR = 0.01  # of the norm: bfloat16 has 8 bits
RULES = {"none": None, "all": Full(), "causal": Causal(), "window": Window(40) & Causal()}


def distance(ours, theirs):
    """Returns the error relative to the norm of the right value."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    ("length", "features", "groups"), [(256, 64, 4), (100, 32, 2), (64, 16, 1), (1024, 128, 4)]
)
def test_cudnn_gives_the_numbers_of_all_weights(rng, name, length, features, groups):
    shapes = [(2, 4, length, features), *2 * [(2, groups, length, features)]]
    given = [jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes]
    places = Places(jnp.arange(length), jnp.arange(length))
    mask = None if RULES[name] is None else Mask(places, places, RULES[name])
    assert taken("gpu", *given, mask=mask) == ["cudnn"]

    def found(variant, given):
        def loss(given):
            mixed = mix(variant, *given, mask).astype(jnp.float32)
            return (mixed * jnp.cos(jnp.arange(features))).sum(), mixed

        gradients, mixed = jax.jit(jax.grad(loss, has_aux=True))(given)
        return [mixed, *gradients]

    kernel = found(FusedAttention(), given)
    with jax.default_device(jax.devices("cpu")[0]):
        exact = [np.asarray(array, np.float32) for array in given]
        plain = found(FusedAttention(), [jnp.asarray(array) for array in exact])
    far = [distance(*pair) for pair in zip(kernel, plain, strict=True)]
    assert max(far) < FAR, far


def test_what_cudnn_cannot_do_is_by_all_weights(rng):
    places = Places(jnp.arange(64), jnp.arange(64))
    for dtype, rule in ((jnp.float32, Causal()), (jnp.bfloat16, Window(40))):
        given = [jnp.asarray(rng.normal(size=(2, 4, 64, 16)), dtype) for _ in range(3)]
        mask = Mask(places, places, rule)
        assert taken("gpu", *given, mask=mask)[0].startswith("all weights: ")
        found = values_and_gradients(FusedAttention(), given, mask)
        assert all(np.isfinite(np.asarray(each, np.float32)).all() for each in found)


def test_a_model_of_fused_attention_under_vmap_and_computed_again(rng):
    sizes = {"vocab_size": 11, "max_length": 128, "width": 64, "depth": 2, "num_heads": 2}
    options = {**sizes, "use_bias": False}  # the gradient of a bias of keys is 0
    tokens = jnp.asarray(rng.integers(0, 11, (2, 128)))
    plain = Decoder.of(**options)
    members = jax.vmap(lambda key: plain.init(key, tokens)["params"])(
        jax.random.split(jax.random.key(0), 3)
    )

    def gradients(model, params):
        def loss(params):
            logits = model.apply({"params": params}, tokens)
            return -jax.nn.log_softmax(logits.astype(jnp.float32))[..., 0].mean()

        return jax.grad(loss)(params)

    fused = {"attention": "fused", "dtype": jnp.bfloat16}
    wanted = jax.jit(jax.vmap(functools.partial(gradients, plain)))(members)
    stacked = jax.vmap(lambda params: stack_blocks(params, 1))(members)
    for more, given in (({}, members), ({"remat": "block"}, stacked)):
        model = Decoder.of(**options, **fused, **more)
        found = jax.jit(jax.vmap(functools.partial(gradients, model)))(given)
        found = jax.vmap(unstack_blocks)(found)
        far = jax.tree.map(distance, found, wanted)
        assert max(jax.tree.leaves(far)) < 0.1, far


@pytest.mark.parametrize("name", ["shakespeare", "translation", "digits", "shakespeare_lstm"])
def test_steps_are_near_those_of_a_cpu(name):
    config = load_config(str(ROOT / f"configs/{name}.py"), {"schedule.name": "constant"})

    def losses(platform):
        with jax.default_device(jax.devices(platform)[0]):
            prepared = prepare(config)
            count = min(prepared.capacity, 10)
            arguments = (prepared.numbers(), prepared.draw(np.uint32(0)))
            batches = prepared.stacked_batches(0, 0, count)
            _, records = jax.jit(prepared.advance)(*arguments, batches, np.int32(count))
            sums = jax.tree.map(np.asarray, records)
            return [leaf[:count] for leaf in jax.tree.leaves(sums)]

    with jax.default_matmul_precision("highest"):
        for ours, theirs in zip(losses("gpu"), losses("cpu"), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_greedy_writing_is_that_of_a_cpu(rng):
    sizes = {"vocab_size": 65, "max_length": 64, "width": 64, "depth": 2, "num_heads": 2}
    prompt, model = rng.integers(0, 65, (3, 8)), Decoder.of(**sizes)

    def written(platform):
        with jax.default_device(jax.devices(platform)[0]):
            params = jax.jit(model.init)(jax.random.key(0), prompt)["params"]
            params = jax.tree.map(lambda leaf: 5 * leaf, params)
            key = jax.random.key(0)
            return generate_from(model, params, prompt, key, num_tokens=40, temperature=0.0)

    with jax.default_matmul_precision("highest"):
        np.testing.assert_array_equal(*(jax.device_get(written(p)) for p in ("gpu", "cpu")))


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    for name in ("whole", "again"):
        done = command("train", *TINY, f"--workdir={tmp_path / name}")
        assert done.returncode == 0, done.stderr
    killed = tmp_path / "killed"
    process = start_command("train", *TINY, f"--workdir={killed}")
    while not list((killed / "checkpoints").glob("*")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert command("train", *TINY, f"--workdir={killed}").returncode == 0
    whole = fingerprint_of(tmp_path / "whole")
    assert fingerprint_of(tmp_path / "again") == whole
    assert fingerprint_of(killed) == whole
    manifest = json.loads((killed / "manifest.json").read_text())
    assert manifest["device"]["platform"] == "gpu"


def test_a_study_is_decided(tmp_path):
    done = command(
        *("ablate", "--config=tiny", "--arm=optimizer.learning_rate=0.002,0.004", "--seeds=0:4"),
        *(f"--workdir={tmp_path / 'study'}", "--config.training.steps=100"),
    )
    assert done.returncode == 0, done.stderr
    verdicts = json.loads((tmp_path / "study" / "verdicts.json").read_text())
    assert verdicts["contrasts"] == 2


def test_a_plan_says_what_is_held():
    done = command(
        *("plan", "--config=gpt2_124m", "--device=gpu", "--steps=2", "--json"),
        *("--config.training.accumulation=1", "--config.training.batch_size=16"),
    )
    assert done.returncode == 0, done.stderr
    (plan,) = json.loads(done.stdout).values()
    assert plan["kernels"] == ["cudnn"]
    assert plan["needed"] == pytest.approx(plan["taken"]["memory"], rel=0.05)
    assert min(plan["taken"]["seconds"]) > 0.5 * plan["estimate"]
