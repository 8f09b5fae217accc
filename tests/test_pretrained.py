"""Models of Hugging Face used at once: as a config, as a run, and a run of ours as one of theirs."""

import itertools
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from experiments import evaluate
from tests.conftest import attempt, random_params, refused, tiny_config
from transformer_jax import config_from_huggingface, load_run
from transformer_jax.config_files import flatten, load_config
from transformer_jax.data.huggingface_tokenizers import as_huggingface
from transformer_jax.data.special_tokens import special_tokens
from transformer_jax.data.subword_tokenizers import HuggingFaceTokenizer, tokenizers_library
from transformer_jax.data.tasks.classification import encode_texts
from transformer_jax.data.tokenizers import TOKENIZERS
from transformer_jax.errors import InvalidInput
from transformer_jax.generation import generate_after
from transformer_jax.interop import from_huggingface, to_huggingface
from transformer_jax.interop.huggingface import model_of
from transformer_jax.models import Decoder, Encoder, EncoderDecoder
from transformer_jax.options import entry_of
from transformer_jax.runs.initial_files import fingerprint_of
from transformer_jax.training.build import make_model
from transformer_jax.training.export import export_run
from transformer_jax.training.warm_start import start_from

TEXT = "cafe\N{COMBINING ACUTE ACCENT} To be, or not to be:\nthat is the question.\tÜber-größe… 你好, don't!\n\n"


@pytest.fixture(scope="module")
def folder(tiny_run, tmp_path_factory):
    """The tiny run, exported by the command; read it, never write to it."""
    out = tmp_path_factory.mktemp("exported") / "tiny"
    done = attempt("runs", "export", tiny_run, f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert "GPT2LMHeadModel" in done.stdout
    return out


@pytest.fixture
def text(tmp_path):
    """A file of a text that the tiny run has not read."""
    file = tmp_path / "mine.txt"
    file.write_text("Good morrow, cousin.\nIs the day so young?\n" * 200)
    return file


def drawn(model, seed=0):
    return random_params(model, scale=0.1, seed=seed)


def equal(params, others):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, params, others)))


SMALL = {"vocab_size": 9, "max_length": 24, "width": 16, "depth": 1}


@pytest.mark.parametrize("kind", list(TOKENIZERS))
def test_a_tokenizer_of_theirs_splits_and_joins_as_ours(kind):
    ours = entry_of(TOKENIZERS, kind).train([TEXT, "the thing that thinks\n" * 20], 300)
    theirs = as_huggingface(ours)
    texts = (TEXT, "that is\n\n\tthe thing, don't!", "\n")
    for text in ("5 299 0", "12") if kind == "numbers" else texts:
        tokens = ours.encode(text)
        assert theirs.encode(text).ids == tokens.tolist()
        assert theirs.decode(tokens.tolist(), skip_special_tokens=False) == ours.decode(tokens)
    assert theirs.get_vocab_size() == ours.vocab_size
    if kind == "char":
        with pytest.raises(Exception, match="UNK"):
            theirs.encode("€")


@pytest.mark.parametrize("kind", ["char", "bpe", "word"])
def test_special_tokens_stand_where_the_model_was_trained_with_them(kind):
    ours = entry_of(TOKENIZERS, kind).train([TEXT], 300)
    theirs = as_huggingface(ours, "{begin} $A {end}")
    texts = ["to be", ("that is", "the question.")]
    inputs, cut = encode_texts(ours, texts, 40)
    assert cut == 0
    for row, text in enumerate(texts):
        encoded = theirs.encode(*([text] if isinstance(text, str) else text))
        count = int(inputs["segments"][row].sum())
        assert encoded.ids == inputs["tokens"][row, :count].tolist()
        assert encoded.type_ids == inputs["types"][row, :count].tolist()
    specials = special_tokens(ours)
    assert theirs.get_vocab_size() == specials.vocab_size
    assert special_tokens(HuggingFaceTokenizer(theirs)) == specials


