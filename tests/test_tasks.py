"""The tasks beside language modelling: batches written out, and whole runs on a user's own data."""

import dataclasses
import functools
import os
import re
import signal

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from tests import conftest
from tests.conftest import attempt, checkpoint_of, fingerprint_of, refused, tree_hash
from transformer_jax import load_run
from transformer_jax.config_files import from_json, load_config, to_json
from transformer_jax.data.order import SPLITS
from transformer_jax.data.sources.stream import TokenStream
from transformer_jax.data.special_tokens import special_tokens
from transformer_jax.data.subword_tokenizers import WordTokenizer
from transformer_jax.data.tasks.classification import encode_texts, shifted_and_flipped
from transformer_jax.data.tasks.masked_language_modelling import MaskedLanguageModelling
from transformer_jax.data.tasks.translation import Translation
from transformer_jax.data.tokenizers import CharTokenizer, unknown_words
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.interruption import Interrupted
from transformer_jax.runs.progress import Silent
from transformer_jax.training import loop
from transformer_jax.training.build import count_parameters, make_model, make_task
from transformer_jax.training.loop import train
from transformer_jax.training.prepared import prepare
from transformer_jax.training.warm_start import start_from

LETTERS = CharTokenizer.train(["abcd"], 0)
PADDING, BEGIN, END = special_tokens(LETTERS)[:3]


def test_special_tokens_follow_the_vocabulary():
    assert special_tokens(LETTERS) == (4, 5, 6, 7, 8)


def test_a_translation_batch_written_out():
    splits = {"train": np.array([0, 1]), "validation": np.array([1]), "test": np.array([0, 1])}
    task = Translation(splits, 2, LETTERS, [("ab", "c"), ("a", "cd")], length=4)
    (batch,) = task.evaluation_batches("test", 2)
    assert {name: array.tolist() for name, array in batch["inputs"].items()} == {
        "source": [[0, 1, END, PADDING], [0, END, PADDING, PADDING]],
        "source_segments": [[1, 1, 1, 0], [1, 1, 0, 0]],
        "tokens": [[BEGIN, 2, PADDING, PADDING], [BEGIN, 2, 3, PADDING]],
        "segments": [[1, 1, 0, 0], [1, 1, 1, 0]],
    }
    assert batch["targets"][0, :2].tolist() == [2, END]
    assert batch["targets"][1, :3].tolist() == [2, 3, END]
    assert batch["weights"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]


def masked_task(tokens=4000, length=9):
    text = "".join(chr(ord("a") + n % 26) for n in range(tokens))
    tokenizer = CharTokenizer.train([text], 0)
    stream = TokenStream(tokenizer.encode(text), np.array([0]), 0, tokens, "test")
    return MaskedLanguageModelling(tokenizer, dict.fromkeys(SPLITS, stream), length, 64)


def test_hidden_tokens_are_chosen_as_bert_chooses_them():
    """15 % of the places; of these 80 % masked, 10 % random (a 26th of it right), 10 % kept."""
    task = masked_task()
    batches = [task.batch(0, step) for step in range(60)]
    targets, weights = (np.concatenate([b[key] for b in batches]) for key in ("targets", "weights"))
    tokens = np.concatenate([batch["inputs"]["tokens"] for batch in batches])
    assert (tokens[:, 0] == task.specials.begin).all()
    assert (weights[:, 0] == 0).all()
    chosen = weights > 0
    assert chosen[:, 1:].mean() == pytest.approx(0.15, abs=0.01)
    np.testing.assert_array_equal(tokens[~chosen], targets[~chosen])
    assert (tokens == task.specials.mask)[chosen].mean() == pytest.approx(0.8, abs=0.02)
    assert (tokens == targets)[chosen].mean() == pytest.approx(0.1 + 0.1 / 26, abs=0.02)


@pytest.mark.parametrize("batch_size", [7, 100])
def test_evaluation_reads_all_the_text_and_hides_the_same_places(batch_size):
    """The law whole_splits compares inputs and targets; here the places, and the text itself."""
    batches = list(masked_task(tokens=100).evaluation_batches("test", batch_size))
    targets, weights = (np.concatenate([b[key] for b in batches]) for key in ("targets", "weights"))
    segments = np.concatenate([batch["inputs"]["segments"] for batch in batches])
    assert segments[:13].sum() == 100 + 13  # all the text, and a begin token for each window
    np.testing.assert_array_equal(targets[segments == 1][1:9], np.arange(8))
    (reference,) = masked_task(tokens=100).evaluation_batches("test", 13)
    np.testing.assert_array_equal(weights[:13], reference["weights"])
    assert weights.sum() == reference["weights"].sum()  # rows beyond the text do not count


