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

from tests.conftest import TINY, command, fingerprint_of, start_command, tiny_config
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
THREE_ARMS = {**ARMS, "fast": {"optimizer.learning_rate": 0.004}}
STUDY = {
    "question": "Do positions matter?",
    "prediction": "yes",
    "metric": "loss",
    "margin": 0.01,
    "margin_reason": "a guess",
    "looks": (3, 5),
}


def study_file(folder, arms=ARMS, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "question.py"
    path.write_text(FILE.format(arms=repr(arms), study=repr({**STUDY, **changes})))
    return str(path)


def quick(*arms, **more):
    return load_design(TINY, {**QUICK, **more}, arms)


def edit(path, change):
    """Changes the value that a JSON file holds, in place."""
    held = json.loads(path.read_text())
    change(held)
    path.write_text(json.dumps(held))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A study of three arms and three seeds; read it, never write to it."""
    folder = tmp_path_factory.mktemp("study")
    design = load_design(study_file(folder, THREE_ARMS), {})
    return run(design, folder / "runs" / "question", range(3))


@pytest.fixture
def copied(done, tmp_path):
    """A copy of that study and of its cells, to be changed."""
    shutil.copytree(done.path.parent, tmp_path / "runs")
    return load_study(tmp_path / "runs" / "question")


def test_seeds_are_a_number_a_range_or_a_list():
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("5:8") == (5, 6, 7)
    assert parse_seeds("7,3,11") == (3, 7, 11)
    assert parse_seeds("20240101:20240102") == (20240101,)
    for text in ("0", "x", "5:", "-1:2", "3:3", "3,3", "3,", "3,x", "3,-1"):
        with pytest.raises(InvalidInput, match="--seeds"):
            parse_seeds(text)
    for text in ("20240101", "5000000000,5000000001", "4294967295:4294967298"):
        with pytest.raises(InvalidInput, match="at most 10,000 seeds, each an integer in"):
            parse_seeds(text)


def test_arms_of_the_command_line_are_lists_and_products():
    def parsed(text):
        return parse_arm(text, flatten(tiny_config()))

    def values(text):
        return [value for changes in parsed(text).values() for value in changes.values()]

    assert parsed("model.num_heads=1,2") == {
        "num_heads=1": {"model.num_heads": 1},
        "num_heads=2": {"model.num_heads": 2},
    }
    product = parsed("model.num_heads=1,2xconfig.model.position=none,rotary")
    names = [f"num_heads={h} position={name}" for h in (1, 2) for name in ("none", "rotary")]
    assert list(product) == names
    assert parsed("model.num_heads=1,2 x model.position=none,rotary") == product
    assert list(parsed("model.depth=1,2xmodel.max_length=16,32"))[-1] == "depth=2 max_length=32"
    assert parsed("model.pooling=max,mean")["pooling=max"] == {"model.pooling": "max"}
    assert values("model.mlp_dim=none,64") == [None, 64]
    assert values("data.mixture=texts.txt=0.3,(extra.txt=0.3,b.txt=0.2)")[1] == (
        "extra.txt=0.3",
        "b.txt=0.2",
    )
    decayed = values("optimizer.decay_parameters=(kernel,bias),kernel")
    assert decayed == [("kernel", "bias"), ("kernel",)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model.num_head=1,2", "model.num_heads"),
        ("model.num_heads=1,two", "num_heads=two"),
        ("model.num_heads", "KEY=VALUE"),
        ("model.position=rotari", "rotary"),
        ("model.num_heads=1,2xmodle.position=none", "did you mean model.position"),
        ("optimizer.decay_parameters=(kernel", "decay_parameters=.kernel: expected"),
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
        ({"arms": {"a": {}}}, "2 to"),
        ({"arms": {"a": {}, "b": {"model.dept": 3}}}, "arm 'b'.*model.dept"),
        ({"arms": {"a": {}, "b": {"seed": 3}}}, "--seeds"),
        ({"arms": {"a": {}, "b": {"model.depth": 2.5}}}, "model.depth=2.5"),
    ],
)
def test_a_wrong_study_file_is_refused(tmp_path, changes, words):
    with pytest.raises(InvalidInput, match=words):
        load_design(study_file(tmp_path, **changes), {})


def test_a_study_leaves_plain_files(done):
    names = {path.name for path in done.path.iterdir()}
    assert names >= {"study.json", "scores.csv", "looks.jsonl", "verdicts.json", "report.html"}
    assert names >= {"report.md", "forest.svg", "curves.svg"}
    rows = done.rows()
    assert [(row["arm"], row["seed"]) for row in rows] == [
        (arm, seed) for seed in range(3) for arm in THREE_ARMS
    ]
    assert {row["state"] for row in rows} == {"done"}
    lines = (done.path / "scores.csv").read_text().splitlines()[1:]
    assert [float(line.split(",")[5]) for line in lines] == [row["test/loss"] for row in rows]
    assert load_study(done.path).seeds == [0, 1, 2]
    options = [(row["model.position"], row["optimizer.learning_rate"]) for row in rows[:3]]
    assert options == [("learned", 0.001), ("none", 0.001), ("learned", 0.004)]


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
    """An arm that shares the base's program (another rate) and one that does not (no positions)."""
    for arm in ("fast", "none"):
        cell = done.cell(arm, 1)
        train(RunDirectory(cell.path).config(), tmp_path / arm, Silent())
        assert fingerprint_of(cell.path) == fingerprint_of(tmp_path / arm)
        assert RunDirectory(cell.path).manifest()["members"] == 1


def test_the_same_command_again_trains_nothing(done, monkeypatch):
    def nothing(*_):
        raise AssertionError("a cell was trained again")

    monkeypatch.setattr(Program, "take", nothing)
    before = (done.path / "verdicts.json").read_text()
    run(load_design(done.record["config_path"], {}), done.path, range(3))
    assert (done.path / "verdicts.json").read_text() == before
    assert len(load_study(done.path).looks()) == 1


@pytest.mark.commands
def test_more_seeds_cost_their_own_cells_alone(copied, monkeypatch):
    trained, honest = [], Member.begin

    def counting(member):
        trained.append((member.config.model.position, member.config.optimizer.learning_rate))
        honest(member)

    monkeypatch.setattr(Member, "begin", counting)
    study = run(load_design(copied.record["config_path"], {}), copied.path, range(4))
    assert sorted(trained) == [("learned", 0.001), ("learned", 0.004), ("none", 0.001)]
    assert study.verdicts()["seeds"] == [0, 1, 2, 3]
    assert study.verdicts()["look"] == 2


@pytest.mark.commands
def test_two_studies_share_the_cells_that_they_have_in_common(tmp_path):
    run(quick("model.num_heads=4,1"), tmp_path / "one", (0,))
    run(quick("model.num_heads=4,2"), tmp_path / "two", (0,))
    assert len(list((tmp_path / "cells").iterdir())) == 3


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
    design = load_design(path, {"optimizer.learning_rate": "0.003"})
    study = run(design, tmp_path / "runs" / "planted", range(4))
    nothing, rounded = (study.verdicts()["arms"][name] for name in list(arms)[1:])
    assert nothing["words"].startswith("worse by more than 0.02")
    assert nothing["diverged"][0] == [0, 4]
    assert rounded["words"].startswith("no different within 0.02")


def test_only_primary_arms_get_words(copied, tmp_path):
    sealed = load_design(study_file(tmp_path, THREE_ARMS, primary=["fast"])).sealed()
    assert copied.sealed["primary"] == []
    copied.record["sealed"] = sealed
    copied.record["baselines"] = {"scores": {}, "gate": None}
    verdicts = judge_study(copied)
    assert verdicts["contrasts"] == 1
    assert verdicts["arms"]["none"]["verdict"] == "not primary"
    assert verdicts["arms"]["fast"]["verdict"] != "not primary"
    for name in ("none", "fast"):  # each as one contrast alone
        d = stats.ttest_1samp(verdicts["arms"][name]["differences"], 0)
        interval = d.confidence_interval(verdicts["coverage"])
        assert verdicts["arms"][name]["interval"] == pytest.approx([interval.low, interval.high])


def test_with_a_target_runs_are_counted_and_timed(copied):
    """A score that says solved is found among the losses of training."""
    copied.record["sealed"]["target"] = 4.0
    copied.record["seal"] = seal_of(copied.record["sealed"])
    copied.write()
    cell = copied.cell("fast", 1)
    rows = RunDirectory(cell.path).metrics()
    outcome = cell.outcome("loss", 4.0)
    assert outcome.first == min(row["step"] for row in rows if row.get("eval/loss", 9) <= 4.0)
    assert outcome.last == 12
    assert cell.outcome("loss", 0.1).first is None
    none = [{**rows[0], "step": 1, "eval/loss": None}, *rows]  # a metric may have no value yet
    (cell.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in none))
    assert cell.outcome("loss", 4.0) == outcome
    found = judge_study(load_study(copied.path))["arms"]["fast"]
    values = copied.verdicts()["values"]
    counts = [
        sum(value <= 4.0 for value in values[name]["by_seed"].values())
        for name in ("fast", "learned")
    ]
    assert found["solved"] == [[count, 3] for count in counts] != [[0, 3], [0, 3]]
    told = f"unresolved: {counts[0]} of 3 runs solve it, {counts[1]} of 3 of the base"
    assert found["words"].startswith(told)
    assert found["interval"] == [None, None]
    write_report(load_study(copied.path))  # with no mean to draw
    assert told in (copied.path / "report.md").read_text()


