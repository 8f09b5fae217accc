"""Studies end to end: plan, seal, cells, pairs, failures, top-ups, verdicts."""

import json
import math
import shutil
import signal
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy import stats

from tests.conftest import (
    TINY,
    attempt,
    command,
    fingerprint_of,
    refused,
    start_command,
    tiny_config,
)
from transformer_jax.config_files import flatten, load_config
from transformer_jax.data.baselines import Baselines
from transformer_jax.errors import InvalidInput
from transformer_jax.paths import by_path
from transformer_jax.runs.checkpoints import NonFiniteState
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.progress import Silent
from transformer_jax.studies import statistics
from transformer_jax.studies.arms import ArmBuilder, cost_of, matched_value
from transformer_jax.studies.cells import Cell
from transformer_jax.studies.design import Tuning, load_design, parse_arm, parse_seeds, seal_of
from transformer_jax.studies.judging import RunFacts, judge_study, scored_otherwise
from transformer_jax.studies.ladder import ladder_of
from transformer_jax.studies.outcomes import Outcome
from transformer_jax.studies.report import write_report
from transformer_jax.studies.running import run
from transformer_jax.studies.study import load_study
from transformer_jax.studies.workers import CellsLost, with_seed
from transformer_jax.training.build import make_task
from transformer_jax.training.evaluation import make_score
from transformer_jax.training.loop import Member, train
from transformer_jax.training.prepared import prepare
from transformer_jax.training.program import Program, StepRequest

QUICK = {"training.steps": "12", "schedule.warmup_steps": "4", "model.depth": "1"}
FILE = """
from configs import tiny

def get_config():
    config = tiny.get_config()
    config.model.depth = 1
    config.training.steps = 12
    config.schedule.warmup_steps = 4
    return config

def get_arms():
    return {arms}

def get_study():
    return {study}
"""
ARMS = {"learned": {}, "none": {"model.position": "none"}}
STUDY = {
    "question": "Do positions matter?",
    "prediction": "yes",
    "metric": "loss",
    "margin": 0.01,
    "margin_reason": "a guess",
    "looks": (3, 5),
}


