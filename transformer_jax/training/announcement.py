"""Lines that a run prints before training."""

import jax

from transformer_jax.config_files import flatten, resolved
from transformer_jax.constraints import remarks_on
from transformer_jax.options import is_user_defined
from transformer_jax.placement import sharded
from transformer_jax.resolve import letters_of
from transformer_jax.runs.progress import Progress
from transformer_jax.training.memory import peak_bytes, refuse_beyond_memory
from transformer_jax.training.prepared import Prepared


def announce(prepared: Prepared, progress: Progress, compiles: bool, is_new: bool) -> None:
    """Reports the remarks, data and model of a run, and compiles its training step.

    The step is compiled only if `compiles`, i.e. if the run has a program of its own. The memory
    that the compiled step needs is checked only if `is_new`, i.e. if the run is not resumed.

    Raises:
      InvalidInput: The step does not fit into the memory of the device.
    """
    config, task = prepared.config, prepared.task
    flat, options = flatten(config), resolved(config)
    notes = [*prepared.remarks, *remarks_on(options, letters_of(flat))]
    if jax.device_count() > 1:
        from transformer_jax.training.sharding_remarks import remarks_of

        notes += remarks_of(prepared)
    for key, size in ((f"model.{name}", size) for name, size in task.sizes.items()):
        if size is not None and options.get(key, size) != size:
            notes.append(f"{key}={options[key]}: this data has {size}, which is used instead")
    for note in notes:
        progress.say(f"note   {note}")
    splits = ", ".join(f"{n:,} {name}" for name, n in task.facts["counts"].items())
    sizes = ", ".join(f"{name} {size}" for name, size in task.sizes.items() if size)
    source = config.data.task if is_user_defined(config.data.task) else config.data.source
    progress.say(f"data   {source}: {splits} {task.counted}; {sizes}")
    device = jax.devices()[0]
    number, count = prepared.starts.index(prepared.first) + 1, len(prepared.starts)
    stage = f" (stage {number} of {count})" if count > 1 else ""
    progress.say(
        f"model  {config.model.architecture}, {prepared.num_parameters:,} parameters; "
        f"{config.training.steps:,} updates of {prepared.count_of_update:,} {task.counted}{stage} "
        f"on {device.device_kind}" + ("" if prepared.sharding is None else f", {prepared.sharding}")
    )
    for kernel in kernels_of(prepared, device.platform):
        progress.say(f"kernel {kernel}")
    if compiles:
        with progress.busy("compiling the training step"):
            program = prepared.program
            largest = prepared.largest.program if is_new else program
        if is_new:
            refuse_beyond_memory(peak_bytes(largest, device.platform), config)


def kernels_of(prepared: Prepared, platform: str) -> list[str]:
    """Returns the distinct implementations of fused attention in a step on a cpu, gpu or tpu."""
    chosen = flatten(prepared.config.model)
    if not any(key.endswith("attention") and name == "fused" for key, name in chosen.items()):
        return []
    from transformer_jax.variants.fused import kernels_taken

    inputs = prepared.first_batch["inputs"]
    with kernels_taken(platform) as taken, sharded(prepared.sharding):
        jax.eval_shape(prepared.training_pass, prepared.weights, inputs)
    return list(dict.fromkeys(taken))
