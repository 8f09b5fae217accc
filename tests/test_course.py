"""The course: every exact statement, the exercises, and what it tells somebody whose own is wrong."""

import functools
import json

import numpy as np
import pytest

from experiments import answers, speed
from experiments.course import checks, exercises, outcomes, page, solution
from experiments.course.errata import ERRATA
from experiments.course.statements import STATEMENTS, Claim, Statement
from tests.conftest import ROOT, attempt, command, refused
from transformer_jax import causal_mask, scaled_dot_product_attention
from transformer_jax.studies.asking.study import load_study

EXACT = {f"{row.number}": row.check for row in STATEMENTS if row.check}
WANTS = ("better", "worse", "same", "no better", "different", "keeps")


def test_the_list_is_whole():
    assert [row.number for row in STATEMENTS] == list(range(1, 37))
    assert {int(n) for n in EXACT} >= {1, 3, 11, 16, 20, 23, 24, 25, 26}
    assert len(ERRATA) >= 8
    for row in STATEMENTS:
        assert row.check or row.claims or row.studies or row.note, row.number


def test_claims_name_arms_that_their_studies_have():
    design_of = functools.cache(lambda study: load_study(answers.RESULTS / study).sealed)
    for row in STATEMENTS:
        for claim in row.claims:
            if claim.wants in (outcomes.FORECAST, outcomes.SHRINKS):
                assert (answers.RESULTS / claim.study / "ladder.json").exists()
                continue
            if claim.wants == outcomes.FASTER:
                assert claim.arm in speed.RATIOS
                continue
            design = design_of(claim.study)
            others = {name for name in design["arms"] if name != design["base"]}
            assert claim.arm in (design["arms"] if claim.also else others), claim
            assert claim.wants in WANTS
            assert not claim.also or claim.also in design["also"]
        for study in row.studies:
            files = (answers.RESULTS / study / f"{name}.json" for name in ("ladder", "speed"))
            assert (
                any(file.exists() for file in files)
                or (ROOT / "configs" / "ablations" / f"{study}.py").exists()
            ), study


