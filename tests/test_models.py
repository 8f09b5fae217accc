"""The decoder: its initial values, its layers, and what it refuses."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import Decoder, Encoder
from transformer_jax.paths import by_path
from transformer_jax.training.objectives import sums_of, total

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
    params = initial(SMALL)
    kernels = [params[f"block_{i}"]["attention"]["query"]["kernel"] for i in range(3)]
    assert not np.allclose(kernels[0], kernels[1])
    model = SMALL.with_options(dropout_rate=0.5, depth=2)
    _, state = model.apply(
        {"params": params},
        TOKENS,
        train=True,
        rngs={"dropout": jax.random.key(0)},
        capture_intermediates=lambda module, _: type(module).__name__ == "Dropout",
        mutable=["intermediates"],
    )
    dropped = [
        np.asarray(
            state["intermediates"][f"block_{i}"]["attention"]["Dropout_0"]["__call__"][0] == 0
        )
        for i in range(2)
    ]
    assert not np.array_equal(*dropped)


def test_c63_tied_embeddings_are_one_array():
    tied, untied = initial(SMALL), initial(SMALL.with_options(tie_embeddings=False))
    assert "output" not in tied
    assert untied["output"]["kernel"].shape == (64, 11)


def test_without_positions_one_causal_layer_ignores_order_and_two_do_not():
    early, late = jnp.array([[1, 2, 3, 4]]), jnp.array([[3, 1, 2, 4]])
    for depth, ignores in ((1, True), (2, False)):
        model = SMALL.with_options(position="none", depth=depth, init_std=0.5)
        params = initial(model)
        last = [model.apply({"params": params}, tokens)[0, -1] for tokens in (early, late)]
        assert np.allclose(*last, atol=1e-4) == ignores


def test_c49_a_logit_has_no_gradient_from_later_tokens():
    model = SMALL.with_options(tie_embeddings=False)
    params = initial(model)

    def logit(table):
        changed = params | {"token_embedding": {"embedding": table}}
        return model.apply({"params": changed}, jnp.arange(8))[2, 0]

    gradient = jax.grad(logit)(params["token_embedding"]["embedding"])
    assert (gradient[3:] == 0).all()
    assert (jnp.abs(gradient[:3]).max(-1) > 0).all()


def test_teacher_forcing_equals_one_token_at_a_time():
    params = initial(SMALL)
    parallel = SMALL.apply({"params": params}, TOKENS)
    for place in (0, 3, 7):
        alone = SMALL.apply({"params": params}, TOKENS[:, : place + 1])[:, -1]
        np.testing.assert_allclose(alone, parallel[:, place], atol=1e-5)


def test_attention_weights_come_out_by_name():
    params = initial(SMALL)
    _, state = SMALL.apply({"params": params}, TOKENS, mutable=["intermediates"])
    for layer in range(3):
        (weights,) = state["intermediates"][f"block_{layer}"]["attention"]["weights"]
        assert weights.shape == (2, 4, 8, 8)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_a_users_own_classes_take_the_place_of_names():
    from transformer_jax.norms import RMSNorm
    from transformer_jax.positions import NoPositions

    by_name = SMALL.with_options(norm="rms_norm", position="none", activation="relu")
    by_class = SMALL.with_options(norm=RMSNorm, position=NoPositions, activation=jax.nn.relu)
    params = initial(by_name)
    np.testing.assert_array_equal(
        by_name.apply({"params": params}, TOKENS), by_class.apply({"params": params}, TOKENS)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"position": "learnt"},
            "position: expected one of none, learned, sinusoidal, sinusoidal_2d, rotary, alibi, t5",
        ),
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
)
def test_wrong_fields_are_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        initial(SMALL.with_options(**change))


def test_a_class_token_stands_before_given_positions():
    encoder = Encoder.of(num_features=3, max_length=8, width=16, num_classes=2)
    vectors = jax.random.normal(jax.random.key(0), (2, 5, 3))
    params = jax.jit(encoder.init)(jax.random.key(1), vectors=vectors)
    counted = encoder.apply(params, vectors=vectors)
    for positions in (jnp.arange(5), jnp.broadcast_to(jnp.arange(5), (2, 5))):
        given = encoder.apply(params, vectors=vectors, positions=positions)
        np.testing.assert_array_equal(given, counted)
    with pytest.raises(ValueError, match=r"positions: "):
        encoder.apply(params, vectors=vectors, positions=jnp.arange(6))


@pytest.mark.thorough
def test_c50_random_tokens_cannot_be_predicted_and_a_leak_is_found(monkeypatch):
    """A decoder that sees no future stays at ln V; with the mask broken it falls below."""
    import optax

    from transformer_jax.models import stack

    def final_loss():
        model = Decoder.of(vocab_size=8, max_length=8, width=32, depth=2, num_heads=2, init_std=0.1)
        optimizer = optax.adam(3e-3)

        def loss(params, tokens):
            logits = model.apply({"params": params}, tokens[:, :-1])
            weights = jnp.ones(tokens[:, 1:].shape)
            sums = total(sums_of(logits, tokens[:, 1:], weights))
            return sums.loss / sums.weight

        @jax.jit
        def run(key):
            params = model.init(key, jnp.zeros((1, 8), jnp.int32))["params"]

            def step(carry, key):
                params, state = carry
                tokens = jax.random.randint(key, (32, 9), 0, 8)
                value, gradients = jax.value_and_grad(loss)(params, tokens)
                updates, state = optimizer.update(gradients, state)
                return (optax.apply_updates(params, updates), state), value

            start = (params, optimizer.init(params))
            return jax.lax.scan(step, start, jax.random.split(jax.random.key(9), 200))[1]

        return float(run(jax.random.key(0))[-20:].mean())

    assert final_loss() > math.log(8) - 0.05
    monkeypatch.setattr(stack, "mask_of", lambda *_: None)
    assert final_loss() < math.log(8) - 0.3