def test_equal_scores_of_other_losses_are_not_identical(copied):
    def copy_of_the_bases(name):
        for seed in copied.seeds:
            base, arm = (copied.cell(arm, seed).path / name for arm in ("learned", "fast"))
            shutil.copy(base, arm)
        return judge_study(copied)["arms"]["fast"]

    found = copy_of_the_bases("evaluation.json")
    assert found["words"].startswith("refused: the same score for every seed though the losses")
    assert copy_of_the_bases("sequences.npz")["verdict"] == "cannot tell"
    copied.record["baselines"] = {"scores": {}, "gate": None}
    assert judge_study(copied)["arms"]["fast"]["verdict"] == "identical"


def test_a_metric_that_some_run_lacks_is_told(copied):
    path = copied.cell("fast", 1).path / "evaluation.json"
    edit(path, lambda scored: scored["test"].pop("loss"))
    assert "'fast' has no loss for seed 1" in judge_study(copied)["arms"]["fast"]["words"]
    nan = {"loss": 2.0, "accuracy": math.nan}  # as a user-defined metric may be
    edit(path, lambda scored: scored["test"].update(nan))
    copied.record["sealed"]["metric"] = "test/accuracy"
    assert "'fast' has no accuracy for seed 1" in judge_study(copied)["arms"]["fast"]["refusals"]


