"""Configs: every option stands once, and nothing wrong gets through."""

import contextlib
import json
import re
import sys
import time
from typing import Annotated, Literal

import numpy as np
import pytest
from annotated_types import Ge

import transformer_jax as tj
from configs import reference
from experiments.command import Parser
from experiments.explained import as_markdown
from tests.conftest import ROOT, TINY, attempt, command, refused, tiny_config
from transformer_jax import config_files as configs
from transformer_jax import options as our_options
from transformer_jax.config import OPTIONS
from transformer_jax.config_files import flatten, load_config
from transformer_jax.data.sources.files import EMBEDDED
from transformer_jax.data.tasks import TASKS, TRAITS
from transformer_jax.data.tokenizers import TOKENIZERS
from transformer_jax.declarations import Option, declared_options
from transformer_jax.errors import InvalidInput
from transformer_jax.masks import Window
from transformer_jax.models import MODELS
from transformer_jax.models.stack import FAMILIES, own_options
from transformer_jax.models.vision import VARIANTS
from transformer_jax.options import Count, Initial, Number, Positive, SameAs, Share, entry_of
from transformer_jax.own import names_own
from transformer_jax.resolve import all_options, completed, option_for, stated, unread
from transformer_jax.training.prepared import prepare
from transformer_jax.training.showcases import Demonstration, demonstration_of

SHIPPED = sorted(path for path in (ROOT / "configs").rglob("*.py") if path.name != "__init__.py")


def refusal(**overrides):
    with pytest.raises(InvalidInput) as error:
        tiny_config(**overrides)
    return str(error.value)


def option(key):
    found = option_for(key, {})
    assert found is not None, key
    return found


@pytest.mark.parametrize(
    ("key", "value", "is_accepted"),
    [
        ("data.mixture", ("a=0.333", "b=0.333", "c=0.333"), True),
        ("data.mixture", tuple(f"{name}=0.2496" for name in "abcd"), False),  # rounded, all of it
        ("data.mixture", tuple(f"{name}=0.0906" for name in "abcdefghijk"), False),
        ("data.mixture", ("a=0.0004",), False),
        ("data.mixture", ("a=inf",), False),
        ("optimizer.learning_rate_multipliers", ("block_0=inf",), False),
    ],
)
def test_shares_are_thousandths_and_leave_one_for_the_first_source(key, value, is_accepted):
    assert option(key).accepts(value) == is_accepted


def test_every_option_has_a_meaning_and_every_default_and_example_is_allowed():
    assert sorted(flatten(reference.get_config())) == sorted(OPTIONS)
    options = list(OPTIONS.values())
    options += [each for owners in all_options().values() for _, each in owners]
    for each in options:
        assert each.meaning, each
        assert isinstance(each.default, SameAs) or each.accepts(each.default), each
        assert each.accepts(each.parse(each.example)), each


def test_the_page_of_options_is_what_the_declarations_say():
    """`python -m experiments.options --out=docs/options.md` writes the page again."""
    assert (ROOT / "docs" / "options.md").read_text() == as_markdown()


@pytest.mark.parametrize(
    ("kind", "words", "inside", "outside"),
    [
        (Positive, "a number > 0", (1e-9, 3), (0, -1, float("inf"))),
        (Annotated[int, Ge(2)], "an integer >= 2", (2, 5), (1, 2.0, True)),
        (Share, "a number in [0, 1)", (0, 0.5), (1, -0.1)),
        (our_options.PositiveShare, "a number in (0, 1]", (1, 0.5), (0, 1.1)),
        (Number, "a finite number", (-3, 0), (float("nan"), float("inf"), True, "1")),
        (our_options.Switch, "True or False", (True, False), (1, "True")),
        (Literal["a", "b"], "one of: a, b", ("a",), ("c", None)),
        (Count | None, "an integer >= 1, or None", (1, None), (0, "1")),
        (Annotated[int | None, Ge(1)], "an integer >= 1, or None", (1, None), (0, "1")),
        (tuple[Literal["a", "b"], ...], "some of: a, b", ((), ("a", "b")), ("a", ("c",))),
    ],
)
def test_types_say_what_they_allow(kind, words, inside, outside):
    each = Option(kind, None)
    assert each.allowed == words
    assert all(each.accepts(value) for value in inside)
    assert not any(each.accepts(value) for value in outside)


