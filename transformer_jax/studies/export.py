"""A study as one file: its own files, and of its cells what a comparison reads."""

import json
import zipfile
from pathlib import Path

from transformer_jax.errors import InvalidInput
from transformer_jax.studies.study import load_study

_OF_A_CELL = (
    "config.json",
    "manifest.json",
    "STATUS",
    "metrics.jsonl",
    "evaluation.json",
    "sequences.npz",
    "details.json",
    "tokenizer.json",
    "error.txt",
)
_LOCK = ".lock"


def export_study(path: str | Path, out: Path, weights: bool = False) -> Path:
    """Writes a study and its cells into a zip file that can be judged again where it is unzipped.

    Args:
      path: of the study.
      out: a .zip file; an existing one is not replaced.
      weights: whether the cells' checkpoints go along.
    Raises:
      InvalidInput: no study, or the file exists.
    """
    study = load_study(path)
    if out.suffix != ".zip":
        raise InvalidInput(f"--out={out}: expected a .zip file")
    if out.exists():
        raise InvalidInput(f"--out={out}: exists already; choose another name")
    out.parent.mkdir(parents=True, exist_ok=True)
    name = study.path.absolute().name
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(study.path.iterdir()):
            if file.is_file() and file.name not in (_LOCK, "study.json"):
                archive.write(file, f"{name}/{file.name}")
        record = {**study.record, "root": ".."}
        archive.writestr(f"{name}/study.json", json.dumps(record, indent=1) + "\n")
        for cell in study.cells():
            inside = cell.path.relative_to(study.root).as_posix()
            files = [cell.path / file for file in _OF_A_CELL]
            if weights:
                files += [file for file in cell.path.glob("checkpoints/**/*") if file.is_file()]
            for file in files:
                if file.exists():
                    archive.write(file, f"{inside}/{file.relative_to(cell.path).as_posix()}")
    return out
