"""Tasks, sources and tokenizers of the user's own; the laws that every task keeps."""

import json
import sys

import numpy as np
import pytest

from tests.conftest import ROOT, TINY, attempt, refused
from tests.test_cells import hashed
from tests.test_tasks import TASK, config_for, sources  # noqa: F401, a fixture
from transformer_jax import TASK_LAWS, load_run
from transformer_jax.config_files import flatten, load_config
from transformer_jax.data.tasks.batch import take_rows
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.progress import Silent
from transformer_jax.training.build import make_task
from transformer_jax.training.loop import train
from transformer_jax.training.prepared import prepare

TEMPLATE = (ROOT / "experiments" / "templates" / "task.py").read_text().replace("Mine", "Sorting")
DATA = """
import numpy as np

def stories():
    for n in range(400):
        yield f"Story {n}: there were {n} cats and {2 * n} dogs.\\n"

def rated():
    return [(f"film {n} is {'good' if n % 2 else 'bad'}", "up" if n % 2 else "down") for n in range(90)]

def pairs():
    return [(f"one {n}", f"uno {n}") for n in range(200)]

def drawn():
    images = np.random.default_rng(0).integers(0, 255, (60, 8, 8), dtype=np.uint8)
    return {"images": images, "labels": np.arange(60) % 3}

def waves():
    vectors = np.random.default_rng(0).normal(size=(60, 6, 2))
    return {"vectors": vectors, "labels": np.arange(60) % 2}

def numbers():
    yield "a text\\n"
    yield 3

def one_sided():
    return [("a sentence", "")]

def broken():
    raise OSError("the disk is gone")

def a_list():
    return [1, 2]

def by_name():
    return {"first": "a text\\n", "second": "another\\n"}

def a_set():
    return {"a text\\n", "another\\n"}

def one_text():
    return "a text\\n"
"""
TOKENIZER = (ROOT / "tests" / "own_components" / "tokenizer.py").read_text()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of the user's with a task, sources and a tokenizer, where commands run."""
    (tmp_path / "own_task.py").write_text(TEMPLATE)
    (tmp_path / "own_data.py").write_text(DATA)
    (tmp_path / "own_letters.py").write_text(TOKENIZER.replace("Mine", "Pairs"))
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def short(**changes):
    steps = {"training.steps": "4", "schedule.name": "constant", "sample.num_tokens": "3"}
    return load_config(TINY, {**steps, **changes})


SORTING = {"data.task": "own_task:Sorting"}

_SYNTHETIC = {"data.task": "synthetic", "data.length": "16", "data.symbols": "12"}
_TASKS = {
    **{name: {**_SYNTHETIC, "data.source": name} for name in ("copy", "recall", "markov")},
    "one text": {"data.length": "64"},
    "documents": {
        "data.separate_documents": "True", "data.document_separator": "", "data.length": "24",
    },
    "masked": {"data.task": "masked_language_modelling", "model.architecture": "encoder"},
    "diffusion": {"data.task": "masked_diffusion", "model.architecture": "encoder"},
    "sums": {"data.task": "synthetic", "data.source": "modular_addition", "data.length": "4"},
}  # fmt: skip


# The text of test_tasks says the same again and again, in every split.
@pytest.mark.parametrize("name", [*(kind for kind in TASK if "text" not in kind), *_TASKS])
def test_every_task_keeps_the_laws_of_tasks(sources, name):  # noqa: F811
    config = config_for(name, sources) if name in TASK else load_config(TINY, _TASKS[name])
    task = make_task(config)
    for law in TASK_LAWS.values():
        law(task)


class Broken:
    """A task with one thing changed."""

    def __init__(self, task, **changes):
        self.task, self.changes, self.calls = task, changes, 0

    def __getattr__(self, name):
        return getattr(self.task, name)

    def batch(self, seed, step):
        self.calls += 1
        return self._changed("batch", self.task.batch(seed, step))

    def batch_rows(self, seed, step, rows):
        return self._changed("rows", take_rows(self.batch(seed, step), rows))

    def evaluation_batches(self, split, batch_size):
        if "splits" in self.changes:
            split = self.changes["splits"]
        for batch in self.task.evaluation_batches(split, batch_size):
            yield self._changed("held", batch, batch_size)
            if "once" in self.changes:
                return

    def _changed(self, which, batch, size=0):
        change = self.changes.get(which)
        return batch if change is None else change(batch, self, size)


def with_targets(batch, task, size):
    return {**batch, "targets": batch["targets"] + task.calls}


def with_padding(batch, task, size):
    return {**batch, "inputs": {**batch["inputs"], "segments": 0 * batch["targets"]}}


