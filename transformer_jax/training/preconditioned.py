"""Optimizers of 2024 and 2025, imported only when one of them is chosen."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax import Array
from typing_extensions import Doc

from transformer_jax.options import Count, Natural, Positive, Switch, TracedShare
from transformer_jax.training.more_optimizers import of_matrices, orthogonal_momentum
from transformer_jax.training.optimizers import (
    Epsilon,
    FirstDecay,
    SecondDecay,
    Transformation,
    UpdateParts,
)

_Beta = Annotated[TracedShare, Doc("Decay of the momentum.")]


def ademamix(
    parts: UpdateParts,
    b1: FirstDecay = 0.9,
    b2: SecondDecay = 0.999,
    b3: TracedShare = 0.9999,
    alpha: Positive = 8.0,
    warmup: Natural = 0,
    eps: Epsilon = 1e-8,
) -> Transformation:
    """AdamW with a second, slow mean of gradients (Pagliardini et al. 2024, arXiv:2409.03137).

    See algorithm 1. In the paper, alpha and b3 grow to their values over the whole run.

    Args:
      b3: Decay per step of the slow mean.
      alpha: Weight of the slow mean.
      warmup: Updates over which alpha grows from 0 and b3 from b1, by equations in appendix D.
    """

    def decay(count: Array) -> Array:
        share = jnp.minimum((count + 1) / max(warmup, 1), 1.0)
        first, last = (jnp.log(jnp.maximum(decay, 1e-8)) for decay in (b1, b3))
        return jnp.exp(first * last / ((1 - share) * last + share * first))

    def weight(count: Array) -> Array:
        return alpha * jnp.minimum((count + 1) / max(warmup, 1), 1.0)

    slow: tuple[Any, Any] = (decay, weight) if warmup else (b3, alpha)
    rule = optax.contrib.scale_by_ademamix(b1, b2, *slow, eps=eps)
    return optax.chain(rule, parts.decay, parts.rate)


def normuon(
    parts: UpdateParts,
    beta: _Beta = 0.95,
    beta2: TracedShare = 0.95,
    nesterov: Switch = True,
    b1: FirstDecay = 0.9,
    b2: SecondDecay = 0.99,
) -> Transformation:
    """Muon whose updates have the same size for every neuron; AdamW for everything else.

    Li et al. 2025, arXiv:2510.05491, algorithm 1: the orthogonalised momentum of each output is
    divided by the root of a running mean of its squares, and the whole matrix is scaled to the size
    of AdamW's updates, as in muon.

    Args:
      beta2: Decay of the running mean of squares.
      nesterov: Whether to use Nesterov momentum.
      b1: AdamW's b1, for embeddings, norms, biases and parameters outside the blocks.
      b2: AdamW's b2, for the same parameters.
    """
    rule = optax.chain(orthogonal_momentum(beta, nesterov), _same_size(beta2))
    return optax.chain(of_matrices(rule, optax.scale_by_adam(b1, b2)), parts.decay, parts.rate)


def _same_size(beta2: Any) -> Transformation:
    """Divides each output's update by the root of its running mean square, then sets the size."""

    def init(params: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros((*leaf.shape[:-2], 1, leaf.shape[-1])), params)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        def mean(square: Array, leaf: Array) -> Array:
            new = jnp.square(leaf).mean(-2, keepdims=True)
            return beta2 * square + (1 - beta2) * new

        def sized(leaf: Array, square: Array) -> Array:
            even = leaf / (jnp.sqrt(square) + 1e-8)
            norm = jnp.sqrt(jnp.square(even).sum((-2, -1), keepdims=True))
            return even * (0.2 * (leaf.shape[-1] * leaf.shape[-2]) ** 0.5 / (norm + 1e-8))

        state = jax.tree.map(mean, state, updates)
        return jax.tree.map(sized, updates, state), state

    return optax.GradientTransformation(init, update)


