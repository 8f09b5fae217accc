"""Rows of text, images and vectors: what is embedded, the user's own files, and what is refused."""

import gzip
import shutil

import numpy as np
import pytest

from transformer_jax.data.order import batches_of, split_by_key
from transformer_jax.data.sources.arrays import load_images, load_vectors
from transformer_jax.data.sources.tables import load_labelled_text, load_pairs, read_texts
from transformer_jax.errors import InvalidInput


def test_the_embedded_tables_are_what_the_licences_file_says():
    pairs = load_pairs("tatoeba_en_es").rows
    assert len(pairs) == 30_000
    assert len({source for source, _ in pairs}) == 25_481
    movies = load_labelled_text("movie_snippets")
    assert (len(movies.texts), sum(movies.labels)) == (10_605, 5_242)
    assert movies.classes == ("negative", "positive")


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.tsv.gz"])
def test_users_own_pairs(tmp_path, name):
    separator, quoted = (",", "Go") if "csv" in name else ("\t", '"Go"')
    data = f'\ufeffHello.{separator}Hola.{separator}note\n\n"Go"{separator}Ve\n'.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert load_pairs(str(tmp_path / name)).rows == [("Hello.", "Hola."), (quoted, "Ve")]
    assert load_pairs(str(tmp_path)) == load_pairs(str(tmp_path / name))


def test_white_space_at_the_edges_is_left_out_with_a_word(tmp_path):
    (tmp_path / "a.tsv").write_text("  Go.\tVe.\u2003\nHi.\tHola.\n\n Why?\tPor\u00a0qué\n")
    with pytest.warns(UserWarning, match=r"a\.tsv: white space around the cells of 2 rows"):
        pairs = load_pairs(str(tmp_path / "a.tsv")).rows
    assert pairs == [("Go.", "Ve."), ("Hi.", "Hola."), ("Why?", "Por\u00a0qué")]
    (tmp_path / "b.csv").write_text('text,label\n"\n  def f",a \nx,a\n y, b\n')
    with pytest.warns(UserWarning, match="around the cells of 1 rows"):
        assert load_labelled_text(str(tmp_path / "b.csv")).classes == ("a", "b")


def test_users_own_labelled_text(tmp_path):
    (tmp_path / "a.csv").write_text('id,label,text\n1,spam,"Buy, now"\n2,ham,"two\nlines"\n')
    (tmp_path / "b.csv").write_text(",text\n0,one\n1,two\n")  # as pandas writes it
    assert sorted(read_texts(tmp_path / "b.csv")) == ["one", "two"]
    assert sorted(read_texts(tmp_path / "a.csv", "id")) == ["1", "2"]
    loaded = load_labelled_text(str(tmp_path / "a.csv"))
    assert loaded.texts == [("Buy, now",), ("two\nlines",)]
    assert [loaded.classes[label] for label in loaded.labels] == ["spam", "ham"]
    assert load_labelled_text(str(tmp_path / "a.csv"), "id").texts == [("1",), ("2",)]


def test_users_own_pairs_with_labels(tmp_path):
    (tmp_path / "a.tsv").write_text("label\ttext_pair\ttext\nno\tIt rains.\tThe sun shines.\n")
    (tmp_path / "b.tsv").write_text("text\ttext_pair\tlabel\nA cat sits.\tA cat is here.\tyes\n")
    loaded = load_labelled_text(str(tmp_path))
    assert loaded.texts == [("The sun shines.", "It rains."), ("A cat sits.", "A cat is here.")]
    assert [loaded.classes[label] for label in loaded.labels] == ["no", "yes"]
    (tmp_path / "c.tsv").write_text("text\tlabel\nA cat sits.\tyes\n")
    with pytest.raises(InvalidInput, match="some rows have two texts, others one"):
        load_labelled_text(str(tmp_path))


