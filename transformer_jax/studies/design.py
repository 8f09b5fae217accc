"""The question of a study: the baseline, the arms, and the rules for judging the answer.

A study is read from a config file that defines get_config() (the baseline), get_arms() (name ->
changed options) and get_study(), or made from `--arm`. This module does not import jax.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Len
from ml_collections import ConfigDict
from pydantic import BaseModel, Field, ValidationError

from transformer_jax.config import OPTIONS, SECTIONS
from transformer_jax.config_files import ConfigFile, changed, flatten, resolved
from transformer_jax.declarations import split_values
from transformer_jax.errors import InvalidInput, suggest
from transformer_jax.metrics import METRICS, SCORED, metric_facts
from transformer_jax.options import is_user_defined
from transformer_jax.resolve import option_for, stated, unknown_key

_MOST_ARMS = 64
_MOST_SEEDS = 10_000
_LARGEST_STEP = 3.5  # largest factor between neighbours in a tuning grid
_UNEVEN = 1.35  # largest ratio of a grid's factors: 1, 3, 10 is even enough
_SECTIONS = sorted({prefix.partition(".")[0] for prefix in SECTIONS} - {""})

_OF_LABELS = {
    "majority": "the most frequent class",
    "linear model": "a linear model",
    "nearest neighbour": "the nearest neighbour",
}
# Method of data/baselines -> its name in a sentence.
METHODS = {f"{n}-gram": f"a {n}-gram model" for n in range(1, 7)} | _OF_LABELS
FLOORS = ("1-gram", "majority", "guessing")  # methods that read nothing of an example


def gate_of(
    asked: Sequence[str] | None, usual: str | None, scores: Mapping[str, Any], split: str = "test"
) -> dict[str, Any] | None:
    """Returns the gate, which is the simple method that the baseline must beat, or None.

    The method comes from `asked`, the sealed pair (method, reason), or else is `usual`, the task's
    default. `scores` maps method -> split -> metric -> score. Without a known method, returns None.

    Raises:
      InvalidInput: The sealed method does not apply to the task.
    """
    method, reason = asked or (usual, "the usual one of such a task")
    if method is None:
        return None
    if method not in scores:
        methods = [name for name in scores if name in METHODS]
        raise InvalidInput(
            f"get_study(): gate: by={method!r} does not apply to this task; expected one of "
            f"{', '.join(methods)}{suggest(method, methods)}"
        )
    metric = "accuracy" if method in _OF_LABELS else "loss"
    score = scores[method][split][metric]
    return {"method": method, "metric": metric, "split": split, "score": score, "reason": reason}


Range = tuple[float | None, float | None]  # None: open on that side
Text = Annotated[str, Len(1)]


class Tuning(BaseModel, extra="forbid", frozen=True):
    """The option, `key`, that is tuned separately for every arm.

    Every arm tries all values of `grid`, which ascend by about equal factors, with each seed in
    `seeds`; no verdict uses these seeds.
    """

    key: str
    grid: Annotated[tuple[Annotated[float, Gt(0)], ...], Len(3, 32)]
    seeds: Annotated[tuple[Annotated[int, Ge(0)], ...], Len(2)] = (1000, 1001)

    @property
    def runs_of_an_arm(self) -> int:
        """Number of tuning runs for each arm."""
        return len(self.grid) * len(self.seeds)


class Match(BaseModel, extra="forbid"):
    """The cost, `by`, in which arms are made equal, and the option, `field`, that is solved for."""

    by: Literal["params", "flops"]
    field: Literal["model.width", "model.mlp_dim", "model.depth"]


class Gate(BaseModel, extra="forbid"):
    """The simple method, `by`, that the baseline must beat, and the reason for choosing it."""

    by: str
    reason: Text


class StudyFile(BaseModel, extra="forbid", frozen=True):
    """The entries of get_study(), all of which are sealed except `supersedes`.

    Attributes:
      question: The question, in one sentence.
      prediction: The author's expectation.
      metric: Primary metric on the test split: a name in METRICS, or a user-defined MODULE:NAME.
      margin: Smallest difference that matters, in the metric's unit.
      margin_reason: Reason for the margin.
      looks: Number of seeds at each planned look, ascending.
      base: Name of the baseline, the arm that all others are compared with; "" is the first arm.
      tuning: The option that each arm tunes, or None if nothing is tuned.
      match: The cost in which arms are made equal and the option solved for, or None.
      primary: Arms that the question is about; () means all. Others get intervals, no verdicts.
      target: Score at which a run has solved its task. Arms are then compared by the number of
        runs that reach it and by the number of updates they need.
      gate: The simple method that the baseline must beat before any verdict, or None for the
        task's default; see data/baselines.
      expected: Arm -> lowest and highest predicted effect; positive is better.
      supersedes: Reason for asking the same question again.
    """

    question: Text
    prediction: Text
    metric: Text
    margin: Annotated[float, Gt(0), Field(allow_inf_nan=False)]
    margin_reason: Text
    looks: Annotated[tuple[Annotated[int, Ge(1)], ...], Len(1)] = (5,)
    base: str = ""
    tuning: Tuning | None = None
    match: Match | None = None
    primary: tuple[str, ...] = ()
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    gate: Gate | None = None
    expected: dict[str, Range] = {}
    supersedes: str = ""


def _read(content: Any, where: str) -> StudyFile:
    if isinstance(content, dict):  # None is the same as leaving an entry out
        content = {key: value for key, value in content.items() if value is not None}
    try:
        return StudyFile.model_validate(content)
    except ValidationError as error:
        # A misspelt entry is also a missing one.
        fault = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        key = ".".join(map(str, fault["loc"])) or "get_study()"
        problem = f"{key}={fault['input']!r}: {fault['msg']}"
        if fault["type"] == "extra_forbidden":
            known = [name for m in (StudyFile, Tuning, Match, Gate) for name in m.model_fields]
            problem = f"{key!r} is unknown{suggest(str(fault['loc'][-1]), known)}"
        elif fault["type"] == "missing":
            problem = f"{key} is missing: it must be stated before the first cell"
        raise InvalidInput(f"{where}: {problem}") from error


class Design(StudyFile, arbitrary_types_allowed=True):
    """A study before any run: the entries of its file, its arms, and the baseline's config.

    Attributes:
      arms: Name -> changed options (full key -> value), including the baseline; sealed.
      config: The config that arms change, including changes from the command line; sealed.
      exploratory: True if the study was made on the command line.
      path: Path of the config file.
      overrides: Changes from the command line, full key -> value as text.
    """

    arms: dict[str, dict[str, Any]]
    config: ConfigDict
    exploratory: bool = False
    path: str = ""
    overrides: dict[str, str] = {}

    @property
    def larger_is_better(self) -> bool:
        """True if larger values of the metric are better."""
        return metric_facts(self.metric).larger_is_better

    @property
    def others(self) -> list[str]:
        """Names of the arms that are compared with the baseline."""
        return [name for name in self.arms if name != self.base]

    def config_of(self, arm: str, changes: Mapping[str, Any] | None = None) -> ConfigDict:
        """Returns the checked config of an arm, with seed 0 and any further changes.

        Raises:
          InvalidInput: One of its values is not allowed.
        """
        try:
            return changed(self.config, {**self.arms[arm], **(changes or {}), "seed": 0})
        except InvalidInput as error:
            raise InvalidInput(f"arm {arm!r}: {error}") from error

    def check_arms(self) -> "Design":
        """Checks every arm with every value of the tuning grid, and returns the design itself.

        Raises:
          InvalidInput: A value of an arm is not allowed, or an arm sets the tuned option.
        """
        key, grid = (self.tuning.key, self.tuning.grid) if self.tuning else ("", ())
        for name, changes in self.arms.items():
            self.config_of(name)
            if key in changes:
                raise InvalidInput(f"{self.path}: arm {name!r} sets {key}, which is tuned")
            for value in grid:
                self.config_of(name, {key: value})
        return self

    def sealed(self) -> dict[str, Any]:
        """Returns the sealed fields as plain JSON; they must not change once a cell has run."""
        base = stated(flatten(self.config_of(self.base)))
        before = ("question", "prediction", "metric", "larger_is_better", "margin", "margin_reason")
        after = ("arms", "tuning", "match", "primary", "target", "gate", "expected")
        order = (*before, "looks", "base", "base_config", *after)
        sealed = {name: getattr(self, name, None) for name in order} | {
            "metric": f"test/{self.metric}",
            "base_config": {key: value for key, value in base.items() if key != "seed"},
            "tuning": self.tuning and self.tuning.model_dump(),
            "match": self.match and [self.match.by, self.match.field],
            "gate": self.gate and [self.gate.by, self.gate.reason],
        }
        return json.loads(json.dumps(sealed))


def seal_of(sealed: Any) -> str:
    """Returns the sha256 of sealed fields, or of any other plain JSON."""
    return hashlib.sha256(json.dumps(sealed, sort_keys=True).encode()).hexdigest()


def load_design(
    file: str | ConfigFile,
    overrides: Mapping[str, str] | None = None,
    arms: Sequence[str] = (),
    margin: float | None = None,
    gate: str | None = None,
) -> Design:
    """Reads a study from a config file, or makes one from values of `--arm`.

    Args:
      file: Config file, or its path.
      overrides: Changes to the baseline, full key -> value as text.
      arms: Values of `--arm`, each KEY=VALUE,VALUE[xKEY=VALUE,...].
      margin: The smallest difference that matters, given only with arms; None: the default.
      gate: The simple method to beat, given only with arms; None: the task's default.

    Raises:
      InvalidInput: There are no arms, in the file or given, or an entry or arm is not valid.
    """
    file, overrides = ConfigFile(file) if isinstance(file, str) else file, overrides or {}
    config = file.config(overrides)
    for flag, value in (("--margin", margin), ("--gate", gate)):
        if value is not None and not arms:
            raise InvalidInput(f"{flag}={value}: needs --arm; a study file states its own")
    if arms:
        study, made = _quick_study(config, arms)
        if margin is not None:
            study |= {"margin": margin, "margin_reason": "given on the command line"}
        if gate is not None:
            study["gate"] = {"by": gate, "reason": "given on the command line"}
    else:
        missing = [name for name in ("get_arms", "get_study") if not hasattr(file.module, name)]
        if missing:
            raise InvalidInput(
                f"--config={file.path}: a study needs {' and '.join(missing)}() next to "
                "get_config(); or give arms, --arm=model.num_heads=1,2,4"
            )
        study, made = file.call("get_study"), file.call("get_arms")
    design = _checked(file.path, config, study, made)
    return design.model_copy(update={"exploratory": bool(arms), "overrides": dict(overrides)})


def _checked(path: str, config: ConfigDict, content: Any, arms: Any) -> Design:
    where = f"--config={path}: get_study()"
    _check_arms(path, arms)
    study = _read(content, where)
    metric, base = study.metric.removeprefix("test/"), study.base or next(iter(arms))
    others = [name for name in arms if name != base]
    if metric not in METRICS and not is_user_defined(metric):
        raise InvalidInput(
            f"{where}: metric={study.metric!r}: expected one of {', '.join(METRICS)}, or "
            f"MODULE:NAME of your own, scored on the test split{suggest(metric, METRICS)}"
        )
    if metric not in SCORED and metric not in config.evaluation.metrics:
        config = changed(config, {"evaluation.metrics": (*config.evaluation.metrics, metric)})
    if list(study.looks) != sorted(set(study.looks)):
        raise InvalidInput(f"{where}: looks={study.looks}: expected numbers of seeds, ascending")
    if base not in arms:
        raise InvalidInput(f"{where}: base={base!r} is not an arm{suggest(base, arms)}")
    for what, names in (("primary", study.primary), ("expected", study.expected)):
        for name in names:
            if name not in others:
                near = suggest(name, others)
                raise InvalidInput(
                    f"{where}: {what}: {name!r}: expected arms other than the baseline{near}"
                )
    if len(set(study.primary)) < len(study.primary):
        raise InvalidInput(f"{where}: primary={study.primary}: expected each arm once")
    for name, ends in study.expected.items():
        numbers = [end for end in ends if end is not None]
        if not numbers or numbers != sorted(numbers):
            raise InvalidInput(
                f"{where}: expected: {name!r}: {ends}: give the lowest and the highest effect, "
                "e.g. (-0.03, -0.01); None leaves an end open"
            )
    if study.target is not None and (study.expected or study.gate):
        what = "expected" if study.expected else "gate"
        raise InvalidInput(f"{where}: {what}: not allowed together with a target")
    if study.gate and study.gate.by not in METHODS:
        raise InvalidInput(
            f"{where}: gate: by={study.gate.by!r}: expected one of {', '.join(METHODS)}"
            f"{suggest(study.gate.by, METHODS)}"
        )
    tuning = study.tuning and check_tuning(where, study.tuning, flatten(config))
    fields: dict[str, Any] = dict(study) | {"metric": metric, "base": base, "tuning": tuning}
    return Design(**fields, arms=arms, config=config, path=path).check_arms()


def _check_arms(path: str, arms: Any) -> None:
    if not isinstance(arms, dict) or not 2 <= len(arms) <= _MOST_ARMS:
        raise InvalidInput(f"{path}: get_arms(): expected a dict of 2 to {_MOST_ARMS} arms")
    for name, changes in arms.items():
        if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 80:
            raise InvalidInput(f"{path}: arm {name!r}: expected a name of 1 to 80 characters")
        if not isinstance(changes, dict) or not all(isinstance(key, str) for key in changes):
            raise InvalidInput(f"{path}: arm {name!r}: expected a dict of changes by full key")
        if "seed" in changes:
            raise InvalidInput(f"{path}: arm {name!r}: give seeds on the command line, --seeds=5")


def check_tuning(where: str, tuning: Tuning, flat: Mapping[str, Any]) -> Tuning:
    """Checks a tuning and returns it, with an integer grid if its option takes integers.

    `flat` has the base's options, and `where` begins the error messages.

    Raises:
      InvalidInput: An option or value is unknown, the grid is uneven, or a seed is repeated.
    """
    where, key, grid = f"{where}: tuning", tuning.key, tuning.grid
    option = option_for(key, flat)
    if option is None:
        raise InvalidInput(f"{where}: {unknown_key(key, flat)}")
    if len(set(tuning.seeds)) < len(tuning.seeds):
        raise InvalidInput(f"{where}: seeds={tuning.seeds}: expected each seed once")
    factors = [after / before for before, after in itertools.pairwise(grid)]
    if not 1 < min(factors) <= max(factors) <= min(_LARGEST_STEP, _UNEVEN * min(factors)):
        raise InvalidInput(
            f"{where}: grid={grid}: expected ascending values; the factor between neighbours must "
            f"be at most {_LARGEST_STEP} and about the same everywhere"
        )
    is_whole = all(value == int(value) for value in grid) and option.accepts(int(grid[0]))
    grid = tuple(int(value) for value in grid) if is_whole else grid
    if wrong := [value for value in grid if not option.accepts(value)]:
        raise InvalidInput(f"{where}: grid: {key}={wrong[0]!r}: expected {option.allowed}")
    return tuning.model_copy(update={"grid": grid})


def larger_is_better(metric: str, stored: Mapping[str, Mapping[str, Any]] | None = None) -> bool:
    """Returns whether larger values are better for a metric, named with or without its split.

    Smaller is better for times and norms, larger for speeds. `stored` has the facts that runs store
    about user-defined metrics, so that their code need not be imported.
    """
    name = metric.rsplit("/", 1)[-1]
    if name in METRICS:
        return metric_facts(name).larger_is_better
    if name == "mfu" or name.endswith("_per_second"):
        return True
    return bool((stored or {}).get(name, {}).get("larger_is_better", False))


def _quick_study(
    config: ConfigDict, arms: Sequence[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Returns what get_study() and get_arms() would return, for arms given with `--arm`."""
    flat = flatten(config)
    made: dict[str, dict[str, Any]] = {}
    for text in arms:
        parsed = parse_arm(text, flat)
        if any(made.get(name, changes) != changes for name, changes in parsed.items()):
            parsed = parse_arm(text, flat, whole_keys=True)
        for name, changes in parsed.items():
            if changes not in made.values():  # else the same arm, spelled in another way
                made[name] = changes
    now = resolved(config)
    same = [n for n, changes in made.items() if all(now.get(k) == v for k, v in changes.items())]
    if len(same) == len(made):
        raise InvalidInput(
            f"--arm={' --arm='.join(arms)}: the config already has this value; expected a "
            "different one, or several: KEY=VALUE,VALUE"
        )
    base = same[0] if same else "base"
    made = {base: made.get(base, {})} | {n: c for n, c in made.items() if n not in same}
    metric = usual_metric(config)
    options = dict.fromkeys(key.rsplit(".", 1)[-1] for arm in made.values() for key in arm)
    study = {
        "question": f"How does the {metric} depend on {' and '.join(options)}?",
        "prediction": "none (made on the command line)",
        "base": base,
        "metric": metric,
        "margin": metric_facts(metric).margin,
        "margin_reason": "the default",
    }
    return study, made


