"""Configs of others with two names, absent, null and wrong fields: read as transformers, or refused."""

import contextlib
import json
import random

import jax
import numpy as np
import pytest

from tests.test_interop import inputs_of, kept_of, outputs
from transformer_jax.errors import InvalidInput
from transformer_jax.interop import from_huggingface, to_huggingface
from transformer_jax.interop.defaults import ALIASES
from transformer_jax.interop.huggingface import ARCHITECTURES, model_of
from transformer_jax.models.effect import Described, options_in_effect

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

SMALL = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 37},
    **{"intermediate_size": 48, "max_position_embeddings": 16},
}
LLAMA = SMALL | {"model_type": "llama", "num_key_value_heads": 2, "rms_norm_eps": 1e-6}
BLOOM = {"model_type": "bloom", "vocab_size": 37, "hidden_size": 32, "n_layer": 2, "n_head": 4}
GPT2 = {"model_type": "gpt2", "vocab_size": 37, "n_embd": 32, "n_layer": 2, "n_head": 4}
GPT2 |= {"n_positions": 16}
T5 = {"model_type": "t5", "vocab_size": 37, "d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2}
T5 |= {"num_heads": 4}
NEOX = SMALL | {"model_type": "gpt_neox"}
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 0.5, "high_freq_factor": 2.0}
BASES = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA | {"model_type": "mistral"},
    "Gemma2ForCausalLM": LLAMA | {"model_type": "gemma2", "head_dim": 6, "sliding_window": 4},
    "Qwen2ForCausalLM": LLAMA | {"model_type": "qwen2"},
    "Qwen3ForCausalLM": LLAMA | {"model_type": "qwen3", "head_dim": 6},
    "Gemma3ForCausalLM": LLAMA | {"model_type": "gemma3_text", "head_dim": 6, "sliding_window": 4},
    "GPTNeoXForCausalLM": NEOX,
    "BloomForCausalLM": BLOOM,
    "GPT2LMHeadModel": GPT2,
    "BertForMaskedLM": SMALL | {"model_type": "bert"},
    "T5EncoderModel": T5,
    "SmolLM3ForCausalLM": LLAMA | {"model_type": "smollm3"},
    "RobertaForMaskedLM": SMALL | {"model_type": "roberta"},
    "DistilBertForMaskedLM": {
        **{"model_type": "distilbert", "vocab_size": 37, "max_position_embeddings": 16, "dim": 32},
        **{"n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    },
    "Phi3ForCausalLM": LLAMA | {"model_type": "phi3", "pad_token_id": 0},
    "OPTForCausalLM": SMALL | {"model_type": "opt", "ffn_dim": 48},
    "GPTJForCausalLM": GPT2 | {"model_type": "gptj", "rotary_dim": 4},
    "MarianMTModel": {
        **{"model_type": "marian", "vocab_size": 37, "max_position_embeddings": 16, "d_model": 32},
        **{"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48},
        **{"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48},
        **{"pad_token_id": 0, "decoder_start_token_id": 0},
    },
}


def config_of(name, **changes):
    return {"architectures": [name], **BASES[name], **changes}


def written(folder, config, torch):
    """A folder with a config as it was given, and transformers' own model of it, all random."""
    import transformers as hf

    (folder / "config.json").write_text(json.dumps(config))
    theirs = hf.AutoConfig.from_pretrained(folder)
    theirs._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(hf, config["architectures"][0])(theirs).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "MTModel" not in config["architectures"][0] or "positions" not in key:
                parameter.copy_(0.3 * torch.randn_like(parameter) + (parameter.dim() == 1))
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return model


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("LlamaForCausalLM", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
                              "rope_scaling": LINEAR}),
        ("LlamaForCausalLM", {"rope_scaling": LLAMA3, "original_max_position_embeddings": 8}),
        ("LlamaForCausalLM", {"rope_scaling": LLAMA3, "rope_theta": 100.0}),
        ("MistralForCausalLM", {"rope_parameters": {"rope_type": "default"},
                                "rope_scaling": LINEAR, "rope_theta": 70.0}),
        ("Qwen3ForCausalLM", {"rope_parameters": {"rope_theta": 9.0}, "rope_scaling": LINEAR}),
        ("Gemma3ForCausalLM", {"rope_scaling": LINEAR, "use_bidirectional_attention": None,
                               "layer_types": ["full_attention", "sliding_attention"],
                               "rope_parameters": {"full_attention": {"rope_theta": 80.0},
                                                   "sliding_attention": {"rope_theta": 8.0}}}),
        ("GPTNeoXForCausalLM", {"rotary_emb_base": 500, "rope_theta": 10000, "rotary_pct": 0.5}),
        ("GPTNeoXForCausalLM", {"rope_parameters": {"rope_type": "default"},
                                "rope_scaling": LINEAR}),
        ("BloomForCausalLM", {"n_layer": 3, "num_hidden_layers": 2}),
        ("GPT2LMHeadModel", {"n_layer": 1, "num_hidden_layers": 3}),
        ("T5EncoderModel", {"head_dim": 10}),
    ],
)  # fmt: skip
def test_a_setting_with_two_names_is_read_as_by_transformers(tmp_path, name, changes):
    import torch

    theirs = written(tmp_path, config_of(name, **changes), torch)
    model, params = from_huggingface(str(tmp_path))
    tokens = np.random.default_rng(0).integers(0, 37, (2, 12))
    with torch.no_grad():
        out = theirs(torch.from_numpy(tokens))
    expected = (out.logits if "logits" in out else out.last_hidden_state).numpy()
    np.testing.assert_allclose(model.apply({"params": params}, tokens), expected, atol=3e-4)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("MistralForCausalLM", {"sliding_window": 0}, "sliding_window=0 (mask size)"),
        ("MistralForCausalLM", {"sliding_window": -1}, "sliding_window=-1"),
        ("GPT2LMHeadModel", {"resid_pdrop": 1.5}, "resid_pdrop=1.5 (dropout_rate)"),
        ("GPTNeoXForCausalLM", {"rotary_pct": 1.5}, "rotary_pct=1.5 (position fraction)"),
        ("LlamaForCausalLM", {"rope_scaling": LINEAR | {"factor": 0}}, "factor"),
        ("LlamaForCausalLM", {"model_type": "gemma"}, "model_type=gemma: expected llama"),
        ("LlamaForCausalLM", {"num_key_value_heads": 0}, "num_key_value_heads=0"),
        ("LlamaForCausalLM", {"rms_norm_eps": "1e-6"}, "rms_norm_eps='1e-6'"),
        ("LlamaForCausalLM", {"rope_theta": None}, "rope_theta=None: expected a number"),
        ("LlamaForCausalLM", {"hidden_size": 31.5}, "hidden_size=31.5"),
        ("LlamaForCausalLM", {"quantization_config": {"bits": 8}}, "quantization_config={'bits"),
        ("LlamaForCausalLM", {"transformers_weights": "b"}, "transformers_weights=b: expected No"),
        (
            "Qwen2ForCausalLM",
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types=['full_attention', 'sliding_attention']: expected full_attention alone",
        ),
        ("LlamaForCausalLM", {"is_causal": False}, "is_causal=False: expected True"),
        (
            "Gemma3ForCausalLM",
            {"rope_scaling": {"type": "linear"}, "layer_types": ["full_attention"] * 2},
            "rope_scaling: type=linear: expected rope_type",
        ),
        ("BloomForCausalLM", {"slow_but_exact": True, "pretraining_tp": 2}, "pretraining_tp=2"),
        (
            "MistralForCausalLM",
            {"sliding_window": 4, "layer_types": ["full_attention"]},
            "layer_types=['full_attention']: expected sliding_attention alone",
        ),
        ("OPTForCausalLM", {"word_embed_proj_dim": 16}, "word_embed_proj_dim=16: expected"),
        ("OPTForCausalLM", {"enable_bias": False}, "enable_bias=False: expected True"),
        ("GPTJForCausalLM", {"rotary_dim": 3}, "rotary_dim=3: expected an even size <= 8"),
        ("GPTJForCausalLM", {"rotary_dim": None}, "rotary_dim=None"),
        ("MarianMTModel", {"decoder_vocab_size": 50}, "decoder_vocab_size=50: expected vocab_size"),
        ("MarianMTModel", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_e"),
        (
            "Phi3ForCausalLM",
            {"rope_scaling": {"type": "longrope", "long_factor": [1.0]}},
            "rope_type=longrope: expected one of",
        ),
    ],
)
def test_values_out_of_range_are_refused_by_name(name, changes, words):
    with pytest.raises(InvalidInput) as caught:
        model_of(config_of(name, **changes), "here")
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_setting_of_theirs_is_read_or_known_to_have_no_effect(name):
    import transformers as hf

    row = ARCHITECTURES[name]
    settings = hf.CONFIG_MAPPING[row.model_type]().to_dict()
    assert row.unread(settings) == []
    assert row.unread({**settings, "a_new_switch": True}) == ["a_new_switch"]