@pytest.mark.commands
def test_killed_at_any_moment_it_goes_on_and_ends_with_the_same(tmp_path):
    """SIGKILL, then SIGTERM, then to the end; the numbers are those of a study left alone."""
    path = study_file(tmp_path)
    arguments = (f"--config={path}", "--seeds=3")
    run(load_design(path, {}), tmp_path / "a" / "study", range(3))
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


@pytest.fixture
def trouble(monkeypatch):
    """Errors by arm and seed that training meets until they are removed."""
    errors, honest = {}, Member.next_request

    def next_request(member):
        cell = (member.config.model.num_heads, member.config.seed)
        if cell in errors:
            raise RuntimeError(errors[cell])
        return honest(member)

    monkeypatch.setattr(Member, "next_request", next_request)
    return errors


@pytest.mark.commands
def test_one_failure_stops_no_other_and_is_tried_again_on_request(tmp_path, trouble):
    design = quick("model.num_heads=4,1")
    trouble[1, 1] = "the machine is on fire"
    with pytest.raises(CellsLost, match=r"1 cells failed.*num_heads=1.*on fire"):
        run(design, tmp_path / "s", range(3))
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
        run(design, tmp_path / "s", range(3))
    study = run(design, tmp_path / "s", range(3), retry=True)
    assert study.verdicts()["arms"]["num_heads=1"]["verdict"] != "refused"


