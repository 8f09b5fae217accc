"""Inspection shows what the model computed, checked by calculus."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conftest import TINY, attempt, random_params, refused
from transformer_jax.errors import InvalidInput
from transformer_jax.inspection import (
    are_distributions,
    attention_entropy,
    attention_maps,
    gradient_norms,
    head_similarity,
    hidden_vectors,
    mean_entropy,
)
from transformer_jax.models import Decoder, Encoder, EncoderDecoder
from transformer_jax.models.recurrent import RecurrentDecoder
from transformer_jax.training import hooks

TOKENS = jax.random.randint(jax.random.key(0), (3, 6), 0, 11)
SMALL = {"vocab_size": 11, "max_length": 6, "width": 8, "depth": 2, "num_heads": 2}


drawn = functools.partial(random_params, scale=1.0)


@pytest.fixture(scope="module")
def decoder():
    model = Decoder.of(**SMALL)
    return model, drawn(model)


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_maps_are_the_weights_of_each_layer(attention):
    model = Decoder.of(**SMALL, attention=attention)
    maps = attention_maps(model, drawn(model), {"tokens": TOKENS})
    assert list(maps) == ["block_0/attention", "block_1/attention"]
    for weights in maps.values():
        assert weights.shape == (3, 2, 6, 6)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
        assert (jnp.triu(weights, 1) == 0).all()


def test_maps_of_other_models():
    both = EncoderDecoder.of(**SMALL)
    inputs = {"source": TOKENS, "tokens": TOKENS[:, :4]}
    params = drawn(both)
    sides = attention_maps(both, params, inputs)
    assert sides["decoder/block_1/cross_attention"].shape == (3, 2, 4, 6)
    with pytest.raises(InvalidInput, match="not a single stack"):
        hidden_vectors(both, params, inputs)
    recurrent = RecurrentDecoder(vocab_size=11, max_length=6, width=8)
    with pytest.raises(InvalidInput, match="has no attention weights"):
        attention_maps(recurrent, drawn(recurrent), {"tokens": TOKENS})


WINDOW = {"mask": "window", "mask_options": {"size": 2}}


@pytest.mark.parametrize(
    ("changes", "length", "options"),
    [
        ({"attention": "local"}, 11, WINDOW),
        ({"attention": "fused"}, 128, {}),
        ({"attention": "chunked", "attention_options": {"size": 2}}, 11, {}),
    ],
    ids=["local", "fused", "chunked"],
)
def test_maps_are_whole_where_a_variant_mixes_values_itself(changes, length, options):
    """Local attention has no weights of its blocks, fused attention none of its kernels."""
    given = {"tokens": jnp.arange(length)[None] % 11}
    plain = Decoder.of(**SMALL | {"max_length": 128}, num_kv_heads=1, **options)
    params = drawn(plain)
    ours = attention_maps(plain.with_options(**changes), params, given)
    for name, expected in attention_maps(plain, params, given).items():
        np.testing.assert_allclose(ours[name], expected, atol=1e-5)


def test_maps_of_differential_attention_are_differences():
    """Their rows sum to 1 - lambda, one number of the layer, and not to 1."""
    model = Decoder.of(**SMALL, attention="diff_transformer")
    for weights in attention_maps(model, drawn(model), {"tokens": TOKENS}).values():
        assert weights.shape == (3, 2, 6, 6)
        sums = weights.sum(-1)
        np.testing.assert_allclose(sums, sums[0, 0, 0], atol=1e-5)
        assert abs(sums[0, 0, 0] - 1) > 0.01


def test_similarity_of_heads_is_one_minus_total_variation():
    same, other = [[1.0, 0, 0], [0.5, 0.5, 0]], [[0.0, 1, 0], [0.5, 0, 0.5]]
    weights = jnp.array([same, same, other])
    expected = np.array([[1, 1, 0.25], [1, 1, 0.25], [0.25, 0.25, 1]])
    np.testing.assert_allclose(head_similarity(weights), expected, atol=1e-6)
    with_empty_row = jnp.concatenate([weights, jnp.zeros((3, 1, 3))], axis=1)
    np.testing.assert_allclose(head_similarity(with_empty_row), expected, atol=1e-6)
    entropy = attention_entropy(jnp.array([[1.0, 0, 0], [1 / 3, 1 / 3, 1 / 3]]))
    np.testing.assert_allclose(entropy, [0, np.log(3)], atol=1e-6)
    means = np.array([np.log(2), np.log(2), np.log(2)]) / 2
    np.testing.assert_allclose(mean_entropy(weights), means, atol=1e-6)
    np.testing.assert_allclose(mean_entropy(with_empty_row[None]), means, atol=1e-6)


def test_weights_of_a_sigmoid_or_a_difference_are_no_distributions():
    rows = jnp.array([[[0.25, 0.75], [0.0, 0.0]]])
    assert are_distributions(rows)
    assert are_distributions(rows.astype(jnp.bfloat16))
    assert not are_distributions(3 * rows)
    assert not are_distributions(jnp.array([[[1.5, -0.5]]]))
    assert np.isfinite(hooks._entropy(rows))
    assert np.isnan(hooks._entropy(3 * rows)), "a hook writes nothing of such a layer"
    opposite = jnp.array([[[0.4, -0.6]], [[-0.6, 0.4]]])
    assert head_similarity(opposite)[0, 1] == pytest.approx(0)


@pytest.mark.thorough
def test_inspect_names_what_stands_around_a_pair_and_gives_a_sigmoid_no_entropy(tmp_path):
    rows = "".join(f"red {n}\tred cat {n}\t{n % 2}\n" for n in range(60))
    (tmp_path / "pairs.tsv").write_text(f"text\ttext_pair\tlabel\n{rows}")
    options = {
        **{"data.task": "text_classification", "data.source": tmp_path / "pairs.tsv"},
        **{"data.splits": "(0.8,0.1,0.1)", "data.length": 24, "training.steps": 2},
        **{"model.architecture": "encoder", "model.attention": "sigmoid", "model.depth": 1},
        **{"schedule.name": "constant", "model.attention_dropout_rate": 0},
    }
    said = [f"--config.{key}={value}" for key, value in options.items()]
    done = attempt("train", f"--config={TINY}", f"--workdir={tmp_path / 'a'}", *said)
    assert done.returncode in (0, None), done.stderr
    out = ("--prompt=red 1\tcat", f"--out={tmp_path / 'a.png'}")
    done = attempt("inspect_run", f"--workdir={tmp_path / 'a'}", *out)
    assert done.returncode in (0, None), done.stderr
    assert "block_0/attention: no entropy: its weights are not a distribution" in done.stdout
    with np.load(tmp_path / "a.npz") as arrays:
        around = [word for word in arrays["words"].tolist() if len(word) > 1]
        assert around == ["[begin]", "[end]", "[end]"]
        assert "block_0/attention/entropy" not in arrays


def test_hidden_vectors_are_the_residual_stream(decoder):
    model, params = decoder
    hidden = hidden_vectors(model, params, {"tokens": TOKENS})
    assert hidden.shape == (3, 3, 6, 8)
    table = params["token_embedding"]["embedding"]
    first = table[TOKENS] + params["positions"]["embedding"][:6]
    np.testing.assert_allclose(hidden[0], first, atol=1e-6)
    shallow = Decoder.of(**SMALL | {"depth": 1})
    part = {name: leaf for name, leaf in params.items() if name != "block_1"}
    after_one = hidden_vectors(shallow, part, {"tokens": TOKENS})[1]
    np.testing.assert_allclose(after_one, hidden[1], atol=1e-6)


def test_a_word_is_the_same_before_the_blocks_and_contextual_after():
    model = Encoder.of(**SMALL, num_classes=0, position="none", embedding_norm=False, wiring="pre")
    sentences = jnp.array([[1, 5, 2, 3], [4, 4, 5, 6], [5, 7, 8, 9]])
    places = jnp.array([1, 2, 0])
    params = drawn(model)
    hidden = hidden_vectors(model, params, {"tokens": sentences})
    of_word = jnp.take_along_axis(hidden, places[None, :, None, None], axis=2)[:, :, 0]
    by_layer = optax.losses.cosine_similarity(of_word[:, :, None], of_word[:, None])
    assert by_layer.shape == (3, 3, 3)
    np.testing.assert_allclose(by_layer[0], 1, atol=1e-6)
    assert by_layer[2].min() < 0.99
    np.testing.assert_allclose(np.diagonal(by_layer[2]), 1, atol=1e-6)


def test_gradient_norms_name_the_parts_in_order(decoder):
    model, params = decoder
    norms = gradient_norms(params)
    assert list(norms) == ["positions", "token_embedding", "block_0", "block_1", "final_norm"]
    total = np.sqrt(sum(float(norm) ** 2 for norm in norms.values()))
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    assert total == pytest.approx(np.linalg.norm(flat), rel=1e-5)


def test_inspect_draws_a_prompt(tiny_run, tmp_path):
    out = tmp_path / "attention.png"
    prompt = (f"--workdir={tiny_run}", "--prompt=ROMEO: what", f"--out={out}")
    result = attempt("inspect_run", *prompt, "--sites=logits,block_*.residual")
    assert result.returncode == 0, result.stderr
    assert out.read_bytes()[:4] == b"\x89PNG"
    with np.load(tmp_path / "attention.npz") as arrays:
        assert arrays["words"].tolist() == list("ROMEO: what")
        assert arrays["block_1/attention/weights"].shape[1:] == (11, 11)
        assert arrays["block_1.residual"].shape == (11, 32)
        assert len(arrays["logits"]) == 11
        similarity = arrays["block_0/attention/head_similarity"]
        np.testing.assert_allclose(np.diagonal(similarity), 1, atol=1e-6)
    there = prompt[0]
    refused(attempt("inspect_run", there, "--prompt=a", "--out=x.txt"), "--out=x.txt", ".png")
    refused(attempt("inspect_run", *prompt, "--sites=logit"), "logit: ", "nearest is logits")
    long = f"--prompt={'a' * 40}"
    refused(attempt("inspect_run", there, long, f"--out={out}"), "40 tokens", "16")


@pytest.mark.thorough
def test_inspect_shows_sites_where_there_is_no_attention(tmp_path):
    options = ["--config.model.position=none", "--config.model.mixer=state_space"]
    options += ["--config.training.steps=2", "--config.schedule.name=constant"]
    options += ["--config.sample.num_tokens=0", "--config.model.dtype=bfloat16"]
    unseen, out = f"--workdir={tmp_path / 'unseen'}", f"--out={tmp_path / 'sites.png'}"
    assert attempt("train", f"--config={TINY}", unseen, *options).returncode == 0
    result = attempt("inspect_run", unseen, "--prompt=ROMEO", out, "--sites=*.mixer.out")
    assert result.returncode == 0, result.stderr
    with np.load(tmp_path / "sites.npz") as arrays:
        assert arrays["block_1.mixer.out"].shape == (5, 32)
        assert arrays["block_1.mixer.out"].dtype == np.float32
    refused(attempt("inspect_run", unseen, "--prompt=ROMEO"), "has no attention weights")