@pytest.mark.parametrize(
    ("load", "name", "content", "words"),
    [
        (load_pairs, "a.tsv", "a\tb\nonly one\n", r"a.tsv: line 2: expected a sentence and its"),
        (load_pairs, "a.tsv", "a\tb\nc\t \n", r"a.tsv: line 2: .*got \['c', ''\]"),
        (load_pairs, "a.csv", 'a,b\n"c,d\n', r"a.csv: line 2: "),
        (load_pairs, "a.tsv", "", "expected rows, found none"),
        (load_pairs, "a.tsv", b"a\tb\xff\n", "got byte 0xFF at offset 3"),
        (load_labelled_text, "a.tsv", "a\tb\nc\td\n", r"line 1: .*including text and label"),
        (load_labelled_text, "a.tsv", "text\tlabel\na\tx\ty\n", "line 2: expected 2 columns"),
        (load_labelled_text, "a.tsv", "text\tlabel\na\tx\n\ty\n", "line 3: the text is empty"),
        (load_labelled_text, "a.tsv", "text\tlabel\na\tx\nb\t\n", "line 3: the label is empty"),
        (load_labelled_text, "a.tsv", "text\tlabel\na\tx\nb\tx\n", "every label is 'x'"),
        (load_labelled_text, "b.txt", "x", "the folder contains no .tsv or .csv"),
        (load_pairs, "a.txt", "Well, go.\tBueno", "expected a file that ends with .tsv or .csv"),
    ],
)
def test_c66_malformed_rows_are_refused_with_file_and_line(tmp_path, load, name, content, words):
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidInput, match=words):
        load(str(tmp_path if name == "b.txt" else tmp_path / name))


def test_missing_sources_name_what_is_embedded():
    with pytest.raises(InvalidInput, match="embedded pairs: tatoeba_en_es"):
        load_pairs("nowhere")
    with pytest.raises(InvalidInput, match="embedded images: digits, fashion_mnist"):
        load_images("nowhere")


def test_equal_keys_stay_together_and_shares_hold():
    keys = [f"sentence {number // 3}" for number in range(6000)]
    parts = split_by_key(keys, (0.8, 0.1, 0.1), 0)
    assert sorted(np.concatenate(list(parts.values()))) == list(range(6000))
    owners = [{keys[index] for index in part} for part in parts.values()]
    assert not owners[0] & owners[1] | owners[0] & owners[2] | owners[1] & owners[2]
    assert [len(part) / 6000 for part in parts.values()] == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    assert not np.array_equal(split_by_key(keys, (0.8, 0.1, 0.1), 1)["test"], parts["test"])


def test_batches_count_each_example_once():
    batches = batches_of(np.array([5, 6, 7, 8, 9]), 2)
    assert [indices.tolist() for indices, _ in batches] == [[5, 6], [7, 8], [9, 9]]
    assert [counts.tolist() for _, counts in batches] == [[1, 1], [1, 1], [1, 0]]


def test_embedded_images_are_what_the_licences_file_says():
    digits = load_images("digits")
    assert (digits.inputs.shape, digits.first_test) == ((1797, 8, 8, 1), 1347)
    assert digits.inputs.max() == 16
    clothes = load_images("fashion_mnist")
    assert (clothes.inputs.shape, clothes.first_test) == ((4000, 28, 28, 1), 3000)
    assert np.bincount(clothes.labels[3000:]).tolist() == [100] * 10
    assert clothes.classes[8] == "bag"


@pytest.fixture
def idx_folder(tmp_path):
    """Six images with values that count up, the first two of which are the test part."""

    def idx(array):
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()

    images = np.arange(6 * 12).reshape(6, 4, 3)
    for name, part in (("train", images), ("t10k", images[:2])):
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(part)))
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(idx(np.arange(len(part)) % 3))
    return tmp_path