@pytest.mark.parametrize(
    ("texts", "length", "tokens", "types", "num_cut"),
    [
        (["ab", "abcd"], 5, [[BEGIN, 0, 1, END, PADDING], [BEGIN, 0, 1, 2, END]], None, 1),
        (
            [("ab", "c"), ("abcd", "cd"), ("ab", "abcd")],  # the longer one is cut
            7,
            [
                [BEGIN, 0, 1, END, 2, END, PADDING],
                [BEGIN, 0, 1, END, 2, 3, END],
                [BEGIN, 0, 1, END, 0, 1, END],
            ],
            [[0, 0, 0, 0, 1, 1, 0], *[[0, 0, 0, 0, 1, 1, 1]] * 2],
            2,
        ),
    ],
    ids=["one text", "two texts"],
)
def test_texts_are_framed_typed_and_cut_with_a_count(texts, length, tokens, types, num_cut):
    inputs, cut = encode_texts(LETTERS, texts, length)
    assert inputs["tokens"].tolist() == tokens
    assert inputs["segments"].tolist() == (np.array(tokens) != PADDING).tolist()
    assert ("types" in inputs) == (types is not None)
    assert types is None or inputs["types"].tolist() == types
    assert cut == num_cut


def test_examples_with_one_first_text_are_in_one_split(sources):
    task = make_task(config_for("labelled pairs", sources))
    assert task.sizes["num_types"] == 2
    ends = (task.inputs["types"] == 0) & (task.inputs["segments"] == 1)
    firsts = [tuple(row[kept]) for row, kept in zip(task.inputs["tokens"], ends, strict=True)]
    parts = [{firsts[i] for i in task.splits[split]} for split in task.splits]
    assert all(parts)
    assert sum(map(len, parts)) == len(set().union(*parts))
    with pytest.raises(InvalidInput, match=r"data.length=4: two texts with special tokens"):
        make_task(config_for("labelled pairs", sources, **{"data.length": 4}))


def test_images_move_and_are_mirrored():
    images = np.arange(1, 10).reshape(1, 3, 3, 1).repeat(2000, 0)
    moved = shifted_and_flipped(images, np.random.default_rng(0), 1, True)[..., 0]
    kinds = {image.tobytes() for image in moved}
    assert len(kinds) == 9 * 2  # nine shifts, mirrored or not
    down_right = np.array([[0, 0, 0], [0, 1, 2], [0, 4, 5]])
    assert any(np.array_equal(image, down_right) for image in moved)
    mirrored = np.array([[3, 2, 1], [6, 5, 4], [9, 8, 7]])
    assert any(np.array_equal(image, mirrored) for image in moved)
    same = shifted_and_flipped(images, np.random.default_rng(0), 0, False)
    np.testing.assert_array_equal(same, images)


def test_pixels_are_normalised_by_the_training_split_alone(rng, tmp_path):
    images = rng.integers(0, 100, (400, 4, 4, 1)).astype(np.uint8)
    arrays = {"train_images": images, "train_labels": np.arange(400) % 2}
    arrays |= {"test_images": images[:50] + 100, "test_labels": np.arange(50) % 2}
    np.savez(tmp_path / "a.npz", **arrays)
    task = make_task(config_for("images", {"images": tmp_path / "a.npz"}))
    batches = {split: next(task.evaluation_batches(split, 400)) for split in ("train", "test")}
    pixels = batches["train"]["inputs"]["images"][batches["train"]["weights"] > 0]
    assert pixels.mean() == pytest.approx(0, abs=1e-5)
    assert pixels.std() == pytest.approx(1, abs=1e-4)
    assert batches["test"]["inputs"]["images"].mean() > 2


def test_words_and_unknown_words():
    tokenizer = WordTokenizer.train(["The cat, the dog.", "a cat"], 300)
    assert tokenizer.words[:3] == ["<unknown>", "cat", "the"]
    assert tokenizer.decode(tokenizer.encode("The zebra, the CAT!")) == (
        "the <unknown> , the cat <unknown>"
    )
    assert unknown_words(tokenizer) == "2 of 6 tokens stand for unknown words"


