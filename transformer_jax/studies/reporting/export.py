"""A study as one file: its own files, and of its cells what a comparison reads."""

import json
import os
import zipfile
from pathlib import Path

from transformer_jax.errors import InvalidInput
from transformer_jax.runs.files import entries, inside, walk
from transformer_jax.studies.asking.register import NAME, Register
from transformer_jax.studies.asking.study import load_study

_OF_A_CELL = (
    *("config.json", "manifest.json", "STATUS", "metrics.jsonl", "evaluation.json"),
    *("sequences.npz", "details.json", "tokenizer.json", "error.txt"),
)
_LOCK = ".lock"


def export_study(path: str | Path, out: Path, weights: bool = False) -> Path:
    """Writes a study and its cells into a zip file that can be judged again where it is unzipped.

    Args:
      path: of the study.
      out: a .zip file; an existing one is not replaced.
      weights: whether the cells' checkpoints go along.
    Raises:
      InvalidInput: no study, the file exists, or a part of the study is a link.
    """
    study = load_study(path)
    if out.suffix != ".zip":
        raise InvalidInput(f"--out={out}: expected a .zip file")
    if out.exists():
        raise InvalidInput(f"--out={out}: exists already; choose another name")
    name = study.path.absolute().name
    record = {**study.record, "root": ".."}
    members = {
        f"{name}/{file.name}": file
        for file in entries(study.path)
        if file.is_file() and file.name not in (_LOCK, "study.json")
    }
    for cell in [*study.cells(), *(cell for _, cell in study.shorter_cells())]:
        files = [inside(cell.path, file) for file in _OF_A_CELL]
        files += walk(inside(cell.path, "checkpoints")) if weights else []
        members |= {
            file.relative_to(study.root).as_posix(): file for file in files if file.exists()
        }
    looks = Register(study.root).about(study.contrasts().values())  # what levels depend on
    out.parent.mkdir(parents=True, exist_ok=True)
    writing = out.with_name(f".{out.name}-{os.getpid()}")  # an interrupted one would unzip too
    try:
        # A file of 1970, as some containers have them, is no reason to fail.
        deflated = zipfile.ZipFile(writing, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False)
        with deflated as archive:
            archive.writestr(f"{name}/study.json", json.dumps(record, indent=1) + "\n")
            if looks:
                archive.writestr(NAME, "".join(json.dumps(row) + "\n" for row in looks))
            for member, file in members.items():
                archive.write(file, member)
        os.replace(writing, out)
    finally:
        writing.unlink(missing_ok=True)
    return out
