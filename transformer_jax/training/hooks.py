"""Functions that are called while a model is trained: HOOKS, and the mark of one that intervenes.

A hook declares what it wants, by the names of its arguments, and gives numbers by name, which go to
metrics.jsonl as NAME_OF_THE_HOOK/NAME:

  state   what training carries: step, params, opt_state
  run     the model as it would be loaded now (see load_run)
  task    its data
  batch   that of the update that follows
  step    updates so far

It gets copies, so what it does changes no bit of training; a hook that shall change some gives a
new state, or that and numbers, and says so by the mark `intervenes`. The cells of a study know.
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
    """Marks a hook that changes what is trained: it returns a new state, or (state, numbers)."""
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
    """Root mean square of the stream behind each block, over the places of a batch."""
    return _at_sites(run.model, run.sharding, "*block_*.residual", _size)(
        run.params, batch["inputs"]
    )


def attention_entropy(run: Run, batch: Batch) -> Numbers:
    """Mean entropy in nats of the attention weights of each layer, over a batch's tokens.

    Weights that are no distribution, as a sigmoid's and differences of two, have none.
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
    """Compiled: parameters and inputs -> a number for each site that a pattern fits."""

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
      run_of: makes a run of a state, whose parameters this process has whole.
      state: after an update.
      names: of the hooks.
      task: the data.
      order: seed of the data order.
      step: updates so far.
      allow: modules that may be imported.
    Returns:
      The state, the same unless a hook intervened, and the numbers that they gave.
    Raises:
      InvalidInput: a hook of the user's own failed, or gave something else; the text tells.
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
    """The new state, if it is one like the old one."""
    shapes = [
        jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), tree)
        for tree in (old, new)
    ]
    if not isinstance(new, TrainState) or shapes[0] != shapes[1]:
        raise InvalidInput(f"{who}: it intervenes; expected a state of the same arrays")
    return new


def _numbers(who: str, name: str, returned: Any) -> dict[str, float]:
    if returned is None:
        return {}
    if not isinstance(returned, Mapping) or not all(map(is_number, returned.values())):
        raise InvalidInput(f"{who}: expected numbers by name, or None; got {str(returned)[:60]}")
    return {f"{name}/{key}": float(value) for key, value in returned.items()}
