"""Checks, before training, that user-defined components neither leak nor give NaN from padding."""

import inspect
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.laws import predicts_its_inputs
from transformer_jax.data.tasks.batch import Batch, take_rows
from transformer_jax.errors import InvalidInput
from transformer_jax.models import Decoder
from transformer_jax.models.stack import block_specs, mask_of
from transformer_jax.training.compatibility import own_rows_of_model
from transformer_jax.training.prepared import Prepared

_NOISE = 0.3  # standard deviation of the parameters; with zeros a leak would not show
_ROWS = 4  # rows of the batch that are used
_tried: set[Any] = set()  # models that passed; many cells of a study have the same model


def refuse_what_leaks(prepared: Prepared) -> None:
    """Raises InvalidInput if a model with user-defined components leaks or gives NaN on one batch.

    The check takes about a second. If a model predicts its next inputs, logits must not depend on
    later tokens or other documents. A decoder's logits must not depend on tokens that its masks
    hide, and scored logits must not depend on padding. Logits must be finite even if a query, e.g.
    a padded one, can attend to nothing.
    """
    config, model = prepared.config, prepared.model
    own = [row for row in own_rows_of_model(config) if row.startswith("model.")]
    if not own or model in _tried:
        return
    batch = _rows_of_most_kinds(prepared.task.batch(0, 0))
    noise = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(noise.normal(scale=_NOISE, size=leaf.shape), leaf.dtype),
        prepared.weights,
    )

    @jax.jit
    def logits_of(inputs: Any) -> jax.Array:
        return model.apply({"params": params}, **inputs)

    inputs, own_names = batch["inputs"], ", ".join(own)
    reads_segments = "segments" in inspect.signature(type(model).__call__).parameters
    if reads_segments and "tokens" in inputs and "source" not in inputs:
        shape = inputs["tokens"].shape
        is_real = np.broadcast_to(np.arange(shape[-1]) < shape[-1] // 2, shape)
        padded = inputs | {"segments": is_real.astype(np.int32)}
        padded.pop("positions", None)
        logits = np.asarray(logits_of(padded), np.float32)
        per_token = logits.ndim == len(shape) + 1
        if not np.isfinite(logits[is_real if per_token else ...]).all():
            raise InvalidInput(
                f"{own_names}: the logits are not finite if positions are padded\n"
                "a padded query can attend to nothing, so a softmax or a division gives 0/0; "
                "set the weights of such queries to 0"
            )
    for changed, scored, what in _hidden(prepared, batch):
        if not (changed.any() and scored.any()):
            continue
        tokens = inputs["tokens"]
        others = np.where(changed, (tokens + 1) % prepared.task.sizes["vocab_size"], tokens)
        inputs_of_both = (inputs | {"tokens": t.astype(tokens.dtype)} for t in (tokens, others))
        before, after = (np.asarray(logits_of(x), np.float32)[scored] for x in inputs_of_both)
        largest = np.abs(before - after).max(initial=0.0)
        if not largest <= 1e-5 * max(np.abs(before).max(initial=0.0), 1.0):
            raise InvalidInput(
                f"{own_names}: the model sees hidden tokens: {what}, by up to {largest:.2g}"
            )
    _tried.add(model)


def _rows_of_most_kinds(batch: Batch) -> Batch:
    """Returns a few rows of a batch: the most padded ones, and those with the most documents."""
    segments = batch["inputs"].get("segments")
    if segments is None:
        return take_rows(batch, slice(0, _ROWS))
    rows = segments.reshape(len(segments), -1)
    padding, documents = (rows == 0).sum(-1), np.array([len(np.unique(row)) for row in rows])
    most = [np.argsort(-counts, kind="stable")[: _ROWS // 2] for counts in (padding, documents)]
    return take_rows(batch, np.unique(most))


def _hidden(prepared: Prepared, batch: Batch) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """Yields masks of the tokens to change and of logits that must stay equal, and a message."""
    inputs, model = batch["inputs"], prepared.model
    if "tokens" not in inputs:
        return
    shape = inputs["tokens"].shape
    segments = inputs.get("segments")
    from_left = getattr(prepared.task, "reads_from_left", predicts_its_inputs(batch))
    # A user-defined mask may show later tokens, e.g. of a prefix.
    hides_later = not hasattr(model, "is_causal") or model.is_causal()
    if (from_left or isinstance(model, Decoder)) and hides_later:
        middle = shape[-1] // 2
        later = np.broadcast_to(np.arange(shape[-1]) >= middle, shape)
        yield later, ~later, f"tokens from position {middle} on change the logits before it"
        if segments is not None:
            first = segments == segments[:, :1]
            other = ~first & (segments > 0)
            yield first, other, "tokens of the first document change the logits of other documents"
    if segments is not None:
        reason = "tokens at padded positions change scored logits"
        yield segments == 0, batch["weights"] > 0, reason
    if isinstance(model, Decoder):  # places that the masks allow to depend on the first token
        reached = np.arange(shape[-1]) == 0
        for spec in block_specs(model.options):
            mask = mask_of(spec.options, jnp.arange(shape[-1]), True, None)
            reached |= True if mask is None else np.asarray(mask.dense())[:, reached].any(1)
        first = np.broadcast_to(np.arange(shape[-1]) == 0, shape)
        unseen = np.broadcast_to(~reached, shape)
        reason = "the first token changes logits at positions where model.mask hides it"
        yield first, unseen, reason
