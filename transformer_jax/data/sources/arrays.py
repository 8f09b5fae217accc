"""Arrays with labels: images and sequences of vectors, from npz, IDX, CIFAR and picture files."""

import difflib
import functools
import hashlib
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.sources.disk import visible
from transformer_jax.data.sources.files import EMBEDDED, OwnSource, open_binary, refuse_missing
from transformer_jax.errors import InvalidInput, require

_PICTURES = ".png, .jpg, .webp, .tif ..."
_BACKGROUND = (255, 255, 255, 255)  # of transparent pixels
_IDX_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
_PARTS = ("train", "test", "val", "valid", "validation", "dev", "training", "testing")
_CIFAR_ROW = 1 + 3 * 32 * 32


class Arrays(NamedTuple):
    """Examples with labels, and the names of their classes.

    Attributes:
      inputs: Images [N, height, width, C] uint8, or vectors [N, L, F] float32.
      lengths: Number of valid vectors in each example, [N] int; None if all L are valid.
      labels: Class indices, [N] int.
      classes: Names of the classes.
      first_test: Index of the first example of the source's own test set, or None.
      sha256: Hash of inputs and labels.
      remarks: What was left out, one line each.
    """

    inputs: np.ndarray
    lengths: np.ndarray | None
    labels: np.ndarray
    classes: tuple[str, ...]
    first_test: int | None
    sha256: str
    remarks: tuple[str, ...] = ()


def load_images(source: str) -> Arrays:
    """Reads images with labels.

    Args:
      source: An embedded name; an .npz file with `images` and `labels`, or with `train_images`,
        `train_labels`, `test_images`, `test_labels` (images [N, height, width] or [N, height,
        width, C]; optionally `classes`, the class names); a folder of IDX files as for MNIST and
        Fashion-MNIST; a folder of CIFAR-10's binary version; a folder with one folder of pictures
        per class, possibly in its folders `train` and `test`; or an OwnSource of such arrays.
    Raises:
      InvalidInput: There is no such source, or a file in it is invalid.
    """
    refuse_missing(source, "images")
    path, remarks = EMBEDDED["images"].get(source, Path(source)), list[str]()
    if isinstance(source, OwnSource):
        arrays = source.read()
    elif path.is_file():
        arrays = _read_npz(path)
    elif _find_idx(path, _IDX_FILES["train_images"]):
        arrays = _read_idx_folder(path, remarks)
    elif (path / "data_batch_1.bin").is_file():
        arrays = _read_cifar_folder(path, remarks)
    elif any(map(_is_picture, visible(path))):
        arrays = _read_picture_folder(path, remarks)
    else:
        raise InvalidInput(
            f"data.source={source}: expected an .npz file, IDX files ({_IDX_FILES['train_images']} "
            "...), CIFAR-10's binary version (data_batch_1.bin ...), or one folder of pictures "
            f"({_PICTURES}) for each class"
        )
    found = _joined(str(path), arrays, "images", _as_images)
    return found._replace(remarks=(*found.remarks, *remarks))


def load_vectors(source: str) -> Arrays:
    """Reads sequences of vectors with labels, such as time series or features.

    Args:
      source: An OwnSource or an .npz file with `vectors` [N, L, F] and `labels` [N], or with each
        of them prefixed by `train_` and by `test_`; optionally also `lengths` [N] (number of valid
        vectors), prefixed likewise, and `classes`, the class names.
    Raises:
      InvalidInput: There is no such source, or it is invalid.
    """
    refuse_missing(source, "vectors")
    arrays = source.read() if isinstance(source, OwnSource) else _read_npz(Path(source))
    return _joined(source, arrays, "vectors", _as_vectors)


