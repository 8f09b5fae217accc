"""The pages and tables that studies and comparisons leave: safe, whole, and drawn by a browser."""

import csv
import datetime
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from experiments import results
from tests.conftest import ROOT, TINY, attempt, command, refused
from tests.test_studies import edit
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.listing import facts_of, filtered, find_runs, parse_filter
from transformer_jax.runs.pictures import draw_attention, draw_comparison
from transformer_jax.studies import tables
from transformer_jax.studies.comparison import Comparison
from transformer_jax.studies.design import larger_is_better, load_design, seal_of
from transformer_jax.studies.judging import judge_study
from transformer_jax.studies.report import Page as Written
from transformer_jax.studies.report import answers, write_report
from transformer_jax.studies.running import run
from transformer_jax.studies.study import as_csv, load_study

EVIL = '<script>alert(1)</script></script>" onload=alert(2) javascript:x \u2028 ]]> | `x` =1+1 \\x'
QUICK = {"training.steps": "12", "schedule.warmup_steps": "4", "model.depth": "1"}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A study of two arms and three seeds; read it, never write to it."""
    design = load_design(TINY, QUICK, ("model.position=learned,none",))
    return run(design, tmp_path_factory.mktemp("report") / "runs" / "study", range(3))


@pytest.fixture
def copied(done, tmp_path):
    """A copy of the folder of that study and of its cells, to be changed."""
    shutil.copytree(done.path.parent, tmp_path / "runs")
    return tmp_path / "runs" / "study"


@pytest.fixture
def run_copy(done, tmp_path):
    """A copy of one of its cells, to be changed."""
    shutil.copytree(done.cell("position=none", 0).path, tmp_path / "copy")
    return tmp_path / "copy"


class Page(HTMLParser):
    """Elements, attributes, the embedded data and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.attributes, self.data, self.text = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        if self.elements and self.elements[-1] in ("script", "style"):
            self.data.append(data)
        else:
            self.text += data


def page_of(study):
    return Page((study.path / "report.html").read_text())


def test_a_page_asks_nothing_of_the_network_and_runs_nothing(done):
    text = (done.path / "report.html").read_text()
    outside = re.sub(r'"http://www.w3.org/[^"]*"', "", text)
    assert not re.search(r"https?://|//cdn|@import|<script", outside)
    page = Page(text)
    assert not {"link", "script", "iframe", "object"} & set(page.elements)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    pictures = [value for name, value in page.attributes if name == "src"]
    assert pictures
    assert all(value.startswith("data:image/svg+xml;base64,") for value in pictures)
    assert len(text) < 1_000_000


def test_a_page_says_what_was_asked_and_found(done):
    page, written = page_of(done), (done.path / "report.md").read_text()
    verdicts = done.verdicts()
    found, seal = verdicts["arms"]["position=none"]["words"], done.record["seal"][:12]
    for words in (verdicts["question"], found, seal, "exploratory", "python -m experiments."):
        assert words in page.text, words
        assert words in written.replace("\\", ""), words
    for name in re.findall(r"\]\((\S+\.svg)\)", written):
        assert (done.path / name).exists()


def test_c76_names_cannot_become_elements(done, copied):
    """A hostile arm, question, prediction and failure: the page has the same elements as before."""
    plain, evil = page_of(done), json.dumps(EVIL)[1:-1]
    text = (copied / "study.json").read_text()
    text = text.replace("position=none", evil).replace("How does ", f"How {evil} does ")
    record = json.loads(text)
    record["seal"] = seal_of(record["sealed"])
    (copied / "study.json").write_text(json.dumps(record))
    (copied / "looks.jsonl").unlink()
    (copied.parent / "register.jsonl").unlink()
    study = load_study(copied)
    judge_study(study)
    study.write_scores()
    write_report(study)
    page = page_of(study)
    assert sorted(page.elements) == sorted(plain.elements)
    assert {name for name, _ in page.attributes} == {name for name, _ in plain.attributes}
    assert " ".join(EVIL.split()) in " ".join(page.text.split())
    written = (study.path / "report.md").read_text()
    unmarked = [line for line in written.splitlines() if not line.startswith("    ")]
    assert not re.search(r"(?<!\\)<script", "\n".join(unmarked))
    head = next(n for n, row in enumerate(unmarked) if row.startswith("| arm | params"))
    line = unmarked[head + 3]
    assert len(re.findall(r"(?<!\\)\|", line)) == len(tables.HEADS) + 1
    assert "\n'=" not in (study.path / "scores.csv").read_text()


