"""The command `transformer-jax`: the same as `python -m experiments`."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    """Replaces this process with `python -m experiments`.

    This works in any folder if the clone is installed with `pip install -e`.
    """
    if not Path("experiments/__main__.py").is_file() and not importlib.util.find_spec(
        "experiments"
    ):
        print(
            "error: transformer-jax: no experiments/ here; run this command in a clone of the "
            "repository, or install the clone with pip install -e",
            file=sys.stderr,
        )
        sys.exit(2)
    os.execv(sys.executable, [sys.executable, "-m", "experiments", *sys.argv[1:]])
