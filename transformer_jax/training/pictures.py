"""Loss curves as pictures."""

from pathlib import Path

_CURVES = {
    "train/loss": {"label": "train (mean since the last row)", "color": "#9aa5b1"},
    "eval/loss": {"label": "tuning split", "color": "#0b5fa5", "marker": "o"},
    "test/loss": {"label": "test split", "color": "#c2410c", "marker": "D", "linestyle": ""},
}
_MARKERS = "os^Dv*XP"


def draw_loss_curve(rows: list[dict], path: Path) -> Path:
    """Draws the training, tuning and test loss of one run over its updates.

    Args:
      rows: of metrics.jsonl.
      path: of the PNG.
    Returns:
      The path.
    """
    curves = [(_points(rows, key), style) for key, style in _CURVES.items()]
    return _draw(curves, "loss (nats)", path)


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
