"""The pages and tables that studies and comparisons leave: safe, whole, and drawn by a browser."""

import contextlib
import csv
import datetime
import http.client
import json
import math
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import threading
from html.parser import HTMLParser

import numpy as np
import pytest

from experiments import answers, results
from experiments import pages as pages_of_studies
from tests.conftest import ROOT, TINY, attempt, command, refused, user_environment
from tests.test_many_tasks import study as made_up_study
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import as_plain
from transformer_jax.runs.listing import (
    _newest_metrics,
    facts_of,
    filtered,
    find_runs,
    parse_filter,
)
from transformer_jax.runs.pictures import draw_attention, draw_comparison
from transformer_jax.runs.progress import Silent
from transformer_jax.studies.asking.design import load_design, seal_of
from transformer_jax.studies.asking.metrics import larger_is_better
from transformer_jax.studies.asking.study import as_csv, changed_since, load_study
from transformer_jax.studies.judging.judge import judge_study
from transformer_jax.studies.judging.suite import judge_suite
from transformer_jax.studies.reporting import tables
from transformer_jax.studies.reporting.comparison import Comparison
from transformer_jax.studies.reporting.page import place_for, table, whole_page
from transformer_jax.studies.reporting.report import write_report
from transformer_jax.studies.reporting.suite import page_of as page_of_suite
from transformer_jax.studies.reporting.watching import Pages, make_server
from transformer_jax.studies.running.launch import run

EVIL = '<script>alert(1)</script></script>" onload=alert(2) javascript:x \u2028 ]]> | `x` =1+1 \\x'
QUICK = {"training.steps": "12", "schedule.warmup_cosine.warmup_steps": "4", "model.depth": "1"}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A study of two arms and three seeds; read it, never write to it."""
    design = load_design(TINY, QUICK, ("model.position=learned,none",))
    folder = tmp_path_factory.mktemp("report") / "runs"
    return run(design, folder / "study", range(3), progress=Silent())


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


def held(page):
    """The data that a page's charts are drawn from."""
    return json.loads(next(text for text in page.data if text.startswith("{")))


def page_of(study):
    return Page((study.path / "report.html").read_text())


# ---------------------------------------------------------------- pages


def test_a_page_asks_nothing_of_the_network(done):
    text = (done.path / "report.html").read_text()
    outside = re.sub(r'"http://www.w3.org/2000/svg"', "", text)
    assert not re.search(r"https?://|//cdn|@import|url\(", outside)
    page = Page(text)
    assert not {"link", "img", "iframe"} & set(page.elements) - {"link"}
    assert [value for name, value in page.attributes if name in ("src", "href")] == ["data:,"]
    policy = next(
        value for name, value in page.attributes if name == "content" and "default" in value
    )
    assert "default-src 'none'" in policy
    assert policy.count("'sha256-") == 2
    assert "unsafe" not in policy
    assert len(text) < 1_000_000


def test_a_page_says_what_was_asked_and_found(done):
    page = page_of(done)
    verdicts = done.verdicts()
    for words in (
        verdicts["question"],
        verdicts["arms"]["position=none"]["words"],
        done.record["seal"][:12],
        "exploratory",
        "What each arm costs",
        "Did the change take?",
        "Every cell ended as it should.",
        "python -m experiments.",
    ):
        assert words in page.text, words
    data = held(page)
    assert data["arms"] == ["position=learned", "position=none"]
    assert (
        data["forest"]["rows"][0]["differences"] == verdicts["arms"]["position=none"]["differences"]
    )
    assert data["curves"]["metrics"]["eval/loss"]["position=none"]["step"] == [12]
    assert set(data["curves"]["axes"]) == {"updates", "tokens", "FLOPs", "seconds of training"}
    assert data["curves"]["axes"]["tokens"]["position=none"] == 8 * 16


def test_c76_names_cannot_become_elements(done, tmp_path):
    """A hostile arm, question, prediction and failure: the page has the same elements as before."""
    plain = page_of(done)
    shutil.copytree(done.path.parent, tmp_path / "runs")
    text = (tmp_path / "runs" / "study" / "study.json").read_text()
    evil = json.dumps(EVIL)[1:-1]
    text = text.replace("position=none", evil).replace("What do ", f"What {evil} do ")
    record = json.loads(text)
    record["seal"] = seal_of(record["sealed"])
    (tmp_path / "runs" / "study" / "study.json").write_text(json.dumps(record))
    (tmp_path / "runs" / "study" / "looks.jsonl").unlink()
    study = load_study(tmp_path / "runs" / "study")
    judge_study(study)
    study.write_cells()
    write_report(study)
    page = page_of(study)
    assert sorted(page.elements) == sorted(plain.elements)
    assert {name for name, _ in page.attributes} == {name for name, _ in plain.attributes}
    assert held(page)["arms"][1] == EVIL
    assert EVIL in page.text
    line = (study.path / "table.md").read_text().splitlines()[3]
    assert len(re.findall(r"(?<!\\)\|", line)) == len(tables.HEADS) + 1
    assert "\n'=" not in (study.path / "cells.csv").read_text()


