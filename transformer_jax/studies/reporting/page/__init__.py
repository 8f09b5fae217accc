"""What the report's page is made of: its style, its script, and how they are put together."""

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.runs.notebook import escaped
from transformer_jax.studies.reporting.tables import numeric

_HERE = Path(__file__).parent


class Link(str):
    """The text of a cell that leads to a page of the same server."""

    address: str

    def __new__(cls, text: str, address: str) -> "Link":
        """Takes the text, and an address that is quoted already."""
        link = super().__new__(cls, text)
        link.address = address
        return link


def as_html(text: str) -> str:
    """A text, or a link."""
    inside = escaped(text)
    is_link = isinstance(text, Link)
    return f'<a href="{escaped(text.address)}">{inside}</a>' if is_link else inside


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table that scrolls by itself where the window is narrow; nothing at all without rows."""
    kept = [list(row) for row in rows]
    if not kept:
        return ""
    right = numeric(heads, kept)
    head = _row("th scope=col", "th", heads, right)
    body = "".join(f"<tr>{_row('td', 'td', row, right)}</tr>" for row in kept)
    inside = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    label = escaped(caption or heads[0])
    scrolls = f'class="scroll" tabindex="0" role="region" aria-label="{label}"'
    return f"{aside(caption)}<div {scrolls}>{inside}</div>"


def _row(opening: str, name: str, cells: Sequence[str], right: Sequence[bool]) -> str:
    return "".join(
        f"<{opening}{' class=number' if is_number else ''}>{as_html(cell)}</{name}>"
        for cell, is_number in zip(cells, right, strict=True)
    )


def section(title: str, *parts: str) -> str:
    """A part of the page; nothing at all where there is nothing in it."""
    inside = "\n".join(part for part in parts if part)
    return f"<section><h2>{escaped(title)}</h2>\n{inside}\n</section>" if inside else ""


def paragraph(text: str) -> str:
    """A paragraph; nothing at all without a text."""
    return f"<p>{escaped(text)}</p>" if text else ""


def aside(text: str) -> str:
    """A paragraph in small print; nothing at all without a text."""
    return f"<p class=soft>{escaped(text)}</p>" if text else ""


def listed(items: Iterable[str]) -> str:
    """A list."""
    inside = "".join(f"<li>{escaped(item)}</li>" for item in items)
    return f"<ul>{inside}</ul>" if inside else ""


def place_for(chart: str) -> str:
    """Where the script draws a chart."""
    return f'<div data-chart="{escaped(chart)}"></div>'


def whole_page(title: str, body: str, data: Any) -> str:
    """One self-contained file: it asks nothing of the network, and runs only its own script."""
    style = (_HERE / "report.css").read_text(encoding="utf-8")
    script = (_HERE / "report.js").read_text(encoding="utf-8")
    # ASCII JSON without < or > can neither end the element nor begin another.
    held = json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escaped(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
<noscript><p>The charts need JavaScript; the tables do not.</p></noscript>
<script type="application/json" id="data">{held}</script>
<script>{script}</script>
</body>
</html>
"""


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
