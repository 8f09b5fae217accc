"""Statements from courses about transformers, with the checks and studies that decide them.

An exact statement has a check (checks.py). A statistical one has claims: verdicts that committed
studies would have to reach if the statement held. Every outcome is computed.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from experiments.course import checks
from experiments.results import design_of
from transformer_jax.studies.outcomes import Word

HELD, PARTLY, NOT, OPEN = "held", "held in part", "did not hold here", "undecided"
_MEETS: dict[str, tuple] = {"better": (Word.BETTER,), "worse": (Word.WORSE,)}
_MEETS |= {"same": (Word.SAME,), "different": (Word.BETTER, Word.WORSE)}


class Claim(NamedTuple):
    """The verdict (better, worse, same or different) that a study would have to reach on an arm."""

    study: str
    arm: str
    wants: str


class Statement(NamedTuple):
    """A statement with its number in the lectures, its check or claims, and a note on limits."""

    number: int
    says: str
    check: Callable[[], str] | None = None
    claims: tuple[Claim, ...] = ()
    note: str = ""


class Outcome(NamedTuple):
    """Decision on a statement: a word such as HELD, and a sentence for each observation."""

    word: str
    seen: tuple[str, ...]


STATEMENTS = (
    Statement(
        1,
        "Attention weights are a distribution: rows sum to 1, masked entries are 0.",
        checks.weights_are_a_distribution,
    ),
    Statement(
        3,
        "Without positions attention is permutation-equivariant; a decoder that has them does "
        "better.",
        checks.an_encoder_is_equivariant,
        (Claim("positions", "none", "worse"), Claim("reverse", "none", "worse")),
        "at the length that was trained on",
    ),
    Statement(
        5,
        "Learned and sinusoidal positions do about as well at equal amplitude.",
        claims=(Claim("positions", "sinusoidal", "same"),),
    ),
    Statement(
        6, "Several heads beat one at equal width.", claims=(Claim("heads", "1 heads", "worse"),)
    ),
    Statement(
        7,
        "More blocks, better representations.",
        claims=(Claim("depth", "depth 1", "worse"), Claim("depth", "depth 8", "better")),
        note="at equal parameters",
    ),
    Statement(
        8,
        "Residual connections make deep stacks trainable.",
        claims=(Claim("residuals", "no residual", "worse"),),
        note="eight blocks, from normal initial values",
    ),
    Statement(
        9,
        "With layer norm the loss is lower; where it stands matters.",
        claims=(
            Claim("residuals", "no norm", "worse"),
            Claim("post_norm", "pre at 0.0043", "different"),
        ),
    ),
    Statement(
        11,
        "The causal mask lets all positions train in parallel with the result of one at a time.",
        checks.masked_and_one_at_a_time_agree,
    ),
    Statement(
        13,
        "Recurrent nets need more updates than a transformer to find agreement at a distance.",
        claims=(
            Claim("agreement_far", "LSTM at 0.001", "worse"),
            Claim("agreement_far", "GRU at 0.001", "worse"),
            Claim("agreement_far", "tanh at 0.0003", "worse"),
        ),
        note="one run chose each rate",
    ),
    Statement(
        14,
        "A class token and average pooling do equally well in ViT.",
        claims=(Claim("class_token", "class_token", "same"),),
        note="on 450 test images of digits",
    ),
    Statement(
        16,
        "One output matrix over concatenated heads equals the sum of the heads' own.",
        checks.heads_add_up,
    ),
    Statement(
        20, "Looking up an embedding equals a one-hot product.", checks.a_lookup_is_a_product
    ),
    Statement(
        23,
        "Layer norm gives mean 0 and deviation 1; the feed-forward layer acts on each position "
        "alone; masking after the softmax breaks normalisation.",
        checks.norms_and_feed_forward,
    ),
    Statement(
        24,
        "Sinusoids carry relative distance: shifting their table is a rotation of it.",
        checks.sinusoids_shift_by_a_rotation,
    ),
    Statement(
        25,
        "Leaving the scale out equals W_q times sqrt(d_k) at the start.",
        checks.no_scale_is_larger_queries,
    ),
    Statement(
        26,
        "Without positions the last output of one causal layer ignores the order of the earlier "
        "tokens; of two layers it does not.",
        checks.one_causal_layer_is_order_blind_at_its_end,
    ),
    Statement(
        31,
        "A transformer predicts text better than recurrent nets of as many parameters.",
        claims=tuple(Claim("text_models", arm, "worse") for arm in ("LSTM", "GRU", "tanh")),
        note="after 2,000 updates, in windows of 64 characters",
    ),
    Statement(
        33,
        "Byte pairs beat characters, up to thousands of them.",
        claims=tuple(Claim("vocabulary", f"{n} byte pairs", "better") for n in (1024, 4096)),
        note="after as many bytes of one small text at as many operations",
    ),
)


@functools.cache
def run_check(check: Callable[[], str]) -> tuple[bool, str]:
    """Returns whether a check holds, and its observation or failure; each check runs once."""
    try:
        return True, check()
    except AssertionError as error:
        return False, f"failed: {(str(error) or str(check.__doc__)).splitlines()[0]}"


def outcome_of(statement: Statement) -> Outcome:
    """Returns the decision on a statement."""
    right: list[bool | None] = []
    seen: list[str] = []
    if statement.check is not None:
        holds, message = run_check(statement.check)
        if not holds:
            return Outcome(NOT, (message,))
        right.append(True)
        seen.append(message)
    for claim in statement.claims:
        design = design_of(claim.study)
        verdict = design["verdicts"][claim.arm]
        seen.append(f"{claim.study}, {claim.arm}: {verdict['words'].removesuffix(Word.UNTUNED)}")
        is_word = verdict["verdict"] in (Word.BETTER, Word.WORSE, Word.SAME)
        if verdict["verdict"] == Word.SAME and _lead(design) < design["margin"]:
            is_word = False
            seen.append("which decides nothing: a simple method is within that margin too")
        right.append(verdict["verdict"] in _MEETS[claim.wants] if is_word else None)
    if all(right):
        return Outcome(HELD, tuple(seen))
    if any(right):
        return Outcome(PARTLY, tuple(seen))
    return Outcome(OPEN if None in right else NOT, tuple(seen))


def _lead(design: Mapping[str, Any]) -> float:
    """Returns the lead of a study's base over its gate, or infinity if it has no gate."""
    learned = design["learned"]
    return abs(learned["base"] - learned["score"]) if learned else math.inf
