"""The house has floors: who may import whom, and what an import costs."""

import ast
import functools
import graphlib
import inspect
import json
import re
import sys

import pytest

from tests.conftest import ROOT, run_python

CONFIG = (
    *("options", "declarations", "model_options", "config", "suggestions", "own"),
    *("constraints", "curves", "resolve", "config_files"),
)
CORE = (
    *("linear", "cache", "norms", "initialisation", "remat"),
    *("pooling", "feedforward", "positions", "attention", "blocks"),
)
# Lower floors first; a module may import from its own entry and from those it names.
ALLOWED = {
    "errors": ("suggestions",),
    "console": (),
    "options": ("errors",),
    "declarations": ("errors", "options"),
    "model_options": ("errors", "options"),
    "config": ("declarations", "model_options", "options"),
    "suggestions": (),
    "own": ("config", "errors", "options"),
    "constraints": ("data", "declarations", "options"),
    "curves": ("declarations", "options"),
    "resolve": (
        *("config", "constraints", "curves", "declarations", "errors", "metrics", "model_options"),
        *("options", "own", "suggestions"),
    ),
    "config_files": ("config", "declarations", "errors", "options", "own", "resolve"),
    "shapes": (),
    "masks": ("options",),
    "sharding": ("errors", "paths"),
    "placement": ("paths", "sharding"),
    "sites": ("errors", "placement"),
    "metrics": ("data", "options", "own", "paths"),
    "jaxprs": (),
    "linear": ("options", "placement", "shapes"),
    "cache": (),
    "norms": ("linear", "options", "shapes"),
    "initialisation": ("linear", "options"),
    "remat": ("options", "sites"),
    "pooling": ("linear", "options"),
    "feedforward": ("linear", "options", "shapes", "sites"),
    "positions": ("linear", "options", "shapes"),
    "attention": ("cache", "linear", "masks", "options", "positions", "shapes", "sites"),
    "blocks": ("cache", "linear", "masks", "options", "positions", "sites"),
    "variants": (*CORE, "masks", "options", "paths", "placement", "shapes", "sites"),
    "models": (
        *(*CORE, "model_options", "options", "shapes", "masks", "sites", "errors"),
        *("declarations", "paths", "variants"),
    ),
    "generation": ("cache", "errors", "paths"),
    "inspection": ("errors", "paths", "sites"),
    "laws": ("models", "paths"),
    "paths": (),
    "processes": ("errors",),
    "hub": ("errors",),
    "interop": ("declarations", "model_options", "errors", "hub", "models", "options", "positions"),
    "data": ("errors", "options"),
    "runs": (*CONFIG, "errors", "data", "hub", "paths", "processes"),
    "training": (
        *CONFIG,
        *("errors", "models", "generation", "interop", "data", "hub", "paths", "runs"),
        *("inspection", "initialisation", "metrics", "processes", "jaxprs", "shapes"),
        *("placement", "sharding", "variants"),
    ),
    "planning": (*CONFIG, "errors", "data", "runs", "training"),
    "studies": (
        *CONFIG,
        *("errors", "sites", "placement", "metrics", "data", "paths", "jaxprs", "runs"),
        "training",
    ),
}
LIBRARIES = {
    "data": {"annotated_types", "numpy", "tokenizers", "PIL", "pyarrow", "scipy"},
    "hub": {"huggingface_hub"},
    "interop": {"numpy", "jax", "flax", "safetensors"},
    "config_files": {"ml_collections"},
    "options": {"annotated_types"},
    "declarations": {"annotated_types", "typing_extensions"},
    **{key: {"annotated_types"} for key in ("model_options", "config")},
    **{key: {"jax"} for key in ("shapes", "paths", "masks", "jaxprs", "generation")},
    **{key: {"jax", "numpy"} for key in ("sharding", "placement", "laws")},
    "metrics": {"jax", "numpy", "scipy"},
    **{key: {"jax", "flax"} for key in ("sites", "inspection")},
    **{key: {"annotated_types", "jax", "flax"} for key in (*CORE, "variants", "models")},
}
PACKAGE = ROOT / "transformer_jax"


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def imports_of(path):
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def sources(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", sources("transformer_jax"), ids=lambda path: path.stem)
def test_imports_run_one_way(path):
    wing = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if wing == "__init__":
        return
    for name in imports_of(path):
        first, *rest = name.split(".")
        assert first not in ("experiments", "configs", "tests"), name
        if first == "transformer_jax":
            known = {wing, "__version__", *ALLOWED[wing]}
            assert rest[0] in known, f"{path.name} imports {name}"
        elif first not in sys.stdlib_module_names and wing in LIBRARIES:
            assert first in LIBRARIES[wing], f"{path.name} imports {name}"


def test_no_imports_go_in_a_circle():
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sources("transformer_jax")
    }
    graph = {module: set() for module in files}
    for module, path in files.items():
        for name in imports_of(path):
            target = name if name in files else name.rpartition(".")[0]
            if target in files and target != module:
                graph[module].add(target)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


