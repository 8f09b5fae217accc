"""JSON rows in an append-only file."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.runs.files import inside


def _is_torn(line: bytes) -> bool:
    """Returns whether a line is an incomplete row, left by a write that was interrupted."""
    rest = re.sub(r'"(?:\\.|[^"\\])*"', "", line.decode(errors="replace"))  # without its strings
    is_open = '"' in rest or rest.count("{") > rest.count("}")
    return not line.strip() or (rest.startswith("{") and is_open)


class AppendedRows:
    """Rows of one JSON Lines file; none if the file does not exist."""

    def __init__(self, folder: Path, name: str) -> None:
        """Does not read the file yet."""
        self._file = inside(folder, name)

    def rows(self) -> list[dict[str, Any]]:
        """Returns all rows, oldest first, without lines that interrupted writes left incomplete.

        Raises:
          InvalidInput: A line is neither a row nor the beginning of one: the file is damaged.
        """
        rows = []
        text = self._file.read_bytes() if self._file.exists() else b""
        for number, line in enumerate(text.splitlines(), 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                if isinstance(error, json.JSONDecodeError) and _is_torn(line):
                    continue
                row = None
            if not isinstance(row, dict):
                raise InvalidInput(f"{self._file}, line {number}: expected a row as a JSON object")
            rows.append(row)
        return rows

    def add(self, row: Mapping[str, Any]) -> None:
        """Appends a row, and waits until it is on disk.

        Raises:
          OSError: The row was not written, e.g. on a full disk; `rows` leaves out partial rows.
        """
        torn = self._file.exists() and not self._file.read_bytes().endswith(b"\n")
        line = "\n" * torn + json.dumps(row) + "\n"
        with self._file.open("ab", buffering=0) as file:
            left = line.encode()
            while left:  # a full disk first accepts part of the line without an error
                left = left[file.write(left) :]
            os.fsync(file.fileno())
