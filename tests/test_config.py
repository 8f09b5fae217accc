"""Configs: every option stands once, and nothing wrong gets through."""

import importlib
import inspect
import json
import re
import subprocess
import sys
import time

import pytest

from configs import reference
from tests.conftest import ROOT, TINY, attempt, command, refused, tiny_config
from transformer_jax.errors import InvalidInput
from transformer_jax.options import SameAs
from transformer_jax.options import config as configs
from transformer_jax.options.config import flatten, load_config
from transformer_jax.options.explained import as_markdown
from transformer_jax.options.rule import bounded
from transformer_jax.options.schema import OPTIONS, RULES, completed, stated
from transformer_jax.options.tables import (
    OPTION_SECTIONS,
    SECTIONS,
    TABLES,
    names_own,
    options_of_section,
    rows_of,
)
from transformer_jax.options.task_traits import TRAITS
from transformer_jax.training.prepared import prepare

SHIPPED = sorted(path for path in (ROOT / "configs").rglob("*.py") if path.name != "__init__.py")


def refusal(**overrides):
    with pytest.raises(InvalidInput) as error:
        tiny_config(**overrides)
    return str(error.value)


# ---------------------------------------------------------------- one place for every option


def test_shares_of_a_mixture_are_thousandths_and_leave_one_for_the_first_source():
    accepts = RULES["data.language_modelling.mixture"].accepts
    assert accepts(("a=0.333", "b=0.333", "c=0.333"))
    assert not accepts(tuple(f"{name}=0.2496" for name in "abcd")), "rounded they are all of it"
    assert not accepts(tuple(f"{name}=0.0906" for name in "abcdefghijk"))
    assert not accepts(("a=0.0004",))
    assert not accepts(("a=inf",))
    assert not RULES["optimizer.learning_rate_multipliers"].accepts(("block_0=inf",))


def test_every_option_has_a_meaning_and_every_default_and_example_is_allowed():
    flat = flatten(reference.get_config())
    assert sorted(flat) == sorted(OPTIONS)
    for key, option in OPTIONS.items():
        assert option.meaning, key
        assert option.rule.accepts(flat[key]), key
        assert option.rule.accepts(option.rule.parse(option.rule.example)), key


def test_the_page_of_options_is_what_the_declarations_say():
    """`python -m experiments.options --out=docs/options.md` writes the page again."""
    assert (ROOT / "docs" / "options.md").read_text() == as_markdown()


@pytest.mark.parametrize(
    ("words", "inside", "outside"),
    [
        ("> 0", (1e-9, 3), (0, -1)),
        (">= 2", (2, 5), (1,)),
        ("in [0, 1)", (0, 0.5), (1, -0.1)),
        ("in (0, 1]", (1, 0.5), (0, 1.1)),
        ("finite", (-3, 0), (float("nan"), float("inf"), True, "1")),
    ],
)
def test_words_of_a_bound_are_its_rule(words, inside, outside):
    rule = bounded("float", words)
    assert all(rule.accepts(value) for value in inside)
    assert not any(rule.accepts(value) for value in outside)
    with pytest.raises(ValueError, match="expected > a"):
        bounded("float", "about 3")


def test_the_defaults_of_a_section_are_those_of_the_class_that_declares_it():
    for prefix, classes in SECTIONS.items():
        declared = {}
        for file, name in reversed(classes):  # what stands first counts
            module = importlib.import_module(f"transformer_jax.{file[:-3].replace('/', '.')}")
            declared |= vars(getattr(module, name))
        for key in options_of_section(prefix):
            value = declared[key.removeprefix(prefix)]
            if not isinstance(value, SameAs):
                assert value == OPTIONS[key].default, key


def test_what_is_read_from_the_source_is_what_python_makes_of_it():
    """Names of rows, and names and defaults of their options, against the tables themselves."""
    for key, (file, table) in TABLES.items():
        module = importlib.import_module(
            "transformer_jax."
            + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        )
        rows = getattr(module, table)
        assert list(rows_of(key)) == list(rows)
        for name, read in rows_of(key).items():
            fields = inspect.signature(rows[name]).parameters if read.options else {}
            for option, told in read.options.items():
                assert fields[option].default == told.default, (key, name, option)
        if key in OPTION_SECTIONS:
            assert all(read.says for read in rows_of(key).values()), key