SHORT = {
    **{"data.length": 16, "data.vocab_size": 300, "data.tokenizer": "char"},
    **{"data.splits": "0.7,0.15,0.15", "model.max_length": 16, "model.width": 16},
    **{"model.depth": 1, "model.dropout_rate": 0.1, "model.num_heads": 2},
    **{"training.steps": 12, "training.batch_size": 8, "schedule.warmup_steps": 2},
    **{"evaluation.every": 6, "evaluation.batch_size": 32},
    **{"logging.every": 3, "checkpoint.every": 5},
}
TASK = {
    "pairs": {"data.task": "translation", "model.architecture": "encoder_decoder"},
    "text": {"data.task": "masked_language_modelling", "model.architecture": "encoder"},
    "recurrent text": {"model.architecture": "recurrent_decoder"},
    "labelled": {"data.task": "text_classification", "model.architecture": "encoder"},
    "labelled pairs": {"data.task": "text_classification", "model.architecture": "encoder"},
    "recurrent labelled pairs": {
        **{"data.task": "text_classification", "model.architecture": "recurrent_encoder"},
        **{"model.match_parameters": "encoder", "model.bidirectional": True},
    },
    "images": {
        **{"data.task": "image_classification", "model.architecture": "vision_transformer"},
        **{"data.max_shift": 1, "data.flip": True},
    },
    "vectors": {
        **{"data.task": "vector_classification", "model.architecture": "encoder"},
        "model.pooling": "mean",
    },
}


def config_for(kind, sources, **changes):
    overrides = SHORT | TASK[kind] | {"data.source": sources.get(kind, "x")} | changes
    path = str(conftest.ROOT / "configs" / "reference.py")
    return load_config(path, {key: str(value) for key, value in overrides.items()})


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A user's own file for each task."""
    folder = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    words = ["red", "green", "blue", "cat", "dog", "sees", "runs", "far"]
    sentences = [" ".join(rng.choice(words, 2)) for _ in range(200)]
    (folder / "pairs.tsv").write_text("".join(f"{s}\t{s[::-1]}\n" for s in sentences))
    (folder / "text.txt").write_text("\n".join(sentences))
    rows = [f"{'animal' if 'cat' in s or 'dog' in s else 'other'}\t{s}\n" for s in sentences]
    (folder / "labelled.tsv").write_text("label\ttext\n" + "".join(rows))
    rows = [f"{a}\t{b}\t{a[:3] == b[:3]}\n" for a in sentences[:50] for b in sentences[:4]]
    (folder / "two.tsv").write_text("text\ttext_pair\tlabel\n" + "".join(rows))
    labels = rng.integers(0, 3, 200)
    images = (rng.integers(0, 50, (200, 8, 8)) + 60 * labels[:, None, None]).astype(np.uint8)
    np.savez(folder / "images.npz", images=images, labels=labels)
    series = rng.normal(size=(200, 10, 4)) + labels[:, None, None]
    lengths = rng.integers(2, 11, 200)
    np.savez(folder / "vectors.npz", vectors=series, labels=labels, lengths=lengths)
    names = {"pairs": "pairs.tsv", "text": "text.txt", "labelled": "labelled.tsv"}
    names |= {"images": "images.npz", "vectors": "vectors.npz", "labelled pairs": "two.tsv"}
    return {kind: folder / names[kind.removeprefix("recurrent ")] for kind in TASK}


@pytest.fixture(scope="module")
def runs(sources, tmp_path_factory):
    """kind -> a finished run, trained when it is first asked for."""
    folder = tmp_path_factory.mktemp("runs")

    def run_of(kind):
        if not (folder / kind).exists():
            train(config_for(kind, sources), folder / kind, Silent())
        return folder / kind

    return run_of


class EndAt(Silent):
    """Ends a run at a step as SIGTERM does."""

    def __init__(self, step):
        super().__init__()
        self._step = step

    def step(self, step, *_):
        if step >= self._step:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("one_program")
