"""Scores of anybody's runs: the public judge, and its command."""

import json
import math

import numpy as np
import pytest
from scipy import stats

import transformer_jax
from tests.conftest import attempt, refused, run_python
from transformer_jax.errors import InvalidInput
from transformer_jax.studies import statistics
from transformer_jax.studies.outcomes import Outcome
from transformer_jax.studies.report import judge_in
from transformer_jax.studies.statistics import compare

SEEDS = range(6)
ASKED = {"base": "base", "margin": 0.05, "larger_is_better": True}
FLAGS = ("--base=base", "--margin=0.05", "--larger_is_better")
ROW = {"arm": "base", "seed": 0, "value": 1.0}


def rows_of(scores):
    return [
        {"arm": arm, "seed": seed, "value": float(value)}
        for arm, values in scores.items()
        for seed, value in zip(SEEDS, values, strict=True)
    ]


def write_scores(folder, rows):
    lines = [f"{row['arm']},{row['seed']},{row['value']!r}," for row in rows]
    (folder / "scores.csv").write_text("\n".join(["arm,seed,value,diverged", *lines]) + "\n")
    return folder / "scores.csv"


@pytest.fixture
def scores(rng):
    base = rng.normal(0.5, 0.02, 6)
    noise = rng.normal(0, 0.005, (3, 6))
    return {"base": base, "up": base + 0.1 + noise[0], "same": base + noise[1],
            "down": base - 0.03 + noise[2]}  # fmt: skip


