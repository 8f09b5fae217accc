"""Arms from the command line: a grid of values, or what is left out. Nothing here imports jax."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.config import SECTIONS
from transformer_jax.errors import InvalidInput
from transformer_jax.options import split_values
from transformer_jax.resolve import option_for, unknown_key
from transformer_jax.suggestions import suggest


def parse_arm(
    text: str, flat: Mapping[str, Any], whole_keys: bool = False, flag: str = "--arm"
) -> dict[str, dict[str, Any]]:
    """Reads `KEY=VALUE,VALUE` or several of these joined by x: their product.

    Args:
      text: of one `--arm`.
      flat: the base's values.
      whole_keys: whether arms are named by whole keys, where their last names do not tell them
        apart.
      flag: that the text was given with.
    Returns:
      name of the arm -> changed values.
    """
    axes = []
    for part in _parts(text):
        key, equals, values = part.partition("=")
        key = key.removeprefix("config.")
        option = option_for(key, flat)
        if not equals or not values:
            raise InvalidInput(f"{flag}={text}: expected KEY=VALUE,VALUE,...")
        if option is None:
            raise InvalidInput(f"{flag}={text}: {unknown_key(key, flat)}")
        second = re.search(r"x((?:config\.)?[a-z]+\.[\w.]*)=", values)
        if second and names_section(second[1]):  # else a file in a value
            raise InvalidInput(f"{flag}={text}: {unknown_key(second[1], flat)}")
        axis = []
        for value in split_values(values):
            try:
                parsed = option.parse(value)
            except (ValueError, OverflowError):
                parsed = None
            if not option.accepts(parsed) or (
                parsed is None and value.lower() not in ("none", "null")
            ):
                near = suggest(value, option.names)
                raise InvalidInput(f"{flag}={text}: {key}={value}: expected {option.allowed}{near}")
            axis.append((key, value, parsed))
        axes.append(axis)
    last = {key: key.rsplit(".", 1)[-1] for axis in axes for key, *_ in axis}
    apart = len(set(last.values())) == len(last) and not whole_keys
    short = last if apart else {key: key for key in last}
    return {
        " ".join(f"{short[key]}={value}" for key, value, _ in point): {
            key: parsed for key, _, parsed in point
        }
        for point in itertools.product(*axes)
    }


_SECTIONS = sorted({prefix.partition(".")[0] for prefix in SECTIONS} - {""})


def names_section(key: str) -> bool:
    """Whether a key begins with a section of a config, or with what may be a misspelt one."""
    first = key.removeprefix("config.").partition(".")[0]
    return first in _SECTIONS or bool(suggest(first, _SECTIONS))


def _parts(text: str) -> list[str]:
    """Cuts at an x that begins a new KEY=; keys and values hold an x too."""
    return re.split(rf"x(?=(?:config\.)?(?:{'|'.join(_SECTIONS)})\.[\w.]*=)", text)


# What is left out of a model, by what users call it: the values that take its place.
DROPS: dict[str, dict[str, Any]] = {
    "positions": {"model.position": "none"},
    "residuals": {"model.wiring": "no_residual", "model.skips": "none"},
    "norm": {"model.norm": "none", "model.query_key_norm": "none"},
    "scale": {"model.attention_scale": 1.0},
    "heads": {"model.num_heads": 1, "model.num_kv_heads": None, "model.head_dim": None},
    "feedforward": {"model.feed_forward": "none"},
    "warmup": {},
    "dropout": {
        "model.dropout_rate": 0.0,
        "model.attention_dropout_rate": None,  # as dropout_rate
        "model.stochastic_depth": 0.0,
    },
    "decay": {"optimizer.weight_decay": 0.0},
    "clipping": {"training.clip_norm": None},
}


def quick_arms(
    flat: Mapping[str, Any], arms: Sequence[str], drops: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Returns the arms of `--arm` and `--drop`, name -> changed values; {} without any.

    Args:
      flat: the base's values.
      arms: texts of `--arm`.
      drops: names of `--drop`.
    Raises:
      InvalidInput: one of them is wrong, or leaves out what the config has not.
    """
    made: dict[str, dict[str, Any]] = {}
    for text in arms:
        parsed = parse_arm(text, flat)
        if any(made.get(name, changes) != changes for name, changes in parsed.items()):
            parsed = parse_arm(text, flat, whole_keys=True)
        made |= parsed
    for name in drops:
        if name not in DROPS:
            raise InvalidInput(
                f"--drop={name}: expected some of {', '.join(DROPS)}{suggest(name, DROPS)}"
            )
        changes = DROPS[name]
        if name == "warmup":
            key = "schedule.warmup_steps"
            if flat["schedule.name"] == "inverse_square_root":
                raise InvalidInput(
                    f"--drop=warmup: with another {key} the learning rate is another all the way, "
                    "also after the warm-up; take another schedule"
                )
            changes = {key: 1} if key in flat else {}
        changes = {key: value for key, value in changes.items() if flat.get(key) != value}
        changes |= {  # a type of layer has its own
            key: DROPS[name][of_all]
            for key, value in flat.items()
            for of_all in [re.sub(r"^model\.layer_types\.\w+\.", "model.", key)]
            if of_all != key and value != DROPS[name].get(of_all, value)
        }
        if not changes:
            raise InvalidInput(f"--drop={name}: the config has none to leave out")
        made[f"without {name}"] = changes
    return made
