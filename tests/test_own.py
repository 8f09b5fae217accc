"""A component of the user's own: named by import path, checked unread, never run unasked."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT, TINY, attempt, command, refused, user_environment
from transformer_jax.config_files import (
    flatten,
    from_json,
    load_config,
    refuse_foreign_modules,
    to_json,
)
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
AROUND = {
    "packages": {},
    "environment": {},
    "device": {"platform": "cpu", "count": 1, "kind": "x"},
}
CHOICE = {"model.attention": "own_tempered:Tempered"}
OPTION = "model.attention_options.temperature"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of the user's with their module and this package's configs, where commands run."""
    (tmp_path / "own_tempered.py").write_text(OWN)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_tempered", None)


def short(**changes):
    steps = {"training.steps": "3", "schedule.name": "constant", "sample.num_tokens": "3"}
    return load_config(TINY, steps | CHOICE | changes)


@pytest.mark.thorough
def test_an_own_class_trains_resumes_and_is_imported_later_only_where_allowed(folder):
    config = short(**{OPTION: "4"})
    assert flatten(config)[OPTION] == 4.0
    last = train(config, "run", Silent())
    plain = train(short(), "plain", Silent())
    assert last["eval/loss"] != plain["eval/loss"]  # the option reached the class
    assert train(config, "run", Silent()) == last  # complete
    sys.modules.pop("own_tempered", None)
    with pytest.raises(InvalidInput, match=r"needs your permission; .*--allow=own_tempered"):
        load_run("run")
    assert "own_tempered" not in sys.modules
    run = load_run("run", allow=["own_tempered"])
    assert len(run.sample("a", num_tokens=4)) == 4
    refused(attempt("sample", "--workdir=run", cwd=folder), "--allow=own_tempered")
    done = command("sample", "--workdir=run", "--allow=own_tempered", "--prompt=a", cwd=folder)
    assert done.returncode == 0, done.stderr


def test_code_that_changed_since_the_run_began_is_named(folder, capsys):
    config = short()
    train(config, "run", Silent())
    stored = RunDirectory("run").manifest()["own_rows"]
    assert list(stored) == ["own_tempered:Tempered"]
    (folder / "own_tempered.py").write_text(OWN + "\n# changed\n")
    train(config, "run")
    assert "the code of own_tempered:Tempered changed" in capsys.readouterr().out


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
        ({OPTION: "-1"}, "attention_options.temperature=-1: expected a number > 0"),
        (
            {"model.attention_options.temprature": "1"},
            "model.attention_options.temprature: own_tempered:Tempered has no such option; .*temperature",
        ),
        ({"model.attention": "own_tempered:Temperd"}, "own_tempered.py defines no Temperd"),
        ({"model.attention": "own_temperd:Tempered"}, "no file own_temperd.py here or on Python's"),
        (
            {"model.attention": "softmax", OPTION: "1"},
            "model.attention_options.temperature: no such option",
        ),
    ],
)
def test_wrong_names_and_options_are_refused(folder, changes, words):
    with pytest.raises(InvalidInput, match=words):
        short(**changes)


def test_a_stored_config_runs_nothing_that_is_not_allowed(folder):
    stored = to_json(short(**{OPTION: "4"}))
    del sys.modules["own_tempered"]
    config = from_json(stored, "here")
    with pytest.raises(InvalidInput, match=r"needs your permission; .*--allow=own_tempered"):
        refuse_foreign_modules(config, ())
    refuse_foreign_modules(config, ["own_tempered"])
    assert "own_tempered" not in sys.modules


def test_a_config_of_another_sets_own_options_that_are_checked_too(folder):
    source = "from configs import tiny\n\ndef get_config():\n    config = tiny.get_config()\n"
    source += "    config.model.attention = 'own_tempered:Tempered'\n"
    (folder / "mine.py").write_text(
        source + "    config.model.attention_options.temperatur = 2.0\n    return config\n"
    )
    with pytest.raises(InvalidInput, match=r"has no such option; did you mean .*temperature"):
        load_config("mine.py", {})
    (folder / "mine.py").write_text(
        source + "    config.model.attention_options.temperature = 2.0\n    return config\n"
    )
    assert flatten(load_config("mine.py", {}))[OPTION] == 2.0


def test_a_file_that_fails_when_it_is_imported_is_named(folder):
    (folder / "own_tempered.py").write_text(OWN + "\nraise RuntimeError('broken')\n")
    with pytest.raises(InvalidInput, match=r"own_tempered.py, line 12: RuntimeError: broken"):
        short()


