"""Configs: what each value may be, changing one from the command line, refusing what is wrong.

`configs/reference.py` says what an option means; RULES says what it may be. Nothing here imports
jax, so a typo is answered at once.
"""

import ast
import dataclasses
import difflib
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import InvalidInput


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
    accepts = lambda value: _is_integer(value) and low <= value  # noqa: E731
    return Rule(f"an integer >= {low}", str(low), _parse_integer, accepts)


def seed() -> Rule:
    """What jax takes as a seed without folding two seeds into one."""
    accepts = lambda value: _is_integer(value) and 0 <= value < 2**32  # noqa: E731
    return Rule("an integer in [0, 2^32)", "0", _parse_integer, accepts)


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

_UNREADABLE = object()  # no rule accepts it

# Changing these changes no bit of the trained parameters, so a run may be resumed with others.
CADENCE = ("evaluation.every", "evaluation.batch_size", "logging.", "checkpoint.", "sample.")


def flatten(config: ConfigDict | Mapping) -> dict[str, Any]:
    """Returns full key -> value, references resolved, in the config's order."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, (ConfigDict, Mapping)):
            flat |= {f"{name}.{inner}": leaf for inner, leaf in flatten(value).items()}
        else:
            flat[name] = tuple(value) if isinstance(value, list) else value
    return flat


def problems_of(flat: Mapping[str, Any]) -> list[str]:
    """Returns everything that is wrong with a flattened config, one line each."""
    problems = [_unknown(key) for key in flat if key not in RULES]
    problems += [
        f"{key}: missing; expected {RULES[key].allowed}" for key in RULES if key not in flat
    ]
    wrong = [key for key in flat if key in RULES and not RULES[key].accepts(flat[key])]
    problems += [_refused(key, flat[key]) for key in wrong]
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


def _unknown(key: str) -> str:
    return f"{key}: no such option{suggest(key, RULES)}"


def _refused(key: str, value: Any) -> str:
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


def check(config: ConfigDict) -> None:
    """Refuses a config with any problem, all of them in one report.

    Raises:
      InvalidInput: with at most eight lines.
    """
    report(problems_of(flatten(config)))


def report(problems: list[str]) -> None:
    """Raises InvalidInput if there is any problem; at most seven are spelled out."""
    if len(problems) > 7:
        problems = [*problems[:7], f"... and {len(problems) - 7} more"]
    if problems:
        raise InvalidInput("\n".join(problems))


def load_config(path: str, overrides: Mapping[str, str]) -> ConfigDict:
    """Runs the `get_config` of a config file and applies overrides from the command line.

    Args:
      path: a Python file that defines get_config(); trusted, as any program that one starts.
      overrides: full key -> text of the value.
    Returns:
      A checked, locked config.
    Raises:
      InvalidInput: the file cannot be used, or any key or value is wrong.
    """
    config = _run_config_file(path)
    report([problem for problem in problems_of(flatten(config)) if ": missing; " in problem])
    problems = []
    for key, value in overrides.items():
        if key not in RULES:
            problems.append(_unknown(key))
            continue
        try:
            parsed = RULES[key].parse(value)
        except (ValueError, OverflowError):
            parsed = _UNREADABLE
        if RULES[key].accepts(parsed):
            _assign(config, key, parsed)
        else:
            problems.append(_refused(key, value))
    # A value that was refused above still has its default, so nothing is reported twice.
    report(problems + problems_of(flatten(config)))
    return config.lock()


def _run_config_file(path: str) -> ConfigDict:
    file = Path(path)
    if not file.is_file():
        nearby = [str(other) for other in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise InvalidInput(f"--config={path}: no such file{suggest(path, nearby)}")
    spec = importlib.util.spec_from_file_location("config_file", file)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"--config={path}: expected a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path.cwd()))  # so that a config finds the one it derives from
    try:
        spec.loader.exec_module(module)
        config = module.get_config()
    except Exception as error:
        line = _line_in(file, error)
        raise InvalidInput(f"--config={path}: {type(error).__name__}{line}: {error}") from error
    finally:
        sys.path.pop(0)
    if not isinstance(config, ConfigDict):
        raise InvalidInput(
            f"--config={path}: get_config() gave {type(config).__name__}, not ConfigDict"
        )
    return config


def _line_in(file: Path, error: Exception) -> str:
    """Where in the user's own file an error came from."""
    frame, line = error.__traceback__, ""
    while frame is not None:
        if Path(frame.tb_frame.f_code.co_filename) == file:
            line = f" at line {frame.tb_lineno}"
        frame = frame.tb_next
    return line


def _assign(config: ConfigDict, key: str, value: Any) -> None:
    *sections, name = key.split(".")
    for section in sections:
        config = config[section]
    with config.ignore_type():
        config[name] = value


def to_json(config: ConfigDict) -> str:
    """Returns the resolved config as plain JSON, sorted by key."""
    return json.dumps(_nested(flatten(config)), indent=1, sort_keys=True) + "\n"


def _nested(flat: Mapping[str, Any]) -> dict:
    nested: dict = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return nested


def from_json(stored: str, origin: str) -> ConfigDict:
    """Reads a stored config as data and checks it against today's rules.

    Args:
      stored: what to_json gave.
      origin: where it came from, for messages.
    Raises:
      InvalidInput: no JSON, or a key or a value that this version does not know.
    """
    try:
        flat = flatten(json.loads(stored))
    except (ValueError, AttributeError) as error:
        raise InvalidInput(f"{origin}: expected a config as JSON: {error}") from error
    try:
        report(problems_of(flat))
    except InvalidInput as error:
        raise InvalidInput(f"{origin}: not a config of this version\n{error}") from error
    return ConfigDict(_nested(flat)).lock()


def options_of(section: ConfigDict, name: str) -> dict[str, Any]:
    """Returns the options of a chosen row: the sub-section of its name, if it has one."""
    return dict(section[name]) if name in section else {}


def differences(old: ConfigDict, new: ConfigDict) -> dict[str, tuple[Any, Any]]:
    """Returns full key -> (old value, new value) for every value that differs."""
    old_flat, new_flat = flatten(old), flatten(new)
    keys = list(dict.fromkeys([*old_flat, *new_flat]))
    pairs = {key: (old_flat.get(key), new_flat.get(key)) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