def test_special_tokens_of_a_file_of_theirs_are_found_or_added():
    """A language model reads none of them; what begins and ends a text keeps its own name."""
    library = tokenizers_library()
    words = library.models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "b": 3}, unk_token="a")
    made = library.Tokenizer(words)
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    made.post_processor = library.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    theirs = HuggingFaceTokenizer(made)
    assert as_huggingface(theirs).encode("a b").ids == [2, 3] == theirs.encode("a b").tolist()
    classifies = as_huggingface(theirs, "{begin} $A {end}")
    assert classifies.encode("a b").ids == [0, 2, 3, 1]
    assert classifies.token_to_id("[PAD]") == special_tokens(theirs).padding == 4
    assert classifies.token_to_id("[MASK]") == special_tokens(theirs).mask == 5


def test_an_exported_run_is_a_run_again(tiny_run, folder):
    """Biases of 0 were added, the tokenizer is another class: the same words and probabilities."""
    ours, again = load_run(tiny_run), load_run(folder)
    assert not ours.model.options.use_bias
    assert again.model.options.use_bias
    assert (again.step, again.classes) == (0, ())
    assert again.config.data.task == "language_modelling"
    assert f"weights of {folder}" in repr(again)
    text = "ROMEO:\nWhat is it"
    likely, same = (run.log_probabilities(text) for run in (ours, again))
    np.testing.assert_allclose(likely, same, atol=1e-5)
    greedy = {"num_tokens": 30, "temperature": 0}
    assert again.sample("ROMEO:", **greedy) == ours.sample("ROMEO:", **greedy)
    config = json.loads((folder / "config.json").read_text())
    assert config["eos_token_id"] is None
    assert config["n_embd"] == 32


def test_the_model_card_says_what_was_trained_and_how_well(tiny_run, folder):
    page = (folder / "README.md").read_text()
    test_loss = json.loads((tiny_run / "evaluation.json").read_text())["test"]["loss"]
    words = ("# tiny", "50 updates", "language_modelling", "shakespeare", f"{test_loss:.4f}")
    for word in (*words, "import AutoModelForCausalLM", "model.width=32"):
        assert word in page, word
    assert "Started from" not in page


def test_what_cannot_be_exported_is_refused_and_writes_nothing(tiny_run, folder, tmp_path):
    again = attempt("runs", "export", tiny_run, f"--out={folder}")
    refused(again, "exists and is not an empty folder")
    run, model = load_run(tiny_run), Decoder.of(**SMALL, position="shaw", use_bias=False)
    own_tokenizer = type("Own", (), {"vocab_size": 2})()
    for other, words in (
        (type(run)(run.config, model, drawn(model), run.tokenizer, 1), "shaw here, learned if ex"),
        (type(run)(run.config, run.model, run.params, own_tokenizer, 1), "Own: transformers does"),
    ):
        with pytest.raises(InvalidInput, match=words):
            export_run(other, tmp_path / "x", "x")
    assert not (tmp_path / "x").exists()


MODELS = {
    "decoder": Decoder.of(**SMALL, dropout_rate=0.25),
    "llama": Decoder.of(
        **SMALL | {"max_length": 80, "depth": 2},
        **{"num_kv_heads": 2, "mlp_dim": 24, "mask": "window", "mask_options": {"size": 5}},
        **{"position": "rotary", "position_options": {"max_wavelength": 50.0}},
        **{"norm": "rms_norm", "feed_forward": "gated", "activation": "silu"},
        **{"use_bias": False, "tie_embeddings": False},
    ),
    "masked": Encoder.of(**SMALL, num_types=2),
    "classes": Encoder.of(**SMALL, num_types=2, num_classes=3),
    "bart": EncoderDecoder.of(**SMALL, position="learned", embedding_norm=True, output_bias=True),
    "t5": EncoderDecoder.of(
        **SMALL,
        **{"head_dim": 6, "position": "t5", "attention_scale": 1.0, "feed_forward": "gated"},
        **{"activation": "gelu_tanh", "norm": "rms_norm", "wiring": "pre", "use_bias": False},
        **{"tie_output": False, "scale_embeddings": False},
    ),
}
TASKS = {"masked": "masked_language_modelling", "classes": "text_classification"}
TASKS |= dict.fromkeys(("bart", "t5"), "translation")


