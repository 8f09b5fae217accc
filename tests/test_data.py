"""Tokenizers, sources, shards and the language-modelling task."""

import dataclasses
import gzip
import hashlib
import json

import jax
import numpy as np
import pytest

from tests.conftest import attempt, refused, tiny_config
from transformer_jax.data import tokenizers
from transformer_jax.data.order import SPLITS, example_order
from transformer_jax.data.sources import shards as shards_module
from transformer_jax.data.sources import stream
from transformer_jax.data.sources.files import EMBEDDED
from transformer_jax.data.sources.shards import write_shards
from transformer_jax.data.sources.stream import Piece, TokenStream
from transformer_jax.data.sources.text import first_texts, load_text, read_pieces
from transformer_jax.data.subword_tokenizers import BPETokenizer, HuggingFaceTokenizer
from transformer_jax.data.tasks.language_modelling import LanguageModelling
from transformer_jax.errors import InvalidInput
from transformer_jax.options import entry_of
from transformer_jax.training import build

HARD_TEXT = (
    "\ufeffpl\u00e4in\r\n\x00 e\u0301 \u05e9\u05dc\u05d5\u05dd \U0001f600\u200d\U0001f680\ttab\n\n"
    * 3
)


def train_tokenizer(source, kind, vocab_size):
    return tokenizers.make_tokenizer(
        kind, lambda: (piece.text for piece in read_pieces(source)), vocab_size
    )


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
def test_c65_hard_text_survives_every_lossless_tokenizer(kind, tmp_path):
    tokenizer = entry_of(tokenizers.TOKENIZERS, kind).train([HARD_TEXT], 300)
    tokens = tokenizer.encode(HARD_TEXT)
    assert tokenizer.decode(tokens) == HARD_TEXT
    assert tokens.dtype == np.int32
    assert 0 <= tokens.min() <= tokens.max() < tokenizer.vocab_size
    assert tokenizer.token_bytes[tokens].sum() == len(HARD_TEXT.encode())
    (tmp_path / "tokenizer.json").write_text(tokenizers.tokenizer_text(tokenizer))
    stored = tokenizers.load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizers.fingerprint(stored) == tokenizers.fingerprint(tokenizer)
    np.testing.assert_array_equal(stored.encode(HARD_TEXT), tokens)


def test_tokens_of_other_tokenizers_are_counted_in_bytes(tmp_path):
    library = pytest.importorskip("tokenizers")
    text = "Straße, naïve: 5 €\n"
    byte_level = BPETokenizer.train([text], 300).to_json()["model"]
    theirs = HuggingFaceTokenizer(library.Tokenizer.from_str(json.dumps(byte_level)))
    assert theirs.token_bytes[theirs.encode(text)].sum() == len(text.encode())
    vocab = {"<s>": 0, "▁": 1, "a": 2, "ß": 3, "▁aß": 4, "<0x0A>": 6}
    model = library.Tokenizer(library.models.BPE(vocab, [], byte_fallback=True))
    model.decoder = library.decoders.Metaspace()
    model.add_special_tokens(["<s>"])
    assert HuggingFaceTokenizer(model).token_bytes.tolist() == [0, 1, 1, 2, 4, 0, 1]
    tokenizers.encode_corpus(HuggingFaceTokenizer(model), "aß<s>ß\n")
    for kind in ("byte", "char", "word"):  # -1 marks places without a target in other code
        with pytest.raises(InvalidInput, match=r"tokens: expected 0 to .* got -1"):
            entry_of(tokenizers.TOKENIZERS, kind).train([text], 9).decode([1, -1])
    losing = HuggingFaceTokenizer(model)
    with pytest.warns(UserWarning, match="loses or adds text, so bits per byte are unknown"):
        write_shards([Piece("aß, ß\n", True)], losing, tmp_path / "shards")
    read = load_text(str(tmp_path / "shards"), "").tokenizer
    assert losing.token_bytes is read.token_bytes is None
    model.decoder = library.decoders.WordPiece()
    assert HuggingFaceTokenizer(model).token_bytes is None


@pytest.mark.parametrize("kind", sorted(tokenizers.TOKENIZERS.keys() - {"numbers"}))
def test_c65_half_a_surrogate_is_refused(kind):
    tokenizer = entry_of(tokenizers.TOKENIZERS, kind).train(["abc"], 300)
    with pytest.raises(InvalidInput, match=r"U\+D800.* at offset 2"):
        tokenizer.encode("ab\ud800")


def test_characters_are_sorted_as_nanogpt_sorts_them():
    tokenizer = tokenizers.CharTokenizer.train(["hello", "world"], 0)
    assert tokenizer.to_json()["symbols"] == "dehlorw"
    assert tokenizer.encode("hold").tolist() == [2, 4, 3, 0]