def _joined(
    name: str, arrays: Any, kind: str, check: Callable[[str, np.ndarray], np.ndarray]
) -> Arrays:
    """Returns checked Arrays in which the source's test examples follow its training examples."""
    if not isinstance(arrays, Mapping):
        raise InvalidInput(f"{name}: expected a dict of arrays, got {type(arrays).__name__}")
    prefixes = ("train_", "test_") if f"train_{kind}" in arrays else ("",)
    needed = [prefix + part for prefix in prefixes for part in (kind, "labels")]
    taken = [*needed, *(f"{prefix}lengths" for prefix in prefixes), "classes"]
    unread = sorted(arrays.keys() - set(taken))
    for other in unread:
        is_part = other.lower().startswith(_PARTS) or {*other.lower().split("_")} & {*_PARTS}
        if is_part or difflib.get_close_matches(other, taken, cutoff=0.85):
            raise InvalidInput(
                f"{name}: array {other} would not be read; expected {', '.join(taken)}"
                + ("" if prefixes[0] else ", or each of them with train_ and with test_ in front")
                + "; validation is drawn from the training examples"
            )
    missing = [array for array in needed if array not in arrays]
    if missing:
        raise InvalidInput(
            f"{name}: expected arrays named {', '.join(needed)}; missing {', '.join(missing)}, "
            f"found {', '.join(arrays) or 'none'}"
        )
    parts = [check(f"{name}: {prefix}{kind}", arrays[prefix + kind]) for prefix in prefixes]
    lengths = [arrays[prefix + "lengths"] for prefix in prefixes if f"{prefix}lengths" in arrays]
    if len(lengths) not in (0, len(prefixes)):
        raise InvalidInput(f"{name}: expected train_lengths and test_lengths, or neither")
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise InvalidInput(
            f"{name}: expected training and test examples of the same shape, got {sorted(shapes)}"
        )
    labels = [arrays[prefix + "labels"] for prefix in prefixes]
    for part, mine in zip(parts, labels, strict=True):
        if len(part) == 0:
            raise InvalidInput(f"{name}: expected examples, found none")
        if mine.shape != part.shape[:1] or not np.issubdtype(mine.dtype, np.integer):
            raise InvalidInput(
                f"{name}: expected one integer label for each of {len(part)} examples, got "
                f"{mine.dtype} {mine.shape}"
            )
    inputs, numbers = np.concatenate(parts), np.concatenate(labels)
    least, most = int(numbers.min()), int(numbers.max())
    if "classes" not in arrays and most >= len(numbers):
        raise InvalidInput(
            f"{name}: label {most} among {len(numbers)} examples: expected labels 0, 1, 2, ..."
        )
    classes = tuple(map(str, np.atleast_1d(arrays.get("classes", range(most + 1)))))
    if least < 0 or most >= len(classes):
        raise InvalidInput(f"{name}: labels {least} to {most}; expected 0 to {len(classes) - 1}")
    counts = np.concatenate(lengths) if lengths else None
    if counts is not None:
        longest = inputs.shape[1]
        if counts.shape != numbers.shape or counts.min() < 1 or counts.max() > longest:
            raise InvalidInput(f"{name}: expected lengths from 1 to {longest}, one per example")
        if not np.issubdtype(counts.dtype, np.integer):
            raise InvalidInput(f"{name}: expected integer lengths, got {counts.dtype}")
    digest = hashlib.sha256(f"{inputs.shape} {classes} {len(parts[0])}".encode())
    for array in (inputs, numbers.astype(np.int64), counts):
        digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    first_test = len(parts[0]) if len(parts) > 1 else None
    told = (f"{name}: arrays not read: {', '.join(unread)}",) * bool(unread)
    labels, digest = numbers.astype(np.int32), digest.hexdigest()
    return Arrays(inputs, counts, labels, classes, first_test, digest, told)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, TypeError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path}: not a readable .npz file of arrays: {error}") from error


def _as_images(name: str, images: np.ndarray) -> np.ndarray:
    images = images[..., None] if images.ndim == 3 else images
    if images.ndim != 4 or images.dtype != np.uint8:
        raise InvalidInput(
            f"{name}: expected uint8 [N, height, width] or [N, height, width, C], got "
            f"{images.dtype} {images.shape}"
        )
    return images


