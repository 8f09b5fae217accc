"""What a reader of a verdict doubts: choices that base and arm share and that could be others.

Each combination of choices is a specification (Simonsohn, Simmons and Nelson 2020, Nature Human
Behaviour 4, 1208-1214).
"""

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.errors import InvalidInput
from transformer_jax.options.rule import split_values, suggest
from transformer_jax.options.schema import rule_for


class Doubt(NamedTuple):
    """One choice.

    Attributes:
      key: of the option.
      factors: that its value is multiplied by; for an own doubt ().
      values: that it has instead, for an own doubt.
      name: in words; the last part of the key if not given.
    """

    key: str
    factors: tuple[float, ...] = ()
    values: tuple[Any, ...] = ()
    name: str = ""

    def alternatives(self) -> tuple[Any, ...]:
        """The factors, or the values."""
        return self.values or self.factors

    def value(self, flat: Mapping[str, Any], chosen: Any) -> Any:
        """The option's value in a config, with a factor or a value of this doubt."""
        if self.values:
            return chosen
        value = flat[self.key] * chosen
        return max(1, round(value)) if isinstance(flat[self.key], int) else float(f"{value:.6g}")


DOUBTS = (
    Doubt("optimizer.learning_rate", (0.5, 2.0)),
    Doubt("optimizer.weight_decay", (0.0, 3.0)),
    Doubt("model.init_std", (0.5, 2.0)),
    Doubt("training.steps", (0.5, 2.0)),
    Doubt("data.length", (0.5,)),
)

# What is chosen of each doubt; {}: as it stands.
Specification = dict[Doubt, Any]


def doubts_of(flat: Mapping[str, Any], own: Sequence[str], without: Sequence[str]) -> list[Doubt]:
    """Returns what may be doubted of a config.

    Args:
      flat: of the base.
      own: KEY=VALUE,VALUE of further doubts, or in place of a usual one.
      without: keys that arms are about.
    Raises:
      InvalidInput: an own doubt is wrong, or arms are about it.
    """
    doubts = {doubt.key: doubt for doubt in DOUBTS}
    if flat["data.task"] != "language_modelling":
        del doubts["data.length"]  # examples of other tasks are as long as they are
    if not flat["optimizer.weight_decay"]:
        doubts["optimizer.weight_decay"] = Doubt("optimizer.weight_decay", values=(0.01, 0.1))
    for text in own:
        key, equals, values = text.partition("=")
        key = key.removeprefix("config.")
        rule = rule_for(key, flat)
        if rule is None or not equals:
            raise InvalidInput(f"--over={text}: expected KEY=VALUE,VALUE{suggest(key, [*flat])}")
        if key in without:
            raise InvalidInput(f"--over={text}: the study is about {key}")
        if key == "seed":  # all are of the study's first one
            raise InvalidInput(f"--over={text}: a seed is no choice; a study has several")
        try:
            parsed = tuple(map(rule.parse, split_values(values)))
        except (ValueError, OverflowError) as error:
            raise InvalidInput(f"--over={text}: {error}; expected {rule.allowed}") from error
        if not all(map(rule.accepts, parsed)):
            raise InvalidInput(f"--over={text}: expected {rule.allowed}")
        doubts[key] = Doubt(key, values=parsed)
    first = [key for key, doubt in doubts.items() if doubt.values]  # before the count is reached
    order = [*first, *(key for key in doubts if key not in first)]
    lasts = Counter(key.rpartition(".")[2] for key in order)
    is_shared = {key: lasts[key.rpartition(".")[2]] > 1 for key in order}
    named = {key: doubts[key]._replace(name=key if is_shared[key] else "") for key in order}
    return [named[key] for key in order if key not in without]


def specifications(doubts: Sequence[Doubt], count: int) -> list[Specification]:
    """Returns what is tried: as it stands, each doubt alone, then combinations drawn at random.

    Args:
      doubts: that there are.
      count: of specifications, the first among them; fewer if there are no more.
    """
    alone = [{doubt: chosen} for doubt in doubts for chosen in doubt.alternatives()]
    as_it_stands = object()  # None may be a value of an option
    choices = [(as_it_stands, *doubt.alternatives()) for doubt in doubts]
    combined = [
        {doubt: c for doubt, c in zip(doubts, chosen_of, strict=True) if c is not as_it_stands}
        for chosen_of in itertools.product(*choices)
    ]
    combined = [each for each in combined if len(each) > 1]
    random.Random(0).shuffle(combined)
    return [{}, *alone, *combined][:count]


def changes_of(specification: Specification, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns full key -> value of a specification, in the config of an arm."""
    return {doubt.key: doubt.value(flat, chosen) for doubt, chosen in specification.items()}


def spelled(specification: Specification) -> str:
    """A specification in words."""
    sentences = []
    for doubt, chosen in specification.items():
        name = doubt.name or doubt.key.rpartition(".")[2]
        sentences.append(f"{name}={chosen}" if doubt.values else f"{name} x {chosen:g}")
    return ", ".join(sentences) or "as it stands"
