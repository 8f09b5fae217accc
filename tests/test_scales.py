"""Ladders over scale and ledgers of noise: what they say of made-up runs whose truth is known."""

import json
import math
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from tests.conftest import ROOT, TINY, attempt, command, refused, start_command, tiny_config
from transformer_jax.errors import InvalidInput, Stop
from transformer_jax.options.config import load_config
from transformer_jax.runs.files import as_plain
from transformer_jax.studies.asking import noise
from transformer_jax.studies.asking.design import load_design
from transformer_jax.studies.asking.ladder import begin_ladder, ladder_of, rung_path
from transformer_jax.studies.inference import scales, statistics, variance_components
from transformer_jax.studies.judging import judge as judging
from transformer_jax.studies.judging.ladder import axis_of, judge_ladder
from transformer_jax.studies.reporting import ladder as reporting
from transformer_jax.studies.running.ladder import _seal_forecast
from transformer_jax.training.evaluation import refuse_unknown_bytes
from transformer_jax.training.prepared import prepare

VALUES = (16, 32, 64, 128)


def rungs(rng, effects, spread=0.01, seeds=6):
    own = spread * rng.normal(size=(len(effects), seeds))
    return [dict(enumerate(effect + own[rung])) for rung, effect in enumerate(effects)]


@pytest.mark.parametrize(
    ("effects", "word"),
    [
        ((0.2, 0.2, 0.2, 0.2), "holds"),
        ((0.3, 0.2, 0.1, 0.05), "shrinks"),
        ((0.05, 0.1, 0.2, 0.3), "grows"),
        ((-0.05, -0.1, -0.2, -0.3), "grows"),
        ((0.0, 0.1, 0.2, 0.3), "grows"),
        ((0.2000, 0.2002, 0.2004, 0.2006), "holds"),
        ((0.3, 0.1, -0.1, -0.3), "flips"),
        ((0.0, 0.0, 0.0, 0.0), "holds"),
        ((0.111, 0.233, 0.192, 0.04), "not monotone"),
        ((0.0, 0.2, 0.2, 0.0), "not monotone"),
        ((0.0, 0.1, 0.1, 0.1), "grows"),
        ((0.2, 0.21, 0.2, 0.2), "holds"),
    ],
)
def test_what_becomes_of_an_effect(rng, effects, word):
    found = scales.over_scales(VALUES, rungs(rng, effects), margin=0.05)
    assert found["word"] == word


def test_a_line_is_tested_by_what_is_left_within_seeds(rng):
    """By hand: F over rungs within seeds; of lines it rejects no more than its level."""
    d = rng.normal(size=(4, 5)) + np.array([0, 3, 3, 0])[:, None]
    x = np.log2(VALUES)
    centred = d - d.mean(0)
    line = np.polyval(np.polyfit(x, d.mean(1), 1), x)
    lack = 5 * ((d.mean(1) - line) ** 2).sum() / 2
    noise = ((centred - centred.mean(1, keepdims=True)) ** 2).sum() / 12
    assert scales.lack_of_fit_p(d, line) == pytest.approx(stats.f.sf(lack / noise, 2, 12))
    assert scales.lack_of_fit_p(np.outer(x, np.ones(5)), x) == 1.0
    assert scales.lack_of_fit_p(d, line, numbers=4) is None
    lines = [
        np.outer(x, [0.2] * 5) + rng.normal(size=(4, 5)) + rng.normal(size=5) for _ in range(2000)
    ]
    fitted = [np.polyval(np.polyfit(x, d.mean(1), 1), x) for d in lines]
    p = [scales.lack_of_fit_p(d, line) for d, line in zip(lines, fitted, strict=True)]
    assert np.mean(np.array(p) <= 0.05) == pytest.approx(0.05, abs=0.015)


