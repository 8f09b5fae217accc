"""Thin commands over the library: `python -m experiments.VERB --help`.

On Linux a command starts itself once more with huge pages, before anything is imported. XLA on a
CPU takes new memory at each call, and to touch it for the first time in pieces of 4 kB can last as
long as the arithmetic. The C library reads the wish at its start alone; a GLIBC_TUNABLES of the
user's own is left as it is.
"""

import os
import sys

_KERNEL = "/sys/kernel/mm/transparent_hugepage/enabled"


def _offers_huge_pages() -> bool:
    try:
        with open(_KERNEL, encoding="ascii") as file:
            return "[never]" not in file.read()
    except OSError:  # another system
        return False


_module = sys.orig_argv[sys.orig_argv.index("-m") + 1 :] if "-m" in sys.orig_argv else []
if (
    _module
    and _module[0].partition(".")[0] == "experiments"
    and "GLIBC_TUNABLES" not in os.environ
    and _offers_huge_pages()
):
    os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
