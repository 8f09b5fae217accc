"""Laws that every row of every table keeps, inside a whole decoder. A new row is tested by existing."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.layers.blocks import WIRINGS
from transformer_jax.layers.feedforward import ACTIVATIONS
from transformer_jax.layers.norms import NORMS
from transformer_jax.layers.positions import POSITIONS
from transformer_jax.models import Decoder
from transformer_jax.training.metrics import sums_of, total

FAMILIES = {
    "position": POSITIONS,
    "norm": NORMS,
    "wiring": WIRINGS,
    "activation": ACTIVATIONS,
    "use_bias": (True, False),
    "tie_embeddings": (False,),
    "head_dim": (6,),
    "num_heads": (1,),
    "mlp_dim": (20,),
}
VARIANTS = [
    (family, name)
    for family, rows in FAMILIES.items()
    for name in rows
    if getattr(Decoder, family) != name or family == "position"  # the base case once
    if name != "sinusoidal_2d"  # text has no rows and columns; test_architectures.py has images
]
LENGTH, VOCAB = 6, 11


@dataclasses.dataclass(frozen=True)
class Case:
    model: Decoder
    params: dict
    tokens: jax.Array

    def logits(self, tokens=None, **options):
        tokens = self.tokens if tokens is None else tokens
        return _apply(self.model, self.params, tokens, **options)


@jax.jit
def _noise(params, key):
    leaves, treedef = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    drawn = [jax.random.normal(k, leaf.shape) * 0.3 for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(treedef, drawn)


_apply = jax.jit(
    lambda model, params, tokens, **options: model.apply({"params": params}, tokens, **options),
    static_argnums=0,
)


_init = jax.jit(lambda model, key, tokens: model.init(key, tokens)["params"], static_argnums=0)


def _loss(model, params, tokens):
    logits = model.apply({"params": params}, tokens)
    return total(sums_of(logits, tokens, jnp.ones(tokens.shape))).loss


_value_and_gradients = jax.jit(jax.value_and_grad(_loss, argnums=1), static_argnums=0)


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: f"{variant[0]}={variant[1]}")
def case(request):
    family, name = request.param
    fields = {"vocab_size": VOCAB, "max_length": 8, "width": 16, "depth": 1, "num_heads": 2}
    model = Decoder(**fields | {family: name})
    tokens = jax.random.randint(jax.random.key(1), (3, LENGTH), 0, VOCAB)
    params = _init(model, jax.random.key(0), tokens)
    return Case(model, _noise(params, jax.random.key(2)), tokens)


def test_shape_dtype_and_finite_logits(case):
    logits = case.logits()
    assert logits.shape == (3, LENGTH, VOCAB)
    assert logits.dtype == jnp.float32
    assert jnp.isfinite(logits).all()


def test_every_parameter_gets_a_gradient(case):
    _, gradients = _value_and_gradients(case.model, case.params, case.tokens)
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        assert jnp.isfinite(gradient).all(), name
        # A bias of the keys adds the same to all scores of a row, which softmax ignores.
        if not name.endswith("key/bias"):
            assert jnp.abs(gradient).max() > 1e-6, name


def test_c49_the_future_does_not_reach_back(case):
    base = case.logits()
    for place in range(1, LENGTH):
        changed = case.logits(case.tokens.at[:, place].add(1) % VOCAB)
        np.testing.assert_array_equal(changed[:, :place], base[:, :place])
        assert not np.array_equal(changed[:, place:], base[:, place:])


def test_c55_packed_documents_equal_separate_ones(case):
    together = jnp.concatenate([case.tokens[0, :4], case.tokens[1, :2]])
    packed = case.logits(
        together,
        segments=jnp.array([1, 1, 1, 1, 2, 2]),
        positions=jnp.array([0, 1, 2, 3, 0, 1]),
    )
    np.testing.assert_allclose(packed[:4], case.logits(case.tokens[0])[:4], atol=2e-5)
    np.testing.assert_allclose(packed[4:], case.logits(case.tokens[1])[:2], atol=2e-5)


def test_c57_padding_changes_nothing_whatever_it_holds(case):
    segments = jnp.array([1, 1, 1, 1, 0, 0])
    alone = case.logits(case.tokens[0])[:4]
    for filler in (0, 5):
        padded = case.tokens[0].at[4:].set(filler)
        logits = case.logits(padded, segments=segments)
        np.testing.assert_allclose(logits[:4], alone, atol=2e-5)
        assert jnp.isfinite(logits).all()


def test_jit_equals_eager(case):
    eager = case.model.apply({"params": case.params}, case.tokens)
    np.testing.assert_allclose(case.logits(), eager, atol=2e-5)


def test_vmap_over_examples_equals_the_batch(case):
    by_example = jax.vmap(lambda tokens: case.model.apply({"params": case.params}, tokens))
    np.testing.assert_allclose(jax.jit(by_example)(case.tokens), case.logits(), atol=2e-5)


def test_vmap_over_the_parameters_of_seeds_equals_a_loop(case):
    keys = jnp.stack([jax.random.key(seed) for seed in range(2)])
    stacked = jax.jit(jax.vmap(lambda key: _init(case.model, key, case.tokens)))(keys)
    vmapped = jax.vmap(lambda params: _value_and_gradients(case.model, params, case.tokens))
    values, gradients = jax.jit(vmapped)(stacked)
    for seed, key in enumerate(keys):
        single = _init(case.model, key, case.tokens)
        jax.tree.map(
            lambda many, one, seed=seed: np.testing.assert_array_equal(many[seed], one),
            stacked,
            single,
        )
        value, gradient = _value_and_gradients(case.model, single, case.tokens)
        np.testing.assert_allclose(values[seed], value, rtol=1e-5)
        jax.tree.map(
            lambda many, g, seed=seed: np.testing.assert_allclose(
                many[seed], g, rtol=1e-3, atol=1e-5
            ),
            gradients,
            gradient,
        )


def test_c70_one_trace_serves_all_calls(case):
    traces = []

    @jax.jit
    def apply(params, tokens):
        traces.append(1)
        return case.model.apply({"params": params}, tokens)

    apply(case.params, case.tokens)
    apply(jax.tree.map(lambda leaf: leaf + 1, case.params), case.tokens * 0)
    assert len(traces) == 1


def test_bfloat16_is_near_and_leaves_float32_logits(case):
    model = case.model.clone(dtype=jnp.bfloat16)
    logits = model.apply({"params": case.params}, case.tokens)
    assert logits.dtype == jnp.float32
    rounded = logits.astype(jnp.bfloat16).astype(jnp.float32)
    assert (rounded != logits).mean() > 0.5  # sums of the output layer are float32
    exact = case.logits()
    assert jnp.abs(logits - exact).max() < 0.1 * jnp.abs(exact).max()
    params = jax.eval_shape(model.init, jax.random.key(0), case.tokens)["params"]
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {"float32"}


def test_c58_evaluation_equals_a_model_without_dropout(case):
    dropping = case.model.clone(dropout_rate=0.5)
    np.testing.assert_array_equal(_apply(dropping, case.params, case.tokens), case.logits())
    draws = [
        dropping.apply(
            {"params": case.params}, case.tokens, train=True, rngs={"dropout": jax.random.key(s)}
        )
        for s in (0, 0, 1)
    ]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.allclose(draws[0], draws[2])


def test_c51_longer_than_max_length_is_refused(case):
    with pytest.raises(ValueError, match="length 9 is beyond max_length 8"):
        case.model.apply({"params": case.params}, jnp.zeros((1, 9), jnp.int32))
