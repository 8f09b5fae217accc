"""Whether two runs can be compared: what they were scored on, and what computed them."""

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from transformer_jax.config_files import flatten
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.studies.asking.cells import deciding, device_of

_COUNTS = ("targets", "examples", "bytes", "sentences")
_BYTES_APART = 1e-3  # a share: parts of a text end with a token, elsewhere for two vocabularies
_WINDOWS = {"data.length", "evaluation.stride", "data.separate_documents"}


class RunFacts(NamedTuple):
    """What is read of a run to compare it with others.

    Attributes:
      manifest: what ran.
      config: flattened.
      evaluation: the final scores of each split and their protocol; {} before the end.
    """

    manifest: dict[str, Any]
    config: dict[str, Any]
    evaluation: dict[str, Any]

    @classmethod
    def of(cls, directory: RunDirectory) -> "RunFacts":
        """Reads a run."""
        return cls(directory.manifest(), flatten(directory.config()), directory.evaluation())


def scored_otherwise(
    one: RunFacts, other: RunFacts, metric: str, changed: Collection[str] = ()
) -> list[str]:
    """What two runs have apart that makes a difference of their scores meaningless.

    Args:
      one: a run.
      other: another one.
      metric: that they are compared by, without its split.
      changed: config keys that they differ in on purpose.
    """
    reasons, runs = [], (one, other)
    facts, configs = [run.manifest["data"] for run in runs], [run.config for run in runs]
    if configs[0]["data.task"] != configs[1]["data.task"]:
        reasons.append("other tasks: their losses are of different things")
    if facts[0].get("sha256") != facts[1].get("sha256"):
        reasons.append("evaluated on other data")
    by_byte = metric == "bits_per_byte"
    has_other_tokens = facts[0].get("tokenizer_sha256") != facts[1].get("tokenizer_sha256")
    if has_other_tokens and not by_byte:
        reasons.append("other tokenizers: only bits_per_byte compares")
    protocols = [run.evaluation.get("test", {}).get("protocol", {}) for run in runs]
    if not all(protocols):  # not finished: how they will be scored
        is_other = facts[0]["counts"] != facts[1]["counts"] and not has_other_tokens
    elif by_byte:
        apart = _BYTES_APART if has_other_tokens else 0.0
        sizes = [protocol.get("bytes") or 0 for protocol in protocols]
        is_other = abs(sizes[0] - sizes[1]) > apart * max(sizes)
    else:
        is_other = any(protocols[0].get(key) != protocols[1].get(key) for key in _COUNTS)
    if is_other:
        reasons.append("other targets are scored")
    windows = [_window(config) for config in configs]
    if windows[0] != windows[1] and not _WINDOWS.intersection(changed):
        reasons.append(f"evaluated otherwise: {'; '.join(windows)}")
    return reasons


def computed_otherwise(
    one: RunFacts, other: RunFacts, changed: Collection[str] = (), cells: bool = False
) -> list[str]:
    """What computed two runs otherwise, so that their bits differ for no reason of theirs.

    Args:
      one: a run.
      other: another one.
      changed: config keys that they differ in on purpose.
      cells: whether both are cells of one study. They were found by what they compute, so it is
        nothing that an older text of the code, or other packages than jax, computed one of them.
    """
    ours, theirs = one.manifest, other.manifest
    reasons = []
    if cells:
        packages = [deciding(run)["packages"] for run in (ours, theirs)]
    else:
        packages = [run.get("packages", {}) for run in (ours, theirs)]
        same = "code" if "code" in ours and "code" in theirs else "git"
        if ours[same] != theirs[same]:
            reasons.append("computed by other code")
    if packages[0] != packages[1]:
        reasons.append("other packages")
    if ours.get("members", 1) != theirs.get("members", 1):
        reasons.append("trained with other numbers of members at a time")
    if device_of(ours["device"]) != device_of(theirs["device"]):
        reasons.append("other device")
    if ours.get("environment", {}) != theirs.get("environment", {}):
        reasons.append("other flags of jax or XLA")
    for kind, word in (("initial", "weights behind initial."), ("own_rows", "code of ")):
        both = ours.get(kind, {}).keys() & theirs.get(kind, {}).keys()
        reasons += [f"other {word}{key}" for key in both if ours[kind][key] != theirs[kind][key]]
    if ours.get("legs") != theirs.get("legs"):
        reasons.append("one was extended, so its first updates were not of this config")
    if "model.dtype" not in changed and one.config["model.dtype"] != other.config["model.dtype"]:
        reasons.append("other precision")
    return reasons


def among(
    runs: Sequence[RunFacts], differences: Callable[..., list[str]], *arguments: Any
) -> list[str]:
    """What some run has apart from the first, each said once."""
    pairs = (differences(other, runs[0], *arguments) for other in runs[1:])
    return list(dict.fromkeys(itertools.chain.from_iterable(pairs)))


def _window(config: dict[str, Any]) -> str:
    length = config["data.length"]
    apart = ", documents apart" if config["data.separate_documents"] else ""
    return f"context {length}, stride {config['evaluation.stride'] or length}{apart}"
