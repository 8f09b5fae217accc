"""What every option may be: one rule for each key.

`configs/reference.py` says what an option means; RULES says what it may be. The names of rows, and
what the rows' own options may be, are read from the tables (rows.py). Nothing here imports jax, so
a typo is answered at once.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from transformer_jax.options.constraints import problems_between
from transformer_jax.options.rule import (
    Rule,
    integer,
    is_number,
    is_own,
    multipliers,
    name_or_path,
    number,
    one_of,
    optional,
    own_or_one_of,
    seed,
    suggest,
    text,
    truth,
    tuple_of,
)
from transformer_jax.options.tables import FAMILIES, OWN, TABLES, Option, own_row, rows_of

_WRITERS = ("tensorboard", "wandb")
_PARAMETER_NAMES = ("kernel", "embedding", "bias", "scale", "gain", "alpha", "sink", "lambda")
_POSITIVE = number("> 0", "0.02", lambda value: value > 0)

_GENERAL: dict[str, Rule] = {
    "seed": seed(),
    "seeds.initial": optional(seed()),
    "seeds.order": optional(seed()),
    "seeds.dropout": optional(seed()),
    "seeds.perturbation": number(">= 0", "1e-7", lambda value: value >= 0),
    "data.source": text("a non-empty string", "shakespeare", bool),
    "data.tokenizer": name_or_path("byte", "char", "bpe", "word"),
    "data.vocab_size": integer(257),
    "data.split_seed": integer(0),
    "data.train_examples": optional(integer(1)),
    "data.exact.symbols": integer(2),
    "data.language_modelling.unscored": integer(0),
    "data.masked_language_modelling.mask_rate": number(
        "in (0, 1)", "0.15", lambda value: 0 < value < 1
    ),
    "data.image_classification.max_rotation": number(
        "in [0, 180]", "15", lambda value: 0 <= value <= 180
    ),
    "data.image_classification.max_shift": integer(0),
    "data.image_classification.flip": truth(),
    "data.document_separator": optional(text("a string", "<|endoftext|>")),
    "data.separate_documents": truth(),
    "data.splits": tuple_of(
        "3 numbers in (0, 1) that sum to 1",
        "0.8,0.1,0.1",
        lambda value: (
            len(value) == 3
            and all(is_number(share) and 0 < share < 1 for share in value)
            and math.isclose(sum(value), 1)
        ),
    ),
    "data.length": integer(2),
    "model.match_parameters": optional(one_of("decoder", "encoder_decoder")),
    "model.encoder.num_types": integer(0),
    "model.encoder_decoder.share_embeddings": truth(),
    "model.encoder_decoder.scale_embeddings": truth(),
    "model.encoder_decoder.output_bias": truth(),
    "model.encoder_decoder.cross_attention": truth(),
    "model.vision_transformer.patch_size": integer(1),
    "model.vision_transformer.variant": optional(
        text(
            "a name like Ti/4: Ti, S, B, L or H, and the patch size",
            "Ti/4",
            lambda value: re.fullmatch(r"(Ti|S|B|L|H)/[1-9]\d*", value) is not None,
        )
    ),
    "model.recurrent_decoder.depth": integer(1),
    "model.recurrent_encoder_decoder.depth": integer(1),
    "model.recurrent_encoder_decoder.bidirectional": truth(),
    "model.recurrent_encoder_decoder.share_embeddings": truth(),
    "model.max_length": integer(1),
    "model.width": integer(1),
    "model.depth": integer(0),
    "model.num_heads": integer(1),
    "model.num_kv_heads": optional(integer(1)),
    "model.head_dim": optional(integer(1)),
    "model.value_dim": optional(integer(1)),
    "model.attention_scale": optional(_POSITIVE),
    "model.mlp_dim": optional(integer(1)),
    "model.norm_epsilon": _POSITIVE,
    "model.embedding_norm": truth(),
    "model.position_in_every_layer": truth(),
    "model.use_bias": truth(),
    "model.tie_embeddings": truth(),
    "model.dropout_rate": number("in [0, 1)", "0.1", lambda value: 0 <= value < 1),
    "model.stochastic_depth": number("in [0, 1)", "0.1", lambda value: 0 <= value < 1),
    "model.init_std": _POSITIVE,
    "model.dtype": one_of("float32", "bfloat16"),
    "initial.weights": optional(text("a run's directory or a Hugging Face folder", "runs/a", bool)),
    "initial.word_vectors": optional(text("a file of word vectors", "vectors.txt", bool)),
    "training.steps": integer(1),
    "training.batch_size": integer(1),
    "training.accumulation": integer(1),
    "training.label_smoothing": number("in [0, 1)", "0.1", lambda value: 0 <= value < 1),
    "training.own_inputs": number("in [0, 1]", "0.5", lambda value: 0 <= value <= 1),
    "training.frozen": tuple_of(
        "beginnings of parameter paths",
        "token_embedding,block_0",
        lambda value: all(isinstance(name, str) and name for name in value),
    ),
    "training.weight_ema": optional(number("in (0, 1)", "0.999", lambda value: 0 < value < 1)),
    "training.clip_norm": optional(number("> 0", "1.0", lambda value: value > 0)),
    "optimizer.learning_rate": number("> 0", "1e-3", lambda value: value > 0),
    "optimizer.weight_decay": number(">= 0", "0.1", lambda value: value >= 0),
    "optimizer.decay_parameters": tuple_of(
        f"some of: {', '.join(_PARAMETER_NAMES)}",
        "kernel,embedding",
        lambda value: all(name in _PARAMETER_NAMES for name in value),
    ),
    "optimizer.learning_rate_multipliers": multipliers(),
    "optimizer.decay_multipliers": multipliers(),
    "evaluation.every": integer(1),
    "evaluation.batch_size": integer(1),
    "evaluation.stride": optional(integer(1)),
    "logging.every": integer(1),
    "logging.writers": tuple_of(
        f"some of: {', '.join(_WRITERS)}",
        "tensorboard",
        lambda value: all(name in _WRITERS for name in value),
    ),
    "checkpoint.every": integer(1),
    "checkpoint.keep": integer(1),
    "sample.num_tokens": integer(0),
    "sample.temperature": number(">= 0", "0.8", lambda value: value >= 0),
}


def _options() -> dict[str, Option]:
    """Every option of every row, by its key in a config."""
    return {
        f"{section}.{row.name}.{name}": option
        for key, section in FAMILIES.items()
        for row in rows_of(key).values()
        for name, option in row.options.items()
    }


def _choice(key: str) -> Rule:
    return (own_or_one_of if key in OWN else one_of)(*rows_of(key))


OPTIONS = _options()
RULES: dict[str, Rule] = {
    **_GENERAL,
    **{key: _choice(key) for key in TABLES},
    **{key: option.rule for key, option in OPTIONS.items()},
}
DEFAULTS = {key: option.default for key, option in OPTIONS.items()}
# What runs that are older than an option had in its place.
_BEFORE = {
    "seeds.initial": None,
    "seeds.order": None,
    "seeds.dropout": None,
    "data.exact.symbols": 8,
    "model.projections": "separate",
    "model.position_in_every_layer": False,
    "seeds.perturbation": 0.0,
    "training.own_inputs": 0.0,
    "data.split_seed": 0,
    "data.train_examples": None,
    "data.masked_language_modelling.mask_rate": 0.15,
    "data.image_classification.max_rotation": 0.0,
    "data.image_classification.max_shift": 0,
    "data.image_classification.flip": False,
    "model.match_parameters": None,
    "model.encoder.pooling": "class_token",
    "model.encoder.num_types": 0,
    "model.encoder_decoder.share_embeddings": True,
    "model.encoder_decoder.scale_embeddings": True,
    "model.encoder_decoder.output_bias": False,
    "model.encoder_decoder.cross_attention": True,
    "model.vision_transformer.patch_size": 4,
    "model.vision_transformer.variant": None,
    "model.vision_transformer.stem": "linear",
    "model.vision_transformer.pooling": "class_token",
    "model.recurrent_decoder.cell": "lstm",
    "model.recurrent_decoder.depth": 2,
    "model.recurrent_encoder_decoder.depth": 2,
    "model.recurrent_encoder_decoder.cell": "lstm",
    "model.recurrent_encoder_decoder.bidirectional": False,
    "model.recurrent_encoder_decoder.share_embeddings": True,
    "model.norm_epsilon": 1e-5,
    "model.num_kv_heads": None,
    "model.value_dim": None,
    "model.attention": "softmax",
    "model.attention_scale": None,
    "model.query_key_norm": "none",
    "model.mask": "full",
    "model.feed_forward": "mlp",
    "model.initialisation": "depth_scaled",
    "model.parametrisation": "standard",
    "model.stochastic_depth": 0.0,
    "data.language_modelling.unscored": 0,
    "training.weight_ema": None,
    "optimizer.learning_rate_multipliers": (),
    "optimizer.decay_multipliers": (),
    "model.embedding_norm": False,
    "initial.weights": None,
    "initial.word_vectors": None,
    "training.label_smoothing": 0.0,
    "training.frozen": (),
    "logging.writers": (),
}
BEFORE = {**DEFAULTS, **_BEFORE}


def rule_for(key: str, flat: Mapping[str, Any]) -> Rule | None:
    """Returns the rule of a key; None if there is no such option.

    Options of a user's own class are looked up in its source, which is not run.
    """
    choices = [choice for choice, section in FAMILIES.items() if key.startswith(f"{section}.own.")]
    if not choices or not is_own(flat.get(choices[0])):
        return RULES.get(key)
    try:
        option = own_row(flat[choices[0]]).options.get(key.rsplit(".", 1)[-1])
    except LookupError:
        return None
    return option.rule if option else None


def problems_of(flat: Mapping[str, Any]) -> list[str]:
    """Returns everything that is wrong with a flattened config, one line each."""
    rules = {key: RULES.get(key) for key in flat if not _is_of_own_row(key)}
    problems = [unknown_key(key) for key, rule in rules.items() if rule is None]
    problems += [
        f"{key}: missing; expected {RULES[key].allowed}" for key in RULES if key not in flat
    ]
    known = {key: rule for key, rule in rules.items() if rule is not None}
    problems += [
        refused_value(key, flat[key], rule)
        for key, rule in known.items()
        if not rule.accepts(flat[key])
    ]
    return problems or problems_between(flat)


def _is_of_own_row(key: str) -> bool:
    return any(key.startswith(f"{section}.own.") for section in FAMILIES.values())


def problems_of_own_rows(flat: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with the user's own classes, and with their options, one line each."""
    problems = []
    for key in OWN:
        start = f"{FAMILIES.get(key)}.own."
        given = {name.removeprefix(start): flat[name] for name in flat if name.startswith(start)}
        if not is_own(flat[key]):
            problems += [f"{start}{name}: {key} names no class of your own" for name in given]
            continue
        try:
            options = own_row(flat[key]).options
        except LookupError as error:
            problems.append(f"{key}={flat[key]}: {error}{suggest(flat[key], rows_of(key))}")
            continue
        for name, value in given.items():
            if name not in options:
                near = suggest(name, options)
                problems.append(f"{start}{name}: {flat[key]} has no such option{near}")
            elif not options[name].rule.accepts(value):
                problems.append(refused_value(start + name, value, options[name].rule))
    return problems


def unknown_key(key: str) -> str:
    """Says that there is no such option, and which is nearest."""
    return f"{key}: no such option{suggest(key, RULES)}"


def refused_value(key: str, value: Any, rule: Rule) -> str:
    """Says what a key may be, with the nearest name and an example."""
    near = suggest(value, rule.allowed.removeprefix("one of: ").split(", "))
    return f"{key}={value}: expected {rule.allowed}{near}, e.g. {key}={rule.example}"
