"""Devices that a training step can be compiled for, present or not.

Memory is the part that a program may use. For TPUs and GPUs by name, bandwidths are the
manufacturers' figures, and rates are those in training.flops.
"""

import dataclasses
import importlib.util
import os
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.errors import InvalidInput, suggest
from transformer_jax.training.flops import RATES
from transformer_jax.training.memory import GIB, device_memory, host_memory

_LINKED = 8  # GPUs that NVLink joins in one machine
_MODULE_OF_COMPILER = {"tpu": "libtpu", "cuda": "jax_cuda13_plugin"}
# With this, XLA compiles in a seventh of the time; the program needs 2 to 22 % more memory.
_QUICK = {"exec_time_optimization_effort": -1.0}
HERE = ("cpu", "gpu")  # devices of this machine, whose rates are measured

# Name -> kind, topology of one chip, memory in GiB, bandwidth.
_TPUS = {
    "v5e": ("TPU v5 lite", "1x1", 15.75, 819e9),
    "v5p": ("TPU v5", "1x1x1", 95.74, 2765e9),
    "v6e": ("TPU v6 lite", "1x1", 31.25, 1640e9),
}
_HOPPER = {"major": 9, "core_count": 132, "fpus_per_core": 128, "clock_rate_ghz": 1.98}
_HOPPER |= {"shared_memory_per_core": 228 << 10}
_AMPERE = {"major": 8, "core_count": 108, "fpus_per_core": 64, "clock_rate_ghz": 1.41}
_AMPERE |= {"shared_memory_per_core": 164 << 10}
# Name -> kind, bytes of memory, bandwidth, facts for XLA's description, bytes of the L2 cache.
_GPUS = {
    "h100": ("NVIDIA H100 80GB HBM3", 84_942_979_072, 3.352e12, _HOPPER, 50 << 20),
    "h200": ("NVIDIA H200", 150_754_820_096, 4.8e12, _HOPPER, 60 << 20),
    "a100": ("NVIDIA A100-SXM4-80GB", 85_100_068_864, 2.039e12, _AMPERE, 40 << 20),
}
DEVICES = (*_TPUS, *_GPUS, *HERE)


@dataclasses.dataclass(frozen=True)
class Device:
    """Target of a compilation: a device, or several that are linked."""

    name: str  # as given to `--device`
    kind: str  # full name
    memory: int  # bytes available to a program
    rates: dict[str, float]  # FLOPs per second, by dtype of the products
    bandwidth: float  # of main memory, bytes per second
    targets: tuple[Any, ...]  # of the compilation, one per device
    quick_options: dict[str, Any]  # of the compiler, for fast compilation
    remark: str = ""  # on these figures


def find_device(name: str) -> Device:
    """Returns the device, or several linked devices, with a name such as v5e, v5e:4x4 or h100:8.

    Raises:
      InvalidInput: There is no device of this name, or its compiler is not installed.
    """
    place, _, count = name.partition(":")
    name = name.rstrip(":")
    if place in _TPUS:
        return _tpu(name, place, count)
    if place in _GPUS:
        return _gpu(name, place, count)
    if place in HERE:
        return _here(name, place, count)
    raise InvalidInput(
        f"--device={name}: expected one of {', '.join(DEVICES)}{suggest(place, DEVICES)}"
    )


def _tpu(name: str, generation: str, chips: str) -> Device:
    kind, alone, memory, bandwidth = _TPUS[generation]
    if not re.fullmatch(r"(\d+x)+\d+|", chips):
        raise InvalidInput(
            f"--device={name}: expected chips along each axis, for example {generation}:{alone}"
        )
    how: dict[str, Any] = {"topology_name": f"{generation}:{chips or alone}"}
    if chips in ("", alone):
        how["chips_per_host_bounds"] = (1, 1, 1)
    targets = _topology(name, "tpu", **how)
    shown = f"{len(targets)} chips" if len(targets) > 1 else "one chip"
    about = (int(memory * GIB), RATES[kind], bandwidth, targets, _QUICK)
    return Device(name, f"{shown} of a TPU {generation}", *about)


