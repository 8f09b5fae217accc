"""Comparison of arbitrary runs: differing options, results, and the claim that they support.

Runs whose configs differ only in the seed form one arm. Verdicts need a study, with a margin.
"""

import contextlib
import io
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.config_files import CADENCE
from transformer_jax.curves import tokens_of
from transformer_jax.errors import InvalidInput, suggest
from transformer_jax.metrics import METRICS
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.listing import without_test
from transformer_jax.studies import tables
from transformer_jax.studies.design import larger_is_better
from transformer_jax.studies.judging import RunFacts, among, computed_otherwise, scored_otherwise
from transformer_jax.studies.report import Page
from transformer_jax.studies.statistics import ALPHA, paired_interval

_SCORES = tuple(f"test/{name}" for name in METRICS)
_RESULTS = ("status", "step", "parameters")


class Comparison:
    """Comparison of named runs by one metric, a key of metrics.jsonl.

    Attributes:
      columns: Name of a run -> its config values and results.
      arms: Name of an arm -> names of its runs, by seed.
      metric_facts: Stored facts about metrics, by name; see measuring.facts_of_metrics.
    """

    def __init__(self, runs: Mapping[str, RunDirectory], metric: str) -> None:
        """Reads the runs.

        Raises:
          InvalidInput: A directory contains no run, or a run lacks the metric.
        """
        self.runs, self.metric = dict(runs), metric
        self._facts = {name: RunFacts.of(run) for name, run in runs.items()}
        stored = (run.evaluation.get("metrics", {}) for run in self._facts.values())
        self.metric_facts = {name: facts for of_run in stored for name, facts in of_run.items()}
        self.columns = {name: self._column(name) for name in runs}
        self.arms = self._arms()

    def _column(self, name: str) -> dict[str, Any]:
        run, facts = self.runs[name], self._facts[name]
        rows = run.metrics()
        last = without_test(dict(itertools.chain.from_iterable(row.items() for row in rows)))
        last |= rows[-1] if rows else {}
        if self.metric not in last:
            metrics = [key for key in last if key != "step"]
            raise InvalidInput(
                f"--metric={self.metric}: {run.path} has no such metric"
                f"{suggest(self.metric, metrics)}"
                + (f"\nit has: {', '.join(metrics)}" if metrics else "\nit has none yet")
            )
        results = (run.status(), last["step"], facts.manifest["parameters"])
        measured = dict.fromkeys([self.metric, *_SCORES, "time/step_ms"])
        scores = {key: last[key] for key in measured if key in last}
        return {**facts.config, **dict(zip(_RESULTS, results, strict=True)), **scores}

    def _arms(self) -> dict[str, dict[int, str]]:
        """Returns run names by arm and seed; an arm is named after the options that differ.

        Runs that differ only in the seed and in CADENCE options form an arm.
        """
        groups: dict[tuple, dict[int, str]] = {}
        for name, (_, config, _) in self._facts.items():
            options = tuple(
                (key, str(value))
                for key, value in config.items()
                if key != "seed" and not key.startswith(CADENCE)
            )
            groups.setdefault(options, {}).setdefault(config["seed"], name)
        if len(groups) == 1:
            return {"all": next(iter(groups.values()))}
        values: dict[str, set[str]] = {}
        for key, value in itertools.chain.from_iterable(groups):
            values.setdefault(key, set()).add(value)
        # An option that only some runs read does not describe the others; a choice also differs.
        return {
            ", ".join(
                f"{key.rsplit('.', 1)[-1]}={dict(options)[key]}"
                for key, found in values.items()
                if len(found) > 1 and key in dict(options)
            ): by_seed
            for options, by_seed in groups.items()
        }

    # ---- texts

    def rows(self) -> list[list[str]]:
        """Returns table rows: the options that differ between the runs, and all results."""
        rows = []
        for key in dict.fromkeys(itertools.chain.from_iterable(self.columns.values())):
            values = [facts.get(key, "-") for facts in self.columns.values()]
            if key in _RESULTS or "/" in key or _differ(values):
                rows.append([key, *map(tables.spell, values)])
        return rows

    def warnings(self) -> list[str]:
        """Returns reasons why a difference between the runs means less than it seems to."""
        manifests, configs, _ = zip(*self._facts.values(), strict=True)
        warnings = []
        unfinished = [name for name, run in self.runs.items() if run.status() != "done"]
        if unfinished:
            warnings.append(f"not finished: {', '.join(unfinished)}")
        warnings += self.scored_otherwise()
        budgets = [tokens_of(c) for c in configs]
        if not _differ([c["data.task"] for c in configs]) and _differ(budgets):
            warnings.append(f"different token budgets: {', '.join(f'{b:,}' for b in budgets)}")
        counts = [m["parameters"] for m in manifests]
        if max(counts) > 1.02 * min(counts):
            warnings.append("the numbers of parameters differ by more than 2 %")
        return warnings + among(list(self._facts.values()), computed_otherwise)

    def scored_otherwise(self) -> list[str]:
        """Returns differences in how runs were scored; if there are any, no claim is made."""
        facts, name = list(self._facts.values()), self.metric.rpartition("/")[2]
        splits = ("validation", "test")  # the table has scores on both
        found = [among(facts, scored_otherwise, name, (), split) for split in splits]
        return list(dict.fromkeys(itertools.chain(*found)))

    def verdict(self) -> str:
        """Returns the claim that the runs support, as text; it is never about a cause."""
        fewest = min(len(seeds) for seeds in self.arms.values())
        if len(self.arms) == 1 and fewest == 1:
            return "all runs have the same config and seed: one run and its copies"
        if len(self.arms) == 1:
            return "the same config with different seeds: the spread between the runs is noise"
        if self.scored_otherwise():
            return "no claim: the runs were not evaluated in the same way"
        if fewest < 2 or not self.paired():
            return (
                f"no claim: some config has only {fewest} seed{'s' if fewest > 1 else ''}; a "
                "difference may be due to the seed. Train each config with the same few values of "
                "--config.seed before believing it"
            )
        return (
            "no verdict: no margin was declared before these runs, so intervals are only leads; "
            "python -m experiments.ablate makes a study of the question"
        )

    def paired(self) -> list[dict[str, Any]]:
        """Returns each arm's paired differences from the first arm, over common seeds.

        Arms with fewer than two common seeds, or without a finite score for each, are left out.
        """
        (_, base), *others = self.arms.items()
        sign = 1.0 if larger_is_better(self.metric, self.metric_facts) else -1.0
        intervals = []
        for name, arm in others:
            seeds = sorted(base.keys() & arm.keys())
            scores = [[self.columns[runs[s]][self.metric] for s in seeds] for runs in (arm, base)]
            d = [
                math.nan if None in pair else sign * (float(pair[0]) - float(pair[1]))
                for pair in zip(*scores, strict=True)
            ]
            if len(d) < 2 or not all(map(math.isfinite, d)):
                continue
            found = paired_interval(d, ALPHA / len(others))._asdict()
            intervals.append({"name": name, "differences": d, "seeds": seeds, **found})
        return intervals

    # ---- the page

    def page(self) -> str:
        """Returns the comparison as one static HTML page."""
        page = Page(f"{len(self.runs)} runs compared by {self.metric}")
        page.paragraph(self.verdict())
        page.bullets(f"warning: {text}" for text in self.warnings())
        rows = [
            [arm, ", ".join(map(str, by_seed)), ", ".join(by_seed.values())]
            for arm, by_seed in self.arms.items()
        ]
        page.table(["arm", "seeds", "runs"], rows, "Arms")
        if pairs := [] if self.scored_otherwise() else self.paired():
            rows = []
            for pair in pairs:
                by_seed = zip(pair["seeds"], pair["differences"], strict=True)
                differences = ", ".join(f"{seed}: {d:+.4f}" for seed, d in by_seed)
                interval = tables.spell_interval(pair["interval"])
                rows.append([pair["name"], tables.signed(pair["mean"]), interval, differences])
            heads = ["arm", "mean", "95 % interval, together", "by seed"]
            page.table(heads, rows, "Paired differences")
        with contextlib.suppress(ImportError):  # matplotlib belongs to the extra `train`
            from transformer_jax.studies.figures import curves_figure, curves_of

            runs = {
                arm: [self.runs[name].path for name in by_seed.values()]
                for arm, by_seed in self.arms.items()
            }
            picture = io.BytesIO()
            curves_figure(curves_of(runs, self.metric), self.metric).savefig(picture, format="svg")
            page.figure("curves.svg", picture.getvalue(), f"{self.metric} over the updates")
        page.table(["", *self.columns], self.rows(), "Differences and results")
        shown = ("git", "code", "numerics", "packages", "device", "python", "platform")
        rows = []
        for key in (*shown, "own_rows", "members"):
            values = [run.manifest.get(key) for run in self._facts.values()]
            if _differ(values):
                rows.append([key, *[json.dumps(value) for value in values]])
        page.table(["", *self.runs], rows, "Code and environment")
        page.paragraph("" if rows else "The same code, packages and device.")
        return page.html()


def _differ(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values)
