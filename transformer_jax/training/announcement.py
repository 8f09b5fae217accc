"""Lines that a run prints before it trains."""

from typing import Any

import jax

from transformer_jax.config_files import flatten, resolved
from transformer_jax.constraints import remarks_on
from transformer_jax.options import is_user_defined
from transformer_jax.placement import sharded
from transformer_jax.resolve import letters_of
from transformer_jax.runs.progress import Progress
from transformer_jax.training.build import taken_from_data
from transformer_jax.training.memory import peak_bytes, refuse_beyond_memory
from transformer_jax.training.prepared import Prepared


def announce(prepared: Prepared, progress: Progress, compiles: bool, is_new: bool) -> None:
    """Reports what will be trained (remarks, data, model), and compiles its step.

    Args:
      prepared: Data, model and optimizer.
      progress: Where to report it.
      compiles: Whether the run has its own program.
      is_new: Whether it may still be refused for lack of memory; a resumed run may not.
    Raises:
      InvalidInput: The step does not fit the device.
    """
    config, task = prepared.config, prepared.task
    sharing: list[str] = []
    if jax.device_count() > 1:
        from transformer_jax.training.sharding_remarks import remarks_of

        sharing = remarks_of(prepared)
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
    """Returns the implementation of each fused attention of a training step, see kernels_taken.

    Args:
      prepared: Data, model and optimizer.
      platform: Target platform: cpu, gpu or tpu.
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
