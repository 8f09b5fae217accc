"""Pictures of loss curves and attention; the suffix of a path chooses the format."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import how_to_install

_CURVES = {
    "train/loss": {"label": "train (mean since the last row)", "color": "#9aa5b1"},
    "eval/loss": {"label": "validation split", "color": "#0b5fa5", "marker": "o"},
    "test/loss": {"label": "test split", "color": "#c2410c", "marker": "D", "linestyle": ""},
}
_MARKERS = "os^Dv*XP"


def draw_loss_curve(rows: list[dict], path: Path) -> Path | str:
    """Draws the loss curves in rows of metrics.jsonl.

    Returns:
      The path of the picture, or the reason why there is none.
    """
    try:
        loss_figure(rows).savefig(path, dpi=150)
    except ImportError:
        return f"none: it needs matplotlib, {how_to_install('train')}"
    return path


def loss_figure(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Returns a matplotlib figure of the loss curves in rows of metrics.jsonl."""
    return _figure([(rows, key, style) for key, style in _CURVES.items()], "loss (nats)")


def draw_comparison(runs: dict[str, list[dict]], metric: str, path: Path) -> Path:
    """Draws a metric of several runs over their updates, and returns the path.

    `runs` maps the name of each run to its rows of metrics.jsonl.
    """
    curves = [
        (rows, metric, {"label": name, "marker": marker})
        for marker, (name, rows) in zip(itertools.cycle(_MARKERS), runs.items(), strict=False)
    ]
    _figure(curves, metric).savefig(path, dpi=150)
    return path


def draw_attention(maps: dict[str, tuple[Any, Sequence[str], Sequence[str]]], path: Path) -> Path:
    """Draws attention weights: a row of panels per layer, a panel per head, a row per query.

    Args:
      maps: Path of a layer -> weights [H, L, M], and the tokens of queries [L] and keys [M].
      path: Path of the picture, which is returned.
    """
    most = max(len(weights) for weights, _, _ in maps.values())
    size = 1.2 + 0.16 * max(max(weights.shape[1:]) for weights, _, _ in maps.values())
    figure, panels = _panels(len(maps), most, size)
    image: Any = None
    for row, (layer, (weights, queries, keys)) in zip(panels, maps.items(), strict=True):
        rows, columns = ([word.strip() or repr(word) for word in w] for w in (queries, keys))
        for head, axes in enumerate(row):
            if head >= len(weights):
                axes.axis("off")
                continue
            image = axes.imshow(weights[head], vmin=0, vmax=1, cmap="Blues")
            axes.set_title(f"{layer}, head {head}", fontsize=7)
            as_it_is = {"fontsize": 6, "parse_math": False}
            axes.set_xticks(range(len(columns)), columns, rotation=90, **as_it_is)
            axes.set_yticks(range(len(rows)), rows if head == 0 else [], **as_it_is)
    figure.colorbar(image, ax=panels, shrink=0.6, label="weight")
    figure.savefig(path, dpi=150)
    return path


def draw_attention_over_image(
    maps: dict[str, Any], image: Any, first: Sequence[str], path: Path
) -> Path:
    """Draws attention over an image: a row of panels per layer, first the image, then the heads.

    A panel shows the weight of each patch: for the class token or, without one, the mean over all
    patches. The darkest colour of a panel is the head's largest weight.

    Args:
      maps: Path of a layer -> weights [H, P, P]. Positions after `first` are patches, by rows.
      image: Pixels [height, width, channels].
      first: Names of the positions before the patches, `class` or `register`.
      path: Path of the picture, which is returned.
    """
    most = max(len(weights) for weights in maps.values())
    figure, panels = _panels(len(maps), most + 1, 1.6)
    height, width = image.shape[:2]
    for row, (layer, weights) in zip(panels, maps.items(), strict=True):
        row[0].imshow(image, cmap="gray")
        row[0].set_title(layer, fontsize=7)
        listened = weights[..., len(first) :]
        listened = listened[:, 0] if "class" in first else listened[:, len(first) :].mean(1)
        patches = listened.shape[1]
        tall = max(1, round(math.sqrt(patches * height / width)))
        for axes, head in zip(row[1:], range(most), strict=True):
            if head < len(weights):
                grid = listened[head].reshape(tall, -1) if patches % tall == 0 else listened[[head]]
                axes.imshow(grid, vmin=0, cmap="Blues")
                axes.set_title(f"head {head}, to {listened[head].max():.2f}", fontsize=7)
        for axes in row:
            axes.axis("off")
    figure.savefig(path, dpi=150)
    return path


def _panels(rows: int, columns: int, size: float) -> tuple[Any, Any]:
    """Returns a figure and its axes [rows, columns], each panel `size` inches wide and high."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size * columns + 0.8, size * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _figure(curves: Iterable[tuple[Sequence[Mapping], str, dict]], ylabel: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for rows, key, style in curves:
        if points := [(row["step"], row[key]) for row in rows if key in row]:
            axes.plot(*zip(*points, strict=True), **style)
    axes.set(xlabel="optimizer updates", ylabel=ylabel)
    axes.grid(alpha=0.3)
    plain_legend(axes)
    return figure


def plain_legend(axes: Any, **place: Any) -> None:
    """Adds a legend with the names of the lines, in which `$` and a first `_` are ordinary."""
    for line in axes.get_lines():
        if (name := str(line.get_label())).startswith("_") and not re.match(r"_child\d+$", name):
            line.set_label(f"\N{ZERO WIDTH SPACE}{name}")  # matplotlib leaves out _names
    for text in axes.legend(frameon=False, **place).get_texts():
        text.set_parse_math(False)