def test_tables_for_papers_are_escaped():
    heads, rows = ("arm", "a_b"), [["=x|y`", "50 %"], ["+1", "a_{b} & c\\"]]
    assert tables.as_markdown(heads, rows).splitlines()[2] == "| =x\\|y\\` | 50 % |"
    assert as_csv(heads, rows).splitlines()[1:] == ["'=x|y`,50 %", "+1,a_{b} & c\\"]
    latex = tables.as_latex(heads, rows)
    assert r"a\_\{b\} \& c\textbackslash{}" in latex
    assert r"50 \%" in latex
    assert tables.as_markdown(["a", "b"], [["<pad>", "a*b*c"]]).splitlines()[2] == (
        r"| \<pad> | a\*b\*c |"
    )
    odd = tables.as_latex(["a", "b"], [["[CLS]", "x<1"], ["y", "2>|"]]).splitlines()
    assert odd[4] == r"{}[CLS] & x\textless{}1 \\", "else an option of the line before"
    assert odd[5] == r"y & 2\textgreater{}\textbar{} \\"
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
    assert [tables.clock(s) for s in (5, 600, 9000)] == ["5 s", "10 min", "2.5 h"]


def test_columns_of_numbers_stand_right():
    text = table(["arm", "n", "words"], [["a", "1,000", "x"], ["b", "–", "y"]])
    assert text.count("class=number") == 3
    assert "<th scope=col class=number>n</th>" in text


# ---------------------------------------------------------------- comparing


def test_compare_judges_a_study_again(done, tmp_path):
    shutil.copytree(done.path.parent, tmp_path / "runs")
    path = tmp_path / "runs" / "study"
    (path / "verdicts.json").unlink()
    result = command("compare", path)
    assert result.returncode == 0, result.stderr
    assert load_study(path).verdicts() == done.verdicts()
    assert "position=none" in result.stdout
    refused(attempt("compare", path, load_study(path).cell("position=none", 0).path), "not both")
    refused(attempt("compare", path, "--metric=eval/accuracy"), "--metric and --out are for runs")


def runs_of(done, *which):
    return {
        f"{arm}{seed}": RunDirectory(done.cell(f"position={arm}", seed).path) for arm, seed in which
    }


def test_runs_are_grouped_by_config_and_paired_by_seed(done):
    which = [("learned", 0), ("none", 0), ("learned", 1), ("none", 1), ("none", 2)]
    comparison = Comparison(runs_of(done, *which), "eval/loss")
    assert list(comparison.arms) == ["position=learned", "position=none"]
    assert "no verdict: no margin was declared" in comparison.verdict()
    (pair,) = comparison.paired()
    assert pair["seeds"] == [0, 1]
    last = {name: RunDirectory(r.path).metrics()[-1] for name, r in comparison.runs.items()}
    by_hand = [last[f"learned{s}"]["eval/loss"] - last[f"none{s}"]["eval/loss"] for s in (0, 1)]
    assert pair["differences"] == pytest.approx(by_hand)
    page = Page(comparison.page())
    assert "<h2>Paired differences</h2>" in comparison.page()
    assert "The same code, packages and device." in page.text


