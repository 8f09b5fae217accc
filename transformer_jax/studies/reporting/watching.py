"""Runs and studies as pages that reload themselves, from a server that only this machine reaches.

    GET /                what lies below the folder
    GET /run/NAME        a run: where it stands, its curves
    GET /study/NAME      a study: its cells, its curves
    GET /report/NAME     the study's report, once there is one

Nothing is written. A name is looked up among what was found, so that no path leads elsewhere. A
study may have its cells outside of the folder; they are read, and have no pages.
"""

import os
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from transformer_jax.errors import InvalidInput
from transformer_jax.options.rule import is_number
from transformer_jax.runs.files import as_plain, inside
from transformer_jax.runs.listing import CELLS, columns_of, facts_of, find_runs, studies_in
from transformer_jax.studies.asking.cells import DONE, ENDED, MISSING, UNFINISHED
from transformer_jax.studies.asking.study import Study, load_study
from transformer_jax.studies.reporting.curves import curves_of
from transformer_jax.studies.reporting.page import (
    Link,
    as_html,
    escaped,
    paragraph,
    place_for,
    section,
    table,
    whole_page,
)
from transformer_jax.studies.reporting.tables import clock, spell

HOST = "127.0.0.1"
_RELOAD = 5  # seconds after which a page of something that trains is loaded again
_TITLE = "Runs and studies"
_ALONE = (
    "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:"
)


