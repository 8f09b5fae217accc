"""Metrics and hooks: against their definitions, the user's own, and that they change no bit."""

import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.conftest import ROOT, TINY, random_params, tiny_config, tree_hash
from tests.test_cells import hashed
from tests.test_tasks import EndAt
from transformer_jax.config_files import flatten, load_config
from transformer_jax.errors import InvalidInput
from transformer_jax.metrics import BINS, METRICS, metric_facts
from transformer_jax.own import intervenes
from transformer_jax.resolve import stated
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.interruption import Interrupted
from transformer_jax.runs.progress import Silent
from transformer_jax.studies.cells import Cell, hooks_that_intervene
from transformer_jax.studies.design import larger_is_better, load_design
from transformer_jax.studies.study import contrasts_of
from transformer_jax.studies.workers import measure_later
from transformer_jax.training import loop
from transformer_jax.training.evaluation import evaluate, make_score
from transformer_jax.training.hooks import _entropy
from transformer_jax.training.loading import load_run
from transformer_jax.training.loop import train
from transformer_jax.training.measuring import curve_of, measured
from transformer_jax.training.prepared import prepare

OWN = """
import jax
import jax.numpy as jnp
from transformer_jax import intervenes, metric

SEEN = []

@metric("share of targets", larger_is_better=True)
def top_3(logits, targets, weights):
    likeliest = jax.lax.top_k(logits, 3)[1]
    return ((likeliest == targets[..., None]).any(-1) * weights).sum(-1)

@metric("nats", finish=lambda worst: float(worst))
def by_sums(logits, targets, weights):
    return (weights.sum(-1),)

@metric("rows", finish=lambda rows: float(rows))
def rows(logits, targets, weights):
    return (jnp.ones(len(targets)),)

@metric("updates")
def last_update(curve):
    return curve[-1]["updates"]

@metric("parameters")
def sizes(run, task, split):
    return len(run.params) + {"validation": 0.25, "test": 0.5}[split]

@metric("nats")
def fails_at_the_end(curve):
    if curve[-1]["updates"] == 4:
        raise ValueError("no curve")
    return 1.0

@metric("nats")
def wrong_key(curve):
    return min(row["eval/los"] for row in curve)

@metric("nats", margin=-1)
def wrong_margin(curve):
    return 1.0

@metric("nats")
def fails(examples):
    return examples["nothing"]

@metric("nats")
def words(examples):
    return "many"

@metric("nats")
def of_no_example(logits, targets, weights):
    return weights.sum()

def unmarked(examples):
    return 1.0

@metric("nats")
def wants_more(examples, tokens):
    return 1.0

UNIT = "nats"

@metric(UNIT)
def unit_by_name(examples):
    return 1.0

def looks_on(state, run, task, batch, step):
    SEEN.append(step)
    state.params.clear()
    run.params["token_embedding"] = None
    return {"step": step, "rows": len(batch["targets"]), "state": state.step}

@intervenes
def shrinks(state):
    return state._replace(params=jax.tree.map(lambda x: 0.5 * x, state.params)), {"done": 1}

@intervenes
def breaks(state):
    return state._replace(params={})

def gives_text(step):
    return {"a": "b"}

def wants_a_model(model):
    return None

def raises(step):
    raise ValueError(f"at {step}")

train = gives_text
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_looks.py").write_text(OWN)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A finished run of no metrics and no hooks; read it, never write to it."""
    workdir = tmp_path_factory.mktemp("runs") / "plain"
    train(short(), workdir, Silent())
    return workdir


def short(**changes):
    steps = {"training.steps": "4", "schedule.name": "constant", "sample.num_tokens": "3"}
    return load_config(TINY, {**steps, "evaluation.every": "2", **changes})


METRIC, HOOK = "evaluation.metrics", "hooks.functions"


def own(*names):
    return ",".join(f"own_looks:{name}" for name in names)


class Labelled:
    """A task with classes, and a run whose logits are given."""

    def __init__(self, logits, classes, names):
        self.logits, self.targets, self.classes = logits, classes, names
        self.params, self.model = {}, self
        self.config = tiny_config(evaluation__batch_size=4)

    def apply(self, variables, rows):
        return jnp.asarray(self.logits)[rows]

    def evaluation_batches(self, split, size):
        for first in range(0, len(self.targets), size):
            rows = np.minimum(np.arange(first, first + size), len(self.targets) - 1)
            weights = np.float32(np.arange(first, first + size) < len(self.targets))
            yield {"inputs": {"rows": rows}, "targets": self.targets[rows], "weights": weights}


