"""Classification of texts, images and sequences of vectors."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Le

from transformer_jax.data.order import SPLITS, split_by_key, step_generator
from transformer_jax.data.sources.arrays import Arrays, load_images, load_vectors
from transformer_jax.data.sources.tables import load_labelled_text
from transformer_jax.data.special_tokens import special_tokens
from transformer_jax.data.tasks.batch import Batch, ListedTask, data_facts
from transformer_jax.data.tasks.translation import padded, refuse_empty_splits
from transformer_jax.data.tokenizers import Tokenizer, make_tokenizer
from transformer_jax.errors import InvalidInput
from transformer_jax.options import Natural, Switch

Inputs = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Classification(ListedTask):
    """Task of predicting the class of each example.

    Attributes:
      inputs: Stored inputs of all N examples by name, arrays [N, ...]; see prepare.
      labels: Class indices, [N] int32.
      classes: Names of the classes.
      sizes: Sizes that a model has to know; for this and all fields not listed here, see Task.
      prepare: Function that turns a batch's stored inputs into keyword arguments for the model,
        augmented with a random generator, its second argument, which is None outside training.
    """

    inputs: Inputs
    labels: np.ndarray
    classes: tuple[str, ...]
    sizes: dict[str, Any]
    counted: str
    facts: dict[str, Any]
    protocol: dict[str, Any] = dataclasses.field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = None
    prepare: Callable[[Inputs, np.random.Generator | None], Inputs] = lambda inputs, _: inputs
    target: ClassVar[str] = "label"

    def batch(self, seed: int, step: int) -> Batch:
        """Returns a step's training batch, which depends on `seed` and `step` alone."""
        draws = step_generator(seed, step, "augment")
        return self.examples_at(self.indices_of_step(seed, step), draws)

    def examples_at(self, indices: np.ndarray, draws: np.random.Generator | None = None) -> Batch:
        """Returns a Batch of the examples at `indices` [B], augmented if `draws` is given."""
        inputs = self.prepare({name: array[indices] for name, array in self.inputs.items()}, draws)
        weights = np.ones(len(indices), np.float32)
        return {"inputs": inputs, "targets": self.labels[indices], "weights": weights}


def text_classification(
    *,
    source: str,
    tokenizer: str | Tokenizer,
    vocab_size: int,
    splits: tuple[float, ...],
    split_seed: int,
    train_examples: int | None,
    length: int,
    batch_size: int,
    text_field: str = "text",
) -> Classification:
    """Returns a task on labelled texts or pairs; those with equal first texts share a split.

    An input is a begin token, the text's tokens and an end token, padded to `length`. Longer texts
    are truncated, and `facts` has the number of such examples. In a pair, the second text follows
    with its own end token, and the model receives each token's type, 0 or 1 (Devlin et al. 2019,
    arXiv:1810.04805, figure 2).
    """
    loaded = load_labelled_text(source, text_field)
    are_pairs = len(loaded.texts[0]) == 2
    if are_pairs and length < 5:
        raise InvalidInput(f"data.length={length}: two texts with special tokens need at least 5")
    parts = split_by_key([texts[0] for texts in loaded.texts], splits, split_seed)
    training_texts = [text for index in parts["train"] for text in loaded.texts[index]]
    tokenizer = make_tokenizer(
        tokenizer, lambda: training_texts, vocab_size, lambda: itertools.chain(*loaded.texts)
    )
    inputs, cut = encode_texts(tokenizer, loaded.texts, length)
    parts = _with_fewer_to_train_on(parts, train_examples, split_seed, source)
    sizes = {
        "vocab_size": special_tokens(tokenizer).vocab_size,
        "num_classes": len(loaded.classes),
        **({"num_types": 2} if are_pairs else {}),
    }
    remarks = (*_unseen(loaded.classes, np.array(loaded.labels), parts),)
    if cut:
        remarks += (f"{cut:,} texts are truncated to data.length={length} tokens",)
    return Classification(
        parts,
        batch_size,
        inputs,
        np.array(loaded.labels, np.int32),
        loaded.classes,
        sizes,
        "texts",
        data_facts(source, loaded.sha256, parts, tokenizer, classes=loaded.classes, cut=cut),
        protocol={"context": length},
        remarks=remarks,
        tokenizer=tokenizer,
    )


