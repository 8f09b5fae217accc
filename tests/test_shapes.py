"""The shape checker names the argument at fault, and the key of letters is whole."""

import ast
import re

import jax.numpy as jnp
import pytest

from tests.conftest import ROOT
from transformer_jax.shapes import LETTERS, check_shapes


def test_returns_the_size_of_every_letter():
    sizes = check_shapes(a=(jnp.zeros((5, 2, 3)), "... L D"), b=(jnp.zeros((2,)), "L"))
    assert sizes == {"L": 2, "D": 3}


def test_names_both_arguments_that_disagree():
    with pytest.raises(ValueError, match=r"expected \[L=2\], got \(4,\): L .* 2 in a and 4 here"):
        check_shapes(a=(jnp.zeros((2, 3)), "L D"), b=(jnp.zeros(4), "L"))


@pytest.mark.parametrize(("shape", "letters"), [((2,), "... L D"), ((2, 3, 4), "L D")])
def test_refuses_another_number_of_axes(shape, letters):
    with pytest.raises(ValueError, match=r"a: expected \[.*L, D\], got"):
        check_shapes(a=(jnp.zeros(shape), letters))


def test_suffixes_of_arrays_are_letters_of_the_key():
    names = set()
    for files in ("*.py", "models/*.py", "variants/*.py", "training/*.py"):
        for file in (ROOT / "transformer_jax").glob(files):
            nodes = ast.walk(ast.parse(file.read_text()))
            names |= {node.id for node in nodes if isinstance(node, ast.Name)}
    suffixes = {found[1] for name in names if (found := re.search("^[a-z]\\w*_([A-Z1]+)$", name))}
    assert len(suffixes) >= 20
    assert set("".join(suffixes)) <= {*LETTERS, "1"}