@pytest.mark.parametrize("classes", [2, 3])
def test_metrics_of_classes_by_counting(rng, classes):
    logits, targets = rng.normal(size=(41, classes)), rng.integers(0, classes, 41)
    logits[np.arange(41), targets] += 1
    run = Labelled(logits, targets, [str(2.5 * n) for n in range(classes)])
    found = {n: METRICS[n](run, run, "test") for n in ("matthews_correlation", "f1", "spearman")}
    said, each = logits.argmax(-1), []
    for number in range(classes):
        right = ((said == number) & (targets == number)).sum()
        each.append(2 * right / ((said == number).sum() + (targets == number).sum()))
    assert found["f1"] == pytest.approx(each[1] if classes == 2 else np.mean(each))
    one_hot = lambda numbers: np.eye(classes)[numbers]
    x, y = one_hot(said) - one_hot(said).mean(0), one_hot(targets) - one_hot(targets).mean(0)
    expected = (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum())
    assert found["matthews_correlation"] == pytest.approx(expected)
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    ranks = [stats.rankdata(v) for v in (2.5 * targets, chances @ (2.5 * np.arange(classes)))]
    assert found["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-6)
    constant = Labelled(np.zeros((4, classes)), np.zeros(4, int), run.classes)
    for name in ("spearman", "matthews_correlation"):
        assert METRICS[name](constant, constant, "test") == 0
    run.classes = ["bad", "good", "fine"][:classes]
    assert METRICS["spearman"](run, run, "test") is None


def test_brier_and_calibration_are_those_of_the_definitions(rng):
    logits = jnp.asarray(2 * rng.normal(size=(64, 5)), jnp.float32)
    targets, weights = rng.integers(0, 5, 64), np.ones(64, np.float32)
    weights[::5] = 0
    counts, chances = weights > 0, np.asarray(jax.nn.softmax(logits))
    expected = ((chances - np.eye(5)[targets]) ** 2).sum(1)[counts].mean()
    above = METRICS["brier_score"](logits, targets, jnp.asarray(weights))
    assert float(above.sum() / weights.sum()) == pytest.approx(expected, rel=1e-6)
    said, right = chances.max(1)[counts], (chances.argmax(1) == targets)[counts]
    error = 0.0
    for place in range(BINS):
        inside = (said >= place / BINS) & (said < (place + 1) / BINS)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - said[inside].mean())
    function = METRICS["calibration_error"]
    sums = function(logits, jnp.asarray(targets), jnp.asarray(weights))
    found = function.finish(*(np.asarray(each, np.float64).sum(0) for each in sums))
    assert found == pytest.approx(error, rel=1e-5)


def test_metrics_of_examples_by_hand():
    examples = {
        "loss": np.array([2.0, 6.0, 1.0, 30.0]),
        "correct": np.array([2.0, 1.0, 1.0, 0.0]),
        "weight": np.array([2.0, 2.0, 1.0, 0.0004]),
        "cluster": np.array([0, 0, 1, 2]),
    }
    assert METRICS["exact_match"](examples) == 0.5
    assert METRICS["worst_document"](examples) == 2.0  # the third is shorter than 1 %
    assert METRICS["worst_document"]({**examples, "cluster": np.array([0, 1, 2, 2])}) > 20
    many = {name: np.tile(column, 100) for name, column in examples.items()}
    many |= {"weight": np.ones(400), "cluster": np.arange(400)}
    assert METRICS["worst_document"](many) is None, "no document has 1 % of the targets"
    del examples["cluster"]
    assert METRICS["worst_document"](examples) is None


ROWS = [
    {"step": 10, "time/step_ms": 100.0, "eval/loss": 3.0},
    {"step": 20, "time/step_ms": 200.0},
    {"step": 30, "eval/loss": 2.0},
    {"step": 50, "time/step_ms": 50.0, "eval/loss": 1.0, "tokens": "replaced"},
]


