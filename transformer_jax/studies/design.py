"""What a study asks: the base, its arms, and how the answer will be judged.

Read from a config file that defines, beside get_config() (the base), get_arms() (name -> changed
values) and get_study(); or made from `--arm` and `--drop`. Nothing here imports jax.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import OPTIONS, SECTIONS
from transformer_jax.config_files import ConfigFile, changed, flatten
from transformer_jax.declarations import split_values
from transformer_jax.errors import InvalidInput, suggest
from transformer_jax.metrics import METRICS, SCORED, metric_facts
from transformer_jax.options import is_integer, is_number, is_user_defined
from transformer_jax.resolve import option_for, plain_key, stated, unknown_key

MATCHES = ("params", "flops", "time")
FIELDS = ("model.width", "model.mlp_dim", "model.depth")
_MOST_ARMS = 64
_MOST_SEEDS = 10_000
_NAMED = 8  # arms that the question of a grid names


Range = tuple[float | None, float | None]  # None: no end on that side
_TUNING_SEEDS = (1000, 1001)


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The option that each arm tunes.

    Attributes:
      key: Of the config.
      grid: Values that every arm tries, > 0, ascending in about equal factors.
      seeds: Of the trials; no verdict uses them.
    """

    key: str
    grid: tuple[float, ...]
    seeds: tuple[int, ...] = _TUNING_SEEDS

    @property
    def runs_of_an_arm(self) -> int:
        """Number of trials of each arm."""
        return len(self.grid) * len(self.seeds)

    def told(self) -> str:
        """Describes the grid, for the plan."""
        values = ", ".join(f"{value:g}" for value in self.grid)
        return f"{self.key} {values} with {len(self.seeds)} seeds, then a parabola"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design:
    """A study, before anything ran: a value, whatever becomes of the file that it was read from.

    What is sealed is everything here except where it came from. Jobs get it by cloudpickle, which
    takes the references inside a config.

    Attributes:
      question: in one sentence.
      prediction: what the author expects, written down beforehand.
      expected: the same as ranges: arm -> lowest and highest effect, + is better; None: no end.
      metric: primary, of evaluation.json's `test` part: a row of METRICS, or MODULE:NAME.
      margin: the smallest difference that matters, in the metric's unit.
      margin_reason: why that one.
      looks: planned numbers of seeds, ascending.
      base: name of the arm that all others are compared with.
      arms: name -> changed values, full key -> value; the base among them.
      tuning: what each arm may tune; None: all have the base's options.
      match: what arms are made equal in (params, flops, time), and by which fields, which are
        solved for one after another, the coarse one first; or None.
      primary: arms that the question is about; the others get intervals and no words. (): all.
      target: score from which on a run has solved its task, where means describe no run: arms are
        then judged by how many runs reach it, and when.
      gate: simple method that the base has to beat before any verdict, and why that one; None: the
        usual one of the task, see data/baselines.
      supersedes: why the same question is asked again; not sealed.
      config: what arms change; with what the command line changed.
      exploratory: made on the command line.
      path: of the config file.
      overrides: what the command line changed, full key -> text.
    """

    question: str = ""
    prediction: str = ""
    metric: str
    margin: float = 1.0
    margin_reason: str = ""
    looks: tuple[int, ...] = (5,)
    base: str
    arms: Mapping[str, Mapping[str, Any]]
    tuning: Tuning | None = None
    match: tuple[str, tuple[str, ...]] | None = None
    primary: tuple[str, ...] = ()
    target: float | None = None
    gate: tuple[str, str] | None = None
    expected: Mapping[str, Range] = dataclasses.field(default_factory=dict)
    supersedes: str = ""
    config: ConfigDict
    exploratory: bool = False
    path: str = ""
    overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def larger_is_better(self) -> bool:
        """Direction of the metric."""
        return metric_facts(self.metric).larger_is_better

    @property
    def others(self) -> list[str]:
        """The arms that are compared with the base."""
        return [name for name in self.arms if name != self.base]

    def config_of(self, arm: str, changes: Mapping[str, Any] | None = None) -> ConfigDict:
        """Returns the checked config of an arm, with seed 0.

        Args:
          arm: its name.
          changes: further ones, what was solved for or tuned.
        Raises:
          InvalidInput: one of its values is wrong.
        """
        try:
            return changed(self.config, {**self.arms[arm], **(changes or {}), "seed": 0})
        except InvalidInput as error:
            raise InvalidInput(f"arm {arm!r}: {error}") from error

    def sealed(self) -> dict[str, Any]:
        """What may not change once a cell has run, as plain JSON."""
        base = stated(flatten(self.config_of(self.base)))
        sealed: dict[str, Any] = {
            "question": self.question,
            "prediction": self.prediction,
            "metric": f"test/{self.metric}",
            "larger_is_better": self.larger_is_better,
            "margin": self.margin,
            "margin_reason": self.margin_reason,
            "looks": self.looks,
            "base": self.base,
            "base_config": {key: value for key, value in base.items() if key != "seed"},
            "arms": self.arms,
            "tuning": dataclasses.asdict(self.tuning) if self.tuning else None,
            "match": self.match,
            "primary": self.primary,
            "target": self.target,
            "gate": self.gate,
            "expected": self.expected,
        }
        return json.loads(json.dumps(sealed))


