"""Parameters that stay on the unit sphere: optimizer.unit_vectors."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from transformer_jax.paths import path_text
from transformer_jax.training.step import TrainState, draw_state


def on_sphere(params: Any, width: int) -> Any:
    """Returns parameters whose kernels and embeddings consist of vectors of length 1.

    The vectors lie along the axis of the model's width: of the last two axes of a kernel, the one
    of this size, or if both are, the last one for embeddings and the maps `out` and `down`, which
    write to the residual stream, and the other one for the rest, which reads from it. Others are
    left as they are. Loshchilov et al. 2024, arXiv:2410.01131, section 2.6, step 2.
    """

    def normalised(path: tuple, param: Array) -> Array:
        *_, module, name = ("", *path_text(path).split("/"))
        if name not in ("kernel", "embedding"):
            return param
        writes = name == "embedding" or module in ("out", "down")
        axis = -1 if writes else -2
        if param.ndim < 2 or width not in param.shape[-2:]:
            return param
        if param.shape[axis] != width:
            axis = -3 - axis
        length = jnp.linalg.norm(param, axis=axis, keepdims=True)
        return param / jnp.where(length == 0, 1, length)

    return jax.tree.map_with_path(normalised, params)


def draw_on_sphere(
    model: Any, optimizer: optax.GradientTransformation, width: int, seed: Any
) -> TrainState:
    """Returns the state of draw_state, with its parameters on_sphere."""
    state = draw_state(model, optimizer, seed)
    params = on_sphere(state.params, width)
    return state._replace(params=params, opt_state=optimizer.init(params))


def end_on_sphere(width: int) -> optax.GradientTransformation:
    """Returns a transformation after which updated parameters are on_sphere."""

    def ended(updates: Any, params: Any) -> Any:
        new = on_sphere(optax.apply_updates(params, updates), width)
        return jax.tree.map(jnp.subtract, new, params)

    return optax.stateless(ended)
