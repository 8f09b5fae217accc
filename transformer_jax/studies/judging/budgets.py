"""From which budget on a verdict holds: shorter ones are looked at only while the longer hold.

In a sequence that is fixed beforehand each test may have the whole level, since after the first
that fails no other counts (Maurer, Hothorn and Lehmacher 1995; Westfall and Krishen 2001, J.
Statistical Planning and Inference 99, 25-40). What a budget says is the word of the whole run.
"""

from collections.abc import Mapping
from typing import Any

from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.inference.tuned import NO_REGRETS, Regrets
from transformer_jax.studies.inference.words import (
    BETTER,
    CANNOT_TELL,
    NOT_TESTED,
    SAME,
    UNTUNED,
    WORSE,
)
from transformer_jax.studies.judging.adequacy import cannot_tell
from transformer_jax.studies.judging.decision import Evidence, decide

_GO_ON = (BETTER, WORSE, SAME)  # words that can hold at a shorter budget


def over_budgets(
    by_arm: Mapping[str, dict[str, Any]],
    budgets: Mapping[str, Mapping[str, Any]],
    sealed: Mapping[str, Any],
    baselines: Mapping[str, Any] | None,
) -> None:
    """Adds to each arm what its shorter budgets say, and to its words from where on they hold.

    Args:
      by_arm: what is said of each arm after all its updates; changed: `budgets`, `holds_from`.
      budgets: share -> `updates`, `outcomes`, `refusals` and `learned` there, the longest first.
      sealed: what was asked.
      baselines: what study.json says of simple methods; None of older studies.
    """
    holds = {name: [arm["verdict"] in _GO_ON] for name, arm in by_arm.items()}
    for share, its in budgets.items():
        outcomes = {
            name: {int(seed): Outcome(*fields) for seed, fields in by_seed.items()}
            for name, by_seed in its["outcomes"].items()
        }
        base = outcomes[sealed["base"]]
        evidence = {
            name: Evidence(
                {seed: base[seed] for seed in outcomes[name] if seed in base},
                outcomes[name],
                arm["level"],
                regrets=Regrets.of(arm["regrets"]) if "regrets" in arm else NO_REGRETS,
                family=arm.get("family", 0),
            )
            for name, arm in by_arm.items()
        }
        decision = decide(sealed, evidence, its["refusals"])
        cannot_tell(decision, outcomes, sealed, its["learned"], baselines)
        for name, arm in by_arm.items():
            there = decision[name]
            fields = {key: there.get(key) for key in ("mean", "interval", "verdict")}
            fields["words"] = there["words"].removesuffix(UNTUNED)
            if not holds[name][-1]:
                fields |= {"verdict": NOT_TESTED, "words": NOT_TESTED}
            arm.setdefault("budgets", {})[share] = fields
            holds[name].append(fields["verdict"] == arm["verdict"])
    for name, arm in by_arm.items() if budgets else ():
        if holds[name][0]:
            shares = [share for share, held in zip(budgets, holds[name][1:], strict=True) if held]
            arm["holds_from"] = float(shares[-1]) if shares else 1.0
            arm["words"] = _with_domain(arm, shares, budgets)


def _with_domain(
    arm: Mapping[str, Any], shares: list[str], budgets: Mapping[str, Mapping[str, Any]]
) -> str:
    """The words, and from how many of the arm's updates on they hold."""
    words, untuned = arm["words"].removesuffix(UNTUNED), arm["words"].endswith(UNTUNED) * UNTUNED
    if shares:
        updates = budgets[shares[-1]]["updates"][arm["arm"]]
        return f"{words}; {arm['verdict']} from {updates:,} updates on{untuned}"
    share = next(iter(budgets))
    updates, there = budgets[share]["updates"][arm["arm"]], arm["budgets"][share]["words"]
    why = there if there.startswith(CANNOT_TELL) else "not shown"
    return f"{words}; at {updates:,} updates {why}{untuned}"
