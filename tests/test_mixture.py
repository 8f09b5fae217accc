"""Several texts as one: what is drawn from which, what is evaluated, what is refused."""

import json
import math
import shutil

import numpy as np
import pytest

from tests.conftest import attempt, tiny_config
from transformer_jax.data import baselines, order
from transformer_jax.data.order import Part
from transformer_jax.data.sources import shards as shards_module
from transformer_jax.data.sources import stream as stream_module
from transformer_jax.data.sources.mixture import mixed_window_starts
from transformer_jax.data.sources.shards import write_shards
from transformer_jax.data.sources.text import load_text, read_pieces
from transformer_jax.data.tokenizers import make_tokenizer
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.progress import Silent
from transformer_jax.training.build import make_task
from transformer_jax.training.loop import train

PARTS = (Part("a", 0.5, 0, 1000), Part("b", 0.3, 1000, 5000), Part("c", 0.2, 6000, 333))
LENGTH = 8


def owners_of(starts):
    return np.searchsorted([part.begin for part in PARTS], starts, side="right") - 1


def test_of_a_thousand_examples_each_part_has_its_share_and_no_window_leaves_its_part():
    starts = np.concatenate([mixed_window_starts(3, s, 40, PARTS, LENGTH) for s in range(100)])
    for first in range(0, 4000, 1000):
        counts = np.bincount(owners_of(starts[first : first + 1000]), minlength=3)
        assert list(counts) == [500, 300, 200]
    for owner, part in enumerate(PARTS):
        mine = starts[owners_of(starts) == owner]
        assert mine.min() >= part.begin
        assert mine.max() + LENGTH + 1 <= part.begin + part.count


def test_each_part_goes_through_epochs_of_its_own():
    starts = np.concatenate([mixed_window_starts(3, s, 50, PARTS, LENGTH) for s in range(60)])
    for owner, part in enumerate(PARTS):
        windows = (part.count - 1) // LENGTH - 1
        mine = starts[owners_of(starts) == owner]
        assert len(mine) == round(3000 * part.share)
        for first in range(0, len(mine) - windows + 1, windows):
            assert len(set(mine[first : first + windows])) == windows  # each once in an epoch
    assert len(set(starts[owners_of(starts) == 2])) > (PARTS[2].count - 1) // LENGTH - 1  # the grid


def test_what_a_step_has_follows_from_the_step_alone():
    whole = mixed_window_starts(5, 0, 2400, PARTS, LENGTH)
    parts = [mixed_window_starts(5, step, 24, PARTS, LENGTH) for step in reversed(range(100))]
    np.testing.assert_array_equal(whole, np.concatenate(parts[::-1]))
    other = mixed_window_starts(6, 0, 2400, PARTS, LENGTH)
    assert (owners_of(other) != owners_of(whole)).any()


@pytest.mark.parametrize("count", [1, 2, 3, 17, 64, 65, 1000, 4096, 10_007])
def test_an_order_that_memory_does_not_hold_is_a_permutation_too(monkeypatch, count):
    monkeypatch.setattr(order, "_LARGEST_ARRAY", 0)
    order._permutation.cache_clear()
    epochs = [order.example_order(3, step, count, count)[0] for step in (0, 1)]
    order._permutation.cache_clear()
    for examples in epochs:
        np.testing.assert_array_equal(np.sort(examples), np.arange(count))
    if count > 60:
        assert (epochs[0] != epochs[1]).mean() > 0.9
        assert abs(np.corrcoef(epochs[0], np.arange(count))[0, 1]) < 4 / math.sqrt(count)
        assert abs(np.corrcoef(epochs[0][1:], epochs[0][:-1])[0, 1]) < 4 / math.sqrt(count)


def test_an_epoch_of_a_trillion_examples_costs_no_memory():
    examples, epochs = order.example_order(0, 10**8, 64, 10**12)
    assert len(set(examples)) == 64
    assert examples.min() >= 0
    assert 10**11 < examples.max() < 10**12
    assert not epochs.any()


@pytest.fixture
def files(tmp_path):
    texts = {"a": "abc\n" * 500, "b": "".join(f"{n}: bcd\n" for n in range(300)), "c": "cab\n" * 99}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text)
    return tmp_path


def config_of(files, mixture, **changes):
    options = {"data__source": files / "b.txt", "data__tokenizer": "byte", "data__length": 16}
    return tiny_config(**options, data__mixture=mixture, **changes)


def task_of(files, mixture, **changes):
    return make_task(config_of(files, mixture, **changes))


@pytest.mark.thorough
def test_a_run_of_a_mixture_scores_one_source_alone_and_knows_its_texts(files, tmp_path):
    config = config_of(files, f"{files}/a.txt=0.25", training__steps=12)
    run = tmp_path / "run"
    train(config, run, Silent())
    whole = RunDirectory(run).evaluation()["test"]["protocol"]["targets"]
    alone = attempt("evaluate", f"--workdir={run}", f"--source={files}/a.txt", "--json")
    assert 0 < json.loads(alone.stdout)["protocol"]["targets"] < whole, alone.stderr
    (files / "a.txt").write_text("cba\n" * 500)
    with pytest.raises(InvalidInput, match="the data has changed"):
        train(config, run, Silent())