def test_variants_of_a_family_share_the_options_of_one_name():
    """The size of what positions add is stated once, whichever encoding makes it."""
    key, config = "model.position_options.rms", {"model__position_options__rms": "0.06"}
    for position in ("learned", "sinusoidal"):
        assert flatten(tiny_config(model__position=position, **config))[key] == 0.06
        assert not unread({key: 0.06, "model.position": position})
    assert unread({key: 0.06, "model.position": "rotary"}) == {key: "model.position=rotary"}


def test_options_that_need_another_one_are_told():
    asked = {"data.vocab_size": 300, "data.split_seed": 7, "adapters.maps": ("out",)}
    asked |= {"evaluation.benchmark_begin": "x", "hooks.every": 5, "sample.temperature": 0.5}
    told = unread({**asked, "sample.num_tokens": 0})
    assert told.keys() == asked.keys()
    assert told["data.split_seed"] == "data.task=language_modelling"
    asked |= {"data.tokenizer": "bpe", "data.task": "translation", "adapters.rank": 2}
    asked |= {"evaluation.benchmark": "a.jsonl", "hooks.functions": ("residual_norms",)}
    assert unread(asked) == {}
    assert unread({"data.task": "mine:Task", "data.split_seed": 7}) == {}


def test_an_option_that_is_not_stated_follows_the_variant():
    config = tiny_config(schedule__name="inverse_square_root", optimizer__name="adam")
    assert configs.resolved(config)["optimizer.b2"] == 0.999
    other = configs.changed(config, {"optimizer.name": "adamw"})
    assert configs.resolved(other)["optimizer.b2"] == 0.99


def test_options_of_several_variants_mean_the_same():
    """An option that stays when another variant is chosen may not become another quantity."""
    kinds = {
        key: {(each.allowed, each.mark(Initial)) for _, each in owners}
        for key, owners in all_options().items()
    }
    several = {key: found for key, found in kinds.items() if len({words for words, _ in found}) > 1}
    assert set(several) <= {"schedule.warmup_steps", "optimizer.b1"}  # 0 is not allowed in one


def test_a_config_of_another_version_reads_if_it_states_what_is_known(tmp_path):
    stored = json.loads(configs.to_json(tiny_config()))
    stored["model"]["invented"] = False
    keys = sorted(stated(flatten(tiny_config())))
    assert flatten(configs.from_json(json.dumps(stored), "here", keys))["model.width"] == 32
    with pytest.raises(InvalidInput, match=r"model.invented: no such option"):
        configs.from_json(json.dumps(stored), "here", [*keys, "model.invented"])


def test_tables_of_tasks_are_complete():
    assert OPTIONS["data.tokenizer"].allowed == (
        f"one of: {', '.join(TOKENIZERS)}, the path of a tokenizer.json, or your own MODULE:NAME"
    )
    assert all(option("model.variant").accepts(f"{variant}/4") for variant in VARIANTS)
    # A task without a row there takes any architecture and source, and shows its guesses.
    assert set(TRAITS) <= set(TASKS)
    assert all(isinstance(demonstration_of(task), Demonstration) for task in TASKS)
    assert {name for traits in TRAITS.values() for name in traits.architectures} == set(MODELS)
    assert {traits.source for traits in TRAITS.values()} == set(EMBEDDED)


