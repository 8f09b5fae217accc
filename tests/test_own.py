"""A component of the user's own: named by import path, checked unread, never run unasked."""

import os
import sys
from pathlib import Path

import pytest

from experiments.command import Parser
from tests.conftest import ROOT, TINY, attempt, command, refused, run_python
from transformer_jax import config_files
from transformer_jax.config_files import flatten, load_config, refuse_foreign_modules
from transformer_jax.errors import InvalidInput
from transformer_jax.laws import LAWS
from transformer_jax.own import hash_of_file, own_files
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.progress import Silent
from transformer_jax.studies.cells import cell_hash
from transformer_jax.training.build import make_model
from transformer_jax.training.loading import load_run
from transformer_jax.training.loop import train

OWN = """
from transformer_jax import AttentionVariant, attention_weights
from transformer_jax.options import Positive

class Tempered(AttentionVariant):
    temperature: Positive = 1.0

    def weights(self, query, key, call):
        mask, bias = call.dense(query, key)
        return attention_weights(query / self.temperature, key, mask, bias)
"""
DEVICE = {"platform": "cpu", "count": 1, "kind": "x"}
AROUND = {"packages": {}, "environment": {}, "device": DEVICE}
CHOICE = {"model.attention": "own_tempered:Tempered"}
OPTION = "model.attention_options.temperature"


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A folder of the user's with this package's configs, where commands run."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def folder(empty):
    """A folder with an attention of the user's."""
    (empty / "own_tempered.py").write_text(OWN)
    return empty


def short(config=TINY, choice=CHOICE, **changes):
    steps = {"training.steps": "2", "schedule.name": "constant", "sample.num_tokens": "2"}
    return load_config(config, steps | choice | changes)


def refused_before_training(config, words):
    """Asserts that a run leaves its directory to another, and returns why it is refused."""
    with pytest.raises(InvalidInput, match=words) as error:
        train(config, "run", Silent())
    assert not Path("run", "config.json").exists()
    return str(error.value)


@pytest.mark.thorough
def test_an_own_class_trains_resumes_and_is_imported_later_only_where_allowed(folder):
    config = short(**{OPTION: "4"})
    assert flatten(config)[OPTION] == 4.0
    last = train(config, "run", Silent())
    plain = train(short(), "plain", Silent())
    assert last["eval/loss"] != plain["eval/loss"]  # the option reached the class
    assert train(config, "run", Silent()) == last  # complete
    del sys.modules["own_tempered"]
    with pytest.raises(InvalidInput, match=r"needs your permission; .*--allow=own_tempered"):
        load_run("run")
    assert "own_tempered" not in sys.modules
    run = load_run("run", allow=["own_tempered"])
    assert len(run.sample("a", num_tokens=4)) == 4
    refused(attempt("sample", "--workdir=run", cwd=folder), "--allow=own_tempered")
    done = command("sample", "--workdir=run", "--allow=own_tempered", "--prompt=a", cwd=folder)
    assert done.returncode == 0, done.stderr


def test_what_an_own_file_imports_is_a_part_of_its_code(folder):
    """The cell of a study changes if a helper of the user's component changes."""
    deep = folder / "mine" / "inner"
    deep.mkdir(parents=True)
    for folder_of in (deep, deep.parent):
        (folder_of / "__init__.py").write_text("")
    (deep / "rows.py").write_text("from . import sums\nfrom ..base import half\n" + OWN)
    (deep / "sums.py").write_text("import jax\nimport transformer_jax.masks\n")
    (folder / "mine" / "base.py").write_text("def f():\n    import mine.late\nhalf = 0.5\n")
    (folder / "mine" / "late.py").write_bytes(b"print 'of another Python: it imports nothing'")
    choice = "mine.inner.rows:Tempered"
    names = [file.relative_to(folder).as_posix() for file in own_files(choice)]
    assert names[0] == "mine/inner/rows.py"
    of_inner = {f"mine/inner/{name}.py" for name in ("__init__", "rows", "sums")}
    assert set(names) == of_inner | {"mine/__init__.py", "mine/base.py", "mine/late.py"}
    assert cell_hash(load_config(TINY, {"model.attention": choice}), {}, "alone", AROUND)
    assert own_files("own_tempered:Tempered") == [folder / "own_tempered.py"]
    config = load_config(TINY, {"model.attention": choice})
    keys, hashes = set(), set()
    for text in ("", "after = 1\n", "after = 2\n"):
        (folder / "mine" / "late.py").write_text(text)
        keys.add(cell_hash(config, {}, "alone", AROUND)[0])
        hashes.add(hash_of_file(choice))
    assert len(keys) == len(hashes) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({OPTION: "-1"}, "temperature=-1: expected a number > 0"),
        (
            {OPTION.replace("era", "ra"): "1"},
            "temprature: own_tempered:Tempered has no such option; .*temperature",
        ),
        ({"model.attention": "own_tempered:Temperd"}, "own_tempered.py defines no Temperd"),
        (
            {"model.attention": "own_temperd:Tempered"},
            "no file own_temperd.py in this folder or on Python's",
        ),
        ({"model.attention": "softmax", OPTION: "1"}, f"{OPTION}: no such option"),
    ],
)
def test_wrong_names_and_options_are_refused(folder, changes, words):
    with pytest.raises(InvalidInput, match=words):
        short(**changes)