def test_settings_that_are_not_read_are_told():
    with pytest.warns(UserWarning, match="here: config.json: without effect here: use_moe=True$"):
        model_of(config_of("LlamaForCausalLM", use_moe=True, mtp_layers=0), "here")


def test_arrays_that_one_of_theirs_holds_twice_or_fixes(tmp_path):
    """GPT-J has one norm before both branches, and Marian a table of sinusoids."""
    import torch
    from safetensors.numpy import load_file, save_file

    written(tmp_path, config_of("GPTJForCausalLM"), torch)
    model, params = from_huggingface(str(tmp_path))
    assert to_huggingface(model, params).config["architectures"] == ["GPTJForCausalLM"]
    params["block_0"]["attention_norm"]["scale"] += 1
    with pytest.raises(InvalidInput, match=r"one array, h\.0\.ln_1\.weight, .* which differ"):
        to_huggingface(model, params)

    written(tmp_path, config_of("MarianMTModel"), torch)
    from_huggingface(str(tmp_path))
    arrays = load_file(tmp_path / "model.safetensors")
    arrays["model.encoder.embed_positions.weight"] = np.ones((16, 32), np.float32)
    save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(InvalidInput, match=r"embed_positions\.weight differs from the values"):
        from_huggingface(str(tmp_path))


