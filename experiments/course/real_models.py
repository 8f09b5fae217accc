"""What the sentences of courses show in real weights: in MiniLM's encoder, in SmolLM2's decoder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.course.contextual import INSTALLED as ENCODER
from transformer_jax.data.tasks.classification import encode_texts
from transformer_jax.data.tokenizers import load_tokenizer
from transformer_jax.inspection import attention_maps
from transformer_jax.interop import from_huggingface

DECODER = Path(__file__).parents[2] / "smollm2" / "weights"  # make smollm2


class Table(NamedTuple):
    """What was seen.

    Attributes:
      title: of the table.
      heads: of its columns.
      rows: of text.
    """

    title: str
    heads: list[str]
    rows: list[list[str]]


# A sentence, the word that listens, whom it ought to listen to, and who stands nearer.
LISTENING = (
    ("The cat sat on the mat because it was tired.", "it", "cat", "mat"),
    (
        "The students in the exam where the fire alarm is ringing are really stressed.",
        *("are", "students", "alarm"),
    ),
    (
        "The flies munching on the banana that is lying under the tree which is in full bloom are "
        "really happy.",
        *("are", "flies", "tree"),
    ),
)
# Begun sentences; the first two have a plural subject, and a singular noun that stands nearer.
PLURAL = (
    "The students in the exam where the fire alarm is ringing",
    "The flies munching on the banana that is lying under the tree which is in full bloom",
)
CONTINUED = (*PLURAL, "Anqi forgot")
NEIGHBOURS = ("cat", "guitar", "table", "monday")
TRIPLE = "How are you"
_SHOWN = 5
_MOST = 0.6  # share of the heads from which on a sentence shows what it is to show


def tables() -> list[Table]:
    """Returns what is seen in the weights that are installed; nothing without any."""
    found = _in_encoder(ENCODER) if ENCODER.exists() else []
    return found + (_in_decoder(DECODER) if DECODER.exists() else [])


def _in_encoder(folder: Path) -> list[Table]:
    model, params = from_huggingface(str(folder))
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    listening = Table(
        "Whom a word listens to, in MiniLM",
        ["sentence", "listens to", "weight by layer, mean over heads", "heads", "does it show?"],
        [_listened(model, params, tokenizer, *each) for each in LISTENING],
    )
    table = np.asarray(params["token_embedding"]["embedding"], float)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    words = {n: text for n in range(len(table)) if (text := tokenizer.decode([n])).isalpha()}
    near = []
    for word in NEIGHBOURS:
        alike = table @ table[tokenizer.encode(word)[0]]
        ranked = [n for n in np.argsort(-alike) if words.get(int(n), word) != word][:_SHOWN]
        near.append([word, ", ".join(f"{words[int(n)]} {alike[n]:.2f}" for n in ranked)])
    raw = np.asarray(params["token_embedding"]["embedding"])
    vectors = [
        [tokenizer.decode([n]), str(n), ", ".join(f"{x:.3f}" for x in raw[n][:4]) + ", ..."]
        for n in map(int, tokenizer.encode(TRIPLE))
    ]
    return [
        listening,
        Table("Neighbours among MiniLM's token embeddings", ["word", "cosines"], near),
        Table(
            f"Tokens, ids and vectors of “{TRIPLE}”, in MiniLM",
            ["token", "id", f"the first of {raw.shape[1]} features"],
            vectors,
        ),
    ]


def _listened(
    model: Any, params: Any, tokenizer: Any, sentence: str, word: str, antecedent: str, nearer: str
) -> list[str]:
    """How much a word listens to two others, in each layer; and whether more to the right one."""
    inputs, _ = encode_texts(tokenizer, [sentence], 32)
    tokens = inputs["tokens"][0].tolist()
    listener = len(tokens) - 1 - tokens[::-1].index(tokenizer.encode(word)[0])  # the last of them
    places = [tokens.index(tokenizer.encode(other)[0]) for other in (antecedent, nearer)]
    maps = attention_maps(model, params, inputs)
    weights = np.stack([np.asarray(maps[f"block_{n}/attention"])[0] for n in range(len(maps))])
    right, wrong = (weights[:, :, listener, place] for place in places)  # [layers, heads]
    more, of = int((right > wrong).sum()), right.size
    shows = right.mean() > wrong.mean() and more >= _MOST * of
    return [
        sentence,
        f"{word} to {antecedent}, and to {nearer}",
        "; ".join(f"{a:.3f}, {b:.3f}" for a, b in zip(right.mean(1), wrong.mean(1), strict=True)),
        f"{more} of {of} more to {antecedent}",
        "yes" if shows else "hardly: nearly as many heads listen the other way",
    ]


def _in_decoder(folder: Path) -> list[Table]:
    model, params = from_huggingface(str(folder))
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    apply, rows = jax.jit(model.apply), []
    for text in CONTINUED:
        tokens = jnp.asarray(tokenizer.encode(text))[None]
        chances = np.asarray(jax.nn.softmax(apply({"params": params}, tokens)[0, -1]))
        agrees = _agreement(tokenizer, chances) if text in PLURAL else ""
        rows.append([text, _likeliest(tokenizer, chances), agrees])
    return [
        Table(
            "What comes next, in SmolLM2 of 135 million parameters",
            ["text", "the likeliest tokens", "are or is?"],
            rows,
        )
    ]


def _likeliest(tokenizer: Any, chances: np.ndarray) -> str:
    ranked: Sequence[int] = np.argsort(-chances)[:_SHOWN].tolist()
    return ", ".join(f"{tokenizer.decode([n])!r} {chances[n]:.3f}" for n in ranked)


def _agreement(tokenizer: Any, chances: np.ndarray) -> str:
    are, is_ = (float(chances[tokenizer.encode(word)[0]]) for word in (" are", " is"))
    verdict = "it agrees with the subject" if are > is_ else "the nearer noun wins here"
    return f"are {are:.3f}, is {is_:.3f}: {verdict}"