def test_a_mixture_is_read_split_and_scored_source_by_source(files):
    task = task_of(files, f"{files}/a.txt=0.25,{files}/c.txt=0.15", data__separate_documents=True)
    assert [part.share for part in task.parts] == [0.6, 0.25, 0.15]
    (remark,) = task.remarks
    assert "60.0%" in remark
    assert "a.txt" in remark
    rows = np.concatenate([task.batch(0, step)["inputs"]["tokens"] for step in range(125)])
    assert len(rows) == 1000
    assert sum(b":" in row.tobytes() for row in rows.astype(np.uint8)) == 600  # of source b
    shares = tuple(tiny_config().data.splits)
    alone = [load_text(str(files / f"{n}.txt"), "byte").stream.split(shares)["test"] for n in "bac"]
    expected = np.concatenate([s.windows(np.zeros(1, int), len(s))[0] for s in alone])
    scored = [b["targets"][b["weights"] > 0] for b in task.evaluation_batches("test", 4)]
    firsts = np.cumsum([0, *(len(s) for s in alone[:-1])])  # of documents: nothing predicts them
    np.testing.assert_array_equal(np.concatenate(scored), np.delete(expected, firsts))
    assert set(task.clusters("test")) == {0, 1, 2}


def test_counts_of_a_long_mixture_are_of_all_its_sources(files, monkeypatch):
    """The gate of a study would else know the first source alone, and be scored on all."""
    monkeypatch.setattr(baselines, "_MOST_TOKENS", 400)  # fewer than there are
    counted, of_rows = [], baselines.NGrams.of_rows
    noted = lambda rows, *more: counted.append(rows) or of_rows(rows, *more)
    monkeypatch.setattr(baselines.NGrams, "of_rows", noted)
    baselines.baselines_of(task_of(files, f"{files}/a.txt=0.25,{files}/c.txt=0.15"), 1)
    last = counted[0][:, -1]
    assert len(last) == pytest.approx(400, abs=3)
    digits = np.isin(last, [ord(c) for c in "0123456789: d"])
    assert 0 < digits.sum() < 240, "source b alone has digits and spaces"
    assert digits[:230].any()
    assert not digits[245:].any()


def test_where_the_files_lie_does_not_matter(files):
    shutil.copytree(files, files / "moved")
    first, moved, other = (
        task_of(folder, f"{folder}/a.txt={share}").facts["sha256"]
        for folder, share in ((files, 0.25), (files / "moved", 0.25), (files, 0.26))
    )
    assert first == moved != other


@pytest.mark.parametrize(
    ("mixture", "told"),
    [
        ("{files}/a.txt=0.25,{files}/a.txt=0.25", "occurs twice"),
        ("{files}/b.txt=0.25", "occurs twice"),
        ("{files}/a.txt=0.7,{files}/c.txt=0.3", "mixture=.*expected"),
        ("{files}/a.txt=0", "mixture=.*expected"),
        ("{files}/a.txt", "mixture=.*expected"),
        ("{files}/none.txt=0.5", "none.txt"),
        ("{files}/shards=0.5", "tokenizer differs"),
        ("{files}/short.txt=0.5", "too few"),
    ],
)
def test_a_wrong_mixture_is_refused(files, mixture, told):
    (files / "short.txt").write_text("abc\n" * 5)
    source = str(files / "a.txt")
    tokenizer = make_tokenizer("char", lambda: ["abc\n"], 0, lambda: ["abc\n"])
    write_shards(read_pieces(source), tokenizer, files / "shards")
    with pytest.raises(InvalidInput, match=told):
        task_of(files, mixture.format(files=files))


def test_shards_are_split_by_bytes_without_reading_them(files, monkeypatch):
    for module in (shards_module, stream_module):
        monkeypatch.setattr(module, "COUNTED_AT_ONCE", 100)
    folder, shares = files / "s", (0.6, 0.3, 0.1)
    tokenizer = make_tokenizer("bpe", lambda: [(files / "b.txt").read_text()], 300, None)
    count = write_shards(read_pieces(str(files / "b.txt")), tokenizer, folder, 250)
    index = json.loads((folder / "index.json").read_text())
    assert len(index["byte_ends"]) == -(-count // 100)
    assert index["byte_ends"][-1] == (files / "b.txt").stat().st_size

    def stream_now():
        (folder / "index.json").write_text(json.dumps(index))
        return load_text(str(folder), "ignored").stream

    fast = stream_now()
    read, tokens_at = [], type(fast.tokens).__getitem__

    def counted(self, indices):
        tokens = tokens_at(self, indices)
        read.append(tokens.size)
        return tokens

    monkeypatch.setattr(type(fast.tokens), "__getitem__", counted)
    ours = fast.split(shares, tokenizer.token_bytes)
    assert sum(read) <= 2 * 100  # the pieces in which a split begins
    assert len(fast.byte_ends) == len(index["byte_ends"])
    index["byte_ends"].pop()
    assert stream_now().byte_ends is None
    del index["byte_ends"]  # as older shards are
    slow = stream_now().split(shares, tokenizer.token_bytes)
    assert [(s.begin, s.end) for s in ours.values()] == [(s.begin, s.end) for s in slow.values()]
