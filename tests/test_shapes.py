"""The shape checker names the argument at fault."""

import jax.numpy as jnp
import pytest

from transformer_jax.shapes import check_shapes


def test_returns_the_size_of_every_letter():
    sizes = check_shapes(a=(jnp.zeros((5, 2, 3)), "... L D"), b=(jnp.zeros((2,)), "L"))
    assert sizes == {"L": 2, "D": 3}


def test_names_both_arguments_that_disagree():
    with pytest.raises(
        ValueError, match=r"b: expected \[L=2\], got \(4,\): L .* 2 in a and 4 here"
    ):
        check_shapes(a=(jnp.zeros((2, 3)), "L D"), b=(jnp.zeros(4), "L"))


@pytest.mark.parametrize(("shape", "letters"), [((2,), "... L D"), ((2, 3, 4), "L D")])
def test_refuses_another_number_of_axes(shape, letters):
    with pytest.raises(ValueError, match=r"a: expected \[.*L, D\], got"):
        check_shapes(a=(jnp.zeros(shape), letters))
