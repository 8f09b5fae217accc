"""One law, tried on the user's own rows before they train: what is hidden cannot be seen."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.errors import InvalidInput
from transformer_jax.models import Decoder
from transformer_jax.options.rule import is_own
from transformer_jax.training.own import own_choices
from transformer_jax.training.prepared import Prepared

_READ_FROM_LEFT = ("language_modelling", "synthetic")
_NOISE = 0.3  # deviation that the parameters get: at 0 a leak would not show
_tried: set[Any] = set()  # models that keep the law; a study has the same one in many cells


def refuse_what_leaks(prepared: Prepared) -> None:
    """Tries the model on one batch, where a row of the user's own is in it; takes a second.

    A language model's logits must not change with a token that comes later, and no logits that
    are scored with what stands at a padded place.

    Raises:
      InvalidInput: they change; the text names the places.
    """
    config, model = prepared.config, prepared.model
    own = [f"{k}={v}" for k, v in own_choices(config).items() if k.startswith("model.")]
    if not own or model in _tried:
        return
    batch = prepared.task.batch(0, 0)
    inputs, scored = batch["inputs"], batch["weights"] > 0
    who = f"{', '.join(own)}: what is hidden is seen"
    of_own_task = is_own(config.data.task) and isinstance(model, Decoder)
    from_left = config.data.task in _READ_FROM_LEFT or of_own_task
    if from_left and _says_that_it_hides(model):
        middle = inputs["tokens"].shape[-1] // 2
        changed = np.zeros(inputs["tokens"].shape, bool)
        changed[:, middle:] = True
        scored = ~changed  # scored or not
        why = f"{who}: tokens from place {middle} on change the logits before it"
    elif "segments" in inputs and "tokens" in inputs and not from_left:
        changed = inputs["segments"] == 0
        why = f"{who}: tokens at padded places change what is scored"
    else:
        return
    if changed.any():
        _refuse_difference(prepared, inputs, changed, scored, why)
    _tried.add(model)


def _says_that_it_hides(model: Any) -> bool:
    """Whether it should hide what follows: a mask of the user's that shows a prefix need not."""
    return not hasattr(model, "hides_what_follows") or model.hides_what_follows()


def _refuse_difference(
    prepared: Prepared, inputs: Any, changed: np.ndarray, scored: np.ndarray, why: str
) -> None:
    """Raises InvalidInput where tokens at the changed places change logits that are scored."""
    noise = np.random.default_rng(0)
    shapes = prepared.template.params
    params = jax.tree.map(
        lambda leaf: jnp.asarray(noise.normal(scale=_NOISE, size=leaf.shape), leaf.dtype), shapes
    )
    apply = jax.jit(lambda tokens: prepared.model.apply({"params": params}, **inputs | tokens))
    tokens = inputs["tokens"]
    others = np.where(changed, (tokens + 1) % prepared.task.sizes["vocab_size"], tokens)
    before, after = (
        np.asarray(apply({"tokens": each.astype(tokens.dtype)}), np.float32)[scored]
        for each in (tokens, others)
    )
    largest = np.abs(before - after).max(initial=0.0)
    if not largest <= 1e-5 * max(np.abs(before).max(initial=0.0), 1.0):
        raise InvalidInput(f"{why}, by up to {largest:.2g}")
