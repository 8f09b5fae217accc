"""What a study is about to do, as text: its cells, its costs, what its base has to beat."""

from collections.abc import Mapping
from typing import Any

from transformer_jax.config_files import flatten
from transformer_jax.resolve import unread
from transformer_jax.studies.asking.cells import OUTCOMES
from transformer_jax.studies.asking.gate import METHODS
from transformer_jax.studies.inference.power import detectable
from transformer_jax.studies.judging.decision import family_of, level_of_contrast
from transformer_jax.studies.reporting.tables import (
    BASELINE_HEADS,
    baseline_rows,
    clock,
    direction,
    signed,
    spell,
    spell_changes,
    table_text,
)


def seconds_to_come(launch: Any) -> dict[str, float]:
    """Returns what is left of a planned study, in seconds: its cells and its tuning."""
    design, seconds_of = launch.design, launch.estimate.seconds_of
    seconds = {"cells": sum(seconds_of(cell.arm) for cell in _missing(launch))}
    if design.tuning:
        before = launch.study.record.get("arms", {})
        untuned = [name for name in launch.arms if "tuning" not in before.get(name, {})]
        seconds["tuning"] = sum(map(seconds_of, untuned)) * design.tuning.runs_of_an_arm
    return seconds


def _missing(launch: Any) -> list[Any]:
    return [cell for cell, state in launch.states.items() if state not in OUTCOMES]


def show_plan(launch: Any) -> None:
    """Prints what a study will do, and whether each arm's change took.

    Args:
      launch: of the study, when its arms are prepared; see running.launch.Launch.
    """
    design, arms, seeds, states = launch.design, launch.arms, launch.seeds, launch.states
    estimate, say, missing = launch.estimate, launch.progress.say, len(_missing(launch))
    seconds = seconds_to_come(launch)
    lines = [
        f"question    {design.question}",
        f"prediction  {design.prediction}",
        f"judged by   test/{design.metric}, {direction(design.larger_is_better)}; "
        f"margin {design.margin:g}: {design.margin_reason}",
        f"cells       {len(arms)} arms x {len(seeds)} seeds, {len(states) - missing} there "
        f"already, {missing} to run in about {clock(seconds['cells'])} ("
        + f"{estimate.members} at a time; " * (estimate.members > 1)
        + f"{estimate.told or 'nothing was timed'})",
    ]
    if design.tuning:
        lines.append(
            f"tuning      {design.tuning.told()}: for each arm as much as "
            f"{design.tuning.runs_of_an_arm} of its runs, "
            f"in all about {clock(seconds['tuning'])}"
        )
    if design.exploratory:
        lines.append("exploratory: made on the command line, so its verdicts are leads to confirm")
    say("\n".join(lines))
    heads = ["arm", "params", "FLOPs/token", "there", "paired"]
    heads += ["Δ logits", "Δ loss", "Δ grad", "input RMS"]
    rows = []
    for name, arm in arms.items():
        its = launch.certificates[name]
        its = its if isinstance(its, Mapping) else its._asdict()
        done = sum(state in OUTCOMES for cell, state in states.items() if cell.arm == name)
        is_base = name == design.base
        differences = ["base", "", ""] if is_base else [
            f"{spell(its['logits'], 3)}",
            signed(its["loss"], 4),
            spell(its["gradient"], 3),
        ]  # fmt: skip
        rows.append(
            [
                name,
                spell(arm.cost.parameters),
                f"{arm.cost.flops:.3g}",
                f"{done}/{len(seeds)}",
                f"{its['paired']:.0%}",
                *differences,
                spell(its["input_rms"], 3),
            ]
        )
    say(table_text(heads, rows))
    for name, arm in arms.items():
        if arm.changes:
            say(f"  {name}: {spell_changes(arm.changes)}")
    read_by_base = unread(flatten(arms[design.base].config))
    for name, arm in arms.items():
        for key, choice in unread(flatten(arm.config)).items():
            if key not in read_by_base:
                say(f"  {name} does not read {key}, which the config states: {choice}")
    say(baselines_as_text(launch.baselines))
    say(resolution(design, len(seeds)))


def baselines_as_text(baselines: Mapping[str, Any]) -> str:
    """What simple methods reach, for a terminal, and what the base has to beat."""
    gate = baselines["gate"]
    line = "gate       none: no simple method is known for such a task, or the study has a target"
    if gate is not None:
        line = (
            f"gate       the base has to be better than {METHODS[gate['method']]}: "
            f"test/{gate['metric']} {gate['score']:.4f} ({gate['reason']}); else no verdict"
        )
    table = (
        table_text(BASELINE_HEADS, baseline_rows(baselines)) + "\n" if baselines["scores"] else ""
    )
    return table + line


def resolution(design: Any, count: int) -> str:
    """What so many seeds and contrasts can show."""
    if design.target is not None:
        return f"solved at  {design.target:g}: counts and updates until then are compared"
    contrasts = max(family_of(design.sealed(), []), 1)
    effect = detectable(count, level_of_contrast(design.sealed(), [count]))
    return (
        f"resolves   {contrasts} contrast{'s' * (contrasts != 1)} over {count} seeds: with "
        f"80 % power an effect of {effect:.1f} deviations of a paired difference"
    )