def test_words_of_effects_that_hold_are_seldom_others(rng):
    words = [
        scales.over_scales(VALUES, rungs(rng, (0.1,) * 4, 0.02, 5), margin=0.02)["word"]
        for _ in range(300)
    ]
    assert (
        sum(word in ("not monotone", "grows", "shrinks", "flips") for word in words) <= 0.05 * 300
    )
    humps = [
        scales.over_scales(VALUES, rungs(rng, (0, 0.2, 0.2, 0), 0.02, 5), margin=0.02)["word"]
        for _ in range(100)
    ]
    assert humps.count("not monotone") >= 95


def test_effects_are_seen_over_what_the_option_changes():
    def costs(counted, parameters):
        return [
            {"without_embeddings": its, "counted": count, "flops": float(its)}
            for count, its in zip(counted, parameters, strict=True)
        ]

    def axis(counted, parameters):
        return axis_of(costs(counted, parameters), "tokens", "an.option", (1, 2, 4))

    assert axis((1000,) * 3, (10, 40, 160)) == ("parameters", [10, 40, 160])
    assert axis((100, 200, 400), (10,) * 3) == ("tokens", [100, 200, 400])
    assert axis((100,) * 3, (10,) * 3) == ("an.option", [1, 2, 4])
    both = axis((100, 200, 400), (10, 40, 160))
    assert both == ("training operations", [1000, 8000, 64000])


def test_noise_is_unresolved(rng):
    found = scales.over_scales(VALUES, rungs(rng, (0, 0, 0, 0), spread=1.0), margin=0.01)
    assert found["word"] == "unresolved"
    assert (
        scales.over_scales(VALUES, rungs(rng, (1, 1, 1, 1), seeds=2), 0.01)["word"] == "unresolved"
    )


def test_the_largest_rung_is_forecast_without_it(rng):
    """A straight line is forecast to its noise; the forecast does not look at the largest rung."""
    line = rungs(rng, (0.4, 0.3, 0.2, 0.1), spread=1e-6)
    found = scales.over_scales(VALUES, line, margin=0.05)
    assert found["forecast"] == pytest.approx(0.1, abs=1e-4)
    assert found["slope"] == pytest.approx(-0.1, abs=1e-4)
    other = scales.over_scales(VALUES, [*line[:3], {s: 5.0 for s in range(6)}], margin=0.05)
    assert other["forecast"] == found["forecast"]
    assert other["missed_by"] == pytest.approx(4.9, abs=1e-3)


def test_intervals_of_forecasts_cover(rng):
    covered = 0
    for _ in range(400):
        found = scales.over_scales(VALUES, rungs(rng, (0.4, 0.3, 0.2, 0.1), 0.1), 0.05)
        low, high = found["missed_interval"]
        covered += low <= 0 <= high
    assert 0.92 <= covered / 400 <= 0.98


@pytest.mark.thorough
@pytest.mark.parametrize(("seeds", "splits"), [(3, 3), (5, 5), (8, 4)])
@pytest.mark.parametrize("spread", [(1, 1, 1), (0, 1, 1), (0.2, 2, 0.2)])
def test_intervals_over_splits_cover_where_those_over_seeds_do_not(rng, seeds, splits, spread):
    """What seeds, splits and both together add; of one split alone the second case covers .6."""
    covered = alone = 0
    for _ in range(400):
        of_seed, of_split = rng.normal(size=(1, seeds)), rng.normal(size=(splits, 1))
        both = rng.normal(size=(splits, seeds))
        d = sum(s * part for s, part in zip(spread, (of_seed, of_split, both), strict=True))
        found = scales.over_splits([dict(enumerate(row)) for row in d], margin=0.1)
        covered += found["interval"][0] <= 0 <= found["interval"][1]
        low, high = statistics.paired_interval(d[0], 0.05).interval
        alone += low <= 0 <= high
    assert covered >= 0.915 * 400
    assert spread[0] == spread[1] or alone < 0.9 * 400


