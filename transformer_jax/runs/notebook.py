"""Notebook views of runs and studies."""

import html
from collections.abc import Iterable, Sequence
from typing import Any


def html_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a title, whose line breaks are kept, and a table as HTML; all text is escaped."""
    lines = "<br>".join(map(html.escape, title.splitlines()))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(str(value))}</td>' for value in row)}</tr>"
        for row in rows
    )
    return f"<p>{lines}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