def test_answers_are_sentences_with_numbers():
    def answer(verdict, mean, interval, **facts):
        arm = {"verdict": verdict, "words": "words", "mean": mean, "interval": interval, **facts}
        (found,) = answers({"base": "learned", "margin": 0.01, "arms": {"none": arm}})
        return found.removeprefix("none")

    worse = answer("worse", -0.2, [-0.25, -0.15])
    assert worse == " is worse than learned by 0.2 (interval 0.15 to 0.25)."
    same = answer("no different within the margin", 0.001, [-0.004, 0.005])
    assert same == " is no different from learned within 0.01."
    unsure, by_count = (0.1, [-0.1, 0.3]), (None, [None, None])
    told = " could not be told apart from learned"
    settled = answer("unresolved", *unsure, seeds_needed=12)
    assert settled == f"{told}; 12 seeds would settle it."
    assert answer("unresolved", *unsure) == f"{told}."
    assert answer("cannot tell", *unsure) == ": words."
    assert answer("better", *by_count) == answer("unresolved", *by_count) == ": words."


def test_tables_are_escaped():
    heads, rows = ("arm", "a_b"), [["=x|y`", "50 %"], ["+1", "a_{b} & c\\"]]
    assert tables.as_markdown(heads, rows).splitlines()[2] == "| =x\\|y\\` | 50 % |"
    assert as_csv(heads, rows).splitlines()[1:] == ["=x|y`,50 %", "+1,a_{b} & c\\"]
    assert tables.as_markdown(["a", "b"], [["<pad>", "a*b*c"]]).splitlines()[2] == (
        r"| \<pad> | a\*b\*c |"
    )
    assert tables.spell("a\x1b]0;b") == repr("a\x1b]0;b")


def test_names_in_pictures_are_no_mathematics(tmp_path):
    maps = {"layer $x": (np.full((1, 2, 2), 0.5), ["$$", "a_$b$"], ["$$", "$\\frac$"])}
    assert draw_attention(maps, tmp_path / "a.png").exists()
    rows = [{"step": step, "eval/loss": 1.0} for step in (1, 2)]
    runs = {"costs $5 or $\\frac$": rows, "b": rows}
    picture = draw_comparison(runs, "eval/loss", tmp_path / "c.svg").read_text()
    assert "costs $5 or $" in picture


def test_numbers_as_people_read_them():
    assert [tables.spell(v) for v in (None, 1234567, 0.123456, 1e-7, float("nan"))] == [
        "–", "1,234,567", "0.1235", "1e-07", "–",
    ]  # fmt: skip
    assert tables.spell_interval((-0.1, float("inf"))) == "[-0.1000, ∞]"
    assert tables.spell_interval((1.2e-5, 3e-5)) == "[+1.2e-05, +3e-05]", "small ones keep digits"
    assert [tables.signed(x) for x in (-3.2e-5, 0.0, 0.00012, 1.5)] == [
        *("-3.2e-05", "+0.0000", "+0.0001", "+1.5000")
    ]
    assert [tables.clock(s) for s in (5, 600, 9000)] == ["5 s", "10 min", "2.5 h"]


def test_columns_of_numbers_stand_right():
    page = Written("A title")
    page.table(["arm", "n", "words"], [["a", "1,000", "x"], ["b", "–", "y"]])
    assert page.html().count("text-align:right") == 3
    assert "| --- | ---: | --- |" in page.markdown()


def test_compare_judges_a_study_again(done, copied):
    (copied / "verdicts.json").unlink()
    result = command("compare", copied)
    assert result.returncode == 0, result.stderr
    study = load_study(copied)
    assert study.verdicts() == done.verdicts()
    assert done.sealed["question"] in result.stdout
    refused(attempt("compare", copied, study.cell("position=none", 0).path), "not both")
    wrong = "--metric=eval/accuracy"
    refused(attempt("compare", copied, wrong), "--metric: not read for a study")


