"""Checks a student's own attention, and names the mistake if it is a common one.

A solution is right if it agrees with the loops below. If it does not, it is compared with
implementations of common mistakes, and the one that gives the same numbers is named.
"""

import importlib.util
import inspect
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.errors import InvalidInput, in_one_line

_CLOSE = 1e-4  # relative to the largest value; float32 solutions are within 1e-6


class Finding(NamedTuple):
    """Result of checking one function of a solution."""

    name: str
    right: bool
    message: str


def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray | None = None
) -> np.ndarray:
    """Returns one head's attention, softmax(Q K^T / sqrt(d_k)) V (Vaswani et al. 2017, equation 1).

    Shapes: [L, K], [M, K], [M, V] and mask [L, M] -> [L, V]. True in the mask means may attend.
    """
    output = np.zeros((len(query), value.shape[1]))
    for i in range(len(query)):
        allowed = [j for j in range(len(key)) if mask is None or mask[i, j]]
        score = {}
        for j in allowed:
            product = sum(query[i, k] * key[j, k] for k in range(query.shape[1]))
            score[j] = product / math.sqrt(query.shape[1])
        largest = max(score.values())  # so that no exponential overflows
        exponential = {j: math.exp(score[j] - largest) for j in allowed}
        total = sum(exponential.values())
        for j in allowed:
            weight = exponential[j] / total
            for v in range(value.shape[1]):
                output[i, v] += weight * value[j, v]
    return output


def multi_head_attention(
    inputs: np.ndarray,
    w_query: np.ndarray,
    w_key: np.ndarray,
    w_value: np.ndarray,
    w_out: np.ndarray,
    num_heads: int,
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """Returns multi-head self-attention, Concat(Z^1 ... Z^H) W_O.

    Head h owns columns h K to (h + 1) K of the three projections [D, H * K], and the rows of W_O,
    [H * K, D], with the same indices (Vaswani et al. 2017, section 3.2.2). [L, D] -> [L, D].
    """
    size = w_query.shape[1] // num_heads
    output = np.zeros((len(inputs), w_out.shape[1]))
    for head in range(num_heads):
        own = slice(head * size, (head + 1) * size)
        query, key = inputs @ w_query[:, own], inputs @ w_key[:, own]
        z = attention(query, key, inputs @ w_value[:, own], mask)
        output += z @ w_out[own]  # the sum over heads is the product with the concatenation
    return output


LOOPS = {"attention": attention, "multi_head_attention": multi_head_attention}


def _softmax(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        exponentials = np.exp(scores - scores.max(axis, keepdims=True))
        return exponentials / exponentials.sum(axis, keepdims=True)


def _attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray | None = None,
    *,
    divisor: Callable[[int], float] = math.sqrt,
    axis: int = -1,
    order: str = "before",
) -> np.ndarray:
    """Returns attention with the mistake that a keyword argument selects; correct by default."""
    scores = query @ np.swapaxes(key, -1, -2) / divisor(query.shape[-1])
    if mask is not None:
        if order == "before":
            scores = np.where(mask, scores, -np.inf)
        elif order == "inverted":
            scores = np.where(mask, -np.inf, scores)
        elif order == "times":
            scores = scores * mask
        elif order == "added":
            scores = scores + mask
    weights = np.nan_to_num(_softmax(scores, axis))
    if mask is not None and order == "after":
        weights = weights * mask
    return weights @ value


_ONE_HEAD: dict[str, dict[str, Any]] = {
    "the scale is missing: divide the scores by sqrt(d_k) before the softmax": {
        "divisor": lambda size: 1.0
    },
    "the scores are divided by d_k, not by its root": {"divisor": float},
    "the softmax runs over the queries: rows over the keys (the last axis) have to sum to 1": {
        "axis": -2
    },
    "the mask is applied after the softmax: rows no longer sum to 1; set forbidden scores to -inf "
    "before it": {"order": "after"},
    "forbidden scores become 0 (multiplied by the mask, or a tiny number in place of -inf), which "
    "still gets weight exp(0); set them to -inf": {"order": "times"},
    "the mask is added to the scores as 0 and 1: a forbidden score has to become -inf": {
        "order": "added"
    },
    "the mask is the wrong way round: True means may attend": {"order": "inverted"},
    "the mask is not used": {"order": "ignored"},
}
_SPLITS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "heads are split wrongly: reshaping [L, H * K] directly to [H, L, K] mixes positions; "
    "reshape to [L, H, K], then swap the first two axes": lambda flat, heads: flat.reshape(
        heads, len(flat), -1
    ),
    "heads are split wrongly: a head took every H-th feature; head h owns features h K to "
    "(h + 1) K": lambda flat, heads: np.moveaxis(flat.reshape(len(flat), -1, heads), -1, 0),
}
_JOINS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "heads are joined wrongly: [H, L, K] was reshaped to [L, H * K] directly; first swap the first "
    "two axes": lambda z: z.reshape(z.shape[1], -1),
    "heads are averaged instead of concatenated": lambda z: np.tile(z.mean(0), (1, len(z))),
}


