"""Simple methods such as n-grams; a model that does not beat them has not learned yet.

For text, they are interpolated Kneser–Ney models of 1 to 6 tokens (see ngrams); masked tokens are
predicted from the nearest tokens on both sides. For labels, they are the most frequent class; a
linear model on pixels, vectors, or TF-IDF weights of tokens and pairs of neighbours (Wang and
Manning 2012, aclanthology.org/P12-2018); and, for images and vectors, the nearest neighbour (Cover
and Hart 1967). The linear model is logistic regression with an L2 penalty, whose strength is chosen
on the validation split. All methods use the training split, or the first 20 million tokens of a
longer text, and are scored on the same targets as models.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.ngrams import NGrams, context_rows
from transformer_jax.data.order import Part
from transformer_jax.data.tasks import Batch, Task
from transformer_jax.data.tasks.classification import Classification
from transformer_jax.data.tasks.language_modelling import LanguageModelling
from transformer_jax.data.tasks.masked_language_modelling import MaskedLanguageModelling
from transformer_jax.data.tasks.translation import Translation

Scores = dict[str, dict[str, float]]  # split -> metric -> score
LONGEST = 6  # tokens of an n-gram
_AROUND = (-3, 2, -2, 1, -1)  # neighbours of a masked token, the nearest last
_MOST_TOKENS = 20_000_000  # counted in a longer text
_ROWS = 256
_ITERATIONS = 100  # of L-BFGS
_STRENGTHS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # of the penalty, strongest first
_SCORED = ("validation", "test")


class Baselines(NamedTuple):
    """Scores of the simple methods, and the one to beat.

    `scores` holds the loss in nats, the accuracy or both, by method and then split. `gate` is the
    method that a base must beat by default, or None if none is known.
    """

    scores: dict[str, Scores]
    gate: str | None


def baselines_of(task: Task, steps: int) -> Baselines:
    """Fits and scores every simple method for a task.

    There are methods for tasks with a class for each example or a token at each position.
    If a task's training split cannot be listed, up to `steps` training batches are read.
    """
    first = task.batch(0, 0)
    inputs, shape = first["inputs"], np.shape(first["targets"])
    names, sizes = inputs.keys(), task.sizes
    scores: dict[str, Scores] = {}
    gate = None
    is_text = "tokens" in names and len(shape) == 2 and np.shape(inputs["tokens"]) == shape
    if is_text and "vocab_size" in sizes:
        scores = _of_text(task, steps)
        gate = f"{min(4, len(scores))}-gram"  # texts may be shorter
    elif len(shape) == 1 and names & {"tokens", "images", "vectors"} and "num_classes" in sizes:
        scores = _of_labels(task, steps, has_words="tokens" in names)
        gate = "nearest neighbour" if "images" in names else "linear model"
    floor = task.protocol.get("floor")
    if floor is not None:
        scores["known floor"] = {split: {"loss": float(floor)} for split in _SCORED}
    return Baselines(scores, gate)


def _training_batches(task: Task, steps: int) -> Iterable[Batch]:
    if isinstance(task, Classification | Translation):
        return task.evaluation_batches("train", _ROWS)
    return (task.batch(0, step) for step in range(steps))


def _of_text(task: Task, steps: int) -> dict[str, Scores]:
    both_sides = isinstance(task, MaskedLanguageModelling)
    distances = _AROUND if both_sides else range(2 - LONGEST, 1)
    if isinstance(task, LanguageModelling | MaskedLanguageModelling):
        train = task.splits["train"]
        parts = getattr(task, "parts", ()) or (Part("", 1.0, 0, len(train)),)
        if sum(part.count for part in parts) > _MOST_TOKENS:
            most = [min(part.count, round(part.share * _MOST_TOKENS)) for part in parts]
            parts = [p._replace(count=count) for p, count in zip(parts, most, strict=True)]
        found = []
        for part in parts:
            text = train.windows(np.array([part.begin]), part.count)
            inputs, targets = (text, text) if both_sides else (text[:, :-1], text[:, 1:])
            batch: Batch = {"inputs": {"tokens": inputs}, "targets": targets, "weights": 1}
            is_within: Any = slice(None)
            if getattr(task, "separate_documents", False):
                (segments,), _ = train.documents(np.array([part.begin]), part.count)
                batch["inputs"]["segments"] = segments[None, :-1]
                is_within = segments[1:] == segments[:-1]
            found.append(context_rows(batch, distances)[0, is_within])
    else:
        found, count = [], 0
        for batch in _training_batches(task, steps):
            found.append(context_rows(batch, distances)[np.asarray(batch["weights"]) > 0])
            count += len(found[-1])
            if count >= _MOST_TOKENS:
                break
    rows = np.concatenate(found)
    models = NGrams.of_rows(rows, int(task.sizes["vocab_size"]))
    usual = np.argmax(np.bincount(rows[:, -1]))
    scores: dict[str, Scores] = {f"{n}-gram": {} for n in range(1, len(models) + 1)}
    for split in _SCORED:
        losses, total, right = np.zeros(len(models)), 0.0, 0.0
        for batch in task.evaluation_batches(split, _ROWS):
            weights = np.asarray(batch["weights"], np.float64)
            rows = context_rows(batch, distances)
            total += weights.sum()
            right += float((weights * (rows[..., -1] == usual)).sum())
            log_probs = (m.log_probabilities(rows[..., :-1], rows[..., -1]) for m in models)
            losses += [(-of_model * weights).sum() for of_model in log_probs]
        for method, loss in zip(scores.values(), losses, strict=True):
            method[split] = {"loss": float(loss / total)}
        scores["1-gram"][split]["accuracy"] = right / float(total)
    return scores


def _of_labels(task: Task, steps: int, has_words: bool) -> dict[str, Scores]:
    train = _examples(_training_batches(task, steps))
    scored = {split: _examples(task.evaluation_batches(split, _ROWS)) for split in _SCORED}
    classes = int(task.sizes["num_classes"])
    counts = np.bincount(train[1], minlength=classes)
    shares = np.log((counts + 1) / (counts + 1).sum())
    features = _text_features(train[0]) if has_words else _flat
    x = features(train[0])
    scored = {split: (features(inputs), labels) for split, (inputs, labels) in scored.items()}
    scores: dict[str, Scores] = {"majority": {}, "linear model": {}}
    weights, least = np.zeros(0), np.inf
    for fitted in _fitted(x, train[1], classes):
        loss = _scores_of(fitted, *scored["validation"])["loss"]
        if loss >= least:
            break  # a weaker penalty only fits the training split better
        weights, least = fitted, loss
    for split, (inputs, labels) in scored.items():
        scores["majority"][split] = {
            "loss": float(-shares[labels].mean()),
            "accuracy": float((labels == counts.argmax()).mean()),
        }
        scores["linear model"][split] = _scores_of(weights, inputs, labels)
        if not has_words:
            found = train[1][_nearest(inputs, x)]
            method = scores.setdefault("nearest neighbour", {})
            method[split] = {"accuracy": float((found == labels).mean())}
    return scores


def _examples(batches: Iterable[Batch]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Returns inputs [N, ...] and labels [N] of the scored examples."""
    inputs, labels, count = [], [], 0
    for batch in batches:
        is_scored = np.asarray(batch["weights"]) > 0
        arrays = {name: np.asarray(array)[is_scored] for name, array in batch["inputs"].items()}
        inputs.append(arrays)
        labels.append(np.asarray(batch["targets"])[is_scored])
        count += sum(array.size for array in arrays.values())
        if count >= 10 * _MOST_TOKENS:
            break
    joined = {name: np.concatenate([arrays[name] for arrays in inputs]) for name in inputs[0]}
    return joined, np.concatenate(labels)


