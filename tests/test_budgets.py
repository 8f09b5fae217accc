"""Shorter budgets: branches that begin in longer runs, words that go on, and runs that are extended."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from tests.conftest import TINY, attempt, fingerprint_of, refused, tiny_config
from tests.test_studies import FILE, STUDY
from tests.test_train import EndAt, terminate
from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import changed, flatten
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.interruption import Interrupted
from transformer_jax.runs.listing import facts_of
from transformer_jax.runs.progress import Silent
from transformer_jax.studies.asking.budgets import branch_points, common_updates
from transformer_jax.studies.asking.design import load_design
from transformer_jax.studies.asking.study import load_study
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.inference.tuned import NO_REGRETS, Regret, Regrets
from transformer_jax.studies.inference.words import CANNOT_TELL, NOT_TESTED
from transformer_jax.studies.judging.budgets import over_budgets
from transformer_jax.studies.judging.comparability import RunFacts, computed_otherwise
from transformer_jax.studies.judging.decision import Evidence, decide, share_of_level
from transformer_jax.studies.reporting.export import export_study
from transformer_jax.studies.reporting.tables import budget_rows
from transformer_jax.studies.running.branches import branches_of
from transformer_jax.studies.running.launch import run
from transformer_jax.training import branching
from transformer_jax.training.branching import BRANCHES, Parent, begin_in, extension_of
from transformer_jax.training.loop import train
from transformer_jax.training.optimizers import make_schedule

STABLE = """config.schedule.name = "warmup_stable_decay"
    config.schedule.warmup_stable_decay.warmup_steps = 2
    config.evaluation.every = 4
    return config"""


def study_file(folder, schedule=STABLE, **study):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "question.py"
    arms = {"base": {}, "none": {"model.position": "none"}}
    text = FILE.format(arms=repr(arms), study=repr({**STUDY, **study}))
    path.write_text(text.replace("return config", schedule, 1))
    return str(path)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A study with two shorter budgets; read it, never write to it."""
    folder = tmp_path_factory.mktemp("budgets")
    design = load_design(study_file(folder, budgets=(0.5, 0.75)), {})
    return run(design, folder / "runs" / "question", range(1), progress=Silent())


@pytest.fixture(scope="module")
def alone(done, tmp_path_factory):
    """The same runs in a study of each number of updates; root -> cells."""
    root = tmp_path_factory.mktemp("alone")
    for steps in (6, 12):
        file = study_file(root / f"files{steps}")
        design = load_design(file, {"training.steps": str(steps)})
        run(design, root / f"of{steps}", range(1), progress=Silent())
    return root


# ---------------------------------------------------------------- branches


def test_budgets_of_nearly_the_same_share_have_runs_of_their_own(tmp_path):
    path = study_file(tmp_path, budgets=(0.12, 0.124, 0.5))
    design = load_design(path, {"training.steps": "5000", "evaluation.every": "5000"})
    made = []

    def make(name, _, changes):
        made.append(name)
        folder = changes["training.steps"]
        config = changed(design.config_of("base"), {"training.steps": folder})
        return SimpleNamespace(name=name, config=config, hash=folder, find_folder=lambda how: None)

    arm = SimpleNamespace(config=design.config_of("base"), changes={}, hash="whole")
    estimate = SimpleNamespace(how="loop", seconds={}, seconds_of=lambda name: 1.0)
    branches = branches_of(design, SimpleNamespace(make=make), {"base": arm}, estimate)
    assert len(set(made)) == 3
    steps = {its.name: its.config.training.steps for _, _, its in branches}
    assert [*steps.values()] == [600, 620, 2500]


def test_a_branch_has_the_bits_of_a_run_of_its_own(done, alone):
    shorter = done.shorter_cells()
    assert [(budget, cell.arm) for budget, cell in shorter] == [
        ("0.5", "base"), ("0.75", "base"), ("0.5", "none"), ("0.75", "none"),
    ]  # fmt: skip
    for cell in [*(cell for budget, cell in shorter if budget == "0.5"), *done.cells()]:
        of_its_own = alone / cell.path.relative_to(done.root)
        assert fingerprint_of(cell.path) == fingerprint_of(of_its_own)
        assert cell.means() == RunDirectory(of_its_own).evaluation()["test"]
    begun = [RunDirectory(cell.path).manifest().get("parent") for _, cell in shorter]
    assert [p and p["step"] for p in begun] == [5, 7, 5, 7]
    assert all("parent" not in RunDirectory(cell.path).manifest() for cell in done.cells())


