"""Remarks on how a run's arrays are laid out across devices."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

from transformer_jax.paths import by_path
from transformer_jax.sharding import Sharding
from transformer_jax.training.prepared import Prepared

_LARGE = 1 << 20  # bytes of an array that is worth a word where it is not cut


def remarks_of(prepared: Prepared) -> list[str]:
    """Returns them of what is about to be trained, one line each."""
    config = prepared.config
    parts = {"training": config.training.accumulation, "evaluation": 1}
    return remarks_on_sharding(
        prepared.sharding,
        prepared.template,
        {f"{name}.batch_size": (config[name].batch_size, n) for name, n in parts.items()},
        _heads_and_places(prepared) if prepared.sharding else {},
    )


def _heads_and_places(prepared: Prepared) -> dict[str, dict[str, int]]:
    """Axis of a mesh -> what it cuts of values, in words, and how many of it there are."""
    model, inputs = prepared.config.model, prepared.task.batch(0, 0)["inputs"]
    heads = {f"model.{n}": model[n] for n in ("num_heads", "num_kv_heads") if model[n] is not None}
    texts = {n: leaf.shape[1] for n, leaf in inputs.items() if leaf.ndim == 2}
    return {"tensor": heads, "sequence": {f"places of {n}": size for n, size in texts.items()}}


def remarks_on_sharding(
    sharding: Sharding | None,
    state: Any,
    examples: Mapping[str, tuple[int, int]],
    counts: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> list[str]:
    """Returns what a user should know of how a run's arrays lie, one line each.

    Args:
      sharding: Of the run.
      state: Its shapes.
      examples: Key -> how many examples a batch has, and in how many parts it is computed.
      counts: Axis of the mesh -> what it cuts, in words, -> how many of it there are.
    """
    num_devices, used = jax.device_count(), 1 if sharding is None else sharding.mesh.size
    remarks = []
    if num_devices > used:
        remarks.append(
            f"{num_devices - used} of {num_devices} devices stay idle; "
            "--config.mesh.data=-1 takes all"
        )
    if sharding is None:
        return remarks
    for key, (batch_size, parts) in examples.items():
        rows, devices = batch_size // parts, sharding.num_parts
        if rows % devices:
            most = -(-rows // devices)
            remarks.append(
                f"{rows} examples at once over {devices} devices: {most} each, some with fewer; "
                f"{key}={most * devices * parts} costs no more time"
            )
    for axis, of_axis in counts.items():
        size = sharding.mesh.shape[axis]
        for what, number in of_axis.items():
            if number % size:
                remarks.append(
                    f"mesh.{axis}={size} does not divide {what}={number}: each of its devices "
                    "computes all of them"
                )
    return [*remarks, *_remarks_on_arrays(sharding, state)]


def _remarks_on_arrays(sharding: Sharding, state: Any) -> list[str]:
    """A line for each axis that does not divide large arrays, and one for arrays it never cuts."""
    parts = [axis for axis in ("fsdp", "tensor") if sharding.mesh.shape[axis] > 1]
    found = defaultdict(list)
    for path, leaf in by_path(state).items():
        if not parts or leaf.size * leaf.dtype.itemsize < _LARGE:
            continue
        cut = _axes(sharding, path, leaf.shape)
        meant = _axes(sharding, path, [sharding.mesh.size * size for size in leaf.shape])
        for axis in meant - cut:
            found[f"mesh.{axis}={sharding.mesh.shape[axis]} does not divide"].append((path, leaf))
        if not meant:
            found["mesh.rules do not cut"].append((path, leaf))
    remarks = []
    for who, arrays in found.items():
        total = sum(leaf.size * leaf.dtype.itemsize for _, leaf in arrays) / (1 << 20)
        path, leaf = arrays[0]
        more = f" and {len(arrays) - 1} more" * (len(arrays) > 1)
        remarks.append(f"{who} {path} {list(leaf.shape)}{more}, in all {total:.0f} MiB")
    return remarks


def _axes(sharding: Sharding, path: str, shape: Sequence[int]) -> set[str]:
    """The axes of a mesh that cut a parameter."""
    parts = sharding.of_parameter(path, shape).spec
    return {axis for part in parts if part for axis in ([part] if isinstance(part, str) else part)}
