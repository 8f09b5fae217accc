"""Loss curves as pictures."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_CURVES = {
    "train/loss": {"label": "train (mean since the last row)", "color": "#9aa5b1"},
    "eval/loss": {"label": "validation split", "color": "#0b5fa5", "marker": "o"},
    "test/loss": {"label": "test split", "color": "#c2410c", "marker": "D", "linestyle": ""},
}
_BLOCKS = "▁▂▃▄▅▆▇█"
_MARKERS = "os^Dv*XP"


def draw_loss_curve(rows: list[dict], path: Path) -> Path | str:
    """Draws the training, validation and test loss of one run over its updates.

    Args:
      rows: of metrics.jsonl.
      path: of the PNG.
    Returns:
      The path, or why there is no picture.
    """
    curves = [(_points(rows, key), style) for key, style in _CURVES.items()]
    try:
        return _draw(curves, "loss (nats)", path)
    except ImportError:
        return "none: it needs matplotlib, pip install 'transformer_jax[train]'"


def loss_in_a_line(rows: list[dict], width: int = 40) -> str:
    """Returns the training loss as one line of blocks, each the mean of so many updates.

    Args:
      rows: of metrics.jsonl.
      width: blocks, at most.
    Returns:
      Empty where there are fewer than two losses.
    """
    points = _points(rows, "train/loss")
    losses = [loss for _, loss in points if loss is not None and math.isfinite(loss)]
    if len(losses) < 2:
        return ""
    count = min(width, len(losses))
    ends = [len(losses) * n // count for n in range(count + 1)]
    means = [sum(losses[a:b]) / (b - a) for a, b in itertools.pairwise(ends)]
    low, high = min(means), max(means)
    step = (high - low) / (len(_BLOCKS) - 1) or 1.0
    blocks = "".join(_BLOCKS[round((mean - low) / step)] for mean in means)
    return f"{blocks} {means[0]:.3g} to {means[-1]:.3g}"


def draw_comparison(runs: dict[str, list[dict]], metric: str, path: Path) -> Path:
    """Draws one metric of several runs over their updates.

    Args:
      runs: name -> rows of metrics.jsonl.
      metric: a key of those rows.
      path: of the picture; its ending chooses the format.
    Returns:
      The path.
    """
    curves = [
        (_points(rows, metric), {"label": name, "marker": _MARKERS[place % len(_MARKERS)]})
        for place, (name, rows) in enumerate(runs.items())
    ]
    return _draw(curves, metric, path)


def draw_attention(maps: dict[str, Any], words: Sequence[str], path: Path) -> Path:
    """Draws who listens to whom: a row of panels a layer, a panel a head, a row a query.

    Args:
      maps: path of a layer -> weights [H, L, L].
      words: [L], beside the rows and below the columns.
      path: of the picture; its ending chooses the format.
    Returns:
      The path.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    most = max(weights.shape[0] for weights in maps.values())
    size = 1.2 + 0.16 * len(words)
    figure = Figure(figsize=(size * most + 0.8, size * len(maps)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(maps), most, squeeze=False)
    shown = [word.strip() or repr(word) for word in words]
    image: Any = None
    for row, (layer, weights) in zip(panels, maps.items(), strict=True):
        for head, axes in enumerate(row):
            if head >= len(weights):
                axes.axis("off")
                continue
            image = axes.imshow(weights[head], vmin=0, vmax=1, cmap="Blues")
            axes.set_title(f"{layer}, head {head + 1}", fontsize=7)
            axes.set_xticks(range(len(words)), shown, rotation=90, fontsize=6)
            axes.set_yticks(range(len(words)), shown if head == 0 else [], fontsize=6)
    figure.colorbar(image, ax=panels, shrink=0.6, label="weight")
    figure.savefig(path, dpi=150)
    return path


def _points(rows: list[dict], key: str) -> list[tuple[int, float]]:
    return [(row["step"], row[key]) for row in rows if key in row]


def _draw(curves: list[tuple[list, dict]], ylabel: str, path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for points, style in curves:
        if points:
            axes.plot(*zip(*points, strict=True), **style)
    axes.set(xlabel="optimizer updates", ylabel=ylabel)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    return path
