"""Initial weights that are not freshly drawn: pretrained weights and word vectors."""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict
from ml_collections import ConfigDict

from transformer_jax.data.sources.files import lines_of
from transformer_jax.data.tokenizers import Tokenizer, fingerprint, load_tokenizer
from transformer_jax.errors import InvalidInput
from transformer_jax.hub import folder_of, holds_weights, is_of_huggingface, read_settings
from transformer_jax.model_options import LAYER_FIELDS
from transformer_jax.models.effect import Described, attention_in_effect, options_in_effect
from transformer_jax.paths import by_path
from transformer_jax.placement import put
from transformer_jax.processes import whole
from transformer_jax.training.loading import load_run

# Fields that change the computation but no shape. Masks and stretched rotations are left to the
# user, whose aim may be a longer context or a window.
_UNSEEN_IN_SHAPES = (
    *("num_heads", "attention", "attention_scale", "query_key_norm", "feed_forward", "wiring"),
    *("parametrisation", "norm", "embedding_norm", "activation", "position", "scale_embeddings"),
    *("scale_logits", "cell", "distinct_blocks", "sharing", "skips", "logits_soft_cap"),
    *("logits_gain", "mixer", "values", "head_output", "convolution", "stem"),
)
_OPTIONS_UNSEEN = (
    *("attention", "feed_forward", "wiring", "parametrisation", "norm", "position"),
    *("mixer", "values", "head_output", "convolution", "stem"),
)
_STRETCHING = (
    *("scaling", "factor", "balance", "original_length", "low_freq_factor", "high_freq_factor"),
    *("fast_turns", "slow_turns", "gain"),
)
_EMBEDDING = "token_embedding/embedding"
_HEAD = ("head/kernel", "head/bias")
_TOKEN_AXES = {_EMBEDDING: 0, "output/kernel": 1}
_TOKEN_AXES |= dict.fromkeys(("output_bias/bias", "logits_bias/bias", "logits_bias"), 0)


def start_from(
    model: Any, params: Any, initial: ConfigDict, task: Any, allow: Collection[str] = ()
) -> tuple[Any, list[str]]:
    """Returns `params` with values replaced by weights that a config names, and remarks on these.

    `params` are freshly drawn; `initial` is the config's section of that name; `task` may have a
    tokenizer and classes. The modules `allow` may be imported for a run that holds the weights.

    Raises:
      InvalidInput: Weights or vectors cannot be read, or do not match the model.
    """
    remarks = []
    if initial.weights is not None:
        params, remark = _from_weights(model, params, initial.weights, task, allow)
        remarks.append(remark)
    if initial.word_vectors is not None:
        params, remark = _from_word_vectors(params, initial.word_vectors, task.tokenizer)
        remarks.append(remark)
    return params, remarks