ALONE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in %r:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import transformer_jax
rows = [{"arm": arm, "seed": s, "value": arm / 10 + s**2 / 99 * arm} for arm in (0, 1) for s in range(5)]
print(transformer_jax.judge(rows, base="0", margin=0.01, larger_is_better=True)[0].word)
"""


def test_the_judge_needs_scipy_alone():
    packages = ("jax", "flax", "ml_collections", "optax", "rich", "matplotlib")
    done = run_python("-c", ALONE % (packages,))
    assert done.stdout == "better\n", done.stderr
    done = run_python("-c", ALONE % (("scipy",),))
    assert "pip install -e '.[judge]'" in done.stderr


def test_a_folder_keeps_page_tables_and_looks(scores, tmp_path):
    folder = tmp_path / "judged"

    def judged(count):
        rows = [row for row in rows_of(scores) if row["seed"] < count]
        file = write_scores(tmp_path, rows)
        done = attempt("judge", f"--scores={file}", *FLAGS, f"--workdir={folder}")
        assert done.returncode == 0, done.stderr
        return rows, json.loads((folder / "verdicts.json").read_text())

    rows, first = judged(4)
    plain = transformer_jax.judge(rows, **ASKED)
    assert [found["interval"] for found in first] == [list(r.interval) for r in plain]
    assert judged(4)[1] == first  # the same scores again are no look
    rows, second = judged(6)
    further = transformer_jax.judge(rows, **ASKED, earlier_looks=(4,))
    assert [found["interval"] for found in second] == [list(r.interval) for r in further]
    assert len((folder / "register.jsonl").read_text().splitlines()) == 2
    page = (folder / "report.html").read_text()
    assert "looks at other scores before this one: 1" in page
    assert "better by more than 0.05" in page
    assert (folder / "report.md").exists()
    # The best of them, asked again alone, is one of three.
    alone = [row for row in rows if row["arm"] in ("base", "up")]
    (again,) = judge_in(folder, alone, **ASKED)
    (once,) = transformer_jax.judge(alone, **ASKED, earlier_looks=(4, 6), family=3)
    assert again.interval == once.interval


def test_the_p_of_no_different_is_that_of_equivalence(scores):
    (_, same, _) = transformer_jax.judge(rows_of(scores), **ASKED)
    assert same.word == "no different within the margin"
    one, other = (
        stats.ttest_1samp(same.differences, bound, alternative=side).pvalue
        for bound, side in ((-0.05, "greater"), (0.05, "less"))
    )
    assert same.p == pytest.approx(2 * 3 * max(one, other) / 0.8)


def test_a_folder_of_something_else_is_refused_and_stays(scores, tmp_path):
    (tmp_path / "report.html").write_text("my own")
    with pytest.raises(InvalidInput, match=r"it contains report\.html from another source"):
        judge_in(tmp_path, rows_of(scores), **ASKED)
    assert (tmp_path / "report.html").read_text() == "my own"
    with pytest.raises(InvalidInput, match=r"report\.html: "):
        judge_in(tmp_path / "report.html", rows_of(scores), **ASKED)


def test_the_best_of_ten_asked_alone_is_one_of_ten(rng, monkeypatch):
    """Some of ten arms without an effect looks good; asked again alone it had .08 of false words."""
    monkeypatch.setattr(statistics, "seeds_needed", lambda *_: None)  # a search that takes long
    false, studies = 0, 60
    for _ in range(studies):
        values = rng.normal(size=(11, 5))
        rows = [
            {"arm": f"a{arm}" if arm else "base", "seed": seed, "value": value}
            for (arm, seed), value in np.ndenumerate(values)
        ]
        found = transformer_jax.judge(rows, **ASKED)
        best = max(found, key=lambda result: abs(result.estimate)).arm
        alone = [row for row in rows if row["arm"] in ("base", best)]
        (again,) = transformer_jax.judge(alone, **ASKED, earlier_looks=(5,), family=10)
        false += again.word in ("better", "worse")
    assert false <= 0.05 * studies


def test_words_are_those_of_a_study_of_the_same_scores(scores):
    by_arm = {arm: {s: Outcome(v[s]) for s in SEEDS} for arm, v in scores.items()}
    base = by_arm.pop("base")
    theirs = compare(base, by_arm, 0.05, True, 0.05 / 2)
    ours = transformer_jax.judge(rows_of(scores), **ASKED)
    assert [r.arm for r in ours] == ["up", "same", "down"]
    for one, other in zip(ours, theirs, strict=True):
        assert (one.word, one.reason) == (other.verdict, other.words)
        assert one.p == (other.p_equivalence if one.arm == "same" else other.p)
        assert one.interval == other.interval
        assert one.differences == other.differences
    words = [r.reason for r in ours]
    assert words == ["better by more than 0.05", "no different within 0.05", "worse, negligible"]
    turned = transformer_jax.judge(rows_of(scores), **ASKED | {"larger_is_better": False})
    assert turned[0].word == "worse"


def test_arms_that_are_not_primary_get_intervals_and_no_words(scores):
    alone = transformer_jax.judge(rows_of({k: scores[k] for k in ("base", "up")}), **ASKED)[0]
    one, *others = transformer_jax.judge(rows_of(scores), **ASKED, primary=["up"])
    assert one == alone
    for other in others:
        assert (other.word, other.reason) == ("", "not primary: an interval but no verdict")
        d = stats.ttest_1samp(other.differences, 0).confidence_interval(1 - 0.8 * 0.025)
        assert other.interval == pytest.approx((d.low, d.high))


def test_looks_cost_what_they_cost_in_a_study(scores):
    rows = rows_of(scores)
    widths = [
        np.ptp(transformer_jax.judge(rows, **ASKED, **looks)[0].interval)
        for looks in ({}, {"planned": (6, 12)}, {"earlier_looks": (3,)}, {"earlier_looks": (3, 4)})
    ]
    assert sorted(widths) == widths
    assert len(set(widths)) == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"base": "bas"},
            "base=bas: no such arm in the scores, which has base, up, same, down; did you mean base?",
        ),
        ({"primary": ["pu"]}, "primary=pu: no such arm"),
        ({"margin": 0.0}, "margin=0.0: expected a number > 0"),
        ({"target": math.nan}, "target=nan: expected a number"),
        ({"margin": "0.01"}, "margin='0.01': expected a number > 0"),
        ({"target": "0.9"}, "target='0.9': expected a number"),
        ({"larger_is_better": "False"}, "larger_is_better='False': expected True or False"),
        ({"primary": "up"}, "primary='up': expected a collection of names"),
        ({"planned": (0,)}, "planned=(0,): expected numbers of seeds"),
        ({"planned": 5}, "planned=5: expected numbers of seeds"),
        ({"earlier_looks": (-3,)}, "earlier_looks=(-3,): expected numbers of seeds"),
        ({"rows": [ROW | {"step": "abc"}], "target": 0.5}, "row 1: step=abc: expected an integer"),
        ({"rows": [ROW | {"step": math.inf}], "target": 0.5}, "row 1: step=inf: expected an int"),
        ({"rows": [ROW | {"step": ""}], "target": 0.5}, "row 1 has no step"),
        ({"rows": [ROW | {"step": 1200.5}], "target": 0.5}, "row 1: step=1200.5: expected an int"),
        ({"rows": [{"arm": "a", "seed": 0, "valu": 1.0}]}, "row 1 has no 'value'"),
        ({"rows": [ROW] * 2}, "arm 'base' has seed 0 twice"),
    ],
)
def test_what_cannot_be_judged_is_refused(scores, change, words):
    asked = ASKED | change
    rows = asked.pop("rows", rows_of(scores))
    with pytest.raises(InvalidInput) as error:
        transformer_jax.judge(rows, **asked)
    assert words in str(error.value)


def test_the_command_says_the_same(scores, tmp_path):
    rows = rows_of(scores)
    file = write_scores(tmp_path, rows)
    told = json.loads(attempt("judge", f"--scores={file}", *FLAGS, "--json").stdout)
    ours = transformer_jax.judge(rows, **ASKED)
    assert [(r["arm"], r["word"], r["p"]) for r in told] == [(r.arm, r.word, r.p) for r in ours]
    assert told[0]["interval"] == list(ours[0].interval)
    table = attempt("judge", f"--scores={file}", *FLAGS).stdout
    assert "better by more" in table  # the width folds the rest
    other = ("--base=up2", "--margin=1")
    refused(attempt("judge", f"--scores={file}", *other), "base=up2", "up")
    refused(attempt("judge", "--scores=no.csv", *FLAGS), "no.csv: no such file")
    for text, told in (
        ("arm,seed,value\nbase,0,high\n", ("line 2", "value=high", "expected a number")),
        ("arm,seed,score\nbase,0,1.0\n", ("no 'value'",)),
    ):
        file.write_text(text)
        refused(attempt("judge", f"--scores={file}", *FLAGS), *told)
