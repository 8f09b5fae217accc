"""Failures that users of other projects reported, each with its kind: commands, data and losses."""

import bz2
import codecs
import dataclasses
import gzip
import io
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image

from experiments.command import Parser, execute
from experiments.runs import _agrees as agrees
from tests.conftest import ROOT, attempt, command, random_params, refused, run_python, tiny_config
from tests.test_studies import quick, study_file
from transformer_jax.data.sources.arrays import load_images, load_vectors
from transformer_jax.data.sources.folders import left_out
from transformer_jax.data.sources.shards import write_shards
from transformer_jax.data.sources.stream import Piece
from transformer_jax.data.sources.tables import load_labelled_text, load_pairs
from transformer_jax.data.sources.text import load_text
from transformer_jax.data.subword_tokenizers import HuggingFaceTokenizer, WordTokenizer
from transformer_jax.data.tokenizers import ByteTokenizer, load_tokenizer
from transformer_jax.errors import InvalidInput
from transformer_jax.hub import folder_of
from transformer_jax.models import Decoder, Encoder
from transformer_jax.runs import provenance
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import replace
from transformer_jax.runs.interruption import Interrupted, StopSignal
from transformer_jax.runs.pictures import draw_attention_over_image, plain_legend
from transformer_jax.runs.progress import Silent
from transformer_jax.studies import other_runs
from transformer_jax.studies.arms import ArmBuilder, incomparable, probe, same_files
from transformer_jax.studies.design import load_design
from transformer_jax.studies.items import read_answers
from transformer_jax.studies.other_runs import read_curves, read_scores, rows_of_curves
from transformer_jax.studies.pairs import TrainedPairs
from transformer_jax.studies.referee import Journal
from transformer_jax.studies.running import run
from transformer_jax.studies.scores import outcomes_of
from transformer_jax.studies.tables import table_text
from transformer_jax.training import run as sampling
from transformer_jax.training.export import export_run
from transformer_jax.training.loading import load_run
from transformer_jax.training.prepared import prepare
from transformer_jax.training.pretrained import config_from_huggingface
from transformer_jax.training.schedules import SCHEDULES
from transformer_jax.training.warm_start import read_word_vectors


@pytest.mark.parametrize("router", ["softmax", "sigmoid"])
def test_padding_has_no_weight_in_the_balance_of_experts(router):
    options = {"router": router, "num_experts": 4, "bias_rate": 0.01}
    model = Decoder.of(
        vocab_size=11, width=16, depth=1, num_heads=2, max_length=16, feed_forward="mixture",
        feed_forward_options=options, position="none",
    )  # fmt: skip
    tokens = np.random.default_rng(0).integers(0, 11, (1, 6))
    variables = model.init(jax.random.key(0), tokens)

    def balance(params, size):
        padded = np.pad(tokens, ((0, 0), (0, size - 6)))
        segments = (np.arange(size) < 6).astype(np.int32)[None]
        given = {"params": params, "state": variables["state"]}
        _, sown = model.apply(given, padded, segments=segments, mutable=["losses", "state"])
        (loss,) = jax.tree.leaves(sown["losses"])
        return loss.sum(), sown["state"]

    found = [jax.value_and_grad(balance, has_aux=True)(variables["params"], n) for n in (6, 16)]
    for ours, padded in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(ours, padded, atol=1e-6)
    alone = model.apply(variables, tokens, mutable=["losses"])[1]["losses"]
    np.testing.assert_allclose(jax.tree.leaves(alone)[0].sum(), found[0][0][0], rtol=1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_hold_their_last_value(name):
    short = {} if name == "constant" else {"warmup_steps": 5}
    schedule = SCHEDULES[name](1.0, 50, **short)
    assert float(schedule(49)) >= 0
    assert float(schedule(49)) == float(schedule(50)) == float(schedule(100))


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.array(pixels, np.uint8)).save(path, **options)


@pytest.mark.filterwarnings("ignore:transparent pixels")
def test_pictures_are_read_as_they_are_seen(tmp_path):
    """Turned as the camera says, transparent parts white, in any format that pillow reads."""
    tall = np.zeros((4, 2, 3), np.uint8)
    tall[0] = 200
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned by 90 degrees to the right
    save(tmp_path / "exif" / "a" / "1.png", tall.transpose(1, 0, 2)[:, ::1], exif=turned)
    save(tmp_path / "exif" / "b" / "1.webp", tall, lossless=True)
    images = load_images(str(tmp_path / "exif")).inputs
    assert images.shape == (2, 4, 2, 3)
    assert images[0].sum() == images[1].sum()
    clear, white = np.zeros((3, 3, 4), np.uint8), np.full((3, 3, 3), 255, np.uint8)
    clear[0, 0, :3] = 77  # a colour that no one sees
    save(tmp_path / "clear" / "a" / "1.png", clear)
    save(tmp_path / "clear" / "b" / "1.tif", white)
    grey = Image.new("LA", (3, 3), (0, 0))
    with pytest.warns(UserWarning, match="transparent pixels of pictures show white"):
        one, other = load_images(str(tmp_path / "clear")).inputs
    np.testing.assert_array_equal(one, other)
    grey.save(tmp_path / "clear" / "a" / "1.png")
    Image.new("L", (3, 3), 255).save(tmp_path / "clear" / "b" / "1.tif")
    one, other = load_images(str(tmp_path / "clear")).inputs
    assert one.shape == (3, 3, 1)
    np.testing.assert_array_equal(one, other)
    frames = [Image.new("L", (3, 3), value) for value in (0, 9)]
    frames[0].save(tmp_path / "clear" / "a" / "2.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(InvalidInput, match="2 frames; expected one"):
        load_images(str(tmp_path / "clear"))


def test_no_file_of_a_class_is_left_out_without_a_word(tmp_path):
    for name in "abc":
        for number in range(12 if name != "c" else 1):
            save(tmp_path / "data" / name / f"{number}.PNG", [[number, ord(name)]])
    elsewhere = tmp_path / "elsewhere"
    save(elsewhere / "more.jpeg", [[5, 6]])
    (tmp_path / "data" / "a" / "linked").symlink_to(elsewhere)
    (elsewhere / "loop").symlink_to(elsewhere)
    (tmp_path / "data" / "b" / "notes.txt").write_text("x")
    (tmp_path / "data" / "empty").mkdir()
    arrays = load_images(str(tmp_path / "data"))
    assert len(arrays.inputs) == 26
    assert arrays.remarks == (f"{tmp_path / 'data'}: 1 files are no pictures: b/notes.txt",)
    flags = ["--config=configs/digits.py", f"--config.data.source={tmp_path / 'data'}"]
    flags += ["--config.training.steps=2", "--config.schedule.warmup_steps=1"]
    flags += ["--config.data.splits=0.8,0.1,0.1", "--config.model.patch_size=1"]
    said = attempt("train", f"--workdir={tmp_path / 'run'}", *flags)
    assert said.returncode == 0, said.stderr
    told = said.stdout + said.stderr
    assert "1 files are no pictures" in told
    assert "no training example of" in told
    assert "empty" in told


def test_integers_that_float32_changes_are_refused(tmp_path):
    path = tmp_path / "times.npz"
    for numbers, kept in (((100100037, 1), False), ((1 << 24, 3), True), ((100100040, 8), True)):
        vectors = np.array(numbers, np.int64).reshape(2, 1, 1)
        np.savez(path, vectors=vectors, labels=np.array([0, 1]))
        if kept:
            np.testing.assert_array_equal(load_vectors(str(path)).inputs, vectors)
            continue
        with pytest.raises(InvalidInput, match="100100037 would become 100100040"):
            load_vectors(str(path))


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [("utf-16-le", codecs.BOM_UTF16_LE), ("utf-16-be", codecs.BOM_UTF16_BE),
     ("utf-32-le", codecs.BOM_UTF32_LE)],
)  # fmt: skip
def test_another_encoding_is_named_by_its_mark(tmp_path, encoding, mark):
    path = tmp_path / "text.txt"
    text = "naïve café, 日本\n" * 9
    path.write_bytes(mark + text.encode(encoding))
    with pytest.raises(InvalidInput) as caught:
        load_text(str(path), "byte")
    name = encoding[:6]
    assert f"iconv -f {name} -t utf-8" in str(caught.value)
    assert path.read_bytes().decode(name) == text  # the advice gives the text
    path.write_bytes("café".encode("latin1"))
    with pytest.raises(InvalidInput, match="iconv -f latin1"):
        load_text(str(path), "byte")