def _from_weights(
    model: Any, params: Any, path: str, task: Any, allow: Collection[str]
) -> tuple[Any, str]:
    """Returns `params` with values replaced by the stored arrays at the same paths, and a remark.

    A head is matched by the names of classes. Arrays of equal shapes may belong to different
    computations, e.g. with two heads or four, so fields that affect no shape must be equal too.
    """
    tokenizer, classes = getattr(task, "tokenizer", None), getattr(task, "classes", ())
    their_model, their_params, named = _read_weights(path, tokenizer, allow)

    def refuse(why: str, lines: Sequence[str] = ()) -> NoReturn:
        raise InvalidInput("\n".join([f"initial.weights={path}: {why}", *lines]))

    if different := _different(their_model, model):
        refuse("the stored model computes differently", different[:6])
    own, given = by_path(params), by_path(their_params)
    stored_tokenizer, cut = None, {}
    if tokenizer and is_of_huggingface(path):
        file = folder_of(path) / "tokenizer.json"
        stored_tokenizer = load_tokenizer(file) if file.is_file() else None
    if stored_tokenizer and tokenizer and fingerprint(stored_tokenizer) == fingerprint(tokenizer):
        cut = _without_spare_rows(own, given)
    given |= cut
    is_other = bool(named and classes) and sorted(named) != sorted(classes)
    if named and classes and not is_other:
        order = np.array([named.index(name) for name in classes])
        given |= {n: given[n][..., order] for n in _HEAD if n in given}
    if is_other or any(own[n].shape != given[n].shape for n in _HEAD if n in own and n in given):
        given = {name: array for name, array in given.items() if name not in _HEAD}  # new classes
    shared = [name for name in own if name in given]
    in_part = {name.rpartition("/")[0] for name in shared} - {""}  # modules given in part or whole
    lost = [n for n in given if n not in own and n.rpartition("/")[0] in in_part]
    if lost:  # a bias, for example
        remedy = "give this model these arrays too, e.g. with model.use_bias=True"
        lines = _first_lines([f"  {name}" for name in lost])
        refuse("modules of the stored model have arrays that this model lacks", [*lines, remedy])
    wrong = [
        f"  {name}: {given[name].shape} there, {own[name].shape} here"
        for name in shared
        if own[name].shape != given[name].shape
    ]
    if wrong or not shared:
        lines = _first_lines(wrong) or [f"  there {', '.join(list(given)[:4])}, ..."]
        remedy = "set model.width, depth, mlp_dim, max_length, ... and data.tokenizer as stored"
        if holds_weights(Path(path)):
            remedy += f", or begin with --config={path}"
            rows, stored = (len(arrays.get(_EMBEDDING, ())) for arrays in (own, given))
            if tokenizer and rows != stored and (rows > stored or not stored_tokenizer):
                needs = f"needs {rows} rows" if stored_tokenizer else "is missing"
                remedy = f"tokenizer.json {needs}; the embedding has {stored} rows"
        refuse("these weights do not match this model", [*lines, remedy])
    if stored_tokenizer and tokenizer and _EMBEDDING in shared:
        tokens = [[n] for n in range(min(stored_tokenizer.vocab_size, tokenizer.vocab_size))]
        if any(stored_tokenizer.decode(token) != tokenizer.decode(token) for token in tokens):
            file = folder_of(path) / "tokenizer.json"
            refuse(f"its embedding is for different tokens; set data.tokenizer={file}")
    taken = {name: _in_place_of(own[name], given[name]) for name in shared}
    fresh = sorted({name.split("/")[0] for name in own if name not in given})
    unused = sorted({name.split("/")[0] for name in given if name not in own})
    remark = f"weights of {path}: {len(shared)} of {len(own)} arrays"
    remark += f"; new: {', '.join(fresh)}" if fresh else ""
    remark += f"; not used: {', '.join(unused)}" if unused else ""
    remark += f"; without spare rows: {', '.join(cut)}" if cut else ""
    return unflatten_dict(own | taken, sep="/"), remark


def _first_lines(lines: list[str]) -> list[str]:
    more = len(lines) - 4
    return [*lines[:4], f"  ... and {more} more"] if more > 0 else lines


