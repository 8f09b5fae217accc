"""Command-line tools for the library: `python -m experiments.VERB --help`.

On Linux a command restarts itself with huge pages before anything is imported. XLA on a
CPU allocates new memory at each call, and touching it for the first time in pages of 4 kB can take
as long as the arithmetic. The C library reads this setting only when it starts; a GLIBC_TUNABLES
that the user has set is left unchanged.
"""

import os
import sys
from typing import Any

# The extra that installs each package that commands import.
_EXTRAS = {
    **dict.fromkeys(("ml_collections", "optax", "orbax", "rich", "scipy"), "train"),
    **dict.fromkeys(("argcomplete", "matplotlib", "PIL", "sacrebleu", "tokenizers"), "train"),
    **dict.fromkeys(("safetensors", "huggingface_hub"), "huggingface"),
    **{"pandas": "frames", "submitit": "slurm"},
}
_KERNEL = "/sys/kernel/mm/transparent_hugepage/enabled"


def _offers_huge_pages() -> bool:
    try:
        with open(_KERNEL, encoding="ascii") as file:
            return "[never]" not in file.read()
    except OSError:  # not Linux
        return False


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
    if "GLIBC_TUNABLES" not in os.environ and _offers_huge_pages():
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
