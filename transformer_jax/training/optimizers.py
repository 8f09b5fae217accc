"""Optimizers and learning-rate schedules, by name, all from optax."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from transformer_jax.models import row
from transformer_jax.training.config import options_of


def constant(peak: float, steps: int) -> optax.Schedule:
    """The peak learning rate throughout."""
    return optax.constant_schedule(peak)


def warmup_cosine(
    peak: float, steps: int, warmup_steps: int, final_fraction: float
) -> optax.Schedule:
    """Linear warm-up, then half a cosine (Loshchilov and Hutter 2017, arXiv:1608.03983, eq. 5).

    Update n = 1 .. steps uses the curve's value at n: the first update already moves, update
    warmup_steps has the peak, and the last one has final_fraction * peak.

    Args:
      peak: learning rate after the warm-up.
      steps: updates in the run.
      warmup_steps: updates of linear warm-up.
      final_fraction: learning rate of the last update over the peak.
    """
    curve = optax.warmup_cosine_decay_schedule(
        0.0, peak, warmup_steps, steps, end_value=peak * final_fraction
    )
    return lambda count: curve(count + 1)


def inverse_square_root(peak: float, steps: int, warmup_steps: int) -> optax.Schedule:
    """The first transformer's schedule (Vaswani et al. 2017, section 5.3, equation 3).

    Update n = 1, 2, ... uses peak * min(n / warmup_steps, sqrt(warmup_steps / n)). The paper's
    width^-0.5 * min(n^-0.5, n * warmup_steps^-1.5) has the peak (width * warmup_steps)^-0.5.

    Args:
      peak: learning rate after the warm-up.
      steps: updates in the run; the curve does not depend on them.
      warmup_steps: updates of linear warm-up, at least 1.
    """

    def rate(count: Any) -> Any:
        update = jnp.asarray(count + 1, jnp.float32)
        return peak * jnp.minimum(update / warmup_steps, jnp.sqrt(warmup_steps / update))

    return rate


SCHEDULES = {
    "constant": constant,
    "warmup_cosine": warmup_cosine,
    "inverse_square_root": inverse_square_root,
}


def adamw(
    learning_rate: optax.Schedule, weight_decay: float, decays: Any, **moments: Any
) -> optax.GradientTransformation:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101, alg. 2)."""
    return optax.adamw(learning_rate, weight_decay=weight_decay, mask=decays, **moments)


OPTIMIZERS = {"adamw": adamw}


def decay_mask(params, names: tuple[str, ...]):
    """Returns a tree of bools: which parameters decay, by the last part of their path.

    By name and not by number of axes, which is wrong for parameters stacked over layers or seeds.
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key in names, params)


def frozen_mask(params, prefixes: tuple[str, ...]):
    """Returns a tree of bools: which parameters stay as they are, by the beginning of their path.

    A prefix is whole names joined by /: block_1 is not a prefix of block_11/attention.
    """

    def is_frozen(path: tuple, _: Any) -> bool:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return any(f"{name}/".startswith(f"{prefix}/") for prefix in prefixes)

    return jax.tree_util.tree_map_with_path(is_frozen, params)


def make_schedule(config: ConfigDict) -> optax.Schedule:
    """Returns the learning rate of the update that follows `count` earlier ones."""
    name = config.schedule.name
    schedule = row(SCHEDULES, name, "schedule.name")
    options = options_of(config.schedule, name)
    return schedule(config.optimizer.learning_rate, config.training.steps, **options)


def make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    """Returns clipping by global norm, if wanted, the config's optimizer, and what is frozen."""
    name = config.optimizer.name
    optimizer = row(OPTIMIZERS, name, "optimizer.name")(
        make_schedule(config),
        config.optimizer.weight_decay,
        functools.partial(decay_mask, names=config.optimizer.decay_parameters),
        **options_of(config.optimizer, name),
    )
    if config.training.clip_norm is not None:
        optimizer = optax.chain(optax.clip_by_global_norm(config.training.clip_norm), optimizer)
    if not config.training.frozen:
        return optimizer
    frozen = functools.partial(frozen_mask, prefixes=config.training.frozen)
    stop = optax.masked(optax.set_to_zero(), frozen)
    return optax.chain(stop, optimizer, stop)  # neither clipping nor weight decay sees them
