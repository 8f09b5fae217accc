"""The commands of README and docs, letter by letter, and the numbers that the README prints."""

import itertools
import json
import re
import resource
import shlex
import shutil
import statistics
import subprocess
import sys

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from configs import shakespeare
from tests.conftest import FLAGS, ROOT, attempt, run_python
from tests.test_benchmarks import write_bundle

README = (ROOT / "README.md").read_text()
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
COMMANDS = list(  # those of the README first, each once
    dict.fromkeys(
        line
        for page in PAGES
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
        for line in block.splitlines()
    )
)
SHORT = ("--config.training.steps=20", "--config.schedule.warmup_steps=5")
MAKEFILE = (ROOT / "Makefile").read_text()


def recipe(target):
    found = re.search(rf"^{target}:.*\n\t(.*)$", MAKEFILE, re.MULTILINE)
    assert found, f"make {target} is not in the Makefile"
    return found[1].replace("$(RUN)", sys.executable)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder that looks like a clone to the commands, with a text of the user's own."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("configs", "experiments", "transformer_jax"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "my_text.txt").write_text("It was the best of times, the worst of times.\n" * 800)
    numbers = [f"{word} {n}" for n in range(60) for word in ("I am", "you are", "they run")]
    (folder / "my_pairs.tsv").write_text("".join(f"{n}.\t{n[::-1]}\n" for n in numbers))
    rows = [f'"{n}, it is said",{n[0]}\n' for n in numbers]
    (folder / "my_texts.csv").write_text("text,label\n" + "".join(rows))
    for name, count in (("documents", 60), ("validation", 12)):
        texts = (f"{n}: it was the best of times" for n in range(count))
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / f"my_{name}.jsonl").write_text(lines)
    item = {"context": "it was the ", "choices": ["best", "stem"], "answer": 0}
    (folder / "my_items.jsonl").write_text(3 * (json.dumps(item) + "\n"))
    write_bundle(folder / "my_bundle")
    for name, right in (("plain", (True, False, True)), ("wide", (True, True, False))):
        rows = [{"item": number, "accuracy": value} for number, value in enumerate(right)]
        (folder / f"my_{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    table = pa.table({"text": [f"{n}: it was the worst of times" for n in range(90)]})
    pq.write_table(table, folder / "my_documents.parquet")
    tokens = np.random.default_rng(1).integers(0, 300, 9000)
    tokens.astype("<u2").tofile(folder / "my_tokens.bin")
    (folder / "my_logs").mkdir()
    for arm, seed in itertools.product(("plain", "wide"), range(4)):
        rows = ({"step": n, "val/loss": 3.5 - n / 1e3 - seed / 50} for n in range(0, 500, 50))
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "my_logs" / f"{arm}-seed{seed}.jsonl").write_text(text)
    draws, labels = np.random.default_rng(0), np.arange(120) % 3
    for number, label in enumerate(labels):
        pixels = draws.integers(0, 60, (8, 8)) + 60 * label
        (folder / "my_images" / "abc"[label]).mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(pixels.astype(np.uint8))
        picture.save(folder / "my_images" / "abc"[label] / f"{number}.png")
    series = draws.normal(size=(120, 10, 4)) + labels[:, None, None]
    np.savez(folder / "my_series.npz", vectors=series, labels=labels)
    (folder / "my_attention.py").write_text(
        re.search(r"```python\n(# my_attention.py\n.*?)```", README, re.DOTALL)[1]
    )
    return folder


def run(place, line, *more, **environment):
    program, *arguments = shlex.split(line)
    assert program in ("python", sys.executable)
    home = {"HOME": str(place), "COLUMNS": "120"}
    done = run_python(*arguments, *more, cwd=place, **home, **environment)
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_here(place, verb, line, *more):
    done = attempt(verb, *shlex.split(line)[3:], *more, cwd=place)
    assert not done.returncode, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_first_two_commands_come_first():
    assert COMMANDS[:2] == ["make train", "make test"]
    assert recipe("test") == "$(call pytest)"