def encode_texts(
    tokenizer: Tokenizer, texts: Iterable[str | tuple[str, ...]], length: int
) -> tuple[Inputs, int]:
    """Returns the model's inputs for N texts or pairs of texts, and the number truncated.

    The inputs are tokens and segments, and types for pairs, all [N, L] int32; L is `length`, which
    includes special tokens. If a pair is too long, its longer text is truncated first.
    """
    specials = special_tokens(tokenizer)
    rows, types, cut = [], [], 0
    for example in texts:
        example = (example,) if isinstance(example, str) else example
        encoded = [tokenizer.encode(text) for text in example]
        kept = _cut(encoded, length - 1 - len(encoded))
        cut += any(len(part) < len(tokens) for part, tokens in zip(kept, encoded, strict=True))
        rows.append([specials.begin])
        types.append([0])
        for number, part in enumerate(kept):
            rows[-1] += [*part, specials.end]
            types[-1] += [number] * (len(part) + 1)
    tokens, segments = padded(rows, length, specials.padding)
    inputs = {"tokens": tokens, "segments": segments}
    if any(1 in row for row in types):
        inputs["types"] = padded(types, length, 0)[0]
    return inputs, cut


def _cut(texts: list[np.ndarray], most: int) -> list[np.ndarray]:
    """Returns one or two texts, cut to at most `most` tokens in total; the longer is cut first."""
    if len(texts) == 1:
        return [texts[0][:most]]
    first, second = texts
    # The room is shared in halves, unless one text needs less than half.
    count = min(len(first), max(most - len(second), (most + 1) // 2))
    return [first[:count], second[: most - count]]


def image_classification(
    *,
    source: str,
    splits: tuple[float, ...],
    split_seed: int,
    train_examples: int | None,
    batch_size: int,
    max_rotation: Annotated[float, Ge(0), Le(180)] = 0.0,
    max_shift: Natural = 0,
    flip: Switch = False,
) -> Classification:
    """Returns a task on labelled images; channels have mean 0 and deviation 1 in the train split.

    A source's own test set is the test split; the validation split is part of the others.

    Args:
      max_rotation: Maximum rotation of training images in degrees; exposed corners become 0.
      max_shift: Maximum shift of training images in each direction, in pixels.
      flip: Whether each training image is mirrored left to right with probability 1/2.
    """
    arrays = load_images(source)
    parts = _array_splits(source, arrays, splits, split_seed, train_examples)
    mean, deviation = _pixel_statistics(arrays.inputs[parts["train"]])

    def prepare(inputs: Inputs, draws: np.random.Generator | None) -> Inputs:
        images = inputs["images"]
        if draws is not None:
            images = rotated(images, draws, max_rotation)
            images = shifted_and_flipped(images, draws, max_shift, flip)
        scaled = images / np.float32(255)
        return {"images": (scaled - mean.astype(np.float32)) / deviation.astype(np.float32)}

    statistics = {"pixel_mean": mean.tolist(), "pixel_deviation": deviation.tolist()}
    return Classification(
        parts,
        batch_size,
        {"images": arrays.inputs},
        arrays.labels,
        arrays.classes,
        {"image_shape": arrays.inputs.shape[1:], "num_classes": len(arrays.classes)},
        "images",
        data_facts(source, arrays.sha256, parts, classes=arrays.classes, **statistics),
        prepare=prepare,
        remarks=(*arrays.remarks, *_unseen(arrays.classes, arrays.labels, parts)),
    )


def _unseen(
    classes: Sequence[str], labels: np.ndarray, parts: Mapping[str, np.ndarray]
) -> Iterator[str]:
    """Yields a remark if classes have no training example."""
    found = set(labels[parts["train"]].tolist())
    if without := [name for number, name in enumerate(classes) if number not in found]:
        told = ", ".join(without[:4]) + (", ..." if len(without) > 4 else "")
        yield f"no training example of {len(without):,} of {len(classes):,} classes: {told}"


def _pixel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns each channel's mean and standard deviation, [C] float64, for values in [0, 1].

    They are computed from exact counts of the 256 pixel values, since a float32 sum over millions
    of pixels stops growing. The standard deviation is at least 1e-6.
    """
    values = np.arange(256) / 255
    channels = range(images.shape[-1])
    counts = np.stack([np.bincount(images[..., c].ravel(), minlength=256) for c in channels])
    shares = counts / counts.sum(1, keepdims=True)
    mean = shares @ values
    variance = (shares * (values - mean[:, None]) ** 2).sum(1)
    return mean, np.maximum(np.sqrt(variance), 1e-6)


def rotated(images: np.ndarray, draws: np.random.Generator, max_rotation: float) -> np.ndarray:
    """Rotates images [B, height, width, C] about their centres by up to max_rotation degrees.

    Each angle is random. Exposed corners become 0; values between pixels are interpolated
    bilinearly. The result is float32, or the unchanged images if max_rotation is 0.
    """
    if max_rotation == 0:
        return images
    count, height, width, _ = images.shape
    angles = np.deg2rad(draws.uniform(-max_rotation, max_rotation, (count, 1, 1)))
    middle = np.array([(height - 1) / 2, (width - 1) / 2])
    rows, columns = np.indices((height, width)) - middle[:, None, None]
    from_rows = np.cos(angles) * rows - np.sin(angles) * columns + middle[0]
    from_columns = np.sin(angles) * rows + np.cos(angles) * columns + middle[1]
    wide = np.pad(images.astype(np.float32), ((0, 0), (1, 1), (1, 1), (0, 0)))
    examples = np.arange(count)[:, None, None]
    turned = np.zeros(images.shape, np.float32)
    for row in (np.floor(from_rows), np.floor(from_rows) + 1):
        for column in (np.floor(from_columns), np.floor(from_columns) + 1):
            share = (1 - np.abs(from_rows - row)) * (1 - np.abs(from_columns - column))
            at_row = np.clip(row, -1, height).astype(int) + 1
            at_column = np.clip(column, -1, width).astype(int) + 1
            turned += share[..., None].astype(np.float32) * wide[examples, at_row, at_column]
    return turned


def shifted_and_flipped(
    images: np.ndarray, draws: np.random.Generator, max_shift: int, flip: bool
) -> np.ndarray:
    """Shifts images [B, height, width, C] at random by up to max_shift pixels, filling with 0.

    If `flip`, each image is also mirrored left to right with probability 1/2.
    """
    count, height, width, _ = images.shape
    shifts = draws.integers(-max_shift, max_shift + 1, (count, 2))
    mirrored = flip & (draws.random(count) < 0.5)
    wide = np.pad(images, ((0, 0), (max_shift, max_shift), (max_shift, max_shift), (0, 0)))
    rows = np.arange(height) + max_shift + shifts[:, :1]
    columns = np.arange(width) + max_shift + shifts[:, 1:]
    columns = np.where(mirrored[:, None], columns[:, ::-1], columns)
    examples = np.arange(count)[:, None, None]
    return wide[examples, rows[:, :, None], columns[:, None, :]]


def vector_classification(
    *,
    source: str,
    splits: tuple[float, ...],
    split_seed: int,
    train_examples: int | None,
    batch_size: int,
) -> Classification:
    """Returns a task on labelled vector sequences, e.g. time series; values are not rescaled."""
    arrays = load_vectors(source)
    parts = _array_splits(source, arrays, splits, split_seed, train_examples)
    longest, num_features = arrays.inputs.shape[1:]
    inputs = {"vectors": arrays.inputs}
    if arrays.lengths is not None:
        inputs["segments"] = (np.arange(longest) < arrays.lengths[:, None]).astype(np.int32)
    sizes = {
        "num_features": num_features,
        "num_classes": len(arrays.classes),
        "vocab_size": None,
        "max_length": longest,
    }
    facts = data_facts(source, arrays.sha256, parts, classes=arrays.classes)
    return Classification(
        parts, batch_size, inputs, arrays.labels, arrays.classes, sizes, "sequences", facts,
        remarks=(*arrays.remarks, *_unseen(arrays.classes, arrays.labels, parts)),
    )  # fmt: skip


def _with_fewer_to_train_on(
    parts: dict[str, np.ndarray], count: int | None, seed: int, source: str
) -> dict[str, np.ndarray]:
    """Returns the splits with `count` random training examples, or all of them if it is None.

    For the same seed, a smaller training set is a subset of a larger one.

    Raises:
      InvalidInput: A split is empty, or there are fewer than `count` training examples.
    """
    refuse_empty_splits(source, parts)
    train = parts["train"]
    if count is None:
        return parts
    if count > len(train):
        raise InvalidInput(
            f"data.train_examples={count}: expected at most {len(train)}, the examples in the "
            f"training split of {source}"
        )
    drawn = np.random.default_rng(seed).permutation(len(train))[:count]
    return {**parts, "train": train[np.sort(drawn)]}


def _array_splits(
    source: str, arrays: Arrays, shares: tuple[float, ...], seed: int, train_examples: int | None
) -> dict[str, np.ndarray]:
    """Returns indices by split; equal examples stay together, and a source's test set is kept."""
    keys = [
        hashlib.sha256(example.tobytes()).hexdigest()
        for example in arrays.inputs[: arrays.first_test]
    ]
    if arrays.first_test is None:
        parts = split_by_key(keys, shares, seed)
    else:
        first: dict[str, int] = {}
        groups = [str(first.setdefault(key, index)) for index, key in enumerate(keys)]
        both = shares[0] + shares[1]
        parts = split_by_key(groups, (shares[0] / both, shares[1] / both, 0.0), seed)
        parts[SPLITS[-1]] = np.arange(arrays.first_test, len(arrays.labels))
    return _with_fewer_to_train_on(parts, train_examples, seed, source)
