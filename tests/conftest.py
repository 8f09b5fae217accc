"""Strict modes for the whole suite, and what several test files share."""

import contextlib
import functools
import gc
import hashlib
import importlib
import io
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
# One cache for each worker: jax writes its entries in place, and another process may read half.
CACHE = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or ROOT / ".pytest_cache" / "compiled")
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(CACHE / os.environ.get("PYTEST_XDIST_WORKER", "all"))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the suite's time is compilation, so this process optimises little, and so do the commands
# that it starts, which find its programs in the cache. What shows a user's bits or times, or trains
# for long, is marked `as_user` and starts commands that are compiled as a user's are. Flags that save
# more cost bits: with CPU_OPT_PRESET_FAST_COMPILE or without fusion emitters, equal expressions in two
# programs differ. So only modules that compare no bits of two programs run without emitters, in a
# session of their own: `make test` starts one with TEST_EMITTERS=without and one with
# TEST_EMITTERS=with. Plain pytest runs all modules with emitters.
FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
EMITTERS = os.environ.get("TEST_EMITTERS", "")
if os.environ["JAX_PLATFORMS"] != "cpu":  # `make gpu`
    FLAGS = "--xla_gpu_deterministic_ops=true"
elif EMITTERS == "without" and version("jaxlib").startswith("0.10."):  # later ones lack the flag
    FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = FLAGS

import jax
import numpy as np
import pytest

from experiments.command import execute, use_compilation_cache
from transformer_jax.config_files import load_config
from transformer_jax.data.tasks import (
    classification,
    language_modelling,
    masked_diffusion,
    masked_language_modelling,
)
from transformer_jax.data.tasks.translation import Translation
from transformer_jax.runs.progress import Silent
from transformer_jax.runs.provenance import surroundings

use_compilation_cache()
# Keeping small programs costs more than compiling them again.
_WORTH_KEEPING = 0.2  # seconds that compiling took
jax.config.update("jax_persistent_cache_min_compile_time_secs", _WORTH_KEEPING)
gc.set_threshold(50_000, 20, 50)

_MOST_BYTES = 3 << 30  # that a process may hold when it has done a module
TINY = str(ROOT / "configs" / "tiny.py")


# Modules that take long begin first, so that no process is left with one of them at the end.
_LONG = (
    *("test_readme", "test_commands", "test_step", "test_studies", "test_switches", "test_tasks"),
    "test_train",
)
# Modules whose programs are many and small, which check keys only where something is drawn.
_QUICK = {
    *("test_architectures", "test_attention", "test_components", "test_coordinates", "test_course"),
    *("test_generation", "test_inspection", "test_interop", "test_laws", "test_layers"),
    *("test_masks", "test_models", "test_optimizers", "test_sites", "test_transformations"),
}
# Modules that compare no bits of two programs, except by commands that are compiled `as_user`.
# Compiling takes two fifths less without emitters.
_WITHOUT_EMITTERS = _QUICK | {
    *("test_ahead", "test_baselines", "test_chunks", "test_day", "test_fused", "test_layer_list"),
    *("test_metrics", "test_own", "test_own_data", "test_pretrained", "test_register"),
    *("test_step", "test_switches", "test_synthetic_tasks", "test_tasks"),
    *("test_cells", "test_commands", "test_corpora", "test_examples", "test_ladder", "test_links"),
    *("test_laws_everywhere", "test_mixture", "test_oracles"),
    *("test_processes", "test_readme", "test_reports", "test_sharding", "test_site"),
    *("test_try", "test_tuning"),
}


def _read_once(read):
    """Data of this package is read once with the same options: some hundred tests read it."""
    found = {}

    @functools.wraps(read)
    def remembered(*arguments, **options):
        key = repr((arguments, sorted(options.items())))
        source = options["source"] if "source" in options else arguments[0]
        if source not in _OF_PACKAGE or " at 0x" in key:
            return read(*arguments, **options)
        if key not in found:
            found[key] = read(*arguments, **options)
        return found[key]

    return remembered


_OF_PACKAGE = ("shakespeare", "movie_snippets", "tatoeba_en_es")
language_modelling.load_text = _read_once(language_modelling.load_text)
for _module in (masked_diffusion, masked_language_modelling):
    _module.load_splits = _read_once(_module.load_splits)