@pytest.mark.commands
def test_out_of_memory_is_told_apart_and_tried_at_the_next_launch(tmp_path, trouble):
    design = quick("model.num_heads=4,1")
    trouble[1, 0] = "RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes"
    with pytest.raises(CellsLost):
        run(design, tmp_path / "s", (0,))
    assert load_study(tmp_path / "s").cell("num_heads=1", 0).state() == "out of memory"
    trouble.clear()
    study = run(design, tmp_path / "s", (0,))
    assert study.cell("num_heads=1", 0).state() == "done"


@pytest.mark.commands
def test_divergence_is_an_outcome(tmp_path):
    """A rate at which the loss becomes infinite, or at least worse than a guess."""
    design = quick("optimizer.learning_rate=0.001,1e6", **{"training.clip_norm": "None"})
    study = run(design, tmp_path / "s", range(3))
    verdicts = study.verdicts()
    assert {cell.state() for cell in study.cells()} == {"done", "diverged"}
    arm = verdicts["arms"]["learning_rate=1e6"]
    assert arm["diverged"] == [[3, 3], [0, 3]]
    assert arm["verdict"] == "no verdict"
    assert verdicts["values"]["learning_rate=1e6"]["diverged"] == 3


def test_a_last_update_that_leaves_no_number_is_a_divergence(tmp_path):
    """Its loss and gradient are finite; what it makes of the parameters is not."""
    config = tiny_config(
        model__depth=1,
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
def test_members_at_a_time_are_a_study_of_their_own(done, copied):
    """Three seeds by two at a time, the last beside a lane that stands still; its scores agree."""
    design, path = load_design(done.record["config_path"], {}), copied.path.parent / "vmapped"
    study = run(design, path, range(3), members=2)
    for ours, theirs in zip(study.cells(), done.cells(), strict=True):
        assert ours.path.parent.name != theirs.path.parent.name
        assert ours.means()["loss"] == pytest.approx(theirs.means()["loss"], rel=1e-4)
        assert RunDirectory(ours.path).manifest()["members"] == 2
    assert run(design, path, range(3)).record["members"] == 2


def test_seeds_pair_initial_values():
    """Parameters of one path start alike at any depth; test_models.py has other changes."""
    task = make_task(tiny_config())

    def start(depth):
        config = tiny_config(model__depth=depth, model__initialisation="normal")
        return by_path(prepare(config, task=task).draw(np.uint32(4)).params)

    shallow, deep = start(1), start(2)
    assert len(shallow) < len(deep)
    for path, values in shallow.items():
        np.testing.assert_array_equal(values, deep[path], err_msg=path)


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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.position_options.fraction": 0.5}, r"'b'.*changes nothing"),
        (
            {"model.position": "none", "model.position_options.fraction": 0.5},
            r"position_options.fraction has no effect",
        ),
    ],
)
def test_an_arm_or_a_key_that_changes_nothing_is_refused_in_seconds(tmp_path, changes, words):
    design = load_design(study_file(tmp_path, {"a": {}, "b": changes}), {})
    with pytest.raises(InvalidInput, match=words):
        run(design, tmp_path / "s", (0,))
    assert not (tmp_path / "cells").exists()
    assert not (tmp_path / "s" / "study.json").exists()


@pytest.mark.commands
def test_until_something_was_trained_the_seal_may_change(tmp_path, monkeypatch):
    """A plan that was looked at and given up seals nothing."""

    def launch(margin):
        design = load_design(study_file(tmp_path, margin=margin), {})
        return run(design, tmp_path / "s", (0,))

    def failing_here(*_):
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("transformer_jax.studies.running.Launch._run_cells", failing_here)
        with pytest.raises(ZeroDivisionError):
            launch(0.01)
    assert load_study(tmp_path / "s").sealed["margin"] == 0.01
    study = launch(0.02)
    assert (study.sealed["margin"], study.record["exploratory"]) == (0.02, [])
    study = launch(0.03)
    assert study.sealed["margin"] == 0.02
    assert study.verdicts()["arms"]["none"]["verdict"] == "refused"


