"""Layers as a loop, and what a step computes again: the numbers are those of blocks one by one."""

import functools

import jax
import numpy as np
import pytest

from tests.conftest import a_few_of, random_params, tiny_config
from transformer_jax.attention import AttentionVariant, attention_weights
from transformer_jax.errors import InvalidInput
from transformer_jax.inspection import capture, sites_of
from transformer_jax.jaxprs import names_in
from transformer_jax.models import Decoder, EncoderDecoder, VisionTransformer
from transformer_jax.models.layouts import stack_blocks, unstack_blocks
from transformer_jax.remat import REMATS
from transformer_jax.resolve import option_for
from transformer_jax.sites import SITES
from transformer_jax.training.objectives import score_batch
from transformer_jax.training.prepared import prepare

SMALL = {"width": 8, "num_heads": 2, "dropout_rate": 0.2}
TEXT = {"vocab_size": 11, "max_length": 8}
rng = np.random.default_rng(0)
TOKENS = rng.integers(0, 11, (3, 8), dtype=np.int32)
SEGMENTS = np.array([[1] * 8, [1] * 5 + [2] * 3, [1] * 4 + [0] * 4], np.int32)
IMAGES = rng.normal(size=(3, 4, 4, 1)).astype(np.float32)
ALIKE = {"tokens": TOKENS, "segments": SEGMENTS}
LOCAL = {"L": {"mask": "window", "mask_options": {"size": 3}}}
FEW_EXPERTS = {"num_experts": 2, "balance": 0.1}
EVERYTHING = {"layers": "LG", "layer_types": LOCAL, "position": "t5", "stochastic_depth": 0.3}
EVERYTHING |= {"feed_forward": "mixture", "feed_forward_options": FEW_EXPERTS}
PIXELS = {"image_shape": (4, 4, 1), "patch_size": 2, "num_classes": 11, "wiring": "post"}
BOTH = {"source": TOKENS, "source_segments": np.minimum(SEGMENTS, 1), "tokens": TOKENS[:, :5]}
MODELS = {
    "types, biases, drop path, experts": (Decoder.of(**TEXT | SMALL | EVERYTHING, depth=5), ALIKE),
    "numbers of the depth": (
        Decoder.of(**TEXT | SMALL, depth=3, attention="diff_transformer", position="rotary"),
        ALIKE,
    ),
    "recurrences": (
        Decoder.of(**TEXT | SMALL, depth=2, mixer="state_space", position="none"),
        ALIKE,
    ),
    "encoder and decoder": (EncoderDecoder.of(**TEXT | SMALL, depth=2), BOTH),
    "images": (VisionTransformer.of(**SMALL | PIXELS, depth=2), {"images": IMAGES}),
}


def differentiated(model, inputs, params):
    """The loss in training, dropout and layers' own losses included, and its gradients."""
    logits = jax.eval_shape(lambda: model.apply({"params": params}, **inputs))
    batch = {
        "inputs": inputs,
        "targets": np.arange(np.prod(logits.shape[:-1])).reshape(logits.shape[:-1]) % 11,
        "weights": np.ones(logits.shape[:-1], np.float32),
    }

    def loss(params):
        options = {"train": True, "rngs": {"dropout": jax.random.key(3)}}
        loss, _, added, _ = score_batch(model, params, batch, key=jax.random.key(4), **options)
        return loss + added.sum()

    return jax.jit(jax.value_and_grad(loss))


@functools.cache
def one_by_one(name, **rates):
    model, inputs = MODELS[name]
    model = model.with_options(**rates)
    params = random_params(model, scale=0.2)  # larger ones round more than what is asked for
    return model, params, differentiated(model, inputs, params)(params)


def assert_same(name, scan, **fields):
    """A scan draws its dropout otherwise; all else is that of the blocks one by one."""
    rates = {"dropout_rate": 0.0, "stochastic_depth": 0.0} if scan else {}
    model, params, (loss, gradients) = one_by_one(name, **rates)
    given = stack_blocks(params, model.options.unit) if scan else params
    assert given.keys() != params.keys() or "encoder" in params or not scan
    found = differentiated(model.with_options(**fields), MODELS[name][1], given)(given)
    np.testing.assert_allclose(found[0], loss, rtol=1e-6)
    others = unstack_blocks(found[1]) if scan else found[1]
    assert jax.tree.structure(others) == jax.tree.structure(gradients)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradients))
    for ours, expected in zip(jax.tree.leaves(others), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=1e-6 * largest)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.xdist_group(name), *[pytest.mark.thorough] * (n > 0)])
        for n, name in enumerate(MODELS)
    ],
)
def test_a_scan_computes_what_blocks_one_by_one_do(name):
    """Position terms, packed documents, memory, experts' losses, and what depends on the depth."""
    assert_same(name, scan=True, remat="block")


@pytest.mark.parametrize("remat", a_few_of(sorted(REMATS.keys() - {"none"}), ("sites",)))
@pytest.mark.parametrize("scan", a_few_of([False, True], [True]))
@pytest.mark.xdist_group("numbers of the depth")
def test_every_policy_gives_the_same_gradients(remat, scan):
    assert_same("numbers of the depth", scan, remat=remat)