def test_metrics_of_the_curve_by_hand():
    spent = lambda updates: (8 * updates, 1e6 * updates)
    curve = curve_of(ROWS, "tokens", spent, alone=True)
    assert [row["seconds"] for row in curve] == pytest.approx([1.0, 3.0, 5.0, 6.0])
    assert [row["tokens"] for row in curve] == [80, 160, 240, 400]
    wanted = {"updates": 30, "tokens": 240, "seconds": 5.0, "operations": 3e7}
    for name, value in wanted.items():
        assert METRICS[f"{name}_to_target"](curve, 2.0) == value
    assert METRICS["updates_to_target"](curve, 0.5) is None
    rare = [{"step": 10, "eval/loss": 3.0}, {"step": 20, "time/step_ms": 100.0}]
    rare = curve_of(rare, "tokens", spent, alone=True)
    assert [row["seconds"] for row in rare] == pytest.approx([1.0, 2.0])
    together = curve_of(ROWS, "tokens", spent, alone=False)
    assert METRICS["seconds_to_target"](together, 2.0) is None
    # (3 + 2) / 2 over 20 updates and (2 + 1) / 2 over 20
    assert METRICS["area_under_curve"](curve) == pytest.approx(2.0)
    assert METRICS["area_under_curve"](curve[:1]) is None


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_says_unit_and_direction(metric):
    facts = metric_facts(metric)
    assert facts.unit
    assert facts.margin > 0
    assert larger_is_better(f"test/{metric}") == facts.larger_is_better
    assert METRICS[metric].__name__ == metric


def test_what_fills_up_a_batch_is_not_measured(folder):
    """The validation split has 697 windows, which batches of 64 and of 48 do not divide."""
    scores = []
    for size in (64, 48):
        asked = own("by_sums", "rows") + ",brier_score"
        config = short(**{METRIC: asked, "evaluation.batch_size": str(size)})
        prepared = prepare(config)
        run = prepared.run(random_params(prepared.model), 0, config)
        scored = evaluate(make_score(run.model), run.params, prepared.task, "validation", size)
        assert scored.protocol["examples"] % size
        about = run, prepared.task, "validation", scored, ["own_looks"]
        found = measured(config.evaluation.metrics, *about)
        assert found["own_looks:by_sums"] == scored.protocol["targets"]
        assert found["own_looks:rows"] == scored.protocol["examples"]
        scores.append(found["brier_score"])
    assert scores[0] == pytest.approx(scores[1], rel=1e-6)


ASKED = (
    "exact_match,calibration_error,brier_score,worst_document,area_under_curve,updates_to_target,"
    + own("top_3", "by_sums", "last_update", "sizes")
)


def test_metrics_and_hooks_change_no_bit_and_are_kept(folder, plain):
    hooks = f"parameter_norms,residual_norms,attention_entropy,{own('looks_on')}"
    looking = {"evaluation.metrics": ASKED, "evaluation.target": "9", "hooks.functions": hooks}
    last = train(short(**looking, **{"hooks.every": "3"}), "watched", Silent())
    assert tree_hash(load_run(plain).params) == tree_hash(load_run("watched").params)
    before = {k: v for k, v in RunDirectory(plain).metrics()[-1].items() if k[:5] != "time/"}
    assert {key: last[key] for key in before} == before
    with np.load(plain / "sequences.npz") as one, np.load("watched/sequences.npz") as other:
        assert all(np.array_equal(one[name], other[name]) for name in one.files)
    rows = RunDirectory("watched").metrics()
    assert [row["step"] for row in rows if "looks_on/rows" in row] == [3, 4]
    assert last["looks_on/state"] == last["looks_on/step"] == 4
    assert sys.modules["own_looks"].SEEN == [0, 3, 4]  # tried before the first update
    assert 0 < last["attention_entropy/block_1.attention.weights"] < np.log(16)
    half = np.array([[[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 0]]])
    assert _entropy(half) == pytest.approx(np.log(2)), "padding listens to nobody"
    assert last["residual_norms/block_0.residual"] > 0
    assert last["parameter_norms/final_norm"] == pytest.approx(1, abs=0.01)
    stored = RunDirectory("watched").evaluation()
    facts, test = stored["metrics"]["own_looks:top_3"], stored["test"]
    assert (facts["unit"], facts["larger_is_better"]) == ("share of targets", True)
    assert facts["code"]
    assert test["own_looks:sizes"] == stored["validation"]["own_looks:sizes"] + 0.25
    assert test["own_looks:last_update"] == 4
    assert test["updates_to_target"] == 2
    assert 0 < test["accuracy"] < test["own_looks:top_3"] < 1
    assert test["own_looks:by_sums"] == test["protocol"]["targets"]
    middle = next(row for row in rows if row["step"] == 2)
    assert {"eval/own_looks:top_3", "eval/exact_match"} <= middle.keys()
    assert "eval/own_looks:last_update" not in middle  # at the end
    assert RunDirectory("watched").manifest()["own_rows"] == {}  # what looks on decides nothing
    resumed = train(short(**looking, **{"hooks.every": "2"}), "watched", Silent())
    assert resumed == last  # complete, and may be asked for otherwise
    load_run("watched")  # which needs no code of the user's


