"""Import and export of Hugging Face weights, for the architectures in ARCHITECTURES."""

import dataclasses
import fnmatch
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer_jax.errors import InvalidInput, in_one_line, require
from transformer_jax.hub import folder_of, read_settings
from transformer_jax.interop import bart, bert, gemma, gpt2, llama, neox, t5, vit
from transformer_jax.interop.architecture import Architecture, in_effect
from transformer_jax.interop.defaults import CLASSIFIER_RATES
from transformer_jax.model_options import LAYER_FIELDS
from transformer_jax.models import Decoder, EncoderDecoder
from transformer_jax.models.effect import Described, attention_in_effect, options_in_effect

# Class of Hugging Face transformers -> its conversions.
ARCHITECTURES = {
    **gpt2.ROWS,
    **llama.ROWS,
    **gemma.ROWS,
    **neox.ROWS,
    **bert.ROWS,
    **t5.ROWS,
    **vit.ROWS,
    **bart.ROWS,
}
_INDEX = "model.safetensors.index.json"
# Fields that affect training or speed, but not what a model computes.
_OF_TRAINING = (
    *("dropout_rate", "attention_dropout_rate", "stochastic_depth", "init_std"),
    *("initialisation", "initialisation_options", "dtype", "scan_layers", "remat"),
    *("remat_options", "name", "parent", "variant"),
)


class Pretrained(NamedTuple):
    """A Linen module and its parameters, float32 (float64 if theirs are and jax enables it)."""

    model: Any
    params: Any


class Exported(NamedTuple):
    """Content of config.json, and our weights under Hugging Face's names."""

    config: dict[str, Any]
    state: dict[str, np.ndarray]


def from_huggingface(model_or_path: Any) -> Pretrained:
    """Returns a model with weights from Hugging Face transformers.

    Args:
      model_or_path: A folder with config.json and model.safetensors (one or several files), a model
        object of transformers, or OWNER/NAME on the hub (needs huggingface_hub and the network).
    Returns:
      The model and its parameters. GPT2Model, GPT2LMHeadModel, and the ForCausalLM classes of GPTJ,
      GPTNeoX, OPT, Bloom, Llama, Mistral, Phi3, Qwen2, Qwen3, SmolLM3, Gemma2 and Gemma3 become a
      Decoder; the Model and ForMaskedLM classes of Bert, Roberta and DistilBert,
      BertForSequenceClassification and T5EncoderModel an Encoder; ViTModel and
      ViTForImageClassification a VisionTransformer; MarianMTModel and the ForConditionalGeneration
      classes of Bart and T5 an EncoderDecoder. Bodies without a head return hidden vectors.
    Raises:
      InvalidInput: The architecture or an option is not supported, or arrays are missing,
        unknown or of the wrong shape; the message lists them.
    """
    if hasattr(model_or_path, "state_dict"):
        origin = type(model_or_path).__name__
        held = model_or_path.state_dict()
        lost = [name for name, value in held.items() if getattr(value, "is_meta", True)]
        if lost or not hasattr(model_or_path, "config"):
            told = f"expected a model of transformers and arrays in memory: {_few(lost)}"
            raise InvalidInput(f"{origin}: {told}")
        config = model_or_path.config.to_dict() | {"architectures": [origin]}
        config["quantization_config"] = None  # the arrays in memory count
        state = {name: _numbers(tensor) for name, tensor in held.items()}
    else:
        folder, origin = folder_of(model_or_path), str(model_or_path)
        config, state = read_settings(folder), _read_arrays(folder)
    name, model = model_of(config, origin)
    row = ARCHITECTURES[name]
    entries = row.entries(Described(model))
    expected = {entry.their_name for entry in entries}
    state = _plain_names(row, state, expected, origin, config.get("tie_word_embeddings"))
    for constant, values in row.constants(model).items():
        theirs = state.pop(constant, values)
        if theirs.shape != values.shape or not np.allclose(theirs, values, atol=1e-3):
            raise InvalidInput(f"{origin}: {constant} differs from the values that {name} fixes")
    _refuse_names("arrays", set(state), expected, origin)
    if whole := sorted(name for name, array in state.items() if array.dtype.kind != "f"):
        raise InvalidInput(f"{origin}: expected floating-point numbers in {_few(whole)}")
    most = np.finfo(np.float32).max
    if broken := sorted(name for name, array in state.items() if not (abs(array) <= most).all()):
        raise InvalidInput(f"{origin}: non-finite values in {_few(broken)}")
    try:
        shapes = _shapes_of(model)
    except (TypeError, ValueError) as error:  # sizes that our modules do not accept
        raise InvalidInput(f"{origin}: {error}") from error
    flat = {}
    for entry in entries:
        theirs = state[entry.their_name]
        ends = np.cumsum([shapes[path][-1] for path in entry.our_paths])
        try:
            parts = np.split(entry.layout.to_ours(theirs), ends[:-1], axis=-1)
        except ValueError as error:  # numpy's own words name no array
            where = f"{entry.their_name}: {theirs.shape} has no part of each of {entry.our_paths}"
            raise InvalidInput(f"{origin}: arrays do not match config.json\n  {where}") from error
        flat |= {path: jnp.asarray(part) for path, part in zip(entry.our_paths, parts, strict=True)}
    if row.zeros:
        lacking = [p for p in shapes.keys() - flat.keys() if re.fullmatch(row.zeros, p)]
        flat |= {path: jnp.zeros(shapes[path]) for path in lacking}
    _refuse_shapes(shapes, flat, origin)
    return Pretrained(model, unflatten_dict(flat, sep="/"))