def test_nothing_is_claimed_where_evaluation_differs(done, tiny_run, tmp_path):
    runs = {**runs_of(done, ("none", 0), ("none", 1)), "other": RunDirectory(tiny_run)}
    copy = tmp_path / "none1"
    shutil.copytree(runs["none1"].path, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["data"]["sha256"] = "other"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    comparison = Comparison(runs | {"none1": RunDirectory(copy)}, "eval/loss")
    assert "other data" in comparison.warnings()[0]
    assert comparison.verdict() == "no claim: the runs were not evaluated alike"
    assert "<h2>Paired differences</h2>" not in comparison.page()


# ---------------------------------------------------------------- finding runs


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


def test_order_is_asked_of_numbers(done):
    with pytest.raises(InvalidInput, match="expected a number behind <, got '3,7'"):
        choose(done.path.parent, ["test/loss<3,7"])


def test_scores_whose_cells_are_gone_are_not_replaced(done, tmp_path):
    shutil.copytree(done.path, tmp_path / "study")
    before = {file: file.read_bytes() for file in (tmp_path / "study").iterdir() if file.is_file()}
    refused(attempt("compare", tmp_path / "study"), "has scores of 6 cells that are not in")
    assert before == {file: file.read_bytes() for file in before}
    table = tmp_path / "study" / "cells.csv"
    for text in (table.read_text().replace(",", ";"), table.read_text() + "\xe4"):
        table.write_bytes(text.encode("latin-1"))
        refused(
            attempt("compare", tmp_path / "study"), "cells.csv: not the table that ablate wrote"
        )


def test_no_study_begins_among_files_of_others(done, tiny_run, tmp_path):
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "table.tex").write_text("mine")
    shutil.copytree(tiny_run, tmp_path / "run")
    arguments = (f"--config={TINY}", "--arm=model.num_heads=1", "--seeds=2")
    for folder, name in (("paper", "table.tex"), ("run", "STATUS")):
        found = attempt("ablate", *arguments, f"--workdir={tmp_path / folder}")
        refused(found, f"holds files but no study ({name})")
    change = ("--change=model.num_heads=1", f"--config={TINY}")
    refused(attempt("try", f"--base={tmp_path / 'run'}", *change), "holds files but no journal")
    assert [*(tmp_path / "paper").iterdir()] == [tmp_path / "paper" / "table.tex"]


def test_what_is_compared_is_told_in_numbers_and_written_where_it_may_be(done, tmp_path):
    runs = [run.path for run in runs_of(done, ("none", 0), ("none", 1)).values()]
    found = attempt("compare", *runs, f"--out={tmp_path / 'new' / 'page.html'}", "--json")
    held = json.loads(found.stdout)["runs"]
    for path in runs:
        last = RunDirectory(path).metrics()[-1]
        assert held["eval/loss"][str(path)] == last["eval/loss"]
        assert held["step"][str(path)] == last["step"]
    (tmp_path / "page.html").mkdir()
    refused(attempt("compare", *runs, f"--out={tmp_path / 'page.html'}"), "folder of that name")
    (tmp_path / "file").touch()
    refused(attempt("runs", "export", done.path, f"--out={tmp_path / 'file' / 'a.zip'}"), "--out=")
    noise = ("noise", f"--config={TINY}", "--levels=2", f"--out={tmp_path / 'page.html'}")
    refused(attempt(*noise), "folder of that name")


def test_small_differences_keep_their_digits():
    assert [tables.signed(x) for x in (-3.2e-5, 0.0, 0.00012, 1.5)] == [
        *("-3.2e-05", "+0.0000", "+0.0001", "+1.5000")
    ]
    assert tables.spell_interval((1.2e-5, 3e-5)) == "[+1.2e-05, +3e-05]"


@pytest.mark.parametrize(
    ("metric", "larger"),
    [
        ("test/generated_accuracy", True),
        ("eval/accuracy", True),
        ("bleu", True),
        ("test/loss", False),
        ("time/step_ms", False),
        ("time/tokens_per_second", True),
        ("time/mfu", True),
    ],
)
def test_compare_and_studies_agree_which_way_a_metric_is_better(metric, larger):
    assert larger_is_better(metric) == larger
    better, worse = (0.9, 0.1) if larger else (0.1, 0.9)
    comparison = object.__new__(Comparison)
    comparison.metric, comparison.metric_facts = metric, {}
    comparison.arms = {"base": {0: "a", 1: "b"}, "arm": {0: "c", 1: "d"}}
    comparison.columns = {name: {metric: worse} for name in "ab"}
    comparison.columns |= {"c": {metric: better}, "d": {metric: better + 0.01}}
    assert comparison.paired()[0]["mean"] > 0


def test_a_filter_that_names_nothing_is_refused(done):
    refused(
        attempt("runs", "ls", f"--root={done.path.parent}", "tes/loss<3"), "did you mean test/loss"
    )
    for wrong, why in (
        ("--sort=loss", "expected one of them"),
        ("--columns=status,test/los", "did you mean test/loss?"),
    ):
        refused(attempt("runs", "ls", f"--root={done.path.parent}", wrong), wrong, why)
    refused(attempt("runs", "ls", f"--root={done.path.parent}/x"), "no such folder")
    refused(attempt("runs", "lst"), "ls, show, tail, diff, watch, gc, export", "did you mean ls?")
    with pytest.raises(ValueError, match="expected a filter"):
        parse_filter("loss")