def _as_vectors(name: str, vectors: np.ndarray) -> np.ndarray:
    real = np.issubdtype(vectors.dtype, np.integer) or np.issubdtype(vectors.dtype, np.floating)
    if vectors.ndim != 3 or not real:
        raise InvalidInput(
            f"{name}: expected real numbers [N, L, F], got {vectors.dtype} {vectors.shape}"
        )
    if not np.isfinite(vectors).all():
        example = int(np.argwhere(~np.isfinite(vectors))[0][0])
        raise InvalidInput(f"{name}: example {example} contains a value that is not finite")
    with np.errstate(over="ignore", invalid="ignore"):
        exact, vectors = vectors, vectors.astype(np.float32)
        error, spread = np.abs(vectors - exact), exact.std((0, 1))
    far = error > 1e-3 * np.where(spread > 0, spread, np.inf)  # e.g. a sensor's large offset
    changed = (error > 0) & (far | (np.trunc(exact) == exact))  # whole numbers, e.g. time stamps
    if changed.any():
        raise InvalidInput(
            f"{name}: {exact[changed][0]} would become {vectors[changed][0]:.0f}, since vectors "
            "are float32; subtract an offset, or scale the numbers"
        )
    return vectors


def _find_idx(folder: Path, name: str) -> Path | None:
    found = (folder / file for file in (name, f"{name}.gz"))
    return next((path for path in found if path.is_file()), None)


def _read_idx_folder(folder: Path, remarks: list[str]) -> dict[str, np.ndarray]:
    paths = {name: _find_idx(folder, file) or folder / file for name, file in _IDX_FILES.items()}
    for path in paths.values():
        if not path.is_file():
            raise InvalidInput(f"{path} (or {path.name}.gz) is missing")
    remarks += _left_out(folder, {path.name for path in paths.values()})
    return {name: _read_idx(path) for name, path in paths.items()}


def _left_out(folder: Path, read: Collection[str]) -> list[str]:
    """Returns a remark on what else is in a folder, except texts about it."""
    names = sorted(p.name for p in folder.iterdir() if p.suffix not in (".txt", ".html", ".md"))
    names = [name for name in names if name not in read and name[0] not in "._"]
    more = ", ..." * (len(names) > 5)
    return [f"{folder}: left out: {', '.join(names[:5])}{more}"] if names else []


def _read_idx(path: Path) -> np.ndarray:
    """Reads MNIST's IDX format: two zeros, type 8 (uint8), number of axes, sizes, values."""
    try:
        with open_binary(path) as file:
            data = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}") from error
    axes = data[3] if len(data) > 3 else 0
    begin = 4 + 4 * axes
    if data[:3] != b"\0\0\x08" or len(data) < begin:
        raise InvalidInput(f"{path}: expected an IDX file of bytes, got {data[:4]!r} at its start")
    shape = tuple(map(int, np.frombuffer(data, ">i4", axes, 4)))
    if len(data) != begin + int(np.prod(shape)):
        raise InvalidInput(
            f"{path}: expected {begin + int(np.prod(shape))} bytes for {shape}, found {len(data)}"
        )
    return np.frombuffer(data, np.uint8, offset=begin).reshape(shape)


def _read_cifar_folder(folder: Path, remarks: list[str]) -> dict[str, Any]:
    """Reads CIFAR-10's binary version: rows of a label and 3 x 32 x 32 bytes."""
    meta = folder / "batches.meta.txt"
    arrays: dict[str, Any] = {"classes": meta.read_text().split()} if meta.is_file() else {}
    read: list[str] = []
    for part, pattern in (("train", "data_batch_*.bin"), ("test", "test_batch.bin")):
        files = sorted(folder.glob(pattern)) or [folder / pattern]
        read += [file.name for file in files]
        rows = np.concatenate([_read_cifar(file) for file in files])
        arrays[f"{part}_labels"] = rows[:, 0]
        arrays[f"{part}_images"] = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    remarks += _left_out(folder, read)
    return arrays


def _read_cifar(path: Path) -> np.ndarray:
    data = np.fromfile(path, np.uint8) if path.is_file() else np.zeros(0, np.uint8)
    if len(data) == 0 or len(data) % _CIFAR_ROW:
        raise InvalidInput(
            f"{path}: expected rows of {_CIFAR_ROW} bytes (CIFAR-10's binary version), "
            f"found {f'{len(data)} bytes' if path.is_file() else 'no such file'}"
        )
    return data.reshape(-1, _CIFAR_ROW)