def runs_of(done, *which):
    return {f"{a}{s}": RunDirectory(done.cell(f"position={a}", s).path) for a, s in which}


@pytest.mark.parametrize(("metric", "better"), [("eval/loss", -1), ("eval/accuracy", 1)])
def test_runs_are_grouped_by_config_and_paired_by_seed(done, metric, better):
    which = [("learned", 0), ("none", 0), ("learned", 1), ("none", 1), ("none", 2)]
    comparison = Comparison(runs_of(done, *which), metric)
    assert list(comparison.arms) == ["position=learned", "position=none"]
    assert "no verdict: no margin was declared" in comparison.verdict()
    (pair,) = comparison.paired()
    assert pair["seeds"] == [0, 1]
    last = {name: run.metrics()[-1][metric] for name, run in comparison.runs.items()}
    by_hand = [better * (last[f"none{s}"] - last[f"learned{s}"]) for s in (0, 1)]
    assert pair["differences"] == pytest.approx(by_hand)
    assert "<h2>Paired differences</h2>" in comparison.page()
    assert "The same code, packages and device." in Page(comparison.page()).text


def test_nothing_is_claimed_where_evaluation_differs(done, run_copy, tiny_run):
    runs = {**runs_of(done, ("none", 1)), "none0": RunDirectory(run_copy)}
    edit(run_copy / "evaluation.json", lambda e: e["validation"]["protocol"].update(targets=7))
    assert Comparison(runs, "eval/loss").scored_otherwise() == ["different targets are scored"]
    edit(run_copy / "manifest.json", lambda m: m["data"].update(sha256="other"))
    comparison = Comparison({**runs, "other": RunDirectory(tiny_run)}, "eval/loss")
    assert "different data" in comparison.warnings()[0]
    assert comparison.verdict() == "no claim: the runs were not evaluated in the same way"
    assert "<h2>Paired differences</h2>" not in comparison.page()


def choose(root, filters, sort=None):
    return filtered([facts_of(path, root) for path in find_runs(root)], filters, sort)


def test_runs_are_found_by_what_they_are(done):
    root = done.path.parent
    rows = choose(root, ["position=none", "seed>=1"], "-seed")
    assert [row["seed"] for row in rows] == [2, 1]
    assert len(choose(root, [])) == 6
    assert len(choose(root, ["model.position!=none", "status=done"])) == 3
    best = choose(root, [], "test/loss")[0]
    assert best["test/loss"] == min(row["test/loss"] for row in choose(root, []))


def test_scores_whose_cells_are_gone_are_not_replaced(done, tmp_path):
    study = tmp_path / "study"
    shutil.copytree(done.path, study)
    before = {file: file.read_bytes() for file in study.iterdir() if file.is_file()}
    refused(attempt("compare", study), "has scores of 6 cells that are not in")
    assert before == {file: file.read_bytes() for file in before}
    table = study / "scores.csv"
    for text in (table.read_text().replace(",", ";"), table.read_text() + "\xe4"):
        table.write_bytes(text.encode("latin-1"))
        refused(attempt("compare", study), "scores.csv: not the table that ablate wrote")


def test_no_study_begins_among_files_of_others(run_copy, tmp_path):
    paper = tmp_path / "paper"
    paper.mkdir()
    (paper / "table.md").write_text("mine")
    change = f"--config={TINY}", "--change=model.num_heads=1"
    arguments = (f"--config={TINY}", "--arm=model.num_heads=1", "--seeds=2")
    for folder, name in ((paper, "table.md"), (run_copy, "STATUS")):
        found = attempt("ablate", *arguments, f"--workdir={folder}")
        refused(found, f"holds files that do not belong to a study ({name})")
    refused(
        attempt("try_change", f"--base={run_copy}", *change),
        "holds files that do not belong to a journal",
    )
    assert [*paper.iterdir()] == [paper / "table.md"]


def test_which_way_a_metric_is_better():
    for metric in ("test/generated_accuracy", "eval/accuracy", "bleu", "time/mfu"):
        assert larger_is_better(metric)
    assert larger_is_better("time/tokens_per_second")
    assert not larger_is_better("test/loss")
    assert not larger_is_better("time/step_ms")


