"""Every row and combination of test_laws.py in the other architectures: it keeps laws, or is refused.

One program for each: rows of the batch are the same examples again with one thing changed.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import FrozenDict

from tests.conftest import random_params
from tests.test_architectures import IMAGE, IMAGES, LENGTH, TEXT, VOCAB, draw
from tests.test_laws import UNSEEN
from tests.test_laws import VARIANTS as OF_DECODERS
from transformer_jax.laws import _MAY_BE_IDLE, _OPTIONS
from transformer_jax.model_options import ModelOptions
from transformer_jax.models import Encoder, EncoderDecoder, VisionTransformer
from transformer_jax.paths import by_path

pytestmark = pytest.mark.thorough

VARIANTS = OF_DECODERS | UNSEEN | {"mask=causal": {"mask": "causal"}}
KEPT = jnp.array([[1] * 6, [1] * 4 + [0] * 2, [1] + [0] * 5])
TOKENS, WRITTEN = draw(3, LENGTH), draw(3, LENGTH, seed=2)
CHANGED = jnp.where(KEPT > 0, TOKENS, (TOKENS + 1) % VOCAB)
LATER = jnp.where(jnp.arange(LENGTH) >= 3, (WRITTEN + 1) % VOCAB, WRITTEN)
PIXELS = IMAGES["images"]
# Base; padded places changed; the other way round; in what is written, later tokens changed.
ROWS = {
    Encoder: {"tokens": [TOKENS, CHANGED, TOKENS[::-1]], "segments": [KEPT, KEPT, KEPT[::-1]]},
    EncoderDecoder: {
        "source": [TOKENS, CHANGED, TOKENS[::-1], TOKENS],
        "source_segments": [KEPT, KEPT, KEPT[::-1], KEPT],
        "tokens": [WRITTEN, WRITTEN, WRITTEN[::-1], LATER],
    },
    VisionTransformer: {"images": [PIXELS, PIXELS, PIXELS[::-1]]},
}
ARCHITECTURES = {
    "encoder": (Encoder, TEXT),
    "encoder_decoder": (EncoderDecoder, TEXT),
    "vision_transformer": (VisionTransformer, IMAGE),
}


def case(architecture, fields):
    """The model and its inputs; None where the architecture has no such field."""
    make, small = ARCHITECTURES[architecture]
    names = {field.name for kind in (make, ModelOptions) for field in dataclasses.fields(kind)}
    if not fields.keys() <= names:
        return None
    small = dict(small)
    if make is VisionTransformer and fields.get("mask") == "causal":
        small["pooling"] = "mean"  # a class token, the first place, would see itself alone
    for (family, name), options in _OPTIONS.items():
        if fields.get(family) == name:
            small[f"{family}_options"] = FrozenDict(options)
    frozen = {k: FrozenDict(v) if isinstance(v, dict) else v for k, v in fields.items()}
    return make.of(**small | {"width": 16} | frozen), ROWS[make]


# What has no meaning there: what reads from left to right in a model that sees everything.
_LEFT = {
    "position=contextual": "contextual positions need a causal model",
    "mixer=state_space": "a state-space mixer reads from left to right",
    "mixer=delta_net": "a delta network reads from left to right",
    "attention=forgetting": "forgetting attention reads from left to right",
    "attention=gated_delta": "the gated delta rule reads from left to right",
    "mask=prefix": "a prefix is for causal models",
    "a hybrid": "a state-space mixer reads from left to right",
    "template of mixer": "a running mean reads from left to right",
}
_OF_TEXT = ("values=embeddings", "wiring=per_layer_embeddings", "template of stem")
REFUSED = {
    (architecture, name): reason for architecture in ARCHITECTURES for name, reason in _LEFT.items()
} | {("vision_transformer", name): "need tokens; the input is not text" for name in _OF_TEXT}
CASES = [
    pytest.param(architecture, name, id=f"{architecture} {name}")
    for architecture in ARCHITECTURES
    for name, fields in VARIANTS.items()
    if case(architecture, fields) is not None
]


@pytest.mark.parametrize(("architecture", "name"), CASES)
def test_a_row_keeps_the_laws_or_is_refused(architecture, name):
    model, inputs = case(architecture, VARIANTS[name])
    reason = REFUSED.get((architecture, name))
    if reason is not None:
        with pytest.raises(ValueError, match=reason):
            random_params(model)
        return
    params = random_params(model)
    of_batch = {name: jnp.concatenate(parts) for name, parts in inputs.items()}
    rows = len(next(iter(inputs.values()))[0])

    def loss(params, inputs):
        logits = model.apply({"params": params}, **inputs)
        chances = jax.nn.log_softmax(logits[:rows])
        weights = jnp.cos(jnp.arange(chances.size)).reshape(chances.shape)
        return (weights * chances).sum(), logits

    half = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf / 2]), params)
    of_both = jax.jit(jax.vmap(jax.value_and_grad(loss, has_aux=True), in_axes=(0, None)))
    read, gradients = [], None
    for changes in zip(*inputs.values(), strict=True):
        # In the same rows of a batch the same bits; in other rows of a product a processor may
        # take another kernel.
        pairs = zip(of_batch.items(), changes, strict=True)
        first = {name: array.at[:rows].set(change) for (name, array), change in pairs}
        (_, logits), of_these = of_both(half, first)
        assert np.isfinite(logits).all()
        read.append(np.asarray(logits[0]))
        gradients = gradients or of_these
    base, changed, turned, *later = (logits[:rows] for logits in read)
    # Examples know nothing of each other.
    np.testing.assert_array_equal(read[2][rows:], read[0][rows:])
    np.testing.assert_allclose(turned[::-1], base, atol=2e-6)
    if architecture == "encoder":
        kept = np.asarray(KEPT) > 0
        np.testing.assert_array_equal(changed[kept], base[kept])
    else:
        np.testing.assert_array_equal(changed, base)
    if architecture == "encoder_decoder":
        np.testing.assert_array_equal(later[0][:, :3], base[:, :3])
        assert (later[0][:, 3:] != base[:, 3:]).any()
    for path, gradient in by_path(gradients).items():
        assert np.isfinite(gradient).all(), path
        if not path.endswith(_MAY_BE_IDLE) and "heads/" not in path:  # heads are for training
            assert np.abs(gradient[0]).max() > 1e-10, f"{path}: no gradient"
