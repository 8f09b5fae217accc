"""Remarks on how a run's arrays are laid out across devices."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

from transformer_jax.paths import by_path
from transformer_jax.sharding import Sharding
from transformer_jax.training.prepared import Prepared

_LARGE = 1 << 20  # bytes from which an array that is not cut is worth a remark


def remarks_of(prepared: Prepared) -> list[str]:
    """Returns remarks on how the arrays of a prepared run are laid out, one line each."""
    config, inputs = prepared.config, prepared.task.batch(0, 0)["inputs"]
    heads = {n: config.model[n] for n in ("num_heads", "num_kv_heads")}
    return remarks_on_sharding(
        prepared.sharding,
        prepared.template,
        {
            "training.batch_size": (config.training.batch_size, config.training.accumulation),
            "evaluation.batch_size": (config.evaluation.batch_size, 1),
        },
        {
            "tensor": {f"model.{n}": count for n, count in heads.items() if count is not None},
            "sequence": {f"length of {n}": x.shape[1] for n, x in inputs.items() if x.ndim == 2},
        },
    )


def remarks_on_sharding(
    sharding: Sharding | None,
    state: Any,
    examples: Mapping[str, tuple[int, int]],
    counts: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> list[str]:
    """Returns remarks on how a run's arrays are laid out, one line each.

    Args:
      sharding, state: Sharding of the run, and shapes of its state.
      examples: Examples in a batch and parts in which it is computed, by the batch size's key.
      counts: Numbers that an axis of the mesh should divide, by axis and description.
    """
    num_devices, used = jax.device_count(), 1 if sharding is None else sharding.mesh.size
    remarks = []
    if num_devices > used:
        remarks.append(
            f"{num_devices - used} of {num_devices} devices stay idle; "
            "--config.mesh.data=-1 uses all"
        )
    if sharding is None:
        return remarks
    for key, (batch_size, parts) in examples.items():
        rows, devices = batch_size // parts, sharding.num_parts
        if rows % devices:
            most = math.ceil(rows / devices)
            remarks.append(
                f"{rows} examples over {devices} devices: at most {most} each, some with fewer; "
                f"{key}={most * devices * parts} costs no more time"
            )
    for axis, of_axis in counts.items():
        size = sharding.mesh.shape[axis]
        remarks += [
            f"mesh.{axis}={size} does not divide {what}={number}: each device along this axis "
            f"computes all {number}"
            for what, number in of_axis.items()
            if number % size
        ]
    found = defaultdict(list)  # start of a remark -> large arrays that it concerns
    cuts_arrays = any(sharding.mesh.shape[axis] > 1 for axis in ("fsdp", "tensor"))
    for path, leaf in by_path(state).items() if cuts_arrays else ():
        if _bytes(leaf) < _LARGE:
            continue
        cut = _axes(sharding, path, leaf.shape)
        meant = _axes(sharding, path, [sharding.mesh.size * size for size in leaf.shape])
        for axis in meant - cut:
            found[f"mesh.{axis}={sharding.mesh.shape[axis]} does not divide"].append((path, leaf))
        if not meant:
            found["mesh.rules do not cut"].append((path, leaf))
    for who, arrays in found.items():
        total = sum(_bytes(leaf) for _, leaf in arrays) / (1 << 20)
        path, leaf = arrays[0]
        more = f" and {len(arrays) - 1} more" * (len(arrays) > 1)
        remarks.append(f"{who} {path} {list(leaf.shape)}{more}, in all {total:.0f} MiB")
    return remarks


def _bytes(leaf: Any) -> int:
    return leaf.size * leaf.dtype.itemsize


def _axes(sharding: Sharding, path: str, shape: Sequence[int]) -> set[str]:
    """Returns the axes of the mesh that cut a parameter of this shape."""
    parts = sharding.of_parameter(path, shape).spec
    return {axis for part in parts if part for axis in ([part] if isinstance(part, str) else part)}
