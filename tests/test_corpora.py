"""Corpora in the formats of others: read rightly, or refused with file and row."""

import gzip
import hashlib
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import TINY, attempt, refused
from transformer_jax.config_files import load_config
from transformer_jax.data.sources.corpora import documents_of
from transformer_jax.data.sources.official import load_splits
from transformer_jax.data.sources.text import load_text
from transformer_jax.errors import InvalidInput
from transformer_jax.training.build import make_task

DOCUMENTS = ["to be, or not to be\n", "that is the question — ¿no? 😀", "a\r\nb\u0000c", "x" * 50]
EXPECTED = [text if text.endswith("\n") else text + "\n" for text in DOCUMENTS]
LLMC, LLAMA3 = (20240520, 1), (20240801, 7)


def as_json_lines(path, rows=None, end="\n"):
    rows = [{"id": n, "text": text} for n, text in enumerate(DOCUMENTS)] if rows is None else rows
    path.write_bytes("".join(json.dumps(row) + end for row in rows).encode())
    return path


def table(column=None):
    return pa.table({"id": range(len(DOCUMENTS)), "text": DOCUMENTS if column is None else column})


def write(path, kind):
    """DOCUMENTS in a file, as the library of each format writes it."""
    if kind == "parquet":
        pq.write_table(table(), path, row_group_size=2)
    elif kind == "dictionary":
        pq.write_table(table(pa.array(DOCUMENTS).dictionary_encode()), path)
    elif kind == "large":
        pq.write_table(table(pa.array(DOCUMENTS, pa.large_string())), path)
    elif kind in ("arrow", "feather"):
        maker = pa.ipc.new_stream if kind == "arrow" else pa.ipc.new_file
        with pa.OSFile(str(path), "wb") as sink, maker(sink, table().schema) as writer:
            for batch in table().to_batches(max_chunksize=3):
                writer.write_batch(batch)
    elif kind == "gz":
        path.write_bytes(gzip.compress(as_json_lines(path.with_suffix("")).read_bytes()))
    elif kind == "bom":
        path.write_bytes(b"\xef\xbb\xbf" + as_json_lines(path, end="\r\n\r\n").read_bytes())
    else:
        as_json_lines(path)
    return path


KINDS = {
    **{"jsonl": "a.jsonl", "gz": "a.jsonl.gz", "bom": "a.jsonl", "parquet": "a.parquet"},
    **{"dictionary": "a.parquet", "large": "a.parquet", "arrow": "a.arrow", "feather": "a.feather"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_documents_are_those_that_were_written(tmp_path, kind):
    path = write(tmp_path / KINDS[kind], kind)
    assert [*documents_of(path, "text")] == EXPECTED
    loaded = load_text(str(path), "byte")
    assert loaded.tokenizer.decode(loaded.stream[:]) == "".join(EXPECTED)
    sizes = [len(text.encode()) for text in EXPECTED]
    np.testing.assert_array_equal(loaded.stream.document_starts, np.cumsum([0, *sizes[:-1]]))
    assert loaded.text_sha256 == hashlib.sha256("".join(EXPECTED).encode()).hexdigest()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"text": "a"}\n{"text": ', ["row 2", "not JSON"]),
        (b'{"text": "a"}\n\n["b"]\n', ["row 3", "no field 'text'", "an object"]),
        (b'{"text": "a"}\n{"txt": "b", "id": 1}\n', ["row 2", "did you mean txt", "has txt, id"]),
        (b'{"text": null}\n', ["row 1", "null"]),
        (b'{"text": 5}\n', ["row 1", "int 5"]),
        (b'{"text": "a"}\n{"text": " "}\n', ["row 2", "an empty text"]),
        (b'{"text": "a\x00"}\n', ["row 1", "not JSON"]),
        (b'{"text": "\xff"}\n', ["row 1", "not JSON", "utf-8"]),
        (b'{"text": "\\ud83d"}\n', ["row 1", "surrogate", "offset 0"]),
        (b'{"text": ' + b"[" * 100_000 + b"\n", ["row 1", "not JSON"]),
        (b"", ["expected text, found 0 bytes"]),
    ],
)
def test_rows_that_are_no_documents_are_refused_by_number(tmp_path, content, words):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        load_text(str(path), "byte")
    assert all(word in str(caught.value) for word in ["corpus.jsonl", *words]), caught.value


