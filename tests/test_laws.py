"""Every row of every table keeps every law, inside a whole decoder. A new row is tested by existing."""

import importlib
import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import new
from tests.conftest import a_few_of
from transformer_jax.config import OPTIONS
from transformer_jax.laws import LAWS, Subject, small_decoder
from transformer_jax.masks import MASKS, Full, self_attention_rule
from transformer_jax.model_options import ModelOptions
from transformer_jax.models.stack import FAMILIES

TWO = {"depth": 2}
NEAR = {"mask": "window", "mask_options": {"size": 2}}
LLAMA3 = {"scaling": "llama3", "factor": 4.0, "original_length": 16}
FAR = {"position_options": {"max_wavelength": 1e6}, "num_kv_heads": 1}
OTHERS = {
    "use_bias": {"use_bias": False},
    "output layer of its own": {"tie_embeddings": False},
    "head_dim held": {"head_dim": 6},
    "one head": {"num_heads": 1},
    "multi-query": {"num_kv_heads": 1},
    "grouped-query": {"num_heads": 4, "num_kv_heads": 2},
    "value_dim": {"value_dim": 5},
    "partial rotary": {"position": "rotary", "position_options": {"fraction": 0.5}},
    "rotary, llama3 scaling": {"position": "rotary", "position_options": LLAMA3},
    "soft cap": {"attention_options": {"soft_cap": 2.0}},
    "one norm for both": {"wiring": "parallel", "wiring_options": {"share_norm": True}},
    "local windows": {"attention": "local"} | NEAR,
    "chosen experts": {
        "feed_forward": "mixture",
        "feed_forward_options": {"computed": "chosen", "block": 4},
    },
    "talking heads with alibi": {"attention": "talking_heads", "position": "alibi"},
    "sigmoid with a window": {"attention": "sigmoid", "position": "t5"}
    | {"mask": "window", "mask_options": {"size": 3}},
    "norm of embeddings": {"embedding_norm": True},
    "local and global layers": TWO
    | {"layers": "LG", "layer_types": {"L": NEAR, "G": FAR}, "position": "rotary"},
    "layers without positions": TWO
    | {"layers": "TN", "layer_types": {"N": {"position": "none", "mlp_dim": 20}}, "position": "t5"},
    "a hybrid": TWO
    | {"layers": "SA", "layer_types": {"S": {"mixer": "state_space"}}, "position": "none"},
    "shared in a cycle": {"depth": 3, "distinct_blocks": 2},
    "shared in sequence": {"depth": 3, "distinct_blocks": 2, "sharing": "sequence"},
}
VARIANTS = {
    f"{family}={name}": {family: name}
    for family, mark in FAMILIES.items()
    for name in mark.entries()
    if getattr(ModelOptions, family) != name or family == "position"  # the base case once
    if name != "sinusoidal_2d"  # text has no rows and columns; test_architectures.py has images
    if (family, name) != ("mask", "causal")  # what "full" is in a decoder, see the test below
    if name != "unmasked"  # it breaks a law on purpose, see below
}
VARIANTS |= OTHERS
# What `python -m experiments.new` writes is a component too.
VARIANTS |= {
    f"template of {family}": {family: importlib.import_module(f"experiments.templates.{family}")}
    for family in FAMILIES
    if family in new.TEMPLATES
}
VARIANTS = {
    name: {
        field: getattr(value, "Mine", None) or value.mine if inspect.ismodule(value) else value
        for field, value in fields.items()
    }
    for name, fields in VARIANTS.items()
}


UNSEEN = {
    name: VARIANTS.pop(name)
    for name, fields in list(VARIANTS.items())
    if set(fields) & {"remat", "initialisation"}
}


# Less common variants are named by "module:Class" in their tables and imported when chosen.
CORE = {
    f"{family}={name}"
    for family, mark in FAMILIES.items()
    for name, entry in mark.entries().items()
    if not isinstance(entry, str)
}


def _further(name):
    """Core components have their laws in `make test`, everything else in `make thorough`."""
    return [] if name in CORE else [pytest.mark.thorough]


# Tests of a variant go to one process, which compiles its programs once.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param(fields, id=name, marks=[pytest.mark.xdist_group(name), *_further(name)])
        for name, fields in VARIANTS.items()
    ],
)
def subject(request):
    return Subject(small_decoder(**request.param))


