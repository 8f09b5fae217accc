"""One law, tried on the user's own rows before they train: what is hidden cannot be seen."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config_files import own_choices
from transformer_jax.data.laws import predicts_its_inputs
from transformer_jax.data.tasks.batch import Batch, take_rows
from transformer_jax.errors import InvalidInput
from transformer_jax.models import Decoder
from transformer_jax.models.stack import block_specs, mask_of
from transformer_jax.training.prepared import Prepared

_NOISE = 0.3  # deviation that the parameters get: at 0 a leak would not show
_ROWS = 4  # of a batch that are looked at
_tried: set[Any] = set()  # models that keep the law; a study has the same one in many cells


def refuse_what_leaks(prepared: Prepared) -> None:
    """Tries the model on one batch, where a row of the user's own is in it; takes a second.

    Logits of a model that predicts its next inputs must not change with a token that comes later,
    nor with one of another document; those of a decoder with no token that its masks hide; and no
    logits that are scored with what stands at a padded place.

    Raises:
      InvalidInput: they change; the text names the places.
    """
    config, model = prepared.config, prepared.model
    own = [f"{k}={v}" for k, v in own_choices(config).items() if k.startswith("model.")]
    if not own or model in _tried:
        return
    batch = _rows_of_most_kinds(prepared.task.batch(0, 0))
    who = f"{', '.join(own)}: what is hidden is seen"
    for changed, scored, what in _hidden(prepared, batch):
        if changed.any() and scored.any():
            _refuse_difference(prepared, batch["inputs"], changed, scored, f"{who}: {what}")
    _tried.add(model)


def _rows_of_most_kinds(batch: Batch) -> Batch:
    """A few rows, with padding and with many documents: a whole batch may not fit at once."""
    segments = batch["inputs"].get("segments")
    if segments is None:
        return take_rows(batch, slice(0, _ROWS))
    rows = segments.reshape(len(segments), -1)
    padding, documents = (rows == 0).sum(-1), np.array([len(np.unique(row)) for row in rows])
    most = [np.argsort(-counts, kind="stable")[: _ROWS // 2] for counts in (padding, documents)]
    return take_rows(batch, np.unique(most))


def _random_params(prepared: Prepared) -> Any:
    """Parameters in which nothing is 0 by design."""
    noise = np.random.default_rng(0)
    shapes = prepared.template.params
    return jax.tree.map(
        lambda leaf: jnp.asarray(noise.normal(scale=_NOISE, size=leaf.shape), leaf.dtype), shapes
    )


def _hidden(prepared: Prepared, batch: Batch) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """Tokens that are changed, places whose logits stay, and what is said where they do not."""
    inputs, model = batch["inputs"], prepared.model
    if "tokens" not in inputs:
        return
    shape = inputs["tokens"].shape
    segments = inputs.get("segments")
    from_left = getattr(prepared.task, "reads_from_left", predicts_its_inputs(batch))
    if (from_left or isinstance(model, Decoder)) and _says_that_it_hides(model):
        middle = shape[-1] // 2
        later = np.broadcast_to(np.arange(shape[-1]) >= middle, shape)
        yield later, ~later, f"tokens from place {middle} on change the logits before it"
        if segments is not None:
            first = segments == segments[:, :1]
            other = ~first & (segments > 0)
            yield first, other, "tokens of the first document change the logits of others"
    if segments is not None:
        reason = "tokens at padded places change what is scored"
        yield segments == 0, batch["weights"] > 0, reason
    if isinstance(model, Decoder):
        first = np.broadcast_to(np.arange(shape[-1]) == 0, shape)
        unseen = np.broadcast_to(~_reached_from_first(model, shape[-1]), shape)
        yield first, unseen, "the first token changes logits that model.mask hides it from"


def _reached_from_first(model: Decoder, length: int) -> np.ndarray:
    """Which places may depend on the first token, by the masks of all blocks, [L] bool."""
    reached = np.arange(length) == 0
    for spec in block_specs(model.options):
        mask = mask_of(spec.options, jnp.arange(length), True, None)
        seen = np.ones((length, length), bool) if mask is None else np.asarray(mask.dense())
        reached = reached | seen[:, reached].any(1)
    return reached


def _says_that_it_hides(model: Any) -> bool:
    """Whether it should hide what follows: a mask of the user's that shows a prefix need not."""
    return not hasattr(model, "is_causal") or model.is_causal()


def _refuse_difference(
    prepared: Prepared, inputs: Any, changed: np.ndarray, scored: np.ndarray, why: str
) -> None:
    """Raises InvalidInput where tokens at the changed places change logits that are scored."""
    params = _random_params(prepared)
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