Translation.load = classmethod(_read_once(Translation.load.__func__))
classification.text_classification = _read_once(classification.text_classification)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Gives each module to one process, whose fixtures and programs its tests then share."""
    names = {item: item.module.__name__.rpartition(".")[2] for item in items}
    for item in items:
        if not any(item.iter_markers("xdist_group")):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))
    if EMITTERS:
        left = [i for i in items if (names[i] in _WITHOUT_EMITTERS) != (EMITTERS == "without")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]
    items.sort(key=lambda item: names[item] not in _LONG)


@pytest.fixture(autouse=True)
def _at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture(autouse=True, scope="module")
def _check_keys(request):
    """No random key may be used twice."""
    name = request.module.__name__.rpartition(".")[2]
    jax.config.update("jax_debug_key_reuse", name not in _QUICK)


@pytest.fixture(scope="module")
def torch():
    import torch

    torch.manual_seed(0)
    return torch


@pytest.fixture
def no_key_twice():
    """In modules that check no keys: here a random key may be used once."""
    with jax.debug_key_reuse(True):
        yield


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """A process that keeps all programs of the suite holds 5 GB, and its collector crawls."""
    yield
    statm = Path("/proc/self/statm")  # of Linux; elsewhere they are forgotten in any case
    pages = int(statm.read_text().split()[1]) if statm.exists() else _MOST_BYTES
    if pages * os.sysconf("SC_PAGE_SIZE") > _MOST_BYTES:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(autouse=True)
def _as_users_compile(request, monkeypatch):
    """Tests marked `as_user` start commands that are compiled as a user's are."""
    if request.node.get_closest_marker("as_user"):
        surroundings()  # this process goes on with what it was compiled with
        monkeypatch.delenv("XLA_FLAGS")


_PROGRAMS = {}


@pytest.fixture
def one_program(monkeypatch):
    """Steps that are described by the same options, sizes and shapes are traced and compiled once.

    For tests in which no code is exchanged.
    """
    from transformer_jax.training.prepared import Prepared

    make = Prepared.program.func

    def remembered(prepared):
        shapes = jax.tree.map(lambda array: (np.shape(array), str(array.dtype)), prepared.shapes)
        key = repr((prepared.program_key, prepared.task.sizes, shapes))
        if key not in _PROGRAMS:
            _PROGRAMS[key] = make(prepared)
        return _PROGRAMS[key]

    monkeypatch.setattr(Prepared, "program", property(remembered))


def a_few_of(values, kept):
    """Parameters: `make test` takes those that are kept, `make thorough` the others."""
    return [pytest.param(v, marks=[] if v in kept else pytest.mark.thorough) for v in values]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def tiny_config(**overrides):
    """The tiny config without a sample, which few look at; keys are written with __ for the dots."""
    changes = {"sample__num_tokens": 0, **overrides}
    return load_config(TINY, {key.replace("__", "."): str(v) for key, v in changes.items()})


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """A finished run of the tiny config; read it, never write to it."""
    from transformer_jax.training.loop import train

    os.chdir(ROOT)
    workdir = tmp_path_factory.mktemp("runs") / "tiny"
    train(tiny_config(sample__num_tokens=40), workdir, Silent())
    return workdir


def user_environment(**changes):
    """The environment of commands; without the suite's flags in tests that are marked `as_user`."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def run_python(*words, cwd=ROOT, timeout=None, **environment):
    """Runs Python with some words in a fresh process."""
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env=user_environment(**environment),
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def command(verb, *arguments, timeout=300, **more):
    """Runs `python -m experiments.VERB` in a fresh process."""
    return run_python("-m", f"experiments.{verb}", *arguments, timeout=timeout, **more)


def attempt(verb, *arguments, cwd=ROOT):
    """Runs a command in this process, for refusals: it ends as `command` does, without its start."""
    main = importlib.import_module(f"experiments.{verb}").main
    out, err, code = io.StringIO(), io.StringIO(), None
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with contextlib.chdir(cwd), streams[0], streams[1]:
        try:
            execute(main, [str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _WORTH_KEEPING)
    return subprocess.CompletedProcess([verb, *arguments], code, out.getvalue(), err.getvalue())


def start_command(verb, *arguments, process_group=None, **environment):
    """Starts a command and returns its process, to be killed; process_group=0: with its own group."""
    words = ("-m", f"experiments.{verb}", *map(str, arguments))
    return start_python(*words, process_group=process_group, **environment)


def start_python(*words, process_group=None, **environment):
    """Starts Python with some words and returns its process."""
    return subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, process_group=process_group, text=True,
        env=user_environment(**environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def refused(result, *words):
    """Asserts a refusal as the design wants it: exit 2, at most 8 lines, no traceback."""
    assert result.returncode == 2, result
    assert "Traceback" not in result.stderr
    assert 1 <= len(result.stderr.strip().splitlines()) <= 8
    for word in words:
        assert word in result.stderr, (word, result.stderr)


def random_params(model, *arguments, scale=0.4, seed=2, **inputs):
    """Parameters all of which are drawn: norms' scales around 1, others around 0; none is compiled.

    Drawing them as the model does is compiled, and takes longer than most tests that need some.
    """
    inputs = inputs or ({} if arguments else model.example_inputs())
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), *arguments, **inputs))["params"]
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        mean = float(path[-1].key == "scale")
        return jax.numpy.asarray(rng.normal(mean, scale, leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)


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
    from transformer_jax.training.step import draw_state

    directory = RunDirectory(workdir)
    config = directory.config()
    model = make_model(config, directory.sizes())
    template = jax.eval_shape(lambda: draw_state(model, make_optimizer(config), config.seed))
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


@pytest.fixture(autouse=True)
def _forget_user_defined_modules():
    """Files of one name have another content in another test."""
    yield
    for name in [name for name in sys.modules if name.startswith(("own_", "my_"))]:
        del sys.modules[name]
