"""Command-line tools for the library: `python -m experiments.VERB --help`.

On Linux a command restarts itself with huge pages before anything is imported. XLA on a
CPU allocates new memory at each call, and touching it for the first time in pages of 4 kB can take
as long as the arithmetic. The C library reads this setting only when it starts. For a CPU,
XLA gets flags with which it compiles faster, and computes faster on Intel processors with AVX-512.
A GLIBC_TUNABLES or XLA_FLAGS that the user has set is left unchanged.
"""

import os
import sys
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

# The extra that installs each package that commands import.
_EXTRAS = {
    **dict.fromkeys(("ml_collections", "optax", "orbax", "rich", "scipy"), "train"),
    **dict.fromkeys(("argcomplete", "matplotlib", "PIL", "sacrebleu", "tokenizers"), "train"),
    **dict.fromkeys(("safetensors", "huggingface_hub"), "huggingface"),
    **{"pandas": "frames", "submitit": "slurm"},
}
_KERNEL = "/sys/kernel/mm/transparent_hugepage/enabled"
_PROCESSOR = "/proc/cpuinfo"
# Compiles in 0.6 of the time, for the same speed; docs/speed.md has the figures.
_FLAGS = "--xla_backend_optimization_level=1"
# Products by Eigen instead of YNNPACK, and vectors of 512 bits.
_FLAGS_FOR_INTEL = (
    "--xla_cpu_experimental_ynn_fusion_type=-individual_dot --xla_cpu_prefer_vector_width=512"
)


def _flags(processor: str, jaxlib: str) -> str:
    """Returns flags for XLA on a CPU, given its description; "" if there may be other devices.

    XLA aborts at a flag that it does not know, so only versions of jaxlib that know them get any.
    """
    others = any(find_spec(plugin) for plugin in ("jax_plugins", "libtpu"))
    if (others and os.environ.get("JAX_PLATFORMS") != "cpu") or not jaxlib.startswith("0.10."):
        return ""
    is_measured = "GenuineIntel" in processor and " avx512f " in processor
    return f"{_FLAGS} {_FLAGS_FOR_INTEL}" if is_measured else _FLAGS


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:  # not Linux
        return ""


def _in_a_line(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Ends a command with a one-line message if it is interrupted or a package is missing."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if issubclass(kind, ModuleNotFoundError) and package in _EXTRAS:
        from transformer_jax.errors import how_to_install

        how = how_to_install(_EXTRAS[package])
        print(f"error: this needs the package {package}: {how}", file=sys.stderr)
        sys.exit(2)
    sys.__excepthook__(kind, error, trace)


_module = sys.orig_argv[sys.orig_argv.index("-m") + 1 :] if "-m" in sys.orig_argv else []
if _module and _module[0].partition(".")[0] == "experiments":
    sys.excepthook = _in_a_line
    if "XLA_FLAGS" not in os.environ and (flags := _flags(_read(_PROCESSOR), version("jaxlib"))):
        os.environ["XLA_FLAGS"] = flags
    kernel = _read(_KERNEL)
    if "GLIBC_TUNABLES" not in os.environ and kernel and "[never]" not in kernel:
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
