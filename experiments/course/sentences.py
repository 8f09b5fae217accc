"""The attention of three short sentences, in a decoder that has just learned to agree."""

from typing import NamedTuple, cast

import jax
import numpy as np

from transformer_jax.data.tasks import SyntheticTask
from transformer_jax.inspection import attention_maps, head_similarity
from transformer_jax.options.config import load_config
from transformer_jax.training.prepared import Prepared, prepare

SENTENCES = (
    "the key near the doors",
    "the keys near the door behind the window",
    "the pictures above the rivers beside the letter",
)


class Look(NamedTuple):
    """A sentence in a model.

    Attributes:
      words: of the sentence, without the dots in front.
      verb: that the model says.
      probability: that the model gives it.
      weights: [layers, heads, words]: how much the last place listens to each word.
    """

    words: tuple[str, ...]
    verb: str
    probability: float
    weights: np.ndarray


class Looks(NamedTuple):
    """What came of all sentences.

    Attributes:
      accuracy: of the model on the test split.
      sentences: a look at each.
      similarity: [layers, heads, heads], see head_similarity, over the sentences of the test split.
    """

    accuracy: float
    sentences: tuple[Look, ...]
    similarity: np.ndarray


def look_at_sentences() -> Looks:
    """Trains the decoder of configs/ablations/agreement.py on short sentences and looks inside."""
    changes = {
        "data.length": "11",
        "model.width": "32",
        "model.num_heads": "2",
        "training.steps": "300",
        "schedule.warmup_cosine.warmup_steps": "30",
    }
    prepared = prepare(load_config("configs/ablations/agreement.py", changes))
    params = prepared.train(prepared.draw(np.uint32(0)), 0, 0).params
    task = cast(SyntheticTask, prepared.task)
    batch = next(iter(task.evaluation_batches("test", 512)))
    logits, maps = _apply(prepared, params, batch["inputs"]["tokens"])
    right = (logits[:, -1].argmax(-1) == batch["targets"][:, -1]).mean()
    similarity = np.stack([np.asarray(head_similarity(layer)) for layer in maps])
    numbers = {word: number for number, word in enumerate(task.language.words)}
    length = batch["inputs"]["tokens"].shape[1]
    looks = []
    for sentence in SENTENCES:
        words = tuple(sentence.split())
        tokens = np.zeros((1, length), np.int32)
        tokens[0, -len(words) :] = [numbers[word] for word in words]
        logits, maps = _apply(prepared, params, tokens)
        chances = np.asarray(jax.nn.softmax(logits[0, -1]))
        own = np.stack(maps)[:, 0, :, -len(words) :, -len(words) :]
        verb = task.language.words[int(chances.argmax())]
        looks.append(Look(words, verb, float(chances.max()), own[:, :, -1]))
    return Looks(float(right), tuple(looks), similarity)


def _apply(prepared: Prepared, params: dict, tokens: np.ndarray) -> tuple[jax.Array, list]:
    """Logits [N, L, V], and the weights [N, H, L, L] of each layer."""
    logits = prepared.model.apply({"params": params}, tokens)
    maps = attention_maps(prepared.model, params, {"tokens": tokens})
    return logits, [np.asarray(maps[f"block_{n}/attention"]) for n in range(len(maps))]
