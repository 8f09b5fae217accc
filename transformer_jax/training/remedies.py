"""Changes of a config that make a training step need less memory."""

from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax.config_files import changed, defaults, resolved
from transformer_jax.errors import InvalidInput

_GIB = 1 << 30
_CHUNK = 128  # places, or queries


# Changes that make a step need less memory.
_REMEDIES = {
    "loss in chunks": {"training.loss_chunk": _CHUNK},
    "bfloat16": {"model.dtype": "bfloat16"},
    "attention in chunks": {"model.attention": "chunked"},
    "blocks computed again": {"model.remat": "block", "model.scan_layers": True},
}


def remedies_for(config: ConfigDict) -> dict[str, dict[str, Any]]:
    """Returns changes that make a config's step need less memory: name -> key -> value."""
    parts = 2 * config.training.accumulation
    remedies = _REMEDIES | {"the batch in parts": {"training.accumulation": parts}}
    if config.data.length <= _CHUNK:
        remedies = {n: changes for n, changes in remedies.items() if not n.endswith("in chunks")}
    return {name: changes for name, changes in remedies.items() if _can_take(config, changes)}


def _can_take(config: ConfigDict, changes: dict[str, Any]) -> bool:
    """Returns whether all changed keys are at their default and the changes are valid."""
    stated, usual = resolved(config), resolved(defaults())
    for key in changes:
        if stated[key] != usual[key] and key != "training.accumulation":
            return False
    try:
        changed(config, changes)
    except InvalidInput:
        return False
    return True


def too_large(needed: int, has: int | None, config: ConfigDict) -> InvalidInput:
    """Returns the error that a step does not fit: what it needs, what there is, and remedies."""
    device, helps = jax.local_devices()[0], remedies_for(config).values()
    needs = f"{needed / _GIB:.1f} GiB" if needed else "more memory than there is"
    available = f", this {device.device_kind} has {has / _GIB:.1f}" if has is not None else ""
    lines = [f"the training step needs {needs}{available}"]
    for changes in helps:
        lines.append("  " + " ".join(f"--config.{key}={value}" for key, value in changes.items()))
    if helps:
        where = " --device=gpu" if device.platform == "gpu" else ""
        plan = f"python -m experiments.plan --config=FILE --remedies{where}"
        lines.append(f"{plan} says what each of these brings")
    else:
        lines.append("expected a smaller model, or a smaller training.batch_size")
    return InvalidInput("\n".join(lines))