def test_each_block_of_a_scan_draws_its_own_dropout():
    """Equal blocks whose branches are their dropout; a branch that is left out is left out whole."""
    model = Decoder.of(**TEXT, width=8, num_heads=2, depth=4, stochastic_depth=0.5, position="none")
    params = random_params(model)
    params |= {f"block_{number}": params["block_0"] for number in range(4)}
    tokens = np.zeros((64, 8), np.int32)
    draw = lambda params, seed: model.apply(
        {"params": params}, tokens, train=True, rngs={"dropout": jax.random.key(seed)}
    )
    first, again, other = (jax.jit(draw)(stack_blocks(params, 1), seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    # Eight branches of 64 equal examples, kept or not: equal draws in all blocks would give few.
    for drawn in (first, draw(params, 0)):
        assert len(np.unique(np.asarray(drawn)[:, -1, 0].round(5))) > 20


def temporaries(depth, scan=False, **fields):
    """Bytes of a compiled gradient's temporaries."""
    model = Decoder.of(**TEXT | SMALL | {"max_length": 64, "depth": depth, **fields})
    params = random_params(model)
    params = stack_blocks(params, 1) if scan else params
    program = differentiated(model, {"tokens": np.resize(TOKENS, (16, 64))}, params)
    return program.lower(params).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.thorough
@pytest.mark.xdist_group("numbers of the depth")
def test_memory_stops_growing_with_the_depth():
    """Nothing but the blocks' inputs is kept: 16 x 64 x 8 floats each, and what a loop adds."""
    plain = temporaries(4) - temporaries(2)
    kept = temporaries(4, scan=True, remat="block")
    kept -= temporaries(2, scan=True, remat="block")
    assert kept < 0.1 * plain


def test_sites_are_those_of_blocks_without_a_policy():
    model = Decoder.of(**TEXT | SMALL, depth=3, remat="sites")
    params = random_params(model)
    inputs = {"tokens": TOKENS}
    plain = model.with_options(remat="none")
    assert sites_of(model, params, inputs) == sites_of(plain, params, inputs)
    values = (capture(m, params, inputs, "block_1.residual") for m in (model, plain))
    np.testing.assert_array_equal(*(value["block_1.residual"] for value in values))


def names_of_a_step(scan=False, **fields):
    model = Decoder.of(**TEXT | SMALL, depth=2, **fields)
    given = {"train": True, "rngs": {"dropout": jax.random.key(0)}}
    apply = lambda params: model.apply({"params": params}, TOKENS, **given)
    params = random_params(model)
    return names_in(jax.make_jaxpr(apply)(stack_blocks(params, 1) if scan else params))


def test_policies_find_the_same_names_in_a_scan():
    names = names_of_a_step()
    assert {"attention.weights", "feed_forward.hidden", "residual"} <= names
    assert names_of_a_step(scan=True) == names
    chunked = names_of_a_step(attention="chunked", attention_options={"size": 2})
    assert names - chunked == {"attention.weights"}


def test_policies_know_every_site_of_a_block():
    names = {name.removeprefix("block_*.") for name in SITES if name.startswith("block_*.")}
    allowed = option_for("model.remat_options.sites", {}).allowed
    assert set(allowed.removeprefix("some of: ").split(", ")) == names - {"residual"}


class ByDepth(AttentionVariant):
    """Attention that is sharper in later blocks."""

    def weights(self, query, key, call):
        mask, bias = call.dense(query, key)
        return attention_weights(query * (1 + call.layer), key, mask, bias)


class ByBranch(AttentionVariant):
    """Attention that asks, while a program is traced, which block it is in."""

    def weights(self, query, key, call):
        mask, bias = call.dense(query, key)
        return attention_weights(query if call.layer % 2 else -query, key, mask, bias)


def test_blocks_of_a_scan_know_their_number():
    model = Decoder.of(**TEXT | SMALL, depth=3, attention=ByDepth)
    params = random_params(model)
    plain, other = (model.apply({"params": p}, TOKENS) for p in (params, stack_blocks(params, 1)))
    np.testing.assert_allclose(plain, other, atol=1e-5)


def test_code_that_a_scan_cannot_repeat_is_refused():
    own = f"{ByBranch.__module__}:ByBranch"
    with pytest.raises(InvalidInput, match=r"scan_layers"):
        prepare(tiny_config(model__attention=own, model__scan_layers=True))
    model = Decoder.of(**TEXT, width=8, num_heads=2, depth=4, skips="dense")
    params = random_params(model)
    with pytest.raises(ValueError, match="read earlier streams cannot be"):
        model.apply({"params": stack_blocks(params, 1)}, TOKENS)


def test_options_that_would_do_nothing_are_refused():
    with pytest.raises(InvalidInput, match=r"this model has no site mixer.out; expected some of a"):
        prepare(tiny_config(model__remat="sites", model__remat_options__sites="mixer.out"))
    chunks = {"model__remat": "sites", "model__attention": "chunked"}
    chunks |= {"model__attention_options__size": 4}
    with pytest.raises(InvalidInput, match=r"this model has no site attention.weights"):
        prepare(tiny_config(**chunks, model__remat_options__sites="attention.weights"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scan_layers": True, "distinct_blocks": 1}, "cannot be scanned; expected False"),
        ({"remat": "blocks"}, r"did you mean block\?"),
        ({"architecture": "recurrent_decoder", "remat": "block"}, "recurrent_decoder has no block"),
        ({"remat": "sites", "remat_options__sites": "attention.output"}, "attention.out"),
    ],
)
def test_wrong_options_of_remat_are_refused(options, words):
    with pytest.raises(InvalidInput, match=words):
        tiny_config(**{f"model__{key}": value for key, value in options.items()})