# ---------------------------------------------------------------- architectures, and what has no options

NET = (ROOT / "tests" / "own_components" / "architecture.py").read_text()


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """A folder with an architecture of the user's, and with copies of it that are wrong."""
    faults = {
        "own_net": ("", ""),
        "own_leak": ('padding="CAUSAL"', 'padding="SAME"'),
        "own_shape": (
            "return nn.Dense(self.vocab_size)(nn.LayerNorm()(hidden))",
            "return hidden[:, 0]",
        ),
        "own_few": ("nn.Dense(self.vocab_size)", "nn.Dense(3)"),
        "own_inputs": ("def __call__(self, tokens, *", "def __call__(self, words, *"),
        "own_bare": ("def example_inputs", "def other_inputs"),
        "own_short": ("    max_length: int\n", ""),
    }
    for name, (old, new_text) in faults.items():
        text = NET.replace(old, new_text)
        (tmp_path / f"{name}.py").write_text(
            text.replace("self.max_length", "16") if name == "own_short" else text
        )
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in faults:
        sys.modules.pop(name, None)


def with_net(name, **more):
    return short(**{"model.attention": "softmax", "model.architecture": f"{name}:Mine"} | more)


def test_an_architecture_of_ones_own_trains_writes_and_is_asked_for(nets):
    config = with_net("own_net", **{"model.window": "2", "model.depth": "1"})
    last = train(config, "run", Silent())
    assert train(config, "run", Silent()) == last
    with pytest.raises(InvalidInput, match="--allow=own_net"):
        load_run("run")
    run = load_run("run", allow=["own_net"])
    assert (run.model.window, run.model.depth, run.model.width) == (2, 1, 32)
    assert len(run.sample("ROMEO", num_tokens=14)) == 14  # beyond max_length, one prompt of [P]
    other = load_config(TINY, {"model.architecture": "own_net:Mine"})
    assert make_model(other, {"vocab_size": 7}, ["own_net"]).window == 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_leak", r"own_leak:Mine: what is hidden is seen: tokens from place 8 on change"),
        (
            "own_shape",
            r"of tokens \[8, 16\] the model makes \(8, 32\); expected logits \[8, 16, 65\]",
        ),
        ("own_few", r"the model makes \(8, 16, 3\); expected logits \[8, 16, 65\]"),
        ("own_inputs", r"model.architecture=own_inputs:Mine: TypeError: .*'tokens'"),
        ("own_bare", r"own_bare:Mine: it needs example_inputs\(\)"),
        ("own_short", "data.task=language_modelling requires its attribute max_length"),
    ],
)
def test_an_architecture_that_does_not_fit_is_refused_before_it_trains(nets, name, words):
    with pytest.raises(InvalidInput, match=words):
        train(with_net(name), "run", Silent())
    assert not (nets / "run" / "config.json").exists()


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
         "the first token changes logits that model.mask hides it from"),
        ("", "", {"data.separate_documents": "True", "data.document_separator": "",
                  "data.length": "64"}, "tokens of the first document change the logits of others"),
        ("[(0, 0)] * (inputs.ndim - 2) + [(1, 0), (0, 0)])[..., :-1, :]",
         "((0, 0), (1, 0), (0, 0)))[:, :-1]", {}, r"own_mix:Before: ValueError at line \d+ .*pad"),
        ("[(1, 0), (0, 0)])[..., :-1, :]", "[(0, 1), (0, 0)])[..., 1:, :]", {},
         "tokens from place 8 on change the logits before it"),
        ("inputs.shape[-1])", "7)", {}, r"model.mixer=own_mix:Before: \w+.*shapes"),
        (", context", "", {}, r"model.mixer=own_mix:Before: TypeError: .*arguments"),
        ("    out_init: Any\n", "", {}, r"model.mixer=own_mix:Before: TypeError: .*'out_init'"),
        ("return nn", "return 1 / 0, nn", {}, r"ZeroDivisionError at line \d+ of own_mix.py"),
    ],
)  # fmt: skip
def test_a_mixer_of_ones_own_is_tried_before_it_trains(
    tmp_path, monkeypatch, old, new_text, changes, words
):
    (tmp_path / "own_mix.py").write_text(MIXER.replace(old, new_text))
    monkeypatch.chdir(tmp_path)
    steps = {"training.steps": "2", "schedule.name": "constant", "sample.num_tokens": "2"}
    mixer = {"model.mixer": "own_mix:Before", "model.position": "none"}
    config = load_config(TINY, {**steps, **mixer, **changes})
    try:
        if words is None:
            train(config, "run", Silent())
            return
        with pytest.raises(InvalidInput, match=words) as error:
            train(config, "run", Silent())
        assert len(str(error.value).splitlines()) == 1
        assert not (tmp_path / "run" / "config.json").exists()
    finally:
        sys.modules.pop("own_mix", None)