def test_files_of_a_text_folder_are_read_or_named(tmp_path):
    (tmp_path / "one.txt").write_text("a\n")
    (tmp_path / "TWO.TXT").write_text("b\n")
    assert bytes(load_text(str(tmp_path), "byte").stream[:].tolist()) == b"b\na\n"
    assert left_out("language_modelling", str(tmp_path)) == []
    (tmp_path / "three.md").write_text("c\n")
    (told,) = left_out("language_modelling", str(tmp_path))
    assert "1 files are not read: three.md" in told
    assert left_out("translation", str(tmp_path))[0].startswith(f"{tmp_path}: 3 files")
    assert left_out("image_classification", str(tmp_path)) == []


def test_an_arm_in_two_spellings_is_one(tmp_path):
    design = quick("optimizer.learning_rate=1e-2,0.01,3e-3", "model.depth=2")
    assert list(design.others) == ["learning_rate=1e-2", "learning_rate=3e-3", "depth=2"]
    arms = {"a": {}, "b": {"model.num_heads": 1}, "c": {"model.num_heads": 1, "model.depth": 1}}
    builder = ArmBuilder(load_design(study_file(tmp_path, arms), {}))
    with pytest.raises(InvalidInput, match="arms 'b' and 'c' have the same options and data"):
        builder.certificates(builder.arms(), {})
    refused(
        attempt("ablate", "--config=configs/tiny.py", "--arm=model.depth=3", "--seeds=2",
                "--ladder=optimizer.learning_rate=1e-2,0.01", f"--workdir={tmp_path / 'l'}"),
        "expected 2 or more numbers, ascending",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arm", "metric", "reasons"),
    [
        ("data.tokenizer=byte", "loss", "different tokenizers"),
        ("data.tokenizer=byte", "bits_per_byte", None),
        ("data.length=8", "loss", "different targets are scored"),
        ("model.depth=2", "loss", None),
    ],
)
def test_arms_that_can_never_be_compared_are_told_first(arm, metric, reasons):
    design = quick(arm)
    arms = ArmBuilder(design).arms()
    told = incomparable(arms, design.base, metric)
    if reasons is None:
        assert told == {}
    else:
        assert reasons in "; ".join(*told.values())


def test_a_base_whose_logits_are_all_zero_is_compared(tmp_path):
    from transformer_jax.studies.arms import check_manipulation

    base = probe(ArmBuilder(quick("model.depth=2")).arms()["depth=2"].prepared)
    zero = base._replace(logits=np.zeros_like(base.logits))
    assert check_manipulation(base, zero)["logits"] is None
    assert check_manipulation(base, base)["logits"] == 0


@pytest.mark.parametrize("stdout", ["full", "closed", "broken"])
def test_printing_fails_no_run(tmp_path, stdout):
    flags = ["--config.training.steps=3", "--config.schedule.warmup_steps=1"]
    command = [sys.executable, "-m", "experiments.train", "--config=configs/tiny.py", *flags]
    command += [f"--workdir={tmp_path / 'run'}", "--config.sample.num_tokens=5"]
    if stdout == "broken":
        read, write = os.pipe()
        os.close(read)
        target = os.fdopen(write, "w")
    else:
        target = open("/dev/full", "w")  # noqa: SIM115
    if stdout == "closed":
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    with target:
        done = subprocess.run(command, stdout=target, stderr=subprocess.PIPE, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "STATUS").read_text().startswith("done")


def test_a_narrow_terminal_gets_escapes(tiny_run, tmp_path):
    (tmp_path / "text.txt").write_text("日本 😀 " * 400)
    flags = [f"--config.data.source={tmp_path / 'text.txt'}", "--config.training.steps=3"]
    flags += [f"--workdir={tmp_path / 'run'}", "--config.schedule.warmup_steps=1"]
    done = command("train", "--config=configs/tiny.py", *flags, PYTHONIOENCODING="latin-1")
    assert done.returncode == 0, done.stderr
    assert "\\u" in done.stdout


LONG = "x" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "--config=configs/tiny.py", f"--workdir={LONG}"),
        ("train", "--config=configs/tiny.py", f"--config.data.source={LONG}", "--workdir=w"),
        ("train", f"--config={LONG}"),
        ("evaluate", f"--workdir={LONG}"),
        ("sample", f"--workdir={LONG}"),
        ("compare", LONG, "other"),
        ("judge", f"--scores={LONG}", "--base=a", "--margin=1"),
        ("judge", f"--from={LONG}", "--base=a", "--margin=1"),
        ("make_shards", f"--source={LONG}", "--out=o"),
        ("inspect_run", f"--workdir={LONG}"),
    ],
)
def test_a_path_that_is_too_long_is_refused(arguments):
    refused(attempt(*arguments), "x: File name too long")