def test_words_over_splits_are_read_off_their_interval():
    d = [{0: 0.10, 1: 0.12, 2: 0.11}, {0: 0.13, 1: 0.12, 2: 0.15}, {0: 0.11, 1: 0.10, 2: 0.13}]
    found = scales.over_splits(d, margin=0.05)
    assert found["word"] == "better by more than 0.05"
    assert found["mean"] == pytest.approx(np.mean([list(split.values()) for split in d]))
    assert scales.over_splits(d, margin=0.2)["word"] == "better, negligible"
    assert scales.over_splits([{0: 1.0, 1: 1.0}] * 3, margin=0.2)["word"] == "unresolved"


def test_a_power_law_is_forecast():
    scores = [{str(s): 3 * v**-0.2 * (1 + 0.001 * s) for s in range(4)} for v in VALUES]
    found = scales.forecast_of_scores(VALUES, scores)
    assert found["forecast"] == pytest.approx(found["seen"], rel=1e-6)


def rung_of(mean, verdict="better", target=None, **more):
    """A judged study of a ladder, as far as judge_ladder reads it."""
    seeds = list(range(5))
    d = [mean + 0.001 * seed for seed in seeds]
    arm = {"verdict": verdict, "words": verdict, "seeds": seeds, "differences": d, "level": 0.025}
    values = {
        name: {"mean": 2.0, "by_seed": {str(s): 2.0 - at * d[s] for s in seeds}}
        for name, at in (("base", 0), ("arm", 1))
    }
    told = {
        "question": "q", "metric": "test/loss", "margin": 0.01, "base": "base", "level": 0.025,
        "larger_is_better": False, "values": values, "arms": {"arm": arm | more},
    }  # fmt: skip
    cost = {"without_embeddings": 10, "counted": 100, "flops": 1.0}
    return SimpleNamespace(
        verdicts=lambda: told, sealed={"target": target}, record={"counted": "tokens"}, base="base",
        arms={name: {"cost": cost} for name in ("base", "arm")},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rung", "word"),
    [
        ({}, "holds"),
        ({"verdict": "not primary"}, "not primary: no word"),
        ({"target": 0.9}, "unresolved: with a target no mean is judged"),
        (
            {"regrets": {"base": [], "arm": [[0.1, 4.0, None]]}},
            "unresolved: what a parabola missed is not in intervals",
        ),
        ({"verdict": "cannot tell"}, "cannot tell (at 1, 2, 4)"),
        ({"verdict": "refused"}, "unresolved: refused at 1, 2, 4"),
        ({"verdict": "identical"}, "identical: the change did nothing"),
    ],
)
def test_a_ladder_has_no_word_where_its_rungs_have_none(rung, word):
    found = judge_ladder([rung_of(0.2, **rung) for _ in range(3)], "an.option", (1, 2, 4))
    assert found["arms"]["arm"]["word"].startswith(word)


def test_a_ladder_tells_where_the_best_value_of_an_option_goes():
    key, rates = "optimizer.learning_rate", {"a": 1e-3, "b": 2e-3, "c": 4e-3}

    def rung(best):
        def loss(rate):
            return math.log(rate / best) ** 2

        values = {
            arm: {"mean": loss(rate), "by_seed": {str(s): s + loss(rate) for s in range(3)}}
            for arm, rate in rates.items()
        }
        sealed = {"arms": {arm: {key: rate} for arm, rate in rates.items()}}
        return SimpleNamespace(
            sealed=sealed | {"larger_is_better": False}, metric="loss",
            value_of=lambda arm, key: sealed["arms"][arm][key],
            verdicts=lambda: {"values": values},
        )  # fmt: skip

    found = as_plain(reporting._optima([rung(2e-3), rung(0.5e-3), rung(2.6e-3)]))
    assert found[key]["by_rung"][1] == "none between the arms"
    assert found[key]["moved"]["at"] == pytest.approx(1.3)
    (told,) = reporting._best_values({"optima": found, "values": [16, 32, 64]})
    assert (
        "0.002 [0.002, 0.002] at 16, none between the arms at 32, 0.0026 [0.0026, 0.0026]" in told
    )
    assert told.startswith(f"- **the best {key} moves by x 1.3 [1.3, 1.3] from 16 to 64**: ")
    outside = as_plain(reporting._optima([rung(2e-3), rung(0.5e-3)]))
    (told,) = reporting._best_values({"optima": outside, "values": [16, 32]})
    assert told.startswith(
        f"- **the best {key}**: 0.002 [0.002, 0.002] at 16, none between the arms"
    )
    assert reporting._best_values({}) == []


