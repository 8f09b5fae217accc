"""What every option may be: one rule for each key, and what is wrong between them.

`configs/reference.py` says what an option means; RULES says what it may be. Nothing here imports
jax, so a typo is answered at once.
"""

import ast
import dataclasses
import difflib
import math
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


_PARAMETER_NAMES = ("kernel", "embedding", "bias", "scale")
_POSITIVE = number("> 0", "0.02", lambda value: value > 0)
_WAVELENGTH = number("> 1", "10000.0", lambda value: value > 1)
_DECAY = number("in [0, 1)", "0.9", lambda value: 0 <= value < 1)

RULES: dict[str, Rule] = {
    "seed": seed(),
    "data.task": one_of("language_modelling"),
    "data.source": text("a non-empty string", "shakespeare", bool),
    "data.tokenizer": one_of("byte", "char", "bpe"),
    "data.vocab_size": integer(257),
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
    "model.architecture": one_of("decoder"),
    "model.max_length": integer(1),
    "model.width": integer(1),
    "model.depth": integer(0),
    "model.num_heads": integer(1),
    "model.head_dim": optional(integer(1)),
    "model.mlp_dim": optional(integer(1)),
    "model.position": one_of("none", "learned", "sinusoidal", "rotary", "alibi"),
    "model.position_options.learned.rms": _POSITIVE,
    "model.position_options.sinusoidal.rms": _POSITIVE,
    "model.position_options.sinusoidal.max_wavelength": _WAVELENGTH,
    "model.position_options.rotary.max_wavelength": _WAVELENGTH,
    "model.norm": one_of("layer_norm", "rms_norm"),
    "model.wiring": one_of("pre", "post"),
    "model.activation": one_of("gelu", "gelu_tanh", "relu"),
    "model.use_bias": truth(),
    "model.tie_embeddings": truth(),
    "model.dropout_rate": number("in [0, 1)", "0.1", lambda value: 0 <= value < 1),
    "model.init_std": _POSITIVE,
    "model.dtype": one_of("float32", "bfloat16"),
    "training.steps": integer(1),
    "training.batch_size": integer(1),
    "training.accumulation": integer(1),
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
    "schedule.name": one_of("constant", "warmup_cosine"),
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
    width, heads = flat["model.width"], flat["model.num_heads"]
    length, steps = flat["data.length"], flat["training.steps"]
    batch, parts = flat["training.batch_size"], flat["training.accumulation"]
    head_dim = flat["model.head_dim"] or width // heads
    stride = flat["evaluation.stride"] or length
    warmup = flat["schedule.warmup_cosine.warmup_steps"]
    checks = {
        f"model.num_heads={heads}: expected a divisor of model.width={width}, "
        f"nearest {_nearest_divisor(width, heads)}; or give model.head_dim": (
            flat["model.head_dim"] is None and width % heads
        ),
        f"model.max_length={flat['model.max_length']}: expected at least data.length={length}": (
            flat["model.max_length"] < length
        ),
        f"model.width={width}: sinusoidal positions need an even width, nearest {width + 1}": (
            flat["model.position"] == "sinusoidal" and width % 2
        ),
        f"model.head_dim={head_dim}: rotary positions need an even head size": (
            flat["model.position"] == "rotary" and head_dim % 2
        ),
        f"training.accumulation={parts}: expected a divisor of training.batch_size={batch}, "
        f"nearest {_nearest_divisor(batch, parts)}": batch % parts,
        f"schedule.warmup_cosine.warmup_steps={warmup}: expected less than "
        f"training.steps={steps}, {steps // 10} say": (
            flat["schedule.name"] == "warmup_cosine" and warmup >= steps
        ),
        f"evaluation.stride={stride}: expected at most data.length={length}": stride > length,
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
