"""Laws that every architecture keeps, whatever its inputs are; and what each promises beyond them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import FrozenDict
from flax.traverse_util import flatten_dict, unflatten_dict

from tests.conftest import random_params
from transformer_jax.generation import generate_after
from transformer_jax.models import MODELS, Decoder, Encoder, EncoderDecoder, VisionTransformer
from transformer_jax.models.recurrent import RecurrentDecoder, RecurrentEncoder
from transformer_jax.models.vision import patches_of, variant_fields
from transformer_jax.positions import Sizes, sinusoidal_positions
from transformer_jax.training.objectives import cross_entropy, sums_of, total
from transformer_jax.variants.sinusoidal_2d import Sinusoidal2DPositions

VOCAB, LENGTH = 11, 6
SMALL = {"width": 8, "depth": 1, "num_heads": 2}
TEXT = SMALL | {"vocab_size": VOCAB, "max_length": 8}
RECURRENT = {"vocab_size": VOCAB, "max_length": 8, "width": 8, "recurrent_depth": 1}
IMAGE = SMALL | {"image_shape": (8, 4, 3), "num_classes": 5}

OTHER = {"position": "t5", "wiring": "parallel", "feed_forward": "gated", "norm": "rms_norm"}
OTHER |= {"num_kv_heads": 1, "tie_output": False, "scale_logits": True}
FURTHER = {"position": "alibi", "mask": "window", "mask_options": FrozenDict({"size": 3})}
FURTHER |= {"attention": "sigmoid", "query_key_norm": "rms_norm", "wiring": "sandwich"}
OF_IMAGES = {"position": "rotary", "attention": "talking_heads", "wiring": "layer_scale"}
OF_IMAGES |= {"feed_forward": "mixture"}


def draw(*shape, seed=1, high=VOCAB):
    return jax.random.randint(jax.random.key(seed), shape, 0, high)


TOKENS = draw(3, LENGTH)
KEPT = jnp.array([[1] * 6, [1] * 4 + [0] * 2, [1] + [0] * 5])
SOURCES = {"source": TOKENS, "source_segments": KEPT, "tokens": draw(3, 5, seed=2)}
READING = {"tokens": TOKENS, "segments": KEPT}
TOO_LONG = jnp.zeros((1, 9), int)
IMAGES = {"images": jax.random.normal(jax.random.key(3), (3, 8, 4, 3))}
VECTORS = {"vectors": jax.random.normal(jax.random.key(4), (3, LENGTH, 5)), "segments": KEPT}

CASES = {
    "encoder": (Encoder.of(**TEXT, num_types=2), READING | {"types": draw(3, LENGTH, high=2)}),
    "encoder class token": (Encoder.of(**TEXT, num_classes=4), READING),
    "encoder mean": (Encoder.of(**TEXT, num_classes=4, pooling="mean", wiring="pre"), READING),
    "encoder attention": (
        Encoder.of(**TEXT, num_classes=4, pooling="attention", wiring="pre"),
        READING,
    ),
    "encoder last": (Encoder.of(**TEXT, num_classes=4, pooling="last", mask="causal"), READING),
    "encoder of vectors": (
        Encoder.of(**SMALL, num_features=5, max_length=8, num_classes=4),
        VECTORS,
    ),
    # Components serve every architecture; test_laws.py has each of them in a decoder.
    "encoder of other rows": (Encoder.of(**TEXT | FURTHER, num_classes=4), READING),
    "encoder_decoder": (EncoderDecoder.of(**TEXT | {"depth": 2}), SOURCES),
    "encoder_decoder pre": (
        EncoderDecoder.of(**TEXT, wiring="pre", share_embeddings=False, output_bias=True),
        SOURCES,
    ),
    "encoder_decoder of other rows": (EncoderDecoder.of(**TEXT | OTHER), SOURCES),
    "vision_transformer of other rows": (VisionTransformer.of(**IMAGE | OF_IMAGES), IMAGES),
    "vision_transformer": (VisionTransformer.of(**IMAGE), IMAGES),
    "vision_transformer mean": (
        VisionTransformer.of(**IMAGE, pooling="mean", position="sinusoidal_2d"),
        IMAGES,
    ),
    "vision_transformer registers": (
        VisionTransformer.of(**IMAGE, registers=2, position="sinusoidal_2d"),
        IMAGES,
    ),
    "recurrent_decoder gru": (
        RecurrentDecoder(**RECURRENT | {"recurrent_depth": 2}, cell="gru"),
        READING,
    ),
    "recurrent_decoder": (RecurrentDecoder(**RECURRENT, tie_embeddings=False), READING),
    "recurrent_encoder": (
        RecurrentEncoder(**RECURRENT, num_classes=4, num_types=2),
        READING | {"types": draw(3, LENGTH, high=2)},
    ),
    "recurrent_encoder bidirectional": (
        RecurrentEncoder(**RECURRENT | {"recurrent_depth": 2}, num_classes=4, bidirectional=True),
        READING,
    ),
    "recurrent_encoder of vectors": (
        RecurrentEncoder(num_features=5, max_length=8, width=8, num_classes=4, pooling="max"),
        VECTORS,
    ),
}


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    model: Any
    inputs: dict
    params: dict

    def apply(self, inputs=None, **options):
        return _apply(self.model, self.params, self.inputs if inputs is None else inputs, **options)


_apply = jax.jit(
    lambda model, params, inputs, **options: model.apply({"params": params}, **inputs, **options),
    static_argnums=0,
)


def _init(model, key):
    """Not compiled as a whole: most of that time would go into the random numbers."""
    return model.init(key, **model.example_inputs())["params"]


# One of each architecture, of each kind of input and of each pooling.
FEW = (
    *("encoder", "encoder mean", "encoder last", "encoder of vectors", "encoder_decoder"),
    *("vision_transformer", "recurrent_decoder", "recurrent_encoder"),
    "recurrent_encoder of vectors",
)


def _grouped(names):
    further = lambda name: [] if name in FEW else [pytest.mark.thorough]
    return [pytest.param(n, marks=[pytest.mark.xdist_group(n), *further(n)]) for n in names]


@pytest.fixture(scope="module", params=_grouped(CASES))
def case(request):
    model, inputs = CASES[request.param]
    return Case(request.param, model, inputs, random_params(model))


def cases_where(is_meant):
    """Only the cases that a law is about, by name and inputs."""
    names = [name for name, (_, inputs) in CASES.items() if is_meant(name, inputs)]
    return pytest.mark.parametrize("case", _grouped(names), indirect=True)


def test_every_architecture_is_here():
    assert {name.split()[0] for name in CASES} | {"decoder"} == set(MODELS)


def test_shape_dtype_and_finite_logits(case):
    logits = case.apply()
    places = case.inputs["tokens"].shape[1:] if case.name in _BY_PLACE else ()
    classes = {"encoder": 4, "recurrent_encoder": 4, "vision_transformer": 5}
    outputs = VOCAB if case.name in _BY_PLACE else classes[case.name.split()[0]]
    assert logits.shape == (3, *places, outputs)
    assert logits.dtype == jnp.float32
    assert jnp.isfinite(logits).all()


_BY_PLACE = [name for name in CASES if "_decoder" in name] + ["encoder"]


def test_parameters_do_not_depend_on_the_inputs_they_are_drawn_for(case):
    first, second = (
        jax.eval_shape(case.model.init, jax.random.key(0), **inputs)["params"]
        for inputs in (case.inputs, case.model.example_inputs())
    )
    assert jax.tree.map(jnp.shape, first) == jax.tree.map(jnp.shape, second)


def test_every_parameter_gets_a_finite_gradient(case):
    def loss(params):
        logits = case.model.apply({"params": params}, **case.inputs)
        targets = jnp.arange(logits[..., 0].size).reshape(logits.shape[:-1]) % logits.shape[-1]
        return total(sums_of(cross_entropy, logits, targets, jnp.ones(targets.shape))).loss

    for path, gradient in jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(case.params)):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        assert jnp.isfinite(gradient).all(), name
        if not name.endswith("key/bias"):  # the same for all scores of a row: softmax ignores it
            assert jnp.abs(gradient).max() > 1e-7, name


def test_jit_vmap_over_examples_and_eager_agree(case):
    batch = case.apply()
    one = lambda inputs: case.model.apply({"params": case.params}, **inputs)
    np.testing.assert_allclose(jax.jit(jax.vmap(one))(case.inputs), batch, atol=3e-5)
    if case.name == "encoder":
        np.testing.assert_allclose(one(case.inputs), batch, atol=3e-5)


@pytest.mark.thorough
def test_vmap_over_the_parameters_of_seeds_equals_a_loop(case):
    """Initial values to the bit, outputs to rounding; test_laws.py has the gradients."""
    keys = jnp.stack([jax.random.key(seed) for seed in range(2)])
    stacked = jax.vmap(lambda key: _init(case.model, key))(keys)
    together = jax.vmap(lambda params: _apply(case.model, params, case.inputs))(stacked)
    for seed, key in enumerate(keys):
        single = _init(case.model, key)
        jax.tree.map(lambda m, s, i=seed: np.testing.assert_array_equal(m[i], s), stacked, single)
        one = _apply(case.model, single, case.inputs)
        np.testing.assert_allclose(together[seed], one, atol=1e-5)


_PADDED = {"tokens": "segments", "source": "source_segments", "vectors": "segments"}


def _padded(inputs):
    return [name for name, segments in _PADDED.items() if name in inputs and segments in inputs]


@cases_where(lambda name, inputs: _padded(inputs))
def test_c57_padding_changes_nothing_whatever_it_holds(case):
    """Rows 1 and 2 hold padding; other values there leave what is not padding as it was."""
    base = case.apply()
    for name in _padded(case.inputs):
        hidden = case.inputs[_PADDED[name]] == 0
        array = case.inputs[name]
        hidden = hidden[..., None] if array.ndim == 3 else hidden
        changed = case.apply(case.inputs | {name: jnp.where(hidden, 5, array)})
        kept = np.asarray(KEPT[:, : base.shape[1]] > 0) if case.name in _BY_PLACE else slice(None)
        kept = slice(None) if name == "source" else kept
        np.testing.assert_array_equal(np.asarray(changed)[kept], np.asarray(base)[kept])
        assert jnp.isfinite(changed).all()


@cases_where(lambda name, inputs: "segments" in inputs)
def test_padding_equals_a_shorter_input(case):
    short = {name: array[1:2, :4] for name, array in case.inputs.items()}
    alone, base = case.apply(short)[0], case.apply()[1]
    base = base[:4] if case.name in _BY_PLACE else base
    np.testing.assert_allclose(base, alone, atol=3e-5)


@cases_where(lambda name, inputs: "source" in inputs)
def test_padding_of_a_source_equals_a_shorter_source(case):
    short = case.inputs | {n: case.inputs[n][:, :4] for n in ("source", "source_segments")}
    np.testing.assert_allclose(case.apply(short)[1], case.apply()[1], atol=3e-5)


def test_logits_of_a_part_are_a_part_of_the_logits(case):
    """The objective's input: hidden vectors, and `project` of any of them."""

    @jax.jit
    def logits_of_a_part(params):
        hidden = case.model.apply({"params": params}, **case.inputs, return_hidden=True)
        return case.model.apply({"params": params}, hidden[1:], method="project")

    np.testing.assert_allclose(logits_of_a_part(case.params), case.apply()[1:], atol=3e-5)


