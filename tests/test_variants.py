"""Variants of today's ablations against loops in float64; the laws have each in a whole decoder."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conftest import random_params, tiny_config
from tests.test_components import double, rule_mask, softmax
from transformer_jax.attention import AttentionCall
from transformer_jax.blocks import Carry, Context
from transformer_jax.inspection import capture
from transformer_jax.laws import small_decoder
from transformer_jax.masks import Causal
from transformer_jax.models import VisionTransformer
from transformer_jax.models.layouts import stack_blocks, unstack_blocks
from transformer_jax.paths import by_path
from transformer_jax.positions import RotaryPositions, Sizes
from transformer_jax.training.objectives import CrossEntropy, score_batch
from transformer_jax.training.prepared import prepare
from transformer_jax.training.step import draw_state, make_train_step
from transformer_jax.training.unit_vectors import on_sphere
from transformer_jax.variants.attention_pooling import AttentionPooling
from transformer_jax.variants.convolutions import CanonConvolution, Smear
from transformer_jax.variants.delta_net import DeltaNet
from transformer_jax.variants.delta_rule import delta_rule
from transformer_jax.variants.experts import MixtureOfExperts
from transformer_jax.variants.forgetting import ForgettingAttention
from transformer_jax.variants.head_outputs import ExclusiveHeads, GatedHeads
from transformer_jax.variants.hyper_connections import doubly_stochastic
from transformer_jax.variants.latent_attention import LatentAttention
from transformer_jax.variants.values import ValueEmbeddings, ValueResidual
from transformer_jax.variants.yarn import YarnPositions

TOKENS = jnp.array([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
SIZES = Sizes(width=8, num_heads=2, head_dim=6, value_dim=3, scale=6**-0.5, vocab_size=11)
close = np.testing.assert_allclose


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rms(x, scale=1.0):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def test_value_residual_mixes_in_the_values_of_the_first_block(rng):
    first, second, third = (normal(rng, 2, 2, 6, 3) for _ in range(3))
    carry, gains = Carry(), {"params": {"gain": jnp.array([0.3, 0.9])}}
    call = AttentionCall(first, context=Context(carry=carry))
    mixed = [ValueResidual().apply(gains, value, call) for value in (first, second, third)]
    for value, found in zip((first, second, third), mixed, strict=True):
        close(found, 0.3 * double(first) + 0.9 * double(value), atol=1e-6)


def test_value_embeddings_add_a_gated_row_of_the_token(rng):
    value, inputs = normal(rng, 2, 2, 6, 3), normal(rng, 2, 6, 8)
    module = ValueEmbeddings(gate_features=5)
    call = AttentionCall(inputs, context=Context(tokens=TOKENS, sizes=SIZES))
    params = random_params(module, value, call)
    table, gate = params["table"]["embedding"], double(params["gate"]["kernel"])
    expected = double(value)
    for b, head, place in np.ndindex(2, 2, 6):
        row = double(table[TOKENS[b, place]])[3 * head : 3 * head + 3]
        share = 2 * sigmoid(double(inputs[b, place, :5]) @ gate[:, head])
        expected[b, head, place] += share * row
    close(module.apply({"params": params}, value, call), expected, atol=1e-6)
    untold = AttentionCall(inputs, context=Context(sizes=SIZES))
    with pytest.raises(ValueError, match="need tokens"):
        module.apply({"params": params}, value, untold)


@pytest.mark.parametrize("gates", ["feature", "head"])
def test_gated_heads(gates, rng):
    mixed, inputs = normal(rng, 2, 2, 6, 3), normal(rng, 2, 6, 8)
    module = GatedHeads(gates)
    call = AttentionCall(inputs)
    params = random_params(module, mixed, mixed, call)
    kernel = double(params["gate"]["kernel"]).reshape(8, 2, -1)
    gate = sigmoid(np.einsum("bld,dhv->bhlv", double(inputs), kernel))
    close(module.apply({"params": params}, mixed, mixed, call), double(mixed) * gate, atol=1e-6)


def test_exclusive_heads_are_orthogonal_to_their_own_value(rng):
    mixed, value = normal(rng, 2, 4, 6, 3), normal(rng, 2, 2, 6, 3)
    found = ExclusiveHeads().apply({}, mixed, value, AttentionCall(mixed))
    own = double(value).repeat(2, axis=1)
    along = (double(mixed) * own).sum(-1, keepdims=True) / (own**2).sum(-1, keepdims=True)
    close(found, double(mixed) - along * own, atol=1e-5)
    close((double(found) * own).sum(-1), 0, atol=1e-5)


READS = {
    "values of the first block": {"values": "residual"},
    "keys and values of the previous block": {
        **{"layers": "GS", "mixer": "shared_attention", "num_kv_heads": 1},
        "layer_types": {"S": {"mixer_options": {"keys": "earlier"}}},
    },
    "remat": {"values": "residual", "remat": "block"},
    "several streams": {"wiring": "hyper_connections", "wiring_options": {"streams": 2}},
}


@pytest.mark.parametrize("name", READS)
def test_blocks_in_a_scan_read_what_blocks_in_a_list_read(name):
    """Logits and gradients; the first unit of a scan is the first block too."""
    model = small_decoder(depth=4, position="rotary", **READS[name])
    params = random_params(model)

    def losses(model, params):
        options = {"train": True, "rngs": {"dropout": jax.random.key(0)}}
        return jnp.square(model.apply({"params": params}, TOKENS, **options)).mean()

    both = jax.jit(jax.value_and_grad(losses, argnums=1), static_argnums=0)
    loss, gradients = both(model, params)
    scanned = model.with_options(scan_layers=True)
    unit = model.options.unit
    in_scan, of_stacks = both(scanned, stack_blocks(params, unit))
    close(in_scan, loss, rtol=1e-5)
    stacked = stack_blocks(gradients, unit)
    jax.tree.map(lambda a, b: close(a, b, rtol=1e-3, atol=1e-6), of_stacks, stacked)


def test_a_scan_refuses_what_reads_all_blocks_by_name():
    model = small_decoder(depth=4, wiring="attention_residuals")
    params = stack_blocks(random_params(model), 1)
    with pytest.raises(ValueError, match="scan_layers: wiring=attention_residuals reads"):
        model.with_options(scan_layers=True).apply({"params": params}, TOKENS)


def test_blocks_that_share_keys_and_values_have_none_of_their_own():
    """They read those of the latest block that owns some, and cache nothing."""
    fields = READS["keys and values of the previous block"]
    model = small_decoder(depth=4, **fields)
    params = random_params(model)
    assert {"query", "out"} == set(params["block_1"]["attention"])
    _, cache = model.apply({"params": params}, TOKENS, mutable=["cache"])
    blocks = {part for path in by_path(cache) for part in path.split("/") if "block_" in part}
    assert blocks == {"block_0", "block_2"}
    seen = capture(model, params, {"tokens": TOKENS}, "block_*.attention.key")
    keys = [seen[f"block_{number}.attention.key"] for number in range(4)]
    np.testing.assert_array_equal(keys[1], keys[0])
    np.testing.assert_array_equal(keys[3], keys[2])
    assert (keys[2] != keys[0]).any()
    alone = small_decoder(depth=2, **fields | {"layers": "SG"})
    with pytest.raises(ValueError, match="no earlier block has keys and values of its own"):
        alone.init(jax.random.key(0), TOKENS)


def test_attention_residuals_read_weighted_means_of_all_outputs():
    model = small_decoder(depth=2, wiring="attention_residuals", norm="rms_norm", use_bias=False)
    params = random_params(model)
    seen = {k: double(v) for k, v in capture(model, params, {"tokens": TOKENS}, "*").items()}
    outputs = [seen["embedded"]]

    def mean(read):
        query, scale = double(read["query"]), double(read["norm"]["scale"])
        logits = np.stack([rms(output, scale) @ query for output in outputs])
        weights = np.exp(logits) / np.exp(logits).sum(0)
        return sum(w[..., None] * output for w, output in zip(weights, outputs, strict=True))

    for number in range(2):
        block = params[f"block_{number}"]
        for branch in ("attention", "feed_forward"):
            read = mean(block[f"{branch}_mean"])
            expected = rms(read, double(block[f"{branch}_norm"]["scale"]))
            close(seen[f"block_{number}.{branch}.input"], expected, atol=1e-5)
            outputs.append(seen[f"block_{number}.{branch}.out"])
    last = rms(mean(params["read_out"]), double(params["final_norm"]["scale"]))
    close(seen["hidden"], last, atol=1e-5)


@pytest.mark.parametrize("name", ["hyper_connections", "manifold_hyper_connections"])
def test_hyper_connections_equal_a_loop_in_float64(name):
    """Each branch, from the streams before it: what it reads, keeps and writes."""
    fields = {"wiring": name, "wiring_options": {"streams": 3}, "norm": "rms_norm"}
    model = small_decoder(depth=2, use_bias=False, **fields)
    params = random_params(model)
    seen = {k: double(v) for k, v in capture(model, params, {"tokens": TOKENS}, "*").items()}
    streams = np.repeat(seen["embedded"][:, None], 3, axis=1)  # [B, n, L, D]
    for number in range(2):
        block = params[f"block_{number}"]
        for branch in ("attention", "feed_forward"):
            gates = {k: double(v) for k, v in block[f"{branch}_streams"].items()}
            scale = double(block[f"{branch}_norm"]["scale"])
            out = seen[f"block_{number}.{branch}.out"]
            new = np.zeros_like(streams)
            for b, place in np.ndindex(2, 6):
                here = streams[b, :, place]
                read, kept, written = of_streams(name, here, gates)
                given = seen[f"block_{number}.{branch}.input"][b, place]
                close(rms(read @ here, scale), given, atol=1e-4)
                new[b, :, place] = kept.T @ here + np.outer(written, out[b, place])
            streams = new
        close(seen[f"block_{number}.residual"], streams, atol=1e-4)
    expected = rms(streams.sum(1), double(params["final_norm"]["scale"]))
    close(seen["hidden"], expected, atol=1e-4)


def of_streams(name, streams, gates):
    """Shares of the streams [n, D] of a position: read [n], kept [n, n] and written [n]."""
    read, kept, written = gates["read"], gates["kept"], gates["written"]
    if name == "hyper_connections":
        of_read, of_written = gates["scale"]  # one for A_m and A_r
        of_kept = of_read
        moved = np.tanh(rms(streams) @ gates["gate_kernel"])
        kept = kept + of_kept * moved[:, 2:]
        return read + of_read * moved[:, 0], kept, written + of_written * moved[:, 1]
    of_read, of_kept, of_written = gates["scale"]
    moved = rms(streams.reshape(-1)) @ gates["gate_kernel"]
    matrix = np.exp(kept + of_kept * moved[6:].reshape(3, 3))
    for _ in range(20):
        matrix = matrix / matrix.sum(0, keepdims=True)
        matrix = matrix / matrix.sum(1, keepdims=True)
    written = 2 * sigmoid(written + of_written * moved[3:6])
    return sigmoid(read + of_read * moved[:3]), matrix, written


def test_sinkhorn_gives_doubly_stochastic_matrices(rng):
    matrix = double(doubly_stochastic(normal(rng, 2, 4, 4, 5)))
    close(matrix.sum(-2), 1, atol=1e-6)
    close(matrix.sum(-3), 1, atol=1e-3)
    assert (matrix > 0).all()


def test_hyper_connections_begin_as_a_pre_norm_model():
    """With equal streams, and branches that read one of them and write to all (section 2.3)."""
    models = small_decoder(depth=2), small_decoder(depth=2, wiring="hyper_connections")
    read = []
    for model in models:
        params = model.init(jax.random.key(0), TOKENS)["params"]
        read.append(capture(model, params, {"tokens": TOKENS}, "*.residual")["block_1.residual"])
    plain, streams = read
    close(streams, jnp.broadcast_to(plain[:, None], (2, 4, 6, 16)), atol=1e-6)


def test_norms_shrink_with_the_depth():
    model = small_decoder(depth=3, wiring="depth_scaled", norm="rms_norm", use_bias=False)
    params = random_params(model)
    seen = capture(model, params, {"tokens": TOKENS}, "*")
    for number in (1, 2):
        scale = double(params[f"block_{number}"]["attention_norm"]["scale"])
        before = double(seen[f"block_{number - 1}.residual"])
        expected = rms(before, scale) / math.sqrt(number + 1)
        close(seen[f"block_{number}.attention.input"], expected, atol=1e-5)


def test_per_layer_embeddings_end_a_block():
    fields = {"wiring": "per_layer_embeddings", "wiring_options": {"features": 5}}
    model = small_decoder(norm="rms_norm", use_bias=False, **fields)
    params = random_params(model)
    seen = {k: double(v) for k, v in capture(model, params, {"tokens": TOKENS}, "*").items()}
    block = jax.tree.map(double, params["block_0"])
    before = seen["embedded"] + seen["block_0.attention.out"] + seen["block_0.feed_forward.out"]
    of_embedded = seen["embedded"] @ block["of_embedded"]["kernel"] / 4  # sqrt of the width 16
    of_embedded = rms(of_embedded, block["of_embedded_norm"]["scale"])
    added = (math.sqrt(5) * block["table"]["embedding"][TOKENS] + of_embedded) / math.sqrt(2)
    gate = before @ block["per_layer_gate"]["kernel"]
    gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    branch = (gate * added) @ block["per_layer_out"]["kernel"]
    expected = before + rms(branch, block["per_layer_norm"]["scale"])
    close(seen["block_0.residual"], expected, atol=1e-4)


@pytest.mark.parametrize("module", [CanonConvolution(3), Smear(5)], ids=["canon", "smear"])
def test_convolutions_read_the_latest_tokens_of_a_document(module, rng):
    inputs = normal(rng, 2, 6, 8)
    segment = jnp.array([[1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0]])
    context = Context(mask=rule_mask(Causal(), 6, segment=segment), sizes=SIZES)
    params = random_params(module, inputs, context)
    found = module.apply({"params": params}, inputs, context)
    x, expected = double(inputs), double(inputs)
    for b, t in np.ndindex(2, 6):
        for back in range(3):
            is_same = t >= back and len({*segment[b, t - back : t + 1].tolist()}) == 1
            if is_same and isinstance(module, CanonConvolution):
                expected[b, t] += double(params["conv_kernel"])[2 - back] * x[b, t - back]
            elif is_same and back == 1:
                gate = sigmoid(x[b, t, :5] @ double(params["gate"]["kernel"]))
                expected[b, t] += double(params["gain"]) * gate * x[b, t - 1]
    close(found, expected, atol=1e-6)


@pytest.mark.parametrize("query_rank", [None, 5])
def test_latent_attention_equals_a_loop_in_float64(query_rank, rng):
    """Two heads of 6 features, of which 2 are rotated, and shared among the keys."""
    inputs = normal(rng, 2, 6, 8)
    module = LatentAttention(use_bias=False, rank=4, query_rank=query_rank)
    terms = RotaryPositions(fraction=1 / 3).apply({}, jnp.arange(6), SIZES)
    context = Context(mask=rule_mask(Causal(), 6), terms=terms, sizes=SIZES)
    params = random_params(module, inputs, context)
    found = module.apply({"params": params}, inputs, context)
    p, x = jax.tree.map(double, params), double(inputs)
    if query_rank is None:
        query = x @ p["query"]["kernel"]
    else:
        query = rms(x @ p["query_down"]["kernel"], p["query_norm"]["scale"])
        query = query @ p["query_up"]["kernel"]
    query = query.reshape(2, 6, 2, 6)
    latent = rms(x @ p["down"]["kernel"], p["norm"]["scale"])
    key = (latent @ p["key_up"]["kernel"]).reshape(2, 6, 2, 4)
    value = (latent @ p["value_up"]["kernel"]).reshape(2, 6, 2, 3)
    angle = np.arange(6)  # with one pair of features, radians are positions

    def turn(pair, place):
        c, s = math.cos(angle[place]), math.sin(angle[place])
        return np.array([pair[0] * c - pair[1] * s, pair[1] * c + pair[0] * s])

    rotated = x @ p["rotated_key"]["kernel"]
    mixed = np.zeros((2, 6, 2, 3))
    for b, i, h in np.ndindex(2, 6, 2):
        q = query[b, i, h]
        turned = [turn(q[:2], i) @ turn(rotated[b, j], j) for j in range(i + 1)]
        scores = np.array(turned) + key[b, : i + 1, h] @ q[2:]
        mixed[b, i, h] = softmax(scores / math.sqrt(6)) @ value[b, : i + 1, h]
    close(found, mixed.reshape(2, 6, 6) @ p["out"]["kernel"], atol=1e-5)


def test_the_cache_of_latent_attention_is_compressed():
    """4 + 2 numbers for each token, instead of the 4 * (8 + 8) of keys and values."""
    rotary = {"position": "rotary", "position_options": {"fraction": 0.25}, "head_dim": 8}
    fields = {"mixer": "latent_attention", "mixer_options": {"rank": 4}, "num_heads": 4}
    model = small_decoder(width=32, **fields, **rotary)
    params = random_params(model)
    _, cache = model.apply({"params": params}, TOKENS, mutable=["cache"])
    sizes = {path: leaf.shape for path, leaf in by_path(cache).items()}
    rows = [shape for path, shape in sizes.items() if path.endswith(("keys", "values"))]
    assert sorted(rows) == [(2, 8, 2), (2, 8, 4)]
    whole = rotary | {"position_options": {"fraction": 1.0}}
    with pytest.raises(ValueError, match="expected a fraction below 1, got 8 of 8"):
        random_params(small_decoder(width=32, **fields, **whole))


def test_forgetting_attention_equals_a_loop_in_float64(rng):
    query, key = normal(rng, 2, 2, 6, 3), normal(rng, 2, 2, 6, 3)
    inputs, module = normal(rng, 2, 6, 8), ForgettingAttention()
    call = AttentionCall(inputs, rule_mask(Causal(), 6))
    params = {"gate": {"kernel": normal(rng, 8, 2), "bias": normal(rng, 2)}}
    found = module.apply({"params": params}, query, key, call, method="weights")
    kernel, bias = (double(params["gate"][name]) for name in ("kernel", "bias"))
    logs = np.log(sigmoid(double(inputs) @ kernel + bias))
    for b, h, i in np.ndindex(2, 2, 6):
        scores = [
            double(query[b, h, i]) @ double(key[b, h, j]) / math.sqrt(3)
            + logs[b, j + 1 : i + 1, h].sum()
            for j in range(i + 1)
        ]
        close(found[b, h, i], np.append(softmax(np.array(scores)), np.zeros(5 - i)), atol=2e-6)
    with pytest.raises(ValueError, match="mask: forgetting attention reads from left to right"):
        module.apply({"params": params}, query, key, AttentionCall(inputs), method="weights")


@pytest.mark.parametrize("chunk", [1, 2, 4, 64])
@pytest.mark.parametrize("features", [1, 4])
def test_the_delta_rule_in_chunks_equals_a_loop_in_float64(chunk, features, rng):
    """With a decay of each head or each feature; documents begin anew; read on in two calls."""
    query, key = normal(rng, 2, 3, 7, 4), normal(rng, 2, 3, 7, 4)
    key /= jnp.linalg.norm(key, axis=-1, keepdims=True)
    value, write = normal(rng, 2, 3, 7, 5), jax.nn.sigmoid(normal(rng, 2, 3, 7))
    log_decay = -jnp.exp(normal(rng, 2, 3, 7, features))
    starts = jnp.array([0, 0, 0, 1, 0, 1, 0], bool)
    state, expected = np.zeros((2, 3, 4, 5)), []
    for t in range(7):
        state = state * np.exp(double(log_decay[..., t, :]))[..., None] * (not starts[t])
        k, v, b = (double(array) for array in (key[..., t, :], value[..., t, :], write[..., t]))
        wrong = v - np.einsum("...k,...kv->...v", k, state)
        state = state + b[..., None, None] * k[..., None] * wrong[..., None, :]
        expected.append(np.einsum("...k,...kv->...v", double(query[..., t, :]), state))

    def read(part, state):
        rows = [array[..., part, :] for array in (query, key, value, log_decay)]
        options = {"chunk": chunk, "starts": starts[part]}
        return delta_rule(*rows, write[..., part], state, **options)

    empty = jnp.zeros((2, 3, 4, 5))
    mixed, last = read(slice(None), empty)
    close(mixed, np.stack(expected, -2), atol=1e-5)
    close(last, state, atol=1e-5)
    before, middle = read(slice(0, 3), empty)
    after, end = read(slice(3, None), middle)
    close(jnp.concatenate([before, after], -2), mixed, atol=1e-5)
    close(end, last, atol=1e-5)


READ = ("query", "key", "value", "write")  # maps of DeltaNet that have no low rank


@pytest.mark.parametrize("decay", ["head", "feature"])
def test_delta_networks_equal_a_loop_in_float64(decay, rng):
    """Two heads of values for one of keys; convolutions, lengths of 1, decays, and the gated norm."""
    module = DeltaNet(decay=decay, gate="sigmoid", key_heads=1, gate_rank=4, conv_size=2, chunk=4)
    inputs, context = normal(rng, 2, 6, 8), Context(mask=rule_mask(Causal(), 6), sizes=SIZES)
    params = random_params(module, inputs, context)
    found = module.apply({"params": params}, inputs, context)
    p, x = jax.tree.map(double, params), double(inputs)

    def mapped(name):
        read = x if decay == "head" or name in READ else x @ p[f"{name}_down"]["kernel"]
        return read @ p[name]["kernel"]

    read = {}
    for name in READ[:3]:
        flat, kernel = mapped(name), p[f"{name}_convolution"]
        before = np.concatenate([np.zeros_like(flat[:, :1]), flat[:, :-1]], axis=1)
        flat = before * kernel[0] + flat * kernel[1]
        read[name] = flat * sigmoid(flat)
    size = 1 if decay == "head" else 6
    step = mapped("decay").reshape(2, 6, 2, size) + p["offset"].reshape(2, size)
    kept = np.exp(-np.exp(p["rate"])[:, None] * np.log1p(np.exp(step)))
    write, mixed = sigmoid(mapped("write")), np.zeros((2, 6, 2, 3))
    for b, h in np.ndindex(2, 2):
        memory = np.zeros((6, 3))
        for t in range(6):
            q, k = (read[n][b, t] / np.sqrt((read[n][b, t] ** 2).sum() + 1e-6) for n in READ[:2])
            v = read["value"][b, t, 3 * h : 3 * h + 3]
            decayed = kept[b, t, h][:, None] * memory
            memory = decayed + write[b, t, h] * np.outer(k, v - k @ decayed)
            out = memory.T @ q / math.sqrt(6)
            mixed[b, t, h] = out / np.sqrt((out**2).mean() + 1e-6) * p["norm"]["scale"]
    gated = mixed.reshape(2, 6, 6) * sigmoid(mapped("gate"))
    close(found, gated @ p["out"]["kernel"], atol=2e-5)


def test_yarn_keeps_short_wavelengths_and_stretches_long_ones():
    sizes = Sizes(width=128, head_dim=64)
    encoding = YarnPositions(factor=16.0, original_length=256)
    rotation = encoding.apply({}, jnp.arange(4096), sizes).rotation
    gain = 0.1 * math.log(16) + 1
    plain = 10_000 ** (-np.arange(0, 64, 2) / 64)
    # The features with 32 and with 1 turns in 256 positions, as in the reference code.
    at = lambda turns: 64 * math.log(256 / (turns * 2 * math.pi)) / (2 * math.log(10_000))
    low, high = max(math.floor(at(32)), 0), math.ceil(at(1))
    share = np.clip((np.arange(32) - low) / (high - low), 0, 1)
    angles = np.arange(4096)[:, None] * plain * (1 - share + share / 16)
    close(rotation.cos, gain * np.cos(angles), atol=2e-3)
    close(rotation.cos[:9], gain * np.cos(angles[:9]), atol=1e-6)
    close(rotation.sin[:9], gain * np.sin(angles[:9]), atol=1e-6)
    as_before = YarnPositions().apply({}, jnp.arange(9), sizes).rotation
    close(as_before.cos, RotaryPositions().apply({}, jnp.arange(9), sizes).rotation.cos, atol=1e-6)


def test_attention_pooling_equals_a_loop_in_float64(rng):
    hidden, is_token = normal(rng, 2, 5, 8), np.array([[1, 1, 1, 0, 1], [0, 1, 1, 1, 0]], bool)
    module = AttentionPooling()
    params = random_params(module, hidden, jnp.asarray(is_token))
    found = module.apply({"params": params}, hidden, jnp.asarray(is_token))
    p, x = jax.tree.map(double, params), double(hidden)
    part = lambda at, name: at @ p["attention"][name]["kernel"] + p["attention"][name]["bias"]
    query = part(p["embedding"][0], "query")
    for b in range(2):
        seen = x[b][is_token[b]]
        weights = softmax(part(seen, "key") @ query / math.sqrt(8))
        z = part(weights @ part(seen, "value"), "out")
        normed = (z - z.mean()) / np.sqrt(z.var() + 1e-5)
        normed = normed * p["norm"]["scale"] + p["norm"]["bias"]
        up = normed @ p["feed_forward"]["up"]["kernel"] + p["feed_forward"]["up"]["bias"]
        up = up * np.array([0.5 * (1 + math.erf(u / math.sqrt(2))) for u in up])
        down = up @ p["feed_forward"]["down"]["kernel"] + p["feed_forward"]["down"]["bias"]
        close(found[b], z + down, atol=1e-5)


def test_registers_are_seen_by_patches_and_dropped():
    sizes = {"image_shape": (8, 8, 1), "patch_size": 4, "width": 16, "depth": 1, "num_heads": 2}
    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 8, 1)), jnp.float32)
    for pooling, length in (("class_token", 5), ("mean", 4)):
        fields = sizes | {"pooling": pooling, "position": "sinusoidal_2d"}
        model = VisionTransformer.of(num_classes=0, registers=3, **fields)
        params = random_params(model)
        assert params["registers"]["embedding"].shape == (3, 16)
        seen = model.apply({"params": params}, images)
        assert seen.shape == (2, length, 16)
        params["registers"]["embedding"] *= -1
        assert (jnp.abs(model.apply({"params": params}, images) - seen).max(-1) > 1e-4).all()


ROUTED = {
    **{"num_experts": 4, "num_chosen": 2, "router": "sigmoid", "balance": 0.0, "gated": True},
    **{"num_shared": 2, "shared_gate": True, "share_gain": 2.5, "bias_rate": 0.1, "mlp_dim": 5},
}


@pytest.mark.parametrize("computed", ["all", "chosen"])
def test_experts_chosen_by_biased_sigmoids_equal_a_loop_in_float64(computed, rng):
    inputs = normal(rng, 2, 6, 8)
    module = MixtureOfExperts(activation=jax.nn.silu, computed=computed, block=4, **ROUTED)
    params = random_params(module, inputs)
    state = {"bias": jnp.array([0.0, 0.3, -0.2, 0.1]), "load": jnp.array([0.1, 0.4, 0.25, 0.25])}
    found = module.apply({"params": params, "state": state}, inputs)
    p, x = jax.tree.map(double, params), double(inputs)
    bias = double(state["bias"]) + 0.1 * np.sign(0.25 - double(state["load"]))

    def expert(x, gate, up, down):
        return ((x @ gate) * sigmoid(x @ gate) * (x @ up)) @ down

    for b, t in np.ndindex(2, 6):
        here = x[b, t]
        shares = sigmoid(here @ p["router"]["kernel"])
        chosen = np.argsort(-(shares + bias), kind="stable")[:2]
        kernels = [[p[n]["kernel"][e] for n in ("gate", "up", "down")] for e in chosen]
        parts = [shares[e] * expert(here, *k) for e, k in zip(chosen, kernels, strict=True)]
        expected = 2.5 * sum(parts) / shares[chosen].sum()
        shared = expert(here, *(p["shared"][n]["kernel"] for n in ("gate", "up", "down")))
        expected = expected + sigmoid(here @ p["shared_gate"]["kernel"]) * shared
        close(found[b, t], expected, atol=1e-5)


BIASED = {"feed_forward": "mixture", "feed_forward_options": {"bias_rate": 0.05, "balance": 0.0}}


def random_batch(seed, rows=4):
    draws = np.random.default_rng(seed).integers(0, 11, (rows, 7))
    targets, inputs = draws[:, 1:], {"tokens": draws[:, :-1]}
    return {"inputs": inputs, "targets": targets, "weights": np.ones((rows, 6), np.float32)}


@pytest.mark.parametrize("accumulation", [1, 2])
def test_biases_follow_the_loads_outside_the_gradient(accumulation):
    """Algorithm 1 of the paper, with the choices of experts that a loop makes; in parts the same."""
    model = small_decoder(**BIASED)
    optimizer = optax.sgd(0.1)
    state = draw_state(model, optimizer, 0)
    # Tied scores of an initial router would be a choice of rounding.
    state = state._replace(params=random_params(model))
    step = jax.jit(make_train_step(model, optimizer, 0, accumulation))
    bias = np.zeros(4)
    for number in range(4):
        batch = random_batch(number)
        site = "block_0.feed_forward.input"
        read = double(capture(model, state.params, batch["inputs"], site)[site])
        scores = read @ double(state.params["block_0"]["feed_forward"]["router"]["kernel"])
        shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        chosen = np.argsort(-(shares + bias), axis=-1)[..., :2]
        load = np.bincount(chosen.reshape(-1), minlength=4) / chosen.size
        state, record = step(state, batch)
        held = state.state["block_0"]["feed_forward"]
        close(held["bias"], bias, atol=1e-6)
        close(held["load"], load, atol=1e-6)
        bias = bias + 0.05 * np.sign(load.mean() - load)
        assert record.applied
    before = state
    state, record = step(state, {**batch, "weights": batch["weights"] * jnp.nan})
    assert not record.applied
    jax.tree.map(np.testing.assert_array_equal, before.state, state.state)


def test_each_member_under_vmap_has_its_own_state():
    model, optimizer = small_decoder(**BIASED), optax.sgd(0.1)
    step = make_train_step(model, optimizer, 0)
    members = [draw_state(model, optimizer, seed) for seed in (0, 1)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *members)
    together, _ = jax.jit(jax.vmap(step, in_axes=(0, None)))(stacked, random_batch(0))
    loads = []
    for lane, member in enumerate(members):
        alone, _ = jax.jit(step)(member, random_batch(0))
        jax.tree.map(lambda a, b, n=lane: close(a[n], b, atol=1e-5), together, alone)
        loads.append(alone.state["block_0"]["feed_forward"]["load"])
    assert (loads[0] != loads[1]).any()


def test_z_loss_and_the_soft_cap_of_logits():
    logits, targets = jnp.array([[2.0, -1.0, 0.5], [40.0, 0.0, -3.0]]), jnp.array([1, 0])
    plain, more = (CrossEntropy(z_loss=z).losses(logits, targets) for z in (0.0, 0.01))
    log_z = np.log(np.exp(double(logits)).sum(-1))
    close(more - plain, 0.01 * log_z**2, rtol=1e-6)
    model = small_decoder()
    params = random_params(model)
    raw, capped = (
        m.apply({"params": params}, TOKENS) for m in (model, model.clone(logits_soft_cap=2.0))
    )
    close(capped, 2 * np.tanh(double(raw) / 2), atol=1e-5)


@pytest.mark.parametrize("kind", ["parallel", "sequential"])
def test_heads_predict_the_tokens_after_the_next(kind):
    """The mean loss of both heads, for targets in the same document, is added in training alone."""
    options = {"count": 2, "weight": 0.6}
    model = small_decoder(heads=kind, heads_options=options, depth=2)
    params = random_params(model)
    segments = np.array([[1, 1, 1, 1, 2, 2], [1, 1, 1, 1, 1, 0]])
    batch = random_batch(1, 2)
    batch["inputs"] |= {"segments": segments}
    batch["weights"] = np.where(segments > 0, batch["weights"], 0)
    trains = {"train": True, "rngs": {"dropout": jax.random.key(0)}}

    @jax.jit
    def scored(params, batch):
        train, plain = (score_batch(model, params, batch, **more) for more in (trains, {}))
        sown = model.apply({"params": params}, **batch["inputs"], **trains, mutable=["ahead"])[1]
        (vectors,) = sown["ahead"]["heads"]["vectors"]
        project = lambda v: model.apply({"params": params}, v, method="project")
        return train.loss - plain.loss, train.sums, plain.sums, [*map(project, vectors)]

    added, *sums, logits = scored(params, batch)
    jax.tree.map(np.testing.assert_array_equal, *sums)
    expected = 0.0
    for ahead, of_step in enumerate(logits, 1):
        chances = double(jax.nn.log_softmax(of_step))
        for b, i in np.ndindex(2, 6 - ahead):
            is_same = segments[b, i] == segments[b, i + ahead] > 0
            if is_same:
                expected -= 0.3 * chances[b, i, batch["targets"][b, i + ahead]]
    close(added, expected, rtol=1e-5)
    # A head for the token `ahead` after the next sees as many tokens more, if it reads them at all.
    changed = jax.tree.map(np.copy, batch)
    changed["inputs"]["tokens"][:, 3] = (changed["inputs"]["tokens"][:, 3] + 1) % 11
    *_, others = scored(params, changed)
    for ahead, (before, after) in enumerate(zip(logits, others, strict=True), 1):
        first = 3 - ahead if kind == "sequential" else 3
        differs = (double(before) != double(after)).any(-1)[0]
        assert not differs[:first].any()
        assert differs[first]


def test_heads_learn_and_are_not_in_evaluation():
    model = small_decoder(heads="sequential", depth=2)
    state = draw_state(model, optax.sgd(0.1), 0)
    after, _ = jax.jit(make_train_step(model, optax.sgd(0.1), 0))(state, random_batch(0))
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), state.params, after.params)
    assert min(jax.tree.leaves(moved["heads"]["merge_1"])) > 0
    without = {name: part for name, part in state.params.items() if name != "heads"}
    read = [model.apply({"params": params}, TOKENS) for params in (state.params, without)]
    np.testing.assert_array_equal(*read)
    assert dataclasses.replace(model.options, heads="none") != model.options


@pytest.mark.parametrize("depth", [1, 3])
def test_heads_have_a_rate_of_stochastic_depth_below_1(depth):
    model = small_decoder(heads="parallel", depth=depth, stochastic_depth=0.5)
    state = draw_state(model, optax.sgd(0.1), 0)
    after, record = jax.jit(make_train_step(model, optax.sgd(0.1), 0))(state, random_batch(0, 32))
    assert record.applied
    moved = lambda a, b: float(jnp.abs(a - b).max())
    distances = by_path(jax.tree.map(moved, state.params["heads"], after.params["heads"]))
    assert min(v for k, v in distances.items() if k.endswith("kernel")) > 0


def test_layer_types_of_which_some_have_a_state_are_scanned():
    """Biases of experts in every second block: stacked, trained, and separate again."""
    options = {"bias_rate": 0.05, "balance": 0.0}
    types = {"E": {"feed_forward": "mixture", "feed_forward_options": options}}
    model = small_decoder(depth=4, layers="DE", layer_types=types)
    scanned, optimizer = model.with_options(scan_layers=True), optax.sgd(0.1)
    state = draw_state(model, optimizer, 0)
    assert set(state.state) == {"block_1", "block_3"}
    stacked = stack_blocks(state, 2)
    steps = [jax.jit(make_train_step(each, optimizer, 0)) for each in (model, scanned)]
    for number in range(2):
        state, _ = steps[0](state, random_batch(number))
        stacked, _ = steps[1](stacked, random_batch(number))
    separate = unstack_blocks(stacked)
    jax.tree.map(lambda a, b: close(a, b, atol=1e-5), separate.state, state.state)
    jax.tree.map(lambda a, b: close(a, b, atol=1e-5), separate.params, state.params)
    assert float(jnp.abs(state.state["block_3"]["feed_forward"]["bias"]).max()) > 0.04


def test_blocks_with_different_parameters_are_not_stacked():
    model = small_decoder(depth=2)
    params = random_params(model)
    del params["block_1"]["attention"]["query"]["bias"]
    with pytest.raises(ValueError, match="scan_layers: blocks 0 and 1 have different parameters"):
        stack_blocks(params, 1)


def test_sigmoid_routers_are_balanced_by_shares_that_sum_to_1(rng):
    module = MixtureOfExperts(num_experts=8, router="sigmoid", balance=1.0, mlp_dim=4)
    params = random_params(module, normal(rng, 2, 6, 8))
    params["router"]["kernel"] *= 0
    for inputs in (normal(rng, 2, 6, 8), jnp.full((2, 6, 8), -1e4)):
        mixed, sown = module.apply({"params": params}, inputs, mutable=["losses"])
        close(sown["losses"]["balance"][0], 1.0, rtol=1e-5)
        assert jnp.isfinite(mixed).all()
    params["router"]["kernel"] += 1  # all shares are 0 in float32
    assert jnp.isfinite(module.apply({"params": params}, inputs)).all()


def test_the_model_of_ngpt_against_a_loop():
    parts = {name: "normalised" for name in ("wiring", "attention", "feed_forward")}
    fields = {"norm": "none", "use_bias": False, "tie_embeddings": False, "position": "none"}
    model = small_decoder(**parts, **fields, logits_gain=True, activation="silu")
    drawn = random_params(model)
    p = jax.tree.map(double, drawn)
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    root, heads = 4.0, 2  # sqrt of the width 16
    expected = np.zeros((*TOKENS.shape, 11))
    for row, tokens in enumerate(TOKENS):
        hidden = unit(p["token_embedding"]["embedding"][tokens])
        for block in (p["block_0"], p["block_1"]):
            maps, gain = block["attention"], block["attention"]["variant"]["gain"] * root
            q, k, v = (
                (hidden @ maps[name]["kernel"]).reshape(6, heads, 8)
                for name in ("query", "key", "value")
            )
            mixed = np.zeros((6, heads, 8))
            for place, head in np.ndindex(6, heads):
                query, keys = (gain[head] * unit(x) for x in (q[place, head], k[: place + 1, head]))
                mixed[place, head] = softmax(8**0.5 * keys @ query) @ v[: place + 1, head]
            attended = unit(mixed.reshape(6, 16) @ maps["out"]["kernel"])
            step = np.abs(block["attention_alpha"]) * 0.05 * root
            hidden = unit(hidden + step * (attended - hidden))
            maps = block["feed_forward"]
            gate = hidden @ maps["gate"]["kernel"] * maps["gate_gain"] * root
            up = hidden @ maps["up"]["kernel"] * maps["up_gain"]
            fed = unit((gate * sigmoid(gate) * up) @ maps["down"]["kernel"])
            step = np.abs(block["feed_forward_alpha"]) * 0.05 * root
            hidden = unit(hidden + step * (fed - hidden))
        expected[row] = hidden @ p["output"]["kernel"] * p["output_gain"] * root
    close(model.apply({"params": drawn}, TOKENS), expected, atol=2e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_with_a_bias(tied):
    model = small_decoder(tie_embeddings=tied, output_bias=True, logits_soft_cap=3.0)
    params = random_params(model)
    plain = {name: array for name, array in params.items() if name != "logits_bias"}
    uncapped = small_decoder(tie_embeddings=tied).apply({"params": plain}, TOKENS)
    expected = 3 * np.tanh((uncapped + params["logits_bias"]) / 3)
    close(model.apply({"params": params}, TOKENS), expected, atol=1e-5)


def test_every_update_ends_on_the_sphere():
    """As do initial values; the update before that is the optimizer's own."""
    small = {"model__depth": 1, "schedule__name": "constant"}
    small |= {"training__frozen": "block_0/feed_forward/up"}
    plain = prepare(tiny_config(**small))
    prepared = prepare(tiny_config(**small | {"optimizer__unit_vectors": True}))
    state = prepared.draw(np.uint32(0))
    batches = prepared.stacked_batches(0, 0, 1)

    def lengths(params):
        kernels = by_path(params)
        axes = {"token_embedding/embedding": 1, "block_0/attention/query/kernel": 0}
        axes |= {"block_0/attention/out/kernel": 1, "block_0/feed_forward/down/kernel": 1}
        return {path: np.linalg.norm(kernels[path], axis=axis) for path, axis in axes.items()}

    for length in lengths(state.params).values():
        close(length, 1.0, atol=1e-6)
    start = plain.draw(np.uint32(0))._replace(params=state.params)
    expected, _ = jax.jit(plain.advance)(plain.numbers(), start, batches, np.int32(1))
    state, _ = jax.jit(prepared.advance)(prepared.numbers(), state, batches, np.int32(1))
    for path, length in lengths(state.params).items():
        close(length, 1.0, atol=1e-6)
        before = by_path(expected.params)[path]
        scaled = before / np.linalg.norm(before, axis=0 if "query" in path else 1, keepdims=True)
        close(by_path(state.params)[path], scaled, atol=1e-6)
    assert np.abs(lengths(expected.params)["token_embedding/embedding"] - 1).max() > 1e-4


def test_vectors_lie_along_the_axis_of_the_width():
    rng = np.random.default_rng(0)
    shapes = {"query": (16, 16), "out": (16, 16), "up": (3, 16, 40), "small": (5, 4)}
    params = {name: {"kernel": normal(rng, *shape)} for name, shape in shapes.items()}
    params["experts"] = {"down": {"kernel": normal(rng, 3, 40, 16)}}
    # Its shape says that it reads the stream.
    params["latent"] = {"down": {"kernel": normal(rng, 16, 8)}}
    found = by_path(on_sphere(params, 16))
    for path, axis in {"query": 0, "out": 1, "up": 1, "experts/down": 2, "latent/down": 0}.items():
        close(np.linalg.norm(found[f"{path}/kernel"], axis=axis), 1, atol=1e-6)
    close(found["small/kernel"], params["small"]["kernel"])