def test_a_short_key_means_the_least_nested_one_and_is_refused_where_several_are(done, tmp_path):
    facts = {"model.position": "learned", "model.layer_types.L.position": "rotary"}
    assert parse_filter("position=learned")(facts)
    assert not parse_filter("position=rotary")(facts)
    root = f"--root={done.path.parent}"
    refused(
        attempt("runs", "ls", root, "batch_size=32"),
        "evaluation.batch_size, training.batch_size; expected one",
    )
    found = attempt("runs", "ls", "seed=0", root, "test/loss<9", "--json")  # in any order
    assert {row["seed"] for row in json.loads(found.stdout)} == {0}
    none = {"model.num_kv_heads": None}
    assert parse_filter("model.num_kv_heads!=2")(none)
    assert not parse_filter("model.num_kv_heads!=None")(none)
    assert not parse_filter("model.width!=2")(none), "a run without the key does not pass"
    several = {"data.splits": [0.8, 0.1, 0.1], "model.use_bias": True}
    for text in (
        "splits=0.8,0.1,0.1",
        "splits=(0.8, 0.1, 0.1)",
        "use_bias=true",
        "use_bias!=False",
    ):
        assert parse_filter(text)(several), text
    assert not parse_filter("splits!=0.8,0.1,0.1")(several)


def test_a_number_that_is_none_comes_last():
    rows = [{"run": str(n), "a/b": v} for n, v in enumerate((2.5, math.nan, 1.1, 3.0, None, 0.9))]
    assert [row["a/b"] for row in filtered(rows, (), "a/b")][:4] == [0.9, 1.1, 2.5, 3.0]