def test_a_filter_that_names_nothing_is_refused(done):
    root = f"--root={done.path.parent}"
    for wrong, *words in (
        ("tes/loss<3", "did you mean test/loss"),
        ("seed==1", "seed==1: expected a filter"),
        ("--sort=loss", "--sort=loss", "is ambiguous; use one of"),
        ("--columns=status,test/los", "--columns=status,test/los", "did you mean test/loss?"),
    ):
        refused(attempt("runs", "ls", root, wrong), *words)
    refused(attempt("runs", "ls", f"{root}/x"), "no such folder")
    refused(attempt("runs", "lst"), "ls, show, tail, diff, gc, export", "did you mean ls?")
    for wrong in ("loss", "loss=>1", "loss=< -1"):
        with pytest.raises(ValueError, match="expected a filter"):
            parse_filter(wrong)


def test_a_filter_reads_values_as_the_options_do():
    values = {"a=null": (None, 3), "a!=none": (3, None), "a=no": (False, True)}
    values |= {"a!=Yes": (False, True), "a=<|end|>": ("<|end|>", "end")}
    for text, (one, other) in values.items():
        passes = parse_filter(text)[1]
        assert (passes(one), passes(other)) == (True, False), text


def test_a_folder_that_cannot_be_read_hides_no_other(tmp_path, monkeypatch):
    for name in ("a", "private"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    honest = os.scandir

    def scandir(path):
        if os.path.basename(path) in closed:
            raise PermissionError(13, "Permission denied", str(path))
        return honest(path)

    monkeypatch.setattr("os.scandir", scandir)
    closed = ["private"]
    assert list(find_runs(tmp_path)) == [tmp_path / "a"]
    closed = [tmp_path.name]
    with pytest.raises(InvalidInput, match=f"--root={tmp_path}: Permission denied"):
        list(find_runs(tmp_path))


def test_runs_behind_links_are_listed_once(tmp_path):
    for folder in (tmp_path / "disk" / "a", tmp_path / "runs" / "b"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    root = tmp_path / "runs"
    for name, target in {"linked": "../disk/a", "latest": "b", "loop": "."}.items():
        (root / name).symlink_to(target)
    assert list(find_runs(root)) == [root / "b", root / "linked"]
    assert attempt("runs", "ls", root).stdout.endswith("2 runs\n")


def test_what_a_run_says_does_not_steer_the_terminal(run_copy):
    config = json.loads((run_copy / "config.json").read_text())
    config["data"]["source"] = "\x1b]0;x\x07"
    (run_copy / "config.json").write_text(json.dumps(config))
    with (run_copy / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 99, "\x1b[2J": 1.0}) + "\n")
    for what in ("show", "tail"):
        shown = attempt("runs", what, run_copy)
        assert shown.returncode == 0, shown.stderr
        assert "\x1b" not in shown.stdout
        assert "\\x1b" in shown.stdout


def test_a_run_whose_process_is_gone_is_dead_at_once_and_without_a_heartbeat_later(run_copy):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here, now = socket.gethostname(), datetime.datetime.now(datetime.UTC)
    now = now.isoformat(timespec="seconds")
    for since, lock, status in (
        ("2020-01-01T00:00:00+00:00", "", "died"),
        (now, f"pid {ended.pid} on {here}, since {now}\n", "died"),
        (now, f"pid {os.getpid()} on {here}, since {now}\n", "running"),
        (now, f"pid {ended.pid} on another-machine, since {now}\n", "running"),
    ):
        (run_copy / "STATUS").write_text(f"running {since} step 3\n")
        (run_copy / ".lock").write_text(lock)
        assert choose(run_copy.parent, [])[0]["status"] == status