def usual_metric(config: ConfigDict) -> str:
    """Returns the default primary metric: evaluation.benchmark if stated, else the task's."""
    if config.evaluation.benchmark is not None:
        return "benchmark"
    return "accuracy" if config.data.task.endswith("_classification") else "loss"


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parses seeds given as `5` (0 to 4), `5:10` (5 to 9) or `3,7,8`.

    Raises:
      InvalidInput: The text has a different form, or a seed is missing, double or out of range.
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
            f"{OPTIONS['seed'].allowed}; for seed 7 alone, give 7:8"
        )
    if not seeds or seeds[0] < 0:
        raise InvalidInput(
            f"--seeds={text}: expected a number (5: seeds 0 to 4), a range (5:10) or a list (3,7,8)"
        )
    return tuple(seeds)


def parse_arm(
    text: str, flat: Mapping[str, Any], whole_keys: bool = False, flag: str = "--arm"
) -> dict[str, dict[str, Any]]:
    """Parses `KEY=VALUE,VALUE`, or a product of several (x), into changed options by arm.

    `flat` has the baseline's options. With `whole_keys`, arms are named by full keys instead of
    the last parts of keys. Error messages name `flag`.
    """
    axes = []
    for part in re.split(rf"\s*x\s*(?=(?:config\.)?(?:{'|'.join(_SECTIONS)})\.[\w.]*=)", text):
        key, equals, values = part.strip().partition("=")
        key = key.removeprefix("config.")
        option = option_for(key, flat)
        if not equals or not values:
            raise InvalidInput(f"{flag}={text}: expected KEY=VALUE,VALUE,...")
        if option is None:
            raise InvalidInput(f"{flag}={text}: {unknown_key(key, flat)}")
        second = re.search(r"x\s*((?:config\.)?[a-z]+\.[\w.]*)=", values)
        if second and names_section(second[1]):  # otherwise a file name in a value
            raise InvalidInput(f"{flag}={text}: {unknown_key(second[1], flat)}")
        where = f"{flag}={text}: {key}"
        axes.append([(key, value, _parsed(option, value, where)) for value in split_values(values)])
    short = {key: key.rsplit(".", 1)[-1] for axis in axes for key, *_ in axis}
    if whole_keys or len(set(short.values())) < len(short):
        short = {key: key for key in short}
    return {
        " ".join(f"{short[key]}={value}" for key, value, _ in point): {
            key: parsed for key, _, parsed in point
        }
        for point in itertools.product(*axes)
    }


def _parsed(option: Any, text: str, where: str) -> Any:
    try:
        parsed = option.parse(text)
    except (ValueError, OverflowError):
        parsed = None
    says_none = text.lower() in ("none", "null")
    if not option.accepts(parsed) or (parsed is None and not says_none):
        near = suggest(text, option.names)
        raise InvalidInput(f"{where}={text}: expected {option.allowed}{near}")
    return parsed


def names_section(key: str) -> bool:
    """Returns whether a key begins with the name of a config section, possibly misspelt."""
    first = key.removeprefix("config.").partition(".")[0]
    return first in _SECTIONS or bool(suggest(first, _SECTIONS))