def model_of(settings: Mapping[str, Any], origin: str) -> tuple[str, Any]:
    """Returns the architecture named by a config.json, and our model for it, without weights.

    Raises:
      InvalidInput: The architecture or an option of `origin` is not supported.
    """
    name = str((settings.get("architectures") or ["no architecture"])[0])
    if name not in ARCHITECTURES:
        allowed = ", ".join(ARCHITECTURES)
        raise InvalidInput(f"{origin}: architectures: {name}: expected one of {allowed}")
    row = ARCHITECTURES[name]
    kind = settings.get("model_type")
    if kind not in (None, row.model_type):
        raise InvalidInput(f"{origin}: config.json: model_type={kind}: expected {row.model_type}")
    required = {"quantization_config": None, "transformers_weights": None, **row.required}
    if row.model in (Decoder, EncoderDecoder):
        required["is_causal"] = True
    for key, value in required.items():
        is_off = not value and settings.get(key) is None  # null is off
        if key in settings and settings[key] != value and not is_off:
            raise InvalidInput(f"{origin}: config.json: {key}={settings[key]}: expected {value}")
    try:
        model = row.make(settings)
        unread = row.unread(settings)
        if name.endswith("ForSequenceClassification"):
            unread += filter(settings.get, CLASSIFIER_RATES)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        if isinstance(error, InvalidInput):
            raise InvalidInput(f"{origin}: {error}") from error
        reason = f"it has no {error}" if isinstance(error, KeyError) else in_one_line(error)
        raise InvalidInput(f"{origin}: config.json: {reason}") from error
    if unread:
        told = ", ".join(f"{key}={str(settings[key])[:40]}" for key in unread)
        warnings.warn(f"{origin}: config.json: without effect here: {told}", stacklevel=3)
    return name, model