def study_file(folder, arms=None, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "question.py"
    path.write_text(FILE.format(arms=repr(arms or ARMS), study=repr({**STUDY, **changes})))
    return str(path)


def quick(*arms, **more):
    return load_design(TINY, {**QUICK, **more}, arms)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A study of three arms and three seeds; read it, never write to it."""
    folder = tmp_path_factory.mktemp("study")
    arms = {**ARMS, "fast": {"optimizer.learning_rate": 0.004}}
    design = load_design(study_file(folder, arms), {})
    return run(design, folder / "runs" / "question", range(3), progress=Silent())


# ---------------------------------------------------------------- what is asked


def test_seeds_are_a_number_a_range_or_a_list():
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("5:8") == (5, 6, 7)
    assert parse_seeds("7,3,11") == (3, 7, 11)
    for text in ("0", "x", "5:", "-1:2", "3:3", "3,3", "3,", "3,x", "3,-1"):
        with pytest.raises(InvalidInput, match="--seeds"):
            parse_seeds(text)
    for text in ("20240101", "5000000000,5000000001", "4294967295:4294967298"):
        with pytest.raises(InvalidInput, match="at most 10,000 seeds, each an integer in"):
            parse_seeds(text)
    assert parse_seeds("20240101:20240102") == (20240101,)


def test_arms_of_the_command_line_are_lists_and_products():
    flat = flatten(tiny_config())
    assert parse_arm("model.num_heads=1,2", flat) == {
        "num_heads=1": {"model.num_heads": 1},
        "num_heads=2": {"model.num_heads": 2},
    }
    product = parse_arm("model.num_heads=1,2xconfig.model.position=none,rotary", flat)
    assert list(product) == [
        "num_heads=1 position=none",
        "num_heads=1 position=rotary",
        "num_heads=2 position=none",
        "num_heads=2 position=rotary",
    ]
    assert {c["model.mlp_dim"] for c in parse_arm("model.mlp_dim=none,64", flat).values()} == {
        None,
        64,
    }
    mixed = "data.mixture=texts.txt=0.3,(extra.txt=0.3,b.txt=0.2)"
    assert [*parse_arm(mixed, flat).values()][1] == {"data.mixture": ("extra.txt=0.3", "b.txt=0.2")}
    spaced = parse_arm("model.num_heads=1,2 x model.position=none,rotary", flat)
    assert spaced == product
    holding_an_x = parse_arm("model.depth=1,2xmodel.max_length=16,32", flat)
    assert list(holding_an_x)[-1] == "depth=2 max_length=32"
    assert parse_arm("model.pooling=max,mean", flat)["pooling=max"] == {"model.pooling": "max"}
    assert list(parse_arm("optimizer.decay_parameters=(kernel,bias),kernel", flat).values()) == [
        {"optimizer.decay_parameters": ("kernel", "bias")},
        {"optimizer.decay_parameters": ("kernel",)},
    ]
    with pytest.raises(InvalidInput, match=r"decay_parameters=.kernel: expected"):
        parse_arm("optimizer.decay_parameters=(kernel", flat)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model.num_head=1,2", "model.num_heads"),
        ("model.num_heads=1,two", "num_heads=two"),
        ("model.num_heads", "KEY=VALUE"),
        ("model.position=rotari", "rotary"),
        ("model.num_heads=1,2xmodle.position=none", "did you mean model.position"),
    ],
)
def test_a_wrong_arm_is_refused(text, words):
    with pytest.raises(InvalidInput, match=words):
        parse_arm(text, flatten(tiny_config()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"margin": 0}, "margin"),
        ({"margin_reason": ""}, "margin_reason"),
        ({"metric": "los"}, "did you mean loss"),
        ({"looks": (5, 3)}, "ascending"),
        ({"primary": ["non"]}, "did you mean none"),
        ({"primary": ["learned"]}, "arms other than the baseline"),
        ({"target": "high"}, "target='high': Input should be a valid number"),
        ({"base": "learnt"}, "did you mean learned"),
        ({"qestion": "?"}, "did you mean question"),
        ({"match": {"by": "parms", "field": "model.width"}}, "'params' or 'flops'"),
        ({"match": {"by": "params", "field": "model.heads"}}, "model.mlp_dim"),
        ({"match": {"by": "params", "fields": "model.width"}}, "'match.fields' is unknown"),
        ({"also": {"x": {"data.length": 8}}}, "'also'"),
    ],
)
def test_a_wrong_study_file_is_refused(tmp_path, changes, words):
    with pytest.raises(InvalidInput, match=words):
        load_design(study_file(tmp_path, **changes), {})


def test_wrong_arms_of_a_file_are_refused(tmp_path):
    for arms, words in (
        ({"a": {}}, "2 to"),
        ({"a": {}, "b": {"model.dept": 3}}, "arm 'b'.*model.dept"),
        ({"a": {}, "b": {"seed": 3}}, "--seeds"),
        ({"a": {}, "b": {"model.depth": 2.5}}, "model.depth=2.5"),
    ):
        with pytest.raises(InvalidInput, match=words):
            load_design(study_file(tmp_path, arms), {})


def test_refusals_of_the_command_are_short(tmp_path):
    refused(attempt("ablate", f"--config={TINY}", f"--workdir={tmp_path}"), "get_arms", "--arm")


# ---------------------------------------------------------------- cells


def test_a_study_leaves_plain_files(done):
    names = {path.name for path in done.path.iterdir()}
    assert names >= {"study.json", "scores.csv", "looks.jsonl", "verdicts.json", "report.html"}
    assert names >= {"report.md", "forest.svg", "curves.svg"}
    rows = done.rows()
    assert [(row["arm"], row["seed"]) for row in rows][:4] == [
        ("learned", 0), ("none", 0), ("fast", 0), ("learned", 1),
    ]  # fmt: skip
    assert {row["state"] for row in rows} == {"done"}
    frame = [
        float(line.split(",")[5])
        for line in (done.path / "scores.csv").read_text().splitlines()[1:]
    ]
    assert frame == [row["test/loss"] for row in rows]
    assert load_study(done.path).seeds == [0, 1, 2]


def test_rows_have_the_options_that_arms_change(done):
    rows = {row["arm"]: row for row in done.rows()}
    assert [row["model.position"] for row in rows.values()] == ["learned", "none", "learned"]
    rates = [row["optimizer.learning_rate"] for row in rows.values()]
    assert rates == [0.001, 0.001, 0.004]


def test_curves_are_those_of_the_cells(done):
    curves, cell = done.curves("train/loss"), done.cell("none", 1)
    rows = [row for row in RunDirectory(cell.path).metrics() if "train/loss" in row]
    assert curves["none"][1] == [(row["step"], row["train/loss"]) for row in rows]
    with pytest.raises(InvalidInput, match="did you mean train/loss"):
        done.curves("train/los")


@pytest.mark.oracle
def test_frames_hold_the_rows_and_the_curves(done):
    assert done.frame().to_dict("records") == done.rows()
    frame = done.curves_frame("train/loss")
    part = frame[(frame.arm == "none") & (frame.seed == 1)]
    points = list(zip(part["step"], part["train/loss"], strict=True))
    assert points == done.curves("train/loss")["none"][1]


def test_a_cell_is_an_ordinary_run_with_the_bits_of_one(done, tmp_path):
    """Arms that share a program (another learning rate) and one that does not (no positions)."""
    for arm in done.arms:
        cell = done.cell(arm, 1)
        config = RunDirectory(cell.path).config()
        train(config, tmp_path / arm, Silent())
        assert fingerprint_of(cell.path) == fingerprint_of(tmp_path / arm)
    manifest = RunDirectory(cell.path).manifest()
    assert manifest["members"] == 1


def test_the_same_command_again_trains_nothing(done, monkeypatch):
    def nothing(*_):
        raise AssertionError("a cell was trained again")

    monkeypatch.setattr(Program, "take", nothing)
    before = (done.path / "verdicts.json").read_text()
    design = load_design(done.record["config_path"], {})
    run(design, done.path, range(3), progress=Silent())
    assert (done.path / "verdicts.json").read_text() == before
    assert len(load_study(done.path).looks()) == 1


@pytest.mark.commands
def test_more_seeds_cost_their_own_cells_alone(done, tmp_path, monkeypatch):
    shutil.copytree(done.path.parent, tmp_path / "runs")
    trained, honest = [], Member.begin

    def counting(member):
        trained.append((member.config.model.position, member.config.optimizer.learning_rate))
        honest(member)

    monkeypatch.setattr(Member, "begin", counting)
    study = run(
        load_design(done.record["config_path"], {}),
        tmp_path / "runs" / "question",
        range(4),
        progress=Silent(),
    )
    assert sorted(trained) == [("learned", 0.001), ("learned", 0.004), ("none", 0.001)]
    assert study.verdicts()["seeds"] == [0, 1, 2, 3]
    assert study.verdicts()["look"] == 2


@pytest.mark.commands
def test_two_studies_share_the_cells_that_they_have_in_common(tmp_path, monkeypatch):
    run(quick("model.num_heads=4,1"), tmp_path / "one", (0,), progress=Silent())
    run(quick("model.num_heads=4,2"), tmp_path / "two", (0,), progress=Silent())
    assert len(list((tmp_path / "cells").iterdir())) == 3


# ---------------------------------------------------------------- what is asked is what is judged


@pytest.mark.thorough
def test_planted_effects_are_found_and_what_is_none_is_none(tmp_path, monkeypatch):
    """Real training: a rate that teaches nothing is worse, no divergence; rounding is no effect."""
    nothing_known = staticmethod(lambda arm: Baselines({}, None))
    monkeypatch.setattr(ArmBuilder, "baselines", nothing_known)  # 12 updates beat no method
    arms = {
        "base": {},
        "learns nothing": {"optimizer.learning_rate": 1e-7},
        "rounded otherwise": {"optimizer.eps": 1.001e-8},
    }
    path = study_file(tmp_path, arms, margin=0.02)
    text = (
        Path(path)
        .read_text()
        .replace("return config", "config.optimizer.learning_rate = 0.003\n    return config")
    )
    Path(path).write_text(text)
    study = run(load_design(path), tmp_path / "runs" / "planted", range(4), progress=Silent())
    nothing, rounded = (study.verdicts()["arms"][name] for name in list(arms)[1:])
    assert nothing["words"].startswith("worse by more than 0.02")
    assert nothing["diverged"][0] == [0, 4]
    assert rounded["words"].startswith("no different within 0.02")


@pytest.mark.thorough
def test_only_primary_arms_get_words(tmp_path):
    arms = {**ARMS, "fast": {"optimizer.learning_rate": 0.004}}
    path = study_file(tmp_path, arms, primary=["fast"])
    design = load_design(path)
    assert design.sealed()["primary"] == ["fast"]
    assert load_design(study_file(tmp_path / "all", arms)).sealed()["primary"] == []
    study = run(design, tmp_path / "runs" / "question", range(3), progress=Silent())
    verdicts = study.verdicts()
    assert verdicts["contrasts"] == 1
    assert verdicts["arms"]["none"]["verdict"] == "not primary"
    assert verdicts["arms"]["fast"]["verdict"] != "not primary"
    for name in ("none", "fast"):  # each as one contrast alone
        d = stats.ttest_1samp(verdicts["arms"][name]["differences"], 0)
        interval = d.confidence_interval(verdicts["coverage"])
        assert verdicts["arms"][name]["interval"] == pytest.approx([interval.low, interval.high])


def test_with_a_target_runs_are_counted_and_timed(done, tmp_path):
    """A score that says solved is found among the losses of training."""
    study = load_study(copied(done, tmp_path))
    study.record["sealed"]["target"] = 4.0
    study.record["seal"] = seal_of(study.record["sealed"])
    study.write()
    cell = study.cell("fast", 1)
    rows = RunDirectory(cell.path).metrics()
    outcome = cell.outcome("loss", 4.0)
    assert outcome.first == min(row["step"] for row in rows if row.get("eval/loss", 9) <= 4.0)
    assert outcome.last == 12
    assert cell.outcome("loss", 0.1).first is None
    none = [{**rows[0], "step": 1, "eval/loss": None}, *rows]  # a metric may have no value yet
    text = "".join(json.dumps(row) + "\n" for row in none)
    (cell.path / "metrics.jsonl").write_text(text)
    assert cell.outcome("loss", 4.0) == outcome
    found = judge_study(load_study(study.path))["arms"]["fast"]
    scores = [study.verdicts()["values"][name]["by_seed"] for name in ("fast", "learned")]
    counts = [sum(value <= 4.0 for value in by_seed.values()) for by_seed in scores]
    assert found["solved"] == [[count, 3] for count in counts] != [[0, 3], [0, 3]]
    told = f"unresolved: {counts[0]} of 3 solve it, of the base {counts[1]} of 3"
    assert found["words"].startswith(told)
    assert found["interval"] == [None, None]
    write_report(load_study(study.path))  # with no mean to draw
    assert told in (study.path / "report.md").read_text()


def test_equal_scores_of_other_losses_are_not_identical(done, tmp_path):
    study = load_study(copied(done, tmp_path))
    for seed in study.seeds:
        base, arm = (
            study.cell(name, seed).path / "evaluation.json" for name in ("learned", "fast")
        )
        shutil.copy(base, arm)
    found = judge_study(study)["arms"]["fast"]
    assert found["words"].startswith("refused: the same score in every seed, though the losses")
    for seed in study.seeds:
        base, arm = (study.cell(name, seed).path / "sequences.npz" for name in ("learned", "fast"))
        shutil.copy(base, arm)
    assert judge_study(study)["arms"]["fast"]["verdict"] == "cannot tell"
    study.record["baselines"] = {"scores": {}, "gate": None}
    assert judge_study(study)["arms"]["fast"]["verdict"] == "identical"


def test_a_metric_that_some_run_lacks_is_told(done, tmp_path):
    study = load_study(copied(done, tmp_path))
    path = study.cell("fast", 1).path / "evaluation.json"
    scored = json.loads(path.read_text())
    del scored["test"]["loss"]
    path.write_text(json.dumps(scored))
    assert "'fast' has no loss for seed 1" in judge_study(study)["arms"]["fast"]["words"]
    scored["test"] |= {"loss": 2.0, "accuracy": math.nan}  # as a metric of one's own may be
    path.write_text(json.dumps(scored))
    study.record["sealed"]["metric"] = "test/accuracy"
    assert "'fast' has no accuracy for seed 1" in judge_study(study)["arms"]["fast"]["refusals"]


# ---------------------------------------------------------------- killed, failed, diverged


@pytest.mark.commands
def test_killed_at_any_moment_it_goes_on_and_ends_with_the_same(tmp_path):
    """SIGKILL, then SIGTERM, then to the end; the numbers are those of a study left alone."""
    path = study_file(tmp_path)
    arguments = (f"--config={path}", "--seeds=3")
    run(load_design(path, {}), tmp_path / "a" / "study", range(3), progress=Silent())
    workdir = tmp_path / "b" / "study"
    for number in (signal.SIGKILL, signal.SIGTERM):
        process = start_command("ablate", *arguments, f"--workdir={workdir}")
        wanted = len(list(workdir.parent.glob("cells/*/s*/STATUS"))) + 1
        while len(list(workdir.parent.glob("cells/*/s*/STATUS"))) < wanted:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode in (-9, 143, 0)
    last = command("ablate", *arguments, f"--workdir={workdir}")
    assert last.returncode == 0, last.stderr
    one, other = (load_study(path).verdicts() for path in (tmp_path / "a" / "study", workdir))
    assert one["values"] == other["values"]
    assert one["arms"] == other["arms"]
    assert len(load_study(workdir).looks()) == 1


def failing(monkeypatch, fails):
    honest = Member.next_request

    def next_request(member):
        fails(f"num_heads={member.config.model.num_heads}", member.config.seed)
        return honest(member)

    monkeypatch.setattr(Member, "next_request", next_request)


@pytest.mark.commands
def test_one_failure_stops_no_other_and_is_tried_again_on_request(tmp_path, monkeypatch):
    design = quick("model.num_heads=4,1")

    def fails(arm, seed):
        if trouble and (arm, seed) == ("num_heads=1", 1):
            raise RuntimeError("the machine is on fire")

    trouble = [1]
    failing(monkeypatch, fails)
    with pytest.raises(CellsLost, match=r"1 cells failed.*num_heads=1.*on fire"):
        run(design, tmp_path / "s", range(3), progress=Silent())
    study = load_study(tmp_path / "s")
    states = {(cell.arm, cell.seed): cell.state() for cell in study.cells()}
    assert states.pop(("num_heads=1", 1)) == "failed"
    assert set(states.values()) == {"done"}
    arm = study.verdicts()["arms"]["num_heads=1"]
    assert arm["verdict"] == "refused"
    assert "missing" in arm["words"]
    assert study.looks() == []
    assert "the machine is on fire" in (tmp_path / "s" / "report.html").read_text()
    trouble.clear()
    with pytest.raises(CellsLost):  # not unasked
        run(design, tmp_path / "s", range(3), progress=Silent())
    study = run(design, tmp_path / "s", range(3), retry=True, progress=Silent())
    assert study.verdicts()["arms"]["num_heads=1"]["verdict"] != "refused"


@pytest.mark.commands
def test_out_of_memory_is_told_apart_and_tried_at_the_next_launch(tmp_path, monkeypatch):
    design = quick("model.num_heads=4,1")

    def fails(arm, seed):
        if trouble and arm == "num_heads=1":
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes")

    trouble = [1]
    failing(monkeypatch, fails)
    with pytest.raises(CellsLost):
        run(design, tmp_path / "s", (0,), progress=Silent())
    assert load_study(tmp_path / "s").cell("num_heads=1", 0).state() == "out of memory"
    trouble.clear()
    study = run(design, tmp_path / "s", (0,), progress=Silent())
    assert study.cell("num_heads=1", 0).state() == "done"


@pytest.mark.commands
def test_divergence_is_an_outcome(tmp_path):
    """A rate at which the loss becomes infinite, or at least worse than a guess."""
    design = quick("optimizer.learning_rate=0.001,1e6", **{"training.clip_norm": "None"})
    study = run(design, tmp_path / "s", range(3), progress=Silent())
    verdicts = study.verdicts()
    assert {cell.state() for cell in study.cells()} == {"done", "diverged"}
    arm = verdicts["arms"]["learning_rate=1e6"]
    assert arm["diverged"] == [[3, 3], [0, 3]]
    assert arm["verdict"] == "no verdict"
    assert verdicts["values"]["learning_rate=1e6"]["diverged"] == 3


def test_a_last_update_that_leaves_no_number_is_a_divergence(tmp_path):
    """Its loss and gradient are finite; what it makes of the parameters is not."""
    config = tiny_config(
        training__steps=1,
        schedule__name="constant",
        optimizer__name="sgd",
        optimizer__learning_rate=3e38,
        optimizer__weight_decay=1e30,
    )
    with pytest.raises(NonFiniteState, match=r"step 1: params/.* is not finite"):
        train(config, tmp_path / "a", Silent())
    assert Cell("a", 0, tmp_path / "a").state() == "diverged"


@pytest.mark.commands
def test_members_at_a_time_are_a_study_of_their_own(done, tmp_path):
    """Three seeds by two at a time, the last beside a lane that stands still; its scores agree."""
    shutil.copytree(done.path.parent, tmp_path / "runs")
    design = load_design(done.record["config_path"], {})
    study = run(design, tmp_path / "runs" / "vmapped", range(3), members=2, progress=Silent())
    for ours, theirs in zip(study.cells(), done.cells(), strict=True):
        assert ours.path.parent.name != theirs.path.parent.name
        assert ours.means()["loss"] == pytest.approx(theirs.means()["loss"], rel=1e-4)
        assert RunDirectory(ours.path).manifest()["members"] == 2
    again = run(design, tmp_path / "runs" / "vmapped", range(3), progress=Silent())
    assert again.record["members"] == 2


# ---------------------------------------------------------------- pairs and costs


def test_seeds_pair_initial_values():
    """Parameters of one path and shape start alike; test_models.py has other changes."""
    task = make_task(tiny_config())

    def start(**changes):
        params = prepare(tiny_config(**changes), task=task).draw(np.uint32(4)).params
        return by_path(params)

    base = start()
    for changes in (
        {"model__activation": "relu"},
        {"model__depth": 1, "model__initialisation": "normal"},
    ):
        other = start(**changes)
        if "model__initialisation" in changes:
            reference = start(model__initialisation="normal")
        else:
            reference = base
        shared = [p for p in other if p in reference and other[p].shape == reference[p].shape]
        assert len(shared) >= 5
        for path in shared:
            np.testing.assert_array_equal(other[path], reference[path], err_msg=f"{changes} {path}")


def test_the_certificate_says_what_changed(done):
    base, none = (done.arms[name]["certificate"] for name in ("learned", "none"))
    assert none["only_base"] == ["positions/embedding"]
    assert none["only_here"] == []
    assert none["paired"] == 1.0
    assert none["logits"] > 0.01
    assert none["sees_ahead"] == 0.0
    assert none["input_rms"] == pytest.approx(0.02, rel=0.3)  # the embedding alone
    assert base["input_rms"] == pytest.approx(0.02 * 2**0.5, rel=0.3)
    assert all(arm["peak_bytes"] > 100_000 for arm in done.arms.values())
    fast = done.arms["fast"]["certificate"]
    assert (fast["logits"], fast["loss"], fast["gradient"]) == (0.0, 0.0, 0.0)


def test_an_arm_that_changes_nothing_is_refused_in_seconds(tmp_path):
    idle = {"a": {}, "b": {"model.position_options.fraction": 0.5}}
    design = load_design(study_file(tmp_path, idle), {})
    with pytest.raises(InvalidInput, match=r"'b'.*changes nothing"):
        run(design, tmp_path / "s", (0,), progress=Silent())
    assert not (tmp_path / "cells").exists()
    assert not (tmp_path / "s" / "study.json").exists()


@pytest.mark.commands
def test_until_something_was_trained_the_seal_may_change(tmp_path, monkeypatch):
    """A plan that was looked at and given up seals nothing."""
    path = study_file(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("transformer_jax.studies.running.Launch._run_cells", failing_here)
        with pytest.raises(ZeroDivisionError):
            run(load_design(path, {}), tmp_path / "s", (0,), progress=Silent())
    assert load_study(tmp_path / "s").sealed["margin"] == 0.01
    path = study_file(tmp_path, margin=0.02)
    study = run(load_design(path, {}), tmp_path / "s", (0,), progress=Silent())
    assert (study.sealed["margin"], study.record["exploratory"]) == (0.02, [])
    path = study_file(tmp_path, margin=0.03)
    study = run(load_design(path, {}), tmp_path / "s", (0,), progress=Silent())
    assert study.sealed["margin"] == 0.02
    assert study.verdicts()["arms"]["none"]["verdict"] == "refused"


def failing_here(*_):
    raise ZeroDivisionError


def test_a_key_without_effect_is_named(tmp_path):
    half = {"a": {}, "b": {"model.position": "none", "model.position_options.fraction": 0.5}}
    design = load_design(study_file(tmp_path, half), {})
    with pytest.raises(InvalidInput, match=r"position_options.fraction: without effect"):
        run(design, tmp_path / "s", (0,), progress=Silent())


def test_a_tuned_value_that_the_file_has_already_is_no_idle_change():
    """At a second launch the base may be tuned to another value, and an arm to the file's."""
    tuning = {"key": "optimizer.learning_rate", "grid": (1e-3, 2e-3, 4e-3)}
    design = quick("model.position=none").model_copy(update={"tuning": Tuning(**tuning)})
    builder = ArmBuilder(design)
    rate = design.config.optimizer.learning_rate
    values = {design.base: 2 * rate, "position=none": rate}
    arms = {
        name: builder.make(name, name, {"optimizer.learning_rate": value})
        for name, value in values.items()
    }
    for arm in arms.values():
        arm.find_folder("loop")
    assert set(builder.certificates(arms, {})) == set(arms)


def test_saying_the_bases_value_again_is_no_idle_change(tmp_path):
    product = {
        "a": {"model.position": "learned"},
        "b": {"model.position": "learned", "model.activation": "relu"},
    }
    builder = ArmBuilder(load_design(study_file(tmp_path, product), {}))
    found = builder.certificates(builder.arms(), {})
    assert set(found) == {"a", "b"}


@pytest.mark.parametrize(
    "changes",
    [
        {"model__width": 128, "data__length": 64},
        {"model__width": 128, "data__length": 64, "model__feed_forward": "gated"},
        {"model__width": 128, "data__length": 64, "model__num_kv_heads": 1},
    ],
)
def test_counted_operations_are_the_compilers(changes):
    """The compiler counts sums and activations too, so ours is a little below."""
    prepared = prepare(tiny_config(**changes))
    batch = prepared.task.batch(0, 0)
    apply = jax.jit(lambda params: prepared.model.apply({"params": params}, **batch["inputs"]))
    counted = apply.lower(prepared.template.params).compile().cost_analysis()["flops"]
    assert 0.9 < prepared.operations_of_update / (3 * counted) <= 1.0


def test_costs_by_hand():
    """Width 32, depth 2, length 16, 65 symbols, tied: 12 d^2 a block, and the tables."""
    cost = cost_of(prepare(tiny_config()))
    norms = 5 * 32
    assert cost.without_embeddings == 2 * 12 * 32**2 + norms
    assert cost.parameters == cost.without_embeddings + 65 * 32 + 16 * 32
    attention = 2 * 2 * 16 * 32  # scores and values of 16 positions each, of every token
    assert cost.flops == 3 * (2 * 2 * 12 * 32**2 + 2 * attention + 2 * 32 * 65)
    assert cost.counted == 50 * 8 * 16


@pytest.mark.parametrize(("what", "field"), [("params", "parameters"), ("flops", "flops")])
def test_depth_at_equal_cost(tmp_path, what, field):
    match = {"by": what, "field": "model.width"}
    path = study_file(tmp_path, {"one": {}, "three": {"model.depth": 3}}, match=match)
    builder = ArmBuilder(load_design(path, {}))
    made = builder.arms()
    wanted, width = getattr(made["one"].cost, field), made["three"].config.model.width
    assert width < 32

    def distance(value):
        cost = builder.make("three", "three", {"model.width": value}).cost
        return abs(getattr(cost, field) - wanted)

    assert distance(width) == min(distance(value) for value in (width - 4, width, width + 4))


def test_an_arm_may_not_set_what_is_solved_for(tmp_path):
    match = {"by": "params", "field": "model.width"}
    path = study_file(tmp_path, {"one": {}, "two": {"model.width": 64}}, match=match)
    with pytest.raises(InvalidInput, match="solved for"):
        ArmBuilder(load_design(path, {})).arms()


def test_matching_finds_the_nearest_value():
    assert matched_value(lambda v: v**2, 50, 4) == (7, 49)
    assert matched_value(lambda v: v**2, 50, 100, 4) == (8, 64)
    assert matched_value(float, 3, 64) == (3, 3.0)


def test_a_design_is_a_value_whatever_becomes_of_its_file(tmp_path):
    path = Path(study_file(tmp_path))
    counter = tmp_path / "executions"
    count = f"with open({str(counter)!r}, 'a') as file:\n    file.write('x')\n"
    path.write_text(count + path.read_text())
    design = load_design(str(path), {"data.length": "24"})
    sealed = design.sealed()
    path.write_text("raise RuntimeError('edited')")
    assert design.sealed() == sealed
    assert design.config_of("none").model.position == "none"
    config = design.config_of("none", {"data.length": 20})
    assert config.model.max_length == 20  # what refers to another value still does
    assert design.config.data.length == 24
    rungs = ladder_of("model.width=16,32,64", design).rungs
    assert [rung.config_of("none").model.width for rung in rungs.values()] == [16, 32, 64]
    assert [rung.overrides["model.width"] for rung in rungs.values()] == ["16", "32", "64"]
    assert counter.read_text() == "x"


# ---------------------------------------------------------------- judging


def test_the_verdict_is_that_of_the_final_test_scores(done, tmp_path):
    verdicts = done.verdicts()
    for name in ("none", "fast"):
        by_hand = [
            done.cell("learned", s).means()["loss"] - done.cell(name, s).means()["loss"]
            for s in (0, 1, 2)
        ]
        assert verdicts["arms"][name]["differences"] == pytest.approx(by_hand, abs=1e-15)
        expected = min(1.0, 2 * stats.ttest_1samp(by_hand, 0).pvalue / 0.8)
        assert verdicts["arms"][name]["p"] == pytest.approx(expected)
        last = RunDirectory(done.cell(name, 1).path).metrics()[-1]["test/loss"]
        assert last == done.cell(name, 1).means()["loss"]
    assert verdicts["level"] == pytest.approx(0.05 / 3)  # two planned looks, and a part for others
    assert verdicts["arms"]["fast"]["words"] == "cannot tell: the base has not learned"
    without = load_study(copied(done, tmp_path))
    without.record["baselines"] = {"scores": {}, "gate": None}  # as of a task of other inputs
    words = {name: arm["words"] for name, arm in judge_study(without)["arms"].items()}
    assert words["none"].endswith(", at the base's hyper-parameters")
    assert words["fast"].endswith("(few seeds)")  # an arm that says its own learning rate


def copied(done, tmp_path):
    shutil.copytree(done.path.parent, tmp_path / "runs")
    return tmp_path / "runs" / "question"


@pytest.mark.commands
def test_changing_the_margin_afterwards_refuses_and_the_question_is_noted(done, tmp_path):
    path = copied(done, tmp_path)
    text = (done.path.parent.parent / "question.py").read_text()
    later = tmp_path / "later.py"
    later.write_text(text.replace("Do positions", "Why do positions"))
    study = run(load_design(str(later), {}), path, range(3), progress=Silent())
    assert "question changed after the first cell" in study.verdicts()["exploratory"]
    assert study.verdicts()["arms"]["fast"]["verdict"] != "refused"
    later.write_text(text.replace("'margin': 0.01", "'margin': 0.5"))
    study = run(load_design(str(later), {}), path, range(3), progress=Silent())
    assert study.verdicts()["arms"]["fast"]["verdict"] == "refused"
    assert "margin changed" in study.verdicts()["arms"]["fast"]["words"]
    assert study.verdicts()["margin"] == 0.01


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("manifest.json", lambda m: m["data"].update(sha256="other"), "different data"),
        ("manifest.json", lambda m: m["data"].update(tokenizer_sha256="other"), "tokenizers"),
        ("manifest.json", lambda m: m.update(members=8), "members at a time"),
        ("manifest.json", lambda m: m["device"].update(kind="other"), "different device"),
        ("manifest.json", lambda m: m.update(environment={"XLA_FLAGS": "x"}), "flags of jax"),
        ("manifest.json", lambda m: m["packages"].update(jax="9"), "different packages"),
        ("evaluation.json", lambda e: e["test"]["protocol"].update(targets=3), "different targets"),
        ("config.json", lambda c: c["model"].update(dtype="bfloat16"), "different precision"),
    ],
)
def test_what_does_not_compare_is_refused(done, tmp_path, file, change, words):
    study = load_study(copied(done, tmp_path))
    path = study.cell("fast", 1).path / file
    held = json.loads(path.read_text())
    change(held)
    path.write_text(json.dumps(held))
    verdicts = judge_study(study)
    assert verdicts["arms"]["fast"]["verdict"] == "refused"
    assert words in verdicts["arms"]["fast"]["words"]
    assert verdicts["arms"]["none"]["verdict"] != "refused"
    assert verdicts["contrasts"] == 2  # the family keeps its size


