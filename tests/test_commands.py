"""sample, evaluate, compare: what they print and what they refuse."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import convert_gguf
from experiments.bench import MEASURES
from tests.conftest import ROOT, TINY, attempt, command, refused
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.directory import RunDirectory

pytestmark = pytest.mark.xdist_group("commands")  # they share two runs


@pytest.fixture
def other_run(tiny_run, tmp_path):
    """As the tiny run, but of other positions and with fewer steps."""
    other = shutil.copytree(tiny_run, tmp_path / "rotary")
    config = (other / "config.json").read_text().replace('"learned"', '"rotary"')
    (other / "config.json").write_text(config.replace('"steps": 50', '"steps": 30'))
    rows = (other / "metrics.jsonl").read_text().splitlines(keepends=True)
    (other / "metrics.jsonl").write_text("".join(rows[:6]))
    return other


def test_sample_continues_the_prompt(tiny_run):
    flags = (f"--workdir={tiny_run}", "--prompt=ROMEO:", "--num_tokens=20")
    first, again, other = (attempt("sample", *flags, f"--seed={seed}") for seed in (1, 1, 2))
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("ROMEO:")
    assert len(first.stdout.rstrip("\n")) >= 20
    assert first.stdout == again.stdout != other.stdout
    greedy = [attempt("sample", *flags, "--temperature=0", f"--seed={s}").stdout for s in (1, 2)]
    assert greedy[0] == greedy[1]


def test_evaluate_scores_a_whole_split(tiny_run):
    done = attempt("evaluate", f"--workdir={tiny_run}", "--split=test")
    assert done.returncode == 0, done.stderr
    stored = RunDirectory(tiny_run).evaluation()["test"]
    assert f"loss {stored['loss']:.4f}" in done.stdout
    assert f"targets {stored['protocol']['targets']}" in done.stdout


def test_compare_shows_what_differed_and_claims_nothing(tiny_run, other_run, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    picture = tmp_path / "c.png"
    done = attempt("compare", tiny_run, other_run, f"--out={picture}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    differing = next(line for line in lines if "model.position" in line)
    assert "learned" in differing
    assert "rotary" in differing
    assert not any("model.width" in line for line in lines)
    assert any("eval/loss" in line for line in lines)
    assert "warning: different token budgets: 6,400, 3,840" in done.stdout
    assert "no claim: some config has only 1 seed" in done.stdout
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_compare_knows_copies_from_seeds(tiny_run, tmp_path):
    copy, seed = tmp_path / "copy", tmp_path / "seed"
    shutil.copytree(tiny_run, copy)
    shutil.copytree(tiny_run, seed)
    config = json.loads((seed / "config.json").read_text())
    (seed / "config.json").write_text(json.dumps(config | {"seed": 1}))
    assert "one run and its copies" in attempt("compare", tiny_run, copy).stdout
    assert "the spread between the runs is noise" in attempt("compare", tiny_run, seed).stdout


def test_compare_warns_of_other_code_and_other_splits(tiny_run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(tiny_run, other)
    directory = RunDirectory(other)
    manifest, evaluation = directory.manifest(), directory.evaluation()
    manifest["git"] = (manifest["git"] or {}) | {"revision": "f" * 40, "diff_sha256": "0" * 64}
    evaluation["test"]["protocol"]["targets"] += 1
    directory.write_json("manifest.json", manifest)
    directory.write_json("evaluation.json", evaluation)
    done = attempt("compare", tiny_run, other)
    assert "warning: computed by different code" in done.stdout
    assert "warning: different targets are scored" in done.stdout


def _told(verb, *arguments):
    """Returns a program's input: one line of JSON; people's text goes to standard error."""
    done = attempt(verb, *arguments, "--json")
    (line,) = done.stdout.splitlines()
    assert done.returncode == 0
    return json.loads(line), done.stderr


def test_results_are_one_line_of_json_for_programs(tiny_run, other_run, tmp_path):
    run = f"--workdir={tiny_run}"
    scored, for_people = _told("evaluate", run, "--split=validation")
    stored = RunDirectory(tiny_run).evaluation()["validation"]
    assert scored["means"]["loss"] == pytest.approx(stored["loss"])
    assert f"loss {stored['loss']:.4f}" in for_people
    text, _ = _told("sample", run, "--prompt=ROMEO:", "--num_tokens=5")
    assert text["answer"].startswith(text["prompt"])
    trained, _ = _told("train", f"--config={TINY}", run)
    assert trained["evaluation"]["validation"]["loss"] == stored["loss"]
    beside, _ = _told("compare", tiny_run, other_run, f"--out={tmp_path / 'page.html'}")
    assert list(beside["runs"]["model.position"].values()) == ["learned", "rotary"]
    rows, _ = _told("runs", "ls", f"--root={tiny_run.parent}", "--columns=run,status,legs")
    assert rows == [{"run": "tiny", "status": "done", "legs": 0}]
    picture = tmp_path / "attention.png"
    seen, _ = _told("inspect_run", run, "--prompt=ROMEO:", f"--out={picture}")
    assert seen["words"] == list("ROMEO:")
    simple, _ = _told("baselines", f"--config={TINY}")
    assert simple["gate"] == "4-gram"
    wrong = attempt("evaluate", "--workdir=nowhere", "--json")
    assert (wrong.returncode, wrong.stdout) == (2, "")


def test_c75_c77_names_cannot_paint_the_terminal(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    evil = tmp_path / "\x1b]0;title\x07[red]x"
    shutil.copytree(tiny_run, evil)
    done = attempt("compare", tiny_run, evil)
    assert done.returncode == 0, done.stderr
    assert "\x1b]" not in done.stdout
    assert "\x07" not in done.stdout


@pytest.mark.commands
@pytest.mark.as_user
def test_bench_measures_what_it_says(tmp_path):
    out = tmp_path / "bench.json"
    flags = ("--programs=ours,1_seeds,4_seeds,machine", "--rounds=1", "--steps=2", f"--out={out}")
    done = command("bench", *flags)
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())["figures"]
    assert set(MEASURES) <= set(figures)
    for name in MEASURES:
        assert f"\n{name}, {MEASURES[name].unit}" in done.stdout
        assert all(value > 0 for column in figures[name].values() for value in column)
    # 6 for each token and product: of the blocks' matrices, queries with keys, weights with values.
    products = 4 * (12 * 128**2 + 2 * 64 * 128) + 65 * 128
    assert figures["update_flops"]["ours"][0] == 6 * 12 * 64 * products
    starts = ("nothing compiled", "compiled before")
    first, again = (figures[f"first step, {start}"]["ours"][0] for start in starts)
    assert again < first
    assert "of the machine's reading" in done.stdout


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sample --workdir={run} --prompt=5€", ["'5'", "U+0035", "offset 0"]),
        ("sample --workdir={run} --top_p=2 --temperature=-1", ["top_p", "temperature"]),
        ("sample --workdir={run} --temperature=warm", ["--temperature", "warm"]),
        ("sample --workdir={run} --prompt=", ["--prompt=''", "finds no token"]),
        ("sample --workdir={run} --seed=4294967296", ["seed", "2^32"]),
        ("sample --workdir={tmp}", ["no run here"]),
        ("evaluate --workdir={run} --split=dev", ["dev", "validation"]),
        ("evaluate --workdir={run} --stride=99", ["--stride=99", "16"]),
        ("evaluate --workdir={run} --batch_size=0", ["--batch_size=0"]),
        ("evaluate --workdir={run} --begin=x --out=a.jsonl", ["--begin, --out: not read without"]),
        ("evaluate --workdir={run} --choices=a --metrics=x", ["metrics: not read with --choices"]),
        ("evaluate --workdir={run} --choices=a.jsonl --out=a.jsonl", ["expected a new name"]),
        ("evaluate --workdir={run} --choices=a --out={run}/evaluation.json", ["a new name"]),
        ("evaluate --workdir={run} --choices=a --out={run}/metrics.jsonl", ["a new name"]),
        ("compare {run} {other} --rule=x", ["--rule: not read"]),
        ("compare a.jsonl b.jsonl --out=x.html", ["--out: not read for items"]),
        ("judge --scores=a.csv --at=3 --base=a --margin=1", ["--at: not read with --scores"]),
        ("judge --from=a --steps --target=1 --planned=5", ["--planned: not read with --steps"]),
        ("try_change --base={tmp} --list --change=seed=1", ["--change"]),
        ("train --config=tiny --dry_run --profile", ["--profile: not read with --dry_run"]),
        ("compare {run}", ["two or more"]),
        ("compare {run} {tmp}", ["no run here"]),
        ("compare {run} {other} --metric=eval/los", ["eval/los", "eval/loss"]),
        ("compare {run} {other} --out=report.doc", ["report.doc", ".html"]),
        ("bench --what=trainig", ["trainig", "training, writing"]),
        ("bench --programs=tensorflow", ["tensorflow", "torch_eager"]),
        ("bench --worker=training:jaxx", ["training:jaxx"]),
        ("bench --rounds=0", ["--rounds", "at least 1"]),
        ("bench --out={tmp}", ["{tmp}", "a folder"]),
        ("convert_gguf --file=none.gguf --out={tmp}", ["none.gguf: no such file"]),
    ],
)
def test_what_commands_cannot_do_is_refused_by_name(tiny_run, other_run, tmp_path, line, words):
    places = {"run": tiny_run, "other": other_run, "tmp": tmp_path}
    done = attempt(*line.format(**places).split())
    refused(done, *(word.format(**places) for word in words))


def test_reading_gguf_names_the_extra_where_it_is_not_installed(tmp_path, monkeypatch):
    file = tmp_path / "weights.gguf"
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(convert_gguf.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"pip install -e '.\[gguf\]'"):
        convert_gguf.main([f"--file={file}", f"--out={tmp_path / 'out'}"])


@pytest.mark.parametrize(
    ("scaling", "tensor"), [("linear", "output.weight"), ("none", "rope_freqs.weight")]
)
def test_scaled_positions_of_gguf_are_refused(scaling, tensor):
    parts = [np.frombuffer(scaling.encode(), np.uint8)]
    fields = {"llama.rope.scaling.type": SimpleNamespace(parts=parts)}
    reader = SimpleNamespace(fields=fields, tensors=[SimpleNamespace(name=tensor)])
    named = "llama.rope.scaling.type" if scaling == "linear" else tensor
    with pytest.raises(InvalidInput, match=f"--file=a: {named} is not read"):
        convert_gguf.refuse_scaling(reader, "--file=a")


@pytest.mark.commands
def test_a_command_may_be_started_as_a_file():
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "experiments/train.py", "--config=configs/tiny.py", "--dry_run"]
    told = {"capture_output": True, "text": True}
    done = subprocess.run(words, cwd=ROOT, env=environment, check=False, **told)
    assert done.returncode == 0, done.stderr
    assert not {path.stem for path in (ROOT / "experiments").glob("*.py")} & sys.stdlib_module_names
