"""Against code that nobody here wrote: PyTorch and Hugging Face, all weights random."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import ROOT, tiny_config
from transformer_jax import MultiHeadAttention, causal_mask, scaled_dot_product_attention
from transformer_jax.attention import AttentionCall
from transformer_jax.blocks import Context
from transformer_jax.cache import CacheSlot
from transformer_jax.config_files import load_config
from transformer_jax.data.baselines import _fitted, _nearest, _text_features
from transformer_jax.generation import restrict_logits
from transformer_jax.interop import from_huggingface
from transformer_jax.masks import Causal, Mask, Places, padding_mask
from transformer_jax.model_options import ModelOptions
from transformer_jax.models.recurrent import CELLS, Recurrence, RecurrentEncoder
from transformer_jax.models.stack import Stack
from transformer_jax.positions import PositionTerms, Rotation, Sizes
from transformer_jax.runs.progress import Silent
from transformer_jax.training.objectives import cross_entropy
from transformer_jax.training.optimizers import make_optimizer, make_schedule
from transformer_jax.variants.gated_delta import GatedDeltaRule
from transformer_jax.variants.mamba import StateSpace
from transformer_jax.variants.weightings import DiffTransformer

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("ignore"),  # the libraries' own warnings are not ours to fix
]


TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def both(torch, rng, dtype, *shape):
    """The same random numbers as a torch tensor and a jax array."""
    numbers = rng.normal(size=shape).astype(dtype)
    return torch.from_numpy(numbers), jnp.asarray(numbers)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.mark.parametrize("masking", ["none", "causal", "random", "bias"])
def test_attention_and_its_gradients(torch, rng, dtype, masking):
    shapes = ((2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 6))
    tensors, arrays = zip(*(both(torch, rng, dtype, *shape) for shape in shapes), strict=True)
    mask_t = mask = bias = None
    if masking == "causal":
        mask_t, mask = torch.ones(5, 5).tril().bool(), causal_mask(5)
    elif masking == "random":
        numbers = rng.integers(0, 2, (2, 1, 5, 5)).astype(bool) | np.eye(5, dtype=bool)
        mask_t, mask = torch.from_numpy(numbers), jnp.asarray(numbers)
    elif masking == "bias":
        mask_t, bias = both(torch, rng, dtype, 3, 5, 5)
    for tensor in tensors:
        tensor.requires_grad_()
    theirs = torch.nn.functional.scaled_dot_product_attention(*tensors, mask_t)
    ours, pullback = jax.vjp(lambda *a: scaled_dot_product_attention(*a, mask, bias), *arrays)
    np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=TOLERANCE[dtype])
    theirs.square().sum().backward()
    for tensor, gradient in zip(tensors, pullback(2 * ours), strict=True):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), atol=10 * TOLERANCE[dtype])


@pytest.mark.parametrize("cross", [False, True])
def test_multi_head_attention(torch, rng, dtype, cross):
    theirs = torch.nn.MultiheadAttention(16, 4, batch_first=True, dtype=getattr(torch, dtype))
    for parameter in theirs.parameters():
        parameter.data.normal_(0, 0.3)
    inputs_t, inputs = both(torch, rng, dtype, 2, 5, 16)
    memory_t, memory = both(torch, rng, dtype, 2, 7, 16) if cross else (inputs_t, inputs)
    expected, weights = theirs(inputs_t, memory_t, memory_t, average_attn_weights=False)
    ours, sown = MultiHeadAttention(num_heads=4).apply(
        {"params": torch_attention(theirs)}, inputs, memory, mutable=["intermediates"]
    )
    shown = sown["intermediates"]["weights"][0]
    for found, wanted in ((ours, expected), (shown, weights)):
        np.testing.assert_allclose(found, wanted.detach().numpy(), atol=TOLERANCE[dtype])


def torch_linear(linear):
    return {"kernel": linear.weight.detach().numpy().T, "bias": linear.bias.detach().numpy()}


def torch_norm(norm):
    return {"scale": norm.weight.detach().numpy(), "bias": norm.bias.detach().numpy()}


def torch_attention(attention):
    kernels = np.split(attention.in_proj_weight.detach().numpy(), 3)
    biases = np.split(attention.in_proj_bias.detach().numpy(), 3)
    params = {"out": torch_linear(attention.out_proj)}
    for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
        params[name] = {"kernel": kernel.T, "bias": bias}
    return params


def test_decoder_equals_gpt2_in_logits_and_gradients(torch, rng, dtype):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 37, "n_positions": 16, "n_embd": 32, "n_layer": 3, "n_head": 4}
    config = GPT2Config(**sizes, attn_implementation="eager", bos_token_id=0, eos_token_id=0)
    theirs = GPT2LMHeadModel(config).to(getattr(torch, dtype)).eval()
    for parameter in theirs.parameters():
        parameter.data.normal_(0, 0.2)  # defaults of 0 and 1 would hide a swapped name
    model, params = from_huggingface(theirs)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {dtype}
    tokens = rng.integers(0, 37, (2, 12))
    logits_t = theirs(torch.from_numpy(tokens)).logits
    # transformers' own `labels=` loss goes through float32
    loss_t = torch.nn.functional.cross_entropy(
        logits_t[:, :-1].reshape(-1, 37), torch.from_numpy(tokens[:, 1:]).reshape(-1)
    )
    loss_t.backward()
    gradient_t = theirs.transformer.h[1].attn.c_attn.weight.grad.numpy()

    def loss(params):
        logits = model.apply({"params": params}, jnp.asarray(tokens))
        targets = jnp.asarray(tokens[:, 1:])
        return cross_entropy(logits[:, :-1], targets).mean(), logits

    (value, logits), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    np.testing.assert_allclose(logits, logits_t.detach().numpy(), atol=TOLERANCE[dtype])
    assert float(value) == pytest.approx(loss_t.item(), abs=TOLERANCE[dtype])
    attention = gradients["block_1"]["attention"]
    ours = np.concatenate([attention[name]["kernel"] for name in ("query", "key", "value")], 1)
    np.testing.assert_allclose(ours, gradient_t, atol=TOLERANCE[dtype])


def torch_block(layer, norms):
    block = {
        "attention": torch_attention(layer.self_attn),
        "feed_forward": {"up": torch_linear(layer.linear1), "down": torch_linear(layer.linear2)},
    }
    if hasattr(layer, "multihead_attn"):
        block["cross_attention"] = torch_attention(layer.multihead_attn)
    return block | {name: torch_norm(getattr(layer, f"norm{n}")) for n, name in enumerate(norms, 1)}


@pytest.mark.parametrize("wiring", ["pre", "post"])
def test_encoder_decoder_stacks_equal_torch_transformer(torch, rng, dtype, wiring):
    """Six plus six layers, cross-attention, a causal target and padded sources of two lengths."""
    options = {"batch_first": True, "norm_first": wiring == "pre", "dtype": getattr(torch, dtype)}
    theirs = torch.nn.Transformer(32, 4, 6, 6, 48, 0.0, **options).eval()
    if wiring == "post":  # torch adds a final norm that the paper's post-norm does not have
        theirs.encoder.norm = theirs.decoder.norm = None
    for parameter in theirs.parameters():
        parameter.data.normal_(0, 0.1)
    source_t, source = both(torch, rng, dtype, 2, 7, 32)
    target_t, target = both(torch, rng, dtype, 2, 5, 32)
    is_token = np.arange(7)[None] < np.array([[7], [4]])
    padding_t = torch.from_numpy(~is_token)
    expected = theirs(
        source_t,
        target_t,
        tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=target_t.dtype),
        src_key_padding_mask=padding_t,
        memory_key_padding_mask=padding_t,
    )
    halves = {
        "encoder": ("attention_norm", "feed_forward_norm"),
        "decoder": ("attention_norm", "cross_attention_norm", "feed_forward_norm"),
    }
    params = {}
    for side, norms in halves.items():
        module = getattr(theirs, side)
        layers = enumerate(module.layers)
        params[side] = {f"block_{n}": torch_block(layer, norms) for n, layer in layers}
        if wiring == "pre":
            params[side]["final_norm"] = torch_norm(module.norm)
    sizes = {"width": 32, "depth": 6, "num_heads": 4, "mlp_dim": 48}
    options = ModelOptions.of(**sizes, position="none", wiring=wiring, activation="relu")
    segments = jnp.asarray(is_token, jnp.int32)
    encoder = Stack(options, causal=False, max_length=7, side="encoder")
    memory = encoder.apply({"params": params["encoder"]}, source, segments=segments)
    decoder = Stack(options, causal=True, max_length=5, side="decoder")
    reading = {"memory": memory, "memory_mask": padding_mask(segments > 0)}
    ours = decoder.apply({"params": params["decoder"]}, target, **reading)
    np.testing.assert_allclose(ours, expected.detach().numpy(), atol=2 * TOLERANCE[dtype])


GATES = {"lstm": ("i", "f", "g", "o"), "gru": ("r", "z", "n")}


def params_of_cell(theirs, cell, direction="l0"):
    """Returns flax's names for the parameters of one layer and direction of torch's."""
    state = {name: p.detach().numpy() for name, p in theirs.named_parameters()}
    inward, hidden = state[f"weight_ih_{direction}"], state[f"weight_hh_{direction}"]
    bias_i, bias_h = state[f"bias_ih_{direction}"], state[f"bias_hh_{direction}"]
    if cell == "rnn":
        return {"i": {"kernel": inward.T, "bias": bias_i + bias_h}, "h": {"kernel": hidden.T}}
    gates, params = GATES[cell], {}
    split = lambda array: dict(zip(gates, np.split(array, len(gates)), strict=True))
    for gate in gates:
        joined = split(bias_i)[gate] + split(bias_h)[gate]
        apart = cell == "gru" and gate == "n"  # there the reset gate stands between the two
        inner, outer = {"kernel": split(inward)[gate].T}, {"kernel": split(hidden)[gate].T}
        if cell == "gru":
            inner["bias"] = split(bias_i)[gate] if apart else joined
            outer |= {"bias": split(bias_h)[gate]} if apart else {}
        else:
            outer["bias"] = joined
        params[f"i{gate}"], params[f"h{gate}"] = inner, outer
    return params


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_recurrence_equals_torchs(torch, rng, cell, reverse):
    """Outputs and last states over sequences of several lengths, in both directions."""
    classes = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}
    theirs = classes[cell](5, 8, batch_first=True)
    for parameter in theirs.parameters():
        parameter.data.normal_(0, 0.4)
    params = params_of_cell(theirs, cell)
    lengths = [6, 4, 1]
    inputs_t, inputs = both(torch, rng, "float32", 3, 6, 5)
    segments = jnp.asarray(np.arange(6)[None] < np.array(lengths)[:, None], jnp.int32)
    if reverse:
        flipped = [torch.flip(row[:n], (0,)) for row, n in zip(inputs_t, lengths, strict=True)]
        inputs_t = torch.nn.utils.rnn.pad_sequence(flipped, batch_first=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(inputs_t, lengths, batch_first=True)
    with torch.no_grad():
        outputs_t, last_t = theirs(packed)
    outputs_t, _ = torch.nn.utils.rnn.pad_packed_sequence(outputs_t, batch_first=True)
    carry, outputs = Recurrence(CELLS[cell], 8, reverse).apply(
        {"params": {"cell": params}}, inputs, segments
    )
    for row, length in enumerate(lengths):
        expected = outputs_t[row, :length].numpy()
        expected = expected[::-1] if reverse else expected
        np.testing.assert_allclose(outputs[row, :length], expected, atol=1e-5)
    pairs = zip(carry, last_t[::-1], strict=True) if cell == "lstm" else [(carry, last_t)]
    for ours, expected in pairs:
        np.testing.assert_allclose(ours, expected[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_recurrent_classifier_reads_torchs_last_states(torch, rng, cell):
    """Two layers, both directions, several lengths: what is pooled is h_n of the last layer."""
    kind = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell]
    theirs = kind(8, 8, num_layers=2, batch_first=True, bidirectional=True)
    for parameter in theirs.parameters():
        parameter.data.normal_(0, 0.4)
    model = RecurrentEncoder(
        num_features=5, max_length=6, num_classes=3, width=8, cell=cell, bidirectional=True
    )
    params = {
        f"{way}_{layer}": {"cell": params_of_cell(theirs, cell, f"l{layer}{behind}")}
        for layer in range(2)
        for way, behind in (("layer", ""), ("backward", "_reverse"))
    }
    kernel, bias = rng.normal(size=(5, 8)), rng.normal(size=8)
    inputs_t, inputs = both(torch, rng, "float32", 3, 6, 5)
    params["projection"] = {"kernel": jnp.float32(kernel), "bias": jnp.float32(bias)}
    lengths = [6, 4, 1]
    projected = inputs_t @ torch.tensor(kernel).float() + torch.tensor(bias).float()
    packed = torch.nn.utils.rnn.pack_padded_sequence(projected, lengths, batch_first=True)
    with torch.no_grad():
        last = theirs(packed)[1]
    last = last[0] if cell == "lstm" else last
    pooled = model.apply(
        {"params": params},
        vectors=inputs,
        segments=jnp.asarray(np.arange(6)[None] < np.array(lengths)[:, None], jnp.int32),
        return_hidden=True,
    )
    np.testing.assert_allclose(pooled, torch.cat([last[2], last[3]], -1).numpy(), atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_cross_entropy_and_label_smoothing(torch, rng, dtype, smoothing):
    logits_t, logits = both(torch, rng, dtype, 6, 9)
    targets = rng.integers(0, 9, 6)
    theirs = torch.nn.functional.cross_entropy(
        logits_t, torch.from_numpy(targets), reduction="none", label_smoothing=smoothing
    )
    ours = cross_entropy(logits, jnp.asarray(targets), smoothing)
    np.testing.assert_allclose(ours, theirs.numpy(), atol=TOLERANCE[dtype])


def test_adamw_with_clipping_and_decay_follows_torch(torch, rng):
    """Ten updates of the config's optimizer against torch.optim.AdamW and clip_grad_norm_."""
    config = tiny_config(training__steps=20)
    optimizer, schedule = make_optimizer(config), make_schedule(config)
    kernel_t, kernel = both(torch, rng, "float32", 4, 3)
    bias_t, bias = both(torch, rng, "float32", 3)
    kernel_t, bias_t = (torch.nn.Parameter(p.clone()) for p in (kernel_t, bias_t))
    groups = [{"params": [kernel_t], "weight_decay": 0.1}, {"params": [bias_t], "weight_decay": 0}]
    theirs = torch.optim.AdamW(groups, betas=(0.9, 0.99), eps=1e-8)
    params = {"layer": {"kernel": kernel, "bias": bias}}
    state = optimizer.init(params)
    for step in range(10):
        (kernel_g_t, kernel_g), (bias_g_t, bias_g) = (
            both(torch, rng, "float32", 4, 3),
            both(torch, rng, "float32", 3),
        )
        kernel_t.grad, bias_t.grad = kernel_g_t, bias_g_t
        torch.nn.utils.clip_grad_norm_([kernel_t, bias_t], 1.0)
        for group in theirs.param_groups:
            group["lr"] = float(schedule(step))
        theirs.step()
        gradients = {"layer": {"kernel": kernel_g, "bias": bias_g}}
        updates, state = optimizer.update(gradients, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    np.testing.assert_allclose(params["layer"]["kernel"], kernel_t.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(params["layer"]["bias"], bias_t.detach().numpy(), atol=1e-6)


def test_top_k_and_top_p_equal_transformers(torch, rng):
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    logits_t, logits = (3 * array for array in both(torch, rng, "float32", 4, 50))
    for warper, name, values in (
        (TopKLogitsWarper, "top_k", (1, 5, 49)),
        (TopPLogitsWarper, "top_p", (0.1, 0.5, 0.9)),
    ):
        for value in values:
            theirs = warper(value)(None, logits_t.clone()).numpy()
            np.testing.assert_array_equal(restrict_logits(logits, **{name: value}), theirs)


def causal_rule(length):
    places = Places(jnp.arange(length), jnp.arange(length))
    return Mask(places, places, Causal())


def test_the_gated_delta_rule_is_qwen3_nexts(torch, rng, dtype):
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

    arrays = [both(torch, rng, dtype, 2, 3, 7, 4) for _ in range(3)]  # [B, H, L, K]
    inputs_t, inputs = both(torch, rng, dtype, 2, 7, 5)
    gates = {name: both(torch, rng, dtype, 5, 3) for name in ("decay", "write")}
    params = {"rate": np.array([0.3, -0.5, 0.1], dtype), "offset": np.array([0.2, 0.0, -1], dtype)}
    params |= {f"{name}_gate": {"kernel": kernel} for name, (_, kernel) in gates.items()}
    slot = CacheSlot(jnp.int32(0), count=7, capacity=7)  # so that the state is kept
    ours, kept = GatedDeltaRule().apply(
        {"params": params},
        *(array for _, array in arrays),
        AttentionCall(inputs, causal_rule(7), slot=slot),
        mutable=["cache"],
    )
    rate, offset = (torch.from_numpy(params[name]) for name in ("rate", "offset"))
    by_token = lambda array: array.transpose(1, 2)
    decay = inputs_t @ gates["decay"][0]
    theirs, their_state = torch_recurrent_gated_delta_rule(
        *(by_token(array) for array, _ in arrays),
        g=-rate.exp() * torch.nn.functional.softplus(decay + offset),
        beta=(inputs_t @ gates["write"][0]).sigmoid(),
        initial_state=None,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    # It computes in float32 whatever it is given.
    np.testing.assert_allclose(ours, by_token(theirs).numpy(), atol=1e-5)
    np.testing.assert_allclose(kept["cache"]["state_0"], their_state.numpy(), atol=1e-5)


@pytest.mark.parametrize("chunk", [4, 64])
def test_the_state_space_mixer_is_mamba_2s(torch, rng, chunk):
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    width, heads, size, state, length = 12, 6, 4, 5, 11
    config = Mamba2Config(
        hidden_size=width, num_heads=heads, head_dim=size, state_size=state, n_groups=1, expand=2,
        conv_kernel=4, chunk_size=8, num_hidden_layers=1, use_bias=True, layer_norm_epsilon=1e-5,
    )  # fmt: skip
    theirs = Mamba2Mixer(config, 0).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(scale=0.5, size=parameter.shape)))
    held = {name: array.detach().numpy() for name, array in theirs.state_dict().items()}
    params = {
        "in": {"kernel": held["in_proj.weight"].T, "bias": held["in_proj.bias"]},
        "conv_kernel": held["conv1d.weight"][:, 0].T,
        "conv_bias": held["conv1d.bias"],
        "rate": held["A_log"],
        "offset": held["dt_bias"],
        "skip": held["D"],
        "norm": {"scale": held["norm.weight"]},
        "out": {"kernel": held["out_proj.weight"].T, "bias": held["out_proj.bias"]},
    }
    inputs_t, inputs = both(torch, rng, "float32", 2, length, width)
    mixer, sizes = StateSpace(state_size=state, chunk=chunk), Sizes(width, head_dim=size)
    context = Context(mask=causal_rule(length), sizes=sizes)
    ours = mixer.apply({"params": params}, inputs, context)
    expected = theirs(inputs_t).detach().numpy()
    np.testing.assert_allclose(ours, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_differential_attention_is_diff_llamas(torch, rng, kv_heads):
    """Rotations, an odd layer's lambda_0, groups of queries; the norm's scale is 1 there."""
    from transformers.models.diffllama import modeling_diffllama as published
    from transformers.models.diffllama.configuration_diffllama import DiffLlamaConfig

    config = DiffLlamaConfig(
        hidden_size=24, num_attention_heads=4, num_key_value_heads=kv_heads, head_dim=6
    )
    config._attn_implementation = "eager"
    theirs = published.DiffLlamaAttention(config, layer_idx=3).double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(scale=0.5, size=parameter.shape)))
    inputs = torch.from_numpy(rng.normal(size=(2, 7, 24)))
    angles = torch.from_numpy(rng.normal(size=(2, 7, 3)))
    angles = torch.cat([angles, angles], -1)
    ahead = torch.full((1, 1, 7, 7), -torch.inf, dtype=torch.float64).triu(1)
    expected, _ = theirs(inputs, (angles.cos(), angles.sin()), ahead)
    with jax.enable_x64(True):
        array = lambda tensor: jnp.asarray(tensor.detach().numpy())
        variant = functools.partial(DiffTransformer, epsilon=config.rms_norm_eps)
        ours = MultiHeadAttention(4, kv_heads, 6, use_bias=False, variant=variant)
        maps = {"query": theirs.q_proj, "key": theirs.k_proj, "value": theirs.v_proj}
        maps["out"] = theirs.o_proj
        params = {name: {"kernel": array(each.weight).T} for name, each in maps.items()}
        vectors = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
        params["variant"] = {
            "lambda": jnp.stack([array(getattr(theirs, name)) for name in vectors]),
            "norm": {"scale": jnp.ones(12)},
        }
        half = array(angles)[..., :3]
        terms = PositionTerms(rotation=Rotation(jnp.cos(half), jnp.sin(half)))
        call = {"mask": causal_mask(7), "terms": terms, "layer": 3}
        found = ours.apply({"params": params}, array(inputs), **call)
    # Their softmax and their lambda are float32 in any case; test_components.py has float64.
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=0, atol=2e-6)


