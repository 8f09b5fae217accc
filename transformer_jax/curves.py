"""Curves of options whose numbers change from update to update: training.scheduled."""

import bisect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from transformer_jax.declarations import Option
from transformer_jax.options import Traced, is_number

MASK, BATCH_SIZE, LENGTH = "model.mask_options.", "training.batch_size", "data.length"
SECTIONS = ("optimizer.", "objective.")
_HAS_SCHEDULE = "optimizer.learning_rate"


class Curve(NamedTuple):
    """Values of an option at some updates."""

    key: str
    updates: tuple[int, ...]
    values: tuple[float, ...]

    def step_at(self, update: int) -> float:
        """Returns the newest value at an update, without a line to the next."""
        return self.values[max(bisect.bisect(self.updates, update) - 1, 0)]


def curves_of(texts: tuple[str, ...]) -> list[Curve]:
    """Returns the curves of training.scheduled."""
    curves = []
    for text in texts:
        key, _, points = text.partition("=")
        pairs = [point.split("@") for point in points.split("/")]
        updates, values = tuple(int(u) for _, u in pairs), tuple(float(v) for v, _ in pairs)
        curves.append(Curve(key, updates, values))
    return curves


class Stage(NamedTuple):
    """Updates with batches of one shape, from the update `start` on."""

    start: int
    batch_size: int
    length: int


def stages_of(scheduled: tuple[str, ...], batch_size: int, length: int) -> tuple[Stage, ...]:
    """Returns the stages of training.scheduled; an option without a curve keeps its value."""
    curves = {c.key: c for c in curves_of(scheduled) if c.key in (BATCH_SIZE, LENGTH)}
    starts = sorted({0, *(update for curve in curves.values() for update in curve.updates)})

    def value(key: str, usual: int, update: int) -> int:
        return int(curves[key].step_at(update)) if key in curves else usual

    return tuple(
        Stage(start, value(BATCH_SIZE, batch_size, start), value(LENGTH, length, start))
        for start in starts
    )


def tokens_of(flat: Mapping[str, Any]) -> int:
    """Returns the number of tokens in all training batches of a flat config."""
    stages = stages_of(flat["training.scheduled"], flat["training.batch_size"], flat["data.length"])
    ends = (*(stage.start for stage in stages[1:]), flat["training.steps"])
    return sum(
        max(0, min(end, flat["training.steps"]) - stage.start) * stage.batch_size * stage.length
        for stage, end in zip(stages, ends, strict=True)
    )


def is_of_mask(key: str) -> bool:
    """Returns whether a key is an option of a mask, of the model or of a type of layer."""
    return re.fullmatch(r"model\.(layer_types\.\w\.)?mask_options\.\w+", key) is not None


def makes_stages(key: str) -> bool:
    """Returns whether the step is compiled again where an option changes."""
    return is_of_mask(key) or key in (BATCH_SIZE, LENGTH)


def starts_of(scheduled: tuple[str, ...]) -> tuple[int, ...]:
    """Returns the first update of each stage."""
    curves = [curve for curve in curves_of(scheduled) if makes_stages(curve.key)]
    return tuple(sorted({0, *(update for curve in curves for update in curve.updates)}))


def is_of_optimizer(key: str) -> bool:
    """Returns whether a key is one of the optimizer's options."""
    return key.startswith("optimizer.")


def problems_of_curves(
    flat: Mapping[str, Any], option_of: Callable[[str], Option | None], is_read: Callable[..., bool]
) -> Iterator[str]:
    """Yields what is wrong with training.scheduled in a completed flat config.

    `option_of` returns a key's option, or None; `is_read` whether a mask of a layer type reads it.
    """
    keys = []
    for text in flat["training.scheduled"]:
        try:
            (curve,) = curves_of((text,))
        except ValueError:
            yield f"{text}: expected numbers, e.g. optimizer.weight_decay=0.1@0/0.01@2000"
            continue
        key, option = curve.key, option_of(curve.key)
        is_typed = is_of_mask(key) and not key.startswith(MASK)
        is_used = is_read(key) if is_typed else key in flat
        keys.append(key)
        if key == _HAS_SCHEDULE:
            yield f"{key} has a schedule of its own; set schedule.name"
        elif not (makes_stages(key) or key.startswith(SECTIONS)) or option is None or not is_used:
            sections = f"{', '.join((*SECTIONS, MASK, BATCH_SIZE))} or {LENGTH}"
            yield f"{key}: expected a numeric option of {sections} that is in use"
        elif not is_number(option.default) or (is_of_optimizer(key) and not option.mark(Traced)):
            yield f"{key}: it cannot change in training"
        elif wrong := [v for v in map(type(option.default), curve.values) if not option.accepts(v)]:
            yield f"{key}={wrong[0]}: expected {option.allowed}"
        elif isinstance(option.default, int) and any(v != int(v) for v in curve.values):
            yield f"{key}: expected integers, got {', '.join(map(str, curve.values))}"
        elif key == LENGTH and max(curve.values) > flat[LENGTH]:
            yield f"{key}: expected at most {LENGTH}={flat[LENGTH]}, got {max(curve.values):g}"
        elif key == LENGTH and min(curve.values) <= flat.get("data.unscored", 0):
            yield f"{key}: expected more than data.unscored={flat['data.unscored']}"
        elif key == BATCH_SIZE and any(v % flat["training.accumulation"] for v in curve.values):
            parts = flat["training.accumulation"]
            yield f"{key}: expected multiples of training.accumulation={parts}"
        elif list(curve.updates) != sorted(set(curve.updates)):
            yield f"{key}: expected updates in increasing order, got {curve.updates}"
    if len(set(keys)) < len(keys):
        yield "expected one curve for each option"
