"""Whether a training step fits its device, asked before anything is trained."""

import os
import re
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import changed, defaults, flatten

GIB = 1 << 30
# Changes that make a step need less memory.
_REMEDIES = {
    "loss in chunks": {"training.loss_chunk": 128},
    "bfloat16": {"model.dtype": "bfloat16"},
    "attention in chunks": {"model.attention_chunk": 128},
    "blocks computed again": {"model.remat": "block", "model.scan_layers": True},
}


def host_memory() -> int:
    """Returns the machine's memory, bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def device_memory(device: Any) -> int:
    """Returns how many bytes programs may use on a device."""
    try:
        told = device.memory_stats() or {}
    except (RuntimeError, NotImplementedError):
        told = {}
    return int(told["bytes_limit"]) if "bytes_limit" in told else host_memory()


def peak_bytes(compiled: Any, platform: str) -> int:
    """Returns what a compiled program needs at most: arguments, results and temporaries.

    Args:
      compiled: the program.
      platform: that it is for: cpu, gpu or tpu.
    """
    told = compiled.memory_analysis()
    if told is None:
        return 0
    if platform != "cpu":  # where it leaves temporaries out
        return int(told.peak_memory_in_bytes)
    results = told.output_size_in_bytes - told.alias_size_in_bytes
    return int(told.argument_size_in_bytes + results + told.temp_size_in_bytes)


def bytes_refused(error: Exception) -> int | None:
    """Returns the bytes that a compiler wanted when it refused; None if it refused otherwise."""
    said = str(error)
    if "RESOURCE_EXHAUSTED" not in said and "out of memory" not in said.lower():
        return None
    found = re.search(r"\(?([\d.]+)([KMGT])i?B?\)? (?:exceeds|of [\d.]+[KMGT])", said)
    return int(float(found[1]) * 1024 ** ("KMGT".index(found[2]) + 1)) if found else 0


def remedies_for(config: ConfigDict) -> dict[str, dict[str, Any]]:
    """Returns changes that make a config's step need less memory: name -> key -> value."""
    parts = 2 * config.training.accumulation
    remedies = _REMEDIES | {"the batch in parts": {"training.accumulation": parts}}
    return {name: changes for name, changes in remedies.items() if _can_take(config, changes)}


def _can_take(config: ConfigDict, changes: dict[str, Any]) -> bool:
    """Whether a config has its default there now, and would be accepted with the changes."""
    stated, usual = flatten(config), flatten(defaults())
    for key, value in changes.items():
        is_chunk = key.endswith("_chunk")
        if is_chunk and value >= config.data.length:
            return False
        if stated[key] != usual[key] and key != "training.accumulation":
            return False
    try:
        changed(config, changes)
    except InvalidInput:
        return False
    return True


def refuse_large_state(template: Any, config: ConfigDict) -> None:
    """Raises InvalidInput where parameters, optimizer and gradients alone are too large.

    Args:
      template: shapes of the state.
      config: whole.
    """
    needed, has = nbytes(template) + nbytes(template.params), device_memory(jax.devices()[0])
    if needed > has:
        raise InvalidInput(
            f"parameters, optimizer and gradients need {needed / GIB:.1f} GiB, this "
            f"{jax.devices()[0].device_kind} has {has / GIB:.1f}\nexpected a smaller model, or an "
            f"optimizer that keeps less than optimizer.name={config.optimizer.name}"
        )


def refuse_large_step(compile_step: Callable[[], Any], config: ConfigDict) -> Any:
    """Compiles a step, unless its device is too small for it.

    Args:
      compile_step: returns the compiled program.
      config: whole.
    Raises:
      InvalidInput: the step does not fit; the text says what would help.
    """
    try:
        compiled = compile_step()
    except jax.errors.JaxRuntimeError as error:
        needed = bytes_refused(error)
        if needed is None:
            raise
        raise too_large(needed, config) from error
    refuse_beyond_memory(peak_bytes(compiled, jax.devices()[0].platform), config)
    return compiled


def refuse_beyond_memory(needed: int, config: ConfigDict) -> None:
    """Raises InvalidInput where a step of a config needs more bytes than the device has."""
    if needed > device_memory(jax.devices()[0]):
        raise too_large(needed, config)


def too_large(needed: int, config: ConfigDict) -> InvalidInput:
    """Returns the error that says what a step needs, what there is, and what would help."""
    device, helps = jax.devices()[0], remedies_for(config).values()
    has = device_memory(device) / GIB
    lines = [
        f"the training step needs {needed / GIB:.1f} GiB, this {device.device_kind} has {has:.1f}"
    ]
    for changes in helps:
        lines.append("  " + " ".join(f"--config.{key}={value}" for key, value in changes.items()))
    if helps:
        lines.append("python -m experiments.plan --remedies says what each of these brings")
    else:
        lines.append("expected a smaller model, or a smaller training.batch_size")
    return InvalidInput("\n".join(lines))


def nbytes(tree: Any) -> int:
    """Returns the bytes of a tree of arrays, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
