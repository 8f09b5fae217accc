"""Writes the page on how a step's cost grows with width, depth, length and devices.

Planned points are what a compiler says of the step, measured ones are steps that were timed on this
machine, which should do nothing else meanwhile. Five minutes each. Points of other devices stay as
they are in the figures.

Example:
  .venv-tpu/bin/python -m experiments.costs --devices=v5e,cpu
  python -m experiments.costs --devices=gpu
"""

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.command import Parser, execute
from experiments.plan import ENVIRONMENT
from transformer_jax.errors import InvalidInput
from transformer_jax.training.memory import GIB

_CHIP = "v5e"
_FIGURES = "experiments/results/costs.json"
# A config, changes of it, and the tokens of an update on a device, which no sweep changes.
_BASES: dict[str, tuple[str, dict[str, Any], int]] = {
    _CHIP: ("configs/gpt2_124m.py", {"training.accumulation": 1, "training.batch_size": 8}, 8192),
    "cpu": ("configs/shakespeare.py", {"training.batch_size": 16}, 1024),
    "gpu": ("configs/gpt2_124m.py", {"training.accumulation": 1, "training.batch_size": 16}, 16384),
}
_VALUES: dict[str, dict[str, tuple[int, ...]]] = {
    _CHIP: {
        "width": (256, 512, 1024, 2048),
        "depth": (3, 6, 12, 24, 48),
        "length": (256, 1024, 4096, 16384),
        "devices": (1, 4, 8, 16),
    },
    "cpu": {"width": (64, 128, 256, 512), "depth": (2, 4, 8, 16), "length": (64, 256, 1024)},
    "gpu": {"width": (256, 512, 1024, 2048), "depth": (3, 12)},
}
_CHIPS = {1: _CHIP, 4: f"{_CHIP}:2x2", 8: f"{_CHIP}:2x4", 16: f"{_CHIP}:4x4"}
_CHANGES: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "width": lambda value, _: {"model.width": value, "model.num_heads": max(value // 64, 1)},
    "depth": lambda value, _: {"model.depth": value},
    "length": lambda value, tokens: {
        "data.length": value,
        "training.batch_size": max(tokens // value, 1),
    },
    "devices": lambda value, tokens: {
        "mesh.fsdp": value,
        "training.batch_size": value * tokens // 1024,
    },
}
_HEAD = """# How cost grows

![seconds a token and memory over width, depth, length and devices](costs.svg)

Hollow points are planned: what the device's own compiler says of the training step, and the
roofline estimate over that ([plan](how-to.md#fit-a-larger-model-or-a-longer-text)), for v5e by
the maker's rates, for the H200 and the CPU by rates that were measured there (of the H200's 4.8
TB/s 3.0 were reached). Filled points are measured, on the H200 and on the CPU of the machine that
wrote this page. Nothing was run on a TPU. On the H200 a step takes 0.8 to 1.9 times the estimate,
more where the model is wider. The CPU is shared, and times scatter: depth 4 and length 64 are the
same step, timed at two moments.

The base of v5e and H200 is configs/gpt2_124m.py (12 blocks of width 768, texts of 1,024 tokens, 8
at a time on v5e and 16 on the H200; blocks computed again, loss in chunks, fused attention), the
CPU's configs/shakespeare.py with 16 texts at a time. One thing is changed at a time (with
the width the number of heads, of 64 features each), and the tokens of an update on a device stay
the same, so that seconds a token compare; only at length 16,384 are they twice as many, since one
text is. Over devices the model is cut by `mesh.fsdp`, and each device has as many tokens as one
alone.

Written by `python -m experiments.costs`, each device's points where it is (`--devices=gpu`).
"""


class Point(NamedTuple):
    """One training step.

    Attributes:
      swept: width, depth, length or devices.
      value: of it.
      device: that it is of.
      how: planned or measured.
      nanoseconds: a token of one device.
      gib: that a device needs; None where it was not asked.
    """

    swept: str
    value: int
    device: str
    how: str
    nanoseconds: float
    gib: float | None


def main(argv: list[str]) -> None:
    """Plans and times all points, and writes the page, its picture and its figures."""
    parser = Parser("costs", __doc__)
    parser.add_argument(
        "--out", default="docs/costs.md", help="where the page goes (docs/costs.md)"
    )
    parser.add_argument("--figures", default=_FIGURES, help=f"their JSON ({_FIGURES})")
    parser.add_argument("--devices", default="v5e,cpu", help="v5e, cpu or gpu, by comma (v5e,cpu)")
    arguments = parser.read(argv)
    asked = arguments.devices.split(",")
    if unknown := set(asked) - set(_BASES):
        raise InvalidInput(f"--devices={unknown.pop()}: expected some of {', '.join(_BASES)}")
    out = Path(arguments.out)
    figures = Path(arguments.figures)
    for flag, path in (("out", out), ("figures", figures)):
        if not path.parent.is_dir():
            raise InvalidInput(f"--{flag}={path}: expected a file in a folder that is there")
    if "gpu" in asked and len(asked) > 1:
        raise InvalidInput(f"--devices={arguments.devices}: expected gpu alone, or none")
    if "gpu" not in asked:
        os.environ.update(ENVIRONMENT)
    points = [Point(**each) for each in json.loads(figures.read_text())] if figures.exists() else []
    made: set[str] = set()
    for point in (point for base in asked for point in _points_of(base)):
        if point.device not in made:
            points = [each for each in points if each.device != point.device]
            made.add(point.device)
        points.append(point)
        figures.write_text(json.dumps([each._asdict() for each in points], indent=1) + "\n")
    draw(points, out.with_suffix(".svg"))
    out.write_text(page(points), encoding="utf-8")
    print(f"wrote {out}")


def _points_of(place: str) -> Iterator[Point]:
    from transformer_jax.options.config import load_config
    from transformer_jax.planning.devices import find_device
    from transformer_jax.planning.plan import make_plan

    path, base, tokens = _BASES[place]
    devices = {name: find_device(name) for name in (_CHIPS.values() if place == _CHIP else [place])}
    name = devices[place].kind.removeprefix("this machine's ") if place == "gpu" else place
    for swept, values in _VALUES[place].items():
        for value in values:
            print(f"{place}: {swept} {value} ...", file=sys.stderr, flush=True)
            changes = {**base, **_CHANGES[swept](value, tokens)}
            config = load_config(path, {key: str(text) for key, text in changes.items()})
            device = devices[_CHIPS[value] if swept == "devices" else place]
            plan = make_plan(config, device, steps=0 if place == _CHIP else 4)
            if plan.estimate is None or plan.needed is None:
                continue  # what does not fit has no time
            count = value if swept == "devices" else 1
            planned = 1e9 * plan.estimate * count / plan.per_step
            needed = round(plan.needed / GIB, 3)
            yield Point(swept, value, name, "planned", planned, needed)
            if plan.taken is not None:
                timed = 1e9 * statistics.median(plan.taken.seconds) / plan.per_step
                yield Point(swept, value, name, "measured", timed, None)


def page(points: list[Point]) -> str:
    """Returns the page in Markdown: how to read it, the picture, every point."""
    lines = [_HEAD, "| | | ns a token of a device | GiB of a device |", "|---|---|---|---|"]
    for point in points:
        memory = "" if point.gib is None else f"{point.gib:.2f}"
        step = f"{point.device}, {point.how} | {point.swept} {point.value:,}"
        lines.append(f"| {step} | {point.nanoseconds:,.0f} | {memory} |")
    return "\n".join([*lines, ""])


_COLOURS = {_CHIP: "#0b5fa5", "cpu": "#c2410c"}  # of any GPU: green
_STYLES: Mapping[str, dict[str, Any]] = {
    "planned": {"marker": "o", "markerfacecolor": "none"},
    "measured": {"marker": "s", "linestyle": "--"},
}


def draw(points: list[Point], path: Path) -> None:
    """Draws seconds a token and memory over what is swept, both axes logarithmic.

    Args:
      points: all.
      path: of the SVG.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    swept = list(_VALUES[_CHIP])
    axes = figure.subplots(2, len(swept), sharey="row", sharex="col")
    for column, name in enumerate(swept):
        for device, how in dict.fromkeys((p.device, p.how) for p in points):
            mine = [p for p in points if (p.swept, p.device, p.how) == (name, device, how)]
            if not mine:
                continue
            values = [p.value for p in mine]
            style = {"color": _COLOURS.get(device, "#15803d"), **_STYLES[how]}
            times = [p.nanoseconds for p in mine]
            axes[0, column].plot(values, times, label=f"{device}, {how}", **style)
            if mine[0].gib is not None:
                axes[1, column].plot(values, [p.gib for p in mine], **style)
        axes[1, column].set_xlabel(name)
        for row in range(2):
            axes[row, column].set(xscale="log", yscale="log")
            axes[row, column].grid(visible=True, which="major", alpha=0.3)
        ticks = sorted({p.value for p in points if p.swept == name})
        axes[1, column].set_xticks(ticks, [f"{tick:,}" for tick in ticks], rotation=60)
        axes[1, column].minorticks_off()
    axes[0, 0].set_ylabel("ns a token of a device")
    axes[1, 0].set_ylabel("GiB of a device")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    execute(main)