def test_whole_numbers_are_no_weights(tmp_path):
    import torch
    from safetensors.numpy import load_file, save_file

    written(tmp_path, config_of("LlamaForCausalLM"), torch)
    arrays = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    arrays[name] = arrays[name].astype(np.int8)
    save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(InvalidInput, match=r"floating-point numbers in layers\.0\.mlp\.up_proj"):
        from_huggingface(str(tmp_path))


def test_one_file_of_weights_goes_before_an_index(tmp_path):
    """As in transformers, for which an index beside it is that of an older save."""
    import torch
    from safetensors.numpy import load_file, save_file

    written(tmp_path, config_of("LlamaForCausalLM"), torch)
    _, expected = from_huggingface(str(tmp_path))
    arrays = load_file(tmp_path / "model.safetensors")
    save_file({name: 0 * array for name, array in arrays.items()}, tmp_path / "old.safetensors")
    index = {"weight_map": dict.fromkeys(arrays, "old.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    jax.tree.map(np.testing.assert_array_equal, from_huggingface(str(tmp_path))[1], expected)
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(InvalidInput, match="a pointer of git-lfs"):
        from_huggingface(str(tmp_path))


def test_folders_with_more_than_one_model_are_told_or_refused(tmp_path):
    import torch
    from safetensors.numpy import load_file, save_file

    written(tmp_path, config_of("LlamaForCausalLM"), torch)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.warns(UserWarning, match="the adapter in it is not applied"):
        from_huggingface(str(tmp_path))
    arrays = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").rename(tmp_path / "best.safetensors")
    save_file(arrays, tmp_path / "last.safetensors")
    with pytest.raises(InvalidInput, match=r"last\.safetensors: its arrays are in .*best"):
        from_huggingface(str(tmp_path))


def test_layers_without_positions_may_be_all(tmp_path):
    import torch

    theirs = written(
        tmp_path, config_of("SmolLM3ForCausalLM", no_rope_layers=[0, 0], pad_token_id=0), torch
    )
    model, params = from_huggingface(str(tmp_path))
    tokens = np.random.default_rng(0).integers(0, 37, (2, 12))
    expected = outputs(torch, theirs, {"input_ids": tokens})
    atol = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(model.apply({"params": params}, tokens), expected, atol=atol)


def test_classes_are_counted_and_other_problems_refused(tmp_path):
    import torch

    from transformer_jax import load_run

    bert = {"architectures": ["BertForSequenceClassification"], "model_type": "bert", **SMALL}
    _, model = model_of({**bert, "num_labels": 5}, "here")
    assert model.num_classes == 5
    with pytest.raises(InvalidInput, match="num_labels=3: id2label names 2"):
        model_of({**bert, "num_labels": 3, "id2label": {"0": "a", "1": "b"}}, "here")
    for number, changes in enumerate((
        {"num_labels": 1}, {"num_labels": 3, "problem_type": "multi_label_classification"},
        {"num_labels": 1, "problem_type": "regression"},
    )):  # fmt: skip
        folder = tmp_path / str(number)
        folder.mkdir()
        written(folder, bert | changes, torch)
        from_huggingface(str(folder))  # its logits are right
        with pytest.raises(InvalidInput, match="expected one label of several"):
            load_run(folder)


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("GPT2LMHeadModel", {"embd_pdrop": 0.3}, "embd_pdrop=0.3"),
        ("GPT2LMHeadModel", {"embd_pdrop": 0.0}, "embd_pdrop=0.0"),
        ("GPT2LMHeadModel", {"embd_pdrop": 0.1}, ""),
        ("BertForMaskedLM", {"classifier_dropout": 0.6}, ""),
        ("BertForSequenceClassification", {"classifier_dropout": 0.6}, "classifier_dropout=0.6"),
    ],
)
def test_dropout_rates_that_are_not_applied_are_told(name, changes, told):
    settings = {"architectures": [name], **SMALL, **changes}
    with pytest.warns(UserWarning, match=told) if told else contextlib.nullcontext():
        model_of(settings, "here")