@pytest.mark.parametrize("name", list(MODELS))
def test_a_folder_is_a_config_that_makes_its_model(name, tmp_path):
    model = MODELS[name]
    to_huggingface(model, drawn(model), tmp_path / "weights")
    config = config_from_huggingface(tmp_path / "weights")
    assert config.initial.weights == str(tmp_path / "weights")
    assert config.data.task == TASKS.get(name, "language_modelling")
    assert config.data.length == min(64, model.max_length)
    sizes = {"vocab_size": 9, "num_classes": getattr(model, "num_classes", None)}
    made = make_model(config, sizes)
    params, remarks = start_from(made, drawn(made, seed=1), config.initial, None)
    assert "new" not in remarks[0]
    assert "not used" not in remarks[0]
    assert equal(params, drawn(model))
    assert made.options.dropout_rate == model.options.dropout_rate
    config.model.width = 32  # it can be changed, as every config can


def test_names_of_published_files_are_read(tmp_path):
    """BERT's have a head for the next sentence and old names of norms; others lie in parts."""
    model = MODELS["masked"]
    params = drawn(model)
    state = to_huggingface(model, params, tmp_path / "new").state
    renamed = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old = {}
    for name, array in state.items():
        for new_name, old_name in renamed.items():
            name = name.replace(new_name, old_name)
        old[name] = array
    assert any("gamma" in name for name in old)
    old |= {"cls.seq_relationship.weight": np.ones((2, 16), np.float32)}
    folder = tmp_path / "old"
    folder.mkdir()
    (tmp_path / "new" / "config.json").rename(folder / "config.json")
    first, *rest = old
    save_file({first: old[first]}, folder / "model-1.safetensors")
    save_file({name: old[name] for name in rest}, folder / "model-2.safetensors")
    save_file({"another.copy": old[first]}, folder / "consolidated.safetensors")
    index = folder / "model.safetensors.index.json"
    parts = {**dict.fromkeys(rest, "model-2.safetensors"), first: "model-1.safetensors"}
    index.write_text(json.dumps({"weight_map": parts}))
    assert equal(from_huggingface(folder).params, params)
    index.write_text("[]")
    with pytest.raises(InvalidInput, match="not a valid weight index"):
        from_huggingface(folder)


def test_a_character_that_a_model_does_not_know_is_refused(folder, text):
    text.write_text("Good morrow, cousin.\n" * 50 + "It costs 5 €.\n" * 50)
    done = attempt("train", f"--config={folder}", f"--config.data.source={text}", "--dry_run")
    refused(done, "character '5' (U+0035) at offset")
    done = attempt("sample", f"--workdir={folder}", "--prompt=5 €")
    refused(done, "character '5' (U+0035) at offset 0")


@pytest.mark.thorough
def test_training_starts_from_a_folder_that_stands_for_a_config(folder, text, tmp_path):
    """The model's shapes, tokenizer and weights, on any text."""
    workdir = tmp_path / "tuned"
    done = attempt(
        *("train", f"--config={folder}", f"--workdir={workdir}", f"--config.data.source={text}"),
        *("--config.training.steps=4", "--config.data.length=16", "--config.training.batch_size=4"),
        *("--config.optimizer.learning_rate=1e-3", "--config.evaluation.batch_size=64"),
        *("--config.sample.num_tokens=0", "--config.logging.every=1"),
    )
    assert done.returncode == 0, done.stderr
    run = load_run(workdir)
    assert run.config.model.width == 32
    assert run.tokenizer.vocab_size == load_run(folder).model.vocab_size
    assert "weights of" in done.stdout
    assert "new:" not in done.stdout
    # Untrained weights begin at log(65) = 4.17; these have learned letters before.
    assert run.metrics[0]["train/loss"] < 3.9


def test_commands_take_a_folder_as_a_run(folder, text, tmp_path):
    flags = (f"--workdir={folder}", "--prompt=ROMEO:")
    sampled = attempt("sample", *flags, "--num_tokens=8", "--temperature=0")
    assert sampled.returncode == 0, sampled.stderr
    assert sampled.stdout.startswith("ROMEO:")
    scored = attempt("evaluate", f"--workdir={folder}", f"--source={text}", "--json")
    assert scored.returncode == 0, scored.stderr
    assert 1 < json.loads(scored.stdout)["means"]["loss"] < 4.5
    looked = attempt("inspect_run", *flags, f"--out={tmp_path / 'a.png'}")
    assert looked.returncode == 0, looked.stderr
    assert (tmp_path / "a.png").exists()


