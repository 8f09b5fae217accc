"""Attention drawn: what three rotations make of two vectors in the plane, and a mask at work."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from experiments.course.checks import three_rotations
from transformer_jax import causal_mask
from transformer_jax.layers.attention import attention_weights
from transformer_jax.layers.weights import masked_softmax
from transformer_jax.studies.reporting.page import escaped

_SIZE, _UNIT = 220, 85  # of a picture, and of a vector of length 1


class Picture(NamedTuple):
    """Arrows in the plane.

    Attributes:
      says: what they are, with numbers.
      arrows: name -> (x, y, colour): a number of the page's palette.
    """

    says: str
    arrows: Mapping[str, tuple[float, float, int]]


def pictures_of_rotations() -> list[Picture]:
    """Returns the worked example, X = I under three rotations, step by step."""
    rotations = three_rotations()
    weights = np.asarray(attention_weights(*rotations[:2]))
    query, key, value = map(np.asarray, rotations)
    scores = query @ key.T
    output = weights @ value
    first = {f"a1{n + 1} v{n + 1}": (*(weights[0, n] * value[n]), 2) for n in range(2)}
    return [
        Picture("the two inputs, x1 and x2", _named("x", np.eye(2), 8)),
        Picture(
            "queries, keys and values: the inputs turned by three angles",
            _named("q", query, 0) | _named("k", key, 1) | _named("v", value, 2),
        ),
        Picture(
            f"scores of q1, its products with the keys: {_row(scores[0])}",
            {"q1": (*query[0], 0)} | _named("k", key, 1),
        ),
        Picture(
            f"the weights of q1, softmax of the scores over sqrt 2: {_row(weights[0])}; by them "
            "the values become shorter",
            first,
        ),
        Picture(
            f"the outputs, sums of what is left of the values: {_row(output[0])} and "
            f"{_row(output[1])}",
            first | _named("y", output, 4),
        ),
    ]


def _named(letter: str, rows: np.ndarray, colour: int) -> dict[str, tuple[float, float, int]]:
    return {f"{letter}{n + 1}": (float(x), float(y), colour) for n, (x, y) in enumerate(rows)}


def _row(numbers: np.ndarray) -> str:
    return ", ".join(f"{number:.3f}" for number in numbers)


def as_svg(picture: Picture) -> str:
    """Returns a picture as SVG, with its caption."""
    middle = _SIZE / 2
    parts = [
        f'<line class="grid" x1="0" y1="{middle}" x2="{_SIZE}" y2="{middle}"/>',
        f'<line class="grid" x1="{middle}" y1="0" x2="{middle}" y2="{_SIZE}"/>',
    ]
    for name, (x, y, colour) in picture.arrows.items():
        across, up, angle = middle + _UNIT * x, middle - _UNIT * y, math.atan2(-y, x)
        head = " ".join(
            f"{across - 8 * math.cos(angle + turn):.1f},{up - 8 * math.sin(angle + turn):.1f}"
            for turn in (0.4, -0.4)
        )
        parts.append(
            f'<line x1="{middle}" y1="{middle}" x2="{across:.1f}" y2="{up:.1f}" '
            f'stroke="var(--c{colour})" stroke-width="2"/>'
            f'<polygon points="{across:.1f},{up:.1f} {head}" fill="var(--c{colour})"/>'
        )
        beyond = 13  # so that a name stands in front of its arrow
        left, top = across + beyond * math.cos(angle), up + beyond * math.sin(angle) + 4
        parts.append(f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="middle">{name}</text>')
    says = escaped(picture.says)
    return (
        f'<figure><svg viewBox="0 0 {_SIZE} {_SIZE}" role="img" aria-label="{says}">'
        f"{''.join(parts)}</svg><figcaption>{says}</figcaption></figure>"
    )


def mask_at_work() -> list[list[list[str]]]:
    """Returns three 4 x 4 tables: scores, with the later ones at -inf, and their softmax."""
    scores = np.array(
        [[0.5, 1.2, -0.3, 0.9], [1.0, 0.2, 0.4, -0.6], [-0.8, 0.7, 1.5, 0.1], [0.3, -0.2, 0.6, 1.1]]
    )
    masked = np.where(np.asarray(causal_mask(4)), scores, -np.inf)
    weights = np.asarray(masked_softmax(jnp.asarray(masked)))
    assert np.abs(weights.sum(-1) - 1).max() < 1e-6
    return [
        [["-inf" if np.isinf(number) else f"{number:.2f}" for number in row] for row in table]
        for table in (scores, masked, weights)
    ]