@pytest.mark.parametrize("kind", conftest.a_few_of(TASK, ("pairs",)))
def test_own_data_resumes_to_the_same_bits_and_loads(kind, runs, sources, tmp_path, monkeypatch):
    whole, config = runs(kind), config_for(kind, sources)
    row = RunDirectory(whole).metrics()[-1]
    assert row["step"] == 12
    assert np.isfinite([row["test/loss"], row["eval/accuracy"]]).all()
    assert ("test/bleu" in row) == (kind == "pairs")
    assert list((whole / "samples").iterdir())
    monkeypatch.setattr(loop, "_SECONDS_PER_CALL", 0.0)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "a", EndAt(7))
    train(config, tmp_path / "a", Silent())
    assert fingerprint_of(tmp_path / "a") == fingerprint_of(whole)
    assert tree_hash(load_run(whole).params) == tree_hash(checkpoint_of(whole).state.params)


@pytest.mark.thorough
@pytest.mark.usefixtures("one_program")
def test_every_run_answers_in_its_own_way(runs):
    loaded = {kind: load_run(runs(kind)) for kind in TASK}
    translations = loaded["pairs"].translate(["red cat", "dog"])
    assert len(translations) == 2
    said = attempt(
        "sample", f"--workdir={runs('pairs')}", "--prompt=dog", "--temperature=2", "--seed=3"
    )
    assert "answers are not sampled; ignored: --seed, --temperature" in said.stderr
    assert said.stdout.strip() == translations[1].strip()
    shares = loaded["labelled"].classify(["red cat", "blue"])
    assert shares.shape == (2, 2)
    np.testing.assert_allclose(shares.sum(-1), 1, atol=1e-5)
    assert loaded["labelled"].classes == ("animal", "other")
    with pytest.warns(UserWarning, match=r"1 of 2 texts are truncated to data\.length=\d+ tokens"):
        loaded["labelled"].classify(["red cat", "blue" * 99])
    words = dataclasses.replace(loaded["labelled"], tokenizer=WordTokenizer(["<unknown>", "red"]))
    told = functools.partial(pytest.warns, UserWarning, match="1 of [37] tokens stand for unknown")
    with told():
        words.classify(["red cat", "red"])
    pairs = loaded["labelled pairs"].classify([("red cat", "blue"), ("blue", "red cat")])
    assert pairs.shape == (2, 2)
    assert abs(pairs[0] - pairs[1]).max() > 0  # types and places tell first from second
    assert len(loaded["text"].fill_in("red ___at")) == 5
    words = WordTokenizer(["<unknown>", "red"])
    with told():
        filled = dataclasses.replace(loaded["text"], tokenizer=words).fill_in("red red cat ___")
    assert [text for text, _ in filled] == ["red"]  # neither special tokens nor unknown words
    with told():
        dataclasses.replace(loaded["pairs"], tokenizer=words).translate(["red cat"])
    assert len(loaded["recurrent text"].sample("red", 5)) == 5
    for kind, method, given, words in (
        ("pairs", "sample", "red", "data.task=language_modelling, got data.task=translation"),
        ("pairs", "translate", ["red cat " * 9], "does not fit into data.length=16"),
        ("text", "fill_in", "red cat", "expected a text with one ___"),
        ("pairs", "translate", "red cat", "expected a list of texts, got 'red cat'"),
        ("labelled", "classify", [], "expected at least one text, got none"),
        ("labelled", "classify", [("red cat", "blue")], "expected a text for each example, got"),
        ("labelled pairs", "classify", ["red"], "expected a pair of texts for each example"),
    ):
        with pytest.raises(InvalidInput, match=words):
            getattr(loaded[kind], method)(given)
    answer = attempt("sample", f"--workdir={runs('labelled pairs')}", "--prompt=red cat\tblue")
    assert re.fullmatch(r"(0\.\d{3}  (True|False)\n){2}", answer.stdout), answer.stderr


