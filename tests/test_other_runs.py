"""Runs of other code, read from their logs, and judged."""

import json

import numpy as np
import pytest
from scipy import stats

from tests.conftest import attempt, refused
from transformer_jax.errors import InvalidInput
from transformer_jax.studies.other_runs import reaching, read_curves, read_scores, rows_of_curves

POINTS = [(0, 4.2187), (250, 2.5), (500, 1.75)]
LOGS = {
    "nanogpt": "iter {0}: loss 1.9, time 20.1ms, mfu 3.2%\n"
    "step {0}: train loss 2.0017, val loss {1}\nsaving checkpoint to out\n",
    "modded": "step:{0}/1750 val_loss:{1} train_time:1023ms step_avg:93.21ms\n"
    "step:{0}/1750 train_time:1034ms step_avg:93.4ms\n",
    "nanochat": "Step {0:05d} | Validation bpb: {1}\nstep {0:05d}/21400 (0.01%) | loss: 9.2\n",
}


def write_log(path, kind, points=POINTS):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("Overriding config\n" + "".join(LOGS[kind].format(*point) for point in points))
    return path


def write_rows(path, points=POINTS, step="step", name="val/loss", more=()):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{step: at, name: value} for at, value in points] + [*more, {step: 7, "train/loss": 3.0}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def points_of(curve):
    return list(zip(curve.steps, curve.values, strict=True))


@pytest.mark.parametrize("kind", LOGS)
def test_logs_of_three_projects_are_read(tmp_path, kind):
    path = write_log(tmp_path / "a-seed1.log", kind)
    (name, curve), = read_curves([path]).items()  # fmt: skip
    assert (name, points_of(curve)) == ("a-seed1", POINTS)


def test_json_lines_are_named_by_their_folder_and_may_be_unfinished(tmp_path):
    for seed in (0, 1):
        path = write_rows(tmp_path / f"wide-{seed}" / "metrics.jsonl")
        path.write_text(path.read_text() + '{"step": 750, "val/l')
    curves = read_curves([tmp_path])
    assert list(curves) == ["wide-0", "wide-1"]
    assert points_of(curves["wide-1"]) == POINTS
    more = [{"_step": 1, "acc": 0.5}]
    other = write_rows(tmp_path / "b.jsonl", step="_step", name="loss", more=more)
    assert points_of(read_curves([other], "acc")["b"]) == [(1, 0.5)]
    with pytest.raises(InvalidInput, match=r"--metric: expected one of acc, loss, train/loss"):
        read_curves([other])


def test_a_chart_and_a_table_of_runs_are_read_from_csv(tmp_path):
    chart = tmp_path / "chart.csv"
    chart.write_text(
        '﻿"Step","a-0 - val/loss","a-0 - val/loss__MIN","a-0 - val/loss__MAX","b-0 - val/loss"\n'
        '"0","4.2187","4.2187","4.2187","4.5"\n"250","2.5","2.5","2.5",""\n"500","1.75","1","2","NaN"\n'
    )
    curves = read_curves([chart])
    assert points_of(curves["a-0"]) == POINTS
    np.testing.assert_equal(points_of(curves["b-0"]), [(0, 4.5), (500, np.nan)])
    table = tmp_path / "table.csv"
    table.write_text("run,step,val_loss\na-1,0,3.5\nb-1,0,3.25\na-1,9,3.0\n")
    assert {name: points_of(c) for name, c in read_curves([table]).items()} == {
        "a-1": [(0, 3.5), (9, 3.0)], "b-1": [(0, 3.25)],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.log", "step 5 done\n", ["a.log", "nanoGPT, modded-nanogpt, nanochat"]),
        ("a.log", LOGS["nanogpt"].format(5, "2,31"), ["line 2", "val_loss=2,31", "decimal point"]),
        ("a.log", 2 * LOGS["modded"].format(5, 1) + LOGS["modded"].format(5, 2), ["step 5", "1, "]),
        ("a.jsonl", '{"step": 1, "val_loss": 1}\n{"step"\n{}\n', ["line 2", "not JSON"]),
        ("a.jsonl", '{"step": 1.5, "val_loss": 1}\n', ["row 1", "step=1.5"]),
        ("a.jsonl", '{"step": 1, "val_loss": "1,5"}\n', ["val_loss='1,5'", "expected numbers"]),
        ("a.jsonl", '{"step": NaN, "val_loss": 1}\n', ["step=nan", "expected numbers"]),
        ("a.jsonl", '{"step": 1, "val_loss": 1}\n{"step": 2, "val_loss": null}', ["row 2", "null"]),
        ("a.csv", "step,val_loss\n1.5,2\n", ["step=1.5"]),
        ("a.csv", "step,run,val_loss\nnan,a,2\n", ["step=nan", "an integer"]),
        ("a.jsonl", '{"val_loss": 1}\n', ["no row has a step"]),
        ("a.csv", "step;val_loss\n1;2,5\n", ["expected commas", "semicolons"]),
        ("a.csv", 'step,val_loss\n1,"2,5"\n', ["line 2", "val_loss=2,5", "a decimal point"]),
        ("a.csv", "step,val_loss\n1,2,5\n", ["line 2", "3 cells", "header has 2"]),
        ("a.csv", "step,val_loss\n1,1_000\n", ["val_loss=1_000", "expected a number"]),
        ("a.csv", "step,val_loss,val_loss\n1,2,3\n", ["two columns are named 'val_loss'"]),
        ("a.csv", "time,val_loss\n1,2\n", ["expected a column step"]),
    ],
)
def test_files_that_cannot_be_read_rightly_are_refused(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_curves([tmp_path / name])
    assert all(word in str(caught.value) for word in words), caught.value


def test_runs_that_diverged_and_rows_of_trackers_are_read_as_written(tmp_path):
    path = write_rows(tmp_path / "a-0.jsonl", [(1, "NaN"), (2, "Infinity"), (3, "-Infinity")])
    read = read_curves([path], "val/loss")["a-0"]
    np.testing.assert_equal(read.values, [np.nan, np.inf, -np.inf])
    path.write_text('{"_step": 3, "iter": 500, "val/loss": 2.5, "note": "a\u2028b"}\n')
    assert points_of(read_curves([path])["a-0"]) == [(500, 2.5)]
    same = write_log(tmp_path / "b-0.log", "modded", [(5, "nan"), (5, 2.0)])
    with pytest.raises(InvalidInput, match="step 5 has two values"):
        read_curves([same])
    with pytest.raises(InvalidInput, match="finds no arm and seed"):  # a rate is no seed
        rows_of_curves(read_curves([write_rows(tmp_path / "y" / "wide-lr0.003.jsonl")]))


def test_names_give_arms_and_seeds_by_the_rule(tmp_path):
    names = ["wide-seed3", "wide_s4", "lr=0.01,seed=5", "plain/6", "run 7"]
    for number, name in enumerate(names):
        write_rows(tmp_path / str(number) / name / "metrics.jsonl" if "/" in name else
                   tmp_path / str(number) / f"{name}.jsonl")  # fmt: skip
    rows = rows_of_curves(read_curves([tmp_path])).rows
    assert [(row["arm"], row["seed"]) for row in rows] == [
        ("wide", 3), ("wide", 4), ("lr=0.01", 5), ("runs", 6), ("run", 7),
    ]  # fmt: skip
    curves = read_curves([write_rows(tmp_path / "x" / "s3-deep.jsonl")])
    (row,) = rows_of_curves(curves, r"s(?P<seed>\d+)-(?P<arm>\w+)").rows
    assert row == {"arm": "deep", "seed": 3, "value": 1.75, "step": 500}
    for rule, words in (
        ("(", "unterminated"),
        ("(?P<arm>.*)", "the groups"),
        ("(?P<arm>x)(?P<seed>1)", "finds no arm"),
    ):
        with pytest.raises(InvalidInput, match=words):
            rows_of_curves(curves, rule)


def test_values_are_the_last_or_those_at_an_update_or_the_first_at_a_target(tmp_path):
    curves = read_curves([write_rows(tmp_path / "a-0.jsonl", [*POINTS, (750, 2.0)])])
    value = lambda **how: [rows_of_curves(curves, **how).rows[0][k] for k in ("value", "step")]
    assert value() == [2.0, 750]
    assert value(at=250) == [2.5, 250]
    assert value(target=2.5) == [1.75, 250]
    assert value(target=1.0) == [1.75, 750]
    assert value(target=1.0, at=250) == [2.5, 250]
    assert value(target=4.0, larger_is_better=True) == [4.2187, 0]
    with pytest.raises(InvalidInput, match="no value at 300, nearest 250"):
        value(at=300)


def test_missing_seeds_and_unequal_budgets_are_named(tmp_path):
    for name, points in (("a-0", POINTS), ("a-1", POINTS), ("b-0", POINTS[:2])):
        write_rows(tmp_path / f"{name}.jsonl", points)
    told = rows_of_curves(read_curves([tmp_path])).warnings
    assert told == [
        "b has no seed 1: runs are compared by equal numbers of seeds",
        "unequal budgets: runs end at 500 updates, but b-0 at 250",
    ]


def test_a_table_of_scores_is_read_cell_by_cell(tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text("arm,seed,value,diverged\na,0,1.5,\nb,0,13,02,\n")
    with pytest.raises(InvalidInput, match=r"line 3: 5 cells, and the header has 4"):
        read_scores(path)
    for row, words in (("a,1_9,1", "seed=1_9"), ("a,0,1\na ,0,2", "differ only in spelling")):
        path.write_text(f"arm,seed,value\n{row}\n")
        with pytest.raises(InvalidInput, match=words):
            read_scores(path)


def test_the_command_judges_logs(tmp_path):
    rng = np.random.default_rng(0)
    for arm, shift in (("plain", 0.0), ("wide", -0.2)):
        for seed in range(5):
            noise = rng.normal(0, 0.01)
            points = [(at, round(value + shift + noise, 4)) for at, value in POINTS]
            write_log(tmp_path / "logs" / f"{arm}-{seed}.log", "modded", points)
    flags = [f"--from={tmp_path / 'logs'}", "--base=plain", "--margin=0.05"]
    said = attempt("judge", *flags, f"--workdir={tmp_path / 'judged'}")
    assert said.returncode == 0, said.stderr
    assert "better by more" in said.stdout
    assert "wide-4" in said.stdout
    assert (tmp_path / "judged" / "report.html").exists()
    (verdict,) = json.loads(attempt("judge", *flags, "--target=2.4", "--json").stdout)
    assert verdict["solved"] == [[5, 5], [5, 5]]
    assert verdict["updates"] == [250, 500]
    refused(attempt("judge", *flags, "--scores=a.csv"), "either --scores=FILE or --from=PATH")
    refused(attempt("judge", *flags[1:], "--from=nowhere"), "--from=nowhere", "no such file")


@pytest.mark.oracle
def test_event_files_and_runs_of_trackers_are_read(tmp_path, monkeypatch):
    """Written by PyTorch, tensorboardX and W&B themselves; one is still being written."""
    import tensorboardX
    import wandb
    from torch.utils.tensorboard import SummaryWriter

    for number, make in enumerate((SummaryWriter, tensorboardX.SummaryWriter)):
        with make(str(tmp_path / f"run-{number}")) as writer:
            for at, value in POINTS:
                writer.add_scalar("val/loss", value, at)
                writer.add_scalar("lr", 0.1, at)
    with SummaryWriter(str(tmp_path / "run-0"), filename_suffix="z") as writer:  # resumed
        writer.add_scalar("val/loss", 1.75, 500)
    with SummaryWriter(str(tmp_path / "run-0"), filename_suffix="zz") as writer:  # and killed
        writer.add_scalar("lr", 0.1, 501)
    (events,) = (tmp_path / "run-1").iterdir()
    events.write_bytes(events.read_bytes() + events.read_bytes()[-40:-3])
    curves = read_curves([tmp_path])
    assert list(curves) == ["run-0", "run-1"]
    for curve in curves.values():
        assert curve.steps == [0, 250, 500]
        np.testing.assert_allclose(curve.values, [value for _, value in POINTS], rtol=1e-6)
    with pytest.raises(InvalidInput, match=r"no metric 'val_loss'.*val/loss"):
        read_curves([tmp_path], "val_loss")

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(dir=str(tmp_path / "w"), name="tracked-3", project="p") as run:
        for at, value in POINTS:
            run.log({"val": {"loss": value}, "other": 1.0}, step=at)
    write_rows(tmp_path / "w" / "beside-0.jsonl", name="val.loss")
    curves = read_curves([tmp_path / "w"], "val.loss")
    assert {name: points_of(curve) for name, curve in curves.items()} == {
        "tracked-3": POINTS, "beside-0": POINTS,
    }  # fmt: skip


def test_updates_until_a_target_and_a_test_of_the_mean(tmp_path):
    """The question of modded-nanogpt's records: is the mean loss below 3.28, and since when?"""
    ends = {"new": [3.270, 3.274, 3.279, 3.281], "old": [3.29, 3.284, 3.281, 3.3], "one": [3.2]}
    for arm, values in ends.items():
        for seed, value in enumerate(values):
            curve = [(0, 10.8), (100 + 25 * seed, 3.27 if arm == "new" else 3.4), (1000, value)]
            write_log(tmp_path / f"{arm}-{seed}.log", "modded", curve)
    curves = read_curves([tmp_path])
    new, old, one = reaching(curves, 3.28)
    p = stats.ttest_1samp(ends["new"], 3.28, alternative="less").pvalue
    assert new.p == pytest.approx(p)
    assert old.p == pytest.approx(stats.ttest_1samp(ends["old"], 3.28, alternative="less").pvalue)
    assert (new.reached, old.reached, one.reached) == ((4, 4), (0, 4), (1, 1))
    low, high = stats.t.interval(0.95, 3, 137.5, stats.sem([100, 125, 150, 175]))
    assert new.updates == (137.5, (pytest.approx(low), pytest.approx(high)))
    assert old.updates is None
    assert one.p == 1
    assert reaching(curves, 3.28, at=1000, larger_is_better=True)[1].p == pytest.approx(1 - old.p)
    asked = [f"--from={tmp_path}", "--target=3.28", "--steps"]
    said = attempt("judge", *asked).stdout
    assert f"{p:.2g}" in said
    assert "4 of 4" in said
    assert json.loads(attempt("judge", *asked, "--json").stdout)[0]["reached"] == [4, 4]
    refused(attempt("judge", *asked[:1], "--steps"), "--steps", "--target=VALUE")
    refused(attempt("judge", *asked[:2]), "expected --base=ARM and --margin=DIFFERENCE")


def test_different_validation_data_are_named(tmp_path):
    """As logs and configs state them: code of modded-nanogpt, YAML of W&B, JSON of our runs."""
    source = '    val_files : str = "data/{}_val_*.bin" # input\n    val_tokens = {} # how many\n'
    for name, said in (("a-0", ("fine", 10)), ("a-1", ("fine", 10)), ("b-0", ("web", 5))):
        path = write_log(tmp_path / f"{name}.log", "modded")
        path.write_text(source.format(*said) + path.read_text())
    for name, config in (("c-0", '{"dataset": "owt"}'), ("c-1", "dataset:\n    value: c4\n")):
        write_rows(tmp_path / name / "metrics.jsonl", name="val_loss")
        (tmp_path / name / ("config.json" if "{" in config else "config.yaml")).write_text(config)
    told = rows_of_curves(read_curves([tmp_path], "val_loss")).warnings
    assert [line for line in told if "different" in line] == [
        "different validation data: val_files is data/fine_val_*.bin (a-0), data/web_val_*.bin (b-0)",
        "different validation data: val_tokens is 10 (a-0), 5 (b-0)",
        "different validation data: dataset is owt (c-0), c4 (c-1)",
    ]