def test_a_bias_that_theirs_lacks_is_not_lost(tmp_path):
    import torch

    written(tmp_path, config_of("Qwen2ForCausalLM"), torch)
    model, params = from_huggingface(str(tmp_path))
    assert to_huggingface(model, params).config["architectures"] == ["Qwen2ForCausalLM"]
    params["block_1"]["attention"]["out"]["bias"] += 1
    with pytest.raises(InvalidInput, match="has no block_1/attention/out/bias, which is not 0"):
        to_huggingface(model, params)


@pytest.mark.parametrize(
    ("name", "array", "shape"),
    [
        ("GPT2LMHeadModel", "transformer.h.0.attn.c_attn.weight", (32, 95)),
        ("GPT2LMHeadModel", "transformer.h.0.mlp.c_fc.weight", (128, 32)),
        ("GPTNeoXForCausalLM", "gpt_neox.layers.0.attention.query_key_value.weight", (95, 32)),
    ],
)
def test_arrays_of_a_wrong_shape_are_refused(tmp_path, name, array, shape):
    import torch
    from safetensors.numpy import load_file, save_file

    written(tmp_path, config_of(name), torch)
    arrays = load_file(tmp_path / "model.safetensors")
    arrays[array] = np.ones(shape, np.float32)
    save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(InvalidInput, match="arrays do not match"):
        from_huggingface(str(tmp_path))