def test_types_of_options_all_have_a_rule():
    from transformer_jax import options
    from transformer_jax.options import declared

    named = {name for name in vars(options) if name[0].isupper()} - {
        *("Annotated", "Literal", "SameAs", "Choice", "Several")
    }
    assert named == {*declared._SPECIAL, *declared._NAMED}


def test_tables_of_tasks_are_complete():
    from transformer_jax.data.sources.files import EMBEDDED
    from transformer_jax.data.tasks import TASKS
    from transformer_jax.data.tokenizers import TOKENIZERS
    from transformer_jax.models import MODELS
    from transformer_jax.models.vision import VARIANTS
    from transformer_jax.training.showcases import DEMONSTRATIONS

    assert RULES["data.tokenizer"].allowed == (
        f"one of: {', '.join(TOKENIZERS)}, the path of a tokenizer.json, or MODULE.NAME of your own"
    )
    sizes = "|".join(VARIANTS)
    assert RULES["model.vision_transformer.variant"].accepts(f"{next(iter(VARIANTS))}/4")
    assert f"({sizes})" == "(Ti|S|B|L|H)"
    # A task without a row there takes any architecture and source, and shows its guesses.
    assert set(TRAITS) == set(DEMONSTRATIONS) <= set(TASKS)
    assert {name for traits in TRAITS.values() for name in traits.architectures} == set(MODELS)
    assert {traits.source for traits in TRAITS.values()} == set(EMBEDDED)


@pytest.mark.parametrize("lost", ["seed", "model", "training", "sample"])
def test_a_stored_config_that_lost_a_part_is_refused(lost):
    whole = json.loads(configs.to_json(tiny_config()))
    del whole[lost]
    with pytest.raises(InvalidInput, match=rf"not a whole config: it has no {lost}"):
        configs.from_json(json.dumps(whole), "here")


def test_a_config_states_what_differs_from_the_defaults_and_nothing_else():
    flat = flatten(tiny_config(data__length=24, model__max_length=48))
    said = stated(flat)
    assert said["data.length"] == 24
    assert said["model.max_length"] == 48
    assert said["model.width"] == 32
    assert "model.max_length" not in stated(flatten(tiny_config(data__length=24)))
    assert "training.clip_norm" not in said
    assert {**completed(said)} == flat


def test_every_option_that_changes_is_stated():
    flat = flatten(reference.get_config())
    said = stated(flat)
    for key in OPTIONS:
        assert stated({**flat, key: "another value"}) != said, key


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_c39_every_shipped_config_is_allowed(path):
    load_config(str(path), {})


GOLDEN = ROOT / "tests" / "golden" / "reference.json"


