"""Sites: the named places inside a model where a value can be read, changed, or kept for later.

    encoder.block_3.attention.weights
    ------- ------------------------- an entry of SITES, `block_*.attention.weights`
    the stack, in a model with several

A module calls `value = site(self, "query", value)` when a value is ready. The value can then be

- read: it is sown into flax's collection `intermediates`; `inspection.capture` returns it by name
- changed: inside `interventions({pattern: function})` the function's result replaces it
- kept: `jax.checkpoint_policies.save_only_these_names("attention.query")` keeps it; that name is
  the entry of SITES without `block_*.`, the same for all blocks
- measured: profilers show the operations under the modules' names, `block_3/attention`

Unused sites cost nothing: a compiled program is the same without them. Their names do not change.
"""

import contextlib
import fnmatch
import re
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from typing import Any

import flax.linen as nn
import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from transformer_jax.errors import InvalidInput
from transformer_jax.placement import cut_at_site

# Shapes use the letters of shapes.py. `*` is the number of a block, from 0.
SITES = {
    "embedded": "[..., L, D]: input of the first block or recurrent layer",
    "block_*.attention.input": "[..., L, D]: input of attention, normalised in a pre-norm block",
    "block_*.attention.query": "[..., H, L, K]: queries, normalised and rotated",
    "block_*.attention.key": "[..., G, M, K]: keys, likewise; with a cache, only of new tokens",
    "block_*.attention.value": "[..., G, M, V]: values",
    "block_*.attention.weights": "[..., H, L, M]: weight of value m for query l",
    "block_*.attention.mixed": "[..., H, L, V]: output of each head, before the output map",
    "block_*.attention.out": "[..., L, D]: output, before dropout and the residual connection",
    "block_*.cross_attention.input": "as in attention; keys and values are those of the memory",
    "block_*.cross_attention.query": "[..., H, L, K]",
    "block_*.cross_attention.key": "[..., G, M, K]",
    "block_*.cross_attention.value": "[..., G, M, V]",
    "block_*.cross_attention.weights": "[..., H, L, M]",
    "block_*.cross_attention.mixed": "[..., H, L, V]",
    "block_*.cross_attention.out": "[..., L, D]",
    "block_*.mixer.input": "[..., L, D]: input of a mixer other than attention",
    "block_*.mixer.out": "[..., L, D]: output, before dropout and the residual connection",
    "block_*.feed_forward.input": "[..., L, D]",
    "block_*.feed_forward.hidden": "[..., L, F]: the last map's input; experts [..., L, E or k, F]",
    "block_*.feed_forward.out": "[..., L, D]: output, before dropout and the residual connection",
    "block_*.residual": "[..., L, D]: the stream after the block; [..., n, L, D] if several",
    "layer_*.out": "[..., L, D]: output of a recurrent layer; [..., L, 2 D] if bidirectional",
    "hidden": "[..., L, D]: after the last block and the final norm",
    "pooled": "[..., D]: input of a classifier; [..., 2 D] in a bidirectional recurrent network",
    "logits": "[..., L, V] or [..., C]",
}

Intervention = Callable[[Array], Array]


class _Changes:
    """Changes that are active while a context is open, and the patterns that matched a site."""

    def __init__(self, changes: Mapping[str, Intervention]) -> None:
        self.changes, self.met = dict(changes), set[str]()

    def of(self, full: str) -> Generator[tuple[str, Intervention]]:
        for pattern, change in self.changes.items():
            if fnmatch.fnmatchcase(full, pattern):
                self.met.add(pattern)
                yield pattern, change


_active: ContextVar[tuple[_Changes, ...]] = ContextVar("interventions", default=())
_IN_BLOCK = re.compile(r"\b(?:block|layer)_\d+\.(.*)")
_BEHIND_A_MODULE = "."  # ends a name in flax's collection that a submodule already has


def site(module: nn.Module, name: str, value: Array) -> Array:
    """Names a value inside the call of a module, and returns it after any interventions.

    Args:
      module: Module that computes the value; its path precedes the name.
      name: Last part of a name in SITES.
      value: Array of any shape.
    Returns:
      The value, or the result of an intervention on it.
    Raises:
      InvalidInput: An intervention changes the shape or the dtype.
    """
    full = ".".join((*module.path, name))
    for active in _active.get():
        for _, change in active.of(full):
            value = _changed(full, value, change)
    _sow(module, name, value)
    in_block = _IN_BLOCK.search(full)
    return checkpoint_name(cut_at_site(full, value), in_block[1] if in_block else name)


def show(module: nn.Module, name: str, make: Callable[[], Array]) -> None:
    """Names a value that the model itself does not use; it is computed only if it is read.

    Raises:
      InvalidInput: An intervention names the value, on which it would have no effect. Patterns
        with `*` in the value's own name are taken to mean other values.
    """
    full = ".".join((*module.path, name))
    for active in _active.get():
        for pattern, _ in active.of(full):
            if "*" not in pattern.rpartition(".")[2]:
                raise InvalidInput(f"{full}: this model only shows this value and never uses it")
    if module.is_mutable_collection("intermediates") and not module.is_initializing():
        _sow(module, name, make())


def _sow(module: nn.Module, name: str, value: Array) -> None:
    """Sows a value like flax, but adds a suffix to a name that a submodule has already taken."""
    scope = module.scope
    assert scope is not None
    taken = scope.name_reserved(name, "intermediates")
    if taken and not scope.has_variable("intermediates", name):
        name += _BEHIND_A_MODULE
    module.sow("intermediates", name, value)


def values_by_site(intermediates: Mapping[str, Any]) -> dict[str, Array]:
    """Returns the sown values by site, the last one if a site was reached several times."""
    values = {}
    for path, leaf in jax.tree.leaves_with_path(intermediates):
        names = [str(part.key) for part in path if hasattr(part, "key")]
        values[".".join(names).removesuffix(_BEHIND_A_MODULE)] = leaf
    return values


def _changed(full: str, value: Array, change: Intervention) -> Array:
    new = change(value)
    got = (getattr(new, "shape", type(new).__name__), getattr(new, "dtype", ""))
    if got != (value.shape, value.dtype):
        raise InvalidInput(
            f"{full}: expected {value.dtype}{list(value.shape)} from the intervention, got "
            f"{got[1]}{list(got[0]) if isinstance(got[0], tuple) else got[0]}"
        )
    return new


@contextlib.contextmanager
def interventions(changes: Mapping[str, Intervention]) -> Generator[None]:
    """Lets functions change the values at sites in every model that is called in the context.

    A function that is compiled inside keeps the changes, and one that was compiled before does not
    get them: use intervene, or compile inside and use the function only there.

    Args:
      changes: Functions from value to value, by name of a site; `*` stands for any part.
    Raises:
      InvalidInput: A change is not a function, or a name matched no site that was reached.
    """
    for pattern, change in changes.items():
        if not callable(change):
            raise InvalidInput(f"{pattern}: expected a function of the value, got {change!r}")
    inside = _Changes(changes)
    token = _active.set((*_active.get(), inside))
    try:
        yield
    finally:
        _active.reset(token)
    for pattern in changes.keys() - inside.met:
        raise InvalidInput(
            f"{pattern}: no site of this name was reached; functions that were compiled before are "
            "not traced again"
        )
