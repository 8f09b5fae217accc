"""The course: every exact statement, the exercises, and what it tells somebody whose own is wrong."""

import json

import numpy as np
import pytest

from experiments import speed
from experiments.course import exercises, outcomes, solution
from experiments.course.checks import WORKED
from experiments.course.errata import ERRATA
from experiments.course.statements import STATEMENTS, Claim, Statement
from tests.conftest import ROOT, attempt, command, refused
from transformer_jax import causal_mask, scaled_dot_product_attention
from transformer_jax.studies.asking.design import load_design

EXACT = {f"{row.number}": row.check for row in STATEMENTS if row.check}
WANTS = ("better", "worse", "same", "no better", "different", "keeps", "falls", "forgets")
SLIPS = {row.circulates: row.demonstrate for row in ERRATA if row.demonstrate}


@pytest.mark.parametrize("check", [*EXACT.values(), *WORKED.values()])
def test_exact_statements_hold(check):
    assert check()


@pytest.mark.parametrize("slip", SLIPS)
def test_errata_are_told_apart(slip):
    assert SLIPS[slip]()


def test_the_list_is_whole():
    assert [row.number for row in STATEMENTS] == list(range(1, 37))
    assert {int(n) for n in EXACT} >= {1, 3, 11, 16, 20, 23, 24, 25, 26}
    assert len(ERRATA) >= 8
    for row in STATEMENTS:
        assert row.check or row.claims or row.studies or row.note, row.number


def test_claims_name_arms_that_their_studies_have():
    for row in STATEMENTS:
        for claim in row.claims:
            if claim.wants in (outcomes.FORECAST, outcomes.SHRINKS):
                assert (outcomes.RESULTS / claim.study / "ladder.json").exists()
                continue
            if claim.wants == outcomes.FASTER:
                assert claim.arm in speed.RATIOS
                continue
            design = load_design(f"configs/ablations/{claim.study}.py")
            assert claim.arm in (design.arms if claim.also else design.others), claim
            assert claim.wants in WANTS
            assert not claim.also or claim.also in design.also
        for study in row.studies:
            is_ladder = (outcomes.RESULTS / study / "ladder.json").exists()
            assert is_ladder or (ROOT / "configs" / "ablations" / f"{study}.py").exists(), study


# ---------------------------------------------------------------- how a statement is decided


def decided(tmp_path, monkeypatch, arms, claims, also=None):
    folder = tmp_path / "made_up"
    folder.mkdir()
    verdicts = {
        "metric": "test/loss",
        "base": "base",
        "margin": 0.01,
        "values": {name: {"mean": 2.0} for name in arms},
        "arms": {
            name: {
                "verdict": verdict,
                "words": words,
                "mean": 0.1,
                "diverged": [[3 * (name == "wild"), 5], [3 * (name == "base wild"), 5]],
            }
            for name, (verdict, words) in arms.items()
        },
        "also": also or {},
    }
    (folder / "verdicts.json").write_text(json.dumps(verdicts))
    monkeypatch.setattr(outcomes, "RESULTS", tmp_path)
    outcomes.verdicts_of.cache_clear()
    row = Statement(1, "says", "formula", "where", claims=tuple(claims))
    found = outcomes.outcome_of(row).word
    outcomes.verdicts_of.cache_clear()
    return found


SAME = "no different within the margin"
ARMS = {
    "up": ("better", "better by more than 0.01"),
    "down": ("worse", "worse"),
    "little": ("better", "better, negligible"),
    "even": (SAME, "no different within 0.01"),
    "open": ("unresolved", "unresolved"),
    "perfect": ("identical", "identical: every answer of both is right"),
    "wild": ("unstable", "unstable: 3 of 5"),
    "base wild": ("unstable", "the base is unstable: 0 of 5"),
}