def test_a_link_to_nothing_is_named(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for verb, flag in (("train", "--workdir"), ("make_shards", "--out")):
        source = ["--config=configs/tiny.py"] if verb == "train" else ["--source=shakespeare"]
        refused(attempt(verb, *source, f"{flag}={tmp_path / 'link'}"), "a link to nothing")


def test_a_token_without_an_embedding_is_named(tiny_run):
    run = load_run(tiny_run)
    fewer = dataclasses.replace(run, model=dataclasses.replace(run.model, vocab_size=40))
    for call in (fewer.sample, fewer.log_probabilities, lambda text: next(fewer.stream(text))):
        with pytest.raises(InvalidInput, match=r"token \d+ \('.'\) is outside .* vocabulary of 40"):
            call("xyz")
    assert len(run.encode("xyz")) == 3


def test_a_warning_of_a_command_is_one_line(tmp_path):
    sizes = {"vocab_size": 37, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8}
    config = {"architectures": ["GPT2LMHeadModel"], **sizes, "use_moe": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    done = command("sample", f"--workdir={tmp_path}", "--prompt=a")
    told, error = done.stderr.splitlines()
    assert told == f"warning: {tmp_path}: config.json: without effect here: use_moe=True"
    assert error.startswith(f"error: {tmp_path / 'model.safetensors'}: not readable")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"text": "question", "text": "answer"}', "row 1: two fields are named 'te"),
        ("a.csv", b"text,text\na,b\n", "line 1: two columns are named 'text'"),
        ("a.csv", b"text,label\rhello,neg\rbye,pos\r", "CR alone; convert the file first: tr"),
        ("a.txt", gzip.compress(b"hello", mtime=0), "it is a gzip file: unpack it first, or add"),
        ("a.txt", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        ("a.txt", "hello".encode("utf-16-le"), "iconv -f utf-16le -t utf-8"),
        ("a.txt", bz2.compress(b"hello" * 99), "it is a bzip2 file: unpack it first"),
    ],
)
def test_texts_with_a_thing_twice_or_in_another_form_are_refused(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        load_text(str(tmp_path / name), "byte")
    assert words in str(caught.value)


def test_equal_rows_of_a_table_are_all_read_and_their_order_is_told(tmp_path):
    source = str(tmp_path / "a.CSV")
    Path(source).write_text("text\nhello\nworld\nhello\n")
    text = load_text(source, "byte")
    read = text.tokenizer.decode(text.stream[:]).split()
    assert sorted(read) == ["hello", "hello", "world"]
    (remark,) = left_out("language_modelling", source)
    assert "in a random order" in remark
    assert left_out("text_classification", source) == []


def test_a_log_with_a_field_twice_is_refused(tmp_path):
    (tmp_path / "a-0.jsonl").write_text('{"step": 1, "val_loss": 2, "val_loss": 3}')
    done = attempt("judge", f"--from={tmp_path}", "--base=a", "--margin=0.1")
    refused(done, "a-0.jsonl, line 1: two fields are named 'val_loss'")


def test_semicolons_between_sentences_are_no_commas(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("Hello, you;Hola\nBye;Adiós, tú\n")
    with pytest.raises(InvalidInput, match="expected commas between columns, got semicolons"):
        load_pairs(str(file))
    file.write_text('"Wait; stop",Espera\nGo,Ve\n')
    assert load_pairs(str(file)).rows == [("Wait; stop", "Espera"), ("Go", "Ve")]


@pytest.mark.parametrize("name", ["Test.csv", "sst2_dev.csv"])
def test_tables_of_other_splits_are_not_merged(tmp_path, name):
    for file in (name, "sst2.csv"):
        (tmp_path / file).write_text("text,label\ngood,pos\nbad,neg\n")
    with pytest.raises(InvalidInput, match=f"if {name} is no split of its own"):
        load_labelled_text(str(tmp_path))


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "b").mkdir()
    (tmp_path / "a.txt").write_text("hello")

    def scandir(path, usual=os.scandir):
        if str(path).endswith("b"):
            raise PermissionError(13, "Permission denied", str(path))
        return usual(path)

    monkeypatch.setattr(os, "scandir", scandir)  # root may read everything
    with pytest.raises(InvalidInput, match="b: Permission denied"):
        load_text(str(tmp_path), "byte")


def test_floats_that_are_whole_are_kept_or_refused(tmp_path):
    def load(*values):
        vectors = np.array(values).reshape(2, 1, 1)
        np.savez(tmp_path / "a.npz", vectors=vectors, labels=np.array([0, 1]))
        return load_vectors(str(tmp_path / "a.npz")).inputs.ravel().tolist()

    assert load(0.1, 16777216.0) == [np.float32(0.1), 16777216.0]
    with pytest.raises(InvalidInput, match=r"1700000001\.0 would become 1700000000"):
        load(1700000001.0, 2.0)
    with pytest.raises(InvalidInput, match="would become inf"):
        load(1e39, 2.0)
    with pytest.raises(InvalidInput, match=r"1000000\.01 would become 1000000,"):
        load(1000000.01, 1000000.03)
    assert load(0.1, 0.1) == [np.float32(0.1)] * 2  # a feature that is constant


def png(depth, data, second=b"IDAT"):
    """A picture of 4 x 4 pixels in two chunks; Pillow writes no colours of 16 bits."""

    def chunk(name, content):
        checksum = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)

    packed = zlib.compress(data)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, depth, 2, 0, 0, 0))
    chunks = chunk(b"IDAT", packed[:9]) + chunk(second, packed[9:]) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + header + chunks