def test_texts_of_two_tokenizers_compare_in_bytes_up_to_a_token(done, tmp_path):
    study = load_study(copied(done, tmp_path))
    ours, theirs = (RunDirectory(study.cell(arm, 1).path) for arm in ("fast", "learned"))
    manifest, evaluation = ours.path / "manifest.json", ours.path / "evaluation.json"
    held = json.loads(manifest.read_text())
    held["data"]["tokenizer_sha256"] = "other"
    manifest.write_text(json.dumps(held))
    scored = json.loads(evaluation.read_text())
    count = scored["test"]["protocol"]["bytes"]
    for share, told in ((0.9995, []), (0.99, ["different targets are scored"])):
        scored["test"]["protocol"] |= {"bytes": round(share * count), "targets": 7}
        evaluation.write_text(json.dumps(scored))
        assert scored_otherwise(RunFacts.of(ours), RunFacts.of(theirs), "bits_per_byte") == told
    only = "different tokenizers: only bits_per_byte compares"
    assert only in scored_otherwise(RunFacts.of(ours), RunFacts.of(theirs), "loss")


def test_a_run_that_overfitted_has_not_diverged(done, tmp_path):
    """Worse than a guess on the test split alone is a score; in training too it is divergence."""
    study = load_study(copied(done, tmp_path))
    cell = study.cell("fast", 1)
    evaluation, metrics = cell.path / "evaluation.json", cell.path / "metrics.jsonl"
    scored = json.loads(evaluation.read_text())
    scored["test"]["loss"] = 9.0
    evaluation.write_text(json.dumps(scored))
    assert cell.state() == "done"
    assert cell.outcome("loss").value == 9.0
    assert cell.validated() == scored["validation"]
    metrics.write_text(metrics.read_text() + '{"step": 99, "train/loss": 9.0}\n')
    assert cell.state() == "diverged"
    assert cell.outcome("loss") == Outcome(None, True)
    assert cell.validated() == {}, "a trial of tuning that says nothing of its rate"
    for loss, state in ((1.04, "done"), (1.06, "diverged")):  # it learned nothing; it got worse
        held = loss * np.log(65)
        evaluation.write_text(json.dumps(scored | {"test": scored["test"] | {"loss": held}}))
        metrics.write_text(metrics.read_text() + f'{{"step": 99, "train/loss": {held}}}\n')
        assert cell.state() == state