def test_a_run_is_scored_on_other_data_if_it_was_made_for_such(tiny_run, text, tmp_path):
    other = attempt("evaluate", f"--workdir={tiny_run}", f"--source={text}", "--json")
    assert other.returncode == 0, other.stderr
    itself = load_run(tiny_run).metrics[-1]
    loss = json.loads(other.stdout)["means"]["loss"]
    assert loss not in (pytest.approx(itself["eval/loss"]), pytest.approx(itself["test/loss"]))
    refused(attempt("evaluate", f"--workdir={tiny_run}", "--source=none.txt"), "none.txt")
    shards = tmp_path / "shards"
    made = attempt("make_shards", f"--source={text}", "--tokenizer=char", f"--out={shards}")
    assert made.returncode == 0, made.stderr
    other = attempt("evaluate", f"--workdir={tiny_run}", f"--source={shards}")
    refused(other, "its tokens come from a different tokenizer")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "template", "begin", "source"),
    [("bart", "{begin} $A {end}", [7, 6], [6, 0, 1, 2, 7]), ("t5", "$A {end}", [5], [0, 1, 2, 7])],
)
def test_a_translation_begins_and_ends_as_it_says(name, template, begin, source, tmp_path, capsys):
    """BART reads <s> and </s> around a text and writes behind </s> <s>, T5 behind its padding."""
    model, tokenizer = MODELS[name], entry_of(TOKENIZERS, "char").train(["abcde"], 0)
    params = jax.tree.map(lambda array: 20 * array, drawn(model, seed=3))
    theirs = dict(zip(("decoder_start_token_id", "forced_bos_token_id"), begin, strict=False))
    theirs["eos_token_id"] = 7
    folder = tmp_path / "weights"
    to_huggingface(model, params, folder, settings=theirs if name == "bart" else None)
    with pytest.raises(InvalidInput, match=r"no tokenizer.json, which is needed to generate text"):
        load_run(folder)
    as_huggingface(tokenizer, template).save(str(folder / "tokenizer.json"))
    if name == "t5":
        with pytest.raises(InvalidInput, match="no decoder_start_token_id, which is needed"):
            load_run(folder)
        (folder / "generation_config.json").write_text(json.dumps(theirs))
    run = load_run(folder)
    assert run.source_tokens("abc") == source
    assert run.target_begin == tuple(begin)
    inputs, count = {"source": np.array([source])}, 25 - len(begin)
    written = generate_after(run.model, run.params, inputs, np.array(begin), num_tokens=count)
    seen = np.concatenate([begin, written[0, :-1]])[None]
    logits = run.model.apply({"params": run.params}, tokens=seen, **inputs)
    np.testing.assert_array_equal(written[0], logits[0, len(begin) - 1 :].argmax(-1))
    words = itertools.takewhile(lambda token: token != 7, written[0].tolist())
    answers = run.translate(["abc", "d"])
    assert answers[0] == run.tokenizer.decode(list(words)).strip()
    file = folder / ("config.json" if name == "bart" else "generation_config.json")
    text = file.read_text()
    for change, words in (
        ({"eos_token_id": 2}, "eos_token_id=2: expected 7, as in tokenizer"),
        ({"eos_token_id": [7, 2]}, r"eos_token_id=\[7, 2\]: expected 7"),
        ({"decoder_start_token_id": 999}, "begin token 999: expected an integer from 0 to"),
        ({"forced_bos_token_id": "a"}, "begin token a: expected an integer"),
    ):
        file.write_text(json.dumps(json.loads(text) | change))
        with pytest.raises(InvalidInput, match=words):
            load_run(folder)
    if name == "bart":
        old = {"forced_bos_token_id": None, "force_bos_token_to_be_generated": True}
        file.write_text(json.dumps(json.loads(text) | old | {"bos_token_id": 6}))
        assert load_run(folder).target_begin == tuple(begin)
    file.write_text(text)
    export_run(run, tmp_path / "again", "again")
    again = load_run(tmp_path / "again")
    assert (again.begins, again.source_tokens("abc")) == (run.begins, source)
    if name == "t5":  # a file of 1.0 names no such layer; and 1.1's are gated
        file = tmp_path / "again" / "config.json"
        settings = json.loads(file.read_text())
        del settings["feed_forward_proj"]
        assert model_of(settings, "")[1].options.feed_forward == "mlp"
    assert again.translate(["abc", "d"]) == answers
    pairs = itertools.product("abcde", "abcd", ("e", 30 * "e"))
    rows = [f"{''.join(pair)}\t{pair[0]}" for pair in pairs]
    (tmp_path / "pairs.tsv").write_text("\n".join(rows) + "\n")
    evaluate.main([f"--workdir={folder}", f"--source={tmp_path / 'pairs.tsv'}"])
    assert "note   20 pairs are left out: they do not fit into" in capsys.readouterr().err