def test_cells_are_listed_where_they_are_asked_for(done):
    root = done.path.parent
    folded = attempt("runs", "ls", root)
    count = len(list(done.cells()))
    assert f"0 runs, and {count} cells of studies" in folded.stdout
    assert f"study  {done.path}: python -m experiments.compare {done.path}" in folded.stdout
    assert f"{count} runs\n" in attempt("runs", "ls", root, "--cells").stdout
    assert f"{count} runs\n" in attempt("runs", "ls", root, "test/loss<9").stdout
    heads = attempt("runs", "ls", root, "training.clip_norm>0").stdout.splitlines()[0]
    assert "training.clip_norm" in heads.split() or "clip_norm" in heads


def test_runs_are_shown_and_told_apart(done, tmp_path):
    one, other = (done.cell(arm, 0).path for arm in done.arms)
    shown = attempt("runs", "show", one)
    assert shown.returncode == 0, shown.stderr
    for words in (f"{one}: done, step ", "training.steps=", "test        loss "):
        assert words in shown.stdout
    rows = attempt("runs", "tail", one, "--lines=2").stdout.splitlines()
    assert len(rows) == 3
    assert "train/loss" in rows[0]
    told = attempt("runs", "diff", one, other).stdout
    assert "model.position" in told
    assert "model.width" not in told
    for number, rate in enumerate((0.00104, 0.00105)):
        folder = tmp_path / str(number)
        folder.mkdir()
        config = {"optimizer": {"learning_rate": rate}}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "metrics.jsonl").write_text('{"step": 1, "eval/loss": 1.23456789}\n')
    for verb in (("ls", tmp_path), ("diff", tmp_path / "0", tmp_path / "1")):
        told = attempt("runs", *verb).stdout
        assert "0.00104" in told
        assert "0.00105" in told
    assert " 1.2346\n" in attempt("runs", "ls", tmp_path).stdout
    refused(attempt("runs", "show", done.path), "found a study; see python -m experiments.compare")
    refused(attempt("runs", "tail", done.path.parent), "no run here")
    refused(attempt("runs", "tail", one, "--lines=0"), "--lines=0: expected an integer >= 1")


@pytest.mark.parametrize("name", results.studies())
def test_a_committed_study_is_as_its_verdicts(name, tmp_path):
    """The page is written from the design and the scores; means are those of the rows."""
    design = results.design_of(name)
    assert f"results/{name}/" in (ROOT / "experiments" / "README.md").read_text()
    page = results.page_of(name)
    assert page == (results.RESULTS / name / "README.md").read_text()
    assert len(re.findall(r"[A-Za-z0-9][^ |]*", page)) <= 250
    (picture,) = re.findall(r"!\[[^]]+\]\((\w+\.svg)\)", page)
    assert (results.RESULTS / name / picture).exists()
    record = results.record_of(name)
    assert set(record) >= {"Answer", "Command", "Takes"}
    with (results.RESULTS / name / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    config = ROOT / "configs" / "ablations" / f"{name}.py"
    assert {row["arm"] for row in rows} == load_design(str(config), {}).arms.keys()
    if "key" in design:
        base = [design["base"]] * len(design["values"])
        stored = dict(zip(zip(design["values"], base, strict=True), design["scores"], strict=True))
    else:
        stored = {("", arm): value["mean"] for arm, value in design["values"].items()}
    for (rung, arm), mean in stored.items():
        its = [r for r in rows if r["arm"] == arm and (not rung or r[design["key"]] == str(rung))]
        scores = [float(row["value"]) for row in its if row["value"]]
        assert (statistics.fmean(scores) if scores else None) == pytest.approx(mean)


def test_a_page_says_how_many_seeds_would_settle_what_is_open():
    assert "16 for sinusoidal." in results.page_of("positions")
    assert "More seeds would not settle depth 1 and depth 8" in results.page_of("depth")


def test_results_are_taken_in(done, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    with pytest.raises(InvalidInput, match="exploratory"):
        results.add(done.path)
    sealed = tmp_path / "there" / "sealed"
    shutil.copytree(done.path, sealed)
    verdicts = json.loads((sealed / "verdicts.json").read_text())
    (sealed / "verdicts.json").write_text(json.dumps(verdicts | {"exploratory": []}))
    results.add(sealed)
    assert results.studies() == ["sealed"]
    assert len((tmp_path / "sealed" / "scores.csv").read_text().splitlines()) == 7
    assert results.design_of("sealed")["verdicts"]["position=none"]["words"]
