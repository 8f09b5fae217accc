"""What a run says before it trains."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax

from transformer_jax.layers.fused import kernels_taken
from transformer_jax.options.config import flatten
from transformer_jax.options.constraints import remarks_on
from transformer_jax.options.rule import is_own
from transformer_jax.paths import by_path
from transformer_jax.runs.progress import Progress
from transformer_jax.sharding import Sharding, sharded
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
    sharing = remarks_on_sharding(
        prepared.sharding,
        prepared.template,
        config.training.batch_size,
        config.training.accumulation,
        {
            "tensor": {"model.num_heads": config.model.num_heads},
            "sequence": {"data.length": config.data.length},
        },
    )
    for line in (*prepared.remarks, *remarks_on(flatten(config)), *sharing):
        progress.say(f"note   {line}")
    for line in taken_from_data(config.model, task.sizes):
        progress.say(f"note   {line}")
    splits = ", ".join(f"{n:,} {name}" for name, n in task.facts["counts"].items())
    sizes = ", ".join(f"{name} {size}" for name, size in task.sizes.items() if size)
    source = config.data.task if is_own(config.data.task) else config.data.source
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
    inputs, train = prepared.task.batch(0, 0)["inputs"], {"train": True, "mutable": ["losses"]}

    def apply(params: Any, inputs: Any) -> Any:
        rngs = {"dropout": jax.random.key(0)}
        return prepared.model.apply({"params": params}, **inputs, **train, rngs=rngs)

    with kernels_taken(platform) as taken, sharded(prepared.sharding):
        jax.eval_shape(apply, prepared.template.params, inputs)
    return list(dict.fromkeys(taken))


def remarks_on_sharding(
    sharding: Sharding | None,
    state: Any,
    batch_size: int,
    parts: int,
    counts: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> list[str]:
    """Returns what a user should know of how a run's arrays lie, one line each.

    Args:
      sharding: of the run.
      state: its shapes.
      batch_size: examples of an update.
      parts: that a batch is computed in.
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
    rows, devices = batch_size // parts, sharding.num_parts
    if rows % devices:
        each = -(-rows // devices)
        remarks.append(
            f"{rows} examples at once over {devices} devices: {each} each, some with fewer; a "
            f"training.batch_size of {each * devices * parts} costs no more time"
        )
    for axis, of_axis in counts.items():
        size = sharding.mesh.shape[axis]
        for what, number in of_axis.items():
            if number % size:
                remarks.append(
                    f"mesh.{axis}={size} does not divide {what}={number}: each of its devices "
                    "computes all of them"
                )
    whole = {
        path: leaf
        for path, leaf in by_path(state).items()
        if leaf.size * leaf.dtype.itemsize >= _LARGE
        and sharding.of_parameter(path, leaf.shape).is_fully_replicated
    }
    if whole and sharding.mesh.shape["fsdp"] * sharding.mesh.shape["tensor"] > 1:
        total = sum(leaf.size * leaf.dtype.itemsize for leaf in whole.values()) / (1 << 20)
        path, leaf = next(iter(whole.items()))
        remarks.append(
            f"{len(whole)} arrays are whole on every device, {total:.0f} MiB: {path} "
            f"{list(leaf.shape)}, ..., which the mesh does not divide"
        )
    return remarks
