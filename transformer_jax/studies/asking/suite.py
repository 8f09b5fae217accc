"""The same question on several data sets: a study each, with the same arms and seeds."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import ConfigFile, flatten
from transformer_jax.runs.files import inside, read_json, write_json
from transformer_jax.studies.asking.arms import quick_arms
from transformer_jax.studies.asking.design import Design, checked_arms, design_of, question_of

FILE = "suite.json"
# Configs whose data comes with the package, and which beat their gates on it; digits.py surely
# over five seeds, and not over three.
EMBEDDED = ("shakespeare", "digits", "masked_lm", "translation")


def suite_of(
    text: str,
    file: ConfigFile,
    overrides: Mapping[str, str],
    arms: Sequence[str] = (),
    drops: Sequence[str] = (),
    own: Callable[[ConfigFile], Mapping[str, str]] = lambda file: {},
) -> dict[str, Design]:
    """Returns a design for each data set, by the name of its config file.

    Args:
      text: of `--suite`, FILE,FILE: configs of further data sets.
      file: the question, and the first data set.
      overrides: of every base, full key -> text of the value.
      arms: texts of `--arm`.
      drops: names of `--drop`.
      own: a base's file -> further overrides of it alone.
    Raises:
      InvalidInput: a file is none or named twice, the question has a target, an arm does not fit
        a base, or the bases cannot be compared with the same arm.
    """
    files = {Path(file.path).stem: file}
    for path in filter(None, text.split(",")):
        name = Path(path).stem
        if name in files:
            raise InvalidInput(f"--suite={text}: {name!r} is there twice; each names its study")
        files[name] = ConfigFile(path, "--suite")
    if len(files) < 2:
        raise InvalidInput(f"--suite={text}: expected FILE,FILE: configs of further data sets")
    designs = {}
    for name, its in files.items():
        try:
            on = None if its is file else its
            designs[name] = design_of(file, {**overrides, **own(its)}, arms, drops, on)
        except InvalidInput as error:
            raise InvalidInput(f"on {its.path}: {error}") from error
        if designs[name].target is not None:
            raise InvalidInput(f"--suite: {file.path} has a target, with which no mean is judged")
    if len({design.base for design in designs.values()}) > 1:
        designs = _with_one_base(designs, arms, drops)
    return designs


def _with_one_base(
    designs: Mapping[str, Design], arms: Sequence[str], drops: Sequence[str]
) -> dict[str, Design]:
    """Compares with the first value everywhere, where configs have different ones themselves."""
    if len(arms) != 1 or drops:
        bases = ", ".join(f"{design.base!r} on {name}" for name, design in designs.items())
        raise InvalidInput(
            f"--suite: the base is {bases}; one --arm compares all of its values with the first"
        )
    designs_by_name = {}
    for name, design in designs.items():
        made = quick_arms(flatten(design.config), arms, drops)
        base = next(iter(made))
        if len(made) < 2:
            raise InvalidInput(f"--arm={arms[0]}: {name} has it already: expected two values")
        question = question_of(made, drops)
        design = dataclasses.replace(design, question=question, base=base, arms=made)
        designs_by_name[name] = checked_arms(design)
    return designs_by_name


def begin_suite(workdir: str | Path, designs: Mapping[str, Design], write: bool = True) -> None:
    """Notes which data sets were asked about, before the first cell.

    Args:
      workdir: of the suite.
      designs: by the name of the data set.
      write: False: another suite is refused, and nothing is written.
    Raises:
      InvalidInput: it was begun with others: which ones count is not to be chosen afterwards.
    """
    now = {name: design.path for name, design in designs.items()}
    arms = sorted({arm for design in designs.values() for arm in design.others})
    file = inside(Path(workdir), FILE)
    if not file.exists():
        if write:
            Path(workdir).mkdir(parents=True, exist_ok=True)
            write_json(Path(workdir), FILE, {"configs": now, "arms": dict.fromkeys(arms)})
        return
    before = read_json(file)
    # However their paths are spelled; each study holds its own question to its seal.
    if sorted(before.get("configs", ())) != sorted(now) or sorted(before.get("arms", ())) != arms:
        of = " and ".join([", ".join(before.get("arms", ())), ", ".join(before.get("configs", ()))])
        raise InvalidInput(
            f"--workdir={workdir}: its suite is of {of}; choose another --workdir for another"
        )