def folder_of_pictures(folder, *names):
    for name in names:
        (folder / name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(folder / name / "0.png")
    return folder


def test_pictures_that_pillow_changes_or_fails_on_are_refused(tmp_path):
    rows = np.arange(25600, 25648, dtype=">u2").reshape(4, 12)
    deep = png(16, b"".join(b"\0" + row.tobytes() for row in rows))
    broken = png(8, b"".join(b"\0" + row.tobytes()[:12] for row in rows), b"\xff\xfe\xfd\xfc")
    entries = struct.pack("<HHIHH", 0x112, 3, 1, 6, 0) + struct.pack("<HHII", 0x11A, 10, 1, 38)
    exif = b"II*\0" + struct.pack("<IH", 8, 2) + entries + struct.pack("<Iii", 0, -1, 0)
    stored = io.BytesIO()
    Image.new("RGB", (4, 4)).save(stored, "JPEG", exif=b"Exif\0\0" + exif)
    for number, (name, content, words) in enumerate((
        ("1.png", deep, "expected 8 bits for each channel"),
        ("1.png", broken, "not a readable picture: broken PNG file"),
        ("1.jpg", stored.getvalue(), "not a readable picture: argument out of range"),
    )):  # fmt: skip
        folder = folder_of_pictures(tmp_path / str(number), "a", "b")
        (folder / "a" / name).write_bytes(content)
        with pytest.raises(InvalidInput, match=words):
            load_images(str(folder))


@pytest.mark.parametrize("parts", [("Training", "Testing"), ("Train", "Test")])
def test_parts_with_other_names_are_no_classes(tmp_path, parts):
    for part in parts:
        folder_of_pictures(tmp_path / part, "a", "b")
    with pytest.raises(InvalidInput, match=f"{parts[1]}, {parts[0]}: expected either"):
        load_images(str(tmp_path))


def test_merges_are_not_dropped_at_random(tmp_path):
    library = pytest.importorskip("tokenizers")
    made = library.Tokenizer(library.models.BPE(dropout=0.5))
    made.train_from_iterator(["abababab"] * 9, library.trainers.BpeTrainer(vocab_size=9))
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.warns(UserWarning, match=r"tokenizer\.json: dropout=0\.5 is not used"):
        tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert len({tuple(tokenizer.encode("abab" * 9)) for _ in range(9)}) == 1


def judged(tmp_path, text, *flags):
    (tmp_path / "a.csv").write_text(text)
    flags = flags or (f"--from={tmp_path / 'a.csv'}", "--metric=val_loss")
    return attempt("judge", *flags, "--base=a", "--margin=0.1")


def test_runs_without_a_value_are_not_left_out(tmp_path):
    long = "run,step,val_loss\na-0,1,2\na-1,1,2\nb-0,1,2\nb-1,1,\n"
    refused(judged(tmp_path, long), "line 5: no value; write NaN if the run diverged")
    several = "run,step,val_loss,other\na-0,1,2,1\na-1,1,2,1\nb-0,1,2,1\nb-1,1,,1\n"
    refused(judged(tmp_path, several), "run 'b-1' has no value of this metric")
    chart = "Step,a-0 - val_loss,b-0 - val_loss\n1,,2\n2,3,\n"
    refused(judged(tmp_path, chart), "none in common: b-0 at 1, a-0 at 2")


def test_seeds_keep_their_digits(tmp_path):
    rows = "".join(f"{arm},{2**53 + n},{n}\n" for arm in "ab" for n in range(3))
    (tmp_path / "a.csv").write_text(f"arm,seed,value\n{rows}")
    found = read_scores(tmp_path / "a.csv")
    assert list(outcomes_of(found)["b"]) == [2**53, 2**53 + 1, 2**53 + 2]
    with pytest.raises(InvalidInput, match=r"seed=1e\+17: expected an integer"):
        outcomes_of([{"arm": "a", "seed": 1e17, "value": 1}])


@pytest.mark.parametrize(
    ("one", "other"),
    [("b ", "b"), ("b\N{NO-BREAK SPACE}c", "b c"), ("cafe\N{COMBINING ACUTE ACCENT}", "café")],
)
def test_arms_of_scores_in_two_spellings_are_refused(tmp_path, one, other):
    text = f"arm,seed,value\na  a,0,1\n{one},0,1\n{other},1,1\n"
    done = judged(tmp_path, text, f"--scores={tmp_path / 'a.csv'}")
    refused(done, f"arms {one!r} and {other!r} differ only in spelling")


def test_an_exponent_is_no_seed():
    assert other_runs.arm_and_seed("plain-lr1e-3", other_runs.RULE) is None
    assert other_runs.arm_and_seed("plain-lr1e-3-s2", other_runs.RULE) == ("plain-lr1e-3", 2)


def test_a_study_with_an_arm_twice_is_refused(tmp_path):
    (tmp_path / "study.py").write_text(
        "from configs.tiny import get_config\n"
        "def get_arms():\n    return {'base': {}, 'a': {'model.depth': 1}, 'a': {}}\n"
    )
    flags = (f"--config={tmp_path / 'study.py'}", f"--workdir={tmp_path / 'w'}", "--dry_run")
    done = attempt("ablate", *flags)
    refused(done, "study.py, line 3: a dict has the key 'a' twice")


def test_a_narrow_pipe_hides_no_cell(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1")
    assert "value" in table_text(("arm", "value"), [("a", "1")])


def test_a_path_that_is_not_utf8_is_refused_before_training(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/r\xe9")
    refused(attempt("train", "--config=configs/tiny.py", f"--workdir={path}"), "path in UTF-8")
    folder = folder_of_pictures(tmp_path / "pictures", "a")
    os.mkdir(os.fsencode(folder) + b"/r\xe9")
    with pytest.raises(InvalidInput, match="expected the name of a class in UTF-8"):
        load_images(str(folder))


def test_a_separator_that_ends_no_document_and_missing_files_are_told(tmp_path):
    for number in (0, 2):
        (tmp_path / f"t-{number:05}-of-00003.jsonl").write_text('{"text": "hello"}\n')
    (remark,) = left_out("language_modelling", str(tmp_path))
    assert remark == f"{tmp_path}: 2 of 3 files t-#-of-00003.jsonl are there"
    (tmp_path / "a.txt").write_text("one <|end|>\ntwo <|end|>\n" * 99)
    source = {"data__source": str(tmp_path / "a.txt"), "data__document_separator": "<|end|>"}
    told = prepare(tiny_config(**source, data__separate_documents=True)).remarks
    ours = "data.document_separator='<|end|>'", "data.separate_documents=True"
    assert told == tuple(f"{option}: one document" for option in ours)
    (tmp_path / "b.txt").write_text("one two\n" * 2000 + "zebra\n" * 400)
    source = {"data__source": str(tmp_path / "b.txt"), "data__tokenizer": "word"}
    prepared = prepare(tiny_config(**source, data__splits="0.8,0.1,0.1"))
    (remark,), words = prepared.remarks, prepared.task.tokenizer.words
    assert remark == "400 of 4,400 tokens stand for unknown words"
    pieces = [Piece((tmp_path / "b.txt").read_text(), True)]
    with pytest.warns(UserWarning, match="400 of 4,400 tokens stand for unknown words"):
        write_shards(pieces, WordTokenizer(words), tmp_path / "shards")


@pytest.mark.parametrize("kind", ["WordPiece", "WordLevel", "Unigram"])
def test_words_that_a_tokenizer_of_others_lacks_are_told(kind, tiny_run, tmp_path):
    library = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "one": 1, "two": 2}
    if kind == "Unigram":
        model = library.models.Unigram([(word, -1.0) for word in words], unk_id=0)
    else:
        model = getattr(library.models, kind)(words, unk_token="[UNK]")
    made = library.Tokenizer(model)
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    run = dataclasses.replace(load_run(tiny_run), tokenizer=HuggingFaceTokenizer(made))
    with pytest.warns(UserWarning, match="1 of 3 tokens stand for unknown words"):
        assert run.encode("one zebra two").tolist() == [1, 0, 2]
    assert run.encode("one two").tolist() == [1, 2]
    (tmp_path / "b.txt").write_text("one two\n" * 2000 + "zebra\n" * 400)
    source = {"data__source": str(tmp_path / "b.txt")}
    tokenizer = {"data__tokenizer": str(tmp_path / "tokenizer.json")}
    assert prepare(tiny_config(**source, **tokenizer, data__splits="0.8,0.1,0.1")).remarks == (
        "400 of 4,400 tokens stand for unknown words",
    )


def test_word_vectors_are_counted(tmp_path):
    (tmp_path / "a.txt").write_text("2 2\nto 1 2\n")
    with pytest.raises(InvalidInput, match="line 1 states 2 words; found 1"):
        read_word_vectors(tmp_path / "a.txt", {"to"}, 2)
    (tmp_path / "a.txt").write_text("to 1 2\nto 3 4\n")
    with pytest.raises(InvalidInput, match="line 2: 'to' stands twice"):
        read_word_vectors(tmp_path / "a.txt", {"to"}, 2)


def test_the_scaling_of_anothers_pictures_is_told(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4}
    config = {"architectures": ["ViTForImageClassification"], **sizes, "image_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "preprocessor_config.json").write_text("{}")
    with pytest.warns(UserWarning, match="preprocessor_config.json: not read; pictures are scaled"):
        config_from_huggingface(tmp_path)


def test_caches_of_datasets_are_not_read_again(tmp_path):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"text": pa.array(["one"], pa.string_view())})
    for name in ("data-00000-of-00001.arrow", "cache-0a1b.arrow"):
        with (
            pa.OSFile(str(tmp_path / name), "wb") as file,
            pa.ipc.new_file(file, table.schema) as out,
        ):
            out.write(table)
    text = load_text(str(tmp_path), "byte")
    assert text.tokenizer.decode(text.stream[:]) == "one\n"
    (remark,) = left_out("language_modelling", str(tmp_path))
    assert "1 files are not read: cache-0a1b.arrow" in remark


def test_a_comma_within_a_sentence_loses_nothing(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text('Hello, "Hola, amigo"\nBye, Adiós\n')
    assert load_pairs(str(file)).rows == [("Hello", "Hola, amigo"), ("Bye", "Adiós")]
    file.write_text("Bye,Adiós\nGood day, my friend,Buenos días\n")
    with pytest.raises(InvalidInput, match="line 2: expected 2 columns at most"):
        load_pairs(str(file))


def test_quotes_that_a_tsv_file_doubles_are_refused(tmp_path):
    (tmp_path / "a.tsv").write_text('text\tlabel\n"She said ""hi"""\tpos\n')
    with pytest.raises(InvalidInput, match="line 2: quotes have no special meaning"):
        load_labelled_text(str(tmp_path / "a.tsv"))


def test_indents_are_text_to_a_language_model(tmp_path):
    (tmp_path / "a.csv").write_text('text\n"  return x"\n')
    text = load_text(str(tmp_path / "a.csv"), "byte")
    assert text.tokenizer.decode(text.stream[:]) == "  return x\n"


def test_pictures_beside_the_classes_and_of_two_kinds_are_named(tmp_path):
    folder_of_pictures(tmp_path, "a", "b")
    Image.new("RGB", (4, 4)).save(tmp_path / "stray.png")
    (remark,) = load_images(str(tmp_path)).remarks
    assert "1 pictures lie beside the folders of the classes: stray.png" in remark
    Image.new("L", (4, 4)).save(tmp_path / "b" / "1.png")
    with pytest.raises(InvalidInput, match="make all of them grey, or coloured first"):
        load_images(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer_config.json", {"do_lower_case": True}, "do_lower_case=True: expected False"),
        ("tokenizer_config.json", {"strip_accents": True}, "strip_accents=True: expected False"),
        ("tokenizer_config.json", {"tokenize_chinese_chars": False}, "expected True"),
        ("tokenizer_config.json", {"split_special_tokens": True}, "expected False"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": "<x>"}}}, "'<x>'"),
        ("added_tokens.json", {"<x>": 9}, "tokenizer.json lacks the added token '<x>'"),
        ("tokenizer_config.json", {"pad_token": "<x>"}, "lacks the special token '<x>'"),
        ("tokenizer_config.json", {"extra_special_tokens": {"tool": "<x>"}}, "token '<x>'"),
        ("special_tokens_map.json", {"additional_special_tokens": ["<x>"]}, "token '<x>'"),
    ],
)
def test_files_beside_a_tokenizer_that_differ_are_refused(tmp_path, name, content, words):
    library = pytest.importorskip("tokenizers")
    made = library.Tokenizer(library.models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    made.normalizer = library.normalizers.BertNormalizer(lowercase=False)
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).write_text("{}")
    assert load_tokenizer(tmp_path / "tokenizer.json").vocab_size == 2
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(InvalidInput) as caught:
        load_tokenizer(tmp_path / "tokenizer.json")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("alphabet", "split", "text", "tokens"),
    [
        ({"a": 0, "é": 1}, "WhitespaceSplit", "ae\u0301 a", [0, 1, 0]),
        ({"a": 0, "▁": 1}, "Metaspace", "a a", [1, 0, 1, 0]),
        ({"a": 0, "Ġ": 1, "æ": 2}, "ByteLevel", "a", [1, 0]),
    ],
)
def test_byte_pairs_leave_no_character_out(alphabet, split, text, tokens):
    library = pytest.importorskip("tokenizers")
    made = library.Tokenizer(library.models.BPE(alphabet, []))
    made.normalizer = library.normalizers.NFC()
    made.pre_tokenizer = getattr(library.pre_tokenizers, split)()
    tokenizer = HuggingFaceTokenizer(made)
    assert tokenizer.encode(text).tolist() == tokens
    with pytest.raises(InvalidInput, match=r"character '漢' \(U\+6F22\) at offset 1 cannot be enc"):
        tokenizer.encode("a漢")


def test_an_exported_run_keeps_special_tokens_and_the_chat_template(tiny_run, tmp_path):
    library = pytest.importorskip("tokenizers")
    made = library.Tokenizer(library.models.WordLevel({"<s>": 0, "a": 1}, unk_token="<s>"))
    made.save(str(tmp_path / "tokenizer.json"))
    said = {"bos_token": {"content": "<s>"}, "eos_token": None, "tokenizer_class": "X"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    (tmp_path / "special_tokens_map.json").write_text('{"pad_token": "<s>"}')
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    run = load_run(tiny_run)
    config = run.config.copy_and_resolve_references().unlock()
    config.data.tokenizer = str(tmp_path / "tokenizer.json")
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    run = dataclasses.replace(run, config=config, tokenizer=tokenizer)
    export_run(run, tmp_path / "out", "x")
    kept = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert kept["bos_token"] + kept["pad_token"] + kept["chat_template"] == "<s><s>{{ messages }}"
    (tmp_path / "tokenizer.json").unlink()
    with pytest.warns(UserWarning, match=r"tokenizer\.json states the roles of special tokens"):
        export_run(run, tmp_path / "again", "x")


def test_special_tokens_that_only_a_file_beside_the_tokenizer_names_are_whole(tmp_path):
    library = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "a": 1, "<b>": 2}
    library.Tokenizer(library.models.WordPiece(words, unk_token="[UNK]")).save(
        str(tmp_path / "tokenizer.json")
    )
    named = {
        "bos_token": {"content": "<b>", "lstrip": True},
        "unk_token": "[UNK]",
        "pad_token": None,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.encode("a  <b>a").tolist() == [1, 2, 1]
    assert tokenizer.special == {"<b>": 2, "[UNK]": 0}


def test_logs_of_every_spelling_are_read_or_refused(tmp_path):
    line = "step {}: train loss 2, val loss {}\n"
    (tmp_path / "a-0.LOG").write_text(line.format("750", 2) + line.format("1,000", 3))
    (curve,) = read_curves([tmp_path]).values()
    assert (curve.steps, curve.values) == ([750, 1000], [2.0, 3.0])
    (tmp_path / "a-0.LOG").write_text(line.format("750", 2) + line.format("1k", 3))
    with pytest.raises(InvalidInput, match="line 2: step 1k: expected an integer"):
        read_curves([tmp_path])
    (tmp_path / "a-1.log.gz").write_bytes(gzip.compress(b"step 1"))
    with pytest.raises(InvalidInput, match=r"a-1\.log\.gz: expected \.log, .* unpack it"):
        read_curves([tmp_path])


@pytest.mark.parametrize("arm", [None, float("nan"), " "])
def test_rows_without_an_arm_are_refused(arm):
    with pytest.raises(InvalidInput, match="row 2: the arm is empty"):
        outcomes_of([{"arm": "a", "seed": 0, "value": 1}, {"arm": arm, "seed": 0, "value": 1}])


@pytest.mark.oracle
def test_event_files_that_restart_or_are_damaged_are_refused(tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    def write(suffix):
        writer = EventFileWriter(str(tmp_path), filename_suffix=suffix)
        for step in range(3):
            value = Summary.Value(tag="val_loss", simple_value=float(step))
            writer.add_event(Event(step=step, summary=Summary(value=[value])))
        writer.close()

    write(".a")
    (file,) = tmp_path.iterdir()
    (curve,) = read_curves([tmp_path], "val_loss").values()
    assert curve.steps == [0, 1, 2]
    write(".b")
    with pytest.raises(InvalidInput, match="expected one run"):
        read_curves([tmp_path], "val_loss")
    content = bytearray(file.read_bytes())
    content[-60] ^= 255
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"damaged: its last \d records cannot be read"):
        read_curves([file], "val_loss")


def test_a_name_with_an_underscore_is_in_the_legend():
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    axes.plot([0, 1], [0, 1], label="_relu")
    axes.plot([0, 1], [1, 0])
    plain_legend(axes)
    assert [text.get_text().lstrip("\u200b") for text in axes.get_legend().get_texts()] == ["_relu"]


def test_registers_are_no_patches_of_the_picture(monkeypatch, tmp_path):
    seen, weights = [], np.zeros((1, 7, 7))
    weights[0, 0, 3:] = [1, 2, 3, 4]
    monkeypatch.setattr("matplotlib.axes.Axes.imshow", lambda _, array, **how: seen.append(array))
    first = ["class", "register", "register"]
    draw_attention_over_image({"a": weights}, np.zeros((8, 8, 1)), first, tmp_path / "x.png")
    assert seen[1].tolist() == [[1, 2], [3, 4]]


def test_damaged_rows_of_a_run_are_told(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    rows = RunDirectory(tmp_path / "run").metrics()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([b"\0" * 9 + b"\n", *lines[1:], b'{"step": 9']))
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: 1 damaged lines are left out"):
        assert RunDirectory(tmp_path / "run").metrics() == rows[1:]


def test_a_tilde_is_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RunDirectory("~/run").path == tmp_path / "run"
    assert folder_of("~") == tmp_path
    (tmp_path / "a.txt").write_text("some text\n")
    attempt("make_shards", "--source=~/a.txt", "--out=~/shards", "--tokenizer=char")
    assert (tmp_path / "shards" / "index.json").is_file()
    parser = Parser("sample", "")
    parser.add_argument("--prompt")
    parser.add_list("--from", "PATH", "")
    read = parser.read(["--prompt=a=~/b", "--from=~/c", "--from=d~/e"])
    assert (read.prompt, vars(read)["from"]) == ("a=~/b", [f"{tmp_path}/c", "d~/e"])


def test_a_head_is_matched_by_the_names_of_classes():
    """The same names in another order are turned; other names begin anew."""
    from transformer_jax.training import warm_start

    model = Encoder.of(vocab_size=9, max_length=8, width=16, depth=1, num_heads=2, num_classes=2)
    theirs, own = (random_params(model, seed=seed) for seed in (1, 2))
    initial = SimpleNamespace(weights="there", word_vectors=None)
    for classes, order in ((("a", "b"), [0, 1]), (("b", "a"), [1, 0]), (("a", "c"), None)):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(warm_start, "_read_weights", lambda *_: (model, theirs, ["a", "b"]))
            task = SimpleNamespace(tokenizer=None, classes=classes)
            params, (remark,) = warm_start.start_from(model, own, initial, task)
        expected = (
            own["head"]
            if order is None
            else {n: a[..., np.array(order)] for n, a in theirs["head"].items()}
        )
        jax.tree.map(np.testing.assert_array_equal, params["head"], expected)
        assert ("new: head" in remark) == (order is None)


@pytest.mark.parametrize("name", ["a[v2]", "a\\b"])
def test_a_path_that_checkpoints_cannot_have_is_refused(tmp_path, name):
    for verb, arms in (("train", ()), ("ablate", ("--arm=model.depth=1,2", "--seeds=2"))):
        done = attempt(verb, "--config=configs/tiny.py", f"--workdir={tmp_path / name}", *arms)
        refused(done, "expected a path without")


def test_colours_in_a_log_hide_no_value(tmp_path):
    plain, coloured = (
        "step 1: train loss 2, val loss 2\n",
        "step \033[1m2\033[0m: train loss 2, val loss \033[1m3\033[0m\n",
    )
    (tmp_path / "a-0.log").write_text(plain + coloured)
    (curve,) = read_curves([tmp_path]).values()
    assert (curve.steps, curve.values) == ([1, 2], [2.0, 3.0])


def test_shards_of_a_killed_command_are_not_read_and_made_anew(tmp_path):
    def pieces():
        yield Piece("hello", True)
        raise SystemExit

    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "tokens-00000.bin.tmp").write_bytes(b"ab")  # as a kill leaves it
    with pytest.raises(InvalidInput, match="contains no"):
        load_text(str(tmp_path / "w"), "numbers", 300)
    assert write_shards([Piece("hello", True)], ByteTokenizer(), tmp_path / "w") == 5
    assert not list((tmp_path / "w").glob("*.tmp"))
    text = load_text(str(tmp_path / "w"), "byte")
    assert text.tokenizer.decode(text.stream[:]) == "hello"
    with pytest.raises(SystemExit):
        write_shards(pieces(), ByteTokenizer(), tmp_path / "x")
    assert not list((tmp_path / "x").iterdir())


def test_a_space_after_a_comma_begins_no_text(tmp_path):
    (tmp_path / "a.csv").write_text('label,text\npos, "A ""nice"" film"\n"neg", "bad"\n')
    loaded = load_labelled_text(str(tmp_path / "a.csv"))
    assert loaded.texts == [('A "nice" film',), ("bad",)]
    assert loaded.classes == ("neg", "pos")


def test_files_of_an_unfinished_write_are_not_read(tmp_path):
    (tmp_path / "_temporary" / "0").mkdir(parents=True)
    for file in (tmp_path / "part-0.txt", tmp_path / "_temporary" / "0" / "part-1.txt"):
        file.write_text("hello\n")
    assert len(load_text(str(tmp_path), "byte").stream) == 6


@pytest.mark.parametrize("rows", [[1, 2], {0: {"arm": "a"}}])
def test_scores_that_are_no_rows_are_refused(rows):
    with pytest.raises(InvalidInput, match="expected rows with arm, seed, value, got"):
        outcomes_of(rows)


def other_text(path, word):
    path.write_text(f"one {word} three four. " * 300)
    return {"data.source": str(path), "data.tokenizer": "byte"}


def test_a_study_does_not_go_on_with_other_data(tmp_path):
    options = other_text(tmp_path / "a.txt", "two")
    design = quick("model.num_heads=4,1", **options)
    run(design, tmp_path / "study", (0,))
    report = (tmp_path / "study" / "report.md").read_text()
    other_text(tmp_path / "a.txt", "too")
    words = r"arm 'num_heads=4' have changed since the first run \(data\.source="
    for changed in (design, quick("model.num_heads=4,2", "model.depth=2", **options)):
        with pytest.raises(InvalidInput, match=words):
            run(changed, tmp_path / "study", (0, 1))
    assert (tmp_path / "study" / "report.md").read_text() == report


def test_tries_do_not_go_on_with_other_data_or_weights(tmp_path):
    options = other_text(tmp_path / "a.txt", "two")
    design = quick("model.num_heads=4,1", **options)
    journal = Journal(tmp_path / "base")
    journal.begin(design.config, {"metric": "loss", "margin": 0.0, "gate": None})

    def prepared(value, key="model.num_heads"):
        this = journal.try_of({key: value})
        with StopSignal() as stop:
            return this, TrainedPairs(journal, this, Silent(), stop, ())

    this, pairs = prepared("1")
    journal.note(this, pairs.files)
    prepared("2")
    with pytest.raises(InvalidInput, match="different targets are scored; expected the same data"):
        prepared("0.97,0.02,0.01", "data.splits")  # with the same test split
    other_text(tmp_path / "a.txt", "too")
    words = r"--base=.*: the data or initial weights of arm 'base' have changed"
    with pytest.raises(InvalidInput, match=words):
        prepared("2")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    arms = {"base": SimpleNamespace(config=tiny_config(initial__weights=str(weights)), data="")}
    before = same_files(arms, {}, "--base=b")
    assert same_files(arms, before, "--base=b") == before
    weights.write_bytes(b"two")
    with pytest.raises(InvalidInput, match=words):
        same_files(arms, before, "--base=b")


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        ({"JAX_PLATFORMS": "cuda"}, "jax.devices()", "error: JAX_PLATFORMS=cuda: jax has no such"),
        (
            {"MPLBACKEND": "module://ipympl.backend_nbagg"},
            "__import__('matplotlib').get_backend()",
            "",
        ),
        ({"PYTHONOPTIMIZE": "2"}, "__import__('experiments.train').train", ""),
    ],
)
def test_the_environment_of_a_notebook_or_container_ends_no_command(changes, code, told):
    program = f"import jax; from experiments.command import execute; execute(lambda _: {code})"
    done = run_python("-c", program, **changes)
    assert (done.returncode, done.stderr[: len(told)]) == (2 if told else 0, told), done.stderr