def _split(flat: np.ndarray, heads: int) -> np.ndarray:
    return np.swapaxes(flat.reshape(len(flat), heads, -1), 0, 1)


def _join(z: np.ndarray) -> np.ndarray:
    return np.swapaxes(z, 0, 1).reshape(z.shape[1], -1)


def _many_heads(
    inputs: np.ndarray,
    w_query: np.ndarray,
    w_key: np.ndarray,
    w_value: np.ndarray,
    w_out: np.ndarray,
    num_heads: int,
    mask: np.ndarray | None = None,
    *,
    split: Callable = _split,
    join: Callable = _join,
    projected: bool = True,
    whole_scale: bool = False,
    **otherwise: Any,
) -> np.ndarray:
    heads = (split(inputs @ w, num_heads) for w in (w_query, w_key, w_value))
    if whole_scale:
        otherwise["divisor"] = lambda size: math.sqrt(size * num_heads)
    joined = join(_attention(*heads, mask, **otherwise))
    return joined @ w_out if projected else joined


# A solution with each mistake, by function and then message.
MISTAKES: dict[str, dict[str, Callable]] = {
    "attention": {
        mistake: (lambda *a, _o=otherwise: _attention(*a, **_o))
        for mistake, otherwise in _ONE_HEAD.items()
    },
    "multi_head_attention": {
        **{
            mistake: (lambda *a, _s=split: _many_heads(*a, split=_s))
            for mistake, split in _SPLITS.items()
        },
        **{
            mistake: (lambda *a, _j=join: _many_heads(*a, join=_j))
            for mistake, join in _JOINS.items()
        },
        "the output matrix is missing: the concatenated heads have to be multiplied by W_O": (
            lambda *a: _many_heads(*a, projected=False)
        ),
        "the scale is that of all heads together: d_k is that of one head, K": (
            lambda *a: _many_heads(*a, whole_scale=True)
        ),
        "there is only one head: scores are products over all features": (
            lambda x, q, k, v, o, heads, *m: _many_heads(x, q, k, v, o, 1, *m)
        ),
        **{
            mistake: (lambda *a, _o=otherwise: _many_heads(*a, **_o))
            for mistake, otherwise in _ONE_HEAD.items()
        },
    },
}


class Case(NamedTuple):
    """Arguments of one call, and their special feature: "" (none), "mask" or "large scores"."""

    arguments: tuple
    kind: str = ""


