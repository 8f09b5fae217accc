"""The course: every exact statement, and what it tells somebody whose own attention is wrong."""

import numpy as np
import pytest

from experiments import results
from experiments.course import checks, solution, statements
from experiments.course.statements import STATEMENTS, Claim, Statement, outcome_of, run_check
from tests.conftest import a_few_of, attempt, random_params, refused
from transformer_jax import MultiHeadAttention, causal_mask, scaled_dot_product_attention
from transformer_jax.studies.outcomes import Word

CHECKS = {row.says: row.check for row in STATEMENTS if row.check}
CHECKS |= checks.WORKED | {e.holds: e.demonstrate for e in checks.ERRATA if e.demonstrate}


# Whole models are compiled here; the laws show the same of every variant.
SLOW = (
    *("The causal mask lets", "Layer norm gives mean 0", "only the loop over the true tokens"),
    *("Without positions the last output", "Without positions attention is"),
)


@pytest.mark.parametrize("says", a_few_of(CHECKS, [s for s in CHECKS if not s.startswith(SLOW)]))
def test_what_is_exact_holds(says):
    holds, told = run_check(CHECKS[says])
    assert holds, told
    assert told


def test_a_check_that_does_not_hold_is_told():
    def wrong():
        """Two is three."""
        raise AssertionError("two is not three")

    assert run_check(wrong)[0] is False
    found = outcome_of(Statement(1, "says", wrong, (Claim("positions", "none", "worse"),)))
    assert found.word == statements.NOT


def test_claims_name_arms_that_their_studies_have():
    for row in STATEMENTS:
        assert row.check or row.claims, row.number
        for claim in row.claims:
            assert claim.arm in results.design_of(claim.study)["verdicts"], claim
            assert claim.wants in statements._MEETS


@pytest.mark.parametrize(
    ("found", "wants", "word"),
    [
        (Word.BETTER, "better", "held"),
        (Word.BETTER, "different", "held"),
        (Word.WORSE, "better", "did not hold here"),
        (Word.UNRESOLVED, "better", "undecided"),
        (Word.SAME, "same", "held"),
    ],
)
def test_words_follow_from_verdicts(monkeypatch, found, wants, word):
    design = {
        "verdicts": {"arm": {"verdict": found, "words": found}},
        "learned": {"base": 2.0, "score": 2.5},
        "margin": 0.1,
    }
    monkeypatch.setattr(statements, "design_of", lambda study: design)
    row = Statement(1, "says", claims=(Claim("made up", "arm", wants),))
    assert outcome_of(row).word == word
    design["learned"]["score"] = 2.05  # a simple method is within the margin too
    assert outcome_of(row).word == ("undecided" if found == Word.SAME else word)


def test_the_loops_agree_with_ours(rng):
    query, key, value = (rng.normal(size=(5, 4)).astype(np.float32) for _ in range(3))
    mask = np.asarray(causal_mask(5))
    for given in ((), (mask,)):
        ours = scaled_dot_product_attention(query, key, value, *given)
        np.testing.assert_allclose(solution.attention(query, key, value, *given), ours, atol=1e-5)


def test_the_loops_agree_with_our_heads(rng):
    inputs = rng.normal(size=(5, 6)).astype(np.float32)
    attend = MultiHeadAttention(num_heads=3, use_bias=False)
    params = random_params(attend, inputs)
    kernels = [np.asarray(params[n]["kernel"]) for n in ("query", "key", "value", "out")]
    mask = np.asarray(causal_mask(5))
    loop = solution.multi_head_attention(inputs, *kernels, 3, mask)
    np.testing.assert_allclose(attend.apply({"params": params}, inputs, mask=mask), loop, atol=1e-5)


@pytest.mark.parametrize("name", ["attention", "multi_head_attention"])
def test_every_known_mistake_is_named(name):
    cases = solution._cases()[name]
    for told, mistake in solution.MISTAKES[name].items():
        found = solution._check(name, mistake, cases)
        assert not found.right
        assert found.message.startswith(told)
    assert solution._check(name, getattr(solution, name), cases).right


STABLE = "np.exp(s - s.max(-1, keepdims=True))"
SOLUTIONS = {
    "right": ("weights @ value", STABLE, "right  attention"),
    "overflows": ("weights @ value", "np.exp(s)", "subtract each row's largest score"),
    "wrong shape": ("(weights @ value).T", STABLE, "(5, 3)"),
    "two things": ("weights @ value", "np.exp(s * 2)", "subtract each row's largest score"),
    "infinity times 0": (
        "weights @ value",
        "np.exp(s if mask is None else s + 0 * -np.inf)",
        "with a mask it gives NaN",
    ),
    "returns two": ("weights @ value, weights", STABLE, "a tuple"),
    "leaves": ("__import__('sys').exit(0)", STABLE, "SystemExit"),
    "raises": ("weights @ values", STABLE, "NameError"),
    "something else": ("2 * weights @ value", STABLE, "differ by"),
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
    result = attempt("course.__main__", f"--solution={path}")
    assert result.returncode == 1
    assert "wrong  attention: large scores overflow" in result.stdout
    path.unlink()
    refused(attempt("course.__main__", f"--solution={path}"), "no such file")
    for text, told in (("x = 1\n", "multi_head_attention"), ("x = ", "SyntaxError")):
        path.write_text(text)
        refused(attempt("course.__main__", f"--solution={path}"), told)