def test_idx_files(idx_folder):
    loaded = load_images(str(idx_folder))
    np.testing.assert_array_equal(loaded.inputs[:6].ravel(), np.arange(6 * 12))
    assert loaded.inputs.shape == (8, 4, 3, 1)
    assert loaded.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert (loaded.first_test, loaded.classes) == (6, ("0", "1", "2"))
    assert loaded.remarks == ()
    for name in ("README.md", ".DS_Store", "t10k-labels-idx1-ubyte.gz", "cats"):
        (idx_folder / name).write_bytes(b"")
    (remark,) = load_images(str(idx_folder)).remarks
    assert remark == f"{idx_folder}: left out: cats, t10k-labels-idx1-ubyte.gz"
    labels = idx_folder / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(InvalidInput, match=r"expected 14 bytes .* found 13"):
        load_images(str(idx_folder))
    labels.unlink()
    with pytest.raises(InvalidInput, match=r"train-labels-idx1-ubyte .* is missing"):
        load_images(str(idx_folder))


def test_cifars_binary_version(tmp_path, rng):
    images, labels = rng.integers(0, 256, (5, 32, 32, 3)), np.array([3, 1, 0, 2, 1])
    rows = np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(5, -1)], axis=1)
    for name, part in (("data_batch_1", rows[:2]), ("data_batch_2", rows[2:4])):
        (tmp_path / f"{name}.bin").write_bytes(part.astype(np.uint8).tobytes())
    (tmp_path / "test_batch.bin").write_bytes(rows[4:].astype(np.uint8).tobytes())
    (tmp_path / "batches.meta.txt").write_text("airplane\nautomobile\nbird\ncat\n\n")
    loaded = load_images(str(tmp_path))
    np.testing.assert_array_equal(loaded.inputs, images)
    assert (loaded.labels.tolist(), loaded.first_test) == ([3, 1, 0, 2, 1], 4)
    assert (loaded.classes[3], loaded.remarks) == ("cat", ())
    (tmp_path / "data_batch_9.bin.gz").write_bytes(b"")
    assert load_images(str(tmp_path)).remarks == (f"{tmp_path}: left out: data_batch_9.bin.gz",)
    (tmp_path / "test_batch.bin").write_bytes(b"123")
    with pytest.raises(InvalidInput, match=r"test_batch.bin: expected rows of 3073 bytes"):
        load_images(str(tmp_path))


