"""Export of a trained run as a Hugging Face folder: weights, config, tokenizer, model card."""

import contextlib
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from transformer_jax.config_files import flatten
from transformer_jax.data.huggingface_tokenizers import as_huggingface, special_names
from transformer_jax.data.special_tokens import special_tokens
from transformer_jax.data.subword_tokenizers import HuggingFaceTokenizer, stated_beside
from transformer_jax.data.tasks import traits_of
from transformer_jax.errors import InvalidInput
from transformer_jax.hub import folder_of, is_of_huggingface, read_settings
from transformer_jax.interop import to_huggingface
from transformer_jax.options import is_number
from transformer_jax.paths import variables_of
from transformer_jax.resolve import stated
from transformer_jax.runs.files import write_json
from transformer_jax.training.run import Run

_THEIR_WORDS = {"padding": "pad", "begin": "cls", "end": "sep", "mask": "mask"}
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# Ending of an architecture's name -> class in transformers that loads the model with its head.
_AUTO = {
    "LMHeadModel": "AutoModelForCausalLM",
    "ForCausalLM": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForImageClassification": "AutoModelForImageClassification",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
}


def export_run(
    run: Run,
    folder: Path,
    name: str,
    scores: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
) -> str:
    """Writes a run into a folder that transformers' Auto classes and load_run can load.

    The model card states `name` and `scores` (numbers by split and metric). `data` is that section
    of the run's manifest, for images with pixel_mean and pixel_deviation. Returns the architecture.

    Raises:
      InvalidInput: transformers has no equivalent model or tokenizer (see to_huggingface), or the
        folder is not empty. In both cases nothing is written.
    """
    folder = Path(folder).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"{folder}: exists and is not an empty folder; choose a new folder")
    tokenizer, framed = None, traits_of(run.config.data.task).framed
    if run.tokenizer is not None:
        tokenizer = as_huggingface(run.tokenizer, None if run.begins else framed)
    is_framed = framed != "$A"  # special tokens surround a text
    origin = _origin_of(run)
    settings = _settings_of(run, is_framed, origin)
    exported = to_huggingface(run.model, run.params, folder, settings=settings)
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
        write_json(folder, "tokenizer_config.json", _tokenizer_settings(run, is_framed))
        if origin and not is_framed and (origin / "generation_config.json").is_file():
            shutil.copy(origin / "generation_config.json", folder)
    if data and "pixel_mean" in data:
        height, width, _ = run.model.image_shape
        scaling = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": height, "width": width},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": data["pixel_mean"],
            "image_std": data["pixel_deviation"],
        }
        write_json(folder, "preprocessor_config.json", scaling)
    architecture = exported.config["architectures"][0]
    card = _model_card(run, architecture, name, scores or {})
    (folder / "README.md").write_text(card, encoding="utf-8")
    return architecture


def _settings_of(run: Run, is_framed: bool, origin: Path | None) -> dict[str, Any]:
    """Returns entries to add to config.json: class names, texts per example, special tokens."""
    settings: dict[str, Any] = {}
    if run.classes:
        settings["id2label"] = {str(number): name for number, name in enumerate(run.classes)}
        settings["label2id"] = {name: number for number, name in enumerate(run.classes)}
    if run.num_texts > 1:
        settings["num_texts"] = run.num_texts
    with contextlib.suppress(InvalidInput):
        stored = read_settings(origin) if origin else {}
        settings |= {name: stored[name] for name in _TOKEN_IDS if name in stored}
    if run.tokenizer is not None and is_framed:
        specials = special_tokens(run.tokenizer)
        settings["pad_token_id"] = specials.padding
        if run.config.data.task == "translation":
            start, *forced = run.target_begin
            settings |= {} if run.begins else {"bos_token_id": specials.begin}
            settings |= {
                "eos_token_id": specials.end,
                "decoder_start_token_id": start,
                "forced_eos_token_id": None,
                "forced_bos_token_id": forced[0] if forced else None,
            }
    return settings