def _flat(inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the inputs as rows [N, F] float64: pixels, or vectors padded with zeros."""
    values = np.asarray(inputs["images"] if "images" in inputs else inputs["vectors"], np.float64)
    if "segments" in inputs and "vectors" in inputs:
        values = values * (inputs["segments"] > 0)[..., None]
    return values.reshape(len(values), -1)


def _text_features(inputs: dict[str, np.ndarray]) -> Callable[[dict[str, np.ndarray]], Any]:
    """Fits TF-IDF weights; returns a function from inputs to sparse unit-length rows [N, F]."""
    from scipy import sparse

    def codes_of(inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        tokens = inputs["tokens"].astype(np.int64) + 1
        tokens += inputs["types"] * _SECOND if "types" in inputs else 0
        tokens *= inputs["segments"] > 0 if "segments" in inputs else 1
        pairs = np.where((tokens[:, 1:] > 0) & (tokens[:, :-1] > 0), tokens[:, 1:], 0)
        codes = np.concatenate([tokens, pairs * _PAIRS + tokens[:, :-1] * (pairs > 0)], 1)
        rows = np.broadcast_to(np.arange(len(tokens))[:, None], codes.shape)
        return rows[codes > 0], codes[codes > 0]

    rows, codes = codes_of(inputs)
    seen = np.unique(np.stack([codes, rows]), axis=1)  # each code once per example
    known, examples = np.unique(seen[0], return_counts=True)
    known, examples = known[examples > 1], examples[examples > 1]
    rarity = np.log(len(inputs["tokens"]) / examples) + 1

    def features(inputs: dict[str, np.ndarray]) -> Any:
        rows, codes = codes_of(inputs)
        is_known = np.isin(codes, known)
        places = np.searchsorted(known, codes[is_known])
        shape = (len(inputs["tokens"]), len(known))
        counts = sparse.csr_matrix((np.ones(len(places)), (rows[is_known], places)), shape)
        counts.data = (1 + np.log(counts.data)) * rarity[counts.indices]
        lengths = np.sqrt(counts.multiply(counts).sum(1)).A1
        return sparse.diags(1 / np.maximum(lengths, 1e-9)) @ counts

    return features


_SECOND = 1 << 22  # added to the tokens of a second text, which count as different ones
_PAIRS = 1 << 24


def _fitted(x: Any, labels: np.ndarray, classes: int) -> Iterator[np.ndarray]:
    """Yields, per strength, weights [F + 1, K] that minimise loss + strength / 2 |weights|^2."""
    from scipy import optimize, special

    count, width = x.shape
    hot = np.eye(classes)[labels]

    def loss(flat: np.ndarray, strength: float) -> tuple[float, np.ndarray]:
        w = flat.reshape(width + 1, classes)
        logits = x @ w[:-1] + w[-1]
        log_p = logits - special.logsumexp(logits, 1, keepdims=True)
        error = (np.exp(log_p) - hot) / count
        gradient = np.concatenate([x.T @ error + strength * w[:-1], error.sum(0, keepdims=True)])
        value = -(hot * log_p).sum() / count + strength / 2 * (w[:-1] ** 2).sum()
        return value, gradient.ravel()

    start = np.zeros((width + 1) * classes)
    for strength in _STRENGTHS:
        options = {"maxiter": _ITERATIONS}
        start = optimize.minimize(loss, start, strength, "L-BFGS-B", jac=True, options=options).x
        yield start.reshape(width + 1, classes)


def _scores_of(weights: np.ndarray, x: Any, labels: np.ndarray) -> dict[str, float]:
    from scipy import special

    logits = x @ weights[:-1] + weights[-1]
    losses = special.logsumexp(logits, 1) - logits[np.arange(len(labels)), labels]
    accuracy = float((logits.argmax(1) == labels).mean())
    return {"loss": float(losses.mean()), "accuracy": accuracy}


def _nearest(queries: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Returns the index of the row of `known` nearest to each query, by Euclidean distance."""
    lengths = (known**2).sum(1)
    at = range(0, len(queries), _ROWS)
    return np.concatenate([(lengths - 2 * queries[p : p + _ROWS] @ known.T).argmin(1) for p in at])