def test_folders_of_pictures(tmp_path):
    from PIL import Image

    for number, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for index in range(2):
            pixels = np.full((4, 6, 3), 100 * number + index, np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{index}.png")
    for folder in (tmp_path, tmp_path / "cat"):  # as Jupyter leaves
        shutil.copytree(tmp_path / "dog", folder / ".ipynb_checkpoints")
    loaded = load_images(str(tmp_path))
    assert loaded.inputs.shape == (4, 4, 6, 3)
    assert loaded.inputs[:, 0, 0, 0].tolist() == [0, 1, 100, 101]
    assert (loaded.classes, loaded.first_test) == (("cat", "dog"), None)
    for part in ("train", "val"):
        shutil.copytree(tmp_path / "cat", tmp_path / "parts" / part / "cat")
    with pytest.raises(InvalidInput, match=r"train, val: expected either one folder of pictures"):
        load_images(str(tmp_path / "parts"))
    odd = tmp_path / "dog" / "2.png"
    Image.fromarray(np.full((4, 6), 1000, np.uint16)).save(odd)
    with pytest.raises(InvalidInput, match=r"2.png: not a readable picture: mode I;16; expected 8"):
        load_images(str(tmp_path))
    Image.fromarray(np.zeros((5, 6), np.uint8)).save(odd)
    shutil.rmtree(tmp_path / "parts")
    with pytest.raises(InvalidInput, match=r"dog/2.png: \(5, 6, 1\).*resize all pictures first"):
        load_images(str(tmp_path))
    odd.write_bytes(b"no picture")
    with pytest.raises(InvalidInput, match=r"dog/2.png: not a readable picture"):
        load_images(str(tmp_path))


GREY = np.zeros((4, 3, 3), np.uint8)


def parts_of(labels=(4, 4), **images):
    """Arrays of a .npz file with parts: the images of each, and so many labels."""
    arrays = {f"{part}_images": array for part, array in images.items()}
    counts = dict(zip(images, (*labels, 4), strict=False))
    return arrays | {f"{part}_labels": np.arange(count) for part, count in counts.items()}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": GREY}, "missing labels, found images"),
        ({"images": GREY, "labels": np.arange(3)}, "one integer label for each of 4 examples"),
        ({"images": GREY.astype(float), "labels": np.arange(4)}, "expected uint8"),
        (
            {"images": GREY, "labels": np.arange(4), "classes": ["a", "b"]},
            "labels 0 to 3; expected 0 to 1",
        ),
        ({"images": GREY, "labels": -np.arange(4)}, "labels -3 to 0"),
        ({"images": GREY, "labels": np.arange(4) * 10**6}, "label 3000000 among 4 examples"),
        (
            parts_of(labels=(2, 4), train=GREY, test=GREY[:2]),
            "one integer label for each of 4 examples, got int64 .2,.",
        ),
        ({"images": GREY[:0], "labels": np.arange(0)}, "expected examples, found none"),
        (
            {"images": GREY, "labels": np.arange(4), "test_images": GREY, "test_labels": [0] * 4},
            "array test_images would not be read; .* or each of them with train_ and with test_",
        ),
        (
            {"images": GREY, "labels": np.arange(4), "length": np.arange(4)},
            "array length would not be read; expected images, labels, lengths, classes",
        ),
        (
            parts_of(train=GREY, val=GREY, test=GREY),
            "array val_images would not be read; .* validation is drawn from the training examples",
        ),
        (
            parts_of(train=GREY, test=GREY[:, :2]),
            "expected training and test examples of the same shape, got",
        ),
    ],
)
def test_c66_unusable_image_files_are_refused(tmp_path, arrays, words):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InvalidInput, match=words):
        load_images(str(tmp_path / "a.npz"))


def test_vectors(tmp_path, rng):
    file, vectors = tmp_path / "a.npz", rng.normal(size=(5, 7, 2))
    labels, lengths = np.array([0, 1, 0, 1, 1]), np.array([7, 3, 1, 2, 7])

    def load(**arrays):
        np.savez(file, **arrays)
        return load_vectors(str(file))

    loaded = load(vectors=vectors, labels=labels, lengths=lengths)
    assert loaded.inputs.dtype == np.float32
    assert loaded.lengths.tolist() == lengths.tolist()
    turned = load(vectors=vectors, labels=labels, lengths=lengths[::-1])
    assert turned.sha256 != loaded.sha256
    parts = {f"{part}_vectors": vectors for part in ("train", "test")}
    parts |= {f"{part}_labels": labels for part in ("train", "test")}
    infinite = np.where(np.arange(5)[:, None, None] == 3, np.nan, vectors)
    for arrays, words in (
        ({"lengths": lengths * 2}, "expected lengths from 1 to 7"),
        ({"lengths": lengths * 1.0}, "expected integer lengths, got float64"),
        ({"vectors": vectors * 1j}, r"expected real numbers \[N, L, F\], got complex128"),
        ({"vectors": infinite}, "example 3 contains a value that is not finite"),
    ):
        with pytest.raises(InvalidInput, match=words):
            load(**{"vectors": vectors, "labels": labels, **arrays})
    with pytest.raises(InvalidInput, match="expected train_lengths and test_lengths, or neither"):
        load(**parts, train_lengths=lengths)


def test_c66_damaged_image_sources_are_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK not a zip")
    np.savez(tmp_path / "b.npz", images=np.array([{}], object), labels=np.arange(1))
    for name in ("a.npz", "b.npz"):  # c73: never unpickled
        with pytest.raises(InvalidInput, match=r"not a readable .npz file"):
            load_images(str(tmp_path / name))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="one folder of pictures"):
        load_images(str(tmp_path / "empty"))
