"""Benchmarks of choices: scores, rules, and files that are refused."""

import json

import numpy as np
import pytest

from tests.conftest import attempt, refused
from transformer_jax.data.sources.text import read_pieces
from transformer_jax.data.tokenizers import ByteTokenizer
from transformer_jax.errors import InvalidInput
from transformer_jax.training.choices import (
    Item,
    Scored,
    _size_after,
    is_right,
    read_items,
    rows_of,
    score_items,
    summary,
)
from transformer_jax.training.harness import run_tasks
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
    with pytest.warns(UserWarning, match=r"2 of 8 texts are longer than model\.max_length=16"):
        scored = score_items(run, ITEMS, 4)
    for item, found in zip(ITEMS, scored, strict=True):
        for number, choice in enumerate(item.choices):
            text = (item.context + choice)[-17:]
            chances = run.log_probabilities(text)
            count = len(choice) + item.context.endswith(" ") - (not item.context)
            assert found.tokens[number] == count
            assert found.log_probabilities[number] == pytest.approx(sum(chances[-count:]), abs=2e-5)
            assert found.bytes[number] == len(choice.strip())
            assert found.scored_bytes[number] == len(choice.strip()) - (not item.context)
    assert [found.answer for found in scored] == [0, 1, 0, 1]


@pytest.mark.filterwarnings("ignore:.*beginning is not read")
@pytest.mark.parametrize("size", [1, 3, 64])
def test_scores_do_not_depend_on_the_batch(run, size):
    for one, other in zip(score_items(run, ITEMS, 2), score_items(run, ITEMS, size), strict=True):
        np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, atol=1e-5)
        assert one._replace(log_probabilities=[]) == other._replace(log_probabilities=[])


def test_a_token_may_stand_before_an_item_without_context(run):
    (line,) = run.tokenizer.encode("\n")
    (alone,) = score_items(run, [Item("", ("That",), 0)], 1, begin=int(line))
    assert alone.tokens == alone.scored_bytes == [4]
    chances = run.log_probabilities("\nThat")
    assert alone.log_probabilities[0] == pytest.approx(chances.sum(), abs=2e-5)


def test_what_a_model_would_say_itself_is_likeliest(run):
    said = run.sample("The ", 3, temperature=0)
    (yes, no) = score_items(run, [Item("The ", (said,), 0), Item("The ", (said[:2] + "&",), 0)], 2)
    assert (is_right(yes, "accuracy"), is_right(no, "accuracy")) == (True, False)


def test_rules_by_hand():
    item = Scored([-6.0, -5.0, -5.0], [4, 1, 2], [9, 9, 9], [12, 5, 4], 3 * [False], 0)
    assert {rule: is_right(item, rule) for rule in ("accuracy", "accuracy_per_token")} == {
        "accuracy": False, "accuracy_per_token": True,
    }  # fmt: skip
    assert is_right(item, "accuracy_per_byte")  # 0.5 against 1 and 1.25
    assert _size_after(ByteTokenizer(), "é".encode()[0], "éa b ") == 4
    other = item._replace(answer=1)
    found = summary([item, item, item, other])
    expected = {"accuracy": 0.125, "accuracy_per_token": 0.75, "accuracy_per_byte": 0.75}
    expected |= {"standard_error": 0.125, "ties": 1.0, "items": 4}  # the tie counts half
    assert found == pytest.approx(expected)
    (row,) = rows_of([Item("c", ("a", "b", "d"), 0)], [item])
    assert row["log_probabilities"] == [-6.0, -5.0, -5.0]


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
        ('{"context": "a", "choices": ["b"], "answer": 1}', ["answer: expected 0 to 0", "1"]),
        ('{"context": "a", "choices": ["b"], "answer": true}', ["answer: expected 0"]),
        ('{"context": "a", "choices": ["b"], "answer": "b"}', ["answer: expected 0", "'b'"]),
        ("[1]", ["expected an object"]),
        ("", ["found none"]),
    ],
)
def test_a_line_that_is_no_item_is_refused_by_number(tmp_path, row, words):
    good = '{"context": "a", "choices": ["b", "c"], "answer": 1}\n' if row else ""
    (tmp_path / "items.jsonl").write_text(good + row)
    with pytest.raises(InvalidInput) as caught:
        read_items(tmp_path / "items.jsonl")
    where = ["row 2"] if row else []
    assert all(word in str(caught.value) for word in [*where, *words]), caught.value


def test_a_choice_longer_than_the_model_is_refused(run):
    with pytest.raises(InvalidInput, match=r"item 1: a choice has 20 tokens .* 1 to 16"):
        score_items(run, [Item("a", ("b" * 20, "c"), 0)], 2)


