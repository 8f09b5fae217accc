"""Memory of a training step: the need, the memory of a device, and remedies for a lack of it."""

import contextlib
import math
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax.config_files import changed, defaults, resolved
from transformer_jax.errors import InvalidInput

GIB = 1 << 30
_CHUNK = 128  # positions, or queries, per chunk
_REMEDIES = {
    "loss in chunks": {"training.loss_chunk": _CHUNK},
    "bfloat16": {"model.dtype": "bfloat16"},
    "attention in chunks": {"model.attention": "chunked"},
    "blocks computed again": {"model.remat": "block", "model.scan_layers": True},
}


def host_memory() -> int:
    """Returns the bytes of memory that machine, container and job allow this process to use."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _limits_of_groups(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")):
        with contextlib.suppress(OSError, ValueError):  # "max" (no limit), or not Linux
            limits.append(int(file.read_text()))
    return min(limits)


def _limits_of_groups(own: Path, root: Path) -> Iterator[Path]:
    """Yields the files with memory limits of this process's control groups and enclosing groups.

    A container sees its own group as the root; a Slurm or systemd job has a further group inside.
    """
    yield from (root / "memory.max", root / "memory" / "memory.limit_in_bytes")
    with contextlib.suppress(OSError):  # not Linux
        for line in own.read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            group = Path(path.lstrip("/"))
            if not kinds:
                yield from (root / at / "memory.max" for at in (group, *group.parents))
            elif "memory" in kinds.split(","):
                limit = "memory.limit_in_bytes"
                yield from (root / "memory" / at / limit for at in (group, *group.parents))


def device_memory(device: Any) -> int | None:
    """Returns the bytes that programs may use on a device, or None if they are not known."""
    if device.platform == "cpu":
        return host_memory() // jax.local_device_count()
    return (device.memory_stats() or {}).get("bytes_limit")


def laid_out_bytes(compiled: Any) -> int:
    """Returns the bytes of a compiled program's arguments, results and temporaries."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return 0
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return int(analysis.argument_size_in_bytes + results + analysis.temp_size_in_bytes)


def peak_bytes(compiled: Any, platform: str) -> int:
    """Returns the peak memory of a program compiled for cpu, gpu or tpu, in bytes."""
    if platform == "cpu":  # its reported peak omits temporaries
        return laid_out_bytes(compiled)
    analysis = compiled.memory_analysis()
    return 0 if analysis is None else int(analysis.peak_memory_in_bytes)


def bytes_refused(error: Exception) -> int | None:
    """Returns the bytes of main memory that a compiler required when it failed.

    Returns 0 if the error does not state their number, and None if the reason was different.
    """
    reason = str(error)
    if "RESOURCE_EXHAUSTED" not in reason or re.search("vmem|smem|Shared memory", reason):
        return None
    match = re.search(r"\(?([\d.]+)([KMGT])i?B?\)? (?:exceeds|of [\d.]+[KMGT])", reason)
    if match:
        return int(float(match[1]) * 1024 ** ("KMGT".index(match[2]) + 1))
    plain = re.search(r"allocate (\d+) bytes", reason)
    return int(plain[1]) if plain else 0


def refuse_large_state(template: Any, config: ConfigDict) -> None:
    """Raises InvalidInput if a state of these shapes and its gradients alone exceed the memory."""
    device, needed = jax.local_devices()[0], nbytes(template) + nbytes(template.params)
    has = device_memory(device)
    if has is not None and needed > has:
        raise InvalidInput(
            f"parameters, optimizer and gradients need {needed / GIB:.1f} GiB, this "
            f"{device.device_kind} has {has / GIB:.1f}\nexpected a smaller model, or an "
            f"optimizer that keeps less than optimizer.name={config.optimizer.name}"
        )


@contextlib.contextmanager
def refusal_explained(config: ConfigDict) -> Generator[None]:
    """Raises InvalidInput with remedies if compiling a config's step fails for lack of memory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        needed = bytes_refused(error)
        if needed is None:
            raise
        raise _too_large(needed, config) from error


def refuse_beyond_memory(needed: int, config: ConfigDict) -> None:
    """Raises InvalidInput if a config's step needs more bytes than the device has."""
    has = device_memory(jax.local_devices()[0])
    if has is not None and needed > has:
        raise _too_large(needed, config)


def _too_large(needed: int, config: ConfigDict) -> InvalidInput:
    """Returns the error for a step that does not fit: needed and available memory, and remedies."""
    device, helps = jax.local_devices()[0], remedies_for(config).values()
    has = device_memory(device)
    needs = f"{needed / GIB:.1f} GiB" if needed else "more memory than there is"
    available = f", this {device.device_kind} has {has / GIB:.1f}" if has is not None else ""
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


def remedies_for(config: ConfigDict) -> dict[str, dict[str, Any]]:
    """Returns changes of options, by remedy, with which a config's step needs less memory."""
    parts = 2 * config.training.accumulation
    remedies = _REMEDIES | {"the batch in parts": {"training.accumulation": parts}}
    is_short = config.data.length <= _CHUNK
    values, usual, helps = resolved(config), resolved(defaults()), {}
    for name, changes in remedies.items():
        keys = changes.keys() - {"training.accumulation"}
        if any(values[key] != usual[key] for key in keys):
            continue
        if not (is_short and name.endswith("in chunks")):
            with contextlib.suppress(InvalidInput):  # the config does not allow it
                changed(config, changes)
                helps[name] = changes
    return helps


def nbytes(tree: Any) -> int:
    """Returns the bytes of a tree of arrays, or of their shapes, on one device."""

    def held(leaf: Any) -> tuple[int, ...]:
        sharding = getattr(leaf, "sharding", None)
        return leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)

    return sum(math.prod(held(leaf)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