# ---------------------------------------------------------------- how a statement is decided


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder in place of the committed results."""
    monkeypatch.setattr(answers, "RESULTS", tmp_path)
    answers.read_study.cache_clear()
    yield tmp_path
    answers.read_study.cache_clear()


def decided(results, arms, claims, also=None, learned=None):
    folder = results / "made_up"
    folder.mkdir()
    verdicts = {
        "metric": "test/loss",
        "larger_is_better": False,
        "base": "base",
        "margin": 0.01,
        "seeds": [0, 1, 2],
        "contrasts": 1,
        "learned": learned,
        "values": {name: {"mean": 2.0, "by_seed": BY_SEED} for name in ("base", *arms)},
        "arms": {
            name: {
                "verdict": verdict,
                "words": words,
                "mean": 0.1,
                "level": 0.05,
                "diverged": [[3 * (name == "wild"), 5], [3 * (name == "base wild"), 5]],
            }
            for name, (verdict, words) in arms.items()
        },
        "also": {
            name: {a: {"mean": 2.0, **its} for a, its in arms.items()}
            for name, arms in (also or {}).items()
        },
    }
    cost = {"parameters": 1000, "updates": 10, "counted": 640}
    record = {
        "sealed": {"base_config": {"data.source": "shakespeare"}},
        "arms": {name: {"cost": cost} for name in ("base", *arms)},
        "counted": "tokens",
    }
    (folder / "verdicts.json").write_text(json.dumps(verdicts))
    (folder / "study.json").write_text(json.dumps(record))
    row = Statement(1, "says", "formula", "where", claims=tuple(claims))
    return outcomes.outcome_of(row)


BY_SEED = {"0": 2.0, "1": 2.01, "2": 1.99}
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
        ([("open", "better"), ("up", "better")], "held in part, the rest is open"),
        ([("open", "better"), ("down", "better")], "unresolved"),
        ([("even", "better"), ("down", "better")], "did not hold here"),
        ([("wild", "worse")], "held"),
        ([("base wild", "worse")], "did not hold here"),
        ([("perfect", "better")], "unresolved"),
        ([("perfect", "same")], "unresolved"),
        ([("down", "no better"), ("even", "no better")], "held"),
        ([("up", "no better")], "did not hold here"),
        ([("up", "different"), ("down", "different")], "held"),
        ([("even", "different")], "did not hold here"),
    ],
)
def test_words_follow_from_verdicts(results, claims, word):
    given = [Claim("made_up", arm, wants) for arm, wants in claims]
    assert decided(results, ARMS, given).word == word


def test_a_study_that_was_not_run_decides_nothing(results):
    assert decided(results, ARMS, [Claim("other", "up", "better")]).word == "not tested"


def test_a_base_that_has_not_learned_decides_nothing(results):
    learned = {"passed": False, "told": "the base's loss is no better than that of a bigram"}
    found = decided(results, ARMS, [Claim("made_up", "up", "better")], learned=learned)
    assert found.word == "cannot tell"
    assert "made_up: not decided: the base has not learned: the base's loss" in found.verdicts[0]


@pytest.mark.parametrize(("score", "word"), [(2.005, "cannot tell"), (2.02, "held")])
def test_within_a_margin_that_a_simple_method_is_within_too_nothing_is_told_apart(
    results, score, word
):
    learned = {"passed": True, "told": "", "method": "4-gram", "split": "test", "metric": "loss"}
    learned |= {"base": 2.0, "score": score}
    assert decided(results, ARMS, [Claim("made_up", "even", "same")], learned=learned).word == word
    told = answers.margin_of(answers.read_study("made_up"))
    assert ("what the base is ahead of a 4-gram model by (0.005)" in told) == (score < 2.01)


def test_a_study_that_was_withdrawn_decides_nothing(results, monkeypatch):
    monkeypatch.setitem(answers.WITHDRAWN, "made_up", "true by construction")
    found = decided(results, ARMS, [Claim("made_up", "up", "better")])
    assert found.word == "cannot tell"
    assert found.verdicts == ("made_up: not decided: true by construction",)


def test_the_line_of_a_study_says_what_it_speaks_for(results):
    (line,) = decided(results, ARMS, [Claim("made_up", "up", "better")]).verdicts
    for words in ("1,000 parameters", "10 updates (640 tokens of shakespeare", "3 seeds"):
        assert words in line


@pytest.mark.parametrize(
    ("there", "wants", "word"),
    [
        ({"0": 2.003, "1": 2.011, "2": 1.994}, "keeps", "held"),
        ({"0": 2.6, "1": 2.62, "2": 2.6}, "keeps", "did not hold here"),
        ({"0": 1.8, "1": 1.81, "2": 1.79}, "keeps", "held"),  # better is not worse
        ({"0": 2.1, "1": 1.9, "2": 2.1}, "keeps", "unresolved"),
        (
            {"0": 2.5, "1": 2.51, "2": 2.49},
            "better",
            "held",
        ),  # than the base there, though it falls
        ({"0": 3.2, "1": 3.21, "2": 3.2}, "better", "did not hold here"),
        ({"0": 2.9, "1": 3.1, "2": 3.0}, "better", "unresolved"),
    ],
)
def test_further_evaluations_are_compared_with_the_arms_own_score_or_the_bases_there(
    results, there, wants, word
):
    claims = [Claim("made_up", "up", wants, also="far")]
    of_base = {"0": 3.0, "1": 3.01, "2": 3.0}
    also = {"far": {"up": {"by_seed": there}, "base": {"by_seed": of_base}}}
    assert decided(results, ARMS, claims, also).word == word


def test_a_check_counts_beside_claims(results):
    claims = (Claim("made_up", "open", "better"), Claim("made_up", "down", "better"))
    decided(results, ARMS, claims)
    for claim, word in zip(claims, ("held in part, the rest is open", "held in part"), strict=True):
        row = Statement(1, "says", "formula", "where", lambda: "seen", claims=(claim,))
        assert outcomes.outcome_of(row).word == word


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


@pytest.mark.parametrize("name", ["attention", "multi_head_attention", "vanilla_rnn"])
def test_every_known_mistake_is_named(name):
    cases = solution._cases()[name]
    for told, mistake in solution.MISTAKES[name].items():
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


CLASSES = {
    "one head": (
        """
