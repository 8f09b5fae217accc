"""Notebook views of runs and studies."""

import html
from collections.abc import Iterable, Sequence
from typing import Any


def html_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a title, whose line breaks are kept, and a table as HTML; all text is escaped."""
    lines = "<br>".join(map(escaped, title.splitlines()))
    head = "".join(f"<th>{escaped(name)}</th>" for name in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escaped(value)}</td>' for value in row)}</tr>" for row in rows
    )
    return f"<p>{lines}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def escaped(value: Any) -> str:
    """Returns a value as text, escaped for use anywhere in a page."""
    return html.escape(str(value), quote=True)