def test_help_has_the_options_of_own_components(folder, capsys):
    chosen = f"--config.model.attention={CHOICE['model.attention']}"
    for name in (OPTION, OPTION.rpartition(".")[0]):
        with pytest.raises(SystemExit):
            Parser("train", "", True).read([f"--config={TINY}", chosen, f"--help={name}"])
        assert f"--config.{OPTION}=" in capsys.readouterr().out


def test_a_mask_rule_that_is_no_dataclass_is_told_so(folder):
    rule = "class Near(Rule):\n    every: Count = 2\n"
    (folder / "own_near.py").write_text(
        "from transformer_jax import Rule\nfrom transformer_jax.options import Count\n\n" + rule
    )
    own = {"model.mask": "own_near:Near", "model.mask_options.every": "3"}
    with pytest.raises(InvalidInput, match=r"own_near:Near must be decorated with @dataclasses"):
        short(**own)


def test_a_stored_config_runs_nothing_that_is_not_allowed(folder):
    stored = config_files.to_json(short(**{OPTION: "4"}))
    del sys.modules["own_tempered"]
    config = config_files.from_json(stored, "here")
    with pytest.raises(InvalidInput, match=r"needs your permission; .*--allow=own_tempered"):
        refuse_foreign_modules(config, ())
    refuse_foreign_modules(config, ["own_tempered"])
    assert "own_tempered" not in sys.modules


def test_a_config_of_another_sets_own_options_that_are_checked_too(folder):
    source = "from configs import tiny\n\ndef get_config():\n    config = tiny.get_config()\n"
    source += "    config.model.attention = 'own_tempered:Tempered'\n"
    source += "    config.model.attention_options.{} = 2.0\n    return config\n"
    (folder / "mine.py").write_text(source.format("temperatur"))
    with pytest.raises(InvalidInput, match=r"has no such option; did you mean .*temperature"):
        load_config("mine.py", {})
    (folder / "mine.py").write_text(source.format("temperature"))
    assert flatten(load_config("mine.py", {}))[OPTION] == 2.0


def test_a_file_that_fails_when_it_is_imported_is_named(folder):
    (folder / "own_tempered.py").write_text(OWN + "\nraise RuntimeError('broken')\n")
    with pytest.raises(InvalidInput, match=r"own_tempered.py, line 12: RuntimeError: broken"):
        short()


NET = (ROOT / "tests" / "own_components" / "architecture.py").read_text()


@pytest.fixture
def net(empty):
    """A folder with an architecture of the user's."""
    (empty / "own_net.py").write_text(NET)
    return empty


def with_net(**more):
    return short(choice={"model.architecture": "own_net:Mine"}, **more)


