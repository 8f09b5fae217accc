"""Hugging Face model folders: on disk, or downloaded from the hub by repository name."""

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

from transformer_jax.errors import InvalidInput, how_to_install

_SETTINGS = ["config.json", "generation_config.json", "preprocessor_config.json"]
_SETTINGS += ["tokenizer.json", "tokenizer_config.json", "added_tokens.json"]
_SETTINGS += ["special_tokens_map.json", "chat_template.jinja"]
_WEIGHTS = ["*.safetensors", "*.safetensors.index.json"]
_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(@\w[\w./-]*)?")  # a revision after the @


def holds_weights(folder: Path) -> bool:
    """Returns whether a folder holds a Hugging Face model: config.json and .safetensors files."""
    folder = Path(os.path.expanduser(folder))
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def may_be_a_repository(name: str) -> bool:
    """Returns whether a name could be that of a hub repository, OWNER/NAME or OWNER/NAME@REVISION.

    Returns False for Python files, for names that begin with `runs/` or with an existing path, and
    if the package huggingface_hub is not installed.
    """
    first = name.partition("/")[0]
    return (
        _NAME.fullmatch(name) is not None
        and not name.endswith(".py")
        and first != "runs"  # the folder of runs
        and not Path(first).exists()
        and importlib.util.find_spec("huggingface_hub") is not None
    )


def is_of_huggingface(name: str | Path) -> bool:
    """Returns whether a name refers to a Hugging Face model, either a folder or a repository."""
    return holds_weights(Path(name)) or may_be_a_repository(str(name))


def folder_of(source: str | Path, weights: bool = True) -> Path:
    """Returns the folder of a model: the given one, or one downloaded into the hub's cache.

    Args:
      source: A folder, OWNER/NAME, or OWNER/NAME@REVISION with a commit, branch or tag.
      weights: Whether weights are needed; if not, only settings and tokenizer are downloaded.
    Raises:
      InvalidInput: There is no such folder, and the hub does not provide one.
    """
    folder = Path(os.path.expanduser(source))
    if folder.is_dir():
        return folder
    repository = str(source)
    if not may_be_a_repository(repository):
        more = ""
        if re.fullmatch(rf"{_NAME.pattern}|\w[\w.-]*", repository):
            more = "; names on the hub have the form OWNER/NAME, e.g. openai-community/gpt2"
            if importlib.util.find_spec("huggingface_hub") is None:
                more = f"; to fetch it from the hub: {how_to_install('huggingface')}"
        raise InvalidInput(f"{repository}: no such folder{more}")
    from huggingface_hub import snapshot_download

    name, _, revision = repository.partition("@")
    files = _SETTINGS + _WEIGHTS * weights
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=files))
    except Exception as error:  # many kinds: offline, no such repository, no permission
        raise InvalidInput(
            f"{repository}: no such folder, and the hub did not provide it: {error}".splitlines()[0]
        ) from error


def read_settings(folder: Path) -> dict[str, Any]:
    """Returns the contents of a folder's config.json; raises InvalidInput if unreadable."""
    return _read_object(folder / "config.json")


def read_generation(folder: Path) -> dict[str, Any]:
    """Returns generation_config.json's contents, or config.json's; errors as in read_settings."""
    if (file := folder / "generation_config.json").is_file():
        return _read_object(file)
    settings = read_settings(folder)  # as transformers reads it, with BART's key of old
    forced = settings.get("force_bos_token_to_be_generated")
    return settings | ({"forced_bos_token_id": settings.get("bos_token_id", 0)} if forced else {})


def _read_object(file: Path) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{file.parent}: {file.name} cannot be read: {error}") from error
    if not isinstance(settings, dict):
        raise InvalidInput(f"{file}: expected a JSON object, got {settings!r:.40}")
    return settings