@pytest.mark.parametrize(
    ("claims", "word"),
    [
        ([("up", "better")], "held"),
        ([("down", "better")], "did not hold here"),
        ([("little", "better")], "did not hold here"),
        ([("little", "same"), ("even", "same")], "held"),
        ([("open", "better")], "unresolved"),
        ([("open", "better"), ("up", "better")], "held in part"),
        ([("open", "better"), ("down", "better")], "did not hold here"),
        ([("wild", "worse")], "held"),
        ([("base wild", "worse")], "did not hold here"),
        ([("perfect", "better")], "unresolved"),
        ([("perfect", "same")], "held"),
        ([("down", "no better"), ("even", "no better")], "held"),
        ([("up", "no better")], "did not hold here"),
        ([("up", "different"), ("down", "different")], "held"),
        ([("even", "different")], "did not hold here"),
    ],
)
def test_words_follow_from_verdicts(tmp_path, monkeypatch, claims, word):
    given = [Claim("made_up", arm, wants) for arm, wants in claims]
    assert decided(tmp_path, monkeypatch, ARMS, given) == word


def test_a_study_that_was_not_run_decides_nothing(tmp_path, monkeypatch):
    assert decided(tmp_path, monkeypatch, ARMS, [Claim("other", "up", "better")]) == "not tested"


def test_further_evaluations_are_compared_with_the_arms_own_score(tmp_path, monkeypatch):
    also = {"far": {"up": {"mean": 2.005}, "down": {"mean": 2.6}}}
    claims = [
        Claim("made_up", "up", "keeps", also="far"),
        Claim("made_up", "down", "falls", also="far"),
    ]
    assert decided(tmp_path, monkeypatch, ARMS, claims, also) == "held"


@pytest.mark.parametrize(
    ("near", "far", "kind"),
    [
        ([1.0, 0.99, 1.0], [0.6, 0.55, 0.62], "forgets"),
        ([0.5, 0.52, 0.51], [0.5, 0.515, 0.51], "remembers"),
        ([1.0, 0.5, 0.9], [0.5, 0.9, 0.6], "unresolved"),
    ],
)
def test_who_forgets_is_worse_far_than_near(near, far, kind):
    verdicts = {"margin": 0.02, "by_distance": {"arm": {"10": far, "2": near, "4": near}}}
    assert outcomes._forgets(verdicts, "arm") == kind


def test_a_check_that_fails_outweighs_claims():
    def wrong():
        assert 1 == 2, "no"

    row = Statement(1, "says", "formula", "where", wrong)
    found = outcomes.outcome_of(row)
    assert found.word == "did not hold here"
    assert found.seen.told == "failed: no"


# ---------------------------------------------------------------- the exercises


def test_the_loops_agree_with_ours(rng):
    query, key, value = (rng.normal(size=(5, 4)).astype(np.float32) for _ in range(3))
    mask = np.asarray(causal_mask(5))
    for given in ((), (mask,)):
        ours = scaled_dot_product_attention(query, key, value, *given)
        np.testing.assert_allclose(exercises.attention(query, key, value, *given), ours, atol=1e-5)


def test_the_loops_agree_with_our_heads(rng):
    import jax

    from transformer_jax import MultiHeadAttention

    inputs = rng.normal(size=(5, 6)).astype(np.float32)
    attend = MultiHeadAttention(num_heads=3, use_bias=False)
    params = attend.init(jax.random.key(0), inputs)
    kernels = [params["params"][n]["kernel"] for n in ("query", "key", "value", "out")]
    mask = np.asarray(causal_mask(5))
    loops = exercises.multi_head_attention(inputs, *map(np.asarray, kernels), 3, mask)
    np.testing.assert_allclose(attend.apply(params, inputs, mask=mask), loops, atol=1e-6)


@pytest.mark.parametrize("name", ["attention", "multi_head_attention"])
def test_every_known_mistake_is_named(name):
    cases = solution._cases()[name]
    for told, mistake in solution.mistakes()[name].items():
        found = solution._check(name, mistake, cases)
        assert not found.right
        assert found.told.startswith(told)
    assert solution._check(name, getattr(exercises, name), cases).right


