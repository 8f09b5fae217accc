"""Made-up languages: their answers, their floors, and who gets down to them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import attempt, refused, tiny_config
from transformer_jax.data.ngrams import NOTHING, NGrams, context_rows
from transformer_jax.data.sources.files import EMBEDDED
from transformer_jax.data.sources.synthetic import LANGUAGES, load_language
from transformer_jax.data.tasks.synthetic import SyntheticTask
from transformer_jax.errors import InvalidInput
from transformer_jax.generation import feed_back
from transformer_jax.training.build import make_task
from transformer_jax.training.prepared import prepare


def language(source, length=16, symbols=8):
    return load_language(source, length, symbols)


def drawn(source, size=400, **sizes):
    found = language(source, **sizes)
    examples = found.draw(np.random.default_rng(0), size)
    return found, examples


def test_the_names_of_sources_are_those_of_the_table():
    assert set(EMBEDDED["made-up languages"]) == set(LANGUAGES)


@pytest.mark.parametrize("source", LANGUAGES)
def test_examples_fit_the_model_and_the_vocabulary(source):
    found, (tokens, scored) = drawn(source)
    assert tokens.shape[1] - 1 <= 16
    assert tokens.min() >= 0
    assert tokens.max() < len(found.words)
    assert len(set(found.words)) == len(found.words)
    assert scored.any(1).all()
    assert not scored[:, 0].any()


def test_copies_and_reversals():
    for source, order in (("copy", 1), ("reverse", -1)):
        _, (tokens, scored) = drawn(source)
        np.testing.assert_array_equal(tokens[:, :8][:, ::order], tokens[:, 9:])
        assert (tokens[:, 8] == 8).all()
        assert scored[0].tolist() == [False] * 9 + [True] * 8


def test_recall_asks_for_the_values_of_all_keys():
    found, (tokens, scored) = drawn("recall")
    assert tokens.shape[1] == 16
    for row in tokens[:50]:
        pairs = dict(zip(row[:8:2], row[1:8:2], strict=True))
        assert len(pairs) == 4
        assert pairs == dict(zip(row[8::2], row[9::2], strict=True))
    assert scored[0].tolist() == [False] * 8 + [False, True] * 4
    assert found.words[int(tokens[0, 1])].isupper()


def test_verbs_agree_with_the_first_noun():
    found, (tokens, _) = drawn("agreement")
    agree, lengths = set(), set()
    for row in tokens:
        words = [found.words[token] for token in row]
        back = len(words) - 2 - words.index("the")
        subject = words[-1 - back]
        lengths.add(back)
        assert words[-1] == ("are" if subject.endswith("s") else "is")
        assert all(word == "." for word in words[: -2 - back])
        distractors = words[len(words) - back + 2 : -1 : 3]
        agree |= {d.endswith("s") == subject.endswith("s") for d in distractors}
    assert agree == {True, False}
    assert len(lengths) == 5


def test_sums_are_shared_out_and_right():
    config = {
        "data__task": "synthetic",
        "data__source": "modular_addition",
        "data__symbols": 11,
    }
    task = make_task(tiny_config(**config, data__splits="(0.6,0.1,0.3)"))
    rows = {split: task.listed.tokens[indices] for split, indices in task.splits.items()}
    parts = {split: {tuple(row) for row in tokens[:, :2]} for split, tokens in rows.items()}
    assert set.union(*parts.values()) == set(itertools.product(range(11), repeat=2))
    assert sum(map(len, parts.values())) == 121
    assert all((row[0] + row[1]) % 11 == row[3] for tokens in rows.values() for row in tokens)
    batch = task.batch(0, 3)
    assert {tuple(row[:2]) for row in batch["inputs"]["tokens"]} <= parts["train"]


def test_the_floor_of_a_chain_is_its_entropy_rate():
    """Against the rate at which a bigram of many counts predicts it, and against the definition."""
    found, (tokens, _) = drawn("markov", size=20_000)
    pairs = np.stack([tokens[:, :-1].ravel(), tokens[:, 1:].ravel()])
    counts = np.zeros((8, 8))
    np.add.at(counts, tuple(pairs), 1)
    joint = counts / counts.sum()
    empirical = -(joint * np.log(joint / joint.sum(1, keepdims=True))).sum()
    assert abs(empirical - found.floor) < 0.004
    assert 0.5 < found.floor < np.log(8)


def test_batches_are_functions_of_seed_and_step_and_splits_of_neither():
    task = make_task(tiny_config(data__task="synthetic", data__source="recall"))
    assert isinstance(task, SyntheticTask)
    same = [task.batch(3, 5)["inputs"]["tokens"] for _ in range(2)]
    np.testing.assert_array_equal(*same)
    assert (task.batch(3, 6)["inputs"]["tokens"] != same[0]).any()
    assert (task.batch(4, 5)["inputs"]["tokens"] != same[0]).any()
    validation, test = (task.listed.tokens[task.splits[name]] for name in ("validation", "test"))
    assert len(validation) == len(test) == 512
    assert (validation != test).any()
    batches = list(task.evaluation_batches("test", 200))
    assert [batch["weights"].sum() for batch in batches] == [800, 800, 448]


def test_what_cannot_be_is_refused(tmp_path):
    base = (
        "train",
        "--config=configs/tiny.py",
        f"--workdir={tmp_path / 'x'}",
        "--config.data.task=synthetic",
    )
    refused(attempt(*base), "data.source=shakespeare", "copy, reverse, recall")
    too_many = (*base, "--config.data.source=recall", "--config.data.symbols=3")
    refused(attempt(*too_many), "data.symbols=3", "at least 4")
    nouns = (*base, "--config.data.source=agreement", "--config.data.symbols=9")
    refused(attempt(*nouns), "there are 8 nouns")
    encoder = (*base, "--config.data.source=copy", "--config.model.architecture=encoder")
    refused(attempt(*encoder), "decoder or recurrent_decoder")


# ---------------------------------------------------------------- n-grams


def plain_kneser_ney(text, vocab_size, order):
    """The formula, letter by letter, with dictionaries: log p(w | h) for h of any length."""

    def counts_of(n):
        grams = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
        if n == order:
            return {g: grams.count(g) for g in set(grams)}
        wider = {tuple(text[i : i + n + 1]) for i in range(len(text) - n)}
        return {g: sum(w[1:] == g for w in wider) for g in {w[1:] for w in wider}}

    counts = {n: counts_of(n) for n in range(1, order + 1)}

    def discount(n):
        once, twice = (list(counts[n].values()).count(k) for k in (1, 2))
        return once / (once + 2 * twice) if once else 0.5

    def p(word, history):
        n = len(history) + 1
        lower = p(word, history[1:]) if history else 1 / vocab_size
        after = {g: c for g, c in counts[n].items() if g[:-1] == history}
        if not after:
            return lower
        d, total = discount(n), sum(after.values())
        own = max(after.get((*history, word), 0) - d, 0)
        return (own + d * len(after) * lower) / total

    return p


def n_grams(tokens, vocab_size, order):
    """A model of a whole text."""
    begun = np.concatenate([np.full(order - 1, NOTHING), tokens])
    rows = np.lib.stride_tricks.sliding_window_view(begun, order)
    return NGrams.of_rows(rows, vocab_size)[-1]


def losses(fitted, batch):
    """[B, L], of the targets that count."""
    rows = context_rows(batch, range(2 - len(fitted.orders), 1))
    return -fitted.log_probabilities(rows[..., :-1], rows[..., -1]) * batch["weights"]


def test_kneser_ney_is_the_formula(rng):
    text = rng.integers(0, 5, 60)
    fitted = n_grams(text, 5, 3)
    p = plain_kneser_ney(text.tolist(), 5, 3)
    for length in (0, 1, 2):
        for history in itertools.product(range(5), repeat=length):
            contexts = np.tile(np.array(history, int), (5, 1)).reshape(5, length)
            ours = np.exp(fitted.log_probabilities(contexts, np.arange(5)))
            np.testing.assert_allclose(ours, [p(word, history) for word in range(5)], atol=1e-12)
            assert ours.sum() == pytest.approx(1)


def test_a_bigram_reaches_the_floor_of_a_chain():
    found, (tokens, scored) = drawn("markov", size=20_000)
    text = language("markov", length=60_000).draw(np.random.default_rng(5), 1).tokens[0]
    fitted = n_grams(text, 8, 2)
    weights = scored[:, 1:].astype(float)
    batch = {"inputs": {"tokens": tokens[:, :-1]}, "targets": tokens[:, 1:], "weights": weights}
    assert abs(losses(fitted, batch).sum() / weights.sum() - found.floor) < 0.005


def test_n_grams_read_no_further_than_their_window():
    fitted = n_grams(np.arange(40) % 7, 7, 3)
    batch = {
        "inputs": {"tokens": np.array([[1, 2, 3]])},
        "targets": np.array([[2, 3, 4]]),
        "weights": np.ones((1, 3)),
    }
    alone = -fitted.log_probabilities(np.array([[1]]), np.array([2]))
    np.testing.assert_allclose(losses(fitted, batch)[0, 0], alone)


def test_n_grams_of_large_vocabularies_are_the_formula(rng):
    """Tokens as digits of one number would not fit into 64 bits."""
    large = 1_000_000 + rng.integers(0, 4, 80)
    fitted = n_grams(large, 2_000_000, 5)
    p = plain_kneser_ney(large.tolist(), 2_000_000, 5)
    rows = np.lib.stride_tricks.sliding_window_view(large[::-1], 5)
    ours = np.exp(fitted.log_probabilities(rows[:, :-1], rows[:, -1]))
    wanted = [p(int(row[-1]), tuple(row[:-1].tolist())) for row in rows]
    np.testing.assert_allclose(ours, wanted, atol=1e-12)


# ---------------------------------------------------------------- reading one's own output


def next_is(table):
    """A model that says table[token] after each token."""
    return lambda tokens: jax.nn.one_hot(jnp.asarray(table)[tokens], len(table))


def test_what_was_written_is_read():
    """Successor by 2 from a wrong start runs on in the wrong row, as greedy generation does."""
    logits_of = next_is([2, 3, 4, 5, 0, 1])
    tokens = jnp.array([[1, 9, 9, 2, 9]])
    replaced = jnp.array([[False, True, True, False, True]])
    assert feed_back(logits_of, tokens, replaced).tolist() == [[1, 3, 5, 2, 4]]


@pytest.mark.parametrize(("length", "is_refused"), [(9, False), (10, True)])
def test_a_prefix_may_show_the_source_and_no_answer(length, is_refused):
    """Copying 8 of 16 tokens, with a separator behind them: the first answer is the tenth input."""
    asked = {"model__mask": "prefix", "model__mask_options__length": length}
    config = tiny_config(
        data__task="synthetic", data__source="copy", data__length=16, model__max_length=16, **asked
    )
    if not is_refused:
        assert prepare(config)
        return
    with pytest.raises(InvalidInput, match=r"answers that are scored; expected a length of at"):
        prepare(config)