@pytest.mark.thorough
def test_translations_and_images_are_looked_into(runs, tmp_path):
    def looked(kind, *flags, out=tmp_path / "seen.png"):
        return attempt("inspect_run", f"--workdir={runs(kind)}", *flags, f"--out={out}")

    done = looked("pairs", "--prompt=red cat")
    assert done.stdout.startswith("red cat: "), done.stderr
    with np.load(tmp_path / "seen.npz") as arrays:
        words = arrays["words"]
        assert arrays["source_words"].tolist() == [*"red cat", "[end]"]
        assert words[0] == "[begin]"
        for name, shape in (
            ("encoder/block_0/attention", (8, 8)),
            ("decoder/block_0/attention", (len(words), len(words))),
            ("decoder/block_0/cross_attention", (len(words), 8)),
        ):
            assert arrays[f"{name}/weights"].shape[1:] == shape
        assert arrays["tokens"].shape == (len(words),)
    assert (tmp_path / "seen.png").read_bytes()[:4] == b"\x89PNG"
    done = looked("images", "--example=2", out=tmp_path / "image.png")
    assert re.match(r"example 2 of the test split: model [012], truth [012]\n", done.stdout)
    with np.load(tmp_path / "image.npz") as arrays:
        assert arrays["images"].shape == (8, 8, 1)
        assert len(set(arrays["block_0/attention/weights"].shape[1:])) == 1
    assert looked("vectors").returncode == 0
    refused(looked("images", "--prompt=red"), "reads no text", "--example=0")
    refused(looked("images", "--example=999"), "--example=999: expected 0 to ")
    refused(looked("text"), "expected --prompt=TEXT")
    refused(looked("pairs", f"--prompt={'red cat ' * 9}"), "expected 1 to 15")


def test_bleu_is_sacrebleus_over_all_references(runs):
    import sacrebleu

    run = load_run(runs("pairs"))
    references = make_task(run.config, run.tokenizer).references("test")
    assert all(targets == [source[::-1]] * len(targets) for source, targets in references.items())
    firsts = [[targets[0] for targets in references.values()]]
    expected = sacrebleu.corpus_bleu(run.translate(references), firsts).score
    assert RunDirectory(runs("pairs")).metrics()[-1]["test/bleu"] == pytest.approx(expected)
    protocol = RunDirectory(runs("pairs")).evaluation()["test"]["protocol"]
    assert "nrefs:" in protocol["bleu"]
    assert protocol["sentences"] == len(references)


@pytest.mark.parametrize(
    ("cell", "other"),
    [
        *(pytest.param(cell, "decoder", marks=pytest.mark.thorough) for cell in ("rnn", "gru")),
        ("lstm", "decoder"),
        ("lstm", "encoder"),
    ],
)
def test_a_matched_baseline_has_as_many_parameters(cell, other):
    kind = "recurrent text" if other == "decoder" else "recurrent labelled pairs"
    facts = {"vocab_size": 65} | ({"num_classes": 3, "num_types": 2} if other == "encoder" else {})
    wide = {"model.width": 64, "model.depth": 3, "model.cell": cell}
    if other == "encoder":  # in one direction: of two, a width is 1.1 % more than the one before
        wide["model.bidirectional"] = False
    matched = config_for(kind, {}, **wide | {"model.match_parameters": other})
    plain = {"model.match_parameters": None, "model.architecture": other}
    wanted = count_parameters(make_model(config_for(kind, {}, **wide | plain), facts))
    model = make_model(matched, facts)
    stored = from_json(to_json(matched), "here")  # which spells the defaults out
    assert make_model(stored, facts).width == model.width
    assert count_parameters(model) == pytest.approx(wanted, rel=0.01)
    widths = [model.width + step for step in (-1, 0, 1)]
    off = [abs(count_parameters(model.clone(width=width)) - wanted) for width in widths]
    assert off[1] == min(off)


def from_run(run, **changes):
    return {"initial.weights": run, "data.tokenizer": run / "tokenizer.json", **changes}


def start_of(config):
    """The parameters that a run begins with, in place of compiled draws simple ones."""
    prepared = prepare(config)
    drawn = conftest.random_params(prepared.model)
    return start_from(prepared.model, drawn, config.initial, prepared.task)[0], drawn


@pytest.mark.usefixtures("one_program")
def test_fine_tuning_starts_from_a_run(runs, sources, tmp_path, capsys):
    options = from_run(runs("text"), **{"training.steps": 3})
    train(config_for("labelled", sources, **options), tmp_path / "a")
    assert "new: head, pooler; not used: output_bias, transform" in capsys.readouterr().out
    assert RunDirectory(tmp_path / "a").manifest()["initial"]["weights"]
    before, after = (
        load_run(run).params["block_0"]["attention"]["query"]["kernel"]
        for run in (runs("text"), tmp_path / "a")
    )
    assert 0 < np.abs(after - before).max() < 0.02  # three small steps away


