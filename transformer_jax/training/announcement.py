"""What a run says before it trains."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

from transformer_jax.config_files import flatten, resolved
from transformer_jax.constraints import remarks_on
from transformer_jax.options import is_user_defined
from transformer_jax.paths import by_path
from transformer_jax.placement import sharded
from transformer_jax.resolve import letters_of
from transformer_jax.runs.progress import Progress
from transformer_jax.sharding import Sharding
from transformer_jax.training.build import taken_from_data
from transformer_jax.training.memory import peak_bytes, refuse_beyond_memory
from transformer_jax.training.prepared import Prepared

_LARGE = 1 << 20  # bytes of an array that is worth a word where it is not cut


def announce(prepared: Prepared, progress: Progress, compiles: bool, is_new: bool) -> None:
    """Says what will be trained: remarks, the data, the model; and compiles its step.

    Args:
      prepared: what is trained.
      progress: where to say it.
      compiles: whether its program is its own.
      is_new: whether it may still be refused for want of memory; one that began goes on.
    Raises:
      InvalidInput: the step does not fit the device.
    """
    config, task = prepared.config, prepared.task
    parts = {"training": config.training.accumulation, "evaluation": 1}
    sharing = remarks_on_sharding(
        prepared.sharding,
        prepared.template,
        {f"{name}.batch_size": (config[name].batch_size, n) for name, n in parts.items()},
        _heads_and_places(prepared) if prepared.sharding else {},
    )
    for line in (
        *prepared.remarks,
        *remarks_on(resolved(config), letters_of(flatten(config))),
        *sharing,
    ):
        progress.say(f"note   {line}")
    for line in taken_from_data(config, task.sizes):
        progress.say(f"note   {line}")
    splits = ", ".join(f"{n:,} {name}" for name, n in task.facts["counts"].items())
    sizes = ", ".join(f"{name} {size}" for name, size in task.sizes.items() if size)
    source = config.data.task if is_user_defined(config.data.task) else config.data.source
    progress.say(f"data   {source}: {splits} {task.counted}; {sizes}")
    progress.say(
        f"model  {config.model.architecture}, {prepared.num_parameters:,} parameters; "
        f"{config.training.steps:,} updates of {prepared.count_of_update:,} {task.counted} "
        f"on {jax.devices()[0].device_kind}"
        + ("" if prepared.sharding is None else f", {prepared.sharding}")
    )
    for kernel in kernels_of(prepared, jax.devices()[0].platform):
        progress.say(f"kernel {kernel}")
    if compiles:
        with progress.busy("compiling the training step"):
            program = prepared.program
        if is_new:
            needed = peak_bytes(program, jax.devices()[0].platform)
            refuse_beyond_memory(needed, config)


def kernels_of(prepared: Prepared, platform: str) -> list[str]:
    """Returns what fused attentions of a training step are computed by, see kernels_taken.

    Args:
      prepared: what is trained.
      platform: what for: cpu, gpu or tpu.
    """
    chosen = flatten(prepared.config.model)
    if not any(name.endswith("attention") and row == "fused" for name, row in chosen.items()):
        return []
    from transformer_jax.variants.fused import kernels_taken

    inputs, train = prepared.task.batch(0, 0)["inputs"], {"train": True, "mutable": ["losses"]}

    def apply(params: Any, inputs: Any) -> Any:
        rngs = {"dropout": jax.random.key(0)}
        return prepared.model.apply({"params": params}, **inputs, **train, rngs=rngs)

    with kernels_taken(platform) as taken, sharded(prepared.sharding):
        jax.eval_shape(apply, prepared.template.params, inputs)
    return list(dict.fromkeys(taken))


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
      sharding: of the run.
      state: its shapes.
      examples: key -> how many examples a batch has, and in how many parts it is computed.
      counts: axis of the mesh -> what it cuts, in words, -> how many of it there are.
    """
    there, used = jax.device_count(), 1 if sharding is None else sharding.mesh.size
    remarks = []
    if there > used:
        remarks.append(
            f"{there - used} of {there} devices stay idle; --config.mesh.data=-1 takes all"
        )
    if sharding is None:
        return remarks
    for key, (batch_size, parts) in examples.items():
        rows, devices = batch_size // parts, sharding.num_parts
        if rows % devices:
            each = -(-rows // devices)
            remarks.append(
                f"{rows} examples at once over {devices} devices: {each} each, some with fewer; "
                f"{key}={each * devices * parts} costs no more time"
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
