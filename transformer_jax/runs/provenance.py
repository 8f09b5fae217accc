"""Dependencies of a run besides its config: packages, device, git revision, settings."""

import contextlib
import functools
import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from transformer_jax import __version__

# Version of the numerics: raised by one whenever a change to this package changes bits of training
# or the default of an option. tests/test_numerics.py fails until it is raised.
NUMERICS = 16

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "ml-collections", "numpy")
_ENVIRONMENT = (
    *("XLA_FLAGS", "JAX_PLATFORMS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION"),
    *("JAX_DEFAULT_PRNG_IMPL", "JAX_THREEFRY_PARTITIONABLE", "NVIDIA_TF32_OVERRIDE"),
)


@functools.cache
def surroundings() -> tuple[dict, str]:
    """Returns the dependencies of a run besides its config, and the diff of the working tree.

    The result is cached, since a process keeps running the code that it imported. Of the
    environment, it has only a short list of variables; it has no remote address and no user name.
    """
    import jax

    device = jax.devices()[0]
    flags = os.environ.get("XLA_FLAGS", "")
    is_deterministic = device.platform != "gpu" or "--xla_gpu_deterministic_ops=true" in flags
    facts = {
        "version": __version__,
        "numerics": NUMERICS,
        "packages": versions_of(_PACKAGES),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": {
            "kind": device.device_kind,
            "platform": device.platform,
            "count": jax.device_count(),
        },
        "bitwise": "promised" if is_deterministic else "not promised",
        "environment": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    }
    if not _git("ls-files", "--", __file__):  # installed into a different repository
        return facts | {"git": None}, ""
    plain = ("--binary", "--no-color", "--no-ext-diff", "--no-textconv")  # whatever git is set to
    difference = _git("diff", *plain, "HEAD", "--", ":/")
    facts["git"] = {
        "revision": _git("rev-parse", "HEAD").strip(),
        "diff_sha256": hashlib.sha256(os.fsencode(difference)).hexdigest() if difference else None,
    }
    untracked = _git("ls-files", "--others", "--exclude-standard", "--", ":/")
    return facts | {"untracked": untracked.splitlines()}, difference


def machine_name() -> str:
    """Returns the processor's name, if the system reports one, and the number of cores."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    candidates = (*names[:1], platform.processor(), platform.machine())
    return f"{next(filter(None, candidates))}, {os.cpu_count()} cores"


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Returns the versions of the packages, by name; packages that are missing are left out."""
    versions = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def _git(*arguments: str) -> str:
    """Returns git's output for this package's working tree; empty outside a repository."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=here, capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return os.fsdecode(done.stdout) if done.returncode == 0 else ""


def command_line() -> str:
    """Reconstructs the command that started this process, as `python -m experiments.NAME ...`."""
    verb = Path(sys.argv[0]).stem
    return shlex.join(["python", "-m", f"experiments.{verb}", *sys.argv[1:]])
