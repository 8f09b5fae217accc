r"""Measures how activations grow with the width: the coordinate check of muP.

Example:
  python -m experiments.coordinates --config=configs/shakespeare.py --widths=64,128,256 \
    --config.model.parametrisation=mup
"""

from typing import Any

from experiments.command import Parser, execute, use_compilation_cache
from transformer_jax.errors import InvalidInput

_DRIFT = 0.25  # a size that changes with more than the fourth root of the width is marked


def main(argv: list[str]) -> dict[str, Any]:
    """Prints and returns the sizes of activations, and their slopes over the width, by site."""
    parser = Parser("coordinates", __doc__, takes_config=True)
    parser.add_argument("--widths", default="64,128,256", help="at least two, separated by commas")
    parser.add_argument("--steps", default="4", help="updates before the activations are measured")
    parser.add_json()
    arguments = parser.read(argv)
    widths = _integers("--widths", arguments.widths)
    (steps,) = _integers("--steps", arguments.steps)
    if len(set(widths)) < 2:
        raise InvalidInput(f"--widths={arguments.widths}: expected two widths or more")
    model = arguments.config.model
    uneven = [width for width in widths if width % model.num_heads]
    if uneven and model.head_dim is None:
        raise InvalidInput(
            f"--widths: {uneven[0]} is not a multiple of model.num_heads={model.num_heads}"
        )
    use_compilation_cache()
    from rich.console import Console
    from rich.table import Table

    from transformer_jax.training.coordinate_check import coordinate_check

    try:
        places = coordinate_check(arguments.config, widths, steps)
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(f"--widths={arguments.widths}: {error}") from error
    title = f"RMS after {steps} updates, {model.parametrisation} parametrisation"
    table = Table(title=title, caption="size ~ width^slope; change: difference due to the updates")
    for name in ("place", *(f"width {width}" for width in widths), "slope", "slope of change"):
        is_name = name == "place"
        table.add_column(name, justify="left" if is_name else "right", no_wrap=is_name)
    drifting, found = 0, {}
    for name, site in places.items():
        slopes = site.slopes(widths)
        found[name] = {"rms": [*map(float, site.rms)], "slopes": [*map(float, slopes)]}
        drifts = [not abs(slope) <= _DRIFT for slope in slopes]  # also if a size is NaN
        drifting += any(drifts)
        pairs = zip(slopes, drifts, strict=True)
        marked = [f"{slope:+.2f}{' !' * drift}" for slope, drift in pairs]
        table.add_row(name, *(f"{size:.4f}" for size in site.rms), *marked)
    Console().print(table)
    print(f"{drifting} of {len(places)} places change with the width (a slope beyond {_DRIFT})")
    return {"widths": widths, "steps": steps, "places": found, "drifting": drifting}


def _integers(flag: str, text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise InvalidInput(f"{flag}={text}: expected integers >= 1, separated by commas")
    return [int(part) for part in parts]


if __name__ == "__main__":
    execute(main)
