"""Hooks: functions that are called during training and return numbers by name, or None.

The numbers go to metrics.jsonl as NAME_OF_THE_HOOK/NAME. A hook receives the following values, if
it has arguments of these names; state and run are copies:

  state   the training state: step, params, opt_state, state
  run     the model as it would be loaded now (see load_run)
  task    the data
  batch   the batch of the next update
  step    number of updates so far

A hook that changes training must be marked with `intervenes`; it then identifies cells of studies.
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

from transformer_jax import inspection
from transformer_jax.data.tasks import Batch, Task
from transformer_jax.errors import InvalidInput
from transformer_jax.options import is_user_defined
from transformer_jax.own import chosen, faults_of
from transformer_jax.own import intervenes as does_intervene
from transformer_jax.placement import sharded
from transformer_jax.processes import whole
from transformer_jax.training.measuring import is_number
from transformer_jax.training.run import Run
from transformer_jax.training.step import TrainState

if TYPE_CHECKING:
    from transformer_jax.sharding import Sharding

Numbers = Mapping[str, float]


def intervenes(hook: Callable) -> Callable:
    """Marks a hook that changes training; such a hook returns a new state, or (state, numbers)."""
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
    where = (run.model, run.sharding, "*block_*.residual")
    return _at_sites(*where, _size, run.params, batch["inputs"])


def attention_entropy(run: Run, batch: Batch) -> Numbers:
    """Mean entropy in nats of the attention weights of each layer, over a batch's tokens.

    Layers whose weights are not distributions (sigmoids, differences) are left out.
    """
    where = (run.model, run.sharding, "*attention.weights")
    entropies = _at_sites(*where, _entropy, run.params, batch["inputs"])
    return {name: number for name, number in entropies.items() if not jnp.isnan(number)}


def _size(value: jax.Array) -> jax.Array:
    return jnp.sqrt(jnp.mean(value.astype(jnp.float32) ** 2))


def _entropy(weights: jax.Array) -> jax.Array:
    entropy = inspection.mean_entropy(weights).mean()
    return jnp.where(inspection.are_distributions(weights), entropy, jnp.nan)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _at_sites(
    model: Any, sharding: "Sharding | None", pattern: str, of: Callable, params: Any, inputs: Any
) -> dict[str, jax.Array]:
    """Applies `of` to the value at each site that matches a pattern; returns results by site."""
    with sharded(sharding):
        values = inspection.capture(model, params, inputs, pattern)
        return {name: of(value) for name, value in values.items()}


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
    """Calls hooks by name, one after another, after `step` updates.

    Args:
      run_of: Function from a state to a run with complete parameters in this process.
      state: The state after `step` updates.
      names, task, order, step: Hooks, the data, the seed of its order, and the updates so far.
      allow: Modules that may be imported.
    Returns:
      The state, unchanged unless a hook intervened, and the numbers by HOOK/NAME.
    Raises:
      InvalidInput: A user-defined hook failed, or returned a value of the wrong type.
    """
    row: dict[str, float] = {}
    for name in names:
        hook, who = chosen(HOOKS, name, "hooks.functions", allow), f"hooks.functions={name}"
        is_own = is_user_defined(name)
        makers = {  # copies: a hook may keep them, and the next update reuses the state's memory
            "state": lambda state=state: whole(jax.tree.map(jnp.copy, state)),
            "run": lambda state=state: _copied(run_of(state)),
            "task": lambda: task,
            "batch": lambda: task.batch(order, step),
            "step": lambda: step,
        }
        arguments = inspect.signature(hook).parameters
        try:
            with faults_of(*([who] if is_own else [])):
                returned = hook(**{key: makers[key]() for key in arguments if key in makers})
        except InvalidInput as error:
            if is_own:
                raise
            raise InvalidInput(f"{who}: {error}") from error
        if does_intervene(name):
            is_pair = type(returned) is tuple and len(returned) == 2
            new, returned = returned if is_pair else (returned, None)
            if not isinstance(new, TrainState) or _shapes(new) != _shapes(state):
                raise InvalidInput(
                    f"{who}: a hook that intervenes must return a state of equal shapes and dtypes"
                )
            new = jax.tree.map(jnp.copy, new)
            # All processes continue from the state of the first one.
            state = broadcast_one_to_all(new) if jax.process_count() > 1 else new
        numbers = {} if returned is None else returned
        if not isinstance(numbers, Mapping) or not all(map(is_number, numbers.values())):
            raise InvalidInput(f"{who}: expected numbers by name, or None; got {str(numbers)[:60]}")
        row |= {f"{name.rpartition(':')[2]}/{key}": float(n) for key, n in numbers.items()}
    return state, row


def _copied(run: Run) -> Run:
    return dataclasses.replace(run, params=jax.tree.map(jnp.copy, run.params))


def _shapes(state: Any) -> Any:
    return jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), state)
