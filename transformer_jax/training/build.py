"""From a config to the things that it names."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.core import FrozenDict
from ml_collections import ConfigDict

from transformer_jax.data.sources import load_text
from transformer_jax.data.tasks import TASKS, LanguageModelling
from transformer_jax.data.tokenizers import Tokenizer, fingerprint
from transformer_jax.models import MODELS, row
from transformer_jax.training.config import options_of


def make_task(
    data: ConfigDict, batch_size: int, tokenizer: Tokenizer | None = None
) -> tuple[LanguageModelling, dict[str, Any]]:
    """Reads the data that a config names.

    Args:
      data: the config's `data` section.
      batch_size: examples in a training batch.
      tokenizer: a stored run's tokenizer; trained from the text if not given.
    Returns:
      The task, and what identifies its data: source, hashes, tokens of each split.
    """
    loaded = load_text(
        data.source, tokenizer or data.tokenizer, data.vocab_size, data.document_separator
    )
    make: type[LanguageModelling] = row(TASKS, data.task, "data.task")
    task = make(
        tokenizer=loaded.tokenizer,
        splits=loaded.stream.split(data.splits),
        length=data.length,
        batch_size=batch_size,
        separate_documents=data.separate_documents,
    )
    facts = {
        "source": data.source,
        "text_sha256": loaded.text_sha256,
        "tokenizer_sha256": fingerprint(loaded.tokenizer),
        "tokens": {split: len(stream) for split, stream in task.splits.items()},
    }
    return task, facts


def make_model(model: ConfigDict, vocab_size: int) -> nn.Module:
    """Makes the module that a config's `model` section describes.

    An option is a field of the module's class; the options of a row (`position_options.rotary`)
    reach it only while that row is chosen.
    """
    make = row(MODELS, model.architecture, "model.architecture")
    fields = {field.name for field in dataclasses.fields(make)}
    options: dict[str, Any] = {name: model[name] for name in model if name in fields}
    options |= {
        f"{family}_options": FrozenDict(options_of(model[f"{family}_options"], model[family]))
        for family in model
        if f"{family}_options" in model
    }
    return make(vocab_size=vocab_size, **options | {"dtype": jnp.dtype(model.dtype)})