@pytest.mark.parametrize("lost", ["seed", "model", "training", "sample"])
def test_a_stored_config_that_lost_a_part_is_refused(lost):
    whole = json.loads(configs.to_json(tiny_config()))
    del whole[lost]
    with pytest.raises(InvalidInput, match=rf"incomplete config: missing {lost}"):
        configs.from_json(json.dumps(whole), "here")


def test_a_config_states_what_differs_from_the_defaults_and_nothing_else():
    flat = flatten(tiny_config(data__length=24, model__max_length=48))
    said = stated(flat)
    wanted = {"data.length": 24, "model.max_length": 48, "model.width": 32}
    assert {key: said[key] for key in wanted} == wanted
    assert "model.max_length" not in stated(flatten(tiny_config(data__length=24)))
    assert "training.clip_norm" not in said
    assert completed(said) == completed(flat)


def test_every_option_that_changes_is_stated():
    flat = flatten(reference.get_config())
    said = stated(flat)
    for key in OPTIONS:
        assert stated({**flat, key: "another value"}) != said, key


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_c39_every_shipped_config_is_allowed(path):
    load_config(str(path), {})


MUP = {"model__parametrisation": "mup"}
STATES = {"model__mixer": "state_space"}
ROTARY = {"model__position": "rotary"}
SCHEDULE_FREE = {"optimizer__name": "schedule_free"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({**STATES, "model__value_dim": "4"}, "value_dim=4 would have no effect"),
        ({"model__mask": "prefix"}, "the model sees the answers; expected at least 15"),
        (
            {**ROTARY, "model__position_options__original_length": "16"},
            "have no effect without scaling=llama3",
        ),
        (
            {
                **ROTARY,
                "model__position_options__scaling": "llama3",
                "model__position_options__high_freq_factor": "0.5",
            },
            "high_freq_factor=0.5: expected more than low_freq_factor=1.0",
        ),
        (
            {
                **{"data__task": "text_classification", "model__architecture": "encoder"},
                "model__mask": "causal",
            },
            "pooling=class_token reads the first position, which then sees only itself",
        ),
        ({**STATES, "model__attention": "sink"}, "sink would have no effect"),
        ({**STATES, **MUP}, "no rule for model.mixer=state_space"),
        (
            {"model__attention": "gated_delta", "model__dropout_rate": "0.1"},
            "no attention weights to drop",
        ),
        ({**MUP, "optimizer__name": "sgd"}, "for optimizers like Adam"),
        ({**MUP, "optimizer__name": "adam"}, "added to the gradient"),
        ({**MUP, "model__initialisation": "xavier"}, "expected depth_scaled"),
        ({**MUP, "model__mlp_dim": "64"}, "must grow with the width"),
        ({**MUP, "model__values": "residual"}, "no rule for model.values=residual"),
        ({**MUP, "model__wiring": "hyper_connections"}, "no rule for model.wiring=hyper"),
        ({**STATES, "model__head_output": "gated"}, "head_output=gated would have no effect"),
        (
            {
                **{"data__task": "masked_language_modelling", "model__architecture": "encoder"},
                "model__heads": "parallel",
            },
            "encoder does not predict next tokens",
        ),
        (
            {"model__wiring": "attention_residuals", "model__scan_layers": True},
            "model.wiring=attention_residuals reads the outputs of all earlier blocks",
        ),
        (SCHEDULE_FREE, "averages weights instead of lowering the rate"),
        ({"hooks__functions": "residual_norms,residual_norms"}, "hooks.functions"),
        (
            {**SCHEDULE_FREE, "schedule__name": "constant", "training__weight_ema": "0.9"},
            "already evaluates an average",
        ),
        (
            {"schedule__name": "warmup_stable_decay", "schedule__warmup_steps": "45"},
            "warm-up and decay are longer",
        ),
        ({"data__unscored": "16"}, "expected less than data.length=16"),
        ({"model__max_length": 8}, "expected at least data.length=16"),
        ({"training__accumulation": 3}, "divisor of training.batch_size=8, nearest 2"),
        ({"training__steps": 10}, "expected less than training.steps=10"),
        ({"evaluation__stride": 17}, "expected at most data.length=16"),
    ],
)
def test_what_has_no_meaning_together_is_refused_with_the_reason(changes, reason):
    assert reason in refusal(**changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model__num_heads": "3"}, "num_heads: expected a divisor of width 32, got 3, nearest 2"),
        ({"model__num_kv_heads": "3"}, "expected a divisor of num_heads 4, got 3, nearest 2"),
        ({"model__attention": "linear", "model__position": "t5"}, "no scores to add a bias to"),
        (
            {"model__attention": "gated_delta", "model__mask": "window", "model__dropout_rate": 0},
            "expected a causal mask",
        ),
        ({**STATES, **ROTARY}, "position: a state-space"),
        ({"model__attention": "linear", "model__attention_scale": "1"}, "linear attention has no"),
        (
            {"model__attention": "differential", "model__head_dim": "7"},
            "even number, for two halves, got 7",
        ),
        (
            {**ROTARY, "model__position_options__fraction": "0.1"},
            "even number of features, got 0, which is 0.1 of 8",
        ),
        (
            {"model__position": "sinusoidal", "model__width": "33", "model__head_dim": "8"},
            "expected an even number, got 33",
        ),
        ({"model__position": "sinusoidal_2d"}, "needs the patches of a vision transformer"),
        (
            {"model__feed_forward": "mixture", "model__feed_forward_options__num_chosen": "9"},
            "num_chosen: expected <= 4, got 9",
        ),
    ],
)
def test_what_a_model_cannot_be_is_refused_in_its_own_words(changes, reason):
    """Sizes are the modules' business; no rule of the config repeats them."""
    with pytest.raises(InvalidInput, match=f"the model cannot be made .*{re.escape(reason)}"):
        prepare(tiny_config(**changes))


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("training.steps", "1e3", 1000),
        ("training.steps", "1_000", 1000),
        ("optimizer.learning_rate", "1", 1.0),
        ("model.use_bias", "yes", True),
        ("model.use_bias", "no", False),
        ("model.head_dim", "None", None),
        ("model.head_dim", "8", 8),
        ("training.clip_norm", "None", None),
        ("data.splits", "(0.8, 0.1, 0.1)", (0.8, 0.1, 0.1)),
        ("data.splits", "0.8,0.1,0.1", (0.8, 0.1, 0.1)),
        ("optimizer.decay_parameters", "kernel", ("kernel",)),
        ("data.document_separator", "", ""),
        ("seed", str(2**32 - 1), 2**32 - 1),
    ],
)
def test_c36_unambiguous_text_is_taken(key, text, value):
    assert flatten(load_config(TINY, {key: text}))[key] == value


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *(("training.steps", text) for text in ("1.5", "True", "None", "0", "inf")),
        ("model.use_bias", "maybe"),
        *(("optimizer.learning_rate", text) for text in ("nan", "inf", "-1", "0")),
        ("training.batch_size", "0"),
        ("model.dropout_rate", "1.0"),
        *(("data.splits", text) for text in ("0.5,0.5", "3")),
        *(("seed", text) for text in ("-1", str(2**32))),
        ("model.position", "learnt"),
        ("data.source", ""),
    ],
)
def test_c37_out_of_domain_is_refused_with_what_is_allowed(key, text):
    with pytest.raises(InvalidInput) as error:
        load_config(TINY, {key: text})
    message = str(error.value)
    assert f"{key}={text}" in message
    assert option(key).allowed in message
    assert "did you mean" in message or f"e.g. {key}={option(key).example}" in message