def to_huggingface(
    model: Any,
    params: Any,
    folder: str | Path | None = None,
    architecture: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Exported:
    """Returns our parameters with the names and layouts of Hugging Face transformers.

    If only an architecture with biases or text types fits, zeros are written for those.

    Args:
      model: A Decoder, Encoder, VisionTransformer or EncoderDecoder that one of theirs computes.
      params: Its parameters.
      folder: If given, receives config.json and model.safetensors, which
        `transformers.AutoModel...from_pretrained(folder)` reads.
      architecture: A name in ARCHITECTURES; if None, the one with the model's head.
      settings: Entries of config.json to add or replace, e.g. eos_token_id.
    Raises:
      InvalidInput: None of their architectures computes this model, and the message names the
        differing fields; or the folder already contains config.json or weights.
    """
    name, larger = _architecture_of(model, architecture)
    row, described = ARCHITECTURES[name], Described(larger)
    config = {"architectures": [name], **row.describe(described), "dtype": "float32"}
    if isinstance(model, Decoder):  # their defaults end a text at a token of a different model
        config |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config |= settings or {}
    flat = {path: np.asarray(leaf) for path, leaf in flatten_dict(params, sep="/").items()}
    if larger is not model:
        shapes = _shapes_of(larger)
        for path in shapes.keys() - _shapes_of(model).keys():
            flat.setdefault(path, np.zeros(shapes[path], np.float32))
    for path in [path for path in flat if row.zeros and re.fullmatch(row.zeros, path)]:
        if flat.pop(path).any():
            raise InvalidInput(f"{name} has no {path}, which is not 0 here")
    entries = row.entries(described)
    expected = {path for entry in entries for path in entry.our_paths}
    _refuse_names("parameters", set(flat), expected, "this model")
    has_head = any(entry.their_name.startswith(row.heads) for entry in entries) or row.tied
    body = row.prefix if has_head else ""
    state = {}
    for entry in entries:
        ours = np.concatenate([flat[path] for path in entry.our_paths], axis=-1)
        array = np.ascontiguousarray(entry.layout.to_theirs(ours), np.float32)
        prefix = "" if entry.their_name.startswith(row.heads) else body
        first = state.setdefault(prefix + entry.their_name, array)
        if not np.array_equal(first, array, equal_nan=True):
            raise InvalidInput(
                f"{name} has one array, {entry.their_name}, for {entry.our_paths[0]} and another, "
                "which differ here"
            )
    if folder is not None:
        _write(Path(folder).expanduser(), config, state)
    return Exported(config, state)


def _numbers(tensor: Any) -> np.ndarray:
    """Returns a torch tensor as a numpy array; floats below 32 bits become float32."""
    is_half = tensor.is_floating_point() and tensor.element_size() < 4
    return (tensor.float() if is_half else tensor).detach().cpu().numpy()


def _plain_names(
    row: Architecture,
    state: Mapping[str, np.ndarray],
    expected: set[str],
    origin: str,
    is_tied: bool | None,
) -> dict[str, np.ndarray]:
    """Returns their arrays by plain name: no prefixes, copies or unused arrays; renames applied.

    A tied copy that a file leaves out is added if our model has it as a separate array.
    """
    plain = {}
    for name, array in state.items():
        name = name.removeprefix(row.prefix)
        for pattern, replacement in row.renames.items():
            name = re.sub(pattern, replacement, name)
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in row.not_read):
            plain[name] = array
    for copy, original in row.tied.items():
        if copy in expected and original in plain and is_tied:
            plain.setdefault(copy, plain[original])
        elif copy in plain.keys() - expected and original in plain:
            if not np.array_equal(plain[copy], plain[original]):
                raise InvalidInput(f"{origin}: {copy} differs from {original}, to which it is tied")
            del plain[copy]
    return plain


def _refuse_names(what: str, names: set[str], expected: set[str], origin: str) -> None:
    missing, unknown = sorted(expected - names), sorted(names - expected)
    if missing or unknown:
        raise InvalidInput(
            f"{origin}: names of {what} do not match\n"
            f"  missing ({len(missing)}): {_few(missing)}\n"
            f"  unknown ({len(unknown)}): {_few(unknown)}"
        )


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:6]) or "none"
    return f"{shown}, ..." if len(names) > 6 else shown