def test_a_truncated_archive_and_a_long_line(tmp_path):
    path = write(tmp_path / "a.jsonl.gz", "gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_text(str(path), "byte")
    long = as_json_lines(tmp_path / "b.jsonl", [{"text": "ab" * 10_000_000}])
    assert len(load_text(str(long), "byte").stream) == 20_000_001


@pytest.mark.parametrize(
    ("column", "field", "words"),
    [
        (None, "txt", ["no field 'txt'", "did you mean text", "data.text_field"]),
        (None, "id", ["the column holds int64", "e.g. text"]),
        (pa.array([{"a": "b"}] * 4), "text", ["struct", "a column of strings"]),
        (pa.array([["b"]] * 4), "text", ["list", "a column of strings"]),
        (pa.array(["a", None, "b", "c"]), "text", ["row 2", "null"]),
        (pa.array(["a", "b", "", "c"]), "text", ["row 3", "an empty text"]),
    ],
)
def test_columns_that_are_no_documents_are_refused(tmp_path, column, field, words):
    path = tmp_path / "a.parquet"
    pq.write_table(table(column), path)
    with pytest.raises(InvalidInput) as caught:
        load_text(str(path), "byte", text_field=field)
    assert all(word in str(caught.value) for word in ["a.parquet", *words]), caught.value


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_damaged_table_is_refused(tmp_path, name):
    path = write(tmp_path / name, name.partition(".")[2])
    path.write_bytes(path.read_bytes()[:150])
    with pytest.raises(InvalidInput, match=rf"{name}: cannot be read"):
        load_text(str(path), "byte")


def test_a_folder_holds_one_kind_and_one_split(tmp_path):
    for number in (1, 0):
        as_json_lines(tmp_path / f"part-{number}.jsonl", [{"text": f"{number}"}])
    loaded = load_text(str(tmp_path), "byte")
    assert loaded.tokenizer.decode(loaded.stream[:]) == "0\n1\n"
    (tmp_path / "more.txt").write_text("text")
    with pytest.raises(InvalidInput, match="jsonl and txt files; expected one kind"):
        load_text(str(tmp_path), "byte")
    (tmp_path / "more.txt").unlink()
    for name in ("my_train_0.jsonl", "my_val_0.jsonl"):
        as_json_lines(tmp_path / name)
    with pytest.raises(InvalidInput, match=r"train and val; .* data\.validation_source"):
        load_text(str(tmp_path), "byte")


@pytest.mark.parametrize("names", [("mr. smith.txt", "b.txt"), ("part.01.jsonl", "part.02.jsonl")])
def test_names_may_have_dots(tmp_path, names):
    for name in names:
        as_json_lines(tmp_path / name, [{"text": "words"}])
    assert len(load_text(str(tmp_path), "byte").stream) in (12, 36)


def test_folders_of_splits_are_not_one_text(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        as_json_lines(tmp_path / split / "0.jsonl")
    with pytest.raises(InvalidInput, match="files named train and test"):
        load_text(str(tmp_path), "byte")
    whole = tmp_path / "whole.json"
    whole.write_text('{"text": "a"}')
    with pytest.raises(InvalidInput, match=r"one in each line of a \.jsonl file, got a \.json"):
        load_text(str(whole), "byte")


def test_shards_are_made_of_documents(tmp_path):
    source = as_json_lines(tmp_path / "a.jsonl", [{"body": "words " * 40}])
    flags = [f"--source={source}", "--tokenizer=byte", f"--out={tmp_path / 'shards'}"]
    refused(attempt("make_shards", *flags), "no field 'text'")
    done = attempt("make_shards", *flags, "--text_field=body", "--json")
    assert json.loads(done.stdout)["tokens"] == 241, done.stderr


def with_header(path, tokens, kind=LLMC, count=None):
    header = np.zeros(256, "<i4")
    header[:3] = (*kind, len(tokens) if count is None else count)
    dtype = "<u4" if kind == LLAMA3 else "<u2"
    path.write_bytes(header.tobytes() + np.asarray(tokens, dtype).tobytes())
    return path


TOKENS = np.random.default_rng(0).integers(0, 300, 5000)


@pytest.mark.parametrize("kind", [LLMC, LLAMA3, None])
def test_files_of_tokens_are_mapped(tmp_path, kind):
    path = tmp_path / "fineweb_000001.bin"
    if kind is None:
        TOKENS.astype(np.uint16).tofile(path)  # as nanoGPT's prepare.py
    else:
        with_header(path, TOKENS, kind)
    loaded = load_text(str(path), "numbers", 300)
    np.testing.assert_array_equal(loaded.stream[:], TOKENS)
    assert loaded.tokenizer.decode([5, 299]) == "5 299"
    np.testing.assert_array_equal(loaded.tokenizer.encode("5 299"), [5, 299])
    with pytest.raises(InvalidInput, match="expected numbers of tokens below 300"):
        loaded.tokenizer.encode("5 300")


def test_several_files_of_tokens_are_one_row(tmp_path):
    with_header(tmp_path / "a_0.bin", TOKENS[:3000])
    with_header(tmp_path / "a_1.bin", TOKENS[3000:])
    stream = load_text(str(tmp_path), "numbers", 300).stream
    np.testing.assert_array_equal(stream.windows(np.array([2990]), 20), TOKENS[None, 2990:3010])
    np.testing.assert_array_equal(stream.document_starts, [0, 3000])


def saved_by(save):
    save(buffer := io.BytesIO(), TOKENS)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: with_header(path, TOKENS, count=5001), ["says 5001 token", "expected 10002"]),
        (lambda path: with_header(path, TOKENS, (20240520, 2)), ["[20240520, 2]", "version 1"]),
        (lambda path: path.write_bytes(b"\x01\x00\x02"), ["3 bytes", "uint16"]),
        (lambda path: path.write_bytes(b""), ["0 bytes"]),
        (lambda path: path.write_bytes(saved_by(np.save)), ["np.save wrote"]),
        (lambda path: path.write_bytes(saved_by(np.savez)), ["a zip file"]),
        (lambda path: TOKENS.astype("<u4").tofile(path), ["as in a file of uint32"]),
        (lambda path: with_header(path, [*TOKENS, 300]), ["token 300 at position 5000", "300 to"]),
    ],
)
def test_files_of_tokens_that_do_not_fit_are_refused_with_the_numbers(tmp_path, make, words):
    make(path := tmp_path / "a.bin")
    with pytest.raises(InvalidInput) as caught:
        load_text(str(path), "numbers", 300)
    assert all(word in str(caught.value) for word in ["a.bin", *words]), caught.value


