"""Hooks, functions that are called during training: HOOKS, and the mark of one that intervenes.

The names of a hook's arguments say what it needs, and it returns numbers by name, which go to
metrics.jsonl as NAME_OF_THE_HOOK/NAME:

  state   the training state: step, params, opt_state
  run     the model as it would be loaded now (see load_run)
  task    the data
  batch   the batch of the next update
  step    number of updates so far

It gets copies, so it changes no bit of training. A hook that is meant to returns a new
state, or a state and numbers, and is marked by `intervenes`; that identifies a study's cells too.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all

from transformer_jax import inspection, own
from transformer_jax.data.tasks import Batch, Task
from transformer_jax.errors import InvalidInput
from transformer_jax.options import is_user_defined
from transformer_jax.own import chosen, faults_of
from transformer_jax.placement import sharded
from transformer_jax.processes import whole
from transformer_jax.training.measuring import is_number
from transformer_jax.training.run import Run
from transformer_jax.training.step import TrainState

if TYPE_CHECKING:
    from transformer_jax.sharding import Sharding

Numbers = Mapping[str, float]


def intervenes(hook: Callable) -> Callable:
    """Marks a hook that changes training: it returns a new state, or (state, numbers)."""
    hook.intervenes = True  # ty: ignore[missing-attribute]
    return hook


def parameter_norms(state: TrainState) -> Numbers:
    """Root mean square of the parameters of each part of the model."""
    return {
        name: float(np.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves) / sum(x.size for x in leaves)))
        for name, part in state.params.items()
        if (leaves := jax.tree.leaves(part))
    }


def residual_norms(run: Run, batch: Batch) -> Numbers:
    """Root mean square of the residual stream after each block, over the positions of a batch."""
    return _at_sites(run.model, run.sharding, "*block_*.residual", _size)(
        run.params, batch["inputs"]
    )


def attention_entropy(run: Run, batch: Batch) -> Numbers:
    """Mean entropy in nats of the attention weights of each layer, over a batch's tokens.

    Weights that are not distributions, of sigmoids or differences, have none.
    """
    entropies = _at_sites(run.model, run.sharding, "*attention.weights", _entropy)(
        run.params, batch["inputs"]
    )
    return {name: number for name, number in entropies.items() if not jnp.isnan(number)}


def _size(value: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.mean(value.astype(jnp.float32) ** 2))


def _entropy(weights: jax.Array) -> jax.Array:
    entropy = inspection.mean_entropy(weights).mean()
    return jnp.where(inspection.are_distributions(weights), entropy, jnp.nan)


@functools.lru_cache(maxsize=32)
def _at_sites(
    model: Any, sharding: "Sharding | None", pattern: str, of: Callable
) -> Callable[[Any, Any], Numbers]:
    """Returns a compiled function from parameters and inputs to a number per matching site."""

    @jax.jit
    def numbers(params: Any, inputs: Any) -> Numbers:
        with sharded(sharding):
            values = inspection.capture(model, params, inputs, pattern)
            return {name: of(value) for name, value in values.items()}

    return numbers


HOOKS: dict[str, Callable] = {
    "parameter_norms": parameter_norms,
    "residual_norms": residual_norms,
    "attention_entropy": attention_entropy,
}


def call_hooks(
    run_of: Callable[[TrainState], Run],
    state: TrainState,
    names: Sequence[str],
    task: Task,
    order: int,
    step: int,
    allow: Collection[str],
) -> tuple[TrainState, dict[str, float]]:
    """Calls hooks one after another.

    Args:
      run_of: Function from a state, whose parameters this process has whole, to a run.
      state: The state after an update.
      names: Names of the hooks.
      task: The data.
      order: Seed of the data order.
      step: Updates so far.
      allow: Modules that may be imported.
    Returns:
      The state, unchanged unless a hook intervened, and the numbers.
    Raises:
      InvalidInput: A user-defined hook failed, or returned something else.
    """
    row: dict[str, float] = {}
    for name in names:
        hook, who = chosen(HOOKS, name, "hooks.functions", allow), f"hooks.functions={name}"
        changes = own.intervenes(name)
        makers = {  # copies, since a hook may keep them and the next update ends the state
            "state": lambda state=state: whole(jax.tree.map(jnp.copy, state)),
            "run": lambda state=state: _copied(run_of(state)),
            "task": lambda: task,
            "batch": lambda: task.batch(order, step),
            "step": lambda: step,
        }
        arguments = inspect.signature(hook).parameters
        try:
            with faults_of(*([who] if is_user_defined(name) else [])):
                returned = hook(**{key: makers[key]() for key in arguments if key in makers})
        except InvalidInput as error:
            raise InvalidInput(
                str(error) if is_user_defined(name) else f"{who}: {error}"
            ) from error
        if changes:
            new, returned = (
                returned if type(returned) is tuple and len(returned) == 2 else (returned, None)
            )
            new = jax.tree.map(jnp.copy, _checked(who, state, new))
            # Each process has its own, and they are to be one.
            state = broadcast_one_to_all(new) if jax.process_count() > 1 else new
        row |= _numbers(who, name.rpartition(":")[2], returned)
    return state, row


def _copied(run: Run) -> Run:
    return dataclasses.replace(run, params=jax.tree.map(jnp.copy, run.params))


def _checked(who: str, old: TrainState, new: Any) -> TrainState:
    """Returns the new state if it has the same arrays as the old one."""
    shapes = [
        jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), tree)
        for tree in (old, new)
    ]
    if not isinstance(new, TrainState) or shapes[0] != shapes[1]:
        raise InvalidInput(f"{who}: a hook that intervenes must return a state of the same arrays")
    return new


def _numbers(who: str, name: str, returned: Any) -> dict[str, float]:
    if returned is None:
        return {}
    if not isinstance(returned, Mapping) or not all(map(is_number, returned.values())):
        raise InvalidInput(f"{who}: expected numbers by name, or None; got {str(returned)[:60]}")
    return {f"{name}/{key}": float(value) for key, value in returned.items()}
