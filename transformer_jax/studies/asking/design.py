"""What a study asks: the base, its arms, and how the answer will be judged.

Read from a config file that defines, beside get_config() (the base), get_arms() (name -> changed
values) and get_study(); or made from `--arm` and `--drop`. Nothing here imports jax.
"""

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import OPTIONS
from transformer_jax.config_files import ConfigFile, changed, flatten
from transformer_jax.errors import InvalidInput
from transformer_jax.metrics import METRICS, SCORED, metric_facts
from transformer_jax.options import is_integer, is_number, is_user_defined
from transformer_jax.resolve import plain_key, stated
from transformer_jax.studies.asking.arms import quick_arms
from transformer_jax.studies.asking.expected import Range, read_expected
from transformer_jax.studies.asking.gate import read_gate
from transformer_jax.studies.asking.tuning import Tuning, read_tuning, refuse_impossible_settings
from transformer_jax.suggestions import suggest

MATCHES = ("params", "flops", "time")
FIELDS = ("model.width", "model.mlp_dim", "model.depth")
_MOST_ARMS = 64
_MOST_SEEDS = 10_000
_NAMED = 8  # arms that the question of a grid names


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