def test_a_score_of_zero_is_a_score(monkeypatch):
    scores = {"base": (0.0, 0.2, 0.1), "arm": (0.3, 0.0, 0.0)}
    monkeypatch.setattr(judging, "_score", lambda study, arm, seed, key: scores[arm][seed])
    study = SimpleNamespace(
        sealed={"larger_is_better": True}, arms=scores, base="base", seeds_of=lambda arm: range(3)
    )
    found = judging._evaluated_otherwise(study, "longer", 0.05)
    assert [found[name]["mean"] for name in scores] == pytest.approx([0.1, 0.1])
    assert found["arm"]["difference"] == pytest.approx(0.0)
    zeros = [{"0": 0.0, "1": 1.0, "2": 1.0, "3": 1.0}] * 3
    assert scales.forecast_of_scores(VALUES[:3], zeros) == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model.width=16,32", "3 or more"),
        ("model.width=32,16,64", "ascending"),
        ("model.width=16,32,64,16", "ascending"),
        ("model.width=16,32,32,64", "ascending"),
        ("optimizer.learning_rate=0.001,0.0010000001,0.002", "ascending"),
        ("model.position=none,rotary,alibi", "KEY=NUMBER"),
        ("model.wdth=16,32,64", "did you mean model.width"),
        ("model.num_heads=1,2,4", "sets model.num_heads itself"),
        ("data.split_seed=1,2,3", "cut in its order"),
        ("seed=1,2,3", "seeds are no scale"),
        ("", "--ladder=: expected KEY=VALUE"),
    ],
)
def test_ladders_that_cannot_be_are_refused(text, told):
    with pytest.raises(InvalidInput, match=told):
        ladder_of([text], load_design(TINY, {}, ["model.num_heads=1,2"]))


def test_rungs_of_large_numbers_are_told_apart(tmp_path):
    days = (20240101, 20240102, 20240103)
    assert len({rung_path(tmp_path, "data.split_seed", day) for day in days}) == 3
    assert rung_path(tmp_path, "optimizer.learning_rate", 0.001).name.endswith("rate=0.001")


def test_another_ladder_is_another_workdir(tmp_path):
    """Its forecast and its rungs would be taken for those of the first."""

    def asked(*texts):
        return ladder_of(texts, load_design(TINY, {}, ["model.num_heads=1,2"]))

    widths, steps = "model.width=16,32,64", "training.steps=100,200,300"
    begin_ladder(tmp_path, asked(widths, steps))
    begin_ladder(tmp_path, asked(widths, steps))
    for others in ((widths,), ("model.width=16,32,48", steps), (steps, widths)):
        told = "its ladder is model.width=16,32,64 with training.steps=100,200,300"
        with pytest.raises(InvalidInput, match=told):
            begin_ladder(tmp_path, asked(*others))
    (tmp_path / "ladder.json").write_text('{"key": "mod')
    with pytest.raises(InvalidInput, match=r"ladder\.json: expected JSON"):
        begin_ladder(tmp_path, asked(widths))


def test_a_ladder_with_an_impossible_rung_trains_nothing(tmp_path):
    arms = (f"--config={TINY}", "--arm=model.norm=rms_norm", "--seeds=3")
    ladder = ("--ladder=model.num_heads=1,2,3", f"--workdir={tmp_path / 'l'}")
    refused(attempt("ablate", *arms, *ladder), "model.num_heads=3")
    assert not (tmp_path / "l").exists()