def test_a_metric_that_fails_at_the_end_loses_no_run(folder, capsys):
    last = train(short(**{"evaluation.metrics": own("fails_at_the_end", "last_update")}), "run")
    assert "fails_at_the_end: ValueError at line" in capsys.readouterr().out
    assert last["test/own_looks:fails_at_the_end"] is None
    assert last["test/own_looks:last_update"] == 4
    assert RunDirectory("run").status() == "done"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({METRIC: own("fails")}, r"cs=own_looks:fails: KeyError at line \d+ of own_looks.py: 'not"),
        ({METRIC: own("words")}, "expected a number or None, got 'many'"),
        ({METRIC: own("of_no_example")}, r"shape \(\); expected a sum for each .*, shape \(4,\)"),
        ({METRIC: own("wrong_key")}, r":wrong_key: KeyError at line \d+ of own_looks.py: 'eval/lo"),
        ({HOOK: own("breaks")}, "a hook that intervenes must return a state of equal"),
        ({HOOK: own("gives_text")}, "expected numbers by name, or None; got"),
        ({HOOK: own("train")}, "numbers of the run itself are logged under train"),
        ({HOOK: own("raises")}, r"ValueError at line \d+ of own_looks.py: at 0"),
        (
            {HOOK: "attention_entropy", "model.architecture": "recurrent_decoder"},
            r"hooks.functions=attention_entropy: .*no such site",
        ),
    ],
)
def test_a_metric_or_a_hook_that_fails_is_refused_before_training(folder, changes, words):
    with pytest.raises(InvalidInput, match=words):
        train(short(**changes), "run", Silent())
    assert not (folder / "run" / "config.json").exists()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (METRIC, "exactmatch", "did you mean exact_match"),
        (METRIC, "loss,loss", "expected some of"),
        (METRIC, "updates_to_target", "requires a validation loss in evaluation.tar"),
        (METRIC, own("wrong_margin"), "margin=-1: expected a number > 0"),
        (METRIC, own("unmarked"), "it has no decorator; expected @metric"),
        (METRIC, own("wants_more"), "requires the argument tokens, which no metric receives"),
        (METRIC, own("missing"), "own_looks.py defines no missing"),
        (HOOK, "norms", "expected some of: parameter_norms"),
        (HOOK, own("nothing"), "own_looks.py defines no nothing"),
        (HOOK, own("wants_a_model"), "requires the argument model, which no hook receives; "),
        ("hooks.every", "0", "expected an integer >= 1"),
    ],
)
def test_wrong_names_are_refused(folder, key, value, words):
    with pytest.raises(InvalidInput, match=words):
        short(**{key: value})


def test_a_hook_that_says_so_changes_what_is_trained_and_cells_know(folder, plain):
    def hooked(*names, every="2"):
        return short(**{"hooks.functions": own(*names), "hooks.every": every})

    ways = (("shrinks", "breaks"), ("breaks", "shrinks"))
    one, other = (hooks_that_intervene(flatten(hooked(*way))) for way in ways)
    assert intervenes("own_looks:shrinks")
    assert not intervenes("own_looks:looks_on")
    assert one != other, "each gets what the one before it left"
    after = train(hooked("shrinks"), "run", Silent())
    assert after["shrinks/done"] == 1
    assert after["test/loss"] != RunDirectory(plain).metrics()[-1]["test/loss"]
    assert list(RunDirectory("run").manifest()["own_rows"]) == ["own_looks:shrinks"]
    with pytest.raises(InvalidInput, match=r"hooks.every: 2 there, 4 now"):
        train(hooked("shrinks", every="4"), "run", Silent())
    assert hashed(short()) == hashed(hooked("looks_on"))
    assert len({hashed(c) for c in (short(), hooked("shrinks"), hooked("shrinks", every="4"))}) == 3