class SingleHeadAttention:
    def __init__(self, d_model, d_k):
        draw = np.random.default_rng(1).normal
        self.W_q, self.W_k, self.W_v = (draw(size=(d_model, d_k)) for _ in range(3))
    def __call__(self, x):
        q, k, v = x @ self.W_q, x @ self.W_k, x @ self.W_v
        return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v
""",
        "right  SingleHeadAttention",
    ),
    "causal": (
        """
class SingleHeadAttention:
    def __init__(self, dim, head_size):
        draw = np.random.default_rng(1).normal
        self.query, self.key, self.value = (draw(size=(dim, head_size)) for _ in range(3))
    def __call__(self, x):
        s = (x @ self.query) @ (x @ self.key).swapaxes(-1, -2) / np.sqrt(self.key.shape[-1])
        s = np.where(np.tril(np.ones(s.shape[-2:])) > 0, s, -np.inf)
        return softmax(s) @ (x @ self.value)
""",
        "agrees with the loops, causally",
    ),
    "no scale": (
        """
class SingleHeadAttention:
    def __init__(self, d_model, d_k):
        draw = np.random.default_rng(1).normal
        self.wq, self.wk, self.wv = (draw(size=(d_model, d_k)) for _ in range(3))
    def __call__(self, x):
        return softmax((x @ self.wq) @ (x @ self.wk).swapaxes(-1, -2)) @ (x @ self.wv)
""",
        "wrong  SingleHeadAttention: the scale is missing",
    ),
    "layers with biases, in Flax": (
        """
from flax import nnx
class SimpleMultiHeadAttention(nnx.Module):
    def __init__(self, d_model, num_heads, rngs):
        self.num_heads = num_heads
        made = [nnx.Linear(d_model, d_model, bias_init=nnx.initializers.normal(1), rngs=rngs)
                for _ in range(4)]
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = made
    def __call__(self, x):
        def split(y):
            return y.reshape(*y.shape[:-1], self.num_heads, -1).swapaxes(-2, -3)
        q, k, v = (split(f(x)) for f in (self.q_proj, self.k_proj, self.v_proj))
        z = softmax(np.asarray(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5)) @ v
        return self.out_proj(z.swapaxes(-2, -3).reshape(x.shape))
""",
        "right  SimpleMultiHeadAttention",
    ),
    "a list of heads": (
        """
class Head:
    def __init__(self, seed):
        draw = np.random.default_rng(seed).normal
        self.q, self.k, self.v = (draw(size=(8, 4)) for _ in range(3))
    def __call__(self, x):
        return softmax((x @ self.q) @ (x @ self.k).swapaxes(-1, -2) / 2) @ (x @ self.v)
class SimpleMultiHeadAttention:
    def __init__(self, d_model, num_heads):
        self.heads = [Head(n) for n in range(num_heads)]
        self.W_o = np.random.default_rng(9).normal(size=(8, d_model))
    def __call__(self, x):
        return np.concatenate([head(x) for head in self.heads], axis=-1) @ self.W_o
""",
        "right  SimpleMultiHeadAttention",
    ),
    "a matrix for each head": (
        """
class SimpleMultiHeadAttention:
    def __init__(self, d_model, num_heads):
        rng = np.random.default_rng(0)
        self.num_heads, size = num_heads, d_model // num_heads
        self.W_q, self.W_k, self.W_v = rng.normal(size=(3, num_heads, d_model, size))
        self.W_o = rng.normal(size=(d_model, d_model))
    def __call__(self, x):
        q, k, v = x @ self.W_q, x @ self.W_k, x @ self.W_v
        heads = softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5) @ v
        return np.concatenate(list(heads), -1) @ self.W_o
""",
        "expected those of all heads in one",
    ),
    "other arguments": (
        "class SingleHeadAttention:\n    def __init__(self, settings): pass\n",
        "its constructor wants settings",
    ),
    "no matrices": (
        "class SingleHeadAttention:\n    def __call__(self, x): return x\n",
        "no matrix of query, key, value found",
    ),
    "a recurrent net": (
        """
def vanilla_rnn(inputs, w_inputs, w_hidden, bias, start=None):
    h, rows = np.zeros(len(bias)) if start is None else start, []
    for x in inputs:
        h = np.tanh(x @ w_inputs + w_hidden @ h + bias)
        rows.append(h)
    return np.stack(rows)