@pytest.mark.thorough
def test_what_is_frozen_stays_and_the_rest_moves(sources, tmp_path):
    frozen = {"training.frozen": "token_embedding,block_0/attention", "training.steps": 3}
    config = config_for("labelled", sources, **frozen)
    train(config, tmp_path / "a", Silent())
    after = flatten_dict(load_run(tmp_path / "a").params, sep="/")
    model = make_model(config, RunDirectory(tmp_path / "a").sizes())
    key, _ = jax.random.split(jax.random.key(0))
    drawn = jax.jit(model.init)(key, **model.example_inputs())["params"]
    same = {
        name: np.array_equal(after[name], array)
        for name, array in flatten_dict(drawn, sep="/").items()
    }
    assert same["token_embedding/embedding"]
    assert same["block_0/attention/query/kernel"]
    assert not same["block_0/feed_forward/up/kernel"]
    config = config_for("labelled", sources, **{"training.frozen": "token_embeding"})
    with pytest.raises(InvalidInput, match=r"'token_embeding'; paths begin with .*block_0"):
        train(config, tmp_path / "b", Silent())


def test_word_vectors_fill_the_rows_of_their_words(sources, tmp_path):
    file = tmp_path / "vectors.txt"
    numbers = {"cat": np.linspace(0, 1, 16), "zebra": np.ones(16), "dog": -np.ones(16)}
    lines = [f"{word} {' '.join(map(str, vector))}" for word, vector in numbers.items()]
    file.write_text("\n".join(["3 16", *lines]) + "\n")
    options = {"initial.word_vectors": file, "data.tokenizer": "word"}
    config = config_for("labelled", sources, **options)
    table, drawn = (np.array(p["token_embedding"]["embedding"]) for p in start_of(config))
    encode = make_task(config).tokenizer.encode
    for word in ("cat", "dog"):
        np.testing.assert_allclose(table[encode(word)[0]], numbers[word], atol=1e-6)
    np.testing.assert_array_equal(table[encode("red")[0]], drawn[encode("red")[0]])
    for content, words in (
        ("cat 1 2\n", "line 1: 2 numbers after 'cat'; expected model.width=16"),
        ("zebra" + " 1" * 16 + "\n", "no word of the vocabulary is in the file"),
        ("cat" + " x" * 16 + "\n", "line 1: could not convert"),
        ("cat" + " nan" * 16 + "\n", "line 1: a value is not finite"),
    ):
        file.write_text(content)
        with pytest.raises(InvalidInput, match=words):
            start_of(config)


def test_weights_that_do_not_fit_are_refused(runs, sources, tmp_path):
    def config(**changes):
        return config_for("labelled", sources, **from_run(runs("text"), **changes))

    for change, words in (  # of the first two the shapes are the same
        ({"model.activation": "relu"}, "model.activation: gelu there, relu here"),
        ({"model.norm_options.epsilon": 1e-3}, "norm_options.epsilon: 1e-05 there, 0.001 here"),
        ({"model.width": 24}, r"do not match this model\n.*16\) there, .*24\) here"),
        ({"data.tokenizer": "byte"}, r"different tokenizer; set data.tokenizer=.*tokenizer"),
    ):
        with pytest.raises(InvalidInput, match=words):
            start_of(config(**change))
    for change, words in (
        ({"model.num_heads": 4}, "model.num_heads: 2 there, 4 here"),
        ({"initial.weights": tmp_path / "none"}, "expected a run with a checkpoint, a folder with"),
    ):
        with pytest.raises(InvalidInput, match=words):
            train(config(**change), tmp_path / "a", Silent())
    assert not (tmp_path / "a" / "config.json").exists()


@pytest.mark.parametrize(
    ("kind", "key", "value", "words"),
    [
        ("pairs", "model.architecture", "decoder", "=translation requires encoder_decoder"),
        ("text", "data.train_examples", 9, "has no labelled examples"),
        ("labelled", "model.match_parameters", "decoder", "only a recurrent architecture"),
        ("recurrent text", "model.match_parameters", "encoder", "expected decoder"),
        ("labelled", "initial.word_vectors", "v.txt", "expected word or a tokenizer.json"),
        ("images", "model.variant", "M/4", "a name like Ti/4"),
        ("text", "data.separate_documents", True, "cannot separate documents"),
        ("labelled", "evaluation.stride", 3, "data.task=text_classification has no windows"),
    ],
)
def test_combinations_that_mean_nothing_are_refused(kind, key, value, words):
    with pytest.raises(InvalidInput, match=words):
        config_for(kind, {}, **{key: value})