@cases_where(lambda name, inputs: "decoder" in name)
def test_c49_no_target_sees_what_comes_after_it(case):
    base = case.apply()
    length = case.inputs["tokens"].shape[1]
    for place in range(1, length):
        tokens = case.inputs["tokens"].at[:, place].add(1) % VOCAB
        changed = case.apply(case.inputs | {"tokens": tokens})
        np.testing.assert_array_equal(changed[:, :place], base[:, :place])
        assert not np.array_equal(changed[0, place:], base[0, place:])


def test_bfloat16_is_near_and_leaves_float32_logits_and_parameters(case):
    model = case.model.with_options(dtype=jnp.bfloat16)
    logits = _apply(model, case.params, case.inputs)
    assert logits.dtype == jnp.float32
    exact = case.apply()
    assert jnp.abs(logits - exact).max() < 0.15 * jnp.abs(exact).max()
    params = jax.eval_shape(model.init, jax.random.key(0), **case.inputs)["params"]
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(params)} == {"float32"}


@pytest.mark.usefixtures("no_key_twice")
def test_c58_evaluation_equals_a_model_without_dropout(case):
    dropping = case.model.with_options(dropout_rate=0.5)
    traced = [
        str(jax.make_jaxpr(model.apply)({"params": case.params}, **case.inputs))
        for model in (dropping, case.model)
    ]
    if traced[0] != traced[1]:
        np.testing.assert_array_equal(_apply(dropping, case.params, case.inputs), case.apply())

    @jax.jit
    def step(key):
        variables, rngs = {"params": case.params}, {"dropout": key}
        return dropping.apply(variables, **case.inputs, train=True, rngs=rngs)

    draws = [step(jax.random.key(seed, impl="rbg")) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.allclose(draws[0], draws[2])


def test_teacher_forcing_equals_feeding_the_target_one_token_at_a_time():
    """All places at once under the causal mask: the logits of the token-wise loop."""
    model, inputs = CASES["encoder_decoder"]
    params, tokens = random_params(model), inputs["tokens"]
    parallel = _apply(model, params, inputs)
    for place in (0, 2, 4):
        last = _apply(model, params, inputs | {"tokens": tokens[:, : place + 1]})[:, -1]
        np.testing.assert_allclose(last, parallel[:, place], atol=3e-5)


def test_greedy_writing_takes_the_likeliest_token_each_time():
    model, inputs = CASES["encoder_decoder"]
    params = random_params(model)
    reading = {key: inputs[key] for key in ("source", "source_segments")}
    written = generate_after(model, params, reading, np.int32(3), num_tokens=8)
    assert written.shape == (3, 8)
    seen = jnp.concatenate([jnp.full((3, 1), 3), written[:, :-1]], axis=1)
    logits = _apply(model, params, reading | {"tokens": seen})
    np.testing.assert_array_equal(written, logits.argmax(-1))


def test_places_that_are_not_written_yet_are_not_read():
    """A decoder that looks ahead has only the text so far."""
    model = EncoderDecoder.of(**TEXT, mask="unmasked")
    flat = flatten_dict(random_params(model, scale=0.6))
    # Biases would make one token the likeliest everywhere.
    sizes = {"bias": 0.0, "scale": 1.0}
    params = unflatten_dict(
        {k: jnp.full_like(v, sizes[k[-1]]) if k[-1] in sizes else v for k, v in flat.items()}
    )
    source, written = draw(3, 4, seed=5), np.full((3, 1), 3)
    for _ in range(3):
        logits = _apply(model, params, {"source": source, "tokens": jnp.asarray(written)})
        written = np.concatenate([written, logits[:, -1:].argmax(-1)], axis=1)
    assert len(np.unique(written[:, 1:])) > 1
    at_once = generate_after(model, params, {"source": source}, np.int32(3), num_tokens=3)
    np.testing.assert_array_equal(at_once, written[:, 1:])


def test_an_output_layer_of_its_own_and_divided_logits():
    model, inputs = CASES["encoder_decoder of other rows"]
    params = random_params(model)
    assert "output" in params
    assert "target_embedding" not in params
    plain = _apply(model.with_options(scale_logits=False), params, inputs)
    divided = _apply(model, params, inputs)
    np.testing.assert_allclose(divided * SMALL["width"] ** 0.5, plain, rtol=1e-4, atol=1e-5)
    hidden = np.ones((2, SMALL["width"]), np.float32)
    model.apply({"params": params}, hidden, method="project")
    assert (hidden == 1).all(), "the caller's array is not written to"


def test_an_encoder_of_vectors_with_a_class_token_takes_types():
    model = Encoder.of(**SMALL, num_features=5, num_types=2, max_length=8, num_classes=4)
    params, types = random_params(model), jnp.array([[0, 1, 1], [1, 0, 1]])
    vectors = jnp.ones((2, 3, 5))
    both = _apply(model, params, {"vectors": vectors, "types": types})
    none = _apply(model, params, {"vectors": vectors, "types": 0 * types})
    assert both.shape == (2, 4)
    assert not np.allclose(both, none)
    np.testing.assert_array_equal(none, _apply(model, params, {"vectors": vectors}))
    with pytest.raises(ValueError, match="types: expected"):
        _apply(model, params, {"vectors": vectors, "types": types[:, :2]})


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_float64_are_float64(tied):
    model = Decoder.of(**TEXT, tie_embeddings=tied)
    params = random_params(model)
    narrow = _apply(model, params, {"tokens": TOKENS})
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: a.astype(jnp.float64), params)
        logits = _apply(model, wide, {"tokens": TOKENS})
    assert (logits.dtype, narrow.dtype) == (jnp.float64, jnp.float32)
    np.testing.assert_allclose(logits, narrow, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("position", "is_equal"), [("none", True), ("learned", False)])