def test_tokens_that_uint16_cannot_hold_need_a_header(tmp_path):
    np.array([70_000, 5] * 50, "<u4").tofile(tmp_path / "a.bin")
    with pytest.raises(InvalidInput, match="uint16 cannot hold 128256 tokens"):
        load_text(str(tmp_path / "a.bin"), "numbers", 128_256)


def test_no_tokenizer_is_trained_on_tokens(tmp_path):
    with_header(tmp_path / "a.bin", TOKENS)
    with pytest.raises(InvalidInput, match=r"data\.tokenizer=char: .* with data\.vocab_size"):
        load_text(str(tmp_path / "a.bin"), "char")


def task_with(tmp_path, **changes):
    texts = {"train": "abcd" * 200, "valid": "dcba" * 60, "test": "badc" * 150}
    for name, text in texts.items():
        as_json_lines(tmp_path / f"{name}.jsonl", [{"body": text}])
    options = {"data.source": "train", "data.validation_source": "valid"}
    options = {key: str(tmp_path / f"{name}.jsonl") for key, name in options.items()}
    return make_task(load_config(TINY, options | {"data.text_field": "body"} | changes))


@pytest.mark.parametrize("kind", ["language_modelling", "masked_language_modelling"])
def test_splits_come_from_their_own_files(tmp_path, kind):
    model = {"model.architecture": "decoder" if kind == "language_modelling" else "encoder"}
    changes = {"data.test_source": str(tmp_path / "test.jsonl"), "data.task": kind} | model
    task = task_with(tmp_path, **changes)
    assert {split: len(stream) for split, stream in task.splits.items()} == {
        "train": 801, "validation": 241, "test": 601,
    }  # fmt: skip
    assert task.tokenizer.decode(task.splits["test"][:4]) == "badc"
    alone = task_with(tmp_path, **model, **{"data.task": kind, "data.validation_tokens": "100"})
    assert len(alone.splits["validation"]) == len(alone.splits["test"]) == 100
    assert alone.facts["sha256"] != task.facts["sha256"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data.validation_tokens": "242"}, ["data.validation_tokens=242", "has 241 tokens"]),
        ({"data.validation_source": "None", "data.test_source": "x"}, ["data.validation_source"]),
        ({"data.mixture": "x=0.1"}, ["data.mixture", "data.validation_source"]),
        ({"data.test_source": "nowhere"}, ["data.test_source=nowhere", "no such file"]),
        ({"data.test_source": "{}/train.jsonl"}, ["data.test_source", "the train split"]),
        ({"data.task": "translation"}, ["data.validation_source"]),
    ],
)
def test_official_splits_that_cannot_be_are_refused(tmp_path, changes, words):
    changes = {key: value.format(tmp_path) for key, value in changes.items()}
    with pytest.raises(InvalidInput) as caught:
        task_with(tmp_path, **changes)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_run_on_an_official_split_is_evaluated_on_it(tmp_path):
    task_with(tmp_path)
    flags = [f"--config.data.source={tmp_path / 'train.jsonl'}", "--config.data.text_field=body"]
    flags += [f"--config.data.validation_source={tmp_path / 'valid.jsonl'}", "--config=tiny"]
    flags += ["--config.data.splits=0.5,0.25,0.25"]  # of another source, below
    run = f"--workdir={tmp_path / 'run'}"
    done = attempt("train", *flags, run, "--config.training.steps=3")
    assert "801 train, 241 validation, 241 test tokens" in done.stdout, done.stderr
    scored = attempt("evaluate", run, "--split=validation", "--json")
    assert json.loads(scored.stdout)["means"]["loss"] > 1
    (tmp_path / "valid.jsonl").write_text('{"body": "abba' + "c" * 80 + '"}\n')
    refused(attempt("evaluate", run, "--split=validation"), "data")
    other = attempt("evaluate", run, f"--source={tmp_path / 'test.jsonl'}", "--json")
    assert other.returncode == 0, other.stderr
    assert json.loads(other.stdout)["means"]["loss"] > 1, other.stderr


