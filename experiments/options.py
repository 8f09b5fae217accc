r"""Explains every option of a config: default, allowed values, meaning.

Example:
  python -m experiments.options
  python -m experiments.options --section=training
  python -m experiments.options --out=docs/options.md
"""

from experiments.command import Parser, execute, file_to_write
from experiments.explained import as_lines, as_markdown
from transformer_jax.config import OPTIONS, SECTIONS
from transformer_jax.errors import InvalidInput, suggest
from transformer_jax.resolve import all_options


def main(argv: list[str]) -> None:
    """Reads the arguments and prints or writes the options."""
    parser = Parser("options", __doc__)
    parser.add_argument("--section", default="", help="only this section: model, training, ...")
    parser.add_argument("--out", help="file for a Markdown page, such as docs/options.md")
    arguments = parser.read(argv)
    text = as_lines(arguments.section)
    if not text:
        sections = [prefix.removesuffix(".") for prefix in SECTIONS if prefix]
        nearest = suggest(arguments.section, [*sections, *OPTIONS, *all_options()])
        nearest = nearest or f"; sections are {', '.join(sections)}"
        raise InvalidInput(f"--section={arguments.section}: no such section or option{nearest}")
    if arguments.out and arguments.section:
        raise InvalidInput("--out: the page has all sections; leave --section out")
    if arguments.out:
        file_to_write(arguments.out, "--out").write_text(as_markdown(), encoding="utf-8")
        print(f"wrote {arguments.out}")
    else:
        print(text)


if __name__ == "__main__":
    execute(main)
