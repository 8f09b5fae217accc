"""Memory of a training step: bytes needed, bytes on a device, and remedies for a shortage."""

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
    "blocks recomputed": {"model.remat": "block", "model.scan_layers": True},
}


def host_memory() -> int:
    """Returns the bytes of memory that machine, container and job let this process use."""
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
    """Returns the bytes that programs may use on a device, or None if the number is not known."""
    if device.platform == "cpu":
        return host_memory() // jax.local_device_count()
    return (device.memory_stats() or {}).get("bytes_limit")


def laid_out_bytes(compiled: Any) -> int:
    """Returns the bytes of a program's arguments, results and temporaries, or 0 if unknown."""
    analysis = compiled.memory_analysis()
    if analysis is None:
        return 0
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return int(analysis.argument_size_in_bytes + results + analysis.temp_size_in_bytes)


def peak_bytes(compiled: Any, platform: str) -> int:
    """Returns the peak memory in bytes of a program for a cpu, gpu or tpu; 0 if unknown."""
    if platform == "cpu":  # its reported peak omits temporaries
        return laid_out_bytes(compiled)
    analysis = compiled.memory_analysis()
    return 0 if analysis is None else int(analysis.peak_memory_in_bytes)


def bytes_refused(error: Exception) -> int | None:
    """Returns the bytes of main memory that a program needs, from a compiler's out-of-memory error.

    Returns 0 if the error does not state their number, and None if it has a different cause.
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
    """Raises InvalidInput if a state and its gradients alone exceed the memory of the device."""
    device, needed = jax.local_devices()[0], nbytes(template) + nbytes(template.params)
    has = device_memory(device)
    if has is not None and needed > has:
        raise InvalidInput(
            f"parameters, optimizer and gradients need {needed / GIB:.1f} GiB; this "
            f"{device.device_kind} has {has / GIB:.1f} GiB\nexpected a smaller model, or an "
            f"optimizer that stores less than optimizer.name={config.optimizer.name}"
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
    """Returns the error for a step that is too large, with the memory needed and remedies."""
    device, helps = jax.local_devices()[0], remedies_for(config).values()
    has = device_memory(device)
    needs = f"{needed / GIB:.1f} GiB" if needed else "more memory than there is"
    available = f"; this {device.device_kind} has {has / GIB:.1f} GiB" if has is not None else ""
    lines = [f"the training step needs {needs}{available}"]
    for changes in helps:
        lines.append("  " + " ".join(f"--config.{key}={value}" for key, value in changes.items()))
    if helps:
        where = " --device=gpu" if device.platform == "gpu" else ""
        plan = f"python -m experiments.plan --config=FILE --remedies{where}"
        lines.append(f"{plan} shows the effect of each of these changes")
    else:
        lines.append("expected a smaller model, or a smaller training.batch_size")
    return InvalidInput("\n".join(lines))


def remedies_for(config: ConfigDict) -> dict[str, dict[str, Any]]:
    """Returns remedies that reduce the memory of a config's step: changes of options, by name."""
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
    """Returns the bytes on each device of a tree of arrays, or of arrays with given shapes."""

    def held(leaf: Any) -> tuple[int, ...]:
        sharding = getattr(leaf, "sharding", None)
        return leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)

    return sum(math.prod(held(leaf)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