def test_an_encoder_without_positions_is_equivariant(position, is_equal):
    """Swapping tokens swaps outputs and changes nothing else; with positions it does change."""
    model = Encoder.of(**TEXT, num_classes=0, position=position)
    order, params = jnp.array([3, 0, 5, 1, 4, 2]), random_params(model)
    hidden = _apply(model, params, {"tokens": TOKENS})
    swapped = _apply(model, params, {"tokens": TOKENS[:, order]})
    assert np.allclose(swapped, hidden[:, order], atol=1e-5) == is_equal


@pytest.mark.parametrize("name", ["encoder", "recurrent_decoder", "recurrent_decoder gru"])
def test_c55_packed_texts_equal_separate_ones(name):
    model, _ = CASES[name]
    params, parts = random_params(model), [TOKENS[0, :4], TOKENS[1, :2]]
    packing = {
        "tokens": jnp.concatenate(parts),
        "segments": jnp.array([1, 1, 1, 1, 2, 2]),
        "positions": jnp.array([0, 1, 2, 3, 0, 1]),
    }
    alone = jnp.concatenate([_apply(model, params, {"tokens": part}) for part in parts])
    np.testing.assert_allclose(_apply(model, params, packing), alone, atol=3e-5)


def test_packed_pairs_equal_separate_ones():
    model = EncoderDecoder.of(**TEXT, position="none")
    params, lengths = random_params(model), [(4, 2), (2, 3)]
    pairs = [(TOKENS[i, :m], SOURCES["tokens"][i, :n]) for i, (m, n) in enumerate(lengths)]
    packing = {
        "source": jnp.concatenate([source for source, _ in pairs]),
        "source_segments": jnp.array([1, 1, 1, 1, 2, 2]),
        "tokens": jnp.concatenate([target for _, target in pairs]),
        "segments": jnp.array([1, 1, 2, 2, 2]),
    }
    alone = [_apply(model, params, {"source": one, "tokens": other}) for one, other in pairs]
    packed = _apply(model, params, packing)
    np.testing.assert_allclose(packed, jnp.concatenate(alone), atol=3e-5)