def test_what_was_kept_for_branches_is_gone_when_they_are_there(done):
    assert not [path for path in done.root.rglob(BRANCHES)]


@pytest.mark.thorough
def test_branches_without_their_trunk_begin_at_the_start(done, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(done.root, root)
    study = load_study(root / "question")
    lost = study.cell("none", 0, "0.75").path
    expected = fingerprint_of(lost)
    shutil.rmtree(lost)
    design = load_design(study_file(tmp_path, budgets=(0.5, 0.75)), {})
    run(design, study.path, range(1), progress=Silent())
    assert fingerprint_of(lost) == expected
    assert "parent" not in RunDirectory(lost).manifest()


def test_a_damaged_state_is_no_beginning(tmp_path, tiny_run):
    parent, mine = tmp_path / "arm" / "000", tmp_path / "mine"
    shutil.copytree(tiny_run, parent)
    shutil.copytree(tiny_run, mine)
    step = Checkpoints(parent / "checkpoints").steps()[-1]
    template = branching.kept_states(RunDirectory(parent))
    assert begin_in(Parent(parent, step), None, RunDirectory(mine)) is None  # nothing is kept
    assert template.steps() == []
    shutil.copytree(parent / "checkpoints", parent / BRANCHES)
    for file in (parent / BRANCHES / f"{step:08d}" / "state").rglob("*"):
        if file.is_file():
            file.write_bytes(b"torn")
    rows = RunDirectory(mine).metrics()
    assert begin_in(Parent(parent, step), {}, RunDirectory(mine)) is None
    assert RunDirectory(mine).metrics() == rows
    assert (parent / BRANCHES / f"{step:08d}").exists()


@pytest.mark.parametrize(
    ("schedule", "common"),
    [("warmup_stable_decay", 80), ("inverse_square_root", 99), ("warmup_cosine", 0)],
)
def test_runs_have_in_common_what_their_schedules_say(schedule, common):
    def rates(steps):
        config = changed(tiny_config(), {**asked, "training.steps": steps})
        return np.array([make_schedule(config)(step) for step in range(100)])

    asked = {"schedule.name": schedule, f"schedule.{schedule}.warmup_steps": 10}
    flat = flatten(changed(tiny_config(), {**asked, "training.steps": 100}))
    found = common_updates(flat)
    assert found == common
    assert common_updates({**flat, "hooks.functions": ("mine.look",)}) == 0
    np.testing.assert_array_equal(rates(100)[:found], rates(400)[:found])


def test_branches_begin_where_few_calls_cut_their_trunk():
    assert branch_points({0.25: 80, 0.5: 173}) == {0.25: 80, 0.5: 160}
    assert branch_points({0.25: 0, 0.5: 9}) == {0.25: 0, 0.5: 8}
    assert branch_points({0.5: 1}) == {0.5: 1}


@pytest.mark.parametrize(
    ("study", "told"),
    [
        ({"budgets": (0.5, 0.25)}, "ascending"),
        ({"budgets": (0.5, 1.0)}, r"shares of the updates in \(0, 1\)"),
        ({"budgets": (2,)}, "shares of the updates"),
        ({"budgets": (0.5,), "target": 1.0}, "says when it is reached"),
        ({"budgets": (0.1,)}, r"budgets: 0.1: .*warmup"),
    ],
)
def test_wrong_budgets_are_refused_before_anything_runs(tmp_path, study, told):
    with pytest.raises(InvalidInput, match=told) as found:
        load_design(study_file(tmp_path, **study), {})
    assert str(found.value).count("\n") < 8


# ---------------------------------------------------------------- words

SEALED = {
    "arms": {"base": {}, "arm": {}},
    "base": "base",
    "metric": "test/loss",
    "margin": 0.1,
    "larger_is_better": False,
    "tuning": None,
    "budgets": (0.25, 0.5),
}
NOISE = np.array([-0.02, -0.01, 0.0, 0.01, 0.02, 0.005, -0.005, 0.0])


def judged(whole, *shorter, learned=None, regrets=NO_REGRETS):
    """What is said of an arm whose mean gains are those, at all updates and at shorter budgets."""

    def outcomes(gain, updates):
        base = {str(s): [1.0 + 0.1 * s, False, None, updates] for s in range(8)}
        arm = {s: [its[0] - gain + NOISE[int(s)], *its[1:]] for s, its in base.items()}
        return {"base": base, "arm": arm}

    budgets = {
        share: {
            "updates": {"base": updates, "arm": updates},
            "outcomes": outcomes(gain, updates),
            "refusals": {"arm": []},
            "learned": learned,
        }
        for share, updates, gain in zip(("0.5", "0.25"), (200, 100), shorter, strict=True)
    }
    at_all = {
        name: {int(seed): Outcome(*told) for seed, told in by.items()}
        for name, by in outcomes(whole, 400).items()
    }
    evidence = Evidence(at_all["base"], at_all["arm"], 0.02, regrets=regrets)
    found = decide(SEALED, {"arm": evidence}, {"arm": []})
    over_budgets(found, budgets, SEALED, {"scores": {}})
    return found["arm"] | {"tables": budgets}


def test_a_verdict_says_from_where_on_it_holds():
    found = judged(0.2, 0.2, 0.2)
    assert found["words"].startswith("better by more than 0.1; better from 100 updates on, at the")
    assert found["holds_from"] == 0.25
    found = judged(0.2, 0.05, -0.2)
    assert "; better from 200 updates on" in found["words"]
    assert found["budgets"]["0.25"]["verdict"] == "worse"
    found = judged(0.0, 0.0, 0.0)
    assert "no different within 0.1; no different within the margin from 100" in found["words"]


def test_a_shorter_budget_counts_only_while_the_longer_holds():
    found = judged(0.2, 0.0, 0.2)
    assert "; at 200 updates not shown" in found["words"]
    assert found["holds_from"] == 1.0
    assert found["budgets"]["0.25"] | {"mean": 0, "interval": 0} == {
        "mean": 0, "interval": 0, "verdict": NOT_TESTED, "words": NOT_TESTED,
    }  # fmt: skip
    unresolved = judged(0.1, 0.2, 0.2)
    assert unresolved["verdict"] == "better"
    within = judged(0.003, 0.2, 0.2)
    assert within["verdict"] == "no different within the margin"
    assert within["budgets"]["0.5"]["verdict"] == "better"
    assert "at 200 updates not shown" in within["words"]


def test_what_a_parabola_missed_is_uncertain_at_shorter_budgets_too():
    large = Regrets((Regret(0.1, 4.0),), (Regret(0.05, 4.0, 1.0),))
    plain, tuned = judged(0.2, 0.2, 0.2), judged(0.2, 0.2, 0.2, regrets=large)
    for found in (plain["budgets"]["0.5"], plain), (tuned["budgets"]["0.5"], tuned):
        shorter, whole = (np.ptp(its["interval"]) for its in found)
        assert shorter == pytest.approx(whole, rel=1e-6)
    assert np.ptp(tuned["interval"]) > 3 * np.ptp(plain["interval"])


def test_a_base_that_has_not_learned_so_early_says_nothing_there():
    found = judged(0.2, 0.2, 0.2, learned={"passed": False, "told": "no better"})
    assert found["budgets"]["0.5"]["verdict"] == CANNOT_TELL
    assert found["budgets"]["0.25"]["verdict"] == NOT_TESTED


@pytest.mark.thorough
def test_words_over_all_budgets_are_false_as_rarely_as_of_one():
    """The worst there is: no effect at all, then one of the margin; each of three words can fail."""
    random, studies, false = np.random.default_rng(1), 250, 0
    level = 0.25 * share_of_level(SEALED)  # larger than any, so that few studies show it
    for _ in range(studies):
        whole, *shorter = random.normal([[0.0], [0.1], [0.1]], 0.1, (3, 8))
        at = [[{s: Outcome(1 - d) for s, d in enumerate(gains)}] for gains in (whole, *shorter)]
        base = {s: Outcome(1.0) for s in range(8)}
        found = decide(SEALED, {"arm": Evidence(base, at[0][0], level)}, {"arm": []})
        budgets = {
            share: {
                "updates": {"arm": 1},
                "outcomes": {"base": dict(base), "arm": dict(of[0])},
                "refusals": {"arm": []},
                "learned": None,
            }
            for share, of in zip(("0.5", "0.25"), at[1:], strict=True)
        }
        over_budgets(found, budgets, SEALED, None)
        word = found["arm"]["verdict"]
        same_is_false = found["arm"].get("holds_from", 1) < 1 and word.startswith("no different")
        false += word in ("better", "worse") or same_is_false
    assert false / studies < 0.8 * 0.25 + 2 * np.sqrt(0.2 * 0.8 / studies)


def test_a_study_shows_its_budgets(done, tmp_path):
    verdicts = done.verdicts()
    assert list(verdicts["budgets"]) == ["0.75", "0.5"]
    assert verdicts["budgets"]["0.5"]["updates"] == {"base": 6, "none": 6}
    assert [row[:2] for row in budget_rows(verdicts)] == [
        ["none", "all"], ["none", "9"], ["none", "6"],
    ]  # fmt: skip
    assert {row["budget"] for row in done.rows()} == {1.0, 0.75, 0.5}
    assert len((done.path / "cells.csv").read_text().splitlines()) == 7
    page = (done.path / "report.html").read_text()
    assert "Shorter budgets" in page
    out = export_study(done.path, tmp_path / "out.zip")
    shutil.unpack_archive(out, tmp_path / "there")
    again = load_study(tmp_path / "there" / "question")
    assert all(cell.state() == "done" for _, cell in again.shorter_cells())


def test_older_studies_keep_their_level():
    assert share_of_level({"arms": {}}) == 1
    assert share_of_level(SEALED) == pytest.approx(2 / 3)


# ---------------------------------------------------------------- runs that go on

CONSTANT = dict(schedule__name="constant", training__steps=12)


@pytest.mark.thorough
def test_an_extended_run_has_the_bits_of_a_longer_one(tmp_path):
    longer = tiny_config(**{**CONSTANT, "training__steps": 24})
    train(longer, tmp_path / "long", Silent())
    train(tiny_config(**CONSTANT), tmp_path / "a", Silent())
    extension = extension_of(longer, RunDirectory(tmp_path / "a"))
    assert extension.told() == ["training.steps: 12 until update 12, then 24"]
    train(longer, tmp_path / "a", Silent(), extension=extension)
    (step, state, rows), (_, expected, _) = map(fingerprint_of, (tmp_path / "a", tmp_path / "long"))
    assert (step, state) == (24, expected)
    assert rows[-1]["step"] == 24
    (leg,) = RunDirectory(tmp_path / "a").manifest()["legs"]
    assert (leg["from"], leg["changed"]) == (12, {"training.steps": [12, 24]})
    assert leg["scores"]["validation"]["loss"] > 0
    runs = (RunFacts.of(RunDirectory(tmp_path / name)) for name in ("a", "long"))
    told = computed_otherwise(*runs, {})
    assert [line[:16] for line in told] == ["one was extended"]


def test_final_scores_are_gone_when_a_run_goes_on(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "a")
    directory = RunDirectory(tmp_path / "a")
    before, longer = directory.evaluation(), tiny_config(sample__num_tokens=40, training__steps=80)
    extension = extension_of(longer, directory)
    with pytest.raises(Interrupted):
        train(longer, directory.path, EndAt(51, terminate), extension=extension)
    assert 50 < directory.read_status().step < 80
    assert directory.evaluation() == {}, "of 50 updates"
    assert "test/loss" not in facts_of(directory.path, tmp_path)
    assert not (directory.path / "sequences.npz").exists()
    (leg,) = directory.manifest()["legs"]
    assert leg["scores"]["test"]["loss"] == before["test"]["loss"]
    train(longer, directory.path, Silent())
    assert directory.evaluation()["test"]["loss"] != before["test"]["loss"]


def test_a_command_extends_a_finished_run_by_another_rate(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "a")
    asked = (f"--config={TINY}", f"--workdir={tmp_path / 'a'}", "--config.training.steps=60")
    refused(attempt("train", *asked), "training.steps: 50 there, 60 now")
    steps = RunDirectory(tmp_path / "a").step
    found = attempt("train", *asked, "--extend", "--config.optimizer.learning_rate=0.0005")
    assert found.returncode in (0, None), found.stderr
    assert "extend optimizer.learning_rate" in found.stdout
    assert fingerprint_of(tmp_path / "a")[0] == 60
    assert steps == 0  # the directory was only read
    again = attempt("train", *asked, "--extend", "--config.optimizer.learning_rate=0.0005")
    assert "extend optimizer" not in again.stdout
    assert len(RunDirectory(tmp_path / "a").manifest()["legs"]) == 1


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model.width": 64}, "--extend changes model.width, 32 there, 64 now"),
        ({"training.steps": 20}, "the run has 50 updates; expected more"),
        ({"optimizer.learning_rate": 0.5}, "the run has 50 updates; expected more"),
        (
            {"training.steps": 60, "optimizer.learning_rate_multipliers": ("block_0=0.0",)},
            "--extend changes optimizer.learning_rate_multipliers",
        ),
    ],
)
def test_what_an_extension_may_not_change_is_refused(tiny_run, changes, told):
    with pytest.raises(InvalidInput, match=told):
        extension_of(changed(tiny_config(), changes), RunDirectory(tiny_run))