def test_unknown_character_is_named():
    with pytest.raises(InvalidInput, match=r"'€' \(U\+20AC\) at offset 2") as error:
        tokenizers.CharTokenizer.train(["ab\n"], 0).encode("ab€")
    assert "data.tokenizer=byte" in str(error.value)


def test_bpe_merges_what_is_common():
    tokenizer = BPETokenizer.train(["the cat the dog the hen " * 50], 270)
    assert tokenizer.vocab_size <= 270
    assert len(tokenizer.encode(" the cat")) <= 4


@pytest.mark.parametrize(
    "content", ["", "{", '{"kind": "os.system"}', '{"kind": "bpe", "model": {}}', "[]"]
)
def test_c74_a_damaged_or_foreign_tokenizer_file_is_refused(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InvalidInput, match="expected the JSON of a tokenizer"):
        tokenizers.load_tokenizer(path)


def test_embedded_shakespeare_is_the_published_file():
    text = gzip.decompress(EMBEDDED["text"]["shakespeare"].read_bytes())
    assert hashlib.sha256(text).hexdigest().startswith("86c4e6aa9db7c042")
    loaded = load_text("shakespeare", "char")
    assert loaded.tokenizer.vocab_size == 65
    assert loaded.text_sha256 == hashlib.sha256(text).hexdigest()
    splits = loaded.stream.split((0.9, 0.05, 0.05))
    assert len(splits["train"]) == 1_003_854
    assert len(splits["validation"]) + len(splits["test"]) == 111_540


def test_a_tokenizer_is_trained_on_the_training_split_alone(tmp_path):
    text, table = tmp_path / "text.txt", tmp_path / "pairs.tsv"
    text.write_text("aehnlich und gut\n" * 300 + "zwoelf zwoelf hier\n" * 300)
    for kind in ("word", "bpe"):
        whole, part = (load_text(str(text), kind, 300, None, s).tokenizer for s in (1.0, 0.4))
        assert part.encode("und gut").tolist()
        assert part.to_json() != whole.to_json()
        assert ("zwoelf" in str(part.to_json())) < ("zwoelf" in str(whole.to_json()))
    assert load_text(str(text), "char", train_share=0.4).tokenizer.encode("zwoelf").size == 6
    assert "".join(first_texts(str(text), 0.5)).encode() == text.read_bytes()[: 150 * 36]
    table.write_text("".join(f"{n}{n}\t{n} {n}\n" for n in range(1000, 1400)))
    task = build.make_task(
        tiny_config(
            data__task="translation", data__source=table, data__tokenizer="word",
            model__architecture="encoder_decoder", data__splits="0.5,0.25,0.25",
        )
    )  # fmt: skip
    read = [task.tokenizer.decode(task.tokenizer.encode(pair[0])) for pair in task.pairs]
    known = {split: ["unknown" not in read[i] for i in task.splits[split]] for split in SPLITS}
    assert all(known["train"])
    assert not any(known["validation"] + known["test"])


@pytest.mark.parametrize("counted_at_once", [7, 1 << 24])
def test_a_text_is_cut_at_the_same_letters_by_any_tokens(tmp_path, monkeypatch, counted_at_once):
    """Shares are of bytes: parts of characters, byte pairs and shards differ by a token at most."""
    for module in (stream, shards_module):
        monkeypatch.setattr(module, "COUNTED_AT_ONCE", counted_at_once)
    path, shards, shares = tmp_path / "text.txt", tmp_path / "s", (0.6, 0.3, 0.1)
    path.write_text("Die Häuser waren alt, und der Weg war weit. " * 40 + "aaaa aaaa aaaa " * 40)
    write_shards(read_pieces(str(path)), BPETokenizer.train([path.read_text()], 300), shards)
    parts = {}
    for name, source in (("char", path), ("byte", path), ("bpe", path), ("shards", shards)):
        loaded = load_text(str(source), "bpe" if name == "shards" else name, 300)
        token_bytes = loaded.tokenizer.token_bytes
        splits = loaded.stream.split(shares, token_bytes).values()
        assert sum(map(len, splits)) == len(loaded.stream)
        parts[name] = [sum(token_bytes[s.windows(np.array([0]), len(s))[0]]) for s in splits]
    for name in ("char", "bpe", "shards"):
        assert np.abs(np.subtract(parts[name], parts["byte"])).max() <= token_bytes.max(), parts
    assert parts["shards"] == parts["bpe"]
    by_tokens = loaded.stream.split(shares).values()
    assert [*map(len, by_tokens)] != [*map(len, splits)]  # the second half has longer tokens


def test_pieces_join_to_the_exact_bytes(tmp_path):
    (tmp_path / "b.txt").write_bytes(HARD_TEXT.encode())
    (tmp_path / "a.txt").write_bytes(b"first\nsecond")
    (tmp_path / "ignored.png").write_bytes(b"\xff")
    pieces = [(piece.text, piece.starts_document) for piece in read_pieces(str(tmp_path))]
    assert pieces == [("first\nsecond", True), (HARD_TEXT, True)]