READING = (
    *("config_files", "runs.directory", "runs.listing"),
    *(f"studies.{module}" for module in ("design", "study", "scores", "judging", "report")),
    *(f"studies.{module}" for module in ("comparison", "cluster", "ladder", "referee")),
)


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import transformer_jax", {"jax", "flax", "numpy"}),
        (
            "from transformer_jax import Decoder, MultiHeadAttention",
            {"ml_collections", "tokenizers", "matplotlib", "tensorstore"},
        ),
        (
            "import transformer_jax.runs.checkpoints, transformer_jax.training.loop",
            {"orbax", "matplotlib"},
        ),
        ("\n".join(f"import transformer_jax.{name}" for name in READING), {"jax", "flax", "optax"}),
    ],
    ids=["the package", "modules", "orbax when it is used", "what reads and judges"],
)
def test_an_import_loads_no_more_than_it_needs(statement, unwanted):
    probe = f"import sys\n{statement}\nprint(*(n for n in sys.modules if '.' not in n))"
    done = run_python("-c", probe)
    assert done.returncode == 0, done.stderr
    assert not {*done.stdout.split()} & unwanted


def test_configs_import_ml_collections_options_and_each_other():
    for path in sources("configs"):
        for name in imports_of(path):
            is_options = name.startswith("transformer_jax.config_files.")
            assert is_options or name.split(".")[0] in ("configs", "ml_collections"), (path, name)


COUNTED = """
import os, runpy, sys

def count():
    named = [n for n in sys.modules if n.split(".")[0] == "transformer_jax"]
    files = {file for n in named if (file := getattr(sys.modules[n], "__file__", None))}
    print("COUNTED", len(files), sum(len(open(file).readlines()) for file in files), flush=True)

"""
UNTIL_THE_FIRST_UPDATE = """
from transformer_jax.training.program import Program

take = Program.take

def counted(self, requests):
    take(self, requests)
    count()
    os._exit(0)

Program.take = counted
sys.argv = ["train", "--config=configs/tiny.py", "--workdir=%s"]
runpy.run_module("experiments.train", run_name="__main__")
"""
ONE_PAGE = """
sys.argv = ["one_page.py", "--steps=2"]
runpy.run_path("examples/one_page.py", run_name="__main__")
count()
"""


@pytest.mark.parametrize(
    ("program", "most_files", "most_lines"),
    [
        pytest.param(UNTIL_THE_FIRST_UPDATE, 70, 12_000, id="train"),
        pytest.param(ONE_PAGE, 35, 6_172, id="one page", marks=pytest.mark.thorough),
    ],
)
def test_little_is_imported(tmp_path, program, most_files, most_lines):
    """Bounds the code that lies between a command and the first update."""
    text = COUNTED + (program % (tmp_path / "run") if "%s" in program else program)
    done = run_python("-c", text)
    counts = [line.split() for line in done.stdout.splitlines() if line.startswith("COUNTED")]
    assert counts, done.stderr
    files, lines = map(int, counts[0][1:])
    assert files <= most_files
    assert lines <= most_lines


def test_public_names_exist_and_others_are_refused():
    import transformer_jax

    for name in transformer_jax.__all__:
        assert getattr(transformer_jax, name) is not None
        assert name in dir(transformer_jax)
    with pytest.raises(AttributeError, match="no public name 'decoder'"):
        _ = transformer_jax.decoder


def arguments_of(function):
    """Names of arguments, with their defaults as far as these are plain values."""
    told = []
    for name, argument in inspect.signature(function).parameters.items():
        default = argument.default
        is_plain = isinstance(default, int | float | str | bool | tuple | None)
        value = repr(default) if is_plain else "..."
        told.append(name if default is inspect.Parameter.empty else f"{name}={value}")
    return told


SIGNATURES = ROOT / "tests" / "golden" / "public.json"


def test_the_signatures_of_the_public_names_are_what_was_promised():
    """A change of this file is a change for everybody who uses the package: say it in CHANGELOG."""
    import transformer_jax

    values = {name: getattr(transformer_jax, name) for name in transformer_jax.__all__}
    now = {name: arguments_of(value) for name, value in values.items() if callable(value)}
    assert now == json.loads(SIGNATURES.read_text())
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert all(f"`{name}`" in page for name in transformer_jax.__all__)


def test_c73_nothing_executes_what_it_reads():
    banned = re.compile(r"\b(pickle|eval\(|exec\(|yaml\.load|os\.system)|allow_pickle=True")
    for path in sources("transformer_jax", "experiments", "configs"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            allowed = "allow_pickle=False" in line or not banned.search(line)
            assert allowed, f"{path}:{number}: {line}"


def test_c35_no_config_is_read_with_a_hidden_default():
    for path in sources("transformer_jax", "experiments"):
        for node in ast.walk(tree_of(path)):
            is_get = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get"
            if is_get and len(node.args) == 2:
                of_config = "config" in ast.unparse(node.func)
                assert not of_config, f"{path}:{node.lineno}: {ast.unparse(node)}"


def test_every_file_says_what_it_is_and_docstrings_begin_with_a_noun_or_a_verb():
    clause = re.compile(r"(What|Whether|How|Where|Which|Who|That|Of)\b")
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for path in sources("transformer_jax", "experiments", "configs", "tests", "examples"):
        assert PACKAGE not in path.parents or ast.get_docstring(tree_of(path)), path
        for node in ast.walk(tree_of(path)):
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            line = getattr(node, "lineno", 1)
            assert not clause.match(text or ""), f"{path}:{line}: {text}"