def test_an_extension_goes_on_from_a_whole_checkpoint_or_changes_nothing(tiny_run, tmp_path):
    longer = changed(tiny_config(), {"training.steps": 60})
    shutil.copytree(tiny_run, tmp_path / "a")
    first, newest = sorted((tmp_path / "a" / "checkpoints").glob("0*"))
    (manifest := newest / "manifest.json").write_text("{")
    assert extension_of(longer, RunDirectory(tmp_path / "a")).step == int(first.name)
    manifest.unlink()
    (first / "manifest.json").write_text("{")
    shutil.copytree(tiny_run, tmp_path / "b")
    shutil.rmtree(tmp_path / "b" / "checkpoints")
    for name in "ab":
        with pytest.raises(InvalidInput, match="no checkpoint there is whole"):
            extension_of(longer, RunDirectory(tmp_path / name))
        assert RunDirectory(tmp_path / name).status() == "done"


def test_only_a_run_that_is_no_cell_is_extended(done, tmp_path):
    with pytest.raises(InvalidInput, match="no run to extend"):
        extension_of(tiny_config(), RunDirectory(tmp_path / "nothing"))
    cell = RunDirectory(done.cell("base", 0).path)
    with pytest.raises(InvalidInput, match="a cell of a study"):
        extension_of(changed(cell.config(), {"training.steps": 24}), cell)


