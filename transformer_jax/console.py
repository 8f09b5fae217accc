"""The command `transformer-jax`: what `python -m experiments` does, in fewer letters."""

import os
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    """Becomes `python -m experiments`, of the clone of the repository that it is called in."""
    if not Path("experiments/__main__.py").is_file():
        print(
            "error: transformer-jax: no experiments/ here; it runs in a clone of the repository",
            file=sys.stderr,
        )
        sys.exit(2)
    os.execv(sys.executable, [sys.executable, "-m", "experiments", *sys.argv[1:]])