def test_the_last_of_nanochats_shards_is_for_validation_alone(tmp_path):
    """As nanochat writes them: row groups of 128 texts, zstd, no dictionary, no statistics."""
    texts = [[f"text {shard} of {number}" for number in range(300)] for shard in range(3)]
    for shard, rows in enumerate(texts):
        pq.write_table(
            pa.table({"text": rows}), tmp_path / f"shard_{shard:05d}.parquet", row_group_size=128,
            compression="zstd", compression_level=3, use_dictionary=False, write_statistics=False,
        )  # fmt: skip
    last = str(tmp_path / "shard_00002.parquet")
    streams, tokenizer, _ = load_splits(
        str(tmp_path), "byte", 0, None, (0.9, 0.05, 0.05), official=(last, None, None)
    )
    told = {split: tokenizer.decode(stream[:]) for split, stream in streams.items()}
    joined = ["".join(f"{text}\n" for text in rows) for rows in texts]
    assert told == {"train": "".join(joined[:2]), "validation": joined[2], "test": joined[2]}
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "a.txt").write_text("a")
    with pytest.raises(InvalidInput, match=r"contains no \.txt"):
        load_splits(str(alone), "byte", 0, None, (0.9, 0.05, 0.05),
                    official=(str(alone / "a.txt"), None, None))  # fmt: skip


def test_a_copy_of_the_validation_file_is_not_trained_on(tmp_path):
    folder, alone = tmp_path / "train", tmp_path / "official.txt"
    folder.mkdir()
    (folder / "a.txt").write_text("to be trained on\n" * 9)
    alone.write_text("to be scored\n" * 9)
    (folder / "dangling.txt").symlink_to(tmp_path / "nothing")
    (folder / "b.txt").write_text(alone.read_text())
    asked = (str(folder), "byte", 0, None, (0.9, 0.05, 0.05))
    with pytest.raises(InvalidInput, match=r"b\.txt: a copy of .*official\.txt"):
        load_splits(*asked, official=(str(alone), None, None))
