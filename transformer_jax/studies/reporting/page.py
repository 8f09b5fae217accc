"""A page in two forms: one static HTML file that opens offline, and the same as Markdown."""

import base64
import re
from collections.abc import Iterable, Sequence

from transformer_jax.runs.notebook import escaped
from transformer_jax.studies.reporting.tables import as_markdown, numeric

_STYLE = """
body { margin: 0 auto; max-width: 64rem; padding: 1.5rem 1rem 4rem; font: 16px/1.5 system-ui,
  sans-serif; color: #1b1f24; background: #fff; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid #d1d9e0; }
p, li { max-width: 48rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; margin: 0.75rem 0; }
th, td { padding: 0.3rem 0.7rem; border-bottom: 1px solid #d1d9e0; text-align: left;
  vertical-align: top; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0; }
img { max-width: 100%; }
figcaption { color: #59636e; font-size: 0.9rem; }
pre { background: #f6f8fa; padding: 0.75rem; overflow-x: auto; }
"""


class Page:
    """A page that is written part by part; what is empty leaves nothing behind."""

    def __init__(self, title: str) -> None:
        """Begins with its title."""
        self._title = title
        self._html, self._markdown = [f"<h1>{escaped(title)}</h1>"], [f"# {_plain(title)}"]

    def _add(self, html: str, markdown: str) -> None:
        self._html.append(html)
        self._markdown.append(markdown)

    def heading(self, text: str) -> None:
        """Begins a section."""
        self._add(f"<h2>{escaped(text)}</h2>", f"## {_plain(text)}")

    def paragraph(self, text: str) -> None:
        """Adds a paragraph."""
        if text:
            self._add(f"<p>{escaped(text)}</p>", _plain(text))

    def bullets(self, items: Iterable[str]) -> None:
        """Adds a list."""
        items = list(items)
        if items:
            html = "".join(f"<li>{escaped(item)}</li>" for item in items)
            self._add(f"<ul>{html}</ul>", "\n".join(f"- {_plain(item)}" for item in items))

    def code(self, text: str) -> None:
        """Adds preformatted lines."""
        indented = "\n".join(f"    {line}" for line in text.splitlines())
        self._add(f"<pre>{escaped(text)}</pre>", indented)

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Adds a table; columns of numbers stand right."""
        kept = [list(row) for row in rows]
        if not kept:
            return
        right = numeric(heads, kept)
        head = _cells("th", heads, right)
        body = "".join(f"<tr>{_cells('td', row, right)}</tr>" for row in kept)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        self._add(f'<div class="scroll" tabindex="0">{table}</div>', as_markdown(heads, kept))

    def figure(self, name: str, svg: bytes, caption: str) -> None:
        """Adds a picture: inside the HTML file, next to the Markdown file.

        Args:
          name: Of the file next to the page.
          svg: Its content.
          caption: What it shows.
        """
        source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
        image = f'<img alt="{escaped(caption)}" src="{source}">'
        caption_html = f"<figcaption>{escaped(caption)}</figcaption>"
        self._add(f"<figure>{image}{caption_html}</figure>", f"![{_plain(caption)}]({name})")

    def html(self) -> str:
        """The page as one file that asks nothing of the network and runs no script."""
        policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
        head = [
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escaped(self._title)}</title>",
            f"<style>{_STYLE}</style>",
        ]
        parts = ["<!doctype html>", '<html lang="en">', "<head>", *head, "</head>", "<body>"]
        return "\n".join([*parts, *self._html, "</body>", "</html>", ""])

    def markdown(self) -> str:
        """The page as Markdown."""
        return "\n\n".join(part for part in self._markdown) + "\n"


def _cells(tag: str, cells: Sequence[str], right: Sequence[bool]) -> str:
    return "".join(
        f"<{tag}{' class=number' if is_number else ''}>{escaped(cell)}</{tag}>"
        for cell, is_number in zip(cells, right, strict=True)
    )


def _plain(text: str) -> str:
    """A text as it is: nothing in it is markup."""
    return re.sub(r"([\\`<*_\[\]])", r"\\\1", " ".join(text.split()))