@pytest.mark.commands
def test_a_ladder_of_real_studies(tmp_path):
    """Two options grow; what is forecast is sealed before a cell of the largest rung is there."""
    workdir = tmp_path / "l"
    asked = (
        "ablate", f"--config={TINY}", "--arm=model.position=rotary", "--seeds=3",
        "--config.schedule.warmup_cosine.warmup_steps=2", f"--workdir={workdir}",
        "--ladder=model.width=8,16,32", "--ladder=training.steps=10,15,20",
    )  # fmt: skip
    result = command(*asked)
    assert result.returncode == 0, result.stderr
    found = json.loads((workdir / "ladder.json").read_text())
    assert (found["values"], found["axis"]) == ([8, 16, 32], "training operations")
    assert found["together"] == {"training.steps": [10, 15, 20]}
    arm = found["arms"]["position=rotary"]
    assert arm["word"] == "cannot tell: the base has not learned (at 8, 16, 32)"
    assert "multipliers" not in arm  # nothing is read off bases that have not learned
    rungs = {value: workdir / f"model.width={value}" for value in found["values"]}
    for path, mean in zip(rungs.values(), arm["means"], strict=True):
        verdicts = json.loads((path / "verdicts.json").read_text())
        assert verdicts["arms"]["position=rotary"]["mean"] == pytest.approx(mean)
    assert "smaller rungs forecast" in (workdir / "ladder.md").read_text()

    sealed = json.loads((workdir / "forecast.json").read_text())
    assert sealed["cells_that_were_there"] == 0
    assert sealed["sealed_at"] <= json.loads((rungs[32] / "study.json").read_text())["sealed_at"]
    assert sealed["places"] == found["places"]
    forecast = sealed["arms"]["position=rotary"]["difference"]["forecast"]
    assert forecast == pytest.approx(arm["forecast"])
    assert sealed["score"]["forecast"] == pytest.approx(found["forecast_of_score"]["forecast"])
    assert "none of its cells had been trained" in (workdir / "ladder.md").read_text()
    # Later launches keep it; without it, one whose largest rung is there says so.
    widths = ["model.width=8,16,32", "training.steps=10,15,20"]
    design = load_design(TINY, {"schedule.warmup_cosine.warmup_steps": "2"}, ["model.depth=1"])
    _seal_forecast(workdir, ladder_of(widths, design), None)
    assert json.loads((workdir / "forecast.json").read_text()) == sealed
    (workdir / "forecast.json").unlink()
    assert not attempt(*asked).returncode
    assert json.loads((workdir / "forecast.json").read_text())["cells_that_were_there"] == 6
    assert "6 cells of it were there" in (workdir / "ladder.md").read_text()
    shallow = ("ablate", "--config=configs/tiny.py", "--arm=model.position=none", "--seeds=3")
    refused(attempt(*shallow, "--ladder=model.width=8", "--workdir=x"), "--ladder=model.width=8")


def test_a_ladder_says_on_which_side_all_rungs_lie():
    def side(word, *intervals):
        return reporting._side({"word": word, "intervals": intervals})

    assert side("keeps its sign", (-0.07, -0.01), (-0.06, -0.02)) == ", worse at every rung"
    assert side("grows", (0.01, 0.03), (0.05, 0.1)) == ", better at every rung"
    assert side("grows", (0.0, 0.0), (0.01, 0.02)) == "", "at one rung both are the same"
    assert side("flips", (-0.07, -0.01), (0.02, 0.06)) == side("unresolved", (-1, 1)) == ""
    assert side("cannot tell: the base has not learned (at 8)", (0.01, 0.03)) == ""
    assert not reporting._side({"word": "unresolved"})  # fewer than three seeds have all rungs


