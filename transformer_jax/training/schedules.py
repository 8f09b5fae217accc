"""Learning rate schedules by name: functions of peak rate, number of updates, and options.

Each returns a function from `count`, the number of earlier updates, to the rate of the next update.
Update n = 1, 2, ... uses the value of the curve at n, so the first rate is not 0.
"""

from collections.abc import Callable
from typing import Annotated, Any

import jax.numpy as jnp
import optax
from jax import Array
from typing_extensions import Doc

from transformer_jax.options import Count, Fraction, Natural, PositiveShare

_WarmUp = Annotated[Natural, Doc("Updates of linear warm-up; must be fewer than `steps`.")]
_FinalFraction = Annotated[Fraction, Doc("Final learning rate divided by the peak.")]


def constant(peak: float, steps: int) -> optax.Schedule:
    """The peak learning rate throughout the run."""
    return optax.constant_schedule(peak)


def warmup_constant(peak: float, steps: int, warmup_steps: _WarmUp = 100) -> optax.Schedule:
    """Linear warm-up, then the peak learning rate."""
    return _warmed_up(peak, steps, warmup_steps, lambda update: jnp.ones_like(update))


def warmup_cosine(
    peak: float, steps: int, warmup_steps: _WarmUp = 100, final_fraction: _FinalFraction = 0.1
) -> optax.Schedule:
    """Linear warm-up, then half a cosine (Loshchilov and Hutter 2017, arXiv:1608.03983, eq. 5).

    The rate is `peak` at update `warmup_steps`, and final_fraction * peak at the last update.
    """
    curve = optax.warmup_cosine_decay_schedule(0.0, 1.0, warmup_steps, steps, final_fraction)
    return lambda count: peak * curve(count + 1)


def warmup_linear(
    peak: float, steps: int, warmup_steps: _WarmUp = 100, final_fraction: _FinalFraction = 0.0
) -> optax.Schedule:
    """Linear warm-up, then linear decay (Devlin et al. 2019, appendix A.2)."""
    span = max(steps - warmup_steps, 1)
    after = lambda update: 1 - (1 - final_fraction) * (update - warmup_steps) / span  # noqa: E731
    return _warmed_up(peak, steps, warmup_steps, after)


def warmup_stable_decay(
    peak: float,
    steps: int,
    warmup_steps: _WarmUp = 100,
    decay_fraction: PositiveShare = 0.2,
    final_fraction: _FinalFraction = 0.0,
) -> optax.Schedule:
    """Linear warm-up, then the peak, then linear decay over the last part of the run.

    Hu et al. 2024, arXiv:2404.06395, sec. 4; linear decay: Hägele et al. 2024, arXiv:2405.18392.

    Args:
      decay_fraction: Fraction of the run's updates over which the rate falls.
    """
    decay_steps = max(round(decay_fraction * steps), 1)

    def after(update: Array) -> Array:
        fallen = jnp.maximum(update - (steps - decay_steps), 0) / decay_steps
        return 1 - (1 - final_fraction) * fallen

    return _warmed_up(peak, steps, warmup_steps, after)


def inverse_square_root(peak: float, steps: int, warmup_steps: Count = 4000) -> optax.Schedule:
    """The schedule of the original transformer (Vaswani et al. 2017, section 5.3, equation 3).

    Update n = 1, 2, ... uses peak * min(n / warmup_steps, sqrt(warmup_steps / n)). The paper's
    width^-0.5 * min(n^-0.5, n * warmup_steps^-1.5) has the peak (width * warmup_steps)^-0.5.

    Args:
      warmup_steps: Updates of linear warm-up.
    """
    return _warmed_up(peak, steps, warmup_steps, lambda update: jnp.sqrt(warmup_steps / update))


def _warmed_up(
    peak: float, steps: int, warmup_steps: int, after: Callable[[Array], Array]
) -> optax.Schedule:
    """Returns the schedule peak * n / warmup_steps up to the peak, then peak * after(n).

    After the last of its steps it holds its value.
    """

    def rate(count: Any) -> Array:
        update = jnp.asarray(jnp.minimum(count + 1, steps), jnp.float32)
        rising = update / max(warmup_steps, 1)
        return peak * jnp.where(update < warmup_steps, rising, after(update))

    return rate


SCHEDULES = {
    "constant": constant,
    "warmup_constant": warmup_constant,
    "warmup_cosine": warmup_cosine,
    "warmup_linear": warmup_linear,
    "warmup_stable_decay": warmup_stable_decay,
    "inverse_square_root": inverse_square_root,
}