def test_c39_a_changed_default_is_a_visible_diff():
    assert configs.to_json(reference.get_config()) == GOLDEN.read_text()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model__mixer": "state_space", "model__value_dim": "4"}, "value_dim=4 would do nothing"),
        ({"model__mask": "prefix"}, "the model sees the answers; expected at least 15"),
        (
            {
                "model__position": "rotary",
                "model__position_options__rotary__original_length": "16",
            },
            "are of scaling=llama3; without it they do nothing",
        ),
        (
            {
                "model__position": "rotary",
                "model__position_options__rotary__scaling": "llama3",
                "model__position_options__rotary__high_freq_factor": "0.5",
            },
            "high_freq_factor=0.5: expected more than low_freq_factor=1.0",
        ),
        (
            {
                "data__task": "text_classification",
                "model__architecture": "encoder",
                "model__mask": "causal",
            },
            "pooling=class_token reads the first place, which then sees nothing but itself",
        ),
        ({"model__mixer": "state_space", "model__attention": "sink"}, "sink would do nothing"),
        ({"model__mixer": "state_space", "model__parametrisation": "mup"}, "not worked out for"),
        ({"model__attention": "gated_delta", "model__dropout_rate": "0.1"}, "no weights that"),
        ({"model__parametrisation": "mup", "optimizer__name": "sgd"}, "for Adam and the like"),
        ({"model__parametrisation": "mup", "optimizer__name": "adam"}, "part of the gradient"),
        ({"model__parametrisation": "mup", "model__initialisation": "xavier"}, "take depth_scaled"),
        ({"model__parametrisation": "mup", "model__mlp_dim": "64"}, "has to grow with the width"),
        ({"optimizer__name": "schedule_free"}, "takes a mean in place of a falling rate"),
        ({"hooks__functions": "mine.residual_norms,residual_norms"}, "would have one name"),
        (
            {
                "optimizer__name": "schedule_free",
                "schedule__name": "constant",
                "training__weight_ema": "0.9",
            },
            "a mean already",
        ),
        (
            {
                "schedule__name": "warmup_stable_decay",
                "schedule__warmup_stable_decay__warmup_steps": "45",
            },
            "warm-up and decay are longer",
        ),
        ({"data__language_modelling__unscored": "16"}, "expected less than data.length=16"),
    ],
)
def test_what_has_no_meaning_together_is_refused_with_the_reason(changes, reason):
    assert reason in refusal(**changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model__num_heads": "3"}, "num_heads: expected a divisor of width 32, got 3, nearest 2"),
        ({"model__num_kv_heads": "3"}, "expected a divisor of num_heads 4, got 3, nearest 2"),
        ({"model__attention": "linear", "model__position": "t5"}, "no scores that a bias could"),
        (
            {
                "model__attention": "gated_delta",
                "model__mask": "window",
                "model__dropout_rate": "0",
            },
            "expected a causal mask",
        ),
        ({"model__mixer": "state_space", "model__position": "rotary"}, "position: a state-space"),
        ({"model__attention": "linear", "model__attention_scale": "1"}, "linear attention has no"),
        ({"model__attention": "differential", "model__head_dim": "7"}, "even number, got 7"),
        (
            {"model__position": "rotary", "model__position_options__rotary__share": "0.1"},
            "0.1 of 8 features are 0",
        ),
        (
            {"model__position": "sinusoidal", "model__width": "33", "model__head_dim": "8"},
            "expected an even number, got 33",
        ),
        ({"model__position": "sinusoidal_2d"}, "Sinusoidal2DPositions: needs grid, which this"),
        (
            {
                "model__feed_forward": "mixture",
                "model__feed_forward_options__mixture__num_chosen": "9",
            },
            "at most num_experts 4, got 9",
        ),
    ],
)
def test_what_a_model_cannot_be_is_refused_in_its_own_words(changes, reason):
    """Sizes are the modules' business; no rule of the config repeats them."""
    with pytest.raises(InvalidInput, match=f"the model cannot be made .*{re.escape(reason)}"):
        prepare(tiny_config(**changes))


# ---------------------------------------------------------------- the command line


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
        ("training.steps", "1.5"),
        ("training.steps", "True"),
        ("training.steps", "None"),
        ("training.steps", "0"),
        ("training.steps", "inf"),
        ("model.use_bias", "maybe"),
        ("optimizer.learning_rate", "nan"),
        ("optimizer.learning_rate", "inf"),
        ("optimizer.learning_rate", "-1"),
        ("optimizer.learning_rate", "0"),
        ("training.batch_size", "0"),
        ("model.dropout_rate", "1.0"),
        ("data.splits", "0.5,0.5"),
        ("data.splits", "3"),
        ("seed", "-1"),
        ("seed", str(2**32)),
        ("model.position", "learnt"),
        ("data.source", ""),
    ],
)
def test_c37_out_of_domain_is_refused_with_what_is_allowed(key, text):
    with pytest.raises(InvalidInput) as error:
        load_config(TINY, {key: text})
    assert f"{key}={text}" in str(error.value)
    assert RULES[key].allowed in str(error.value)
    assert f"e.g. {key}={RULES[key].example}" in str(error.value)


def test_c33_typos_get_the_nearest_key_of_the_whole_tree():
    assert "did you mean model.depth?" in refusal(model__dept=4)
    assert "did you mean model.dtype?" in refusal(dtype="bfloat16")
    assert "did you mean optimizer.learning_rate?" in refusal(training__learning_rate=1)
    assert "did you mean optimizer.learning_rate?" in refusal(learnin_rate=1)
    assert "did you mean learned?" in refusal(model__position="learnt")


def test_c37_all_problems_in_one_report():
    report = refusal(model__dept=4, model__width=-3, training__steps="x", seed=-1)
    for key in ("model.dept", "model.width", "training.steps", "seed"):
        assert key in report
    assert len(report.splitlines()) == 4
    many = {key: "?" for key, rule in RULES.items() if "number" in rule.allowed}
    with pytest.raises(InvalidInput) as error:
        load_config(TINY, many)
    assert len(str(error.value).splitlines()) == 8


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model__max_length": 8}, "expected at least data.length=16"),
        ({"training__accumulation": 3}, "divisor of training.batch_size=8, nearest 2"),
        ({"training__steps": 10}, "expected less than training.steps=10"),
        ({"evaluation__stride": 17}, "expected at most data.length=16"),
    ],
)
def test_values_that_do_not_fit_each_other(overrides, message):
    assert message in refusal(**overrides)


