"""Every named place is there in the models that have it, can be read, changed and kept."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.test_inspection import drawn
from transformer_jax.attention import scaled_dot_product_attention
from transformer_jax.errors import InvalidInput
from transformer_jax.inspection import capture, intervene, sites_of
from transformer_jax.models import Decoder, Encoder, EncoderDecoder, VisionTransformer
from transformer_jax.models.recurrent import RecurrentDecoder
from transformer_jax.norms import LayerNorm
from transformer_jax.sites import SITES, interventions, site

TOKENS = jax.random.randint(jax.random.key(0), (3, 6), 0, 11)
SIZES = {"width": 8, "depth": 2, "num_heads": 2}
SMALL = {"vocab_size": 11, "max_length": 6, **SIZES}
RECURRENT = {"vocab_size": 11, "max_length": 6, "width": 8, "recurrent_depth": 2, "cell": "gru"}
BOTH = {"source": TOKENS, "tokens": TOKENS[:, :4]}
MODELS = {
    "decoder": (Decoder.of(**SMALL, num_kv_heads=1, position="rotary"), {"tokens": TOKENS}),
    "state_space": (Decoder.of(**SMALL, mixer="state_space"), {"tokens": TOKENS}),
    "linear": (Decoder.of(**SMALL, attention="linear", feed_forward="gated"), {"tokens": TOKENS}),
    "mixture": (Decoder.of(**SMALL, feed_forward="mixture"), {"tokens": TOKENS}),
    "encoder": (Encoder.of(**SMALL, num_classes=3), {"tokens": TOKENS}),
    "vision": (
        VisionTransformer.of(**SIZES, image_shape=(4, 4, 1), num_classes=3, patch_size=2),
        {"images": jnp.ones((2, 4, 4, 1))},
    ),
    "encoder_decoder": (EncoderDecoder.of(**SMALL), BOTH),
    "recurrent": (RecurrentDecoder(**RECURRENT), {"tokens": TOKENS}),
}


@pytest.fixture(scope="module")
def taken():
    """(model, params, inputs) by name, drawn when they are first asked for."""
    return functools.cache(
        lambda name: (MODELS[name][0], drawn(MODELS[name][0], **MODELS[name][1]), MODELS[name][1])
    )


def shapes_in(name):
    model, inputs = MODELS[name]
    params = jax.eval_shape(functools.partial(model.init, jax.random.key(0), **inputs))["params"]
    return sites_of(model, params, inputs)


def row_of(name):
    return re.sub(r"(block|layer)_\d+", r"\1_*", re.sub(r"^(encoder|decoder)\.", "", name))


def test_the_table_names_every_site_and_nothing_else():
    met = {row_of(name) for model in MODELS for name in shapes_in(model)}
    assert met == set(SITES)


def test_values_have_the_shapes_that_the_table_says():
    letters = {"L": 6, "M": 6, "H": 2, "K": 4, "V": 4, "D": 8, "F": 32, "G": 1}
    for name, value in shapes_in("decoder").items():
        said = re.match(r"\[\.\.\., (.*?)\]", SITES[row_of(name)])[1].split(", ")
        sizes = [11 if name == "logits" and s == "V" else letters[s] for s in said]
        assert value.shape == (3, *sizes), name


def test_what_is_captured_is_what_the_model_computes_with(taken):
    """Sites from query, key and value over the heads and the stream to the logits."""
    model, params, inputs = taken("decoder")
    seen = capture(model, params, inputs, "*")
    at = "block_1.attention."
    key, value = (jnp.repeat(seen[at + name], 2, axis=1) for name in ("key", "value"))
    causal = jnp.tril(jnp.ones((6, 6), bool))
    mixed = scaled_dot_product_attention(seen[at + "query"], key, value, causal)
    np.testing.assert_allclose(mixed, seen[at + "mixed"], atol=1e-5)
    branch = params["block_1"]["attention"]["out"]
    flat = jnp.swapaxes(mixed, 1, 2).reshape(3, 6, 8) @ branch["kernel"] + branch["bias"]
    np.testing.assert_allclose(flat, seen[at + "out"], rtol=1e-5, atol=1e-4)
    added = seen["block_0.residual"] + flat + seen["block_1.feed_forward.out"]
    np.testing.assert_allclose(added, seen["block_1.residual"], rtol=1e-5, atol=1e-4)
    logits = model.apply({"params": params}, **inputs)
    np.testing.assert_allclose(logits, seen["logits"], rtol=1e-5, atol=1e-4)


def test_changing_nothing_changes_nothing_and_the_rest_follows(taken):
    model, params, inputs = taken("encoder_decoder")
    logits = model.apply({"params": params}, **inputs)
    same = intervene(model, params, inputs, {"*": lambda value: value})
    np.testing.assert_allclose(same, logits, rtol=1e-5, atol=1e-4)
    # The stream of another source, put in its place, makes it that source.
    other = {**inputs, "source": (TOKENS + 1) % 11}
    kept = capture(model, params, other, "encoder.hidden")
    patched = intervene(model, params, inputs, {"encoder.hidden": lambda _: kept["encoder.hidden"]})
    wanted = model.apply({"params": params}, **other)
    np.testing.assert_allclose(patched, wanted, rtol=1e-5, atol=1e-4)
    assert not np.allclose(patched, logits, atol=1e-2)


def test_a_head_that_is_taken_out_is_a_head_without_an_output_map(taken):
    model, params, inputs = taken("decoder")
    without = {"block_1.attention.mixed": lambda mixed: mixed.at[..., 1, :, :].set(0)}
    changed = jax.tree.map(lambda leaf: leaf, params)
    out = changed["block_1"]["attention"]["out"]
    out["kernel"] = out["kernel"].at[4:].set(0)
    wanted = model.apply({"params": changed}, **inputs)
    found = intervene(model, params, inputs, without)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


def test_a_gradient_flows_through_an_intervention(taken):
    """At the last stream it is that of the final norm and the output layer alone."""
    model, params, inputs = taken("decoder")
    stream = capture(model, params, inputs, "block_1.residual")["block_1.residual"]

    def loss(offset):
        changes = {"block_1.residual": lambda residual: residual + offset}
        return jnp.sin(intervene(model, params, inputs, changes)).sum()

    def from_there(residual):
        normed = LayerNorm().apply({"params": params["final_norm"]}, residual)
        return jnp.sin(normed @ params["token_embedding"]["embedding"].T).sum()

    got, wanted = jax.grad(loss)(jnp.zeros_like(stream)), jax.grad(from_there)(stream)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_wrong_names_and_shapes_are_refused(taken):
    model, params, inputs = taken("linear")
    with pytest.raises(InvalidInput, match=r"no such site; the nearest is block_1\.attention\.qu"):
        capture(model, params, inputs, "block_1.attention.qery")
    without_sites = nn.Dense(2), {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}
    with pytest.raises(InvalidInput, match="no such site"):
        capture(*without_sites, {"inputs": jnp.ones(3)}, "*")
    for site_name, change, message in (
        ("block_7.residual", lambda value: value, r"block_7\.residual: Decoder has no such site"),
        ("block_0.residual", lambda value: value[..., 0], r"float32\[3, 6, 8\].*\[3, 6\]"),
        ("block_0.residual", lambda value: None, r"float32\[3, 6, 8\].* got NoneType"),
        ("block_0.residual", 0, "expected a function of the value, got 0"),
        ("block_0.attention.weights", lambda value: value, "only shows this value and never uses"),
    ):
        with pytest.raises(InvalidInput, match=message):
            intervene(model, params, inputs, {site_name: change})
    with (
        pytest.raises(InvalidInput, match="nonsense: no site of this name was reached"),
        interventions({"nonsense": jnp.zeros_like}),
    ):
        model.apply({"params": params}, **inputs)
    # What is only shown is not meant by a pattern for all of an attention's values.
    zeroed = intervene(model, params, inputs, {"block_*.attention.*": jnp.zeros_like})
    assert np.isfinite(zeroed).all()


def test_names_that_end_alike_are_kept_apart():
    class Named(nn.Module):
        @nn.compact
        def __call__(self, x):
            return site(self, "value_", 2 * site(self, "value", x + 1))

    class Both(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Named(name="named")(Named(name="named_")(x))

    seen = capture(Both(), {}, {"x": jnp.zeros(1)}, "*")
    wanted = {"named_.value": 1, "named_.value_": 2, "named.value": 3, "named.value_": 6}
    assert {name: float(value[0]) for name, value in seen.items()} == wanted


def test_an_intervention_ends_with_its_block(taken):
    model, params, inputs = taken("recurrent")
    logits = model.apply({"params": params}, **inputs)

    def fail_inside():
        with interventions({"layer_*.out": jnp.zeros_like}):
            assert not np.allclose(model.apply({"params": params}, **inputs), logits)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_inside()
    np.testing.assert_array_equal(model.apply({"params": params}, **inputs), logits)


def test_sites_in_a_model_of_ones_own_have_its_path_in_front():
    class Twice(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            logits = Decoder.of(**SMALL, name="lm")(tokens)
            return site(self, "doubled", 2 * logits)

    params, inputs = drawn(Twice(), tokens=TOKENS), {"tokens": TOKENS}
    seen = capture(Twice(), params, inputs, "doubled", "lm.block_*.residual")
    assert list(seen) == ["doubled", "lm.block_0.residual", "lm.block_1.residual"]


@pytest.mark.parametrize("kept", ["attention.query", "feed_forward.hidden", "residual"])
def test_names_decide_what_is_kept_for_the_backward_pass(taken, kept):
    """Rematerialisation by a policy of names keeps that site of each block, and nothing else."""
    model, params, inputs = taken("decoder")
    policy = jax.checkpoint_policies.save_only_these_names(kept)

    def loss(params):
        return jax.checkpoint(
            lambda params: model.apply({"params": params}, **inputs)[..., 0].sum(), policy=policy
        )(params)

    sites = capture(model, params, inputs, f"block_*.{kept}")
    _, pullback = jax.vjp(loss, params)
    given = {leaf.shape for leaf in jax.tree.leaves((params, inputs))}
    held = [leaf for leaf in jax.tree.leaves(pullback) if leaf.shape not in given]
    assert [leaf.shape for leaf in held] == [value.shape for value in sites.values()]
    for value, leaf in zip(sites.values(), held, strict=True):
        np.testing.assert_allclose(leaf, value, rtol=1e-5, atol=1e-4)


def test_a_compiled_program_is_the_same_with_and_without_sites(taken, monkeypatch):
    model, params, inputs = taken("decoder")

    def lowered():
        loss = lambda params: model.apply({"params": params}, **inputs).sum()
        return jax.jit(jax.grad(loss)).lower(params).as_text()

    named = lowered()
    for module in ("attention", "blocks", "feedforward", "models.stack", "models.decoder"):
        monkeypatch.setattr(f"transformer_jax.{module}.site", lambda module, name, value: value)
    assert lowered() == named