def test_a_line_ends_a_document(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\nmore\n\nthree")
    pieces = list(read_pieces(str(tmp_path / "a.txt"), ""))
    assert [p.text for p in pieces] == ["one\n\n", "two\nmore\n\n", "three"]
    assert all(p.starts_document for p in pieces)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", None, "no such file or folder; embedded text: shakespeare"),
        ("a.txt", b"", "found 0 bytes"),
        ("a.txt", b"ok\nbad \xe9\n", "got byte 0xE9 at offset 7"),
        ("a.gz", gzip.compress(b"abc" * 99, mtime=0)[:-9], "cannot be read"),
        ("", None, "the folder contains no .txt or .txt.gz or .jsonl"),
    ],
)
def test_c66_unusable_sources_are_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        load_text(str(tmp_path / name), "char")


def test_c66_a_text_shorter_than_a_window_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("abc" * 50)
    stream, tokenizer, _ = load_text(str(tmp_path / "a.txt"), "char")
    with pytest.raises(InvalidInput, match=r"\(validation\): 7 tokens are too few .*data.length=8"):
        LanguageModelling(tokenizer, stream.split((0.9, 0.05, 0.05)), 8, 2)


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_shards_give_the_same_batches_as_memory(tmp_path, kind):
    source, shards = tmp_path / "text.txt", tmp_path / "shards"
    lines = [f"line {i} of some text\n" + ("\n" if i % 7 == 0 else "") for i in range(400)]
    source.write_text("".join(lines))
    tokenizer = train_tokenizer(str(source), kind, 300)
    memory = load_text(str(source), tokenizer, document_separator="")
    count = write_shards(read_pieces(str(source), ""), tokenizer, shards, 1000, "")
    assert count == len(memory.stream)
    assert len(list(shards.glob("*.bin"))) == -(-count // 1000)
    assert load_text(str(shards), kind, 300, "").stream.document_starts.size > 50
    with pytest.raises(InvalidInput, match=r"separator='---': the documents in .* were made with"):
        load_text(str(shards), kind, 300, "---")
    mapped = load_text(str(shards), "ignored")
    assert mapped.text_sha256 == memory.text_sha256
    tasks = [
        LanguageModelling(l.tokenizer, l.stream.split((0.8, 0.1, 0.1)), 16, 4, True)
        for l in (memory, mapped)
    ]
    for step in (0, 1, 50):
        jax.tree.map(np.testing.assert_array_equal, *(task.batch(3, step) for task in tasks))


@pytest.fixture
def shards(tmp_path):
    """Two shards of 150 tokens and one of 100."""
    source = tmp_path / "text.txt"
    source.write_text("abc\n" * 100)
    tokenizer = train_tokenizer(str(source), "char", 0)
    write_shards(read_pieces(str(source)), tokenizer, tmp_path / "shards", 150)
    return tmp_path / "shards"


def test_damaged_shards_are_refused(shards):
    shard = shards / "tokens-00001.bin"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-2])
    with pytest.raises(InvalidInput, match=r"tokens-00001.bin: expected 300 bytes, found 298"):
        load_text(str(shards), "char")
    shard.write_bytes(whole)
    tokenizer = shards / "tokenizer.json"
    whole = tokenizer.read_text()
    tokenizer.write_text(tokenizers.tokenizer_text(tokenizers.CharTokenizer.train(["ab"], 0)))
    stream = load_text(str(shards), "char").stream
    with pytest.raises(InvalidInput, match=r"token 3 is outside the vocabulary of 2 tokens"):
        stream.windows(np.array([100]), 100)
    tokenizer.write_text(whole)
    index = json.loads((shards / "index.json").read_text())
    index["shards"][0]["file"] = "../../etc/passwd"
    (shards / "index.json").write_text(json.dumps(index))
    with pytest.raises(InvalidInput, match="rebuild the shards"):
        load_text(str(shards), "char")


@pytest.mark.parametrize("most", [1 << 30, 0])
def test_shards_whose_tokens_were_changed_are_refused(shards, monkeypatch, most):
    monkeypatch.setattr(shards_module, "_HASHED_WHOLE", most)
    monkeypatch.setattr(shards_module, "_PART", 2)
    files = [shards / "tokens-00000.bin", shards / "tokens-00001.bin", shards / "documents.npy"]
    index = json.loads((shards / "index.json").read_text())
    index["sha256"] = shards_module._digest(shards, [s["file"] for s in index["shards"]])
    (shards / "index.json").write_text(json.dumps(index))
    load_text(str(shards), "char")
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(InvalidInput, match="are not those of index"):
            load_text(str(shards), "char")
        file.write_bytes(whole)