def test_an_architecture_of_ones_own_trains_writes_and_is_asked_for(net, capsys):
    config = with_net(**{"model.window": "2", "model.depth": "1"})
    last = train(config, "run", Silent())
    assert list(RunDirectory("run").manifest()["own_rows"]) == ["own_net:Mine"]
    assert train(config, "run", Silent()) == last
    with pytest.raises(InvalidInput, match="--allow=own_net"):
        load_run("run")
    run = load_run("run", allow=["own_net"])
    assert (run.model.window, run.model.depth, run.model.width) == (2, 1, 32)
    assert len(run.sample("ROMEO", num_tokens=14)) == 14  # beyond max_length, one prompt of [P]
    other = load_config(TINY, {"model.architecture": "own_net:Mine"})
    assert make_model(other, {"vocab_size": 7}, ["own_net"]).window == 3
    (net / "own_net.py").write_text(NET + "\n# changed\n")
    train(config, "run")
    assert "the code of own_net:Mine changed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({'"CAUSAL"': '"SAME"'}, "the model sees hidden tokens: tokens from position 8 on change"),
        (
            {"nn.Dense(self.vocab_size)(nn.LayerNorm()(hidden))": "hidden[:, 0]"},
            r"given tokens \[8, 16\], the model returns \(8, 32\); expected logits \[8, 16, 65\]",
        ),
        (
            {"nn.Dense(self.vocab_size)": "nn.Dense(3)"},
            r"the model returns \(8, 16, 3\); expected logits \[8, 16, 65\]",
        ),
        ({"(self, tokens, *": "(self, words, *"}, "own_net:Mine: TypeError: .*'tokens'"),
        ({"def example_inputs": "def inputs"}, r"own_net:Mine: expected a method example_inputs"),
        (
            {"    max_length: int\n": "", "self.max_length": "16"},
            "data.task=language_modelling needs the attribute max_length",
        ),
    ],
    ids=["leak", "shape", "too few logits", "other inputs", "no example", "no length"],
)
def test_an_architecture_that_does_not_fit_is_refused_before_it_trains(net, changes, words):
    text = NET
    for old, new_text in changes.items():
        assert old in text
        text = text.replace(old, new_text)
    (net / "own_net.py").write_text(text)
    refused_before_training(with_net(), words)


MIXER = """
from typing import Any
import flax.linen as nn
import jax.numpy as jnp

class Before(nn.Module):
    '''Each place reads itself and the one before it, whatever the masks say.'''

    use_bias: bool
    kernel_init: Any
    out_init: Any
    dtype: Any

    @nn.compact
    def __call__(self, inputs, context):
        before = jnp.pad(inputs, [(0, 0)] * (inputs.ndim - 2) + [(1, 0), (0, 0)])[..., :-1, :]
        return nn.Dense(inputs.shape[-1])(jnp.concatenate([inputs, before], -1))
"""


@pytest.mark.parametrize(
    ("old", "new_text", "changes", "words"),
    [
        ("", "", {}, None),
        ("", "", {"model.mask": "window", "model.mask_options.size": "1"},
         "the first token changes logits at positions where model.mask hides it"),
        ("", "", {"data.separate_documents": "True", "data.document_separator": "",
                  "data.length": "64"},
         "tokens of the first document change the logits of other documents"),
        ("[(0, 0)] * (inputs.ndim - 2) + [(1, 0), (0, 0)])[..., :-1, :]",
         "((0, 0), (1, 0), (0, 0)))[:, :-1]", {}, r"own_mix:Before: ValueError at line \d+ .*pad"),
        ("[(1, 0), (0, 0)])[..., :-1, :]", "[(0, 1), (0, 0)])[..., 1:, :]", {},
         "tokens from position 8 on change the logits before it"),
        ("inputs.shape[-1])", "7)", {}, r"model.mixer=own_mix:Before: \w+.*shapes"),
        (", context", "", {}, r"model.mixer=own_mix:Before: TypeError: .*arguments"),
        ("    out_init: Any\n", "", {}, r"model.mixer=own_mix:Before: TypeError: .*'out_init'"),
        ("return nn", "return 1 / 0, nn", {}, r"ZeroDivisionError at line \d+ of own_mix.py"),
    ],
)  # fmt: skip
def test_a_mixer_of_ones_own_is_tried_before_it_trains(empty, old, new_text, changes, words):
    (empty / "own_mix.py").write_text(MIXER.replace(old, new_text))
    mixer = {"model.mixer": "own_mix:Before", "model.position": "none"}
    config = short(choice=mixer, **changes)
    if words is None:
        train(config, "run", Silent())
    else:
        assert len(refused_before_training(config, words).splitlines()) == 1


UNGUARDED = """import jax.numpy as jnp
from transformer_jax import AttentionVariant


class Unguarded(AttentionVariant):
    def weights(self, query, key, call):
        mask, _ = call.dense(query, key)
        scores = jnp.einsum("...lk,...mk->...lm", query, key)
        weights = jnp.where(mask, jnp.exp(scores - scores.max(-1, keepdims=True)), 0)
        return weights / weights.sum(-1, keepdims=True)
"""


def test_a_schedule_that_cannot_be_traced_is_refused_with_its_line(empty):
    (empty / "own_rate.py").write_text("def low(peak, steps):\n  return lambda n: peak if n else 0")
    config = load_config(TINY, {"schedule.name": "own_rate:low"})
    refused_before_training(config, "own_rate:low: TracerBoolConversionError at line 2 of own_rate")


