"""The decoder: its initial values, its layers, and what it refuses."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import random_params
from transformer_jax import Decoder, Encoder
from transformer_jax.norms import RMSNorm
from transformer_jax.paths import by_path
from transformer_jax.positions import NoPositions

SMALL = Decoder.of(vocab_size=11, max_length=8, width=64, depth=3, num_heads=4)
TOKENS = jnp.arange(16).reshape(2, 8) % 11


def initial(model, seed=0):
    return model.init(jax.random.key(seed), TOKENS)["params"]


@pytest.mark.parametrize(
    "change",
    [
        {"use_bias": False},
        {"wiring": "post"},
        {"position": "rotary"},
        {"tie_embeddings": False},
        {"num_heads": 8},
        {"norm": "rms_norm"},
    ],
    ids=str,
)
def test_c61_a_change_redraws_no_other_parameter(change):
    before, after = by_path(initial(SMALL)), by_path(initial(SMALL.with_options(**change)))
    shared = before.keys() & after.keys()
    assert len(shared) > 15
    for name in shared:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)


def test_c61_initial_deviations_are_the_declared_ones():
    for name, leaf in by_path(initial(SMALL.with_options(init_std=0.05))).items():
        values = np.asarray(leaf, np.float64)
        if name.endswith("scale"):
            assert (values == 1).all(), name
        elif name.endswith("bias"):
            assert (values == 0).all(), name
        else:
            writes = name.endswith(("out/kernel", "down/kernel"))
            declared = 0.05 / math.sqrt(6) if writes else 0.05
            declared = 0.02 if name.startswith("positions") else declared
            five_sigma = 5 / math.sqrt(2 * values.size)
            assert values.std() == pytest.approx(declared, rel=five_sigma), name


def test_c60_layers_differ_and_drop_differently():
    params = initial(SMALL.with_options(depth=2))
    kernels = [params[f"block_{i}"]["attention"]["query"]["kernel"] for i in range(2)]
    assert not np.allclose(*kernels)
    _, state = SMALL.with_options(dropout_rate=0.5, depth=2).apply(
        {"params": params},
        TOKENS,
        train=True,
        rngs={"dropout": jax.random.key(0)},
        capture_intermediates=lambda module, _: type(module).__name__ == "Dropout",
        mutable=["intermediates"],
    )
    blocks = (state["intermediates"][f"block_{i}"]["attention"] for i in range(2))
    dropped = [np.asarray(block["Dropout_0"]["__call__"][0] == 0) for block in blocks]
    assert not np.array_equal(*dropped)


def test_c63_tied_embeddings_are_one_array():
    tied, untied = shapes_of(SMALL), shapes_of(SMALL.with_options(tie_embeddings=False))
    assert "output" not in tied
    assert untied["output"]["kernel"].shape == (64, 11)


def shapes_of(model):
    return jax.eval_shape(model.init, jax.random.key(0), TOKENS)["params"]


@pytest.mark.parametrize(("depth", "ignores"), [(1, True), (2, False)])
def test_without_positions_one_causal_layer_ignores_order_and_two_do_not(depth, ignores):
    model = SMALL.with_options(position="none", depth=depth)
    orders = jnp.array([[1, 2, 3, 4], [3, 1, 2, 4]])
    early, late = model.apply({"params": random_params(model)}, orders)[:, -1]
    assert np.allclose(early, late, atol=1e-4) == ignores


def test_c49_a_logit_has_no_gradient_from_later_tokens():
    model = SMALL.with_options(tie_embeddings=False, depth=2)
    params = random_params(model)

    @jax.jit
    @jax.grad
    def gradient(table):
        changed = params | {"token_embedding": {"embedding": table}}
        return model.apply({"params": changed}, jnp.arange(8))[2, 0]

    found = gradient(params["token_embedding"]["embedding"])
    assert (found[3:] == 0).all()
    assert (jnp.abs(found[:3]).max(-1) > 0).all()


def test_a_users_own_classes_take_the_place_of_names():
    by_name = SMALL.with_options(norm="rms_norm", position="none", activation="relu", depth=1)
    by_class = by_name.with_options(norm=RMSNorm, position=NoPositions, activation=jax.nn.relu)
    params = random_params(by_name)
    logits = (model.apply({"params": params}, TOKENS) for model in (by_name, by_class))
    np.testing.assert_array_equal(*logits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": "learnt"}, "position: expected one of none, learned, sinusoidal, .*rotary"),
        ({"norm": "batch"}, "norm: expected one of layer_norm, rms_norm, .*got 'batch'"),
        ({"wiring": "dense"}, "wiring: expected one of pre, post"),
        ({"attention": "cosine"}, "attention: expected one of softmax"),
        ({"attention": "linear", "attention_scale": 1.0}, "attention_scale: linear attention has"),
        ({"attention": "linear", "position": "alibi"}, "bias: linear attention has no scores"),
        ({"feed_forward": "moe"}, "feed_forward: expected one of mlp, gated"),
        ({"mask": "casual"}, "mask: expected one of full, causal, window, prefix"),
        ({"initialisation": "he"}, "initialisation: expected one of normal"),
        ({"parametrisation": "ntk"}, "parametrisation: expected one of standard, mup"),
        ({"num_kv_heads": 3}, "num_kv_heads: expected a divisor of num_heads 4, got 3"),
        ({"activation": "swish"}, "activation: expected one of gelu"),
        ({"num_heads": 5}, "num_heads: expected a divisor of width 64, got 5"),
    ],
    ids=str,
)
def test_wrong_fields_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        shapes_of(SMALL.with_options(**change))


def test_a_class_token_stands_before_given_positions():
    encoder = Encoder.of(num_features=3, max_length=8, width=16, num_classes=2, depth=1)
    vectors = jax.random.normal(jax.random.key(0), (2, 5, 3))
    params = {"params": random_params(encoder)}
    counted = encoder.apply(params, vectors=vectors)
    for positions in (jnp.arange(5), jnp.broadcast_to(jnp.arange(5), (2, 5))):
        given = encoder.apply(params, vectors=vectors, positions=positions)
        np.testing.assert_array_equal(given, counted)
    with pytest.raises(ValueError, match=r"positions: "):
        encoder.apply(params, vectors=vectors, positions=jnp.arange(6))


@pytest.mark.parametrize("position", ["alibi", "shaw", "learned"])
def test_unsigned_positions_give_what_signed_ones_give(position):
    encoder = Encoder.of(
        num_features=3, max_length=8, width=16, num_classes=2, depth=1, mask="window",
        mask_options={"size": 2}, position=position,
    )  # fmt: skip
    vectors = jax.random.normal(jax.random.key(0), (2, 5, 3))
    params = {"params": random_params(encoder)}
    signed, unsigned = (
        encoder.apply(params, vectors=vectors, positions=np.arange(5, dtype=dtype))
        for dtype in (np.int32, np.uint8)
    )
    np.testing.assert_array_equal(signed, unsigned)
