"""Parameters that stay on the unit sphere: optimizer.unit_vectors."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from transformer_jax.paths import path_text
from transformer_jax.training.step import TrainState, draw_state


def on_sphere(params: Any) -> Any:
    """Returns parameters whose kernels and embeddings consist of vectors of length 1.

    The vectors lie along the axis of the model's width D: the last one of embeddings and of the
    kernels of maps named `out` and `down`, which write to the residual stream, and the one before
    the last of other kernels, which read from it. Loshchilov et al. 2024, arXiv:2410.01131,
    section 2.6, step 2.
    """

    def normalised(path: tuple, param: Array) -> Array:
        *_, module, name = ("", *path_text(path).split("/"))
        if name not in ("kernel", "embedding"):
            return param
        axis = -1 if name == "embedding" or module in ("out", "down") else -2
        length = jnp.linalg.norm(param, axis=axis, keepdims=True)
        return param / jnp.where(length == 0, 1, length)

    return jax.tree.map_with_path(normalised, params)


def draw_on_sphere(model: Any, optimizer: optax.GradientTransformation, seed: Any) -> TrainState:
    """Returns the state of draw_state, with its parameters on_sphere."""
    state = draw_state(model, optimizer, seed)
    params = on_sphere(state.params)
    return state._replace(params=params, opt_state=optimizer.init(params))


def end_on_sphere() -> optax.GradientTransformation:
    """Returns a transformation after which updated parameters are on_sphere."""

    def ended(updates: Any, params: Any) -> Any:
        new = on_sphere(optax.apply_updates(params, updates))
        return jax.tree.map(jnp.subtract, new, params)

    return optax.stateless(ended)