def test_a_linear_model_of_texts_is_scikit_learns(rng):
    """TF-IDF weights of tokens and pairs of neighbours, and the weights that fit them best."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    tokens = rng.integers(1, 12, (120, 9))
    labels = rng.integers(0, 3, 120)
    features = _text_features({"tokens": tokens})
    theirs = TfidfVectorizer(
        sublinear_tf=True, smooth_idf=False, min_df=2, ngram_range=(1, 2), token_pattern=r"\S+"
    )
    texts = [" ".join(map(str, row)) for row in tokens]
    known = theirs.fit_transform(texts)
    ours = features({"tokens": tokens})
    assert ours.shape == known.shape
    # Columns stand in another order; products of rows do not.
    np.testing.assert_allclose((ours @ ours.T).toarray(), (known @ known.T).toarray(), atol=1e-12)
    strength = 1e-2
    ours_w = next(
        w for w, s in zip(_fitted(ours, labels, 3), (1.0, 0.1, 0.01), strict=False) if s == strength
    )
    model = LogisticRegression(C=1 / (strength * 120), tol=1e-10, max_iter=10_000)
    model.fit(ours, labels)
    log_p = ours @ ours_w[:-1] + ours_w[-1]
    log_p -= np.logaddexp.reduce(log_p, axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(log_p), model.predict_proba(ours), atol=2e-3)


def test_neighbours_are_scikit_learns(rng):
    from sklearn.neighbors import KNeighborsClassifier

    known, queries = rng.normal(size=(300, 7)), rng.normal(size=(600, 7))
    model = KNeighborsClassifier(1).fit(known, np.arange(300))
    np.testing.assert_array_equal(_nearest(queries, known), model.predict(queries))


def test_a_run_has_the_curve_of_the_same_training_in_torch(tmp_path):
    """Model, loss, derivatives, AdamW, clipping and learning rates of configs/enwik8.py at once."""
    from tests.torch_curve import both_curves
    from transformer_jax.training.loop import train

    changes = {
        **{"data.source": "shakespeare", "data.length": "32", "model.width": "32"},
        **{"model.depth": "2", "model.num_heads": "2", "training.steps": "24"},
        **{"training.batch_size": "8", "schedule.warmup_steps": "8", "training.clip_norm": "0.5"},
        **{"evaluation.every": "8", "sample.num_tokens": "0"},
    }
    config = load_config(str(ROOT / "configs" / "enwik8.py"), changes)
    train(config, tmp_path / "run", Silent())
    steps, theirs, ours = zip(*both_curves(tmp_path / "run"), strict=True)
    assert steps == (8, 16, 24)
    np.testing.assert_allclose(ours, theirs, rtol=2e-5)
    assert ours[0] > ours[-1] + 0.1
