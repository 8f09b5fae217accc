"""Benchmarks: CORE's prompts and scores, metrics of a study, and comparisons item by item."""

import dataclasses
import json
import math
import random
import shutil

import jax
import numpy as np
import pytest
from scipy import stats

from tests.conftest import attempt, refused, tiny_config
from transformer_jax.config_files import flatten
from transformer_jax.errors import InvalidInput
from transformer_jax.metrics import METRICS
from transformer_jax.resolve import stated
from transformer_jax.studies.cells import Cell
from transformer_jax.studies.items import compare_items, read_answers
from transformer_jax.studies.study import contrasts_of
from transformer_jax.studies.workers import measure_later
from transformer_jax.training.benchmarks import digest_of, kind_of, results_of
from transformer_jax.training.core import CoreTask, prompts_of, read_core, run_core
from transformer_jax.training.loading import load_run
from transformer_jax.training.prepared import prepare

MC = [
    {"query": f"Q {letter}:", "choices": [f"yes {letter}", f"no {letter}"], "gold": n % 2}
    for n, letter in enumerate("abcd")
]
SCHEMA = [
    {
        "context_options": [f"The cat {x}", f"The dog {x}"],
        "continuation": "ran.",
        "gold": int(x == "b"),
    }
    for x in "abc"
]
LM = [{"context": f" one two {x} ", "continuation": f"three {x}"} for x in "abc"]
BUNDLE = """
icl_tasks:
- {label: riddles, icl_task_type: multiple_choice, dataset_uri: a/mc.jsonl, num_fewshot: [2],
   continuation_delimiter: "\\nA: "}
- {label: winograd, icl_task_type: schema, dataset_uri: schema.jsonl, num_fewshot: [0]}
- {label: counting, icl_task_type: language_modeling, dataset_uri: lm.jsonl, num_fewshot: [1]}
"""
CHANCES = "Eval Task,Task Category,Random baseline\nriddles,x,50\nwinograd,x,50.0\ncounting,x,0\n"


