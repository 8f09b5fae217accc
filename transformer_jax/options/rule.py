"""What a value may be, in words, as an example, and as a check; and what was probably meant."""

import ast
import dataclasses
import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

from transformer_jax.options.other_names import OTHER_NAMES


@dataclasses.dataclass(frozen=True)
class ValueRule:
    """What a value may be.

    Attributes:
      allowed: the allowed values in words.
      example: one of them, as it is written on the command line.
      parse: text of the command line -> value, or ValueError.
      accepts: whether a value is allowed.
      names: those among the allowed values that have one.
    """

    allowed: str
    example: str
    parse: Callable[[str], Any]
    accepts: Callable[[Any], bool]
    names: tuple[str, ...] = ()


def _parse_integer(text: str) -> int:
    number = float(text.replace("_", ""))  # 1e3 is what people write
    if number != int(number):
        raise ValueError(text)
    return int(text) if text.lstrip("+-").isdigit() else int(number)


def is_integer(value: Any) -> bool:
    """Returns whether a value is an integer, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Returns whether a value is a finite number, and no bool."""
    return is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def bounded(kind: str, words: str) -> ValueRule:
    """Returns the rule of `Annotated[int, ">= 2"]` or `Annotated[float, "in [0, 1)"]`.

    Args:
      kind: int or float.
      words: `> a`, `>= a`, `in [a, b)` with any brackets, or `finite`; 2^32 is a power. `-1 or
        >= a` allows one number more.
    Raises:
      ValueError: the words are something else.
    """
    is_whole = kind == "int"
    accepts, example = _bounds(words)
    name = "an integer" if is_whole else "a number"
    return ValueRule(
        f"{name} {'that is finite' if words == 'finite' else words}",
        f"{example:g}" if not is_whole else str(math.ceil(example)),
        _parse_integer if is_whole else lambda text: float(text.replace("_", "")),
        lambda value: (is_integer(value) if is_whole else is_number(value)) and accepts(value),
    )


def _bounds(words: str) -> tuple[Callable[[float], bool], float]:
    """What words allow, and an example of it."""
    if words == "finite":
        return lambda value: True, 0.5
    one_more = re.fullmatch(r"(\S+) or (.*)", words)
    if one_more:
        alone, (others, example) = _number(one_more[1]), _bounds(one_more[2])
        return lambda value: value == alone or others(value), example
    above = re.fullmatch(r"(>=?) (\S+)", words)
    if above:
        low = _number(above[2])
        if above[1] == ">":
            return lambda value: value > low, low + 0.1 if low == 0 else 2 * low
        return lambda value: value >= low, low
    between = re.fullmatch(r"in ([\[(])(\S+), (\S+)([\])])", words)
    if not between:
        raise ValueError(f"{words!r}: expected > a, >= a, in [a, b] or finite")
    low, high = _number(between[2]), _number(between[3])
    left = operator.le if between[1] == "[" else operator.lt
    right = operator.le if between[4] == "]" else operator.lt
    return lambda value: left(low, value) and right(value, high), (low + high) / 2


def _number(text: str) -> float:
    base, power, exponent = text.partition("^")
    return float(base) ** float(exponent) if power else float(base)


def one_of(*names: str) -> ValueRule:
    """One of some names."""
    allowed = f"one of: {', '.join(names)}"
    return ValueRule(allowed, names[0], str, lambda value: value in names, names)


def truth() -> ValueRule:
    """True or False."""
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}

    def parse(text: str) -> bool:
        if text.lower() not in words:
            raise ValueError(text)
        return words[text.lower()]

    allowed = "True or False"
    return ValueRule(
        allowed, "True", parse, lambda value: isinstance(value, bool), ("True", "False")
    )


def text(
    words: str, example: str, accepts: Callable[[str], bool] = lambda value: True
) -> ValueRule:
    """A string."""
    return ValueRule(words, example, str, lambda value: isinstance(value, str) and accepts(value))


def optional(rule: ValueRule) -> ValueRule:
    """What the rule allows, or None."""
    return dataclasses.replace(
        rule,
        allowed=f"{rule.allowed}, or None",
        parse=lambda text: None if text in ("None", "none", "null") else rule.parse(text),
        accepts=lambda value: value is None or rule.accepts(value),
    )


def some_of(*names: str) -> ValueRule:
    """A tuple of some of the names."""
    return tuple_of(
        f"some of: {', '.join(names)}",
        ",".join(names[:2]),
        lambda value: all(name in names for name in value),
    )


def split_values(text: str) -> list[str]:
    """Returns the values of VALUE,VALUE: cut at commas, but not inside (a,b)."""
    return re.split(r",(?![^(]*\))", text)


def tuple_of(words: str, example: str, accepts: Callable[[tuple], bool]) -> ValueRule:
    """A tuple, written (a, b, c) or a,b,c."""

    def parse(text: str) -> tuple:
        try:
            value = ast.literal_eval(text)
        except (SyntaxError, ValueError, TypeError):  # {[]: 1} has no hash
            if text.count("(") != text.count(")"):
                raise ValueError(f"{text}: brackets do not match") from None
            value = [part.strip() for part in text.strip("()").split(",")]
        return tuple(value) if isinstance(value, (list, tuple)) else (value,)

    return ValueRule(
        words, example, parse, lambda value: isinstance(value, tuple) and accepts(value)
    )


