"""Benchmarks of choices: scores, rules, and files that are refused."""

import json

import numpy as np
import pytest

from tests.conftest import attempt, refused
from transformer_jax.errors import InvalidInput
from transformer_jax.training.choices import (
    Item,
    Scored,
    is_right,
    lines_with,
    read_items,
    score_items,
    summary,
)
from transformer_jax.training.loading import load_run

ITEMS = [
    Item("To be, or not ", ("to be", "to"), 0),  # the space belongs to the choices
    Item("O", (" Romeo", " no, no", "!"), 1),
    Item("x" * 30, ("yz",), 0),  # longer than the model's 16 tokens
    Item("", ("That is", "the"), 1),
]


@pytest.fixture(scope="module")
def run(tiny_run):
    return load_run(tiny_run)


def test_sums_are_those_of_the_tokens_after_the_context(run):
    scored = score_items(run, ITEMS, 4)
    for item, found in zip(ITEMS, scored, strict=True):
        for number, choice in enumerate(item.choices):
            text = (item.context + choice)[-17:]
            chances = run.log_probabilities(text)
            count = len(choice) + item.context.endswith(" ") - (not item.context)
            assert found.tokens[number] == count
            assert found.log_probabilities[number] == pytest.approx(
                chances[-count:].sum(), abs=2e-5
            )
            assert found.bytes[number] == len(choice.strip())
    assert [found.answer for found in scored] == [0, 1, 0, 1]


@pytest.mark.parametrize("size", [1, 3, 64])
def test_scores_do_not_depend_on_the_batch(run, size):
    for one, other in zip(score_items(run, ITEMS, 2), score_items(run, ITEMS, size), strict=True):
        np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, atol=1e-5)
        assert one._replace(log_probabilities=[]) == other._replace(log_probabilities=[])


def test_a_token_may_stand_before_an_item_without_context(run):
    (line,) = run.tokenizer.encode("\n")
    (alone,) = score_items(run, [Item("", ("That",), 0)], 1, begin=int(line))
    assert alone.tokens == [4]
    chances = run.log_probabilities("\nThat")
    assert alone.log_probabilities[0] == pytest.approx(chances.sum(), abs=2e-5)


def test_what_a_model_would_say_itself_is_likeliest(run):
    said = run.sample("The ", 3, temperature=0)
    (yes, no) = score_items(run, [Item("The ", (said,), 0), Item("The ", (said[:2] + "&",), 0)], 2)
    assert (is_right(yes, "accuracy"), is_right(no, "accuracy")) == (True, False)


def test_rules_by_hand():
    item = Scored([-6.0, -5.0, -5.0], [4, 1, 2], [12, 5, 4], 3 * [False], 0)
    assert {rule: is_right(item, rule) for rule in ("accuracy", "accuracy_per_token")} == {
        "accuracy": False, "accuracy_per_token": True,
    }  # fmt: skip
    assert is_right(item, "accuracy_per_byte")  # 0.5 against 1 and 1.25
    other = item._replace(answer=1)
    found = summary([item, item, item, other])
    expected = {"accuracy": 0.25, "accuracy_per_token": 0.75, "accuracy_per_byte": 0.75}
    expected |= {"standard_error": (0.25 * 0.75 / 3) ** 0.5, "ties": 1.0}
    assert found == pytest.approx(expected)
    (line,) = lines_with([Item("c", ("a", "b", "d"), 0)], [item])
    assert json.loads(line)["log_probabilities"] == [-6.0, -5.0, -5.0]


def test_files_of_items_are_read(tmp_path):
    path = tmp_path / "items.jsonl"
    rows = [{"context": "a", "choices": ["b", "c"], "answer": 1, "id": 7}]
    rows += [{"sentence_good": "a b", "sentence_bad": "b a", "UID": "order"}]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(map(json.dumps, rows)).encode())
    assert read_items(path) == [Item("a", ("b", "c"), 1), Item("", ("a b", "b a"), 0)]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"context": "a", "choices": ["b"', ["not JSON"]),
        ('{"context": "a", "choices": ["b"], "label": 0}', ["no answer"]),
        ('{"contxt": "a", "choices": ["b"], "answer": 0}', ["no context", "contxt"]),
        ('{"context": 1, "choices": ["b"], "answer": 0}', ["context", "expected a text"]),
        ('{"context": "a", "choices": "b", "answer": 0}', ["expected a list of texts"]),
        ('{"context": "a", "choices": ["b", ""], "answer": 0}', ["expected a list of texts"]),
        ('{"context": "a", "choices": ["b"], "answer": 1}', ["index of a choice, 0 to 0", "1"]),
        ('{"context": "a", "choices": ["b"], "answer": true}', ["index of a choice"]),
        ('{"context": "a", "choices": ["b"], "answer": "b"}', ["index of a choice", "'b'"]),
        ("[1]", ["no context"]),
        ("", ["found none"]),
    ],
)
def test_a_line_that_is_no_item_is_refused_by_number(tmp_path, row, words):
    good = '{"context": "a", "choices": ["b", "c"], "answer": 1}\n' if row else ""
    (tmp_path / "items.jsonl").write_text(good + row)
    with pytest.raises(InvalidInput) as caught:
        read_items(tmp_path / "items.jsonl")
    where = ["line 2"] if row else []
    assert all(word in str(caught.value) for word in [*where, *words]), caught.value


def test_a_choice_longer_than_the_model_is_refused(run):
    with pytest.raises(InvalidInput, match=r"item 1: a choice has 20 tokens .* 1 to 16"):
        score_items(run, [Item("a", ("b" * 20, "c"), 0)], 2)


def test_the_command_prints_accuracies_and_stores_items(tiny_run, tmp_path):
    path = tmp_path / "my.jsonl"
    rows = ({"context": i.context, "choices": i.choices, "answer": i.answer} for i in ITEMS)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    where = [f"--workdir={tiny_run}", f"--choices={path}", f"--out={tmp_path / 'scores.jsonl'}"]
    done = attempt("evaluate", *where, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    stored = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert told["items"] == len(stored) == 4
    assert told["means"]["accuracy"] == np.mean([row["accuracy"] for row in stored])
    refused(attempt("evaluate", *where, "--begin=<s>"), "--begin=<s>", "no such special token")
    refused(attempt("evaluate", f"--workdir={tiny_run}", "--choices=none"), "no such file")