@pytest.mark.thorough
def test_an_extension_without_its_data_changes_nothing(tmp_path):
    text = tmp_path / "my.txt"
    text.write_text("a text of mine, " * 200)
    config = (f"--config={TINY}", f"--workdir={tmp_path / 'a'}", f"--config.data.source={text}")
    config += ("--config.training.steps=4", "--config.schedule.warmup_cosine.warmup_steps=2")
    found = attempt("train", *config)
    assert found.returncode in (0, None), found.stderr
    text.rename(tmp_path / "away.txt")
    before = [(tmp_path / "a" / n).read_text() for n in ("STATUS", "config.json", "manifest.json")]
    longer = ("--config.training.steps=6", "--extend")
    refused(attempt("train", *config, *longer), "my.txt")
    text.write_text("another text, " * 200)
    refused(attempt("train", *config, *longer), "")
    after = [(tmp_path / "a" / n).read_text() for n in ("STATUS", "config.json", "manifest.json")]
    assert before == after


def test_an_extension_that_was_killed_is_noted_once(tiny_run, tmp_path, monkeypatch):
    shutil.copytree(tiny_run, tmp_path / "a")
    longer, directory = changed(tiny_config(), {"training.steps": 60}), RunDirectory(tmp_path / "a")
    facts = directory.manifest()["data"]
    for written in ("write_status", "write_text"):
        with monkeypatch.context() as patched:
            patched.setattr(RunDirectory, written, lambda *_: (_ for _ in ()).throw(KeyError))
            with pytest.raises(KeyError):
                extension_of(longer, directory).write(directory, facts)
        assert directory.config().training.steps == 50  # the old command still runs
    with pytest.raises(InvalidInput, match="the data changed"):
        extension_of(longer, directory).write(directory, {**facts, "sha256": "other"})
    assert directory.config().training.steps == 50
    extension_of(longer, directory).write(directory, facts)
    assert len(directory.manifest()["legs"]) == 1
    assert directory.config().training.steps == 60