def _origin_of(run: Run) -> Path | None:
    """Returns the folder of the Hugging Face model that a run started from, if it is there."""
    origin = run.config.initial.weights
    if origin and is_of_huggingface(origin):
        with contextlib.suppress(InvalidInput):
            return folder_of(origin, weights=False)
    return None


def _tokenizer_settings(run: Run, is_framed: bool) -> dict[str, Any]:
    """Returns the entries of tokenizer_config.json, e.g. special tokens and the maximum length."""
    tokenizer, names = run.tokenizer, {}
    file = Path(run.config.data.tokenizer)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        names = stated_beside(file if file.is_dir() else file.parent) if file.exists() else {}
        if tokenizer.special and not (names or is_framed):
            told = f"no file beside {file} states the roles of special tokens; they are left out"
            warnings.warn(told, stacklevel=3)
    if tokenizer is not None and is_framed:
        special = special_names(tokenizer)
        if run.begins and isinstance(tokenizer, HuggingFaceTokenizer):  # its file is not changed
            special = {p: n for p, n in special.items() if tokenizer.number_of(n) is not None}
        names |= {f"{_THEIR_WORDS[purpose]}_token": name for purpose, name in special.items()}
    types = ["token_type_ids"] if getattr(run.model, "num_types", 0) else []
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.model.max_length,
        "model_input_names": ["input_ids", *types, "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **names,
    }


def _model_card(run: Run, architecture: str, name: str, scores: Mapping[str, Any]) -> str:
    """Returns the model card as Markdown: the model, its training, its scores and its use."""
    config, params = run.config, variables_of(run.params)["params"]
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    auto = next((v for end, v in _AUTO.items() if architecture.endswith(end)), "AutoModel")
    has_text = run.tokenizer is not None
    trained = f"trained with transformer_jax, {run.step:,} updates" if run.step else "not trained"
    facts = {
        "Task": config.data.task,
        "Data": _without_folders(config.data.source),
        "Tokens": _without_folders(config.data.tokenizer) if has_text else None,
        "Started from": _without_folders(config.initial.weights),
    }
    facts_list = "\n".join(f"- {k}: {v}" for k, v in facts.items() if v is not None)
    tokenizer_line = '\ntokenizer = AutoTokenizer.from_pretrained("FOLDER")' * has_text
    changes = stated(flatten(config)).items()
    options_list = "\n".join(f"{k}={_without_folders(v)}" for k, v in changes)
    return f"""---
library_name: transformers
tags: [transformer_jax]
---

# {name}

{architecture}, {count:,} parameters, {trained}.

{facts_list}

{_table_of(scores)}## Use

```python
from transformers import {auto}{", AutoTokenizer" * has_text}

model = {auto}.from_pretrained("FOLDER"){tokenizer_line}
```

In JAX: `transformer_jax.load_run("FOLDER")`.

## Config

Options that differ from the defaults of transformer_jax:

```
{options_list}
```
"""


def _without_folders(value: Any) -> Any:
    """Returns a path on this disk without its folders, and any other value unchanged."""
    is_path = isinstance(value, str) and (value.startswith("/") or Path(value).exists())
    return Path(value).name if is_path else value


def _table_of(scores: Mapping[str, Any]) -> str:
    """Returns the section with scores as Markdown, or an empty string if there are no scores."""
    numbers = {
        split: {name: value for name, value in means.items() if is_number(value)}
        for split, means in scores.items()
        if split in ("validation", "test")
    }
    names = list(dict.fromkeys(name for means in numbers.values() for name in means))
    if not names:
        return ""
    rows = [
        [split, *(f"{means[n]:.4f}" if n in means else "" for n in names)]
        for split, means in numbers.items()
    ]
    table = [["split", *names], ["---", *["---:"] * len(names)], *rows]
    return "## Scores\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in table) + "\n"
