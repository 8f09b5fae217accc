"""One optimizer update as a pure function, and many of them in one compiled program."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import Array

from transformer_jax.data.tasks.batch import Batch
from transformer_jax.paths import with_state
from transformer_jax.placement import cut_examples
from transformer_jax.training.objectives import CrossEntropy, Sums, safe_mean, score_batch, total


class TrainState(NamedTuple):
    """State that training carries from step to step."""

    step: Array  # number of updates so far, int32
    params: Any
    opt_state: Any
    state: Any = {}  # noqa: RUF012, the model's collection `state`, outside the gradient


class StepRecord(NamedTuple):
    """Measurements of one training step."""

    loss: Array  # the objective's mean over weighted targets before the update; nan without any
    gradient_norm: Array  # global, before clipping
    applied: Array  # whether both are finite; otherwise the state is unchanged


def draw_state(
    model: Any, optimizer: optax.GradientTransformation, seed: int | Array
) -> TrainState:
    """Returns a state at step 0, drawn with a seed, for a model that has `example_inputs`."""
    init_key, _ = jax.random.split(jax.random.key(seed))
    variables = model.init(init_key, **model.example_inputs())
    params = variables["params"]
    return TrainState(jnp.int32(0), params, optimizer.init(params), variables.get("state", {}))


def make_mean_gradients(
    model: nn.Module, objective: Any, accumulation: int, chunk: int | None = None
) -> Callable[..., tuple[Any, Sums, Any]]:
    """Returns a function to gradients of the mean loss, Sums, and the model's new state.

    Its arguments are parameters, batch, key, and the collection `state` if the model has one. The
    mean is over all weighted targets of the batch. The sums over its `accumulation` parts are
    added and divided once, so the result is that of the whole batch even if the parts have
    different numbers of real tokens. Losses that layers add (e.g. load balancing) enter the
    gradients, but not the sums. All parts read the same state; the new state is their mean.
    """

    def loss_sum(params: Any, state: Any, part: Batch, key: Array) -> tuple[Array, tuple]:
        own_key = jax.random.fold_in(key, 1)  # for random numbers of the objective
        options = {"chunk": chunk, "train": True, "rngs": {"dropout": key}}
        both = with_state(params, state)
        loss, sums, added, new = score_batch(model, both, part, objective, own_key, **options)
        # Losses of layers are per example, so they are multiplied by the weight of its targets: in
        # the end everything is divided by the weight of all targets.
        return loss + (added * sums.weight).sum(), (total(sums), new or {})

    differentiate = jax.grad(loss_sum, has_aux=True)

    def in_parts(params: Any, state: Any, batch: Batch, key: Array) -> tuple[Any, tuple]:
        split = lambda leaf: leaf.reshape(accumulation, -1, *leaf.shape[1:])  # noqa: E731
        parts = cut_examples(jax.tree.map(split, batch), 1)
        keys = jax.random.split(key, accumulation)

        def add(carry: tuple, part: tuple) -> tuple[tuple, None]:
            return jax.tree.map(jnp.add, carry, differentiate(params, state, *part)), None

        shapes = jax.eval_shape(differentiate, params, state, batch, key)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        summed, (sums, states) = jax.lax.scan(add, zeros, (parts, keys))[0]
        return summed, (sums, jax.tree.map(lambda leaf: leaf / accumulation, states))

    def mean_gradients(
        params: Any, batch: Batch, key: Array, state: Any = None
    ) -> tuple[Any, Sums, Any]:
        sum_up = differentiate if accumulation == 1 else in_parts
        summed, (sums, state) = sum_up(params, state or {}, batch, key)
        return jax.tree.map(lambda leaf: safe_mean(leaf, sums.weight), summed), sums, state

    return mean_gradients


def make_train_step(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    seed: int | Array,
    accumulation: int = 1,
    objective: Any = CrossEntropy(),  # noqa: B008, it is frozen
    chunk: int | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, StepRecord]]:
    """Returns a pure function for one optimizer update: gradients, then the optimizer's step.

    The model takes the batch's inputs and `train`; the optimizer clips (see make_optimizer). `seed`
    is the seed of dropout, whose key at a step is fold_in(key, step). A batch is computed in
    `accumulation` parts, and its logits for `chunk` positions at a time; see chunk_length.
    """
    _, dropout_key = jax.random.split(jax.random.key(seed))
    mean_gradients = make_mean_gradients(model, objective, accumulation, chunk)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepRecord]:
        key = jax.random.fold_in(dropout_key, state.step)
        gradients, sums, held = mean_gradients(state.params, batch, key, state.state)
        norm = optax.tree.norm(gradients)
        loss = safe_mean(sums.loss, sums.weight)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)

        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        updated = TrainState(state.step + 1, params, opt_state, {**state.state, **held})
        # lax.cond would copy the whole state on a GPU, and clipping would compute the norm again.
        updated = jax.tree.map(functools.partial(jnp.where, finite), updated, state)
        return updated, StepRecord(jnp.where(sums.weight == 0, jnp.nan, loss), norm, finite)

    return train_step


def make_run_steps(train_step: Callable) -> Callable:
    """Returns a function that takes many steps in one compiled program.

    The number of steps is an argument of the program, so one compilation serves every number, and
    any division of a run into calls gives the same bits. The first step whose loss or gradient is
    not finite ends the call with the state before that step.
    """
    step = jax.jit(train_step, inline=True)  # traced once for its shapes and its operations

    def run_steps(state: TrainState, batches: Batch, count: Array) -> tuple[TrainState, StepRecord]:
        """Takes `count` steps on stacked batches [C, B, ...]; returns state and records [C]."""
        capacity = batches["weights"].shape[0]
        first = jax.tree.map(lambda leaf: leaf[0], batches)
        _, shapes = jax.eval_shape(step, state, first)
        records = jax.tree.map(lambda leaf: jnp.zeros(capacity, leaf.dtype), shapes)

        def take_step(carry: tuple) -> tuple:
            index, _, state, records = carry
            batch = jax.tree.map(lambda leaf: leaf[index], batches)
            state, record = step(state, batch)
            records = jax.tree.map(lambda row, value: row.at[index].set(value), records, record)
            return index + 1, record.applied, state, records

        def goes_on(carry: tuple) -> Array:
            index, applied, _, _ = carry
            return (index < count) & applied

        start = (jnp.int32(0), jnp.bool_(True), state, records)
        return jax.lax.while_loop(goes_on, take_step, start)[2:]

    return run_steps