def _read_picture_folder(folder: Path, remarks: list[str]) -> dict[str, Any]:
    """Returns the arrays of a folder with a folder of pictures per class; adds remarks."""
    parts = [folder / "train", folder / "test"]
    parts = parts if all(part.is_dir() for part in parts) else [folder]
    classes = sorted(_folders_in(parts[0]))
    others = _folders_in(folder) - {"train", "test"}
    of_parts = [name for name in classes if name.lower() in _PARTS]
    strays = sorted(others) if len(parts) > 1 else of_parts
    if strays:
        raise InvalidInput(
            f"{folder}: {', '.join(strays)}: expected either one folder of pictures per class, or "
            "only train/ and test/, each with one folder per class; validation is drawn from train"
        )
    if len(classes) < 2:
        raise InvalidInput(f"{parts[0]}: expected a folder of pictures for each class")
    if unnamed := [name for name in classes if name != name.encode(errors="replace").decode()]:
        raise InvalidInput(f"{parts[0]}: expected the name of a class in UTF-8, got {unnamed[0]!r}")
    arrays: dict[str, Any] = {"classes": classes}
    for part in parts:
        if loose := [f for f in sorted(part.iterdir()) if f.is_file() and _is_picture(f)]:
            beside = f"{len(loose):,} pictures lie beside the folders of the classes"
            remarks.append(f"{part}: {beside}: {loose[0].name}, ...")
        others = _folders_in(part) - set(classes)
        if others:
            raise InvalidInput(f"{part}: classes {sorted(others)} are not in {parts[0]}")
        named = enumerate(classes)
        found = [(n, file) for n, name in named for file in sorted(visible(part / name))]
        others = [file for _, file in found if file.is_file() and not _is_picture(file)]
        if others:
            told = ", ".join(str(file.relative_to(part)) for file in others[:3])
            remarks.append(f"{part}: {len(others):,} files are no pictures: {told}")
        found = [(number, file) for number, file in found if _is_picture(file)]
        if not found:
            raise InvalidInput(f"{part}: expected pictures ({_PICTURES}) in folders, found none")
        pictures = [_read_picture(file) for _, file in found]
        for (_, file), picture in zip(found, pictures, strict=True):
            if picture.shape != pictures[0].shape:
                same = picture.shape[:2] == pictures[0].shape[:2]
                remedy = "make all of them grey, or coloured" if same else "resize all pictures"
                raise InvalidInput(
                    f"{file}: {picture.shape} (height, width, channels), but {found[0][1]} has "
                    f"{pictures[0].shape}; {remedy} first"
                )
        prefix = f"{part.name}_" if len(parts) > 1 else ""
        arrays[f"{prefix}images"] = np.stack(pictures)
        arrays[f"{prefix}labels"] = np.array([number for number, _ in found], np.int64)
    return arrays


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in _endings_of_pictures()


@functools.cache
def _endings_of_pictures() -> frozenset[str]:
    """Returns the endings of the files that pillow reads."""
    require("PIL", "a folder of pictures", "train")
    from PIL import Image

    kinds = Image.registered_extensions()
    return frozenset(ending for ending, kind in kinds.items() if kind in Image.OPEN)


def _folders_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != "."}


def _read_picture(path: Path) -> np.ndarray:
    """Reads a picture as [height, width, C] uint8; C is 1 for a greyscale picture, else 3.

    It is turned as its camera says, and transparent pixels show white.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            if opened.mode.startswith(("I", "F")) or ";16" in str(opened.tile):
                raise ValueError(f"mode {opened.mode}; expected 8 bits for each channel")
            frames = getattr(opened, "n_frames", 1)
            if frames > 1 and opened.format != "MPO":  # whose further ones are a camera's previews
                raise ValueError(f"{frames} frames; expected one")
            picture = ImageOps.exif_transpose(opened)
            is_grey = picture.mode in ("1", "L", "LA", "La")
            if picture.has_transparency_data:
                warnings.warn("transparent pixels of pictures show white", stacklevel=2)
                white = Image.new("RGBA", picture.size, _BACKGROUND)
                picture = Image.alpha_composite(white, picture.convert("RGBA"))
            pixels = np.asarray(picture.convert("L" if is_grey else "RGB"))
    except Exception as error:  # pillow raises many kinds, e.g. SyntaxError and struct.error
        raise InvalidInput(f"{path}: not a readable picture: {error}") from error
    return pixels[..., None] if pixels.ndim == 2 else pixels