@pytest.mark.parametrize(
    ("law", "words", "changes"),
    [
        ("whole_batches", "weights are float64", {
            "batch": lambda b, *_: {**b, "weights": b["weights"].astype(float)}}),
        ("whole_batches", r"keys \['inputs'\]; expected inputs", {
            "batch": lambda b, *_: {"inputs": b["inputs"]}}),
        ("whole_batches", r"target \d+; expected 0 to 12", {
            "batch": lambda b, *_: {**b, "targets": b["targets"] + 13}}),
        ("whole_batches", r"tokens has the leading axis \(3,\); expected \(8,\)", {
            "batch": lambda b, *_: {**b, "inputs": {"tokens": b["inputs"]["tokens"][:3]}}}),
        ("pure_batches", "differs when built again", {"batch": with_targets}),
        ("pure_batches", "step 7: batch_rows returns rows that differ", {
            "rows": lambda b, *_: {**b, "targets": b["targets"][::-1]}}),
        ("whole_splits", "different examples in batches of 4 and of 7 rows", {"once": True}),
        ("whole_splits", "no target has a weight above 0", {
            "held": lambda b, *_: {**b, "weights": 0 * b["weights"]}}),
        ("whole_splits", "weights .* and .* in batches of 4", {
            "held": lambda b, _, size: {**b, "weights": b["weights"] * size}}),
        ("padding_has_no_weight", "a padded position has a weight above 0", {
            "batch": with_padding}),
        ("disjoint_splits", "are in the validation and in the test split", {"splits": "test"}),
    ],
)  # fmt: skip
def test_a_task_that_breaks_a_law_is_told_of(law, words, changes):
    task = make_task(load_config(TINY, _TASKS["copy"]))
    assert task.sizes["vocab_size"] == 13
    TASK_LAWS[law](Broken(task))
    with pytest.raises(AssertionError, match=words):
        TASK_LAWS[law](Broken(task, **changes))


def test_training_on_what_is_evaluated_is_told_of():
    task = make_task(load_config(TINY, _TASKS["copy"]))
    seen = next(iter(task.evaluation_batches("test", 8)))
    with pytest.raises(AssertionError, match="8 of 512 examples of test are in the first 20"):
        TASK_LAWS["disjoint_splits"](Broken(task, batch=lambda *_: seen))


def test_a_task_of_ones_own_trains_is_loaded_and_looked_into(folder, capsys):
    config = short(**SORTING, **{"data.symbols": "5"})
    assert flatten(config)["data.symbols"] == 5
    last = train(config, "run")
    told = capsys.readouterr().out
    assert "data   own_task:Sorting: 256 validation, 256 test examples; vocab_size 6" in told
    assert "model: " in told
    assert last["step"] == 4
    assert train(config, "run", Silent()) == last  # complete
    manifest = RunDirectory("run").manifest()
    assert list(manifest["own_rows"]) == ["own_task:Sorting"]
    assert manifest["data"]["counts"] == {"validation": 256, "test": 256}
    (batch,) = prepare(config).task.evaluation_batches("test", 256)
    tokens = batch["inputs"]["tokens"]
    np.testing.assert_array_equal(batch["targets"][:, 8:], np.sort(tokens[:, :8]))
    assert batch["weights"].sum() == 256 * 8
    sys.modules.pop("own_task")
    load_run("run")  # the model is this package's; its data is the user's own
    refused(attempt("evaluate", "--workdir=run", cwd=folder), "--allow=own_task")
    assert "own_task" not in sys.modules
    given = ("--workdir=run", "--allow=own_task")
    done = attempt("evaluate", *given, cwd=folder)
    assert f"loss {last['test/loss']:.4f}" in done.stdout, done.stderr
    refused(
        attempt("inspect_run", *given, "--prompt=1 2", cwd=folder),
        "expected an attribute `words`, the token names",
    )
    refused(attempt("sample", *given, cwd=folder), "reads no text")


def test_cells_know_the_options_and_the_code_of_a_task(folder):
    keys = [hashed(short(**SORTING, **{"data.symbols": n})) for n in ("3", "4")]
    for text in (TEMPLATE + "\n# a comment\n", TEMPLATE.replace("_HELD = 256", "_HELD = 128")):
        (folder / "own_task.py").write_text(text)
        keys.append(hashed(short(**SORTING, **{"data.symbols": "3"})))
    assert len(set(keys)) == 4, "what only later batches show would be hashed alike"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('symbols: Count = 8', 'symbols: Count = 8\n    raise KeyError("x")', "own_task.py, line 27: KeyError"),
        ("def batch(", "def batsh(", "abstract method.* '?batch"),
        ("self.symbols + 1}", "self.symbols}",
         "whole_batches: .*has tokens 0 to 8; expected 0 to 7"),
        ('(seed, step, "train")', '(seed, np.random.randint(9999), "t")', "pure_batches: the batch"),
        ("* counts[:, None]", "", "whole_splits: test: weights|whole_splits: .*different examples"),
        ("tokens[:, :-1]", "tokens[:, :-2]", "the model returns .*expected logits"),
        ('step_generator(SPLITS', "nothing(SPLITS", "NameError at line \\d+ of own_task.py"),
        ('{"tokens": tokens', '{"tokns": tokens', "KeyError at line|tokns"),
    ],
)  # fmt: skip
def test_a_wrong_task_is_refused_before_it_trains(folder, old, new, words):
    assert old in TEMPLATE
    (folder / "own_task.py").write_text(TEMPLATE.replace(old, new))
    with pytest.raises(InvalidInput, match=words) as error:
        train(short(**SORTING), "run", Silent())
    assert len(str(error.value).splitlines()) == 1
    assert not (folder / "run" / "config.json").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data.task": "own_task:Sortin"}, "own_task.py defines no Sortin"),
        ({"data.task": "own_tusk:Sorting"}, "no file own_tusk.py in this folder"),
        ({"data.symbls": "3"}, "own_task:Sorting has no such option; did you mean"),
        ({"data.symbols": "0"}, "data.symbols=0: expected an integer >= 1"),
        ({"data.batch_size": "8"}, "this argument of .*Sorting is not an option; give it a type"),
        ({"model.max_length": "4"}, "model.max_length=4: expected at least data.length"),
    ],
)
def test_wrong_options_of_a_task_are_refused(folder, changes, words):
    with pytest.raises(InvalidInput, match=words):
        short(**SORTING | changes)