UNGUARDED = """import jax.numpy as jnp
from transformer_jax import AttentionVariant


class Unguarded(AttentionVariant):
    def weights(self, query, key, call):
        mask, _ = call.dense(query, key)
        scores = jnp.einsum("...lk,...mk->...lm", query, key)
        weights = jnp.where(mask, jnp.exp(scores - scores.max(-1, keepdims=True)), 0)
        return weights / weights.sum(-1, keepdims=True)
"""


def test_nan_of_queries_that_see_nothing_is_found_before_training(tmp_path, monkeypatch):
    (tmp_path / "own_weights.py").write_text(UNGUARDED)
    monkeypatch.chdir(tmp_path)
    config = load_config(TINY, {"model.attention": "own_weights:Unguarded"})
    with pytest.raises(InvalidInput, match=r"own_weights:Unguarded: .*not finite .*padded"):
        train(config, "run", Silent())
    assert not (tmp_path / "run" / "config.json").exists()


def test_options_of_a_user_defined_architecture_are_checked(nets):
    for more, words in (
        ({"model.windw": "3"}, "no such option"),
        ({"model.window": "0"}, "expected an integer >= 1"),
        ({"model.architecture": "own_net:Nine"}, "own_net.py defines no Nine"),
    ):
        with pytest.raises(InvalidInput, match=words):
            with_net("own_net", **more)
    with pytest.raises(InvalidInput, match=r"model\.window: no such option"):
        load_config(TINY, {"model.window": "3"})


POOLING = (ROOT / "tests" / "own_components" / "pooling.py").read_text()


def test_a_pooling_of_ones_own_does_not_see_padding(tmp_path, monkeypatch):
    (tmp_path / "own_pool.py").write_text(POOLING)
    (tmp_path / "own_last.py").write_text(
        POOLING + "\n\nclass Last(Mine):\n    def __call__(self, hidden, is_token=None):\n"
        "        return hidden[..., -1, :]\n"
    )
    (tmp_path / "texts.csv").write_text(
        "text,label\n"
        + "".join(
            f"{'good' if n % 2 else 'bad'} {'word ' * (n % 5)}{n},{n % 2}\n" for n in range(60)
        )
    )
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    changes = {
        "data.source": "texts.csv",
        "data.tokenizer": "byte",
        "data.length": "32",
        "data.splits": "0.6,0.2,0.2",
        "training.steps": "2",
        "schedule.name": "constant",
        "model.width": "16",
        "model.depth": "1",
    }
    pooled = {"model.pooling": "own_pool:Mine"}
    config = load_config("configs/movies.py", changes | pooled)
    assert train(config, "run", Silent())["eval/loss"] > 0
    assert load_run("run", allow=["own_pool"]).model.pooling.__name__ == "Mine"
    with pytest.raises(InvalidInput, match="tokens at padded places change what is scored"):
        train(
            load_config("configs/movies.py", changes | {"model.pooling": "own_last:Last"}),
            "other",
            Silent(),
        )
    for name in ("own_pool", "own_last"):
        sys.modules.pop(name, None)


# ---------------------------------------------------------------- the scaffold


def pytest_in(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder, env=user_environment(PYTHONPATH=f"{ROOT}:{folder}"), capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip


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
    refused(attempt("new", "norm", "my_norm", cwd=tmp_path), "there is a file of that")
    refused(attempt("new", "task", "copy", cwd=tmp_path), "Python has a module of that name")
    refused(
        attempt("new", "atention", "mine", cwd=tmp_path), "atention: expected one of", "attention"
    )
    refused(attempt("new", "attention", "my-attention", cwd=tmp_path), "a name that Python can")
    for family, module, name in (("mixer", "linear", "Linear"), ("norm", "none", "None")):
        refused(attempt("new", family, module, cwd=tmp_path), f"would be '{name}'")
    refused(attempt("new", "attention", "_", cwd=tmp_path), "_: the attention in it would be ''")
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
    assert "note   model.mask=my_masks:near: a token sees those after it" in near.stdout, near
    assert before.returncode == 0, before.stderr
    assert "a token sees" not in before.stdout
