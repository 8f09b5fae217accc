"""Lists the commands, or runs one: `python -m experiments train --config=tiny`."""

import ast
import runpy
import sys
from pathlib import Path

from experiments.command import Parser, execute, is_completing, words_so_far


def commands() -> dict[str, str]:
    """Returns the summary of each command by name."""
    folder = Path(__file__).parent
    files = {file.stem: file for file in sorted(folder.glob("[!_]*.py"))}
    files["course"] = folder / "course" / "__main__.py"
    summaries = {}
    for name, file in sorted(files.items()):
        text = file.read_text(encoding="utf-8")
        if "execute(main)" in text:
            summaries[name] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return summaries


def main(argv: list[str]) -> None:
    """Prints the list of commands if there are no arguments; refuses unknown commands."""
    summaries = commands()
    if is_completing() or argv[:1] not in ([], ["-h"], ["--help"]):
        Parser("", __doc__).choose(argv, summaries)
    wide = max(map(len, summaries))
    for name, summary in summaries.items():
        print(f"{name:<{wide}}  {summary}")
    print("\npython -m experiments COMMAND --help says more.")


if __name__ == "__main__":
    sys.argv[1:] = words_so_far()
    if sys.argv[1:] and sys.argv[1] in commands():
        module = f"experiments.{sys.argv.pop(1)}"
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        execute(main)