def test_a_step_that_may_not_be_compiled_is_refused():
    with jax.disable_jit(), pytest.raises(InvalidInput, match="JAX_DISABLE_JIT"):
        _ = prepare(tiny_config()).program


def test_nothing_is_deleted_without_a_terminal_to_ask_at(tiny_run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert not agrees("delete?")


def test_a_signal_while_a_command_ends_breaks_into_nothing():
    def main(_):
        raise Interrupted(signal.SIGINT, "saved")

    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit, match="130"):
            execute(main, [])
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_stored_change_of_the_code_can_be_applied(tmp_path, monkeypatch):
    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "a.py").write_bytes(b"# caf\xe9\nx = 1\n")
    (tmp_path / "b.bin").write_bytes(b"\0\1")
    for words in (["init"], ["add", "."], ["commit", "-m", "a"]):
        git(*words)
    git("config", "color.ui", "always")
    git("config", "diff.external", "false")
    (tmp_path / "a.py").write_bytes(b"# caf\xe9\nx = 2\n")
    (tmp_path / "b.bin").write_bytes(b"\0\2")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "a.py"))
    _, difference = provenance.surroundings.__wrapped__()
    replace(tmp_path, "diff.patch", difference)
    git("checkout", ".")
    git("apply", "diff.patch")
    assert (tmp_path / "a.py").read_bytes().endswith(b"x = 2\n")
    assert (tmp_path / "b.bin").read_bytes() == b"\0\2"