def test_max_length_follows_the_data_until_it_is_set():
    assert tiny_config(data__length=32).model.max_length == 32
    config = tiny_config(model__max_length=64)
    assert (config.model.max_length, config.data.length) == (64, 16)


# ---------------------------------------------------------------- files


def test_c34_a_typo_inside_a_config_file_is_refused(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from configs import tiny\n"
        "def get_config():\n    c = tiny.get_config()\n    c.model.num_head = 8\n    return c\n"
    )
    with pytest.raises(
        InvalidInput, match=r"model.num_head: no such option; did you mean model.num_heads"
    ):
        load_config(str(path), {})


_MADE = (
    "from ml_collections import ConfigDict, FrozenConfigDict\ndef get_config():\n    return {}\n"
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("x = (", "SyntaxError"),
        ("x = 1\n", "AttributeError: .*get_config"),
        ("def get_config():\n    return 1 / 0\n", "ZeroDivisionError at line 2"),
        ("def get_config():\n    return {}\n", "gave dict, not ConfigDict"),
        (_MADE.format("FrozenConfigDict()"), "gave FrozenConfigDict, not ConfigDict"),
        (_MADE.format("ConfigDict({1: 2})"), "mine.py: AttributeError"),
        (_MADE.format("ConfigDict({'optimizer': 'adam'})"), r"py: optimizer: no such option; did"),
        (
            _MADE.format("ConfigDict({'model': {'norm': {'name': 'rms_norm'}}})"),
            r"mine.py: model.norm.name: no such option",
        ),
    ],
)
def test_unusable_config_files_are_refused(tmp_path, content, message):
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidInput, match=message):
        load_config(str(path), {"model.depth": "3"})


def test_a_missing_file_is_no_module_of_that_name():
    assert names_own("data.source", "email.message")
    assert not names_own("data.source", "email.csv")
    assert not names_own("data.tokenizer", "test.json")


def test_c38_dump_and_load_is_a_fixed_point():
    config = tiny_config(data__document_separator="\u2028é", optimizer__learning_rate=1e-3)
    dumped = configs.to_json(config)
    assert configs.to_json(configs.from_json(dumped, "here")) == dumped
    assert flatten(configs.from_json(dumped, "here")) == flatten(config)


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "[]",
        '{"model": {"width": "x"}}',
        '{"__class__": "os.system"}',
        '{"seed": "!!python/object"}',
    ],
)
def test_c74_a_stored_config_is_data(stored):
    before = set(sys.modules)
    with pytest.raises(InvalidInput, match="here"):
        configs.from_json(stored, "here")
    assert set(sys.modules) == before


# ---------------------------------------------------------------- as a command


def test_refusals_of_the_command_are_short_and_exit_with_2(tmp_path):
    base = (f"--config={TINY}", f"--workdir={tmp_path / 'run'}")
    refused(command("train", *base, "--config.model.dept=4"), "model.dept", "model.depth")
    refused(attempt("train", *base, "--wrkdir=x"), "--wrkdir", "--workdir")
    refused(attempt("train", f"--workdir={tmp_path / 'run'}"), "--config")
    refused(attempt("train", *base[1:], "--config=configs/tinny.py"), "configs/tiny.py")
    refused(attempt("train", *base, "stray"), "stray")
    refused(attempt("train", *base, "--config.data.source=nowhere.txt"), "data.source=nowhere.txt")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_help_and_refusals_do_not_import_jax():
    probe = (
        "import sys, runpy\n"
        "sys.argv = ['x', '--config=configs/tiny.py', '--workdir=x', {flag!r}]\n"
        "try:\n    runpy.run_module('experiments.train', run_name='__main__')\n"
        "except SystemExit as end:\n    print('code', end.code, 'jax' in sys.modules)\n"
    )
    for flag, code in (("--help", 0), ("--config.model.dept=3", 2)):
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", probe.format(flag=flag)],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert f"code {code} False" in done.stdout, done
        assert time.monotonic() - started < 5
