"""Where queries, keys and values come from: which maps of attention are learned.

Each row takes two functions and what attends to what. `learned(name, source)` projects [..., L, D]
to heads by a map of that name, and is the same map when it is asked for again; `split(source)` cuts
the features into heads as they are. Both give [..., heads, L, features].
"""

from collections.abc import Callable

from jax import Array

Learned = Callable[[str, Array], Array]
Split = Callable[[Array], Array]
Heads = tuple[Array, Array, Array]


def separate(learned: Learned, split: Split, inputs: Array, memory: Array) -> Heads:
    """A map each for queries, keys and values (Vaswani et al. 2017, section 3.2.2)."""
    return learned("query", inputs), learned("key", memory), learned("value", memory)


def shared_query_key(learned: Learned, split: Split, inputs: Array, memory: Array) -> Heads:
    """One map for queries and keys (Kitaev et al. 2020, arXiv:2001.04451, section 2).

    Scores of two places are then symmetric, but for positions. The keys keep their length here.
    """
    return learned("query", inputs), learned("query", memory), learned("value", memory)


def no_value(learned: Learned, split: Split, inputs: Array, memory: Array) -> Heads:
    """Values are the inputs themselves, cut into heads; only the output matrix follows."""
    return learned("query", inputs), learned("key", memory), split(memory)


def identity(learned: Learned, split: Split, inputs: Array, memory: Array) -> Heads:
    """Queries, keys and values are the inputs, cut into heads; only the output matrix is left."""
    return split(inputs), split(memory), split(memory)


PROJECTIONS = {
    "separate": separate,
    "shared_query_key": shared_query_key,
    "no_value": no_value,
    "identity": identity,
}