@pytest.mark.parametrize(
    ("key", "value", "nearest"),
    [
        ("model__dept", 4, "model.depth"),
        ("dtype", "bfloat16", "model.dtype"),
        ("training__learning_rate", 1, "optimizer.learning_rate"),
        ("learnin_rate", 1, "optimizer.learning_rate"),
        ("model__position", "learnt", "learned"),
    ],
)
def test_c33_typos_get_the_nearest_key_of_the_whole_tree(key, value, nearest):
    assert f"did you mean {nearest}?" in refusal(**{key: value})


def test_c37_all_problems_in_one_report():
    report = refusal(model__dept=4, model__width=-3, training__steps="x", seed=-1)
    assert all(key in report for key in ("model.dept", "model.width", "training.steps", "seed"))
    assert len(report.splitlines()) == 4
    many = {key.replace(".", "__"): "?" for key, o in OPTIONS.items() if "number" in o.allowed}
    assert len(refusal(**many).splitlines()) == 8


def test_max_length_follows_the_data_until_it_is_set():
    assert tiny_config(data__length=32).model.max_length == 32
    config = tiny_config(model__max_length=64)
    assert (config.model.max_length, config.data.length) == (64, 16)


_PY = "from ml_collections import ConfigDict, FrozenConfigDict\ndef get_config():\n    return {}\n"
_TYPO = "c = tiny.get_config()\n    c.model.num_head = 8\n    return c\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("x = (", "SyntaxError"),
        ("x = 1\n", "AttributeError: .*get_config"),
        ("def get_config():\n    return 1 / 0\n", "ZeroDivisionError at line 2"),
        ("def get_config():\n    return {}\n", "returned dict; expected ConfigDict"),
        (_PY.format("FrozenConfigDict()"), "returned FrozenConfigDict; expected ConfigDict"),
        (_PY.format("ConfigDict({1: 2})"), "mine.py: AttributeError"),
        (_PY.format("ConfigDict({'optimizer': 'adam'})"), r"py: optimizer: no such option; did"),
        (
            _PY.format("ConfigDict({'model': {'norm': {'name': 'rms_norm'}}})"),
            r"mine.py: model.norm.name: no such option",
        ),
        (
            f"from configs import tiny\ndef get_config():\n    {_TYPO}",
            r"model.num_head: no such option; did you mean model.num_heads",
        ),
    ],
)
def test_unusable_config_files_are_refused(tmp_path, content, message):
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidInput, match=message):
        load_config(str(path), {"model.depth": "3"})