def write_items(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_bundle(folder):
    for name, rows in (("a/mc", MC), ("schema", SCHEMA), ("lm", LM)):
        write_items(folder / "eval_data" / f"{name}.jsonl", rows)
    (folder / "core.yaml").write_text(BUNDLE)
    (folder / "eval_meta_data.csv").write_text(CHANCES)
    return folder


@pytest.fixture
def bundle(tmp_path):
    return write_bundle(tmp_path / "eval_bundle")


@pytest.fixture(scope="module")
def run(tiny_run):
    return load_run(tiny_run)


def shuffled(rows):
    rows = list(rows)
    random.Random(1337).shuffle(rows)
    return rows


def test_prompts_of_each_kind_by_hand(bundle):
    riddles, winograd, counting = read_core(bundle)
    assert riddles[1:] == ("multiple_choice", shuffled(MC), 2, "\nA: ", 0.5)
    items, others = shuffled(MC), random.Random(1234 + 3).sample([0, 1, 2], 2)
    shots = "".join(
        f"{items[n]['query']}\nA: {items[n]['choices'][items[n]['gold']]}\n\n" for n in others
    )
    assert prompts_of(riddles, 3) == [
        f"{shots}{items[3]['query']}\nA: {choice}" for choice in items[3]["choices"]
    ]
    item = shuffled(SCHEMA)[1]
    assert prompts_of(winograd, 1) == [f"{text} ran." for text in item["context_options"]]
    items = shuffled(LM)
    other = items[random.Random(1234).sample([1, 2], 1)[0]]
    context = f"{other['context'].strip()} {other['continuation']}\n\n{items[0]['context'].strip()}"
    assert prompts_of(counting, 0) == [context, f"{context} {items[0]['continuation']}"]


def losses_of(run, text):
    """The loss of each character after the first, and whether it is the likeliest."""
    tokens = run.tokenizer.encode(text)[-run.model.max_length :]
    logits = run.model.apply({"params": run.params}, tokens[None, :-1])[0]
    picked = -jax.nn.log_softmax(logits)[np.arange(len(tokens) - 1), tokens[1:]]
    return np.array(picked), np.array(logits.argmax(-1) == tokens[1:])


@pytest.mark.filterwarnings("ignore:.*beginning is not read")
def test_core_is_that_of_one_text_at_a_time(bundle, run):
    """Characters are tokens, so that common beginnings and ends are those of the texts."""
    tasks = read_core(bundle)
    results, rows = run_core(run, tasks, 5, None)
    right = {}
    for index in range(4):
        texts = prompts_of(tasks[0], index)
        tails = [len(choice) for choice in tasks[0].items[index]["choices"]]
        means = [losses_of(run, t)[0][-n:].mean() for t, n in zip(texts, tails, strict=True)]
        right[f"riddles/{index}"] = int(np.argmin(means)) == tasks[0].items[index]["gold"]
    for index in range(3):
        texts, same = prompts_of(tasks[1], index), len(" a ran.")
        means = [losses_of(run, text)[0][-same:].mean() for text in texts]
        right[f"winograd/{index}"] = int(np.argmin(means)) == tasks[1].items[index]["gold"]
        context, text = prompts_of(tasks[2], index)
        exact = losses_of(run, text)[1][len(context) - len(text) :]
        right[f"counting/{index}"] = bool(exact.all())
    assert {row["item"]: row["accuracy"] for row in rows} == right
    of_task = lambda name: np.mean([v for k, v in right.items() if k.startswith(name)])
    core = np.mean([2 * of_task("riddles") - 1, 2 * of_task("winograd") - 1, of_task("counting")])
    assert results["CORE"]["core"] == pytest.approx(core)
    assert np.mean([row["core"] for row in rows]) == pytest.approx(core)
    assert METRICS["benchmark"](results) == pytest.approx(core)


def test_choices_that_begin_others_count_as_nanochat_counts_them(run):
    """The mean over no token is nan, which min() skips unless it comes first."""
    items = [{"query": "so", "choices": ["no", "now"], "gold": gold} for gold in (0, 1)]
    task = CoreTask("t", "multiple_choice", items, 0, " ", 0.0)
    _, rows = run_core(run, [task], 4, None)
    assert [row["accuracy"] for row in rows] == [True, False]
    turned = [{**item, "choices": ["now", "no"]} for item in items]
    _, rows = run_core(run, [task._replace(items=turned)], 4, None)
    assert [row["accuracy"] for row in rows] == [True, False]


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("core.yaml", BUNDLE, "tasks: []", "a list icl_tasks"),
        ("core.yaml", BUNDLE, "a: [", "core.yaml"),
        ("core.yaml", "num_fewshot: [2]", "num_fewshot: []", "num_fewshot"),
        ("core.yaml", "num_fewshot: [2]", "num_fewshot: [4]", "4 items, expected more than"),
        ("core.yaml", "schema,", "scheme,", "icl_task_type=scheme"),
        ("core.yaml", "lm.jsonl", "none.jsonl", "no such file, the items of counting"),
        ("eval_meta_data.csv", "counting,x,0", "counting,x,100", "no random baseline"),
        ("eval_meta_data.csv", "riddles,x,50", "riddles,x,5%", "Random baseline=5%"),
        ("eval_data/lm.jsonl", '"three b"', "3", "row 2: expected texts in continuation"),
        ("eval_data/lm.jsonl", '"three b"}', '"three b"', "row 2: not JSON"),
        ("eval_data/schema.jsonl", '"gold": 1', '"gold": 2', "row 2: gold=2"),
        ("eval_data/a/mc.jsonl", '"query"', '"Query"', "row 1: expected the fields query"),
    ],
)
def test_a_bundle_that_cannot_be_read_is_refused(bundle, file, old, new, words):
    path = bundle / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InvalidInput) as caught:
        read_core(bundle)
    assert words in str(caught.value)