def test_a_tuned_value_that_the_file_has_already_is_no_idle_change():
    """At a second launch the base may be tuned to another value, and an arm to the file's."""
    tuning = Tuning(key="optimizer.learning_rate", grid=(1e-3, 2e-3, 4e-3))
    design = quick("model.position=none").model_copy(update={"tuning": tuning})
    builder, rate = ArmBuilder(design), design.config.optimizer.learning_rate
    arms = {
        name: builder.make(name, name, {tuning.key: value})
        for name, value in {design.base: 2 * rate, "position=none": rate}.items()
    }
    for arm in arms.values():
        arm.find_folder("loop")
    assert set(builder.certificates(arms, {})) == set(arms)


@pytest.mark.parametrize(
    "arms",
    [
        {
            "base": {"model.position": "learned"},
            "its value again": {"model.position": "learned", "model.activation": "relu"},
        },
        {
            "base": {"schedule.name": "constant"},
            "more updates": {"schedule.name": "constant", "training.steps": 24},
        },
    ],
    ids=lambda arms: list(arms)[1],
)
def test_what_is_no_idle_change_is_not_refused(tmp_path, arms):
    builder = ArmBuilder(load_design(study_file(tmp_path, arms), {}))
    assert set(builder.certificates(builder.arms(), {})) == set(arms)


@pytest.mark.parametrize("more", [{}, {"model__feed_forward": "gated"}, {"model__num_kv_heads": 1}])
def test_counted_operations_are_the_compilers(more):
    """The compiler counts sums and activations too, so ours is a little below."""
    prepared = prepare(tiny_config(model__width=128, data__length=64, **more))
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
    with pytest.raises(InvalidInput, match=r"model\.width, which match=params solves for"):
        ArmBuilder(load_design(path, {})).arms()


def test_matching_finds_the_nearest_value_of_what_grows():
    assert matched_value(lambda v: v**2, 50, 4) == (7, 49)
    assert matched_value(lambda v: v**2, 50, 100, 4) == (8, 64)
    assert matched_value(float, 3, 64) == (3, 3.0)
    with pytest.raises(ValueError, match="does not grow"):
        matched_value(lambda _: 3.0, 10.0, 4)


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


def test_the_verdict_is_that_of_the_final_test_scores(done, copied):
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
    copied.record["baselines"] = {"scores": {}, "gate": None}  # as of a task of other inputs
    words = {name: arm["words"] for name, arm in judge_study(copied)["arms"].items()}
    assert words["none"].endswith(", at the base's hyper-parameters")
    assert words["fast"].endswith("(few seeds)")  # an arm that says its own learning rate


@pytest.mark.commands
def test_changing_the_margin_afterwards_refuses_and_the_question_is_noted(copied, tmp_path):
    def verdicts_of(**changes):
        design = load_design(study_file(tmp_path, THREE_ARMS, **changes), {})
        return run(design, copied.path, range(3)).verdicts()

    asked = {"question": "Why do positions matter?"}
    verdicts = verdicts_of(**asked)
    assert "question changed after the first cell" in verdicts["exploratory"]
    assert verdicts["arms"]["fast"]["verdict"] != "refused"
    verdicts = verdicts_of(**asked, margin=0.5)
    assert verdicts["arms"]["fast"]["verdict"] == "refused"
    assert "margin changed" in verdicts["arms"]["fast"]["words"]
    assert verdicts["margin"] == 0.01


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
def test_what_does_not_compare_is_refused(copied, file, change, words):
    edit(copied.cell("fast", 1).path / file, change)
    verdicts = judge_study(copied)
    assert verdicts["arms"]["fast"]["verdict"] == "refused"
    assert words in verdicts["arms"]["fast"]["words"]
    assert verdicts["arms"]["none"]["verdict"] != "refused"
    assert verdicts["contrasts"] == 2  # the family keeps its size


def test_texts_of_two_tokenizers_compare_in_bytes_up_to_a_token(copied):
    def differences(metric):
        facts = (RunFacts.of(RunDirectory(cell.path)) for cell in (arm, copied.cell("learned", 1)))
        return scored_otherwise(*facts, metric)

    arm = copied.cell("fast", 1)
    edit(arm.path / "manifest.json", lambda m: m["data"].update(tokenizer_sha256="other"))
    count = json.loads((arm.path / "evaluation.json").read_text())["test"]["protocol"]["bytes"]
    for share, told in ((0.9995, []), (0.99, ["different targets are scored"])):
        scored = {"bytes": round(share * count), "targets": 7}
        edit(arm.path / "evaluation.json", lambda e, new=scored: e["test"]["protocol"].update(new))
        assert differences("bits_per_byte") == told
    assert "different tokenizers: only bits_per_byte is comparable" in differences("loss")


