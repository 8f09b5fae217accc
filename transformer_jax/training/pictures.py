"""The loss curve of a run as a picture."""

from pathlib import Path


def draw_loss_curve(rows: list[dict], path: Path) -> Path:
    """Draws training and evaluation loss over steps.

    Args:
      rows: of metrics.jsonl.
      path: of the PNG.
    Returns:
      The path.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    curves = {
        "train/loss": {"label": "train (mean since the last row)", "color": "#9aa5b1"},
        "eval/loss": {"label": "tuning split", "color": "#0b5fa5", "marker": "o"},
        "test/loss": {"label": "test split", "color": "#c2410c", "marker": "D", "linestyle": ""},
    }
    for key, style in curves.items():
        points = [(row["step"], row[key]) for row in rows if key in row]
        if points:
            axes.plot(*zip(*points, strict=True), **style)
    axes.set(xlabel="optimizer updates", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    return path
