"""Diagnosis of an update whose loss or gradient was not finite."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.data.tasks.batch import Batch
from transformer_jax.errors import Stop
from transformer_jax.paths import by_path
from transformer_jax.training.objectives import Sums, safe_mean, total


class NonFinite(Stop):
    """Error for a loss or gradient that was not finite; the parameters were not changed."""


def non_finite(score: Callable[..., Sums], params: Any, batch: Batch, step: int) -> NonFinite:
    """Returns the error for an update that was not applied, with a reason and possible remedies.

    The reason is the first array that is not finite among parameters, loss and gradients.

    Args:
      score: Function from parameters and a batch to the Sums of each example, without dropout.
      params: Parameters before the update.
      batch: Batch of the update.
      step: Number of updates before this update.
    """

    def mean_loss(params: Any) -> Array:
        sums = total(score(params, batch))
        return safe_mean(sums.loss, sums.weight)

    try:
        loss, gradients = jax.value_and_grad(mean_loss)(params)
    except jax.errors.JaxRuntimeError as error:  # a batch trained in parts may not fit as a whole
        failed = str(error).partition("\n")[0][:200]
        reason = f"the array could not be determined: {failed}"
    else:
        arrays = {f"parameter {name}": leaf for name, leaf in by_path(params).items()}
        arrays |= {"the loss": loss}
        arrays |= {f"gradient of {name}": leaf for name, leaf in by_path(gradients).items()}
        bad = [name for name, leaf in arrays.items() if not jnp.isfinite(leaf).all()]
        reason = "without dropout, the loss and its gradient are finite"
        if bad:
            reason = f"first of {len(bad)} arrays that are not finite: {bad[0]}"
    return NonFinite(
        f"the loss or its gradient is not finite in update {step + 1}, which was not applied: "
        f"the parameters are those after update {step}\n{reason}\n"
        "the same command repeats that update; to avoid the failure, try, in a new --workdir, a "
        "lower optimizer.learning_rate, a longer warm-up or a smaller training.clip_norm"
    )