def seal_of(sealed: Mapping[str, Any]) -> str:
    """Returns the hash of what was sealed."""
    return hashlib.sha256(json.dumps(sealed, sort_keys=True).encode()).hexdigest()


# ---------------------------------------------------------------- from a file


def load_design(
    path: str,
    overrides: Mapping[str, str] | None = None,
    arms: Sequence[str] = (),
    drops: Sequence[str] = (),
) -> Design:
    """Reads a study from a config file, or makes one of a grid or of what is left out.

    Args:
      path: of the config file.
      overrides: of the base, full key -> text of the value.
      arms: texts of `--arm`, KEY=VALUE,VALUE[xKEY=VALUE,...].
      drops: names of `--drop`.
    Raises:
      InvalidInput: the file has no arms and none were given, or any of it is wrong.
    """
    return design_of(ConfigFile(path), overrides, arms, drops)


def design_of(
    file: ConfigFile,
    overrides: Mapping[str, str] | None = None,
    arms: Sequence[str] = (),
    drops: Sequence[str] = (),
) -> Design:
    """Returns the study of a config file that was run, see load_design.

    Args:
      file: whose question it is.
      overrides: see load_design.
      arms: see load_design.
      drops: see load_design.
    """
    overrides = overrides or {}
    config = file.config(overrides)
    if arms or drops:
        study, made = _quick_study(config, arms, drops)
    else:
        missing = [name for name in ("get_arms", "get_study") if not hasattr(file.module, name)]
        if missing:
            raise InvalidInput(
                f"--config={file.path}: a study needs {' and '.join(missing)}() beside "
                "get_config(); or give arms, --arm=model.num_heads=1,2,4"
            )
        study, made = file.call("get_study"), file.call("get_arms")
    design = _checked(file.path, config, study, made)
    exploratory = bool(arms or drops)
    return dataclasses.replace(design, exploratory=exploratory, overrides=dict(overrides))


_STUDY_KEYS = {
    "question": str,
    "prediction": str,
    "metric": str,
    "margin": float,
    "margin_reason": str,
    "looks": tuple,
    "base": str,
    "tuning": dict,
    "match": dict,
    "primary": tuple,
    "target": float,
    "gate": dict,
    "expected": dict,
    "supersedes": str,
}
_NEEDED = ("question", "prediction", "metric", "margin", "margin_reason")