def test_a_name_on_the_hub_serves_where_a_folder_does(folder, tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def snapshot_download(repository, revision, allow_patterns):
        asked.append((repository, revision))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    config = config_from_huggingface("someone/tiny")
    assert config.initial.weights == "someone/tiny"
    assert config.data.tokenizer == str(folder / "tokenizer.json")
    hashes = fingerprint_of(config.initial)
    assert hashes == fingerprint_of(tiny_config(initial__weights=str(folder)).initial)
    run = load_run("someone/tiny")
    assert run.sample("ROMEO:", num_tokens=5, temperature=0)
    own = drawn(run.model, 3)
    params, remarks = start_from(run.model, own, config.initial, run)
    assert remarks[0].startswith("weights of someone/tiny: ")
    assert set(asked) == {("someone/tiny", None)}
    for revision in ("v1.0", "refs/pr/3", "0123456789" * 4):
        asked.clear()
        pinned = config_from_huggingface(f"someone/tiny@{revision}")
        assert fingerprint_of(pinned.initial) == hashes
        assert set(asked) == {("someone/tiny", revision)}
    asked.clear()
    # What is a path here, missing or not, is never asked for there.
    monkeypatch.chdir(tmp_path)
    for missing in ("runs/typo", "./typo", str(tmp_path / "typo"), "typo"):
        with pytest.raises(InvalidInput, match="no run here"):
            load_run(missing)
    assert asked == []


def config_file(path, folder):
    """A config of the user's that starts from a folder."""
    path.write_text(
        "from transformer_jax import config_from_huggingface\n\n\n"
        f"def get_config():\n    config = config_from_huggingface({str(folder)!r})\n"
        "    config.training.steps = 700\n    return config\n"
    )
    return path


_OF_LLAMA = {
    **{"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "max_position_embeddings": 8, "rms_norm_eps": 1e-6},
    "hidden_act": "silu",
}


def test_what_is_no_model_is_refused_by_name(tmp_path):
    (tmp_path / "empty").mkdir()
    refused(attempt("train", f"--config={tmp_path / 'empty'}"), "a folder", "a Python file (.py)")
    model = MODELS["bart"]
    to_huggingface(model, drawn(model), tmp_path / "bart")
    with pytest.raises(InvalidInput, match=r"no tokenizer.json, which is needed to generate text"):
        load_run(tmp_path / "bart")
    for damaged in ({"hidden_act": ["silu"]}, {"rope_scaling": "linear"}):
        settings = {"architectures": ["LlamaForCausalLM"], **_OF_LLAMA, **damaged}
        with pytest.raises(InvalidInput, match=r"^here: config.json: \w+Error: "):
            model_of(settings, "here")
    with pytest.raises(InvalidInput, match=r"here: architectures: \['x'\]: expected one of"):
        model_of({"architectures": [["x"]]}, "here")
    (tmp_path / "bart" / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
    with pytest.raises(InvalidInput, match=r"config.json/below: Not a directory"):
        to_huggingface(model, drawn(model), tmp_path / "bart" / "config.json" / "below")
    done = attempt("train", f"--config={tmp_path / 'bart'}")
    refused(done, "MambaForCausalLM: expected one of GPT2LMHeadModel")
    assert "InvalidInput" not in done.stderr
    done = attempt("train", f"--config={config_file(tmp_path / 'mine.py', tmp_path / 'none')}")
    refused(done, "mine.py at line 5", "none: no such folder")


def test_a_config_file_of_three_lines_changes_what_it_wants(folder, tmp_path):
    own = config_file(tmp_path / "mine.py", folder)
    flat = flatten(load_config(str(own), {"model.dropout_rate": "0.5"}))
    wanted = {"training.steps": 700, "model.width": 32, "model.dropout_rate": 0.5}
    assert flat | wanted | {"model.use_bias": True} == flat
    done = attempt("ablate", f"--config={own}", "--arm=model.widht=1,2", f"--workdir={tmp_path}/s")
    refused(done, "model.widht", "model.width")
