"""Rows of JSON in a file that only grows: what stands there is never changed."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.runs.files import inside


class AppendedRows:
    """The rows of one file; without a file there are none."""

    def __init__(self, folder: Path, name: str) -> None:
        """Reads nothing yet."""
        self._file = inside(folder, name)

    def rows(self) -> list[dict[str, Any]]:
        """Everything that was added, oldest first; a torn line is left out."""
        rows = []
        if self._file.exists():
            for line in self._file.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    rows.append(json.loads(line))
        return rows

    def add(self, row: Mapping[str, Any]) -> None:
        """Appends a row, in one write, and waits until the disk has it."""
        torn = self._file.exists() and not self._file.read_bytes().endswith(b"\n")
        line = "\n" * torn + json.dumps(row) + "\n"
        with self._file.open("ab", buffering=0) as file:
            file.write(line.encode())
            os.fsync(file.fileno())
