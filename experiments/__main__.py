"""Lists the commands, or runs one: `python -m experiments train --config=tiny`."""

import ast
import runpy
import sys
from pathlib import Path

from experiments.command import execute
from transformer_jax.errors import InvalidInput
from transformer_jax.options.rule import suggest


def commands() -> dict[str, str]:
    """Returns the name of each command, and what it does."""
    folder = Path(__file__).parent
    files = {file.stem: file for file in sorted(folder.glob("[!_]*.py"))}
    files["course"] = folder / "course" / "__main__.py"
    told = {}
    for name, file in sorted(files.items()):
        text = file.read_text(encoding="utf-8")
        if "execute(main)" in text:
            told[name] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return told


def main(argv: list[str]) -> None:
    """Prints the list, without a command; refuses one that is not there."""
    known = commands()
    if argv and argv[0] not in ("-h", "--help"):
        raise InvalidInput(
            f"{argv[0]}: no such command{suggest(argv[0], known)}\nsee python -m experiments"
        )
    wide = max(map(len, known))
    for name, told in known.items():
        print(f"{name:<{wide}}  {told}")
    print("\npython -m experiments COMMAND --help says more.")


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1] in commands():
        module = f"experiments.{sys.argv.pop(1)}"
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        execute(main)