def test_seeds_of_the_base_may_not_be_mixed_either(done, tmp_path):
    study = load_study(copied(done, tmp_path))
    for arm in ("learned", "fast"):
        path = study.cell(arm, 2).path / "manifest.json"
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps({**manifest, "packages": {"jax": "9"}}))
    assert "different packages" in judge_study(study)["arms"]["fast"]["words"]


def test_a_base_whose_tuning_is_refused_gives_no_verdict(done, tmp_path):
    study = load_study(copied(done, tmp_path))
    refused = "its best rate is at the edge of the grid"
    study.arms["learned"]["tuning"] = {"refused": refused}
    found = judge_study(study)["arms"]["fast"]
    assert found["verdict"] == "refused"
    assert "learned: its best rate is at the edge" in found["words"]


def test_a_lost_evaluation_is_no_divergence(done, tmp_path):
    study = load_study(copied(done, tmp_path))
    (study.cell("fast", 1).path / "evaluation.json").unlink()
    assert study.cell("fast", 1).state() == "failed"
    found = judge_study(study)["arms"]["fast"]
    assert found["verdict"] == "refused"
    assert "1 failed" in found["words"]


def test_looks_are_recorded_when_words_change_and_survive_a_torn_line(done, tmp_path):
    study = load_study(copied(done, tmp_path))
    judge_study(study)
    assert len(study.looks()) == 1
    with (study.path / "looks.jsonl").open("a") as file:
        file.write('{"time": "2026')
    study.arms["learned"]["hash"] = study.arms["learned"]["hash"]
    assert len(load_study(study.path).looks()) == 1
    record = json.loads((study.path / "study.json").read_text())
    record["sealed"]["margin"] = 5.0
    record["baselines"]["gate"] = None
    (study.path / "study.json").write_text(json.dumps(record))
    with pytest.raises(InvalidInput, match="`sealed` was edited since"):
        load_study(study.path)
    record["seal"] = seal_of(record["sealed"])
    (study.path / "study.json").write_text(json.dumps(record))
    again = load_study(study.path)
    words = judge_study(again)["arms"]["fast"]["words"]
    looks = again.looks()
    assert [look["look"] for look in looks] == [1, 1]  # other words about the same cells
    assert looks[-1]["verdicts"]["fast"] == words