def _gpu(name: str, model: str, count: str) -> Device:
    kind, memory, bandwidth, chip, l2_cache = _GPUS[model]
    number = _count(name, count, _LINKED, "GPUs, linked in one machine")
    facts = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 << 10,
        "threads_per_core_limit": 2048,
        "block_dim_limit_x": (1 << 31) - 1,
        "block_dim_limit_y": (1 << 16) - 1,
        "block_dim_limit_z": (1 << 16) - 1,
        "memory_bandwidth": int(bandwidth),
        "device_memory_size": memory,
        "registers_per_core_limit": 1 << 16,
        "registers_per_block_limit": 1 << 16,
        "shared_memory_per_block_optin": chip["shared_memory_per_core"] - 1024,
        **chip,
        "l2_cache_size": l2_cache,
    }
    major = facts.pop("major")
    lines = "\n".join(f"  {key}: {value}" for key, value in facts.items())
    description = (  # text of XLA's GpuTargetConfigProto
        f"gpu_device_info {{\n{lines}\n  cuda_compute_capability {{ major: {major} }}\n}}\n"
        'platform_name: "CUDA"\ndnn_version_info { major: 9 minor: 10 patch: 0 }\n'
        f'device_description_str: "{kind}"\n'
    )
    targets = _topology(name, "cuda", topology=f"1x1x{number}", target_config=description)
    share = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75"))
    remark = (
        f"jax takes {share:.0%} of the {memory / GIB:.1f} GiB (XLA_PYTHON_CLIENT_MEM_FRACTION "
        "changes this share); kernels are not tuned here, as they would be on the device"
    )
    shown = kind if number == 1 else f"{number} x {kind}"
    about = (int(share * memory), RATES[kind], bandwidth, targets, {}, remark)
    return Device(name, shown, *about)


def _here(name: str, platform: str, count: str) -> Device:
    """Returns one or several devices of this machine as a Device, with measured rates."""
    try:
        devices = tuple(jax.devices(platform))
    except RuntimeError as error:
        raise InvalidInput(f"--device={platform}: jax finds no such device here") from error
    is_cpu = platform == "cpu"
    more = "; for more, put JAX_NUM_CPU_DEVICES=8 before the command" if is_cpu else ""
    number = _count(name, count, len(devices), f"devices{more}")
    memory = host_memory() // number if is_cpu else device_memory(devices[0])
    if memory is None:
        raise InvalidInput(
            f"--device={platform}: the device does not report its memory; expected jax's own "
            "allocator: unset XLA_PYTHON_CLIENT_ALLOCATOR"
        )
    side, nbytes = (1024, 256 << 20) if is_cpu else (8192, 1 << 30)
    shared = number if is_cpu else 1  # CPU devices share the cores
    with jax.default_device(devices[0]):
        rates = {dtype: matrix_rate(dtype, side) / shared for dtype in ("float32", "bfloat16")}
        read_and_write = shortest(jax.jit(lambda a: a + 1), jnp.ones(nbytes // 4, jnp.float32))
        bandwidth = 2.0 * nbytes / read_and_write / shared
    several = f"{number} x " if number > 1 and not is_cpu else ""
    kind = f"this machine's {several}{devices[0].device_kind}"
    remark = "rates were just measured on this machine"
    return Device(name, kind, memory, rates, bandwidth, devices[:number], {}, remark)


def _count(name: str, text: str, most: int, of_what: str) -> int:
    """Returns the number of devices in `--device=NAME:TEXT`; 1 if TEXT is empty."""
    number = int(text) if text.isdecimal() else int(not text)
    if not 1 <= number <= most:
        raise InvalidInput(f"--device={name}: expected 1 to {most} {of_what}")
    return number


def _topology(name: str, platform: str, **how: Any) -> tuple[Any, ...]:
    """Returns the devices of a topology, as targets for a compiler; none need be present."""
    from jax.experimental import topologies

    # Without a driver, the plugin for CUDA refuses libraries that a compiler does not use.
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    try:
        return tuple(topologies.get_topology_desc(platform=platform, **how).devices)
    except (RuntimeError, NotImplementedError, ValueError, KeyError) as error:
        if importlib.util.find_spec(_MODULE_OF_COMPILER[platform]) is not None:
            reason = str(error).partition("\n")[0]
            raise InvalidInput(f"--device={name}: its compiler failed: {reason[:200]}") from error
        raise InvalidInput(
            f"--device={name}: its compiler is not installed; in a separate environment, "
            f"run, from a clone of the repository: pip install -e '.[train,{platform}]'"
        ) from error


def matrix_rate(dtype: str, size: int) -> float:
    """Returns the measured FLOPs per second in a product of two matrices [size, size]."""
    matrix = jnp.ones((size, size), dtype)
    return 2.0 * size**3 / shortest(jax.jit(lambda a: a @ a), matrix)


def shortest(function: Callable, argument: jax.Array) -> float:
    """Returns the seconds per call: the smallest of five means over consecutive calls.

    An untimed first call compiles the function.
    """
    function(argument).block_until_ready()
    # Waiting for a GPU takes a tenth of a call, so several calls are started before each wait.
    calls = 1 if next(iter(argument.devices())).platform == "cpu" else 10
    times = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(calls):
            result = function(argument)
        result.block_until_ready()
        times.append((time.perf_counter() - started) / calls)
    return min(times)