def _checked(path: str, config: ConfigDict, study: Any, arms: Any) -> Design:
    """Makes a design of what a config file says, or names what is wrong with it."""
    where = f"--config={path}: get_study()"
    if not isinstance(study, dict) or not isinstance(arms, dict):
        raise InvalidInput(f"--config={path}: get_study() and get_arms() have to give dicts")
    for key, value in study.items():
        if key not in _STUDY_KEYS:
            raise InvalidInput(f"{where}: {key!r} is unknown{suggest(key, _STUDY_KEYS)}")
        kind = _STUDY_KEYS[key]
        accepted = (int, float) if kind is float else (list, tuple) if kind is tuple else kind
        if value is not None and not isinstance(value, accepted):
            raise InvalidInput(f"{where}: {key}={value!r}: expected {kind.__name__}")
    missing = [key for key in _NEEDED if not study.get(key)]
    if missing:
        raise InvalidInput(
            f"{where}: {', '.join(missing)} missing: they are declared before the first cell"
        )
    metric = study["metric"].removeprefix("test/")
    if metric not in METRICS and not is_user_defined(metric):
        raise InvalidInput(
            f"{where}: metric={study['metric']!r}: expected one of {', '.join(METRICS)}, or "
            f"MODULE:NAME of your own, scored on the test split{suggest(metric, METRICS)}"
        )
    if metric not in SCORED and metric not in config.evaluation.metrics:
        asked = (*config.evaluation.metrics, metric)
        config = changed(config, {"evaluation.metrics": asked})
    margin, target = study["margin"], study.get("target")
    if not (is_number(margin) and margin > 0):
        raise InvalidInput(f"{where}: margin={margin!r}: expected a number > 0")
    if not (target is None or is_number(target)):
        raise InvalidInput(f"{where}: target={target!r}: expected a number")
    looks = tuple(study.get("looks") or (5,))
    if any(not is_integer(look) or look < 1 for look in looks) or list(looks) != sorted(set(looks)):
        raise InvalidInput(f"{where}: looks={looks}: expected numbers of seeds, ascending")
    base = study.get("base") or next(iter(arms), "")
    if base not in arms:
        raise InvalidInput(f"{where}: base={base!r} is no arm{suggest(base, map(str, arms))}")
    if not 2 <= len(arms) <= _MOST_ARMS:
        raise InvalidInput(f"{path}: expected 2 to {_MOST_ARMS} arms, got {len(arms)}")
    for name, changes in arms.items():
        if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 80:
            raise InvalidInput(f"{path}: arm {name!r}: expected a name of 1 to 80 characters")
        if not isinstance(changes, dict) or not all(isinstance(key, str) for key in changes):
            raise InvalidInput(
                f"{path}: arm {name!r}: expected a dict of changed values, by the keys of options"
            )
        if "seed" in changes:
            raise InvalidInput(f"{path}: arm {name!r}: seeds are the command's, --seeds=5")
    others = [name for name in arms if name != base]
    design = Design(
        question=study["question"],
        prediction=study["prediction"],
        metric=metric,
        margin=float(margin),
        margin_reason=study["margin_reason"],
        looks=looks,
        base=base,
        arms={name: dict(changes) for name, changes in arms.items()},
        tuning=read_tuning(where, study.get("tuning"), flatten(config)),
        match=_match(where, study.get("match")),
        primary=_primary(where, study.get("primary"), others),
        target=None if target is None else float(target),
        gate=read_gate(where, study.get("gate"), target),
        expected=read_expected(where, study.get("expected"), others, target),
        supersedes=study.get("supersedes") or "",
        config=config,
        path=path,
    )
    refuse_impossible_settings(design)
    return checked_arms(design)


def checked_arms(design: Design) -> Design:
    """Returns the design, if every arm makes a config that can be trained.

    Raises:
      InvalidInput: a value of an arm is wrong.
    """
    for name in design.arms:
        design.config_of(name)
    return design