def test_more_heads_than_features_are_refused():
    for name in ("learned", "rotary"):
        flags = ("--config.model.num_heads=64", f"--config.model.position={name}", "--dry_run")
        done = attempt("plan", "--config=configs/tiny.py", *flags[:2])
        refused(done, "num_heads=64: expected a divisor of width=32")


@pytest.mark.parametrize(
    "option",
    [{"top_k": 40.0}, {"top_p": None}, {"temperature": "1"}, {"num_tokens": 5.0}, {"prompt": 5}],
)
def test_options_of_sampling_that_are_no_numbers_are_refused(tiny_run, option):
    with pytest.raises(InvalidInput, match=f"{next(iter(option))}: expected|list of texts"):
        load_run(tiny_run).sample(**option)


def test_streamed_bytes_become_the_characters_that_all_of_them_make(tiny_run, monkeypatch):
    library = pytest.importorskip("tokenizers")
    words = ["a", *(f"<0x{byte:02X}>" for byte in range(256))]
    numbers = {word: number for number, word in enumerate(words)}
    made = library.Tokenizer(library.models.BPE(numbers, [], byte_fallback=True))
    made.decoder = library.decoders.Sequence([library.decoders.ByteFallback()])
    run = dataclasses.replace(load_run(tiny_run), tokenizer=HuggingFaceTokenizer(made))
    made.add_special_tokens([end := "</s>"])
    first, last = "\n\N{GRINNING FACE}\na\u01e5", b"\xe0\xf0"
    drawn = [*made.encode(f"a{first}{end}").ids, *(1 + byte for byte in last), 0]
    for count in range(1, len(drawn) + 1):
        tokens = np.array(drawn[:count])
        monkeypatch.setattr(sampling, "stream_from", lambda *_, t=tokens, **__: iter(t[:, None]))
        monkeypatch.setattr(sampling, "generate_from", lambda *_, t=tokens, **__: t)
        assert "".join(run.stream("a", count)) == run.sample("a", count)
    for ends in (end, ["x", end]):
        assert "".join(run.stream("a", count, stop=ends)) == f"a{first}"
        assert run.sample("a", count, stop=ends) == f"a{first}"
    with pytest.raises(InvalidInput, match="expected the special token '</s>' alone"):
        run.sample("a", count, stop=f"{end}\n")
    monkeypatch.setattr(sampling, "generate_from", lambda *_, **__: np.array([0, 300]))
    with pytest.warns(UserWarning, match=r"1 of 2 tokens drawn are not in .* \(e\.g\. 300\)"):
        assert run.sample("a", 2) == "a"