_SHARED = """
from configs import tiny
def get_config():
    config = tiny.get_config()
    config.schedule.warmup_steps = 0
    config.evaluation.every = config.logging.every = config.training.get_ref("steps")
    return config
"""


@pytest.mark.parametrize(
    ("flags", "values", "told"),
    [
        ("steps=20", (20, 4, 20), "training.steps=20 also sets logging.every (get_ref)"),
        ("steps=40 --config.evaluation.every=4", (40, 4, 40), "training.steps=40 also sets log"),
        ("steps=12 --config.evaluation.every=4 --config.logging.every=3", (12, 4, 3), ""),
        ("batch_size=8 --config.logging.every=9", (9, 9, 9), "logging.every=9 also sets"),
    ],
)
def test_a_shared_reference_loses_no_value(tmp_path, flags, values, told):
    (tmp_path / "mine.py").write_text(_SHARED)
    argv = f"--config={tmp_path}/mine.py --config.training.{flags}".split()
    told = pytest.warns(UserWarning, match=re.escape(told)) if told else contextlib.nullcontext()
    with told:
        flat = flatten(Parser("train", "", takes_config=True).read(argv).config)
    keys = ("training.steps", "evaluation.every", "logging.every")
    assert tuple(flat[key] for key in keys) == values


def test_a_missing_file_is_no_module_of_that_name():
    assert names_own("data.source", "email:message")
    assert not names_own("data.source", "email.csv")
    assert not names_own("data.tokenizer", "test.json")