def test_a_leaking_architecture_is_refused_with_a_task_of_ones_own_too(folder):
    """Causality follows from the task: its targets are the next inputs, unless it says otherwise."""
    net = (ROOT / "tests" / "own_components" / "architecture.py").read_text()
    net = net.replace('padding="CAUSAL"', 'padding="SAME"').replace("Mine", "Leak")
    (folder / "own_leak.py").write_text(net)
    leaking = {**SORTING, "model.architecture": "own_leak:Leak"}
    with pytest.raises(InvalidInput, match=r"tokens from position \d+ on change the logits"):
        train(short(**leaking), "run", Silent())
    said = TEMPLATE.replace("    length: int", "    reads_from_left = False\n    length: int")
    (folder / "own_task.py").write_text(said)
    sys.modules.pop("own_task")
    sys.modules.pop("own_leak")
    assert train(short(**leaking), "run", Silent())["step"] == 4


@pytest.mark.parametrize(
    ("source", "changes", "counts"),
    [
        ("stories", {}, None),
        ("rated", {"data.task": "text_classification", "model.architecture": "encoder"}, 90),
        ("pairs", {"data.task": "translation", "model.architecture": "encoder_decoder"}, 200),
        ("drawn", {"data.task": "image_classification", "model.architecture": "vision_transformer",
                   "model.patch_size": "4"}, 60),
        ("waves", {"data.task": "vector_classification", "model.architecture": "encoder"}, 60),
    ],
)  # fmt: skip
def test_a_source_of_ones_own_is_read_in_place_of_a_file(folder, source, changes, counts):
    source = {"data.source": f"own_data:{source}"}
    task = prepare(short(**source, **changes, **{"data.splits": "0.6,0.2,0.2"})).task
    assert task.facts["source"] == source["data.source"]
    for law in TASK_LAWS.values():
        law(task)
    if counts is None:
        whole = "".join(f"Story {n}: there were {n} cats and {2 * n} dogs.\n" for n in range(400))
        counts = len(whole)
        tokens = task.splits["train"].windows(np.array([0]), 40)[0]
        assert task.tokenizer.decode(tokens) == whole[:40]
    assert sum(task.facts["counts"].values()) == counts


@pytest.mark.parametrize(
    ("source", "changes", "words"),
    [
        ("numbers", {}, "row 1: expected a document, a str, got 3"),
        ("by_name", {}, "own_data:by_name: expected a list, got dict"),
        ("a_set", {}, "own_data:a_set: expected a list, got set"),
        ("one_text", {}, "own_data:one_text: expected a list, got str"),
        ("broken", {}, r"data.source=own_data:broken: OSError at line \d+ of own_data.py: the disk"),
        ("nothing", {}, "own_data.py defines no nothing"),
        ("one_sided", {"data.task": "translation", "model.architecture": "encoder_decoder"},
         "row 0: expected a sentence and its translation"),
        ("a_list", {"data.task": "image_classification", "model.architecture":
                    "vision_transformer"}, "expected a dict of arrays, got list"),
    ],
)  # fmt: skip
def test_a_wrong_source_is_refused(folder, source, changes, words):
    with pytest.raises(InvalidInput, match=words):
        prepare(short(**{"data.source": f"own_data:{source}"}, **changes))


@pytest.mark.thorough
def test_a_tokenizer_of_ones_own_is_stored_and_read_only_where_it_is_allowed(folder):
    config = short(**{"data.tokenizer": "own_letters:Pairs", "data.vocab_size": "300"})
    last = train(config, "run", Silent())
    assert train(config, "run", Silent()) == last
    stored = json.loads((folder / "run" / "tokenizer.json").read_text())
    assert stored["kind"] == "own_letters:Pairs"
    assert RunDirectory("run").sizes() == {"vocab_size": 300}
    sys.modules.pop("own_letters")
    with pytest.raises(InvalidInput, match="--allow=own_letters"):
        load_run("run")
    assert "own_letters" not in sys.modules
    run = load_run("run", allow=["own_letters"])
    assert run.tokenizer.decode(run.tokenizer.encode("the ")) == "the "
    assert run.sample("th", num_tokens=2)