def test_a_benchmark_is_a_metric_of_runs_and_studies(bundle, run, tmp_path):
    items = write_items(tmp_path / "items.jsonl", [
        {"context": "That is", "choices": [" so", " the"], "answer": 0},
        {"context": "O", "choices": [" no", " yes, yes", "!"], "answer": 1},
    ])  # fmt: skip
    asked = dataclasses.replace(run, config=tiny_config(evaluation__benchmark=items))
    (means,) = results_of(asked).values()
    assert METRICS["benchmark_per_byte"](results_of(asked)) == means["accuracy_per_byte"]
    assert results_of(run) is METRICS["benchmark"](None) is None
    assert METRICS["benchmark_per_token"]({}) is None
    flags = [f"--config.evaluation.benchmark={items}", "--config.training.steps=4"]
    flags += ["--config.schedule.warmup_steps=1", "--config.evaluation.metrics=benchmark"]
    workdir = tmp_path / "run"
    done = attempt("train", "--config=configs/tiny.py", f"--workdir={workdir}", *flags)
    assert done.returncode == 0, done.stderr
    stored = json.loads((workdir / "evaluation.json").read_text())
    assert stored["test"]["benchmark"] == stored["validation"]["benchmark"] in (0, 0.5, 1)
    assert stored["metrics"]["benchmark"]["code"] == digest_of(str(items)) != ""
    told = attempt("evaluate", f"--workdir={workdir}", f"--choices={items}", "--json").stdout
    (means,) = json.loads(told)["results"].values()
    assert means["accuracy"] == stored["test"]["benchmark"]
    assert kind_of(str(bundle)) == "core"
    before = digest_of(str(bundle))
    (bundle / "eval_data" / "lm.jsonl").write_text("changed")
    assert digest_of(str(bundle)) != before
    for value, words in (("x/none", "no such file or folder"), ("None", "requires evaluation.be")):
        flags[0] = f"--config.evaluation.benchmark={value}"
        done = attempt("train", "--config=configs/tiny.py", f"--workdir={tmp_path / 'b'}", *flags)
        refused(done, words)


