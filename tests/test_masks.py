"""Masks as 0/1 grids, and every builder against a plain loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.masks import causal_mask, padding_mask, prefix_mask, segment_mask, window_mask


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (causal_mask(3), "100 110 111"),
        (causal_mask(2, 4), "1110 1111"),  # the last query stands at the last key
        (causal_mask(4) & window_mask(4, 2), "1000 1100 0110 0011"),
        (prefix_mask(4, 2), "1100 1100 1110 1111"),
        (prefix_mask(4, jnp.array([0, 2]))[0], "1000 1100 1110 1111"),
        (prefix_mask(4, jnp.array([0, 2]))[1], "1100 1100 1110 1111"),
        (segment_mask(jnp.array([1, 1, 2, 0])), "1100 1100 0010 0000"),
        (causal_mask(3) & padding_mask(jnp.array([True, True, False])), "100 110 110"),
    ],
)
def test_masks_as_grids(mask, expected):
    assert ["".join("01"[int(seen)] for seen in row) for row in mask] == expected.split()


@pytest.mark.parametrize("length", range(1, 13))
def test_c56_every_builder_equals_a_loop(length, rng):
    segments = rng.integers(0, 3, length)
    tokens = rng.integers(0, 2, length).astype(bool)
    window, prefix = int(rng.integers(1, length + 1)), int(rng.integers(0, length + 1))
    expected = {name: np.zeros((length, length), bool) for name in "cwspr"}
    for i in range(length):
        for j in range(length):
            expected["c"][i, j] = j <= i
            expected["w"][i, j] = abs(i - j) < window
            expected["r"][i, j] = j <= i or j < prefix
            expected["s"][i, j] = segments[i] == segments[j] and segments[j] != 0
            expected["p"][i, j] = tokens[j]
    np.testing.assert_array_equal(causal_mask(length), expected["c"])
    np.testing.assert_array_equal(window_mask(length, window), expected["w"])
    np.testing.assert_array_equal(prefix_mask(length, prefix), expected["r"])
    np.testing.assert_array_equal(segment_mask(jnp.asarray(segments)), expected["s"])
    padded = jnp.broadcast_to(padding_mask(jnp.asarray(tokens)), (length, length))
    np.testing.assert_array_equal(padded, expected["p"])


def test_masks_agree_under_jit_and_vmap(rng):
    segments = jnp.asarray(rng.integers(0, 3, (4, 6)))
    one_by_one = jnp.stack([segment_mask(row) for row in segments])
    for build in (segment_mask, jax.vmap(segment_mask), jax.jit(segment_mask)):
        np.testing.assert_array_equal(build(segments), one_by_one)
    tokens = segments > 0
    np.testing.assert_array_equal(jax.vmap(padding_mask)(tokens), padding_mask(tokens))
    for build in (lambda: causal_mask(5), lambda: window_mask(5, 2), lambda: prefix_mask(5, 3)):
        np.testing.assert_array_equal(jax.jit(build)(), build())


def test_what_is_no_mask_is_refused():
    with pytest.raises(ValueError, match=r"window: expected at least 1"):
        window_mask(4, 0)
    with pytest.raises(ValueError, match=r"is_token: expected bool.*got float32"):
        padding_mask(jnp.ones(3))
    with pytest.raises(ValueError, match=r"segments: expected integers"):
        segment_mask(jnp.ones(3))
    with pytest.raises(ValueError, match=r"prefix_length: expected integers, got float32"):
        prefix_mask(4, 1.5)
