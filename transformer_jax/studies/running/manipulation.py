"""Whether an arm's change took: how it differs from the base before anything is trained."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.errors import InvalidInput
from transformer_jax.paths import by_path
from transformer_jax.sites import values_by_site
from transformer_jax.training.objectives import score_batch
from transformer_jax.training.prepared import Prepared, seeds_of
from transformer_jax.training.sums import safe_mean


class ManipulationCheck(NamedTuple):
    """How an arm differs from the base before training; seed 0, first batch.

    Attributes:
      only_here: parameters that the base has not, or has with another shape.
      only_base: parameters that only the base has.
      paired: share of the arm's numbers that start with the base's values.
      logits: root mean square of the difference of logits, over that of the base's.
      loss: of the arm minus the base's, nats per target.
      gradient: norm of the difference of gradients, over the base's, where they share parameters.
      input_rms: of what enters the first block.
      sees_ahead: largest change of earlier logits when the last token changes; None where the model
        may look ahead, or reads no tokens.
    """

    only_here: tuple[str, ...]
    only_base: tuple[str, ...]
    paired: float
    logits: float
    loss: float
    gradient: float
    input_rms: float
    sees_ahead: float | None


class Probe(NamedTuple):
    """What is looked at in one arm, at its start.

    Attributes:
      params: path -> initial values.
      gradients: path -> gradient of the first batch's mean loss.
      logits: of the first batch.
      loss: its mean.
      input_rms: see ManipulationCheck.
      sees_ahead: see ManipulationCheck.
    """

    params: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    logits: np.ndarray
    loss: float
    input_rms: float
    sees_ahead: float | None


def probe(prepared: Prepared) -> Probe:
    """Starts an arm from seed 0, or from the weights it names, and looks at its first batch."""
    params = prepared.start(prepared.config)[0].params
    batch, model = prepared.task.batch(seeds_of(prepared.config).order, 0), prepared.model
    changed = _last_token_changed(prepared, batch)
    loss, gradients, logits, entering, ahead = _look(model)(params, batch, changed)
    return Probe(
        params=by_path(jax.device_get(params)),
        gradients=by_path(jax.device_get(gradients)),
        logits=np.asarray(logits, np.float64),
        loss=float(loss),
        input_rms=float(entering),
        sees_ahead=None if changed is None else float(ahead),
    )


@functools.lru_cache(maxsize=32)
def _look(model: Any) -> Callable:
    """A program that looks at a model once; arms with equal models share it.

    On a CPU it is hardly optimised, which is much faster for one run.
    """

    def look(params: Any, batch: Any, changed: Any) -> tuple:
        def mean_loss(params: Any) -> jax.Array:
            sums, _ = score_batch(model, params, batch)
            return safe_mean(sums.loss.sum(), sums.weight.sum())

        loss, gradients = jax.value_and_grad(mean_loss)(params)
        # One body for both: two copies of it are fused in two ways, and round in two.
        both = [batch["inputs"]] + ([] if changed is None else [changed])
        stacked = jax.tree.map(lambda *values: jnp.stack(values), *both)
        logits, entering = jax.lax.map(lambda inputs: _with_input(model, params, inputs), stacked)
        ahead = jnp.nan
        if changed is not None:
            ahead = jnp.abs(logits[1] - logits[0])[..., :-1, :].max()
        return loss, gradients, logits[0], entering[0], ahead

    quickly = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    return jax.jit(look, compiler_options=quickly)


def check_manipulation(arm: Probe, base: Probe) -> ManipulationCheck:
    """Compares an arm with the base."""
    shared = [
        path
        for path, value in arm.params.items()
        if path in base.params and base.params[path].shape == value.shape
    ]
    equal = [path for path in shared if np.array_equal(arm.params[path], base.params[path])]
    gradient = math.sqrt(sum(((arm.gradients[p] - base.gradients[p]) ** 2).sum() for p in shared))
    size = math.sqrt(sum((base.gradients[p] ** 2).sum() for p in shared))
    comparable = arm.logits.shape == base.logits.shape
    logits = _rms(arm.logits - base.logits) / _rms(base.logits) if comparable else math.nan
    return ManipulationCheck(
        only_here=tuple(path for path in arm.params if path not in shared),
        only_base=tuple(path for path in base.params if path not in shared),
        paired=sum(arm.params[p].size for p in equal) / sum(v.size for v in arm.params.values()),
        logits=float(logits),
        loss=arm.loss - base.loss,
        gradient=gradient / size if size else math.nan,
        input_rms=arm.input_rms,
        sees_ahead=arm.sees_ahead,
    )


def refuse_without_effect(
    name: str, changes: Mapping[str, Any], arm: str, base: str, without: Callable[[str], str]
) -> None:
    """Raises InvalidInput where an arm, or one of its changes, changes nothing that is read.

    Args:
      name: Of the arm.
      changes: That it makes to the base.
      arm: Hash of its cells.
      base: Hash of the base's cells.
      without: Changed key -> hash of the arm's cells with that one change taken back.
    """
    shown = ", ".join(f"{key}={value}" for key, value in changes.items())
    if arm == base:
        raise InvalidInput(
            f"arm {name!r} changes nothing ({shown}): no chosen component reads it, or the base "
            "has it already\nremove it, or change what the base reads"
        )
    for key in changes if len(changes) > 1 else ():
        try:
            is_read = without(key) != arm
        except InvalidInput:  # the other changes need it
            continue
        if not is_read:
            raise InvalidInput(
                f"arm {name!r}: {key}: without effect in this arm\n"
                "remove it from the arm, so that nobody believes it was tested"
            )


def refuse_looking_ahead(name: str, certificate: ManipulationCheck) -> None:
    """Raises InvalidInput where earlier logits depend on the last token, or are no numbers."""
    ahead = certificate.sees_ahead
    if ahead is not None and math.isnan(ahead):
        raise InvalidInput(f"arm {name!r}: the logits are not finite before any training")
    if ahead:
        raise InvalidInput(
            f"arm {name!r}: earlier logits change by {ahead:g} with the last token: the model "
            "looks ahead"
        )


def _last_token_changed(prepared: Prepared, batch: Any) -> dict | None:
    """The inputs with another last token, where the model must not notice before it."""
    if prepared.config.data.task != "language_modelling":
        return None
    tokens = np.array(batch["inputs"]["tokens"])
    tokens[..., -1] = (tokens[..., -1] + 1) % prepared.task.sizes["vocab_size"]
    return {**batch["inputs"], "tokens": tokens}


def _with_input(model: Any, params: Any, inputs: dict) -> tuple[jax.Array, jax.Array]:
    """Logits, and the root mean square of what enters the first block."""
    logits, state = model.apply({"params": params}, **inputs, mutable=["intermediates"])
    values = values_by_site(state.get("intermediates", {}))
    entering = values.get("embedded", values.get("encoder.embedded"))
    if entering is None:  # an architecture of the user's, without sites
        return logits, jnp.float32(jnp.nan)
    return logits, jnp.sqrt(jnp.square(entering.astype(jnp.float32)).mean())


def _rms(array: np.ndarray) -> float:
    return float(np.sqrt(np.square(array).mean()))