def test_a_finished_run_of_a_study_is_measured_by_another_benchmark(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    cell, configs, found = Cell("a", 0, tmp_path / "run"), [], []
    for name, answer in (("one", 0), ("two", 1)):
        row = {"context": "That is", "choices": [" so", " q"], "answer": answer}
        items = write_items(tmp_path / f"{name}.jsonl", [row])
        asked = {"evaluation__metrics": "benchmark", "evaluation__benchmark": items}
        configs.append(tiny_config(sample__num_tokens=40, **asked))
        measure_later(cell, prepare(configs[-1]))
        found.append(cell.means()["benchmark"])
        assert cell.means("validation")["benchmark"] == found[-1]
        assert cell.metric_facts()["benchmark"]["code"] == digest_of(str(items))
    assert sorted(found) == [0, 1]
    write_items(items, [row | {"answer": 0}])  # the same file with other items
    measure_later(cell, prepare(configs[-1]))
    assert cell.means()["benchmark"] == found[0]
    sealed = {"arms": {"a": {}, "b": {"model.depth": 3}}, "base": "a", "match": None}
    for metric, count in (("loss", 1), ("benchmark", 2)):  # how many questions
        asked = sealed | {"tuning": None, "metric": metric}
        told = [contrasts_of(asked | {"base_config": stated(flatten(c))})["b"] for c in configs]
        assert len(set(told)) == count


def write_scores(folder, name, values, chances=2):
    rows = [
        {"item": n, "context": f"c{n}", "log_probabilities": [0.0] * chances, "answer": 0}
        | {"accuracy": bool(value)}
        for n, value in enumerate(values)
    ]
    return write_items(folder / f"{name}.jsonl", rows)


def test_one_seed_gives_the_interval_of_the_paired_t_test_over_items(tmp_path):
    rng = np.random.default_rng(0)
    plain, wide = rng.random(200) < 0.6, rng.random(200) < 0.7
    paths = [write_scores(tmp_path, "plain", plain), write_scores(tmp_path, "wide", wide)]
    (base, arm), notes = compare_items(read_answers(paths))
    test = stats.ttest_rel(wide.astype(float), plain.astype(float)).confidence_interval()
    assert arm.interval == (pytest.approx(test.low), pytest.approx(test.high))
    assert (base.mean, arm.mean) == (plain.mean(), wide.mean())
    assert (arm.gained, arm.lost) == ((wide & ~plain).sum(), (plain & ~wide).sum())
    assert arm.ties == (plain == wide).sum()
    assert notes[:1] == ["wide: interval over 200 items and one seed (new seeds may differ)"]


def test_several_seeds_are_crossed_with_the_items(tmp_path):
    """The variance is (MS_seed + MS_item - MS_rest) / (S N), from a two-way analysis of variance."""
    rng = np.random.default_rng(1)
    skill, hard = rng.normal(0, 0.1, 4), rng.normal(0, 0.2, 60)
    plain = rng.random((4, 60)) < 0.5
    wide = rng.random((4, 60)) < 0.6 + skill[:, None] + hard
    paths = [
        write_scores(tmp_path, f"{name}-seed{seed}", row)
        for name, rows in (("plain", plain), ("wide", wide))
        for seed, row in enumerate(rows)
    ]
    (_, arm), notes = compare_items(read_answers(paths))
    d = wide.astype(float) - plain
    rest = d - d.mean(0) - d.mean(1, keepdims=True) + d.mean()
    squares = np.array([60 * d.mean(1).var(ddof=1), 4 * d.mean(0).var(ddof=1), 0])
    squares[2] = (rest**2).sum() / (3 * 59)
    assert squares[:2].min() > squares[2]  # else the largest one counts
    total = squares @ [1, 1, -1]
    freedom = total**2 / (squares**2 / [3, 59, 3 * 59]).sum()
    half = stats.t.ppf(0.975, freedom) * math.sqrt(total / 240)
    assert arm.interval == (pytest.approx(d.mean() - half), pytest.approx(d.mean() + half))
    assert notes[:1] == ["wide: interval over 60 items and 4 seeds (crossed)"]


def test_ceilings_and_guessing_are_reported(tmp_path):
    rng = np.random.default_rng(2)
    paths = [
        write_scores(tmp_path, "base", np.arange(40) % 2),
        write_scores(tmp_path, "full", np.ones(40)),
        write_scores(tmp_path, "guess", rng.random(40) < 0.5),
    ]
    _, notes = compare_items(read_answers(paths))
    assert "full is at the ceiling: 1.0000 of the items are right" in notes
    assert "guess may be no better than guessing, 0.5000" in notes
    assert not any(note.startswith("full may be no better") for note in notes)
    few = [write_scores(tmp_path, "few", [1, 0, 0, 0]), write_scores(tmp_path, "one", [0, 0, 0, 1])]
    assert not any("ceiling" in note for note in compare_items(read_answers(few))[1])


def test_the_command_compares_files_and_refuses_others(tmp_path):
    one = write_scores(tmp_path, "plain-0", [1, 0, 1, 1])
    two = write_scores(tmp_path, "wide-0", [1, 1, 1, 1])
    said = attempt("compare", one, two)
    assert said.returncode == 0, said.stderr
    assert "+0.2500" in said.stdout
    assert "ceiling" in said.stdout
    (_, arm) = json.loads(attempt("compare", one, two, "--json").stdout)["arms"]
    assert (arm["arm"], arm["ties"]) == ("wide", 3)
    refused(attempt("compare", one, two, "--metric=acc"), "--metric=acc", "accuracy")
    refused(attempt("compare", one), "at least two arms")
    short = write_scores(tmp_path, "short-0", [1, 0])
    refused(attempt("compare", one, short), "other items than", "2 and 4")
    other = write_scores(tmp_path, "other-0", [1, 0, 1, 1])
    other.write_text(other.read_text().replace('"c2"', '"C2"'))
    refused(attempt("compare", one, other), "they differ in context in row 3")
    refused(attempt("compare", one, write_scores(tmp_path, "b-7", [1, 0, 1, 1])), "has no seed of")
    folder = tmp_path / "deep-seed0"
    moved = write_scores(folder, "choices-items", [0, 0, 1, 1])
    assert "deep" in attempt("compare", one, moved).stdout