def _cases() -> dict[str, list[Case]]:
    """Returns test cases by function: random arguments, also with a mask or with large scores."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape)  # noqa: E731
    mask = np.tril(np.ones((5, 5), bool))
    one = [
        Case((draw(5, 4), draw(7, 4), draw(7, 3))),
        Case((draw(5, 4), draw(5, 4), draw(5, 4), mask), "mask"),
        Case((3000 * draw(5, 4), draw(5, 4), draw(5, 4)), "large scores"),
    ]
    weights = (*(draw(8, 6) for _ in range(3)), draw(6, 8))
    many = [
        Case((draw(5, 8), *weights, 3)),
        Case((draw(5, 8), *weights, 3, mask), "mask"),
        Case((1000 * draw(5, 8), *weights, 3), "large scores"),
    ]
    return {"attention": one, "multi_head_attention": many}


def check_solution(path: str | Path) -> list[Finding]:
    """Returns findings on the functions `attention` and `multi_head_attention` in a file.

    Args:
      path: Path of the user's own Python file, which is executed.
    Raises:
      InvalidInput: There is no such file, it cannot be imported, or it has neither function.
    """
    module = _load(Path(path))
    findings = []
    for name, cases in _cases().items():
        function = getattr(module, name, None)
        if function is not None:
            findings.append(_check(name, function, cases))
    if not findings:
        signatures = [f"{name}{inspect.signature(loop)}" for name, loop in LOOPS.items()]
        raise InvalidInput(
            f"--solution={path}: expected a function\n  "
            + "\n  ".join(signature.replace("numpy.ndarray", "array") for signature in signatures)
        )
    return findings


def _load(path: Path) -> Any:
    if not path.is_file():
        raise InvalidInput(f"--solution={path}: no such file")
    spec = importlib.util.spec_from_file_location("solution_of_a_student", path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"--solution={path}: expected a Python file, NAME.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"--solution={path}: {in_one_line(error)}") from error
    return module


def _check(name: str, function: Callable, cases: list[Case]) -> Finding:
    """Returns the finding on a function; mistakes are identified from calls with finite results."""
    want = [LOOPS[name](*case.arguments) for case in cases]
    got: list[np.ndarray] = []
    for case, right in zip(cases, want, strict=True):
        result, problem = _called(function, case.arguments)
        if problem:
            return Finding(name, False, problem)
        got.append(result)
        if result.shape != right.shape:
            mistake = _named(name, cases[: len(got)], got) or "the shape is wrong"
            return Finding(name, False, f"{mistake} (expected {right.shape}, got {result.shape})")
    finite = [i for i, result in enumerate(got) if np.isfinite(result).all()]
    lost = {case.kind for i, case in enumerate(cases) if i not in finite}
    mistake = [_NOT_FINITE[kind] for kind in _NOT_FINITE if kind in lost][:1]
    if not all(_same(want[i], got[i]) for i in finite):
        scored = [(cases[i], got[i]) for i in finite]
        named = _named(name, [case for case, _ in scored], [result for _, result in scored])
        worst = max(float(np.abs(want[i] - got[i]).max()) for i in finite)
        mistake.insert(0, named or f"the numbers differ by up to {worst:.3g}")
    if mistake:
        return Finding(name, False, "; and ".join(mistake))
    return Finding(name, True, f"agrees with the loops in {len(cases)} calls")


_NOT_FINITE = {
    "": "it gives NaN or infinity",
    "mask": "with a mask it gives NaN: 0 * (-inf) is NaN, so choose between score and -inf "
    "(np.where) instead of multiplying",
    "large scores": "large scores overflow: subtract each row's largest score before the "
    "exponential",
}


def _called(function: Callable, arguments: tuple) -> tuple[np.ndarray, str]:
    """Returns the result of a call and "", or an empty array and a description of the problem."""
    copies = [np.copy(a) if isinstance(a, np.ndarray) else a for a in arguments]
    nothing = np.zeros(0)
    try:
        result = function(*arguments)
    except (Exception, SystemExit) as error:
        return nothing, f"it raised {in_one_line(error)}"
    for before, after in zip(copies, arguments, strict=True):
        if isinstance(before, np.ndarray) and not np.array_equal(before, after):
            return nothing, "it changes its arguments in place"
    try:
        return np.asarray(result, float), ""
    except (TypeError, ValueError):
        return nothing, f"it returned a {type(result).__name__}: expected one array"


def _named(name: str, cases: list[Case], got: list[np.ndarray]) -> str:
    """Returns the message for the mistake that reproduces every result, or "" if none does."""
    for message, mistake in MISTAKES[name].items():
        pairs = zip(cases, got, strict=True)
        if all(_same(_quietly(mistake, case.arguments), result) for case, result in pairs):
            return message
    return ""


def _quietly(mistake: Callable, case: tuple) -> np.ndarray:
    try:
        with np.errstate(all="ignore"):
            return np.asarray(mistake(*case), float)
    except ValueError:  # these shapes do not allow the mistake
        return np.zeros(0)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape or not np.isfinite(other).all():
        return False
    return float(np.abs(one - other).max()) <= _CLOSE * max(1.0, float(np.abs(one).max()))


def as_lines(findings: list[Finding]) -> list[str]:
    """Returns findings as lines of text."""
    return [f"{'right' if f.right else 'wrong':<6} {f.name}: {f.message}" for f in findings]
