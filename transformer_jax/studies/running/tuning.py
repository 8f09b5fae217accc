"""Per-arm tuning under an equal budget: the same settings, trials and seeds for every arm.

Trials are ordinary cells, scored on the validation split with seeds that no verdict uses. Where an
arm's optimum is at the edge of what was tried, more is tried by all arms; where it stays there, the
arm gets no verdict.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import flatten
from transformer_jax.studies.asking.design import Design
from transformer_jax.studies.asking.settings import (
    Setting,
    Space,
    are_numbers,
    beyond,
    edge_of,
    grown,
    grows_by_factors,
    neighbours,
    spell_setting,
    with_middles,
)
from transformer_jax.studies.asking.tuning import Tuned, shortened
from transformer_jax.studies.inference.tuned import parabola, sensitivity
from transformer_jax.studies.running.planning import Arm, ArmBuilder

# Trials and their seeds -> the validation means of each seed: {} where it diverged, None without an
# outcome.
RunTrials = Callable[[Mapping[str, Arm], Sequence[int]], dict[str, list[dict | None]]]
_MOVES = 4  # of a parabola, to where its middle is better than what is beside it
# In margins: a parabola that may miss by more, or of which a step costs more, has its steps halved.
_MAY_MISS, _MAY_COST = 0.25, 5.0


class Search:
    """The trials of all arms, and what they scored."""

    def __init__(
        self, design: Design, builder: ArmBuilder, arms: Mapping[str, Arm], run_trials: RunTrials
    ) -> None:
        """Trains nothing yet.

        Args:
          design: with its tuning.
          builder: makes trials.
          arms: name -> arm, made equal already.
          run_trials: trains them and returns the validation split's means of each seed.
        """
        assert design.tuning is not None
        self.design, self.tuning, self.arms = design, design.tuning, arms
        self.builder, self.run_trials = builder, run_trials
        self.flat = flatten(design.config_of(design.base))
        self.sign = -1.0 if design.larger_is_better else 1.0  # smaller is better from here on
        self.losses: dict[tuple[str, int, str], list[float]] = {}  # by arm, rung, setting
        self.ties: dict[tuple[str, int, str], float] = {}  # the loss, where the metric ties
        self.lost: set[str] = set()
        self.moving: set[str] = set()  # arms whose parabola has found no middle

    def run(self) -> dict[str, Tuned]:
        """Runs the trials; returns what each arm chose."""
        tuning, space = self.tuning, self.tuning.space()
        best = self._race(space)
        for growth in range(1, tuning.extensions + 1):
            edges = {edge for name in self.arms for edge in self._edges(best[name], space)}
            larger = space
            for key, side in sorted(edges):
                larger = self._grown(larger, key, side, growth)
            if larger is space:
                break
            space = larger
            best = self._race(space)
        refined = self._refine(best, space) if tuning.refine else {}
        return {name: self._tuned(name, best[name], space, refined.get(name)) for name in self.arms}

    # ---- trials

    def _race(self, space: Space) -> dict[str, Setting]:
        """Trains what is missing, rung by rung; returns each arm's best setting."""
        left = {name: list(space.settings) for name in self.arms}
        for rung in range(len(self.tuning.rungs)):
            if rung:
                left = {name: self._better_half(name, rung - 1, left[name]) for name in left}
            self._train(left, rung)
        last = len(self.tuning.rungs) - 1
        return {name: min(left[name], key=lambda s: self._rank(name, last, s)) for name in left}

    def _better_half(self, name: str, rung: int, settings: Sequence[Setting]) -> list[Setting]:
        ranked = sorted(settings, key=lambda setting: self._rank(name, rung, setting))
        return ranked[: -(-len(settings) // 2)]

    def _train(self, settings: Mapping[str, Sequence[Setting]], rung: int) -> None:
        """Trains those settings of each arm that were not tried at a rung."""
        share, seeds = self.tuning.rungs[rung]
        trials, key_of = {}, {}
        for name, of_arm in settings.items():
            for setting in of_arm:
                key = name, rung, spell_setting(setting)
                if key in self.losses:
                    continue
                own = {**self.arms[name].matched, **setting}
                brief = shortened(flatten(self.design.config_of(name, own)), share)
                at = f" at {share:g} of the updates" if brief else ""
                trial = f"{name} | {spell_setting(setting)}{at}"
                trials[trial] = self.builder.make(trial, name, {**own, **brief})
                key_of[trial] = key
        scored = self.run_trials(trials, self.tuning.seeds[:seeds]) if trials else {}
        for trial, means in scored.items():
            self.lost |= {key_of[trial][0]} if None in means else set()
            # A metric may have no value (updates to a target that was not reached).
            scores = [(row or {}).get(self.design.metric) for row in means]
            self.losses[key_of[trial]] = [
                math.nan if score is None else self.sign * score for score in scores
            ]
            self.ties[key_of[trial]] = sum((row or {}).get("loss", math.nan) for row in means)

    def _loss(self, name: str, rung: int, setting: Setting) -> float:
        """Mean over the seeds; the worst there is where one diverged or has no outcome."""
        losses = self.losses[name, rung, spell_setting(setting)]
        mean = sum(losses) / len(losses)
        return mean if math.isfinite(mean) else math.inf

    def _rank(self, name: str, rung: int, setting: Setting) -> tuple[float, float]:
        """What the best has least of: where a metric says nothing yet, of the loss."""
        tie = self.ties[name, rung, spell_setting(setting)]
        return self._loss(name, rung, setting), tie if math.isfinite(tie) else math.inf

    # ---- edges

    def _edges(self, best: Setting, space: Space) -> list[tuple[str, int]]:
        """Options of numbers whose best value is at the edge of what was tried, and the side."""
        sides = {
            key: edge_of(best, key, space, self.flat)
            for key, values in space.values.items()
            if are_numbers(values)
        }
        return [(key, side) for key, side in sides.items() if side]

    def _grown(self, space: Space, key: str, side: int, growth: int) -> Space:
        """With values beyond an edge; the same where not all arms can be trained with them."""
        value = beyond(space, key, side)
        if value in space.values[key] or not self._can_be({key: value}):
            return space
        larger = grown(space, key, side, growth)
        added = larger.settings[len(space.settings) :]
        return larger if all(map(self._can_be, added)) else space

    def _can_be(self, setting: Setting) -> bool:
        """Whether all arms can be trained with a setting."""
        try:
            for name, arm in self.arms.items():
                self.builder.make(name, name, {**arm.matched, **setting})
        except InvalidInput:
            return False
        return True

    # ---- a parabola

    def _refine(self, best: dict[str, Setting], space: Space) -> dict[str, dict[str, Any]]:
        """Reads the best value of one option off a parabola; `best` follows it."""
        key, last, parabolas = self.tuning.refine, len(self.tuning.rungs) - 1, {}
        for _ in range(_MOVES):
            around = {}
            for name in self.arms.keys() - parabolas.keys():

                def can_be(value: float, beside: Setting = best[name]) -> bool:
                    return self._can_be({**beside, key: value})

                beside = neighbours(space, key, best[name][key], can_be)
                if beside and not self._edges(best[name], space):
                    values = (beside[0], best[name][key], beside[1])
                    around[name] = [{**best[name], key: value} for value in values]
            self._train(around, last)
            for name, three in around.items():
                losses = [self._loss(name, last, setting) for setting in three]
                if losses[1] <= min(losses):
                    parabolas[name] = self._off_the_parabola(name, three)
                    best[name] = {**best[name], key: parabolas[name]["value"]}
                else:
                    best[name] = three[losses.index(min(losses))]
            self.moving = {name for name in around if name not in parabolas}
        if self.tuning.halve:
            self._halve(best, parabolas)
        return parabolas

    def _halve(self, best: dict[str, Setting], parabolas: dict[str, dict[str, Any]]) -> None:
        """Tries what lies between the values of parabolas that may miss much; reads them anew.

        Where a neighbour diverges, its seeds may agree by chance: that a step costs much tells too.
        The least of the five is one of the inner three, for the middle of the former three was.
        """
        key, last, five = self.tuning.refine, len(self.tuning.rungs) - 1, {}
        margin = self.design.margin
        for name, its in parabolas.items():
            low, middle, high = (
                self._loss(name, last, {**best[name], key: value}) for value in its["between"]
            )
            is_coarse = its["missed"] > _MAY_MISS * margin
            is_coarse |= (low + high) / 2 - middle > _MAY_COST * margin
            values = with_middles(its["between"])
            if is_coarse and values:
                five[name] = [{**best[name], key: value} for value in values]
        self._train(five, last)
        for name, settings in five.items():
            losses = [self._loss(name, last, setting) for setting in settings]
            middle = min((1, 2, 3), key=losses.__getitem__)
            parabolas[name] = self._off_the_parabola(name, settings[middle - 1 : middle + 2])
            best[name] = {**best[name], key: parabolas[name]["value"]}

    def _off_the_parabola(self, name: str, three: Sequence[Setting]) -> dict[str, Any]:
        key, last = self.tuning.refine, len(self.tuning.rungs) - 1
        values = [setting[key] for setting in three]
        by_factors = grows_by_factors(values)
        losses = [self.losses[name, last, spell_setting(setting)] for setting in three]
        worst = max((loss for of in losses for loss in of if math.isfinite(loss)), default=0.0)
        finite = [[loss if math.isfinite(loss) else worst for loss in of] for of in losses]
        fit = parabola(np.log(values) if by_factors else values, np.transpose(finite))
        value = math.exp(fit.at) if by_factors else fit.at
        value = round(value) if isinstance(values[1], int) else float(f"{value:.3g}")
        return {"key": key, "value": value, "between": values, **fit._asdict()}

    # ---- what it gave

    def _tuned(
        self, name: str, best: Setting, space: Space, refined: dict[str, Any] | None
    ) -> Tuned:
        edges, tried = self._edges(best, space), []
        refused = f"its best {edges[0][0]} is at the edge of the grid" if edges else ""
        if name in self.moving:
            refused = f"its best {self.tuning.refine} was not found in {_MOVES} steps"
        if name in self.lost:
            refused = "some trials of its tuning have no outcome"
        for setting in space.settings:
            keys = [(name, rung, spell_setting(setting)) for rung in range(len(self.tuning.rungs))]
            at = [self.losses[key] for key in keys if key in self.losses]
            tried.append((setting, [self.sign * sum(losses) / len(losses) for losses in at]))
        runs = sum(len(losses) for (arm, *_), losses in self.losses.items() if arm == name)
        return Tuned(best, tried, runs, refused, self._sensitivity(name, space), refined)

    def _sensitivity(self, name: str, space: Space) -> float | None:
        """Of the only option, if that is one of numbers, and a guess has a score of its own."""
        (values, *others) = space.values.values()
        has_guess = self.design.larger_is_better or self.design.metric == "loss"
        if others or not are_numbers(values) or not has_guess:
            return None
        sizes = self.arms[name].prepared.task.sizes
        answers = sizes.get("num_classes") or sizes.get("vocab_size") or 2
        initial = 0.0 if self.design.larger_is_better else math.log(answers)  # of a uniform guess
        losses = [self._loss(name, 0, setting) for setting in space.settings]
        return sensitivity(losses, initial)