def make_server(root: Path, port: int) -> ThreadingHTTPServer:
    """Returns a server of pages on what lies below a folder, bound to the loopback address.

    Args:
      root: folder of runs and studies.
      port: 0 takes one that is free.
    Raises:
      InvalidInput: there is no such folder, or the port is taken.
    """
    if not root.is_dir():
        raise InvalidInput(f"{root}: no such folder")

    class Handler(_Handler):
        site = Pages(root)

    try:
        return _Server((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(f"--port={port}: {why}; --port=0 takes one that is free") from error


class Page(NamedTuple):
    """What is answered.

    Attributes:
      text: HTML.
      changes: whether it will be another one soon.
      is_foreign: whether somebody else may have written it.
    """

    text: str
    changes: bool
    is_foreign: bool = False


class Pages:
    """The pages on a folder of runs and studies, made anew each time."""

    def __init__(self, root: Path) -> None:
        """Reads nothing yet."""
        self.root = root

    def runs(self) -> dict[str, Path]:
        """Returns the address of each run, cells of studies too -> its directory."""
        return {self._address("run", path): path for path in find_runs(self.root)}

    def studies(self) -> dict[str, Path]:
        """Returns the address of each study -> its directory."""
        return {self._address("study", path): path for path in studies_in(self.root)}

    def page(self, address: str) -> Page | None:
        """Returns the page of an address; None where there is none."""
        if address == "/":
            return Page(self._overview(), True)
        if address in (runs := self.runs()):
            return self._run(runs[address])
        studies = self.studies()
        if address in studies:
            return self._study(studies[address])
        for study in studies.values():
            file = inside(study, "report.html")
            if address == self._address("report", study) and file.exists():
                return Page(file.read_text(encoding="utf-8", errors="replace"), False, True)
        return None

    def _address(self, kind: str, path: Path) -> str:
        name = path.relative_to(self.root)
        return f"/{kind}/{quote(os.fsencode(name)) if name.parts else ''}"

    def _overview(self) -> str:
        asked = [self._asked(address, path) for address, path in self.studies().items()]
        alone = {
            address: _sound(facts_of(path, self.root))
            for address, path in self.runs().items()
            if CELLS not in path.relative_to(self.root).parts
        }
        newest = sorted(alone, key=lambda address: str(alone[address]["when"]), reverse=True)
        columns = ["when", *_differing([alone[address] for address in newest])]
        rows = [
            [
                Link(spell(alone[address]["run"]), address),
                alone[address]["status"],
                *_where_it_stands(alone[address]),
                *[spell(alone[address].get(key)) for key in columns],
            ]
            for address in newest
        ]
        short = [key.removeprefix("model.") for key in columns]
        heads = ["run", "status", "updates", "left", *short]
        body = [
            f"<h1>{_TITLE}</h1>",
            "" if asked or rows else paragraph("There is none here yet."),
            section("Studies", table(["question", "directory", "cells"], asked)),
            section("Runs", table(heads, rows)),
        ]
        return whole_page(_TITLE, "\n".join(body), _charts({}))

    def _asked(self, address: str, path: Path) -> list[str]:
        """A row of the table of studies; where a folder is damaged, the reason stands in it."""
        try:
            study = load_study(path)
            where = spell(str(path.relative_to(self.root)))
            states = [cell.state() for cell in study.cells()]
            return [Link(study.sealed["question"], address), where, _counted(states)]
        except Exception as error:
            return [Link(spell(path.name), address), "", spell(f"cannot be read: {error}"[:200])]

    def _run(self, path: Path) -> Page:
        facts = _sound(facts_of(path, self.root))
        name = facts["run"]
        updates, left = _where_it_stands(facts)
        facts_shown = [f"{facts['status']}, {updates} updates", f"{left} left" if left else ""]
        last = [[key, spell(value)] for key, value in facts.items() if "/" in key]
        config = [[key, spell(value)] for key, value in facts.items() if _is_option(key)]
        body = [
            _head(name),
            paragraph("; ".join(filter(None, facts_shown))),
            section("Curves", place_for("curves")),
            section("Its newest metrics", table(["metric", "value"], last)),
            section("Config", table(["option", "value"], config)),
        ]
        data = _charts(curves_of({name: [path]}, {}, "tokens"), [name])
        return Page(whole_page(name, "\n".join(body), data), facts["status"] == "running")

    def _study(self, path: Path) -> Page:
        study = load_study(path)
        cells, question = study.cells(), study.sealed["question"]
        states = [cell.state() for cell in cells]
        runs: dict[str, list[Path]] = {arm: [] for arm in study.arms}
        for cell in cells:
            runs[cell.arm] += [cell.path] * cell.path.exists()
        waits = study.sealed.get("tuning") and not any(runs.values())
        report = Link("The report", self._address("report", path))
        has_report = inside(path, "report.html").exists()
        heads = ["arm", *(f"seed {seed}" for seed in study.seeds)]
        rows = [[arm, *(self._cell(study, arm, seed) for seed in study.seeds)] for arm in runs]
        how = f"{study.metric} of the validation split, or how far a cell is"
        body = [
            _head(question),
            paragraph(_counted(states)),
            paragraph("Its arms are tuned first." if waits else ""),
            f"<p>{as_html(report)}</p>" if has_report else "",
            section("Cells", table(heads, rows, how)),
            section("Curves", place_for("curves")),
        ]
        data = _charts(curves_of(runs, {}, "tokens", f"eval/{study.metric}"), list(runs))
        is_through = bool(states) and all(state in ENDED for state in states)
        return Page(whole_page(question, "\n".join(body), data), not (is_through and has_report))

    def _cell(self, study: Study, arm: str, seed: int) -> str:
        """How a cell stands: its score, its updates or its failure, with its page if it is here."""
        if seed not in study.seeds_of(arm):
            return "–"
        cell = study.cell(arm, seed)
        shown = state = cell.state()
        if state == DONE:
            shown = spell(cell.means("validation").get(study.metric))
        elif state in (UNFINISHED, MISSING):
            facts = _sound(facts_of(cell.path, cell.path))
            shown = _where_it_stands(facts)[0] if state == UNFINISHED else "–"
        path = Path(os.path.relpath(cell.path, self.root))
        is_here = cell.path.exists() and ".." not in path.parts
        return Link(shown, self._address("run", self.root / path)) if is_here else shown


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: a browser that went away is no fault, and a page never raises."""


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD. A request has to name this machine: no other page asks through it."""

    site: Pages
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answers with a page."""
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        """Answers without it."""
        self._answer(has_body=False)

    def _answer(self, has_body: bool) -> None:
        code, page = self._found()
        body = page.text.encode("utf-8", "replace")
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        if page.is_foreign:  # it sees none of the others
            self.send_header("Content-Security-Policy", _ALONE)
        if page.changes:
            self.send_header("Refresh", str(_RELOAD))
        self.end_headers()
        if has_body:
            self.wfile.write(body)

    def _found(self) -> tuple[int, Page]:
        host = self.headers.get("Host", "").partition(":")[0]  # a tunnel may have another port
        if host not in (HOST, "localhost"):
            return 403, Page(_message(f"Ask it as {HOST} or localhost."), False)
        path = self.path.partition("?")[0]
        address = "/" + quote(unquote_to_bytes(path.removeprefix("/")))
        try:
            page = self.site.page(address)
        except Exception as error:  # damaged, or half written: the next one may be whole
            return 500, Page(_message(f"{type(error).__name__}: {error}"), True)
        if page is None:
            return 404, Page(_message("There is no such run or study any more."), False)
        return 200, page

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the terminal belongs to its user."""


def _sound(facts: dict[str, Any]) -> dict[str, Any]:
    """What is known of a run, where its files say of updates what can be counted."""
    is_sound = is_number(facts["step"])
    return facts if is_sound else {**facts, "step": 0, "status": "damaged"}


def _is_option(key: str) -> bool:
    return "." in key and "/" not in key


def _differing(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is shown of runs, beside where they stand."""
    excluded = ("run", "status", "step", "when", "training.steps")
    return [key for key in columns_of(facts) if key not in excluded]


def _where_it_stands(facts: Mapping[str, Any]) -> tuple[str, str]:
    """Updates of how many; and the time left, of one that trains, without evaluations."""
    step, steps = facts["step"], facts.get("training.steps")
    updates = f"{step:,} of {steps:,}" if is_number(steps) else f"{step:,}"
    milliseconds = facts.get("time/step_ms")
    if facts["status"] != "running" or not (is_number(steps) and is_number(milliseconds)):
        return updates, ""
    return updates, clock((steps - step) * milliseconds / 1e3)


def _counted(states: Sequence[str]) -> str:
    """How many cells there are of each state."""
    kinds = dict.fromkeys(states)
    counts = ", ".join(f"{states.count(kind)} {kind}" for kind in kinds)
    return f"{len(states)} cells: {counts}" if states else "no cells yet"


def _charts(curves: Mapping[str, Any], arms: Sequence[str] = ()) -> dict[str, Any]:
    return as_plain({"arms": arms, "curves": curves or {"metrics": {}, "axes": {}}, "charts": {}})


def _head(title: str) -> str:
    return f"<p>{as_html(Link(_TITLE, '/'))}</p><h1>{escaped(title)}</h1>"


def _message(text: str) -> str:
    return whole_page(_TITLE, _head(text), _charts({}))