def test_a_base_that_is_gone_is_refused_and_nothing_is_overwritten(done, tmp_path):
    path = copied(done, tmp_path)
    before = (path / "study.json").read_bytes()
    arms = {"none": {"model.position": "none"}, "fast": {"optimizer.learning_rate": 0.004}}
    design = load_design(study_file(tmp_path, arms), {})
    with pytest.raises(InvalidInput, match="'learned', which is no arm any more"):
        run(design, path, range(3), progress=Silent())
    assert (path / "study.json").read_bytes() == before


@pytest.mark.commands
def test_a_cell_that_another_process_trains_is_waited_for(tmp_path, monkeypatch):
    """The lock of the first cell is held for a while by somebody who trains it."""
    design = quick("model.num_heads=4,1")
    done = run(design, tmp_path / "first" / "s", (0,), progress=Silent())
    cell = done.cell("num_heads=1", 0)
    other = tmp_path / "second" / cell.path.relative_to(done.root)
    held = RunDirectory(other).locked()
    held.__enter__()
    monkeypatch.setattr("transformer_jax.studies.workers._POLL", 0.1)

    def finish(*_):
        if not (other / "STATUS").exists():
            shutil.copytree(cell.path, other, dirs_exist_ok=True)
            held.__exit__(None, None, None)

    monkeypatch.setattr("transformer_jax.studies.workers.time.sleep", finish)
    study = run(design, tmp_path / "second" / "s", (0,), progress=Silent())
    assert {c.state() for c in study.cells()} == {"done"}