SOLUTIONS = {
    "right": ("weights @ value", "np.exp(s - s.max(-1, keepdims=True))", "right  attention"),
    "overflows": ("weights @ value", "np.exp(s)", "subtract each row's largest score"),
    "wrong shape": ("(weights @ value).T", "np.exp(s - s.max(-1, keepdims=True))", "(5, 3)"),
    "two things": ("weights @ value", "np.exp(s * 2)", "subtract each row's largest score"),
    "infinity times 0": (
        "weights @ value",
        "np.exp(s if mask is None else s + 0 * -np.inf)",
        "with a mask it gives NaN",
    ),
    "returns two": ("weights @ value, weights", "np.exp(s - s.max(-1, keepdims=True))", "a tuple"),
    "leaves": ("__import__('sys').exit(0)", "np.exp(s - s.max(-1, keepdims=True))", "SystemExit"),
    "raises": ("weights @ values", "np.exp(s - s.max(-1, keepdims=True))", "NameError"),
    "something else": ("2 * weights @ value", "np.exp(s - s.max(-1, keepdims=True))", "differ by"),
}
_FILE = """import numpy as np
def attention(query, key, value, mask=None):
    s = query @ key.T / np.sqrt(query.shape[-1])
    if mask is not None:
        s = np.where(mask, s, -np.inf)
    with np.errstate(all="ignore"):
        e = {exponential}
        weights = e / e.sum(-1, keepdims=True)
    return {output}
"""


@pytest.mark.parametrize("kind", SOLUTIONS)
def test_somebodys_own_file(kind, tmp_path):
    output, exponential, told = SOLUTIONS[kind]
    path = tmp_path / "mine.py"
    path.write_text(_FILE.format(output=output, exponential=exponential))
    lines = solution.as_lines(solution.check_solution(path))
    assert told in lines[0]
    assert lines[0].startswith("right") == (kind == "right")


def test_the_command_checks_a_solution_and_refuses_what_is_none(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(_FILE.format(output="weights @ value", exponential="np.exp(s)"))
    result = command("course", f"--solution={path}")
    assert result.returncode == 1
    assert "wrong  attention: large scores overflow" in result.stdout
    refused(attempt("course.__main__", f"--solution={tmp_path / 'none.py'}"), "no such file")
    path.write_text("x = 1\n")
    refused(
        attempt("course.__main__", f"--solution={path}"),
        "expected a function attention",
        "num_heads",
    )
    path.write_text("x = ")
    refused(attempt("course.__main__", f"--solution={path}"), "SyntaxError")


@pytest.mark.oracle
def test_words_of_a_real_encoder_are_contextual():
    """MiniLM's vectors of a word move apart with the layers, and least of all in like senses."""
    from experiments.course.contextual import WORDS, look_at_words
    from tests.test_interop import MINILM

    if not MINILM.exists():
        pytest.skip("needs all-MiniLM-L6-v2's weights: make minilm")
    rows = look_at_words(str(MINILM))
    assert len(rows) == 3 + 1
    for word, _, told in rows:
        by_layer = [float(cosine) for cosine in told.split(", ")]
        assert word in WORDS
        assert len(by_layer) == 7
        assert by_layer[0] > 0.9 > by_layer[-1]


@pytest.mark.commands
def test_the_course_writes_its_page(tmp_path):
    out = tmp_path / "course.html"
    result = command("course", f"--out={out}", f"--markdown={tmp_path / 'course.md'}")
    assert result.returncode == 0, result.stderr
    assert "36 statements" in result.stdout
    page = out.read_text()
    for words in ("Errata", "the keys near the door", "Attention weights are a distribution"):
        assert words in page
    assert page.count('class="heat"') >= 60
    assert "## 24. Sinusoids carry relative distance." in (tmp_path / "course.md").read_text()
