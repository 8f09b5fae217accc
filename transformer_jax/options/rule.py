"""What a value may be, in words, as an example, and as a check; and what was probably meant."""

import ast
import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable
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


def is_number(value: Any) -> bool:
    """Returns whether a value is a finite number, and no bool."""
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
        lambda value: is_number(value) and accepts(value),
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


def own_or_one_of(*names: str) -> Rule:
    """One of some names, or MODULE.NAME: a class or function of the user's."""
    return Rule(
        f"one of: {', '.join(names)}, or MODULE.NAME of your own",
        names[0],
        str,
        lambda value: value in names or is_own(value),
    )


def is_own(value: Any) -> bool:
    """Returns whether a value looks like MODULE.NAME, a class or function of the user's."""
    parts = value.split(".") if isinstance(value, str) else []
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def multipliers() -> Rule:
    """A tuple of PATH=NUMBER."""

    def accepts(value: Any) -> bool:
        try:
            pairs = [part.split("=") for part in value]
            return all(path and float(factor) >= 0 for path, factor in pairs)
        except (AttributeError, ValueError):
            return False

    words = "PATH=NUMBER, path the beginning of parameter paths, number >= 0"
    return tuple_of(words, "token_embedding=0.1,block_0=0.5", accepts)


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