def _match(where: str, asked: dict | None) -> tuple[str, tuple[str, ...]] | None:
    if not asked:
        return None
    what, fields = asked.get("by", ""), asked.get("field", "")
    fields = tuple(fields) if isinstance(fields, list | tuple) and fields else (fields,)
    if unknown := [key for key in asked if key not in ("by", "field")]:
        raise InvalidInput(f"{where}: match: {unknown[0]!r}: expected by and field")
    if what not in MATCHES:
        raise InvalidInput(f"{where}: match: by={what!r}: expected one of {', '.join(MATCHES)}")
    for field in fields:
        if field not in FIELDS:
            raise InvalidInput(f"{where}: match: field={field!r}: expected {', '.join(FIELDS)}")
    return what, fields


def _primary(where: str, asked: Sequence[str] | None, others: list[str]) -> tuple[str, ...]:
    for name in asked or ():
        if name not in others:
            raise InvalidInput(
                f"{where}: primary: {name!r}: expected arms beside the base"
                f"{suggest(str(name), others)}"
            )
    if len(set(asked or ())) < len(asked or ()):
        raise InvalidInput(f"{where}: primary={list(asked or ())}: expected each arm once")
    return tuple(asked or ())


def _quick_study(
    config: ConfigDict, arms: Sequence[str], drops: Sequence[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What get_study() and get_arms() would say of a grid, or of what is left out."""
    flat = flatten(config)
    made = quick_arms(flat, arms, drops)

    def is_base(changes: dict[str, Any]) -> bool:
        # A type of layer that the base does not describe is the model as it is.
        return all(flat.get(k, flat.get(plain_key(k))) == v for k, v in changes.items())

    same = [name for name, changes in made.items() if is_base(changes)]
    if made and len(same) == len(made):
        raise InvalidInput(
            f"--arm={' --arm='.join(arms)}: the config has it already; expected another value, or "
            "several that are compared with the first: KEY=VALUE,VALUE"
        )
    base = same[0] if same else "base"
    made = {base: made.get(base, {})} | {n: c for n, c in made.items() if n not in same}
    metric = usual_metric(config)
    study = {
        "question": question_of(made, drops),
        "prediction": "none: it was made on the command line",
        "base": base,
        "metric": metric,
        "margin": metric_facts(metric).margin,
        "margin_reason": "the usual start; no reason was given",
    }
    return study, made


def question_of(arms: Collection[str], drops: Sequence[str]) -> str:
    """Returns what a study asks that was made on the command line."""
    named = ", ".join(arms) if len(arms) <= _NAMED else f"{len(arms)} arms"
    return "What does each part do?" if drops else f"What do {named} give?"


def usual_metric(config: ConfigDict) -> str:
    """What a question is judged by that says nothing of it."""
    return "accuracy" if config.data.task.endswith("_classification") else "loss"


def parse_seeds(text: str) -> tuple[int, ...]:
    """Reads `5` (0 to 4), `5:10` (5 to 9) or `3,7,8`.

    Raises:
      InvalidInput: it is none of them, empty, or names a seed twice.
    """
    first, colon, last = text.partition(":")
    seeds: Sequence[int]
    try:
        seeds = range(int(first), int(last)) if colon else range(int(first))
    except ValueError:
        parts = text.split(",")
        seeds = sorted({int(part) for part in parts if part.strip().isdecimal()})
        seeds = seeds if len(seeds) == len(parts) else ()
    if len(seeds) > _MOST_SEEDS or (seeds and not OPTIONS["seed"].accepts(seeds[-1])):
        raise InvalidInput(
            f"--seeds={text}: expected at most {_MOST_SEEDS:,} seeds, each "
            f"{OPTIONS['seed'].allowed}; one alone is 7:8"
        )
    if not seeds or seeds[0] < 0:
        raise InvalidInput(
            f"--seeds={text}: expected a number (5: seeds 0 to 4), a range (5:10) or a list (3,7,8)"
        )
    return tuple(seeds)


# ---------------------------------------------------------------- direction of a metric


def larger_is_better(metric: str, stored: Mapping[str, Mapping[str, Any]] | None = None) -> bool:
    """Returns the direction of a metric, with or without the split it is of.

    What is no score, a time or a norm say, is better smaller, and a speed larger.

    Args:
      metric: its name.
      stored: what runs keep of metrics that are not this package's; nothing is imported.
    """
    name = metric.rsplit("/", 1)[-1]
    if name in METRICS:
        return metric_facts(name).larger_is_better
    if name == "mfu" or name.endswith("_per_second"):
        return True
    return bool((stored or {}).get(name, {}).get("larger_is_better", False))


# ---------------------------------------------------------------- arms of the command line


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


# ---------------------------------------------------------------- what is expected


def read_expected(
    where: str,
    asked: Mapping[str, Any] | None,
    others: Collection[str],
    target: float | None,
) -> dict[str, Range]:
    """Returns `expected` of get_study(): arm -> lowest and highest effect.

    Args:
      where: of the file, for messages.
      asked: what stands there.
      others: arms beside the base.
      target: of the study.
    Raises:
      InvalidInput: an arm is unknown, its range is no pair of numbers in order (None is no end), or
        there is a target.
    """
    if asked and target is not None:
        raise InvalidInput(
            f"{where}: expected: a study with a target judges no mean; predict in words"
        )
    ranges = {}
    for name, ends in (asked or {}).items():
        if name not in others:
            raise InvalidInput(
                f"{where}: expected: {name!r}: no arm beside the base{suggest(str(name), others)}"
            )
        is_pair = isinstance(ends, Sequence) and len(ends) == 2
        numbers = [end for end in ends if end is not None] if is_pair else []
        if not numbers or not all(map(is_number, numbers)) or numbers != sorted(numbers):
            raise InvalidInput(
                f"{where}: expected: {name!r}: {ends!r}: give the lowest and the highest effect, "
                "(-0.03, -0.01) say, None for no end"
            )
        ranges[name] = (ends[0], ends[1])
    return ranges


def how_it_came(ends: Range, interval: Sequence[float | None] | None) -> str:
    """Returns whether an effect is where it was expected, by its interval; None is no end."""
    if interval is None:
        return "not known"
    (low, high), (least, most) = _numbers(ends), _numbers(interval)
    if low <= least and most <= high:
        return "as expected"
    return "not as expected" if most < low or high < least else "open"


def _numbers(ends: Sequence[float | None]) -> tuple[float, float]:
    low, high = ends
    return -math.inf if low is None else low, math.inf if high is None else high


# ---------------------------------------------------------------- gate

_OF_LABELS = {
    "majority": "the most frequent class",
    "linear model": "a linear model",
    "nearest neighbour": "the nearest neighbour",
}
# Of data/baselines, with what they are called in a sentence.
METHODS = {f"{n}-gram": f"a {n}-gram model" for n in range(1, 7)} | _OF_LABELS
FLOORS = ("1-gram", "majority")  # read nothing of an example: what a metric cannot fall below


def read_gate(where: str, asked: dict | None, target: float | None) -> tuple[str, str] | None:
    """Returns method and reason of a `gate` in get_study().

    Args:
      where: of the file, for messages.
      asked: what stands there: by and reason.
      target: of the study.
    Raises:
      InvalidInput: the method is unknown, there is no reason, or there is a target.
    """
    if not asked:
        return None
    method, reason = str(asked.get("by")), asked.get("reason")
    if method not in METHODS:
        raise InvalidInput(
            f"{where}: gate: by={method!r}: expected one of {', '.join(METHODS)}"
            f"{suggest(method, METHODS)}"
        )
    if not isinstance(reason, str) or not reason.strip() or asked.keys() != {"by", "reason"}:
        raise InvalidInput(f"{where}: gate: expected by and reason, why another than the usual one")
    if target is not None:
        raise InvalidInput(f"{where}: gate: a study with a target counts the runs that reach it")
    return method, reason


def gate_of(
    asked: Sequence[str] | None,
    usual: str | None,
    scores: Mapping[str, Any],
    split: str = "test",
) -> dict[str, Any] | None:
    """Returns what a base is held against.

    Args:
      asked: method and reason that a study sealed.
      usual: method of the task.
      scores: method -> split -> metric -> score.
      split: that both are scored on.
    Returns:
      method, metric, its split, score and reason; None where no method is known.
    Raises:
      InvalidInput: what was asked for does not go with the task.
    """
    method, reason = asked or (usual, "the usual one of such a task")
    if method is None:
        return None
    if method not in scores:
        methods = [name for name in scores if name in METHODS]
        raise InvalidInput(
            f"get_study(): gate: by={method!r}: not for this task; expected one of "
            f"{', '.join(methods)}{suggest(method, methods)}"
        )
    metric = "accuracy" if method in _OF_LABELS else "loss"
    score = scores[method][split][metric]
    return {"method": method, "metric": metric, "split": split, "score": score, "reason": reason}


# ---------------------------------------------------------------- tuning

_LARGEST_STEP = 3.5
_UNEVEN = 1.35  # largest factor over the smallest: 1, 3, 10 is even enough
_MOST_VALUES = 32


def read_tuning(where: str, asked: dict | None, flat: Mapping[str, Any]) -> Tuning | None:
    """Returns the `tuning` of a get_study().

    Args:
      where: Place in the file, for messages.
      asked: What stands there.
      flat: Values of the baseline.

    Raises:
      InvalidInput: Any of it is wrong.
    """
    if not asked:
        return None
    where, allowed = f"{where}: tuning", [field.name for field in dataclasses.fields(Tuning)]
    for name in asked:
        if name not in allowed:
            raise InvalidInput(f"{where}: {name!r} is unknown{suggest(str(name), allowed)}")
    key, seeds = asked.get("key"), asked.get("seeds", _TUNING_SEEDS)
    grid: Any = asked.get("grid")
    if not isinstance(key, str):
        raise InvalidInput(f"{where}: key={key!r}: expected the name of an option")
    if not all(isinstance(values, list | tuple) and values for values in (grid, seeds)):
        raise InvalidInput(f"{where}: grid and seeds: expected lists of numbers, not empty")
    if len(seeds) < 2 or not all(is_integer(s) and s >= 0 for s in seeds) or _repeats(seeds):
        raise InvalidInput(f"{where}: seeds={list(seeds)}: expected 2 or more integers >= 0")
    option = option_for(key, flat)
    if option is None:
        raise InvalidInput(f"{where}: {unknown_key(key, flat)}")
    if not all(map(is_number, grid)) or not 3 <= len(grid) <= _MOST_VALUES or not min(grid) > 0:
        raise InvalidInput(f"{where}: grid={grid}: expected 3 to {_MOST_VALUES} numbers > 0")
    factors = [after / before for before, after in itertools.pairwise(grid)]
    if not 1 < min(factors) <= max(factors) <= min(_LARGEST_STEP, _UNEVEN * min(factors)):
        raise InvalidInput(
            f"{where}: grid={grid}: expected each value to be 1 to {_LARGEST_STEP} times the one "
            "before, by about the same factor"
        )
    if wrong := [value for value in grid if not option.accepts(value)]:
        raise InvalidInput(f"{where}: grid: {key}={wrong[0]!r}: expected {option.allowed}")
    return Tuning(key, tuple(grid), tuple(seeds))


def _repeats(values: Any) -> bool:
    return len(set(values)) < len(values)


def refuse_impossible_settings(design: Any) -> None:
    """Raises InvalidInput where an arm cannot be trained with one of the values."""
    tuning = design.tuning
    if tuning is None:
        return
    for name, changes in design.arms.items():
        if tuning.key in changes:
            raise InvalidInput(f"{design.path}: arm {name!r} sets {tuning.key}, which is tuned")
        for value in tuning.grid:
            design.config_of(name, {tuning.key: value})