@pytest.mark.parametrize("law", LAWS)
def test_law(subject, law):
    with jax.debug_key_reuse(law == "dropout_is_for_training"):
        LAWS[law](subject)


# Rows of which logits and gradients of these laws know nothing: remat is asked in training alone,
# and laws draw the parameters anew. test_remat.py and test_components.py have their numbers.
ELSEWHERE = {"remat": "dropout_is_for_training", "initialisation": "seeds_are_independent"}


@pytest.mark.parametrize("name", a_few_of(UNSEEN, ("remat=block",)))
def test_a_row_that_changes_no_logits_keeps_the_law_that_it_is_for(name):
    model = small_decoder(**UNSEEN[name])
    (family,) = UNSEEN[name]
    with jax.debug_key_reuse(True):
        LAWS[ELSEWHERE[family]](Subject(model))
    tokens, like_any = jnp.zeros((1, 6), jnp.int32), small_decoder()
    params = jax.eval_shape(like_any.init, jax.random.key(0), tokens)
    programs = [str(jax.make_jaxpr(each.apply)(params, tokens)) for each in (model, like_any)]
    assert programs[0] == programs[1], "it changes logits: it belongs to the other variants"


def test_a_causal_mask_is_what_a_full_one_is_in_a_decoder():
    assert self_attention_rule(MASKS["causal"], {}, True) == self_attention_rule(Full, {}, True)


def test_every_table_is_here():
    """A family with options of rows, which is not one of the optimizer, has its laws tested."""
    keys = {f"model.{family}" for family in FAMILIES}
    variants = {key for key, option in OPTIONS.items() if option.variant is not None}
    of_blocks = {key for key in variants if key.startswith("model.")}
    assert of_blocks - {"model.architecture"} == keys


def broken(law, **fields):
    model = small_decoder(**fields)
    with pytest.raises(AssertionError):
        LAWS[law](Subject(model))


def test_c50_a_leak_of_the_future_is_found(monkeypatch):
    """The mask of the model says causal, its attention looks ahead."""
    from transformer_jax.models import stack

    subject = Subject(small_decoder())
    assert subject.may_see[0].tolist() == [True] + [False] * 5
    monkeypatch.setattr(stack, "mask_of", lambda *_: None)
    with pytest.raises(AssertionError):
        LAWS["sees_what_the_mask_allows"](subject)


def test_masks_that_show_the_future_are_found():
    """Some of it, or all of it: only a prefix may be seen by those before it."""
    for leak in (
        lambda positions, causal: (positions[..., None, :] - positions[..., None]) % 2 == 0,
        lambda positions, causal: jnp.ones_like(causal),
        lambda positions, causal: (
            causal | (positions == 3)[..., None, :] & (positions > 1)[..., None]
        ),
    ):
        broken("only_a_prefix_is_seen_ahead", mask=leak)


def test_a_decoder_without_its_mask_is_found():
    broken("only_a_prefix_is_seen_ahead", mask="unmasked")


def test_laws_of_gradients_see_what_a_training_step_keeps():
    subject = Subject(small_decoder(remat="block"))
    assert "remat" in str(jax.make_jaxpr(jax.grad(subject._loss))(subject.params))


def test_an_idle_parameter_is_found():
    class Idle(nn.Module):
        use_bias: bool = False

        @nn.compact
        def __call__(self, inputs):
            self.param("scale", nn.initializers.ones, (3,))
            return inputs

    broken("gradients_everywhere", norm=Idle)


def test_a_norm_over_the_sequence_is_found():
    """It looks at other places, so the future, padding and other documents leak through it."""

    class OverTime(nn.Module):
        use_bias: bool = False

        @nn.compact
        def __call__(self, inputs):
            return inputs - inputs.mean(-2, keepdims=True)

    for law in (
        "sees_what_the_mask_allows",
        "packed_documents_equal_separate_ones",
        "padding_changes_nothing",
        "shorter_equals_padded",
    ):
        broken(law, norm=OverTime)


def test_examples_that_are_mixed_and_half_precision_are_found():
    broken("examples_are_independent", activation=lambda x: x - x.mean(0, keepdims=True))
    broken("bfloat16_is_near", activation=lambda x: jnp.where(x.dtype == jnp.bfloat16, 9, 1) * x)
    rng = np.random.default_rng(0)
    broken("jit_equals_eager", activation=lambda x: x * rng.normal())
