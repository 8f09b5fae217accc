"""Optimizers and learning-rate schedules, by name, all from optax."""

import functools
from typing import Any

import jax
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


SCHEDULES = {"constant": constant, "warmup_cosine": warmup_cosine}


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


def make_schedule(config: ConfigDict) -> optax.Schedule:
    """Returns the learning rate of the update that follows `count` earlier ones."""
    name = config.schedule.name
    schedule = row(SCHEDULES, name, "schedule.name")
    options = options_of(config.schedule, name)
    return schedule(config.optimizer.learning_rate, config.training.steps, **options)


def make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    """Returns clipping by global norm, if wanted, and then the config's optimizer."""
    name = config.optimizer.name
    optimizer = row(OPTIMIZERS, name, "optimizer.name")(
        make_schedule(config),
        config.optimizer.weight_decay,
        functools.partial(decay_mask, names=config.optimizer.decay_parameters),
        **options_of(config.optimizer, name),
    )
    if config.training.clip_norm is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(config.training.clip_norm), optimizer)
