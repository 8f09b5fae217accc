"""Fingerprints of the files that training starts from."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from transformer_jax.errors import InvalidInput
from transformer_jax.runs.files import entries, inside


def fingerprint_of(initial: Mapping[str, str | None]) -> dict[str, str]:
    """Returns, for each option that is not None, one sha256 of the files that it names."""
    hashes = {}
    for option, place in initial.items():
        if place is not None:
            digest = hashlib.sha256()
            for file in _files_of(option, Path(place)):
                digest.update(file.read_bytes())
            hashes[option] = digest.hexdigest()
    return hashes


def _files_of(option: str, path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if option == "weights":
        from transformer_jax.hub import folder_of, may_be_a_repository

        path = folder_of(path) if may_be_a_repository(str(path)) else path
    found = sorted(path.glob("*.safetensors"))  # may be links in Hugging Face's cache
    found += [
        inside(step, "manifest.json")
        for step in entries(inside(path, "checkpoints"))
        if (step / "manifest.json").is_file()
    ]
    if not found:
        raise InvalidInput(
            f"initial.{option}={path}: expected a run with a checkpoint, a folder with "
            "model.safetensors, or a file of word vectors"
        )
    return found
