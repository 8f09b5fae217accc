"""The best value of an option: Fieller's interval, and how far an optimum moved."""

import math

import numpy as np
import pytest

from transformer_jax.studies.statistics import Optimum, moved, optimum


def test_an_optimum_is_held_by_its_interval():
    rng, values, best = np.random.default_rng(0), np.array([1e-3, 2e-3, 4e-3, 8e-3]), 2.6e-3
    held = []
    for _ in range(600):
        losses = np.log(values / best) ** 2 + rng.normal(0, 0.05, (5, 4))
        found = optimum(values, losses + rng.normal(0, 1, (5, 1)))
        if not isinstance(found, str):
            held.append(found.interval[0] <= best <= found.interval[1])
    assert len(held) > 0.95 * 600
    assert np.mean(held) > 0.93


def test_without_a_minimum_between_the_values_there_is_none(rng):
    values = (1e-3, 2e-3, 4e-3)
    falling = -np.log(values) + rng.normal(0, 1e-3, (3, 3))
    assert optimum(values, falling) == "none between the arms"
    flat = np.array([[0.01, 0.0, 0.01], [0.0, 0.005, 0.0], [0.01, 0.0, 0.001]])
    assert optimum(values, flat) in ("the curvature is not certain", "none between the arms")


def test_a_move_is_a_factor_with_the_interval_of_both():
    first, second = Optimum(1e-3, (8e-4, 1.25e-3)), Optimum(4e-3, (2e-3, 8e-3))
    found = moved(first, second)
    assert found.at == pytest.approx(4.0)
    half = math.hypot(math.log(2), math.log(1.25))
    assert found.interval == pytest.approx((4 * math.exp(-half), 4 * math.exp(half)))