def test_nan_of_queries_that_see_nothing_is_found_before_training(empty):
    (empty / "own_weights.py").write_text(UNGUARDED)
    config = load_config(TINY, {"model.attention": "own_weights:Unguarded"})
    refused_before_training(config, r"own_weights:Unguarded: .*not finite .*padded")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model.windw", "3", "no such option"),
        ("model.window", "0", "expected an integer >= 1"),
        ("model.architecture", "own_net:Nine", "own_net.py defines no Nine"),
        ("model.architecture", "decoder", r"model\.window: no such option"),
    ],
)
def test_options_of_a_user_defined_architecture_are_checked(net, key, value, words):
    with pytest.raises(InvalidInput, match=words):
        with_net(**{"model.window": "3", key: value})


POOLING = (ROOT / "tests" / "own_components" / "pooling.py").read_text()


@pytest.mark.thorough
def test_a_pooling_of_ones_own_does_not_see_padding(empty):
    (empty / "own_pool.py").write_text(POOLING)
    (empty / "own_last.py").write_text(
        POOLING + "\n\nclass Last(Mine):\n    def __call__(self, hidden, is_token=None):\n"
        "        return hidden[..., -1, :]\n"
    )
    words = (f"{'good' if n % 2 else 'bad'} {'word ' * (n % 5)}{n},{n % 2}\n" for n in range(60))
    (empty / "texts.csv").write_text("text,label\n" + "".join(words))
    changes = {
        **{"data.source": "texts.csv", "data.tokenizer": "byte", "data.length": "32"},
        **{"data.splits": "0.6,0.2,0.2", "model.width": "16", "model.depth": "1"},
    }
    own, last = (
        short("configs/movies.py", changes, **{"model.pooling": name})
        for name in ("own_pool:Mine", "own_last:Last")
    )
    refused_before_training(last, "tokens at padded positions change scored logits")
    assert train(own, "run", Silent())["eval/loss"] > 0
    assert load_run("run", allow=["own_pool"]).model.pooling.__name__ == "Mine"


def pytest_in(folder, *arguments):
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)
    return run_python(*words, cwd=folder, timeout=300, PYTHONPATH=f"{ROOT}:{folder}")


@pytest.mark.commands
def test_the_scaffold_writes_a_component_and_a_test_that_passes(tmp_path):
    """Every template keeps all laws, see test_laws.py; here the written files are run."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for family, module in (("norm", "my_norm"), ("position", "my_position")):
        done = command("new", family, module, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"=my_{family}:My{family.capitalize()}" in done.stdout
    collected = pytest_in(tmp_path, "--collect-only", "test_my_norm.py")
    assert f"{len(LAWS)} tests collected" in collected.stdout
    tests = pytest_in(tmp_path, "-k", "padding", ".")
    assert "2 passed" in tests.stdout, tests.stdout
    for family, module, words in (
        ("norm", "my_norm", "this file already exists"),
        ("task", "copy", "Python has a module with that name"),
        ("atention", "mine", "atention: expected one of"),
        ("attention", "my-attention", "a name that Python can"),
        ("mixer", "linear", "would be named 'Linear'"),
        ("norm", "none", "would be named 'None'"),
        ("attention", "_", "_: the attention in it would be named ''"),
    ):
        refused(attempt("new", family, module, cwd=tmp_path), words)
    file = tmp_path / "my_norm.py"  # and it can fail: a norm over the sequence
    file.write_text(file.read_text().replace(".mean(-1, keepdims", ".mean(-2, keepdims"))
    assert "1 failed" in pytest_in(tmp_path, "-k", "padding", "test_my_norm.py").stdout


@pytest.mark.commands
def test_a_mask_written_as_a_function_that_forgets_the_past_is_noted(tmp_path):
    text = """
import jax.numpy as jnp

def near(positions, past):
    return jnp.abs(positions[:, None] - positions) <= 1

def before(positions, past):
    return near(positions, past) & past
"""
    (tmp_path / "my_masks.py").write_text(text)
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    flags = (f"--config={TINY}", f"--workdir={tmp_path / 'run'}", "--dry_run")
    near, before = (
        command("train", *flags, f"--config.model.mask=my_masks:{name}", PYTHONPATH=path)
        for name in ("near", "before")
    )
    assert "note   model.mask=my_masks:near: a token sees later ones" in near.stdout, near
    assert before.returncode == 0, before.stderr
    assert "a token sees" not in before.stdout
