"""What a declared trend says: one contrast over all arms, beside those with the base."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from transformer_jax.runs.files import as_plain
from transformer_jax.studies.asking.trend import weights_of
from transformer_jax.studies.inference import statistics
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.inference.tuned import Regret, Regrets
from transformer_jax.studies.inference.words import CANNOT_TELL, IDENTICAL, NO_VERDICT, REFUSED
from transformer_jax.studies.judging.adequacy import at_an_end, best_and_guess
from transformer_jax.studies.judging.decision import family_of, untuned

_DUST = 1e-9  # what rounding leaves of a weight of 0
_KEPT = ("seeds", "differences", "mean", "interval", "p", "p_alone", "verdict", "words")


def trend_of(
    sealed: Mapping[str, Any],
    outcomes: Mapping[str, Mapping[int, Outcome]],
    refusals: Mapping[str, Sequence[str]],
    level: float,
    regrets: Mapping[str, Sequence[Regret]],
    learned: Mapping[str, Any] | None,
    baselines: Mapping[str, Any] | None,
    as_sealed: Collection[str],
) -> dict[str, Any] | None:
    """Returns what is said of the trend; None where none was declared.

    Seed by seed a line is laid through the scores of all arms over the option's logarithm; what it
    gains from the smallest value to the largest is one difference, judged like those of arms. Seeds
    that some arm lacks do not count.

    Args:
      sealed: what was asked.
      outcomes: arm -> seed -> outcome.
      refusals: arm -> why it gets no verdict.
      level: of this look.
      regrets: arm -> of what it chose by a parabola, see trials.regret_of.
      learned: of whether_learned; None: there is no gate.
      baselines: what study.json says of simple methods.
      as_sealed: arms beside the base that are what was sealed.
    """
    key = sealed.get("trend")
    if not key:
        return None
    weights = weights_of(key, sealed)
    refused = [f"{arm}: {reasons[0]}" for arm, reasons in refusals.items() if reasons]
    if not weights.keys() <= {sealed["base"], *as_sealed} & outcomes.keys():
        refused.append("arms changed after the first cell")
    if refused:
        return _said(key, REFUSED, f"refused: {refused[0]}")
    seeds = set.intersection(*(set(outcomes[arm]) for arm in weights))
    values = {
        seed: {arm: v for arm in weights if (v := outcomes[arm][seed].value) is not None}
        for seed in sorted(seeds)
    }
    lost = sum(len(its) < len(weights) for its in values.values())
    if lost:  # a line through those that are left would be another question
        words = f"no verdict: in {lost} of {len(values)} seeds an arm diverged"
        return _said(key, NO_VERDICT, words)
    flat, leant = {}, {}  # the same mean, and with what the line gains
    for seed, its in values.items():
        mean = sum(its.values()) / len(its)
        gain = sum(weight * its[arm] for arm, weight in weights.items())
        gain = gain if max(its.values()) > min(its.values()) else 0.0  # no dust of rounding
        flat[seed], leant[seed] = Outcome(mean), Outcome(mean + gain)
    of_sign: dict[bool, tuple[Regret, ...]] = {
        is_added: tuple(
            its.times(abs(weight))
            for arm, weight in weights.items()
            if abs(weight) > _DUST and (weight > 0) == is_added
            for its in regrets.get(arm, ())
        )
        for is_added in (False, True)
    }
    (contrast,) = statistics.compare(
        flat, {key: leant}, sealed["margin"], sealed["larger_is_better"], level,
        family_of(sealed, [arm for arm in outcomes if arm != sealed["base"]]),
        regrets=Regrets(of_sign[False], of_sign[True]),
    )  # fmt: skip
    trend = as_plain(contrast)
    trend["words"] += "" if sealed["tuning"] else untuned(trend["verdict"])
    if contrast.verdict == IDENTICAL:
        trend["words"] = "identical: the same score in all arms"
    why_not = _nothing_to_see(sealed, values, learned, baselines)
    if why_not:
        trend |= {"verdict": CANNOT_TELL, "words": f"{CANNOT_TELL}: {why_not}"}
    return {"key": key, **{name: trend[name] for name in _KEPT}}


def _said(key: str, verdict: str, words: str) -> dict[str, Any]:
    return {"key": key, "verdict": verdict, "words": words}


def _nothing_to_see(
    sealed: Mapping[str, Any],
    values: Mapping[int, Mapping[str, float]],
    learned: Mapping[str, Any] | None,
    baselines: Mapping[str, Any] | None,
) -> str:
    """Why scores of all arms say nothing about models; empty where they do."""
    if learned is not None and not learned["passed"]:
        return "the base has not learned"
    if baselines is None:
        return ""
    rest = best_and_guess(baselines["scores"], sealed["metric"].removeprefix("test/"))
    of_arm = {arm: [its[arm] for its in values.values()] for arm in sealed["arms"]}
    ends = [
        at_an_end(of_arm[sealed["base"]], its, *rest, sealed["margin"], sealed["larger_is_better"])
        for its in of_arm.values()
    ]
    return "all arms are at one end of the metric" if all(ends) else ""