@pytest.mark.filterwarnings("ignore:.*beginning is not read")
def test_the_command_prints_accuracies_and_stores_items(tiny_run, tmp_path):
    path = tmp_path / "my.jsonl"
    rows = ({"context": i.context, "choices": i.choices, "answer": i.answer} for i in ITEMS)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    where = [f"--workdir={tiny_run}", f"--choices={path}", f"--out={tmp_path / 'scores.jsonl'}"]
    done = attempt("evaluate", *where, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    stored = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    (means,) = told["results"].values()
    assert means["items"] == len(stored) == 4
    assert means["accuracy"] == np.mean([row["accuracy"] for row in stored])
    refused(attempt("evaluate", *where, "--begin=<s>"), "--begin=<s>", "no such special token")
    refused(attempt("evaluate", *where, "--batch_size=0"), "--batch_size=0: expected at least 1")
    refused(attempt("evaluate", *where, "--tasks=piqa"), "one of --choices, --core and --tasks")
    refused(attempt("evaluate", f"--workdir={tiny_run}", "--choices=none"), "no such file")


@pytest.mark.filterwarnings("ignore:.*beginning is not read")
@pytest.mark.oracle
def test_the_harness_gives_the_same_scores_to_its_model_and_to_ours(tmp_path, monkeypatch):
    """lm-evaluation-harness with transformers and with our model: every choice to 1e-4."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    import lm_eval
    import torch
    import yaml
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    text = "".join(piece.text for piece in read_pieces("shakespeare"))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special, alphabet = ["<|endoftext|>"], pre_tokenizers.ByteLevel.alphabet()
    asked = {"vocab_size": 400, "special_tokens": special, "initial_alphabet": alphabet}
    tokenizer.train_from_iterator([text[:100_000]], trainers.BpeTrainer(**asked))
    ends = {"eos_token": special[0], "bos_token": special[0]}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends)
    torch.manual_seed(0)
    sizes = {"vocab_size": fast.vocab_size, "n_positions": 64, "n_embd": 32, "n_layer": 2}
    theirs = GPT2LMHeadModel(GPT2Config(**sizes, n_head=4, attn_implementation="eager")).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    folder = str(tmp_path / "model")
    theirs.save_pretrained(folder)
    fast.save_pretrained(folder)

    lines, rng, rows = (
        [line for line in text.splitlines() if len(line) > 30],
        np.random.default_rng(0),
        [],
    )
    for number in range(25):
        words = lines[number].split()
        context = " ".join(lines[number : number + 12]) if number % 5 == 0 else " ".join(words[:3])
        others = [" ".join(lines[rng.integers(500)].split()[:4]) for _ in range(3)]
        rows.append({"context": context, "choices": [" ".join(words[3:]), *others], "answer": 0})
    items = tmp_path / "items.jsonl"
    items.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(items)}}}
    choice = {"task": "mine", "output_type": "multiple_choice", "doc_to_text": "{{context}}"}
    choice |= {"doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}", "test_split": "test"}
    choice["metric_list"] = [{"metric": "acc"}, {"metric": "acc_norm"}]
    rolling = {"task": "mine_rolling", "output_type": "loglikelihood_rolling", "test_split": "test"}
    rolling |= {"doc_to_text": "", "doc_to_target": "{{context}}"}
    rolling["metric_list"] = [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}]
    written = {"task": "mine_written", "output_type": "generate_until", "test_split": "test"}
    written |= {"doc_to_text": "{{context}}", "doc_to_target": "{{choices[0]}}"}
    written["generation_kwargs"] = {"until": ["e"], "max_gen_toks": 8, "do_sample": False}
    written["metric_list"] = [{"metric": "exact_match"}]
    for task in (choice, rolling, written):
        (tmp_path / f"{task['task']}.yaml").write_text(yaml.safe_dump(task | data))

    names, manager = (
        ["mine", "mine_rolling", "mine_written"],
        TaskManager(include_path=str(tmp_path)),
    )
    model = HFLM(pretrained=folder, tokenizer=folder, device="cpu", batch_size=4, max_length=64)
    told = lm_eval.simple_evaluate(
        model, tasks=names, task_manager=manager, log_samples=True, bootstrap_iters=0
    )
    run = load_run(folder)
    begin = run.tokenizer.number_of(special[0])
    results, stored = run_tasks(run, names, str(tmp_path), 8, begin)
    for name in names:
        samples = sorted(told["samples"][name], key=lambda sample: sample["doc_id"])
        if name == "mine_written":
            told_texts = [sample["filtered_resps"] for sample in samples]
            assert [row["scores"] for row in stored if row["task"] == name] == told_texts
            assert len({str(text) for text in told_texts}) > 5
            continue
        for sample, own in zip(samples, (r for r in stored if r["task"] == name), strict=True):
            found, expected = (np.ravel(s)[:: 2 if name == "mine" else 1].astype(float)
                               for s in (own["scores"], sample["filtered_resps"]))  # fmt: skip
            np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-5)
        for key, value in results[name].items():
            assert value == pytest.approx(told["results"][name][f"{key},none"], rel=1e-4)
    alone = [Item(row["context"], tuple(f" {c}" for c in row["choices"]), 0) for row in rows]
    means = summary(score_items(run, alone, 8))
    assert means["accuracy"] == results["mine"]["acc"]
    assert means["accuracy_per_byte"] == results["mine"]["acc_norm"]
    assert np.mean([row["acc"] for row in stored if row["task"] == "mine"]) == means["accuracy"]
    with pytest.raises(InvalidInput, match=r"--tasks=mine_too: .*did you mean mine"):
        run_tasks(run, ["mine_too"], str(tmp_path), 8, begin)