def test_c73_an_object_array_planted_in_shards_is_never_unpickled(shards):
    np.save(shards / "documents.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(InvalidInput, match="not a readable folder of shards"):
        load_text(str(shards), "char")


def test_the_command_makes_shards_and_refuses_by_name(tmp_path):
    source = tmp_path / "text.txt"
    source.write_text("a rose is a rose is a rose\n" * 200)
    shards, free = f"--out={tmp_path / 'shards'}", f"--out={tmp_path / 'free'}"
    flags = (f"--source={source}", shards, "--vocab_size=280", "--shard_tokens=500")
    made = attempt("make_shards", *flags)
    assert "tokens of" in made.stdout, made.stderr
    refused(attempt("make_shards", *flags), shards, "new or an empty folder")
    refused(attempt("make_shards", "--source=nowhere", free), "error: --source=nowhere")
    below = f"--out={source}/below"
    refused(attempt("make_shards", flags[0], below), below, "expected a new or an empty folder")
    refused(attempt("make_shards", flags[0], free, "--shard_tokens=0"), "--shard_tokens=0")
    refused(attempt("make_shards", flags[0], free, "--vocab_size=-5"), "--vocab_size=-5", "257")
    unread = attempt("make_shards", *flags[:1], *flags[2:], free, "--tokenizer=byte")
    refused(unread, "--vocab_size: not read with --tokenizer=byte")
    assert not (tmp_path / "free").exists()


@pytest.mark.parametrize("batch_size", [1, 3, 7, 10])
def test_c64_each_example_once_per_epoch_for_any_batch_size(batch_size):
    examples = [example_order(5, step, batch_size, 10)[0] for step in range(10 * 3)]
    flat = np.concatenate(examples)
    for epoch in range(len(flat) // 10):
        assert sorted(flat[epoch * 10 : epoch * 10 + 10]) == list(range(10))
    assert not np.array_equal(flat[:10], flat[10:20])


def test_c62_neighbouring_seeds_have_other_orders():
    first, second = (example_order(seed, 0, 100, 100)[0] for seed in (0, 1))
    assert (first == second).mean() < 0.1


def make_task(text="abcdefghijklmnopqrstuvwxyz", starts=(0,), length=4, end=None, **options):
    tokenizer = tokenizers.CharTokenizer.train([text], 0)
    tokens = tokenizer.encode(text)
    stream = TokenStream(tokens, np.array(starts), 0, len(tokens), "test")
    part = dataclasses.replace(stream, end=end or len(tokens))
    splits = {"train": stream, "validation": stream, "test": part}
    return LanguageModelling(tokenizer, splits, length, 2, **options)


def test_a_batch_of_four_tokens_written_out():
    (batch,) = make_task("abcdefghi", end=8).evaluation_batches("test", 2)
    assert batch["inputs"]["tokens"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batch["targets"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 0]]
    assert batch["weights"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]


def test_packed_documents_written_out():
    task = make_task("abcdefghi", starts=(0, 2, 5), end=8, separate_documents=True)
    (batch,) = task.evaluation_batches("test", 2)
    assert batch["inputs"]["segments"].tolist() == [[1, 1, 2, 2], [1, 2, 2, 2]]
    assert batch["inputs"]["positions"].tolist() == [[0, 1, 0, 1], [0, 0, 1, 2]]
    assert batch["weights"].tolist() == [[1, 0, 1, 1], [0, 1, 1, 0]]


def test_training_batches_cover_the_text():
    task, seen = make_task(length=4), set()
    for step in range(40):
        batch = task.batch(7, step)
        np.testing.assert_array_equal(batch["inputs"]["tokens"][:, 1:], batch["targets"][:, :-1])
        assert batch["weights"].min() == 1
        seen |= set(batch["inputs"]["tokens"].ravel().tolist())
    assert seen == set(range(25))  # the last token is a target only
    assert not np.array_equal(task.batch(7, 0)["targets"], task.batch(8, 0)["targets"])


@pytest.mark.parametrize("length", [3, 5, 8])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_evaluation_scores_every_token_but_the_first_once(length, stride, batch_size):
    task = make_task(length=length, stride=stride)
    scored = np.zeros(26)
    for batch in task.evaluation_batches("test", batch_size):
        assert batch["targets"].shape == (batch_size, length)
        np.add.at(scored, batch["targets"], batch["weights"])
    assert scored.tolist() == [0] + [1] * 25


def test_c69_bytes_are_those_of_the_scored_text():
    task = make_task("aé€😀" * 6, length=5, stride=2)
    total = sum(task.scored_bytes(batch).sum() for batch in task.evaluation_batches("test", 3))
    assert total == len(("aé€😀" * 6).encode()) - len(b"a")