def test_items_that_are_there_twice_are_refused(tmp_path):
    def file(name, **fields):
        rows = [{"doc_id": 0, "acc": 1.0}, {"doc_id": 1, "acc": 0.0}, {"acc": 1.0, **fields}]
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return tmp_path / name

    with pytest.raises(InvalidInput, match=r"row 3: the item is there twice \(doc_id=1, filter=b"):
        read_answers([file("a.jsonl", doc_id=1, filter="b")], "acc")
    files = [file(f"{name}.jsonl", doc_id=2, doc_hash=name) for name in "ab"]
    with pytest.raises(InvalidInput, match="they differ in doc_hash in row 3"):
        read_answers(files, "acc")


def test_runs_without_a_partner_are_counted(tmp_path):
    rows = [f"{arm},{seed + 2 * (arm == 'b')},{seed}\n" for arm in "ab" for seed in range(5)]
    done = judged(tmp_path, "arm,seed,value\n" + "".join(rows), f"--scores={tmp_path / 'a.csv'}")
    assert " 3 of 5 " in done.stdout
    assert all(f"note   {arm} has no seed " in done.stdout for arm in ("a", "b"))


def test_logs_that_end_within_a_line_are_told(tmp_path):
    lines = [f"step {step}: train loss 2.9, val loss 2.8983\n" for step in (0, 250)]
    (tmp_path / "a-0.log").write_text("".join(lines)[:-4])
    with pytest.warns(UserWarning, match="val loss 2.8' has no line end; not read"):
        (curve,) = read_curves([tmp_path]).values()
    assert (curve.steps, curve.values) == ([0], [2.8983])
    (tmp_path / "a-0.log").rename(tmp_path / "a-0.csv").write_text("step,val_loss\n1,2.8983\n2,2.8")
    with pytest.warns(UserWarning, match="the last line has no line end"):
        read_curves([tmp_path])


def test_arrays_that_are_not_read_are_told(tmp_path):
    arrays = {"vectors": np.zeros((4, 2, 1), np.float32), "labels": np.arange(4) % 2}
    np.savez(tmp_path / "a.npz", **arrays, mask=np.ones(4))
    assert load_vectors(str(tmp_path / "a.npz")).remarks == (
        f"{tmp_path / 'a.npz'}: arrays not read: mask",
    )
    np.savez(tmp_path / "a.npz", **arrays, labels_test=np.ones(4))
    with pytest.raises(InvalidInput, match="array labels_test would not be read"):
        load_vectors(str(tmp_path / "a.npz"))


def test_runs_that_were_evaluated_at_other_updates_are_told_with_a_target(tmp_path):
    for name, every in (("a-0", 50), ("b-0", 250)):
        lines = [f"step {s}: train loss 1, val loss {9 - s / 100}\n" for s in range(0, 501, every)]
        (tmp_path / f"{name}.log").write_text("".join(lines))
    curves = read_curves([tmp_path])
    (told,) = rows_of_curves(curves, target=5.0).warnings
    assert told.startswith("runs have values at different updates")
    assert not rows_of_curves(curves).warnings