def test_more_updates_are_a_change_under_any_schedule(tmp_path):
    longer = quick("training.steps=12,24", **{"schedule.name": "constant"})
    builder = ArmBuilder(longer)
    assert "steps=24" in builder.certificates(builder.arms(), {})  # and is not refused


def test_a_field_without_effect_matches_nothing(tmp_path):
    with pytest.raises(ValueError, match="does not grow"):
        matched_value(lambda _: 3.0, 10.0, 4)


@pytest.mark.commands
def test_a_study_of_equal_arms_finds_nothing(tmp_path):
    """A/A: 40 tiny runs with 40 seeds; p values of random pairs of arms of five are uniform."""
    config = load_config(TINY, QUICK)
    prepared = prepare(config)
    program = Program(prepared)
    score, losses = make_score(prepared.model), []
    batch = next(iter(prepared.task.evaluation_batches("test", 512)))
    for seed in range(40):
        numbers = {**prepared.numbers(), "seed": np.uint32(seed)}
        state, batches = prepared.draw(np.uint32(seed)), prepared.stacked_batches(seed, 0, 12)
        (answer,) = program.take([StepRequest(numbers, state, batches, np.int32(12))])
        sums = score(answer.state.params, batch)
        losses.append(float(sums.loss.sum() / sums.weight.sum()))
    assert len(set(losses)) == 40
    rng, values = np.random.default_rng(0), np.array(losses)
    drawn = np.stack([rng.permutation(40)[:10] for _ in range(200)])
    p = statistics.paired_t(values[drawn[:, :5]] - values[drawn[:, 5:]])[2]
    assert stats.kstest(p, "uniform").pvalue > 0.01
    assert (p <= 0.05).mean() <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5


def test_a_cells_config_is_the_arms_with_its_seed():
    config = with_seed(tiny_config(), 7, brief=True)
    assert (config.seed, config.checkpoint.every) == (7, 50)
    assert with_seed(tiny_config(), 7, brief=False).checkpoint.every == 20
