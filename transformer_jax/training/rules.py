"""What every option may be: one rule for each key, and what is wrong between them.

`configs/reference.py` says what an option means; RULES says what it may be. Nothing here imports
jax, so a typo is answered at once.
"""

import ast
import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a value may be.

    Attributes:
      allowed: the allowed values in words; the reference config's comment says the same.
      example: one of them, as it is written on the command line.
      parse: text of the command line -> value, or ValueError.
      accepts: whether a value is allowed.
    """

    allowed: str
    example: str
    parse: Callable[[str], Any]
    accepts: Callable[[Any], bool]


def _parse_integer(text: str) -> int:
    number = float(text.replace("_", ""))  # 1e3 is what people write
    if number != int(number):
        raise ValueError(text)
    return int(text) if text.lstrip("+-").isdigit() else int(number)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def integer(low: int) -> Rule:
    """An integer >= low."""
    return Rule(
        f"an integer >= {low}",
        str(low),
        _parse_integer,
        lambda value: _is_integer(value) and low <= value,
    )


def seed() -> Rule:
    """What jax takes as a seed without folding two seeds into one."""
    return Rule(
        "an integer in [0, 2^32)",
        "0",
        _parse_integer,
        lambda value: _is_integer(value) and 0 <= value < 2**32,
    )


def number(words: str, example: str, accepts: Callable[[float], bool]) -> Rule:
    """A finite number with a condition told in words."""
    return Rule(
        f"a number {words}",
        example,
        lambda text: float(text.replace("_", "")),
        lambda value: _is_number(value) and accepts(value),
    )


def one_of(*names: str) -> Rule:
    """One of some names."""
    return Rule(f"one of: {', '.join(names)}", names[0], str, lambda value: value in names)


def truth() -> Rule:
    """True or False."""
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}

    def parse(text: str) -> bool:
        if text.lower() not in words:
            raise ValueError(text)
        return words[text.lower()]

    return Rule("True or False", "True", parse, lambda value: isinstance(value, bool))


def text(words: str, example: str, accepts: Callable[[str], bool] = lambda value: True) -> Rule:
    """A string."""
    return Rule(words, example, str, lambda value: isinstance(value, str) and accepts(value))


def optional(rule: Rule) -> Rule:
    """What the rule allows, or None."""
    return dataclasses.replace(
        rule,
        allowed=f"{rule.allowed}, or None",
        parse=lambda text: None if text in ("None", "none", "null") else rule.parse(text),
        accepts=lambda value: value is None or rule.accepts(value),
    )


def tuple_of(words: str, example: str, accepts: Callable[[tuple], bool]) -> Rule:
    """A tuple, written (a, b, c) or a,b,c."""

    def parse(text: str) -> tuple:
        try:
            value = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            value = [part.strip() for part in text.strip("()").split(",")]
        return tuple(value) if isinstance(value, (list, tuple)) else (value,)

    return Rule(words, example, parse, lambda value: isinstance(value, tuple) and accepts(value))


def name_or_path(*names: str) -> Rule:
    """One of some names, or something that looks like a path: it has a / or ends with .json."""
    return Rule(
        f"one of: {', '.join(names)}, or the path of a tokenizer.json",
        names[0],
        str,
        lambda value: value in names or "/" in str(value) or str(value).endswith(".json"),
    )


_PARAMETER_NAMES = ("kernel", "embedding", "bias", "scale")
_POSITIVE = number("> 0", "0.02", lambda value: value > 0)
_WAVELENGTH = number("> 1", "10000.0", lambda value: value > 1)
_DECAY = number("in [0, 1)", "0.9", lambda value: 0 <= value < 1)

RULES: dict[str, Rule] = {
    "seed": seed(),
    "data.task": one_of(
        "language_modelling",
        "masked_language_modelling",
        "translation",
        "text_classification",
        "image_classification",
        "vector_classification",
    ),
    "data.source": text("a non-empty string", "shakespeare", bool),
    "data.tokenizer": name_or_path("byte", "char", "bpe", "word"),
    "data.vocab_size": integer(257),
    "data.split_seed": integer(0),
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
            and all(_is_number(share) and 0 < share < 1 for share in value)
            and math.isclose(sum(value), 1)
        ),
    ),
    "data.length": integer(2),
    "model.architecture": one_of(
        "decoder",
        "encoder",
        "encoder_decoder",
        "vision_transformer",
        "recurrent_decoder",
        "recurrent_encoder_decoder",
    ),
    "model.match_parameters": optional(one_of("decoder", "encoder_decoder")),
    "model.encoder.pooling": one_of("class_token", "mean"),
    "model.encoder.num_types": integer(0),
    "model.encoder_decoder.share_embeddings": truth(),
    "model.encoder_decoder.scale_embeddings": truth(),
    "model.encoder_decoder.output_bias": truth(),
    "model.vision_transformer.patch_size": integer(1),
    "model.vision_transformer.variant": optional(
        text(
            "a name like Ti/4: Ti, S, B, L or H, and the patch size",
            "Ti/4",
            lambda value: re.fullmatch(r"(Ti|S|B|L|H)/[1-9]\d*", value) is not None,
        )
    ),
    "model.vision_transformer.pooling": one_of("class_token", "mean"),
    "model.recurrent_decoder.depth": integer(1),
    "model.recurrent_encoder_decoder.depth": integer(1),
    "model.recurrent_decoder.cell": one_of("rnn", "gru", "lstm"),
    "model.recurrent_encoder_decoder.cell": one_of("rnn", "gru", "lstm"),
    "model.recurrent_encoder_decoder.bidirectional": truth(),
    "model.recurrent_encoder_decoder.share_embeddings": truth(),
    "model.max_length": integer(1),
    "model.width": integer(1),
    "model.depth": integer(0),
    "model.num_heads": integer(1),
    "model.head_dim": optional(integer(1)),
    "model.mlp_dim": optional(integer(1)),
    "model.position": one_of("none", "learned", "sinusoidal", "sinusoidal_2d", "rotary", "alibi"),
    "model.position_options.learned.rms": _POSITIVE,
    "model.position_options.sinusoidal.rms": _POSITIVE,
    "model.position_options.sinusoidal.max_wavelength": _WAVELENGTH,
    "model.position_options.sinusoidal_2d.rms": _POSITIVE,
    "model.position_options.sinusoidal_2d.max_wavelength": _WAVELENGTH,
    "model.position_options.rotary.max_wavelength": _WAVELENGTH,
    "model.norm": one_of("layer_norm", "rms_norm"),
    "model.norm_epsilon": _POSITIVE,
    "model.embedding_norm": truth(),
    "model.wiring": one_of("pre", "post"),
    "model.activation": one_of("gelu", "gelu_tanh", "relu"),
    "model.use_bias": truth(),
    "model.tie_embeddings": truth(),
    "model.dropout_rate": number("in [0, 1)", "0.1", lambda value: 0 <= value < 1),
    "model.init_std": _POSITIVE,
    "model.dtype": one_of("float32", "bfloat16"),
    "initial.weights": optional(text("a run's directory or a Hugging Face folder", "runs/a", bool)),
    "initial.word_vectors": optional(text("a file of word vectors", "vectors.txt", bool)),
    "training.steps": integer(1),
    "training.batch_size": integer(1),
    "training.accumulation": integer(1),
    "training.label_smoothing": number("in [0, 1)", "0.1", lambda value: 0 <= value < 1),
    "training.frozen": tuple_of(
        "beginnings of parameter paths",
        "token_embedding,block_0",
        lambda value: all(isinstance(name, str) and name for name in value),
    ),
    "training.clip_norm": optional(number("> 0", "1.0", lambda value: value > 0)),
    "optimizer.name": one_of("adamw"),
    "optimizer.learning_rate": number("> 0", "1e-3", lambda value: value > 0),
    "optimizer.weight_decay": number(">= 0", "0.1", lambda value: value >= 0),
    "optimizer.decay_parameters": tuple_of(
        f"some of: {', '.join(_PARAMETER_NAMES)}",
        "kernel,embedding",
        lambda value: all(name in _PARAMETER_NAMES for name in value),
    ),
    "optimizer.adamw.b1": _DECAY,
    "optimizer.adamw.b2": _DECAY,
    "optimizer.adamw.eps": _POSITIVE,
    "schedule.name": one_of("constant", "warmup_cosine", "inverse_square_root"),
    "schedule.inverse_square_root.warmup_steps": integer(1),
    "schedule.warmup_cosine.warmup_steps": integer(0),
    "schedule.warmup_cosine.final_fraction": number(
        "in [0, 1]", "0.1", lambda value: 0 <= value <= 1
    ),
    "evaluation.every": integer(1),
    "evaluation.batch_size": integer(1),
    "evaluation.stride": optional(integer(1)),
    "logging.every": integer(1),
    "checkpoint.every": integer(1),
    "checkpoint.keep": integer(1),
    "sample.num_tokens": integer(0),
    "sample.temperature": number(">= 0", "0.8", lambda value: value >= 0),
}


# task -> the architectures that take its inputs and give what it scores
ARCHITECTURES = {
    "language_modelling": ("decoder", "recurrent_decoder"),
    "masked_language_modelling": ("encoder",),
    "translation": ("encoder_decoder", "recurrent_encoder_decoder"),
    "text_classification": ("encoder",),
    "image_classification": ("vision_transformer",),
    "vector_classification": ("encoder",),
}
# task -> the kind of source that it reads, as data/sources/files.py names them
SOURCE_KINDS = {
    "language_modelling": "text",
    "masked_language_modelling": "text",
    "translation": "pairs",
    "text_classification": "labelled text",
    "image_classification": "images",
    "vector_classification": "vectors",
}
# What runs that are older than an option had in its place.
BEFORE = {
    "data.split_seed": 0,
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
    "model.vision_transformer.patch_size": 4,
    "model.vision_transformer.variant": None,
    "model.vision_transformer.pooling": "class_token",
    "model.recurrent_decoder.cell": "lstm",
    "model.recurrent_decoder.depth": 2,
    "model.recurrent_encoder_decoder.depth": 2,
    "model.recurrent_encoder_decoder.cell": "lstm",
    "model.recurrent_encoder_decoder.bidirectional": False,
    "model.recurrent_encoder_decoder.share_embeddings": True,
    "model.position_options.sinusoidal_2d.rms": 0.02,
    "model.position_options.sinusoidal_2d.max_wavelength": 10_000.0,
    "model.norm_epsilon": 1e-5,
    "model.embedding_norm": False,
    "initial.weights": None,
    "initial.word_vectors": None,
    "training.label_smoothing": 0.0,
    "training.frozen": (),
    "schedule.inverse_square_root.warmup_steps": 4000,
}


def problems_of(flat: Mapping[str, Any]) -> list[str]:
    """Returns everything that is wrong with a flattened config, one line each."""
    problems = [unknown_key(key) for key in flat if key not in RULES]
    problems += [
        f"{key}: missing; expected {RULES[key].allowed}" for key in RULES if key not in flat
    ]
    wrong = [key for key in flat if key in RULES and not RULES[key].accepts(flat[key])]
    problems += [refused_value(key, flat[key]) for key in wrong]
    return problems or _cross_problems(flat)


def _cross_problems(flat: Mapping[str, Any]) -> list[str]:
    """What is wrong between values that are right one by one."""
    task, architecture = flat["data.task"], flat["model.architecture"]
    width, heads = flat["model.width"], flat["model.num_heads"]
    length, steps = flat["data.length"], flat["training.steps"]
    batch, parts = flat["training.batch_size"], flat["training.accumulation"]
    head_dim = flat["model.head_dim"] or width // heads
    stride = flat["evaluation.stride"] or length
    warmup = flat["schedule.warmup_cosine.warmup_steps"]
    position, matched = flat["model.position"], flat["model.match_parameters"]
    is_recurrent = architecture.startswith("recurrent")
    has_own_width = (is_recurrent and matched is None) or (
        architecture == "vision_transformer" and flat["model.vision_transformer.variant"]
    )
    fitting = ARCHITECTURES[task]
    checks = {
        f"model.architecture={architecture}: data.task={task} needs {' or '.join(fitting)}": (
            architecture not in fitting
        ),
        f"model.num_heads={heads}: expected a divisor of model.width={width}, "
        f"nearest {_nearest_divisor(width, heads)}; or give model.head_dim": (
            not has_own_width and flat["model.head_dim"] is None and width % heads
        ),
        f"model.max_length={flat['model.max_length']}: expected at least data.length={length}": (
            flat["model.max_length"] < length
        ),
        f"model.width={width}: sinusoidal positions need an even width, nearest {width + 1}": (
            position == "sinusoidal" and width % 2
        ),
        f"model.width={width}: sinusoidal_2d positions need a multiple of 4, "
        f"nearest {max(4, round(width / 4) * 4)}": position == "sinusoidal_2d" and width % 4,
        f"model.position=sinusoidal_2d: {architecture} has no rows and columns; "
        "only vision_transformer has": (
            position == "sinusoidal_2d" and architecture != "vision_transformer"
        ),
        f"model.head_dim={head_dim}: rotary positions need an even head size": (
            position == "rotary" and head_dim % 2
        ),
        f"model.match_parameters={matched}: only a recurrent architecture is matched to "
        f"another, not {architecture}": matched is not None and not is_recurrent,
        f"model.match_parameters={matched}: expected "
        f"{architecture.removeprefix('recurrent_')}, which data.task={task} can train too": (
            is_recurrent and matched not in (None, architecture.removeprefix("recurrent_"))
        ),
        f"training.accumulation={parts}: expected a divisor of training.batch_size={batch}, "
        f"nearest {_nearest_divisor(batch, parts)}": batch % parts,
        f"schedule.warmup_cosine.warmup_steps={warmup}: expected less than "
        f"training.steps={steps}, {steps // 10} say": (
            flat["schedule.name"] == "warmup_cosine" and warmup >= steps
        ),
        f"evaluation.stride={stride}: expected at most data.length={length}": stride > length,
        f"data.separate_documents=True: data.task={task} keeps no documents apart": (
            flat["data.separate_documents"] and task != "language_modelling"
        ),
        f"initial.word_vectors={flat['initial.word_vectors']}: they are for words; "
        f"data.tokenizer={flat['data.tokenizer']}, expected word or a tokenizer.json": (
            flat["initial.word_vectors"] and flat["data.tokenizer"] in ("byte", "char", "bpe")
        ),
    }
    return [problem for problem, is_wrong in checks.items() if is_wrong]


def _nearest_divisor(number: int, wanted: int) -> int:
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return min(divisors, key=lambda divisor: abs(divisor - wanted))


def unknown_key(key: str) -> str:
    """Says that there is no such option, and which is nearest."""
    return f"{key}: no such option{suggest(key, RULES)}"


def refused_value(key: str, value: Any) -> str:
    """Says what a key may be, with the nearest name and an example."""
    rule = RULES[key]
    near = suggest(value, rule.allowed.removeprefix("one of: ").split(", "))
    return f"{key}={value}: expected {rule.allowed}{near}, e.g. {key}={rule.example}"


def suggest(wrong: Any, candidates: Iterable[str]) -> str:
    """Returns '; did you mean X?' for the nearest candidate, or nothing.

    Keys are compared whole and by their last part, so the right name in the wrong section is found.
    """
    candidates = list(candidates)
    last_parts = {name.rsplit(".", 1)[-1]: name for name in reversed(candidates)}
    wrong = str(wrong)
    near = difflib.get_close_matches(wrong, candidates, 1, 0.75)
    tail = wrong.rsplit(".", 1)[-1]
    near = near or [last_parts[t] for t in difflib.get_close_matches(tail, last_parts, 1, 0.6)]
    return f"; did you mean {near[0]}?" if near else ""
