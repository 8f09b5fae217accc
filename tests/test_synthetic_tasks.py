"""Made-up languages: their answers, their floors, and who gets down to them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import tiny_config
from transformer_jax.data.ngrams import NOTHING, NGrams, context_rows
from transformer_jax.data.sources.files import EMBEDDED
from transformer_jax.data.sources.synthetic import LANGUAGES, load_language
from transformer_jax.errors import InvalidInput
from transformer_jax.training.build import make_task
from transformer_jax.training.prepared import prepare
from transformer_jax.training.showcases import feed_back


def drawn(source, size=400, length=16):
    language = load_language(source, length, 8)
    listed = language.examples
    examples = listed(np.random.default_rng(0), size) if callable(listed) else listed
    return language, examples


def task_of(source, **changes):
    return make_task(tiny_config(data__task="synthetic", data__source=source, **changes))


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
        first = words.index("the")
        subject = words[first + 1]
        lengths.add(first)
        assert words[-1] == ("are" if subject.endswith("s") else "is")
        assert set(words[:first]) <= {"."}
        agree |= {d.endswith("s") == subject.endswith("s") for d in words[first + 4 : -1 : 3]}
    assert agree == {True, False}
    assert len(lengths) == 5


def test_sums_are_shared_out_and_right():
    task = task_of("modular_addition", data__symbols=11, data__splits="(0.6,0.1,0.3)")
    rows = {split: task.listed.tokens[indices] for split, indices in task.splits.items()}
    parts = {split: {tuple(row) for row in tokens[:, :2]} for split, tokens in rows.items()}
    assert set.union(*parts.values()) == set(itertools.product(range(11), repeat=2))
    assert sum(map(len, parts.values())) == 121
    assert all((row[0] + row[1]) % 11 == row[3] for tokens in rows.values() for row in tokens)
    assert {tuple(row[:2]) for row in task.batch(0, 3)["inputs"]["tokens"]} <= parts["train"]


def test_the_floor_of_a_chain_is_its_entropy_rate():
    """Against the rate at which a bigram of many counts predicts it."""
    found, (tokens, _) = drawn("markov", size=20_000)
    joint = np.zeros((8, 8))
    np.add.at(joint, (tokens[:, :-1], tokens[:, 1:]), 1 / tokens[:, 1:].size)
    empirical = -(joint * np.log(joint / joint.sum(1, keepdims=True))).sum()
    assert abs(empirical - found.floor) < 0.004
    assert 0.5 < found.floor < np.log(8)


def test_batches_are_functions_of_seed_and_step_and_splits_of_neither():
    task = task_of("recall")
    one, step, seed = (task.batch(*a)["inputs"]["tokens"] for a in ((3, 5), (3, 6), (4, 5)))
    assert (one != step).any()
    assert (one != seed).any()
    validation, test = (task.listed.tokens[task.splits[name]] for name in ("validation", "test"))
    assert len(validation) == len(test) == 512
    assert (validation != test).any()
    batches = list(task.evaluation_batches("test", 200))
    assert [batch["weights"].sum() for batch in batches] == [800, 800, 448]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data__source": "shakespeare"}, "data.source=shakespeare.*copy, reverse, recall"),
        ({"data__source": "recall", "data__symbols": 3}, "data.symbols=3.*at least 4"),
        ({"data__source": "agreement", "data__symbols": 9}, "expected at most 8 nouns"),
        ({"data__source": "copy", "model__architecture": "encoder"}, "decoder or recurrent_decode"),
    ],
)
def test_what_cannot_be_is_refused(changes, words):
    with pytest.raises(InvalidInput, match=words):
        make_task(tiny_config(data__task="synthetic", **changes))


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
    text = load_language("markov", 60_000, 8).examples(np.random.default_rng(5), 1).tokens[0]
    weights = scored[:, 1:].astype(float)
    batch = {"inputs": {"tokens": tokens[:, :-1]}, "targets": tokens[:, 1:], "weights": weights}
    mean = losses(n_grams(text, 8, 2), batch).sum() / weights.sum()
    assert abs(mean - found.floor) < 0.005


def test_n_grams_read_no_further_than_their_window():
    fitted = n_grams(np.arange(40) % 7, 7, 3)
    tokens = np.array([[1, 2, 3]])
    batch = {"inputs": {"tokens": tokens}, "targets": tokens + 1, "weights": np.ones((1, 3))}
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


def test_what_was_written_is_read():
    """Successor by 2 from a wrong start runs on in the wrong row, as greedy generation does."""
    table = jnp.array([2, 3, 4, 5, 0, 1])  # what the model says after each token
    tokens = jnp.array([[1, 9, 9, 2, 9]])
    replaced = jnp.array([[False, True, True, False, True]])
    said = feed_back(lambda tokens: jax.nn.one_hot(table[tokens], 6), tokens, replaced)
    assert said.tolist() == [[1, 3, 5, 2, 4]]


def test_a_prefix_may_show_the_source_and_no_answer():
    """Copying 8 of 16 tokens, with a separator behind them: the first answer is the tenth input."""
    config = {"data__task": "synthetic", "data__source": "copy", "model__mask": "prefix"}
    prepare(tiny_config(**config, model__mask_options__length=9))
    with pytest.raises(InvalidInput, match=r"answers that are scored; expected a length of at"):
        prepare(tiny_config(**config, model__mask_options__length=10))