def test_c38_dump_and_load_is_a_fixed_point():
    config = tiny_config(data__document_separator="\u2028é", optimizer__learning_rate=1e-3)
    dumped = configs.to_json(config)
    assert configs.to_json(configs.from_json(dumped, "here")) == dumped
    assert flatten(configs.from_json(dumped, "here")) == configs.resolved(config)


@pytest.mark.parametrize(
    "stored",
    ["", "[]", '{"model": {"width": "x"}}', '{"__class__": "os.system"}', '{"seed": "!!python/o"}'],
)
def test_c74_a_stored_config_is_data(stored):
    before = set(sys.modules)
    with pytest.raises(InvalidInput, match="here"):
        configs.from_json(stored, "here")
    assert set(sys.modules) == before


def test_refusals_of_the_command_are_short_exit_with_2_and_take_at_most_some_seconds(tmp_path):
    base = (f"--config={TINY}", f"--workdir={tmp_path / 'run'}")
    started = time.monotonic()
    refused(command("train", *base, "--config.model.dept=4"), "model.dept", "model.depth")
    assert command("train", base[0], "--help").returncode == 0
    assert time.monotonic() - started < 16
    refused(attempt("train", *base, "--wrkdir=x"), "--wrkdir", "--workdir")
    refused(attempt("train", base[1]), "--config")
    refused(attempt("train", base[1], "--config=configs/tinny.py"), "configs/tiny.py")
    refused(attempt("train", *base, "stray"), "stray")
    refused(attempt("train", *base, "--config.data.source=nowhere.txt"), "data.source=nowhere.txt")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


_SMALL = {"vocab_size": 5, "max_length": 8, "width": 8, "depth": 1, "num_heads": 2}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: tj.MixtureOfExperts(router="Softmax"), "router: expected one of: softmax, sigm"),
        (lambda: tj.MultiHeadAttention(num_heads=0), "num_heads: expected an integer >= 1"),
        (lambda: tj.MultiHeadAttention(2, head_dim=0), "head_dim: expected an integer >= 1, or N"),
        (lambda: tj.MultiHeadAttention(2, dropout_rate=10), r"dropout_rate: expected .* \[0, 1\)"),
        (lambda: tj.FeedForward(mlp_dim=0), "mlp_dim: expected an integer >= 1, or None"),
        (lambda: tj.RMSNorm(epsilon=-1.0), "epsilon: expected a number > 0"),
        (lambda: Window(size=np.int64(0)), "size: expected an integer >= 1"),
        (lambda: tj.Decoder.of(**_SMALL, dropout_rate=-0.1), "dropout_rate: expected a number in"),
        (lambda: tj.Decoder.of(**_SMALL, logits_soft_cap=0), "logits_soft_cap: expected a number"),
        (lambda: tj.RecurrentDecoder(5, 8, dropout_rate=1), "dropout_rate: expected a number in"),
        (lambda: tj.VisionTransformer.of(image_shape=(8, 8), num_classes=2), "image_shape: exp"),
        (lambda: tj.Encoder.of(max_length=4, num_classes=-1), "num_classes: expected an integer"),
    ],
)
def test_values_are_checked_in_python_as_by_commands(make, told):
    with pytest.raises(ValueError, match=told):
        make()


def test_options_of_all_variants_are_checked_in_python():
    """The first value below each lower bound, and a wrong name, is refused by name."""
    count = 0
    for family, mark in FAMILIES.items():
        for name, entry in mark.entries().items():
            found = {} if entry is None else declared_options(entry_of(mark.entries(), name))
            for key, option in found.items():
                wrong = "x" if option.names else -1 if option.allowed.startswith("an int") else "y"
                section = mark.section.removeprefix("model.")
                if not option.accepts(wrong):
                    model = tj.Decoder.of(**_SMALL, **{family: name, section: {key: wrong}})
                    with pytest.raises(ValueError, match=f"{key}: expected"):
                        own_options(model.options, family)
                    count += 1
    assert count > 60