def test_a_run_that_overfitted_has_not_diverged(copied):
    """Worse than a guess on the test split alone is a score; in training too it is divergence."""

    def scores(loss):
        edit(cell.path / "evaluation.json", lambda e: e["test"].update(loss=loss))

    def trains(loss):
        with (cell.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 99, "train/loss": loss}) + "\n")

    cell = copied.cell("fast", 1)
    validation = json.loads((cell.path / "evaluation.json").read_text())["validation"]
    scores(9.0)
    assert cell.state() == "done"
    assert cell.outcome("loss").value == 9.0
    assert cell.validated() == validation
    trains(9.0)
    assert cell.state() == "diverged"
    assert cell.outcome("loss") == Outcome(None, True)
    assert cell.validated() == {}, "a trial of tuning that says nothing of its rate"
    for share, state in ((1.04, "done"), (1.06, "diverged")):  # it learned nothing; it got worse
        scores(share * np.log(65))
        trains(share * np.log(65))
        assert cell.state() == state


def test_seeds_of_the_base_may_not_be_mixed_either(copied):
    for arm in ("learned", "fast"):
        path = copied.cell(arm, 2).path / "manifest.json"
        edit(path, lambda manifest: manifest.update(packages={"jax": "9"}))
    assert "different packages" in judge_study(copied)["arms"]["fast"]["words"]


def test_a_base_whose_tuning_is_refused_gives_no_verdict(copied):
    edge = "its best rate is at the edge of the grid"
    copied.arms["learned"]["tuning"] = {"refused": edge}
    found = judge_study(copied)["arms"]["fast"]
    assert found["verdict"] == "refused"
    assert f"learned: {edge}" in found["words"]


def test_a_lost_evaluation_is_no_divergence(copied):
    (copied.cell("fast", 1).path / "evaluation.json").unlink()
    assert copied.cell("fast", 1).state() == "failed"
    found = judge_study(copied)["arms"]["fast"]
    assert found["verdict"] == "refused"
    assert "1 failed" in found["words"]


def test_looks_are_recorded_when_words_change_and_survive_a_torn_line(copied):
    def widened(record):
        record["sealed"]["margin"] = 5.0
        record["baselines"]["gate"] = None

    judge_study(copied)
    with (copied.path / "looks.jsonl").open("a") as file:
        file.write('{"time": "2026')
    assert len(load_study(copied.path).looks()) == 1
    file = copied.path / "study.json"
    edit(file, widened)
    with pytest.raises(InvalidInput, match="`sealed` was edited after the study was sealed"):
        load_study(copied.path)
    edit(file, lambda record: record.update(seal=seal_of(record["sealed"])))
    again = load_study(copied.path)
    words = judge_study(again)["arms"]["fast"]["words"]
    looks = again.looks()
    assert [look["look"] for look in looks] == [1, 1]  # other words about the same cells
    assert looks[-1]["verdicts"]["fast"] == words


def test_a_base_that_is_gone_is_refused_and_nothing_is_overwritten(copied, tmp_path):
    before = (copied.path / "study.json").read_bytes()
    arms = {name: changes for name, changes in THREE_ARMS.items() if name != "learned"}
    with pytest.raises(InvalidInput, match="'learned', which is no longer an arm"):
        run(load_design(study_file(tmp_path, arms), {}), copied.path, range(3))
    assert (copied.path / "study.json").read_bytes() == before


@pytest.mark.commands
def test_a_cell_that_another_process_trains_is_waited_for(tmp_path, monkeypatch):
    """The lock of the first cell is held for a while by somebody who trains it."""
    design = quick("model.num_heads=4,1")
    done = run(design, tmp_path / "first" / "s", (0,))
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
    study = run(design, tmp_path / "second" / "s", (0,))
    assert {c.state() for c in study.cells()} == {"done"}


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