@pytest.mark.commands
def test_a_contrast_over_several_splits(tmp_path):
    result = command(
        "ablate", "--config=configs/digits.py", "--arm=model.position=none", "--seeds=3",
        "--config.training.steps=20", "--config.schedule.warmup_cosine.warmup_steps=2",
        "--config.model.depth=1", "--config.model.width=16",
        "--ladder=data.split_seed=1,2,3", f"--workdir={tmp_path}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    arm = json.loads((tmp_path / "ladder.json").read_text())["arms"]["position=none"]
    told = [
        json.loads((tmp_path / f"data.split_seed={v}/verdicts.json").read_text()) for v in "123"
    ]
    means = [verdicts["arms"]["position=none"]["mean"] for verdicts in told]
    assert len(set(means)) == 3  # every split is another
    assert arm["means"] == pytest.approx(means)
    assert arm["interval"][0] < arm["mean"] < arm["interval"][1]
    assert "other seeds and other splits" in (tmp_path / "ladder.md").read_text()


# ---------------------------------------------------------------- noise


def simulated(rng, initial, order, dropout, interactions, rounding, levels=(4, 4, 3)):
    i, o, d = levels
    return (
        initial * rng.normal(size=(i, 1, 1, 1))
        + order * rng.normal(size=(1, o, 1, 1))
        + dropout * rng.normal(size=(1, 1, d, 1))
        + interactions * rng.normal(size=(i, o, d, 1))
        + rounding * rng.normal(size=(i, o, d, 2))
    )


def test_components_are_unbiased(rng):
    truth = {"initial": 1.0, "order": 0.5, "dropout": 2.0, "interactions": 0.7, "rounding": 0.3}
    drawn = [variance_components.components(simulated(rng, **truth)).variances for _ in range(3000)]
    for name, deviation in truth.items():
        mean = np.mean([found[name] for found in drawn])
        # Cutting at 0 adds a little to the small ones.
        assert mean == pytest.approx(deviation**2, rel=0.12, abs=0.03), name


def test_a_factor_of_one_level_has_no_share(rng):
    found = variance_components.components(simulated(rng, 1, 1, 0, 0.1, 0.01, levels=(4, 4, 1)))
    assert set(found.variances) == {"initial", "order", "interactions", "rounding"}


def test_few_levels_leave_few_degrees_of_freedom(rng):
    """Where the initial seed is all, four of them are three degrees of freedom, not 31."""
    alone = [
        variance_components.components(
            simulated(rng, 1, 0, 0, 0.01, 0.01, levels=(4, 4, 2))
        ).freedom
        for _ in range(50)
    ]
    assert np.median(alone) == pytest.approx(3, abs=0.2)
    rounding = variance_components.components(simulated(rng, 0, 0, 0, 0, 1, levels=(4, 4, 2)))
    assert rounding.freedom > 15


def test_degrees_of_freedom_are_those_of_the_sum_that_is_given():
    """Of translation.py no factor alone shows: what is left is of 4 and 8 degrees of freedom."""
    scores = np.array(json.loads((ROOT / "configs/noise/translation.json").read_text())["scores"])
    found = variance_components.components(scores)
    assert [found.variances[name] for name in variance_components.FACTORS] == [0, 0, 0]
    cells = scores.mean(-1)
    alone = [cells.mean(axes, keepdims=True) for axes in ((1, 2), (0, 2), (0, 1))]
    left = cells + 2 * cells.mean() - sum(alone)
    within = 2 * (cells[..., None] - scores)[..., 0] ** 2
    squares = 2 * (left**2).sum() / 4, within.mean()  # of interactions and of rounding
    assert sum(found.variances.values()) == pytest.approx(sum(squares) / 2)
    freedom = sum(squares) ** 2 / (squares[0] ** 2 / 4 + squares[1] ** 2 / 8)
    assert found.freedom == pytest.approx(freedom)
    assert 4 < freedom < 5


def test_a_ledger_says_how_many_seeds_and_is_found_by_its_config(rng, tmp_path):
    config = tiny_config()
    scores = simulated(rng, 0.01, 0.005, 0.0, 0.001, 0.0, levels=(4, 4, 1))
    sequences = 3 + rng.normal(size=(32, 50))
    what = {"config": "configs/tiny.py", "config_hash": noise.config_hash_of(config)}
    found = variance_components.ledger(scores, sequences, "test/loss", what)
    assert sum(found["shares"].values()) == pytest.approx(1)
    counts = list(found["seeds_by_margin"].values())
    assert counts == sorted(counts, reverse=True)
    (tmp_path / "tiny.json").write_text(json.dumps(found))
    assert (
        noise.known_noise(tiny_config(seed=7, logging__every=3), tmp_path, "loss")["mean"]
        == found["mean"]
    )
    assert noise.known_noise(tiny_config(), tmp_path, "accuracy") is None
    assert noise.known_noise(tiny_config(model__width=16), tmp_path, "loss") is None
    assert len(noise.as_lines(found)) == 3
    (tmp_path / "torn.json").write_text("")
    with pytest.raises(InvalidInput, match=r"torn\.json"):
        noise.known_noise(tiny_config(model__width=16), tmp_path, "loss")


def test_a_ledger_is_made_of_whole_runs_alone():
    prepared = prepare(tiny_config())
    broken = SimpleNamespace(applied=np.array([True, True, False]))
    prepared.__dict__["_advance_compiled"] = lambda *_: (None, broken)
    with pytest.raises(Stop, match="not finite in update 3"):
        prepared.train(None, order=0, dropout=0)


def test_bits_per_byte_need_bytes():
    labels = SimpleNamespace(batch=lambda *_: None, scored_bytes=lambda _: None)
    refuse_unknown_bytes(labels, "loss")
    with pytest.raises(InvalidInput, match="--metric=bits_per_byte"):
        refuse_unknown_bytes(labels, "bits_per_byte")


LEDGERS = sorted((ROOT / "configs").glob("**/noise/*.json"))


@pytest.mark.parametrize("path", LEDGERS, ids=lambda path: path.stem)
def test_a_committed_ledger_is_that_of_its_config(path):
    kept = json.loads(path.read_text())
    config = load_config(kept["config"], kept["overrides"])
    assert noise.known_noise(config, path.parent, kept["metric"].removeprefix("test/")) == kept


@pytest.mark.commands
def test_the_command_measures_a_config_and_goes_on_after_it_was_killed(tmp_path):
    out, unfinished = tmp_path / "noise.json", tmp_path / ".noise.begun"
    given = ("--config=configs/tiny.py", "--levels=2", "--metric=accuracy", f"--out={out}")
    given = (*given, "--config.training.steps=12")
    process = start_command("noise", *given)
    while process.poll() is None and not unfinished.exists():
        time.sleep(0.1)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    before = json.loads(unfinished.read_text())["scores"]
    result = command("noise", *given)
    assert result.returncode == 0, result.stderr
    assert f"goes on after {len(before)} of 16 runs" in result.stdout + result.stderr
    assert not unfinished.exists()
    found = json.loads(out.read_text())
    assert found["metric"] == "test/accuracy"
    assert 0 < found["mean"] < 1
    scores = np.array(found["scores"])
    assert 0 < len(before) < 16
    assert scores.ravel()[: len(before)].tolist() == before
    assert scores.shape == (2, 2, 2, 2)
    assert np.ptp(scores[:, 0, 0, 0]) > 0
    assert np.ptp(scores[0, :, 0, 0]) > 0
    assert np.ptp(scores[0, 0, :, 0]) > 0
    refused(attempt("noise", "--config=configs/tiny.py", "--levels=1"), "--levels=1")
    other = attempt("noise", *given, "--config.model.depth=1")
    refused(other, "noise.json: the ledger of another config; --out=FILE.json keeps it")
    unfinished.write_text(json.dumps({"design": {}, "scores": [0.1]}))
    refused(attempt("noise", *given), ".noise.begun: 1 runs of other levels")
