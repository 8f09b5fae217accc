r"""Writes a component to start from: a working file, and its test.

Families: attention, values, stem, norm, position, mixer, feed_forward, wiring, task, metric,
objective, optimizer, hook.

Example:
  python -m experiments.new attention my_attention
  python -m pytest test_my_attention.py
  python -m experiments.train --config=configs/tiny.py --workdir=runs/mine \
    --config.model.attention=my_attention:MyAttention
"""

import importlib.util
import keyword
import re
from pathlib import Path

from experiments.command import Parser, execute
from transformer_jax.errors import InvalidInput, suggest

_FOLDER = Path(__file__).parent / "templates"
TEMPLATES = {
    file.stem: file.read_text(encoding="utf-8") for file in sorted(_FOLDER.glob("[a-z]*.py"))
}
# Families that no law of a decoder tests: the key that chooses a component, a config that trains
# it, and a bound on the loss after 50 updates. Guessing costs the log of the number of answers.
_TRAINED = {
    "objective": ("objective.name", "tiny", "4"),
    "optimizer": ("optimizer.name", "tiny", "4"),
    "task": ("data.task", "tiny", "2.4"),
    "metric": ("evaluation.metrics", "tiny", "4"),
    "hook": ("hooks.functions", "tiny", "4"),
}
_LAWS = '''"""My component obeys the laws of every component."""

import pytest
from MODULE import NAME

from transformer_jax.laws import LAWS, Subject, small_decoder


@pytest.fixture(scope="module")
def subject():
    return Subject(small_decoder(FAMILY=NAME))


@pytest.mark.parametrize("law", LAWS)
def test_law(subject, law):
    LAWS[law](subject)
'''
_TRAINS = '''"""A model learns with my component."""

from transformer_jax.config_files import load_config
from transformer_jax.training.loop import train
'''
_TASK = '''"""My task obeys the laws of every task, and a model learns it."""

import pytest
from MODULE import NAME

from transformer_jax import TASK_LAWS
from transformer_jax.config_files import load_config
from transformer_jax.training.loop import train


@pytest.mark.parametrize("law", TASK_LAWS)
def test_law(law):
    TASK_LAWS[law](NAME(length=16, batch_size=8))
'''
_FALLS = """

def test_the_loss_falls(tmp_path):
    changes = {"KEY": "MODULE:NAME", "training.steps": "50"}
    changes |= {"schedule.warmup_steps": "10"}
    config = load_config("configs/CONFIG.py", changes)
    assert train(config, tmp_path / "run")["eval/loss"] < LIMIT
"""


def main(argv: list[str]) -> None:
    """Reads the arguments, and writes the component and its test."""
    parser = Parser("new", __doc__)
    parser.add_argument("family", help=f"one of: {', '.join(TEMPLATES)}")
    parser.add_argument("module", help="name of the file to write, without .py")
    arguments = parser.read(argv)
    family, module = arguments.family, arguments.module
    if family not in TEMPLATES:
        near = suggest(family, TEMPLATES)
        raise InvalidInput(f"{family}: expected one of {', '.join(TEMPLATES)}{near}")
    if not module.isidentifier() or keyword.iskeyword(module):
        raise InvalidInput(f"{module}: expected a name that Python can import: my_{family}")
    name = _name(family, module)
    is_taken = keyword.iskeyword(name) or re.search(rf"\b{name}\b", TEMPLATES[family])
    if not name.isidentifier() or is_taken:
        raise InvalidInput(
            f"{module}: the {family} in it would be named {name!r}, which is invalid or already "
            f"used there; choose a different name, such as my_{family}"
        )
    source = re.sub(r"\b[Mm]ine\b", name, TEMPLATES[family])
    files = {f"{module}.py": source, f"test_{module}.py": _test(family, module)}
    taken = [file for file in files if Path(file).exists()]
    if taken:
        raise InvalidInput(f"{taken[0]}: this file already exists; choose a different name")
    if importlib.util.find_spec(module):
        raise InvalidInput(f"{module}: Python has a module with that name; choose a different one")
    for file, text in files.items():
        Path(file).write_text(text, encoding="utf-8")
    config = _TRAINED[family][1] if family in _TRAINED else "tiny"
    print(
        f"wrote   {', '.join(files)}\n"
        f"test    python -m pytest test_{module}.py  (needs pytest: "
        "pip install -c constraints.txt -e '.[dev]')\n"
        f"train   python -m experiments.train --config=configs/{config}.py --workdir=runs/{module} "
        f"--config.{_key(family)}={module}:{name}"
    )


def _key(family: str) -> str:
    return _TRAINED[family][0] if family in _TRAINED else f"model.{family}"


def _name(family: str, module: str) -> str:
    """Returns the component's name: MyAttention for a class, my_attention for a function."""
    is_class = "class Mine" in TEMPLATES[family]
    return "".join(part.title() for part in module.split("_")) if is_class else module


def _test(family: str, module: str) -> str:
    values = {"MODULE": module, "FAMILY": family, "KEY": _key(family)}
    values |= dict(zip(("KEY", "CONFIG", "LIMIT"), _TRAINED.get(family, ()), strict=False))
    trains = (_TASK if family == "task" else _TRAINS) + _FALLS
    text = trains if family in _TRAINED else _LAWS
    for word, value in {**values, "NAME": _name(family, module)}.items():
        text = text.replace(word, value)
    return text


if __name__ == "__main__":
    execute(main)