def _shapes_of(model: Any) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each parameter by path."""
    variables = jax.eval_shape(model.init, jax.random.key(0), **model.example_inputs())
    return {p: leaf.shape for p, leaf in flatten_dict(variables["params"], sep="/").items()}


def _refuse_shapes(
    expected: Mapping[str, tuple[int, ...]], flat: Mapping[str, jax.Array], origin: str
) -> None:
    wrong = [
        f"  {path}: {flat[path].shape}, expected {shape}" if path in flat else f"  {path}: missing"
        for path, shape in expected.items()
        if path not in flat or flat[path].shape != shape
    ]
    if wrong:
        raise InvalidInput("\n".join([f"{origin}: arrays do not match config.json", *wrong[:6]]))


def _architecture_of(model: Any, architecture: str | None) -> tuple[str, Any]:
    """Returns the first architecture whose description of the model gives an equal model again.

    Returns:
      The architecture's name, and the model, with biases or text types if only theirs have these.
    Raises:
      InvalidInput: No architecture fits.
    """
    if architecture is not None and architecture not in ARCHITECTURES:
        allowed = ", ".join(ARCHITECTURES)
        raise InvalidInput(f"architecture={architecture}: expected one of {allowed}")
    names = [architecture] if architecture else list(ARCHITECTURES)
    fitting = [name for name in names if isinstance(model, ARCHITECTURES[name].model)]
    if not fitting:
        allowed = sorted({row.model.__name__ for row in ARCHITECTURES.values()})
        raise InvalidInput(f"{type(model).__name__}: expected one of {', '.join(allowed)}")
    models = [model]  # and equivalent ones with more parameters, which are 0
    if not model.options.use_bias:
        models.append(model.with_options(use_bias=True))
    if getattr(model, "num_types", None) == 0 and model.vocab_size is not None:
        models += [made.with_options(num_types=1) for made in models]
    found: list[tuple[str, dict[str, tuple]]] = []
    refused = None
    for made in models:
        for name in fitting:
            try:
                different = _different(made, ARCHITECTURES[name])
            except InvalidInput as error:  # a value that this architecture has no name for
                refused = refused or error
                continue
            if not different:
                return name, made
            found.append((name, different))
    if refused and not found:
        raise refused
    name, different = min(found, key=lambda pair: len(pair[1]))
    lines = [f"  {field}: {a} here, {b} if exported" for field, (a, b) in different.items()]
    raise InvalidInput(
        "\n".join([f"{name}, the closest choice, does not compute this model:", *lines[:6]])
    )


def _different(model: Any, row: Architecture) -> dict[str, tuple[Any, Any]]:
    """Returns the fields that export and import would change, with values before and after."""
    exported = row.make(row.describe(Described(model)))
    before, after = Described(model), Described(exported)
    has_types = bool(model.options.layers or exported.options.layers)
    apart = ("layers", "layer_types", "options", *(LAYER_FIELDS if has_types else ()))
    names = [f.name for kind in (exported, exported.options) for f in dataclasses.fields(kind)]
    different = _compared(before, after, [name for name in names if name not in apart])
    if has_types:  # only the first block that differs
        pairs = zip(before.layers(), after.layers(), strict=False)
        for number, ((_, one), (_, other)) in enumerate(pairs):
            if in_block := _compared(one, other, LAYER_FIELDS):
                return different | {f"{f} of block {number}": v for f, v in in_block.items()}
    return different


def _compared(before: Described, after: Described, fields: Iterable[str]) -> dict[str, tuple]:
    return {
        field: (getattr(before, field), getattr(after, field))
        for field in fields
        if field not in _OF_TRAINING and _resolved(before, field) != _resolved(after, field)
    }


def _resolved(model: Described, field: str) -> Any:
    """Returns a field's value in a form in which equal computations have equal values."""
    if field == "attention":
        return attention_in_effect(model.options)
    if field == "mask" and isinstance(model.model, Decoder) and model.options.mask == "causal":
        return "full"  # any decoder's mask is causal too
    if field.endswith("_options"):
        return options_in_effect(model.options, field.removesuffix("_options"))
    return in_effect(model, field)


def _read_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of all weight files, by name; floats below 32 bits become float32."""
    load_file = _safetensors().load_file
    files = _files_of(folder)
    if not files:
        raise InvalidInput(f"{folder}: no .safetensors file; .bin files are not supported")
    if (folder / "adapter_config.json").is_file():
        warnings.warn(f"{folder}: the adapter in it is not applied", stacklevel=3)
    state: dict[str, np.ndarray] = {}
    for file in files:
        try:
            arrays = load_file(file)
        except Exception as error:  # the library raises its own SafetensorError
            is_pointer = file.is_file() and file.stat().st_size < 1000
            hint = "; a pointer of git-lfs? Fetch the file: git lfs pull" if is_pointer else ""
            hint = "; floats of 8 bits are not supported" if "float8" in str(error) else hint
            raise InvalidInput(f"{file}: not readable: {error}{hint}") from error
        if len(state) + len(arrays) > len(state | arrays) and not (folder / _INDEX).is_file():
            raise InvalidInput(f"{file}: its arrays are in {files[0]} too; remove one of the two")
        for name, array in arrays.items():
            is_half = array.dtype.kind not in "iub" and array.dtype.itemsize < 4
            state[name] = array.astype(np.float32) if is_half else array
    return state


def _files_of(folder: Path) -> list[Path]:
    """Returns a folder's weight files: like transformers, one for all before those of an index."""
    whole, index = folder / "model.safetensors", folder / _INDEX
    if whole.is_file() or not index.is_file():
        return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return [folder / Path(name).name for name in sorted(named)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{index}: not a valid weight index: {error!r}") from error


def _write(folder: Path, config: dict[str, Any], state: dict[str, np.ndarray]) -> None:
    save_file = _safetensors().save_file
    if (folder / "config.json").exists() or any(folder.glob("*.safetensors")):
        raise InvalidInput(f"{folder}: contains config.json or weights; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder}: {error.strerror}") from error
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(config, indent=1) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def _safetensors() -> Any:
    require("safetensors", "reading and writing Hugging Face weights", "huggingface")
    import safetensors.numpy

    return safetensors.numpy
