"""Strict modes for the whole suite, and what several test files share."""

import gc
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# One cache for each worker: jax writes its entries in place, and another process may read half.
CACHE = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR", ROOT / ".pytest_cache" / "compiled"))
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE / os.environ.get("PYTEST_XDIST_WORKER", "all"))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the suite's time is compilation, so this process optimises little. Commands that tests
# start in processes of their own are compiled as a user's are, see `user_environment`.
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax
import numpy as np
import pytest

from experiments.command import use_compilation_cache
from transformer_jax.options.config import load_config
from transformer_jax.runs.progress import Silent

use_compilation_cache()
gc.set_threshold(50_000, 20, 50)
jax.config.update("jax_debug_key_reuse", True)

TINY = str(ROOT / "configs" / "tiny.py")


@pytest.fixture(autouse=True)
def _at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """A process that keeps all programs of the suite holds 5 GB, and its collector crawls."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def tiny_config(**overrides):
    """The tiny config; keys are written with __ for the dots."""
    return load_config(TINY, {key.replace("__", "."): str(v) for key, v in overrides.items()})


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """A finished run of the tiny config; read it, never write to it."""
    from transformer_jax.training.loop import train

    os.chdir(ROOT)
    workdir = tmp_path_factory.mktemp("runs") / "tiny"
    train(tiny_config(), workdir, Silent())
    return workdir


def user_environment(**changes):
    """This process's environment without what the suite sets for its own speed."""
    plain = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return {**plain, "PYTHONPATH": str(ROOT), **changes}


def command(verb, *arguments, cwd=ROOT, timeout=300, **environment):
    """Runs `python -m experiments.VERB` in a fresh process."""
    return subprocess.run(
        [sys.executable, "-m", f"experiments.{verb}", *map(str, arguments)],
        cwd=cwd,
        env=user_environment(**environment),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def start_command(verb, *arguments, **environment):
    """Starts a command and returns its process, to be killed."""
    return subprocess.Popen(
        [sys.executable, "-m", f"experiments.{verb}", *map(str, arguments)],
        cwd=ROOT,
        env=user_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def refused(result, *words):
    """Asserts a refusal as the design wants it: exit 2, at most 8 lines, no traceback."""
    assert result.returncode == 2, result
    assert "Traceback" not in result.stderr
    assert 1 <= len(result.stderr.strip().splitlines()) <= 8
    for word in words:
        assert word in result.stderr, (word, result.stderr)


def tree_hash(tree):
    """sha256 over paths, dtypes and bytes of a tree's arrays."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def checkpoint_of(workdir):
    """The newest checkpoint of a run of the tiny config: step, state, extra."""
    from transformer_jax.runs.checkpoints import Checkpoints
    from transformer_jax.runs.directory import RunDirectory
    from transformer_jax.training.build import make_model
    from transformer_jax.training.optimizers import make_optimizer
    from transformer_jax.training.step import make_initial_state

    directory = RunDirectory(workdir)
    config = directory.config()
    model = make_model(config.model, directory.sizes())
    template = jax.eval_shape(make_initial_state(model, make_optimizer(config), config.seed))
    return Checkpoints(directory.file("checkpoints")).restore(template, read_only=True)


def fingerprint_of(workdir):
    """Everything a run decided: all state, and every logged number except times."""
    from transformer_jax.runs.directory import RunDirectory

    restored = checkpoint_of(workdir)
    rows = [
        {key: value for key, value in row.items() if not key.startswith("time/")}
        for row in RunDirectory(workdir).metrics()
    ]
    return restored.step, tree_hash(restored.state), rows