def fuzzed(name, random):
    """A config with some fields absent, null, under a second name too, or out of range."""
    config = config_of(name)
    kind = config["model_type"]
    row = ARCHITECTURES[name]
    for _ in range(random.randrange(1, 4)):
        field = random.choice([*row.names.values(), "rope_scaling", "rope_theta"])
        change = random.random()
        if change < 0.3:
            config.pop(field, None)
        elif change < 0.45:
            config[field] = None
        elif change < 0.65 and ALIASES.get(kind):
            second, first = random.choice(list(ALIASES[kind].items()))
            config[second] = (config.get(first) or 8) * random.choice([1, 2])
        elif change < 0.8 and "rope" in field:
            config["rope_scaling"] = random.choice([LINEAR, LLAMA3, {"rope_type": "default"}])
            config["rope_parameters"] = {"rope_type": "default", "rope_theta": 77.0}
        elif isinstance(config.get(field), int):
            config[field] = random.choice([0, -1, config[field] * 2])
    return config


def test_configs_are_read_as_by_transformers_or_refused():
    """500 configs: each of ours has transformers' values, or names a field that it refuses."""
    import transformers as hf

    draw, accepted, loaded, wrong, refusals = random.Random(0), 0, 0, [], []
    for number in range(500):
        name = draw.choice(list(BASES))
        config = fuzzed(name, draw)
        try:
            theirs = hf.CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
            values = {n: getattr(theirs, n, None) for n in ARCHITECTURES[name].names.values()}
            if any(isinstance(v, int) and v < 0 for v in values.values()):
                raise ValueError("transformers takes it, and fails later")
        except Exception:
            continue
        accepted += 1
        try:
            _, model = model_of(config, "here")
        except InvalidInput as error:
            refusals.append(str(error))
            continue
        loaded += 1
        ours = ARCHITECTURES[name].describe(Described(model))
        for key, value in values.items():
            value = {"gelu_pytorch_tanh": "gelu_new"}.get(value, value)  # one function, two names
            if key in ours and value is not None and ours[key] != value:
                wrong.append((number, name, key, value, ours[key]))
        rope = getattr(theirs, "rope_parameters", None)
        has_one = name not in ("GPTJForCausalLM", "Gemma3ForCausalLM")  # the others fix or split it
        if has_one and "rope_theta" in (rope or {}) and model.options.position == "rotary":
            options = options_in_effect(model.options, "position")
            told = (options["max_wavelength"], options["scaling"].replace("none", "default"))
            if told != (rope["rope_theta"], rope["rope_type"]):
                wrong.append((number, name, told, rope))
    assert not wrong, wrong[:5]
    assert all("=" in refusal for refusal in refusals), refusals  # FIELD=VALUE: expected ...
    assert loaded > 0.6 * accepted > 100, (loaded, accepted)


def test_logits_of_random_configs_are_theirs(tmp_path):
    """40 configs of all families, those that load and are small enough."""
    import torch

    draw, rng, compared, names = random.Random(1), np.random.default_rng(0), 0, list(BASES)
    for number in range(400):
        name = names[number % len(names)]
        config = fuzzed(name, draw)
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            _, model = model_of(config, "here")
        except InvalidInput:
            continue
        sizes = [model.options.width, model.options.depth, model.max_length, model.vocab_size]
        if any(size > most for size, most in zip(sizes, (64, 4, 4096, 500), strict=True)):
            continue
        given, inputs, kept = inputs_of(name, rng)
        try:
            expected = kept_of(outputs(torch, written(folder, config, torch), given), kept)
        except Exception:
            continue  # transformers does not take it either
        try:
            ours, params = from_huggingface(str(folder))
        except InvalidInput as error:
            if "head_dim: rotary positions rotate pairs" not in str(error):
                raise
            continue
        actual = kept_of(jax.jit(ours.apply)({"params": params}, **inputs), kept)
        atol = 1e-5 * np.abs(expected).max()
        np.testing.assert_allclose(actual, expected, atol=atol, err_msg=str(config))
        compared += 1
        if compared == 40:
            return
    raise AssertionError(f"only {compared} configs could be compared")