def test_the_last_evaluation_is_found_however_many_rows_came_after_it(tmp_path):
    rows = [{"step": 1, "eval/loss": 2.0}, {"step": 500, "eval/loss": 1.75}]
    rows += [{"step": step, "train/loss": 1.7, "time/step_ms": 0.1} for step in range(501, 4000)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    newest = _newest_metrics(tmp_path)
    assert (newest["eval/loss"], newest["step"]) == (1.75, 3999)


def test_a_folder_that_cannot_be_read_hides_no_other(tmp_path, monkeypatch):
    for name in ("a", "private"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    honest = os.scandir

    def scandir(path):
        if path.name in closed:
            raise PermissionError(13, "Permission denied", str(path))
        return honest(path)

    monkeypatch.setattr("os.scandir", scandir)
    closed = ["private"]
    assert list(find_runs(tmp_path)) == [tmp_path / "a"]
    closed = [tmp_path.name]
    with pytest.raises(InvalidInput, match=f"--root={tmp_path}: Permission denied"):
        list(find_runs(tmp_path))


def test_the_newest_of_each_metric_is_listed_whatever_the_last_row_has(done, tmp_path):
    shutil.copytree(done.cell("position=none", 0).path, tmp_path / "stopped")
    with (tmp_path / "stopped" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "train/loss": 0.5}\n{"step": 100, "tra')
    (row,) = choose(tmp_path, ["eval/loss<9"])
    assert row["train/loss"] == 0.5


def test_what_a_run_says_does_not_steer_the_terminal(done, tmp_path):
    shutil.copytree(done.cell("position=none", 0).path, tmp_path / "mailed")
    config = json.loads((tmp_path / "mailed" / "config.json").read_text())
    config["data"]["source"] = "\x1b]0;x\x07"
    (tmp_path / "mailed" / "config.json").write_text(json.dumps(config))
    with (tmp_path / "mailed" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 99, "\x1b[2J": 1.0}) + "\n")
    for what in ("show", "tail"):
        shown = attempt("runs", what, tmp_path / "mailed")
        assert shown.returncode == 0, shown.stderr
        assert "\x1b" not in shown.stdout
        assert "\\x1b" in shown.stdout


def test_a_run_without_a_heartbeat_is_taken_for_dead(done, tmp_path):
    shutil.copytree(done.cell("position=none", 0).path, tmp_path / "old")
    (tmp_path / "old" / "STATUS").write_text("running 2020-01-01T00:00:00+00:00 step 3\n")
    assert choose(tmp_path, [])[0]["status"] == "died"


def test_a_run_whose_process_is_gone_is_dead_at_once(done, tmp_path):
    shutil.copytree(done.cell("position=none", 0).path, tmp_path / "old")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    (tmp_path / "old" / "STATUS").write_text(f"running {now} step 3\n")
    for pid, host, status in (
        (ended.pid, socket.gethostname(), "died"),
        (os.getpid(), socket.gethostname(), "running"),
        (ended.pid, "another-machine", "running"),
    ):
        (tmp_path / "old" / ".lock").write_text(f"pid {pid} on {host}, since {now}\n")
        assert choose(tmp_path, [])[0]["status"] == status


def test_a_run_is_listed_at_the_step_at_which_it_was_saved(done, tmp_path):
    shutil.copytree(done.cell("position=none", 0).path, tmp_path / "stopped")
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    rows = (tmp_path / "stopped" / "metrics.jsonl").read_text().splitlines()
    step = json.loads(rows[-1])["step"] + 3  # no row was due since
    (tmp_path / "stopped" / "STATUS").write_text(f"interrupted {now} step {step}\n")
    assert choose(tmp_path, [])[0]["step"] == step


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


def test_runs_are_shown_and_told_apart(done):
    one, other = (done.cell(arm, 0).path for arm in done.arms)
    shown = attempt("runs", "show", one)
    assert shown.returncode == 0, shown.stderr
    for words in (f"{one}: done, step ", "config      training.steps=", "test        loss "):
        assert words in shown.stdout
    rows = attempt("runs", "tail", one, "--lines=2").stdout.splitlines()
    assert len(rows) == 3
    assert "train/loss" in rows[0]
    told = attempt("runs", "diff", one, other).stdout
    assert "model.position" in told
    assert "model.width" not in told
    refused(attempt("runs", "show", done.path), "a study; python -m experiments.compare")
    refused(attempt("runs", "tail", done.path.parent), "no run here")
    refused(attempt("runs", "tail", one, "--lines=0"), "--lines=0: expected an integer >= 1")


@pytest.fixture
def watched(done):
    """The address of a server of pages on the study's folder, and how to ask it."""
    with make_server(done.path.parent, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def ask(path, method="GET", **headers):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
            with contextlib.closing(connection):
                connection.request(method, path, headers=headers)
                answer = connection.getresponse()
                return answer.status, dict(answer.headers), answer.read().decode()

        yield f"http://127.0.0.1:{server.server_port}", ask
        server.shutdown()


def test_what_trains_is_watched_on_pages_of_this_machine_alone(done, watched):
    _, ask = watched
    status, headers, text = ask("/")
    page = Page(text)
    assert (status, headers["Refresh"]) == (200, "5")
    assert done.sealed["question"] in page.text
    assert "6 cells: 6 done" in page.text
    leads = [value for name, value in page.attributes if name == "href" and value[0] == "/"]
    assert leads == [f"/study/{done.path.name}"], "cells are behind their study"
    status, headers, text = ask(leads[0])
    page = Page(text)
    assert status == 200
    assert "Refresh" not in headers, "it is through"
    assert {"eval/loss", "train/loss"} <= set(held(page)["curves"]["metrics"])
    cells = [value for name, value in page.attributes if name == "href" and "/cells/" in value]
    assert len(cells) == 6
    status, headers, text = ask(cells[0])
    assert "done, 12 of 12 updates" in Page(text).text
    assert "train/gradient_norm" in held(Page(text))["curves"]["metrics"]
    for path in ("/report/", "/%72eport/"):  # a page from elsewhere sees none of the others
        status, headers, text = ask(f"{path}{done.path.name}")
        assert text == (done.path / "report.html").read_text()
        assert "sandbox allow-scripts; default-src 'none'" in headers["Content-Security-Policy"]
    status, headers, text = ask("/", method="HEAD")
    assert (status, text) == (200, "")
    assert int(headers["Content-Length"]) > 1000


def test_nothing_else_is_shown_and_nobody_else_is_answered(done, watched):
    _, ask = watched
    cell = done.cells()[0].path
    outside = os.path.relpath(ROOT / "README.md", done.path.parent)
    for path in (
        *("/run/", "/study/", "/report/", "/nothing", f"/run/{outside}", f"/report/{outside}"),
        *("/run/%2e%2e/%2e%2e", f"/{cell}/config.json", f"/report/{done.path.name}/../../x"),
    ):
        assert ask(path)[0] == 404, path
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example"):
        assert ask("/", Host=host)[0] == 403
    assert ask("/", Host="localhost:9000")[0] == 200, "through a tunnel"
    assert ask("/", method="POST")[0] == 501
    assert ask("/", method="DELETE")[0] == 501


def test_what_is_damaged_hides_nothing_else(done, tmp_path):
    root = tmp_path / "runs"
    shutil.copytree(done.path.parent, root)
    for name, sealed in (("broken", "{"), ("foreign", '{"sealed": {"metric": "x"}, "seal": "0"}')):
        (root / name).mkdir()
        (root / name / "study.json").write_text(sealed)
    shutil.copytree(done.cells()[0].path, root / "odd")
    row = {"step": None, "when": 1, "legs": 5}
    (root / "odd" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    shutil.copytree(done.cells()[0].path, root / "bytes")
    (root / "bytes" / "STATUS").write_bytes(b"\xff\xfe")
    page = Page(Pages(root).page("/").text)
    assert page.text.count("cannot be read") == 2
    for words in (done.sealed["question"], "odd", "damaged", "bytes"):
        assert words in page.text
    with make_server(root, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", "/study/broken")
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Refresh"]) == (500, "5")
            assert "expected a study as JSON" in Page(answer.read().decode()).text
        server.shutdown()


def test_a_run_or_a_study_is_watched_by_itself(done):
    pages = Pages(done.path)
    (address,) = pages.studies()
    assert address == "/study/"
    assert done.sealed["question"] in pages.page(address).text
    assert pages.page("/report/").is_foreign
    pages = Pages(done.cells()[0].path)
    assert list(pages.runs()) == ["/run/"]
    assert "12 of 12 updates" in pages.page("/run/").text


def test_hostile_names_are_text_on_watched_pages(done, tmp_path):
    names = ("<script>alert(1)<script>", 'a" onload="alert(2)', "100%2F..", "two\nlines", "ü ?#&")
    plain = None
    for name in names:
        root = tmp_path / str(names.index(name))
        shutil.copytree(done.cells()[0].path, root / name)
        pages = Pages(root)
        (address,) = pages.runs()
        overview = Page(pages.page("/").text)
        assert [v for n, v in overview.attributes if n == "href" and v[0] == "/"] == [address]
        assert not set(address) & set('<>" ?#&\n')
        page = Page(pages.page(address).text)
        assert [n for n, _ in page.attributes if n.startswith("on")] == []
        plain = plain or page.elements
        assert page.elements == plain


def test_a_run_that_trains_is_loaded_again_with_the_time_that_is_left(done, tmp_path):
    shutil.copytree(done.cells()[0].path, tmp_path / "run")
    now = datetime.datetime.now(datetime.UTC).isoformat()
    (tmp_path / "run" / "STATUS").write_text(f"running {now} step 6\n")
    row = {"step": 6, "train/loss": 3.0, "time/step_ms": 20_000.0}
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    page = Pages(tmp_path).page("/run/run")
    assert page.changes
    assert "running, 6 of 12 updates; 2 min left" in Page(page.text).text
    with pytest.raises(InvalidInput, match="no such folder"):
        make_server(tmp_path / "none", 0)
    with make_server(tmp_path, 0) as server:
        taken = f"--port={server.server_port}"
        refused(attempt("runs", "watch", tmp_path, taken), taken, "--port=0 takes one that is free")


def test_a_thousand_runs_are_listed_without_jax(tiny_run, tmp_path):
    for number in range(1000):
        folder = tmp_path / f"g{number % 10}" / f"r{number}"
        folder.mkdir(parents=True)
        for name in ("config.json", "manifest.json", "STATUS", "metrics.jsonl"):
            (folder / name).hardlink_to(tiny_run / name)
    (tmp_path / "none").mkdir()
    many = none = math.inf
    for _ in range(3):  # the machine is shared
        many = min(many, _seconds_of_listing(tmp_path, 1000))
        none = min(none, _seconds_of_listing(tmp_path / "none", 0))
        if many < 4 * none:  # of which nearly all is imports
            break
    assert many < 4 * none


def _seconds_of_listing(root, count):
    code = (
        "import sys, time\n"
        "from experiments.runs import main\n"
        f"main(['ls', '--root={root}', 'eval/loss<9'])\n"
        "assert 'jax' not in sys.modules and 'scipy' not in sys.modules\n"
        "print(time.process_time(), file=sys.stderr)"  # what other processes do does not count
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=user_environment(), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert result.stdout.endswith(f"{count} runs\n")
    return float(result.stderr)


# ---------------------------------------------------------------- what the studies here found

FOUND = sorted((ROOT / "experiments" / "results").glob("*/study.json"))


@pytest.fixture(scope="module")
def pages():
    return pages_of_studies.pages()


def test_the_pages_of_studies_are_written_from_their_verdicts(pages):
    for name, text in pages.items():
        file = ROOT / "experiments" / (f"results/{name}" if name else "") / "README.md"
        assert file.read_text() == text, "python -m experiments.results"
        for link in re.findall(r"\]\(([^)]*)\)", text):
            assert (file.parent / link.partition("#")[0]).exists(), link
    assert len(FOUND) >= 4


def test_a_study_that_nothing_decides_shows_what_was_found(pages):
    """One that is withheld does not: its base had not learned, say."""
    for name, shows in {"depth_wide": True, "depth": False}.items():
        assert ("**Not decided.** **Beside depth 4:**" in pages[name]) == shows
        assert ("**Did it come true?**" in pages[name]) == shows
        assert ("not decided (" in pages[name]) == (not shows)
    assert "more model.depth: unresolved (-0.0001 [" in pages["depth_wide"]


@pytest.mark.thorough
def test_whether_older_bases_had_learned_is_as_it_was_scored(tmp_path):
    """Those that sealed no gate: one of digits, beside the nearest neighbour."""
    for file in ("study.json", "cells.csv", "verdicts.json"):
        shutil.copy(answers.RESULTS / "poolings" / file, tmp_path / file)
    found = results.score_base(tmp_path)
    assert found == json.loads((answers.RESULTS / "poolings" / answers.GATE).read_text())
    assert found["method"] == "nearest neighbour"
    assert not found["passed"]
    assert "the base has not learned" in answers.undecided(answers.read_study("poolings"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.parent.name)
def test_every_study_says_whether_its_base_had_learned(path):
    study = answers.read_study(path.parent.name)
    if study.record["sealed"].get("target") is not None:  # which the base reaches in every run
        _, (solved, runs) = next(iter(study.verdicts["arms"].values()))["solved"]
        assert solved == runs >= 5
    else:
        assert study.learned


@pytest.mark.parametrize(("name", "later"), answers.ASKED_AGAIN.items())
def test_what_was_asked_again_was_not_decided_or_not_all_of_it(pages, name, later):
    first, again = answers.read_study(name), answers.read_study(later)
    words = {its["verdict"] for its in first.verdicts["arms"].values()}
    assert answers.undecided(first) or answers.UNRESOLVED in words
    assert again.learned is None or again.learned["passed"]
    assert again.record["sealed_at"] > first.record["sealed_at"]
    assert again.verdicts["question"] in pages[""]
    begins = f"| [{first.verdicts['question']}](results/{name}/README.md) |"
    (row,) = [line for line in pages[""].splitlines() if line.startswith(begins)]
    assert row.count(f"[{later}]") == 1


def in_digits(found):
    """JSON with numbers of nine digits: other versions of numpy and scipy round the last otherwise."""
    return json.loads(json.dumps(found), parse_float=lambda text: f"{float(text):.9g}")


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.parent.name)
def test_a_committed_study_is_as_it_was_sealed(path):
    study = load_study(path.parent)
    assert study.record["seal"] == seal_of(study.record["sealed"])
    assert study.verdicts()["seal"] == study.record["seal"]
    assert study.record["exploratory"] == []
    again = results.decided_again(path.parent)
    assert in_digits(again) == in_digits(study.verdicts()), "by the rules of today"
    sealed = load_design(study.record["config_path"]).sealed()
    assert changed_since(study.sealed, sealed) == [], "the file still asks what was asked"
    assert len(study.verdicts()["seeds"]) >= 5
    rows = list(csv.DictReader((path.parent / "cells.csv").read_text().splitlines()))
    rows = [row for row in rows if float(row.get("budget") or 1) == 1]
    metric = study.sealed["metric"]
    for arm, value in study.verdicts()["values"].items():
        scores = [
            float(row[metric]) for row in rows if row["arm"] == arm and row["state"] == "done"
        ]
        mean = statistics.mean(scores) if scores else None
        assert mean == (value["mean"] and pytest.approx(value["mean"]))


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome")
    service = Service(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def complaints(browser):
    return [
        entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
    ]


@pytest.mark.browser
def test_the_report_draws_and_is_used_by_keyboard(browser, done):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.select import Select

    browser.get(f"file://{done.path}/report.html")
    charts = browser.find_elements(By.CSS_SELECTOR, "[data-chart] figure > svg")
    assert len(charts) == 3  # forest, curves, by position
    assert all(chart.find_elements(By.CSS_SELECTOR, "path, circle") for chart in charts)
    curves = browser.find_element(By.CSS_SELECTOR, "[data-chart=curves]")
    metric, axis = curves.find_elements(By.TAG_NAME, "select")
    Select(metric).select_by_visible_text("train/loss")
    Select(axis).select_by_visible_text("FLOPs")
    for box in curves.find_elements(By.CSS_SELECTOR, "input[type=checkbox]"):
        box.click()
    lines = "figure > svg > path:not(.band)"
    assert len(curves.find_elements(By.CSS_SELECTOR, lines)) == 2
    button = curves.find_elements(By.TAG_NAME, "button")[1]
    button.send_keys(Keys.SPACE)
    assert button.get_attribute("aria-pressed") == "false"
    assert len(curves.find_elements(By.CSS_SELECTOR, lines)) == 1
    drawing = curves.find_element(By.CSS_SELECTOR, "figure > svg")
    drawing.send_keys(Keys.ARROW_LEFT)
    readout = curves.find_element(By.CLASS_NAME, "readout")
    assert "FLOPs" in readout.text
    assert "position=learned" in readout.text
    assert browser.find_elements(By.CSS_SELECTOR, "svg:not([aria-label]):not([aria-hidden])") == []
    assert complaints(browser) == []


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
def test_the_report_fits_in_light_and_dark(browser, done, scheme, width):
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(f"file://{done.path}/report.html")
    script = "return getComputedStyle(document.body).{}"
    paper = browser.execute_script(script.format("backgroundColor"))
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    assert paper != browser.execute_script(script.format("color"))
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) <= 0
    assert complaints(browser) == []


@pytest.mark.browser
def test_what_was_chosen_on_a_watched_page_stays_when_it_is_loaded_again(browser, done, watched):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.select import Select

    address, _ = watched

    def controls():
        curves = browser.find_element(By.CSS_SELECTOR, "[data-chart=curves]")
        metric, _ = curves.find_elements(By.TAG_NAME, "select")
        return Select(metric), curves.find_element(By.CSS_SELECTOR, "input[type=checkbox]")

    browser.get(address)
    browser.find_element(By.LINK_TEXT, done.sealed["question"]).click()
    metric, log = controls()
    metric.select_by_visible_text("train/gradient_norm")
    log.click()
    browser.find_elements(By.CSS_SELECTOR, "[data-chart=curves] button")[1].click()
    browser.refresh()
    metric, log = controls()
    assert metric.first_selected_option.text == "train/gradient_norm"
    assert log.is_selected()
    buttons = browser.find_elements(By.CSS_SELECTOR, "[data-chart=curves] button")
    assert [b.get_attribute("aria-pressed") for b in buttons] == ["true", "false"]
    lines = "[data-chart=curves] figure > svg > path:not(.band)"
    assert len(browser.find_elements(By.CSS_SELECTOR, lines)) == 1
    browser.find_element(By.LINK_TEXT, "The report").click()
    assert browser.find_elements(By.CSS_SELECTOR, "[data-chart] figure > svg path")
    assert complaints(browser) == []


@pytest.mark.browser
def test_a_hostile_page_runs_nothing(browser, tmp_path):
    body = f"<h1>{EVIL}</h1>{place_for('forest')}"  # as if somebody had forgotten to escape
    data = {"arms": [], "forest": {"rows": [], "margin": 0, "label": EVIL}, "charts": {}}
    (tmp_path / "page.html").write_text(whole_page(EVIL, body, data))
    browser.get(f"file://{tmp_path}/page.html")
    entries = complaints(browser)
    assert entries
    assert all("Content Security Policy" in entry["message"] for entry in entries)


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1200])
def test_a_suite_draws_and_fits(browser, tmp_path, width):
    made_up = {name: made_up_study(0.1) for name in "abcd"}
    found = judge_suite(made_up | {EVIL: made_up_study(0.1, passed=False)})
    (tmp_path / "page.html").write_text(page_of_suite(as_plain(found)))
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(f"file://{tmp_path}/page.html")
    drawn = "return document.querySelectorAll('[data-chart=forest] circle').length"
    assert browser.execute_script(drawn) == 4 * (1 + 5) + 2  # of what is left out none
    lines = "return document.querySelectorAll('[data-chart=profile-0] figure > svg > path').length"
    assert browser.execute_script(lines) >= 2
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) <= 0
    assert complaints(browser) == []


@pytest.mark.browser
def test_a_comparison_of_runs_draws(browser, done, tmp_path):
    which = [(arm, seed) for arm in ("learned", "none") for seed in (0, 1, 2)]
    page = Comparison(runs_of(done, *which), "eval/loss").page()
    (tmp_path / "page.html").write_text(page)
    browser.get(f"file://{tmp_path}/page.html")
    drawn = "return document.querySelectorAll('[data-chart] figure > svg circle').length"
    assert browser.execute_script(drawn) >= 4
    assert complaints(browser) == []