@pytest.mark.thorough
def test_a_run_with_an_intervention_resumes_to_the_same_bits(folder, monkeypatch):
    changes = {"hooks.functions": own("shrinks"), "hooks.every": "3", "checkpoint.every": "2"}
    whole = train(short(**changes), "whole", Silent())
    monkeypatch.setattr(loop, "_SECONDS_PER_CALL", 0.0)
    with pytest.raises(Interrupted):
        train(short(**changes), "run", EndAt(2))
    resumed = train(short(**changes), "run", Silent())
    assert resumed["test/loss"] == whole["test/loss"]
    assert resumed["shrinks/done"] == 1
    one, other = (load_run(run, allow=["own_looks"]).params for run in ("run", "whole"))
    assert tree_hash(one) == tree_hash(other)


STUDY = """
from configs.tiny import get_config
def get_arms():
    return {"one": {"model.num_heads": 1}, "two": {"model.num_heads": 2}}
def get_study():
    return dict(question="?", prediction="-", metric=METRIC, margin=0.01, margin_reason="-")
"""


def test_the_metric_of_a_study_is_measured_in_every_arm(folder):
    def design(metric):
        (folder / "study.py").write_text(STUDY.replace("METRIC", repr(metric)))
        return load_design("study.py")

    made = design("own_looks:top_3")
    assert made.larger_is_better
    assert made.config_of("two").evaluation.metrics == ("own_looks:top_3",)
    assert made.sealed()["larger_is_better"] is True
    assert design("loss").config_of("two").evaluation.metrics == ()
    assert design("brier_score").config_of("one").evaluation.metrics == ("brier_score",)
    for metric, words in (
        ("own_looks:top_5", "own_looks.py defines no top_5"),
        ("brier", "metric='brier': expected one of loss, .*did you mean"),
        ("updates_to_target", "requires a validation loss"),
    ):
        with pytest.raises(InvalidInput, match=words):
            design(metric)


@pytest.mark.thorough
def test_a_cell_that_is_older_than_a_metric_is_measured_from_its_checkpoint(folder, plain):
    shutil.copytree(plain, folder / "run")
    cell = Cell("a", 0, folder / "run")
    assert cell.means().get("own_looks:top_3") is None
    config = short(**{"evaluation.metrics": own("top_3", "last_update")})
    measure_later(cell, prepare(config))
    fresh = train(config, "fresh", Silent())
    for name in ("own_looks:top_3", "own_looks:last_update", "loss"):
        assert cell.means()[name] == fresh[f"test/{name}"]
        assert cell.means("validation")[name] == fresh[f"eval/{name}"]
    before = cell.metric_facts()["own_looks:top_3"]
    assert before["larger_is_better"]
    # Another text of the metric: measured again.
    (folder / "own_looks.py").write_text(OWN.replace("top_k(logits, 3)", "top_k(logits, 9)"))
    sys.modules.pop("own_looks")
    measure_later(cell, prepare(config))
    assert cell.means()["own_looks:top_3"] > fresh["test/own_looks:top_3"]
    assert cell.metric_facts()["own_looks:top_3"]["code"] != before["code"]
    shutil.rmtree(folder / "run" / "checkpoints")
    measure_later(cell, prepare(config))  # nothing is missing


def test_a_cell_is_measured_again_for_another_target(folder, plain):
    asked = {"evaluation.metrics": "updates_to_target"}
    configs = [short(**asked, **{"evaluation.target": text}) for text in ("0.1", "9")]
    shutil.copytree(plain, folder / "run")
    cell = Cell("a", 0, folder / "run")
    for config, updates, code in zip(configs, (None, 2), ("to 0.1", "to 9"), strict=True):
        measure_later(cell, prepare(config))
        assert cell.means()["updates_to_target"] == updates
        assert cell.metric_facts()["updates_to_target"]["code"] == code
    sealed = {
        "arms": {"a": {}, "b": {"model.depth": 3}},
        "base": "a",
        "match": None,
        "tuning": None,
    }
    for metric, count in (("loss", 1), ("updates_to_target", 2)):  # how many questions
        asked = [sealed | {"base_config": stated(flatten(c)), "metric": metric} for c in configs]
        assert len({contrasts_of(each)["b"] for each in asked}) == count