def own_or_one_of(
    *names: str, more: str = "", accepts: Callable[[str], bool] = lambda value: False
) -> ValueRule:
    """One of some names, MODULE.NAME (a class or function of the user's), or `more`."""
    return ValueRule(
        f"one of: {', '.join(names)}{more}, or MODULE.NAME of your own",
        names[0],
        str,
        lambda value: value in names or is_own(value) or accepts(str(value)),
        names,
    )


def own_or_some_of(*names: str) -> ValueRule:
    """A tuple of some of the names, and of MODULE.NAME: functions of the user's."""
    return tuple_of(
        f"some of: {', '.join(names)}, and MODULE.NAME of your own",
        ",".join(names[:2]),
        lambda value: (
            all(name in names or is_own(name) for name in value) and len(set(value)) == len(value)
        ),
    )


def is_own(value: Any) -> bool:
    """Returns whether a value looks like MODULE.NAME, a class or function of the user's."""
    parts = value.split(".") if isinstance(value, str) else []
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def _are_multipliers(value: Any) -> bool:
    try:
        pairs = [part.split("=") for part in value]
        return all(path and 0 <= float(factor) < math.inf for path, factor in pairs)
    except (AttributeError, ValueError):
        return False


def _is_mixture(value: Any) -> bool:
    try:
        pairs = [part.rsplit("=", 1) for part in value]
        thousandths = [round(1000 * float(share)) for path, share in pairs if path]  # as mix reads
    except (AttributeError, ValueError, OverflowError):
        return False
    if len(thousandths) < len(value) or min(thousandths, default=1) < 1:
        return False
    return sum(thousandths) <= 999


def _are_shares(value: tuple) -> bool:
    return (
        len(value) == 3
        and all(is_number(share) and 0 < share < 1 for share in value)
        and math.isclose(sum(value), 1)
    )


# Types that are more than a bound, see __init__.py.
SPECIAL: dict[str, ValueRule] = {
    "Switch": truth(),
    "Text": text("a non-empty string", "shakespeare", bool),
    "AnyText": text("a string", "<|endoftext|>"),
    "TokenizerName": own_or_one_of(
        *("byte", "char", "bpe", "word"),
        more=", the path of a tokenizer.json",
        accepts=lambda value: "/" in value or value.endswith(".json"),
    ),
    "ModelVariant": text(
        "a name like Ti/4: Ti, S, B, L or H, and the patch size",
        "Ti/4",
        lambda value: re.fullmatch(r"(Ti|S|B|L|H)/[1-9]\d*", value) is not None,
    ),
    "LayerPattern": text(
        "letters, one for each block, repeated over the depth",
        "LLLG",
        lambda value: value == "" or re.fullmatch(r"[A-Za-z]+", value) is not None,
    ),
    "Splits": tuple_of("3 numbers in (0, 1) that sum to 1", "0.8,0.1,0.1", _are_shares),
    "ParameterPaths": tuple_of(
        "beginnings of parameter paths",
        "token_embedding,block_0",
        lambda value: all(isinstance(name, str) and name for name in value),
    ),
    "Multipliers": tuple_of(
        "PATH=NUMBER, path the beginning of parameter paths, number >= 0",
        "token_embedding=0.1,block_0=0.5",
        _are_multipliers,
    ),
    "Mixture": tuple_of(
        "SOURCE=SHARE, shares of 0.001 or more that leave 0.001 for data.source",
        "more.txt=0.3,shards=0.2",
        _is_mixture,
    ),
}


def suggest(wrong: Any, candidates: Iterable[str]) -> str:
    """Returns '; did you mean X?' for the nearest candidate, or nothing.

    Keys are compared whole and by their last part, so the right name in the wrong section is found;
    so is what an option or a value is called elsewhere, and a name in other letter case.
    """
    candidates, wrong = list(candidates), str(wrong)
    tail = wrong.rsplit(".", 1)[-1]
    last_parts = {name.rsplit(".", 1)[-1]: name for name in reversed(candidates)}
    near = [name for name in candidates if name.lower() == wrong.lower()]
    is_path = "/" in wrong or wrong.endswith(".py")
    near = near or _longer(wrong, candidates)
    near = near or ([last_parts[tail]] if tail in last_parts and not is_path else [])
    near = near or _called_otherwise(tail.lower().lstrip("-"), candidates)
    near = near or difflib.get_close_matches(wrong, candidates, 1, 0.75)
    near = near or [last_parts[t] for t in difflib.get_close_matches(tail, last_parts, 1, 0.6)]
    return f"; did you mean {near[0]}?" if near else ""


def _longer(wrong: str, candidates: list[str]) -> list[str]:
    """The only option of the same section whose name begins so: dropout of dropout_rate."""
    begun = [name for name in candidates if name.startswith(wrong) and "." in wrong]
    of_section = [name for name in begun if name.rpartition(".")[0] == wrong.rpartition(".")[0]]
    return of_section if len(of_section) == 1 else []


def _called_otherwise(name: str, candidates: list[str]) -> list[str]:
    """The candidate that is called so elsewhere: a value, or a key with its value."""
    key, equals, value = OTHER_NAMES.get(name, "").partition("=")
    spellings = [f"{c}{equals}{value}" for c in candidates if c in (key, f"--config.{key}")]
    return spellings or [c for c in candidates if value and c == value]


def nearest_divisor(number: int, target: int) -> int:
    """Returns the divisor of a number that is nearest to what was wanted."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    divisors = sorted({*small, *(number // d for d in small)})
    return min(divisors, key=lambda divisor: abs(divisor - target))