def test_the_numbers_over_seeds_are_the_records():
    both, *parts = (
        [float(n) for n in re.search(rf"{name} +([\d., ]+)", shakespeare.__doc__)[1].split(", ")]
        for name in ("both parts", "validation", "test")
    )
    assert both == pytest.approx(np.mean(parts, 0), abs=1e-4)
    text = " ".join(README.split())
    assert ", ".join(f"{mean:.3f}" for mean in both) in text
    assert f"mean {statistics.mean(both):.3f}" in text
    assert f"standard deviation {statistics.stdev(both):.3f}" in text
    assert statistics.mean(both) <= 1.88


def test_the_table_repeats_the_records_in_the_configs():
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|", README, re.MULTILINE)
    assert len(rows) >= 6
    for name, result in rows:
        source = (ROOT / "configs" / f"{name}.py").read_text()
        known = [float(number) for number in re.findall(r"\d+\.\d+", source)]
        for number in re.findall(r"\d+\.\d+", result):
            # as many digits as the README gives
            assert any(f"{other:.{len(number.split('.')[1])}f}" == number for other in known), name


def cpu_seconds_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def check_the_main_job(place):
    """Runs what `make train` runs, whole, and compares it with what the README prints."""
    started = cpu_seconds_of_children()
    output = run(place, recipe("train"))
    seconds = cpu_seconds_of_children() - started
    losses = r"loss +([\d.]+) validation, ([\d.]+) test"
    found, printed = ([float(n) for n in re.search(losses, t).groups()] for t in (output, README))
    # Other processors round otherwise, which moves a run about as far as another seed does.
    assert found == pytest.approx(printed, abs=0.03)
    promised = re.search(r"test loss of about ([\d.]+) nats per character", README)
    assert found[1] == pytest.approx(float(promised[1]), abs=0.03)
    minutes = re.search(r"2,000 updates in about (\d+) minute", README)
    # Processors' seconds, of two cores: other tests run meanwhile.
    assert seconds < 2 * 60 * int(minutes[1]) * 5, "far slower than promised"
    assert (place / "runs" / "shakespeare" / "loss.png").exists()


@pytest.mark.commands
@pytest.mark.filterwarnings("ignore:.*beginning is not read")
@pytest.mark.as_user  # the main job, of which the README prints time and losses
def test_the_commands_run_as_they_are_written(place, monkeypatch):
    """The first line of each command in a process of its own, others in this one: saves starts."""
    check_the_main_job(place)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("COLUMNS", "120")
    ran, started = [], set()
    for line in COMMANDS:
        if not line.startswith("python -m experiments."):
            continue
        more = SHORT if ".train " in line else ()
        verb = line.split()[2].removeprefix("experiments.")
        if verb in started:
            output = run_here(place, verb, line, *more)
        else:
            output = run(place, line, *more, XLA_FLAGS=FLAGS)
        started.add(verb)
        if ".compare runs/shakespeare" in line:
            assert "model.position" in output
            assert "no claim" in output
        if line.endswith(".course"):
            assert "18 statements" in output
            assert "Slips that circulate" in output
            assert "Attention weights are a distribution" in output
        ran.append(line)
    jax.clear_caches()  # no later test meets the programs of what ran here
    assert len(ran) >= 35
    assert (place / "runs" / "reverse" / "report.html").exists()
    assert (place / "runs" / "comparison.png").exists()


def test_the_refusal_is_the_printed_one(place):
    command, expected = re.search(r"\$ python (.*)\n(error: .*)\n", README).groups()
    done = run_python(*command.split(), cwd=place)
    assert done.returncode == 2
    assert done.stderr.strip() == expected


@pytest.mark.commands
def test_python_examples_run_as_they_are_written(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_linked_files_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_make_is_there_for_the_first_command():
    make = [shutil.which("make") or "make", "--dry-run", "train", "test"]
    plan = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert " --config=configs/shakespeare.py --workdir=runs/shakespeare" in plan
    assert "-m pytest" in plan