def test_patches_written_out():
    image = jnp.arange(16).reshape(4, 4, 1)
    expected = [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert patches_of(image, 2).tolist() == expected
    colours = jnp.arange(2 * 2 * 3).reshape(2, 2, 3)
    assert patches_of(colours, 2).tolist() == [list(range(12))]  # row, column, channel


def test_positions_in_two_dimensions_mark_rows_and_columns():
    encoding = Sinusoidal2DPositions(rms=0.5**0.5)
    sizes = Sizes(width=8, grid=(2, 3), max_length=7)
    table = np.asarray(encoding.apply({}, jnp.arange(7), sizes).embedding)
    np.testing.assert_array_equal(table[0], 0)  # the class token stands nowhere
    lines = np.asarray(sinusoidal_positions(3, 4))
    for patch, (row, column) in enumerate(np.ndindex(2, 3), 1):
        np.testing.assert_allclose(table[patch], [*lines[row], *lines[column]], atol=1e-6)
    assert np.sqrt((table[1:] ** 2).mean()) == pytest.approx(0.5**0.5, rel=1e-5)


@pytest.mark.parametrize(
    ("variant", "millions"), [("Ti/16", 5.7), ("S/16", 22.1), ("B/16", 86.6), ("L/16", 304.3)]
)
def test_variants_are_the_published_sizes(variant, millions):
    """Million parameters: timm's and the papers' figures at 224 / 16."""
    model = VisionTransformer.of(variant=variant, image_shape=(224, 224, 3), num_classes=1000)
    shapes = jax.eval_shape(model.init, jax.random.key(0), **model.example_inputs())
    count = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert count / 1e6 == pytest.approx(millions, abs=0.06)


def test_variants_are_read_by_size_and_patch():
    assert variant_fields("Ti/4")["patch_size"] == 4
    with pytest.raises(ValueError, match="expected SIZE/PATCH with SIZE in Ti, S, B, L, H"):
        variant_fields("M/4")


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (Encoder.of(**TEXT), {"tokens": TOO_LONG}, "length 9 is beyond max"),
        (Encoder.of(**TEXT), {}, "tokens: expected .* got None"),
        (Encoder.of(**TEXT, pooling="median"), {"tokens": TOKENS}, "pooling: expected one of"),
        (
            CASES["encoder of vectors"][0],
            {"vectors": jnp.zeros((1, 3, 4))},
            r"vectors: expected \[..., L, F=5\]",
        ),
        (
            EncoderDecoder.of(**TEXT),
            {"source": TOO_LONG, "tokens": TOKENS},
            "length 9 is beyond max_length 8",
        ),
        (VisionTransformer.of(**IMAGE), {"images": jnp.zeros((1, 8, 8, 3))}, "images: expected"),
        (
            VisionTransformer.of(**IMAGE, patch_size=3),
            IMAGES,
            "multiples of 3, got 8 x 4",
        ),
        (RecurrentDecoder(**RECURRENT, cell="lst"), {"tokens": TOKENS}, "cell: expected"),
    ],
)
def test_wrong_inputs_are_refused_by_name(model, inputs, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(model.init, jax.random.key(0), **inputs)