def soap(
    parts: UpdateParts,
    b1: FirstDecay = 0.95,
    b2: SecondDecay = 0.95,
    eps: Epsilon = 1e-8,
    every: Count = 10,
) -> Transformation:
    """AdamW in the eigenbasis of Shampoo's preconditioner, for the blocks' kernels.

    Vyas et al. 2024, arXiv:2409.11321, algorithm 3; AdamW for everything else. As in the paper's
    code, the first update of the kernels only finds their basis. Each needs two square matrices.

    Args:
      every: Updates between new bases, each a step of the power iteration.
    """
    rule = scale_by_soap(b1, b2, eps, every)
    return optax.chain(of_matrices(rule, optax.scale_by_adam(b1, b2, eps)), parts.decay, parts.rate)


class SoapState(NamedTuple):
    """State of SOAP: trees of arrays for kernels [..., M, N]."""

    count: Array  # of updates
    mean: Any  # of gradients, [..., M, N]
    square: Any  # mean square of rotated gradients, [..., M, N]
    sides: Any  # means of G G^T and G^T G, pairs of [..., M, M] and [..., N, N]
    bases: Any  # their eigenvectors, pairs of the same shapes


def scale_by_soap(b1: Any, b2: Any, eps: Any, every: int) -> Transformation:
    """Returns SOAP's rule for a tree of kernels [..., M, N]; see soap."""

    def init(params: Any) -> SoapState:
        zeros = jax.tree.map(jnp.zeros_like, params)

        def squares(make: Callable[[int], Array]) -> Any:
            def of(leaf: Array) -> tuple[Array, ...]:
                shapes = ((*leaf.shape[:-2], size, size) for size in leaf.shape[-2:])
                return tuple(jnp.broadcast_to(make(shape[-1]), shape) for shape in shapes)

            return jax.tree.map(of, params)

        sides = squares(lambda size: jnp.zeros((size, size)))
        return SoapState(jnp.int32(0), zeros, zeros, sides, squares(jnp.eye))

    def update(updates: Any, state: SoapState, params: Any = None) -> tuple[Any, SoapState]:
        count, is_first = state.count + 1, state.count == 0
        leaves, treedef = jax.tree.flatten(updates)
        columns = (treedef.flatten_up_to(tree) for tree in state[1:])
        results = [one(is_first, count, *each) for each in zip(leaves, *columns, strict=True)]
        moved, *rest = (treedef.unflatten(column) for column in zip(*results, strict=True))
        return moved, SoapState(count, *rest)

    def one(
        is_first: Array,
        count: Array,
        gradient: Array,
        mean: Array,
        square: Array,
        sides: tuple[Array, Array],
        bases: tuple[Array, Array],
    ) -> tuple:
        left, right = bases
        new_mean = b1 * mean + (1 - b1) * gradient
        rotated = left.mT @ gradient @ right
        new_square = b2 * square + (1 - b2) * jnp.square(rotated)
        number = count - 1  # the first update finds the basis alone
        size = jnp.sqrt(1 - b2**number) / jnp.where(is_first, 1, 1 - b1**number)
        step = (left.mT @ new_mean @ right) / (jnp.sqrt(new_square) + eps)
        step = left @ (step * size) @ right.mT
        products = gradient @ gradient.mT, gradient.mT @ gradient
        pairs = zip(sides, products, strict=True)
        new_sides = tuple(b2 * side + (1 - b2) * product for side, product in pairs)

        def found() -> tuple[Array, ...]:
            return tuple(jnp.flip(jnp.linalg.eigh(side)[1], axis=-1) for side in new_sides)

        def iterated() -> tuple[Array, ...]:
            both = zip(new_sides, bases, strict=True)
            return tuple(jnp.linalg.qr(side @ basis)[0] for side, basis in both)

        kept = lambda: bases  # noqa: E731
        which = jnp.where(is_first, 0, jnp.where(number % every == 0, 1, 2))
        new_bases = jax.lax.switch(which, [found, iterated, kept])
        held = ((mean, new_mean), (square, new_square))
        mean, square = (jnp.where(is_first, old, new) for old, new in held)
        return jnp.where(is_first, 0, step), mean, square, new_sides, new_bases

    return optax.GradientTransformation(init, update)  # ty: ignore[invalid-argument-type]