""",
        "wrong  vanilla_rnn: W_h is transposed",
    ),
}
_SOFTMAX = """import numpy as np
def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
"""


@pytest.mark.parametrize("kind", CLASSES)
def test_somebodys_own_class(kind, tmp_path):
    code, told = CLASSES[kind]
    path = tmp_path / "mine.py"
    path.write_text(_SOFTMAX + code)
    (line,) = solution.as_lines(solution.check_solution(path))
    assert told in line


@pytest.mark.oracle
def test_a_class_of_pytorch_is_read(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("""
import torch
from torch import nn
class SingleHeadAttention(nn.Module):
    def __init__(self, d_model, d_k):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(d_model, d_k) for _ in range(3))
    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
class SimpleMultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        size = d_model // num_heads
        self.heads = nn.ModuleList([SingleHeadAttention(d_model, size) for _ in range(num_heads)])
        self.proj = nn.Linear(d_model, d_model)
    def forward(self, x):
        return self.proj(torch.cat([head(x) for head in self.heads], -1))
""")
    lines = solution.as_lines(solution.check_solution(path))
    assert [line.split()[0] for line in lines] == ["right", "right"]


def test_the_loops_of_a_recurrent_net_are_flaxs(rng):
    import flax.linen as nn
    import jax

    inputs = rng.normal(size=(5, 4)).astype(np.float32)
    cell = nn.SimpleCell(features=3, bias_init=nn.initializers.normal(1))
    params = cell.init(jax.random.key(0), np.zeros((3,)), inputs[0])
    hidden, rows = np.zeros(3, np.float32), []
    for x in inputs:
        hidden, out = cell.apply(params, hidden, x)
        rows.append(out)
    own = params["params"]
    loops = exercises.vanilla_rnn(
        inputs, *(np.asarray(a) for a in (own["i"]["kernel"], own["h"]["kernel"], own["i"]["bias"]))
    )
    np.testing.assert_allclose(np.stack(rows), loops, atol=1e-5)


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
        "expected a class SingleHeadAttention",
        "num_heads",
    )
    path.write_text("x = ")
    refused(attempt("course.__main__", f"--solution={path}"), "SyntaxError")


@pytest.mark.oracle
def test_words_of_a_real_encoder_are_contextual():
    """MiniLM's vectors of a word move apart with the layers, and least of all in like senses."""
    from experiments.course.contextual import INSTALLED, WORDS, similarities

    if not INSTALLED.exists():
        pytest.skip("needs all-MiniLM-L6-v2's weights: make minilm")
    rows = similarities(INSTALLED)
    assert len(rows) == 3 + 1
    for word, _, by_layer in rows:
        assert word in WORDS
        assert len(by_layer) == 7
        assert by_layer[0] > 0.9 > by_layer[-1]
    assert outcomes.run_check(checks.words_are_contextual_in_real_weights).holds


@pytest.mark.oracle
def test_real_weights_are_looked_at():
    from experiments.course import real_models

    if not (real_models.ENCODER.exists() and real_models.DECODER.exists()):
        pytest.skip("needs weights: make minilm smollm2")
    listening, near, vectors, following = real_models.tables()
    assert [len(t.rows) for t in (listening, near, vectors, following)] == [3, 4, 3, 3]
    assert all(
        row[2].count(";") == 5 and row[-1].split(":")[0] in ("yes", "hardly")
        for row in listening.rows
    )
    assert "dog" in near.rows[0][1]
    assert [row[0] for row in vectors.rows] == ["how", "are", "you"]
    for text, likeliest, agrees in following.rows:
        assert likeliest.count("0.") == 5
        assert (": " in agrees) == (text in real_models.PLURAL)


def test_the_page_for_the_site_has_statements_and_tables():
    (statement,) = [row for row in STATEMENTS if row.number == 24]
    tables = page.Part("Errata", [("a caption", ["one", "two"], [["1", "2"]])], "what it is")
    text = page.as_site_page(
        [outcomes.outcome_of(statement)], [tables, page.Part("Pictures", pictures="x")]
    )
    assert "## 24. Sinusoids carry relative distance: " in text
    assert "## Errata\n\nwhat it is\n\na caption\n\n| one | two |" in text
    assert "Pictures" not in text
