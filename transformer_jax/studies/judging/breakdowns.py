"""Scores that a task takes apart by a number: distance of an answer, length of a source."""

from typing import NamedTuple

from transformer_jax.studies.asking.study import Study


class Breakdown(NamedTuple):
    """What one is called in reports.

    Attributes:
      title: of its chart.
      number: what the scores are taken apart by.
      score: what they are.
      says: the sentence in front of its table.
    """

    title: str
    number: str
    score: str
    says: str


# By the name in a task's `GenerationScores.parts`, evaluation.json and verdicts.json.
BREAKDOWNS = {
    "by_distance": Breakdown(
        "accuracy by distance",
        "tokens back to the answer",
        "test accuracy",
        "Right answers by how many tokens back what decides them stood (a model's own answers are "
        "fed back, where there are several):",
    ),
    "by_words": Breakdown(
        "BLEU by length",
        "words of the source, up to",
        "test BLEU",
        "BLEU by how many words the source has, up to so many:",
    ),
}

ByNumber = dict[str, list[float]]


def taken_apart(study: Study) -> dict[str, dict[str, ByNumber]]:
    """Name of a breakdown -> arm -> number -> score of each seed; only what there is."""
    return {
        name: {arm: scores for arm in study.arms if (scores := _of_arm(study, arm, name))}
        for name in BREAKDOWNS
    }


def _of_arm(study: Study, arm: str, name: str) -> ByNumber:
    by_number: ByNumber = {}
    for seed in study.seeds_of(arm):
        for number, score in study.cell(arm, seed).means().get(name, {}).items():
            by_number.setdefault(number, []).append(score)
    return by_number