def _without_spare_rows(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the given embeddings that have more rows than `own`, cut to the rows of `own`."""
    fits = {}
    for name, axis in _TOKEN_AXES.items():
        if name in own and name in given and own[name].shape[axis] < given[name].shape[axis]:
            array = jnp.take(given[name], jnp.arange(own[name].shape[axis]), axis)
            if array.shape == own[name].shape:
                fits[name] = array
    return fits


def _different(their_model: Any, our_model: Any) -> list[str]:
    """Returns lines about differences in computation; of differing blocks, only about the first."""
    models = (their_model, our_model)
    have_blocks = all(hasattr(model, "options") for model in models)  # recurrent models have none
    if not have_blocks or not any(model.options.layers for model in models):
        return _different_fields(their_model, our_model)
    lines = _different_fields(their_model, our_model, without=LAYER_FIELDS)
    pairs = zip(*(Described(model).layers() for model in models), strict=False)
    for number, ((_, their_block), (_, our_block)) in enumerate(pairs):
        if of_block := _different_fields(their_block, our_block):
            return lines + [f"{line}, in block {number}" for line in of_block]
    return lines


def _different_fields(their_model: Any, our_model: Any, without: Collection[str] = ()) -> list[str]:
    their_values, our_values = _unseen_in_shapes(their_model), _unseen_in_shapes(our_model)
    return [
        f"  model.{field}: {value} there, {our_values[field]} here"
        for field, value in their_values.items()
        if field in our_values
        and field.partition(".")[0] not in without
        and not (value == our_values[field] or _differ_by_rounding(value, our_values[field]))
    ]


def _differ_by_rounding(*values: Any) -> bool:
    """Returns whether two values are floats that are equal up to rounding to float32."""
    return all(isinstance(v, float) for v in values) and math.isclose(*values, rel_tol=1e-6)


def _unseen_in_shapes(model: Any) -> dict[str, Any]:
    """Returns options that change results without changing shapes, by their names in a config."""
    has_blocks = hasattr(model, "options")
    if has_blocks and not isinstance(model, Described):
        model = Described(model)
    fields = {n: getattr(model, n) for n in _UNSEEN_IN_SHAPES if hasattr(model, n)}
    if has_blocks:
        fields["attention"] = attention_in_effect(model.options)
        for family in _OPTIONS_UNSEEN:
            for name, value in options_in_effect(model.options, family).items():
                if name not in _STRETCHING:
                    fields[f"{family}_options.{name}"] = value
    return fields


def _read_weights(
    path: str, tokenizer: Tokenizer | None, allow: Collection[str]
) -> tuple[Any, Any, list[str]]:
    """Returns the model to which stored weights belong, its parameters, and its classes' names."""
    if not (Path(path) / "checkpoints").is_dir():
        from transformer_jax.interop import from_huggingface

        labels = read_settings(folder_of(path)).get("id2label")
        labels = labels if isinstance(labels, dict) else {}
        names = [str(labels.get(str(n), f"LABEL_{n}")) for n in range(len(labels))]
        return *from_huggingface(path), [n for n in names if n != f"LABEL_{names.index(n)}"]
    run = load_run(path, say=lambda text: None, allow=allow)
    if run.tokenizer and tokenizer and fingerprint(run.tokenizer) != fingerprint(tokenizer):
        raise InvalidInput(
            f"initial.weights={path}: trained with a different tokenizer; set "
            f"data.tokenizer={Path(path) / 'tokenizer.json'}"
        )
    return run.model, run.params, list(run.classes)


def _from_word_vectors(params: Any, path: str, tokenizer: Tokenizer | None) -> tuple[Any, str]:
    """Returns parameters with the word vectors of a file as rows of the embedding, and a remark."""
    own = by_path(params)
    if _EMBEDDING not in own or tokenizer is None:
        raise InvalidInput(f"initial.word_vectors={path}: the model has no token embedding")
    table = np.array(whole(own[_EMBEDDING]))
    wanted: dict[str, list[int]] = {}
    for token in range(tokenizer.vocab_size):
        wanted.setdefault(tokenizer.decode([token]).strip(), []).append(token)
    found = read_word_vectors(Path(path), set(wanted), table.shape[1])
    if not found:
        raise InvalidInput(f"initial.word_vectors={path}: no word of the vocabulary is in the file")
    for word, vector in found.items():
        table[wanted[word]] = vector
    own[_EMBEDDING] = _in_place_of(own[_EMBEDDING], table)
    remark = f"word vectors of {path}: {len(found):,} of {len(wanted):,} words"
    return unflatten_dict(own, sep="/"), remark


def read_word_vectors(path: Path, wanted: set[str], width: int) -> dict[str, np.ndarray]:
    """Returns vectors [width] float32 of wanted words from a file in word2vec's text format.

    A line has a word and its numbers; the first line may state sizes. The file may be a .gz file.

    Raises:
      InvalidInput: There is no such file, or a line is not a word and `width` finite numbers.
    """
    if not path.is_file():
        raise InvalidInput(f"initial.word_vectors={path}: no such file")
    vectors, count, number = {}, None, 0
    for number, line in enumerate(lines_of(path), start=1):
        word, *values = line.rstrip("\r\n ").split(" ")
        if number == 1 and len(values) == 1 and word.isdigit():
            count = int(word)  # and the width
            continue
        if len(values) != width:
            raise InvalidInput(
                f"{path}: line {number}: {len(values)} numbers after {word[:30]!r}; expected "
                f"model.width={width}"
            )
        if word in vectors:
            raise InvalidInput(f"{path}: line {number}: {word!r} stands twice")
        if word in wanted:
            try:
                vector = np.array(values, np.float32)
            except ValueError as error:
                raise InvalidInput(f"{path}: line {number}: {error}") from error
            if not np.isfinite(vector).all():
                raise InvalidInput(f"{path}: line {number}: a value is not finite")
            vectors[word] = vector
    if count not in (None, number - 1):
        raise InvalidInput(f"{path}: line 1 states {count} words; found {number - 1}")
    return vectors


def _in_place_of(own: Any, given: Any) -> Any:
    """Returns `given` with the dtype of `own` and its placement on one device or several."""
    array = jnp.asarray(given, own.dtype)
    sharding = getattr(own, "sharding", None)
    if sharding is None or len(sharding.device_set) == 1:
        return array
    return put(np.asarray(array), sharding)
