"""A study as a directory of plain files.

study.json     the question, sealed with a hash at the first cell; arms, costs, certificates
scores.csv     one line per cell: arm, seed, directory, outcome, scores
looks.jsonl    every verdict that was shown, and when
verdicts.json  the latest verdicts, by arm
report.html    everything on one page; report.md has the same content
"""

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax import __version__
from transformer_jax.config_files import CADENCE, flatten
from transformer_jax.errors import InvalidInput, require, suggest
from transformer_jax.metrics import arguments_of_metric
from transformer_jax.resolve import completed, stated
from transformer_jax.runs.appended import AppendedRows
from transformer_jax.runs.directory import RunDirectory, now
from transformer_jax.runs.files import inside, read_json, refuse_version_1, replace, write_json
from transformer_jax.runs.notebook import html_table
from transformer_jax.studies.cells import OUTCOMES, Cell, cell_path
from transformer_jax.studies.design import Design, seal_of
from transformer_jax.studies.tables import signed, spell_interval

NAME = "register.jsonl"
_NOT_CHANGED = "what the baseline has without its own changes"


def contrasts_of(sealed: Mapping[str, Any]) -> dict[str, str]:
    """Returns the hash of each arm's contrast with the base, given a study's sealed fields."""
    base, arms = flatten(sealed["base_config"]), sealed["arms"]
    values, first = completed(base), arms[sealed["base"]]
    whole = {key: value for key, value in stated(base).items() if not key.startswith(CADENCE)}
    for name in ("target", "benchmark"):
        if name in arguments_of_metric(sealed["metric"].removeprefix("test/")):
            whole[f"evaluation.{name}"] = values[f"evaluation.{name}"]
    contrasts = {}
    for name, changes in arms.items():
        if name == sealed["base"]:
            continue
        pairs = {k: [values.get(k), changes.get(k, _NOT_CHANGED)] for k in {**first, **changes}}
        changed = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
        asked = [changed, sealed["metric"], sealed["match"], whole, sealed["tuning"]]
        contrasts[name] = seal_of(asked)[:16]
    return contrasts


class Register(AppendedRows):
    """The register of looks at studies below one root; empty without a file."""

    def __init__(self, root: Path) -> None:
        """Keeps the path of the file, which is read on demand."""
        super().__init__(root, NAME)

    def note(self, look: Mapping[str, Any]) -> bool:
        """Adds a look if it is new; returns False if the register cannot be written.

        A look has `study` (seal and time of sealing), `seeds`, `contrasts` (arm -> hash),
        `families` (hash -> number of arms of its study), `words` and `time`.
        """
        if any({**row, "time": ""} == {**look, "time": ""} for row in self.rows()):
            return True
        try:
            self.add(json.loads(json.dumps(look)))
        except OSError:  # a root without permission to write
            return False
        return True

    def earlier_looks(
        self, contrast: str, study: Sequence[str], seeds: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Returns the looks of other studies at a contrast, one per study and set of seeds.

        If `study` has shown its look at `seeds` before, later looks of other studies are left out:
        showing the same look again is not a new one.
        """
        rows = [row for row in self.rows() if contrast in row["contrasts"].values()]
        own = [row for row in rows if row["study"] == list(study)]
        shown = min((r["time"] for r in own if r["seeds"] == list(seeds)), default=None)
        others = {
            (*row["study"], *row["seeds"]): row
            for row in rows
            if row not in own and (shown is None or row["time"] <= shown)
        }
        return list(others.values())


# Changing one of these after the first cell makes every verdict worthless.
_DECIDING = ("metric", "larger_is_better", "margin", "primary", "target", "gate")


class Study:
    """The study in the directory `path`; `record` has study.json's content, {} before sealing."""

    def __init__(self, path: str | Path) -> None:
        """Reads study.json, if there is one."""
        self.path = Path(path).expanduser()
        self.record: dict[str, Any] = {}
        self._looks = AppendedRows(self.path, "looks.jsonl")
        file = inside(self.path, "study.json")
        if file.exists():
            try:
                self.record = json.loads(file.read_text(encoding="utf-8"))
                refuse_version_1(self.record, file)
                is_as_sealed = seal_of(self.record["sealed"]) == self.record["seal"]
                self.sealed["metric"]
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise InvalidInput(f"{file}: not a valid study: {error}") from error
            if not is_as_sealed:
                raise InvalidInput(
                    f"{file}: `sealed` was edited after the study was sealed on "
                    f"{self.record.get('sealed_at', '(no date)')}; restore it, or begin a new "
                    "study in a different --workdir"
                )
        elif self.path.exists() and not self.path.is_dir():
            raise InvalidInput(f"--workdir={self.path}: this is a file; expected a directory")

    def __repr__(self) -> str:
        """Returns the question, the number of arms and seeds, and the path."""
        if not self.record:
            return f"Study: {self.path}, not begun"
        arms, seeds = (len(self.record.get(part, ())) for part in ("arms", "seeds"))
        return f"Study: {self.sealed['question']}\n  {arms} arms x {seeds} seeds, {self.path}"

    def _repr_html_(self) -> str:
        """Returns the question and the verdicts as HTML, for a notebook."""
        heads = (f"compared with {self.base}", "difference", "interval", "")
        rows = [
            [arm, signed(v.get("mean")), spell_interval(v.get("interval")), v.get("words", "")]
            for arm, v in self.verdicts().get("arms", {}).items()
        ]
        return html_table(repr(self), heads, rows)

    @property
    def sealed(self) -> dict[str, Any]:
        """Question, arms and settings, as sealed before the first cell."""
        return self.record["sealed"]

    @property
    def root(self) -> Path:
        """The directory that holds `cells`, shared with other studies."""
        return Path(os.path.normpath(self.path.absolute() / self.record["root"]))

    @property
    def arms(self) -> dict[str, dict]:
        """Facts about each arm, by name: hash, changes, cost, certificate."""
        return self.record["arms"]

    @property
    def base(self) -> str:
        """Name of the arm that all others are compared with."""
        return self.sealed["base"]

    @property
    def base_config(self) -> dict[str, Any]:
        """The base's options, full key -> value, as they were sealed."""
        return completed(flatten(self.sealed["base_config"]))

    def value_of(self, arm: str, key: str) -> Any:
        """Returns an option's value in an arm, or None if neither study.json nor a cell has it."""
        changes, of_base = (self.arms[name]["changes"] for name in (arm, self.base))
        if key in changes or key not in of_base:
            return changes.get(key, self.base_config.get(key))
        # The base changes the option, and the arm leaves it as the file has it.
        run = RunDirectory(self.cell(arm, self.seeds[0]).path)
        return flatten(run.config()).get(key) if run.has_begun() else None

    @property
    def metric(self) -> str:
        """The primary metric, without its split."""
        return self.sealed["metric"].removeprefix("test/")

    @property
    def seeds(self) -> list[int]:
        """All requested seeds."""
        return self.record["seeds"]

    # ---- cells

    def cells(self) -> list[Cell]:
        """Returns every requested cell, ordered by seed and then by arm."""
        return [self.cell(arm, seed) for seed in self.seeds for arm in self.arms]

    def cell(self, arm: str, seed: int) -> Cell:
        """Returns the cell of an arm and a seed."""
        return Cell(arm, seed, cell_path(self.root, self.arms[arm]["hash"], seed))

    def begun(self) -> list[int]:
        """Returns the seeds for which some arm has a cell, whatever its outcome."""
        seeds = self.record.get("seeds", ())
        return [s for s in seeds if any(self.cell(arm, s).path.exists() for arm in self.arms)]

    def rows(self) -> list[dict[str, Any]]:
        """Returns one dict per cell: arm, seed, state, run, parameters, scores, changed options."""
        rows = []
        keys = dict.fromkeys(key for arm in self.arms.values() for key in arm.get("changes", {}))
        options = {arm: {key: self.value_of(arm, key) for key in keys} for arm in self.arms}
        for cell in self.cells():
            state = cell.state()
            means = cell.means() if state in OUTCOMES else {}
            facts = {
                "arm": cell.arm,
                "seed": cell.seed,
                "state": state,
                "run": os.path.relpath(cell.path, self.path),
                "parameters": self.arms[cell.arm].get("cost", {}).get("parameters"),
            }
            scores = {f"test/{k}": v for k, v in means.items() if isinstance(v, int | float)}
            rows.append(facts | scores | options[cell.arm])
        return rows

    def frame(self) -> Any:
        """Returns the result of `rows` as a pandas DataFrame; needs pandas."""
        require("pandas", "frame()", "frames")
        import pandas

        return pandas.DataFrame(self.rows())

    def curves(self, metric: str) -> dict[str, dict[int, list[tuple[int, float]]]]:
        """Returns (update, value) pairs for a metric in metrics.jsonl, by arm and seed.

        Raises:
          InvalidInput: No cell has the metric.
        """
        curves: dict[str, dict[int, list[tuple[int, float]]]] = {}
        names: dict[str, None] = {}
        for cell in self.cells():
            rows = RunDirectory(cell.path).metrics()
            names |= dict.fromkeys(key for row in rows for key in row if key != "step")
            points = [(row["step"], row[metric]) for row in rows if metric in row]
            curves.setdefault(cell.arm, {})[cell.seed] = points
        if names and metric not in names:
            raise InvalidInput(
                f"metric={metric}: expected one of {', '.join(names)}{suggest(metric, names)}"
            )
        return curves

    def curves_frame(self, metric: str) -> Any:
        """Returns curves as a pandas DataFrame of arm, seed, step and the metric; needs pandas."""
        require("pandas", "curves_frame()", "frames")
        import pandas

        rows = [
            {"arm": arm, "seed": seed, "step": step, metric: value}
            for arm, by_seed in self.curves(metric).items()
            for seed, points in by_seed.items()
            for step, value in points
        ]
        return pandas.DataFrame(rows)

    # ---- writing

    def seal(self, design: Design, facts: Mapping[str, Any], seeds: Iterable[int]) -> list[str]:
        """Writes study.json and returns the changes since the study was sealed, as text.

        The first call seals the design. `facts`, such as root, arms and environment, are not
        sealed; `seeds` include those of earlier launches.
        """
        sealed = design.sealed()
        if not self.record:
            seal = {"sealed": sealed, "seal": seal_of(sealed), "sealed_at": now()}
            self.record = {"version": __version__, **seal}
        changed = changed_since(self.sealed, sealed)
        refused = [f"{key} changed after the first cell" for key in changed]
        # A change that was undone is in looks.jsonl if its verdicts were shown.
        made = ["made on the command line"] if design.exploratory else []
        self.record |= {
            "exploratory": made + refused,
            "refused": sorted(set(changed) & set(_DECIDING)),
            "supersedes": design.supersedes,
            **facts,
            "seeds": sorted(seeds),
        }
        self.write()
        return refused

    def write(self) -> None:
        """Replaces study.json."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path, "study.json", self.record)

    def refuse_lost_cells(self) -> None:
        """Raises InvalidInput if cells whose outcomes are in scores.csv no longer exist."""
        file = inside(self.path, "scores.csv")
        try:
            text = file.read_text(encoding="utf-8") if file.exists() else ""
            rows = csv.DictReader(io.StringIO(text))
            ended = {(row["arm"], row["seed"]) for row in rows if row["state"] in OUTCOMES}
        except (KeyError, ValueError, csv.Error) as error:
            raise InvalidInput(
                f"{file}: not the table that ablate wrote ({str(error)[:80]}); a spreadsheet may "
                "have changed it; if no cell was deleted, remove the file: it is written again"
            ) from error
        present = {(c.arm, str(c.seed)) for c in self.cells() if c.state() in OUTCOMES}
        if lost := sorted(ended - present):
            raise InvalidInput(
                f"{self.path}: scores.csv has scores of {len(lost)} cells that are not in "
                f"{self.root / 'cells'} (e.g. arm {lost[0][0]!r}, seed {lost[0][1]}): verdicts "
                "without them would replace those of all cells\nput the cells back, or let ablate "
                "train them again"
            )

    def write_scores(self) -> None:
        """Replaces scores.csv."""
        rows = self.rows()
        columns = list(dict.fromkeys(key for row in rows for key in row))
        table = [[row.get(key) for key in columns] for row in rows]
        replace(self.path, "scores.csv", as_csv(columns, table))

    def looks(self) -> list[dict]:
        """Returns every look at which verdicts were shown, oldest first."""
        return self._looks.rows()

    def add_look(self, look: Mapping[str, Any]) -> None:
        """Records a look, unless it equals the last one that was recorded."""
        looks = self.looks()
        if not looks or any(looks[-1][key] != look[key] for key in look):
            self._looks.add({"time": now(), **look})

    def contrasts(self) -> dict[str, str]:
        """Returns the hash of each arm's contrast, for arms that have not changed since sealing."""
        changed = {note.partition(" ")[0] for note in self.record.get("exploratory", ())}
        tuned = (self.sealed["tuning"] or {}).get("key")
        unchanged = []
        for name, arm in self.arms.items():
            chosen = {*arm.get("matched", {}), tuned}
            own = {key: v for key, v in arm.get("changes", {}).items() if key not in chosen}
            if own == self.sealed["arms"].get(name):
                unchanged.append(name)
        if changed & {"base", "base_config", "match", "tuning"} or self.base not in unchanged:
            return {}
        return {name: c for name, c in contrasts_of(self.sealed).items() if name in unchanged}

    @property
    def identity(self) -> list[str]:
        """Seal and time of sealing, which identify the study in the register."""
        return [self.record["seal"], self.record["sealed_at"]]

    def verdicts(self) -> dict[str, Any]:
        """Returns the content of verdicts.json; {} before the first comparison."""
        file = inside(self.path, "verdicts.json")
        return read_json(file) if file.exists() else {}


def changed_since(sealed: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns the names of the fields in which a question differs from its sealed form."""
    return [key for key in {**sealed, **now} if sealed.get(key) != now.get(key)]


def load_study(path: str | Path) -> Study:
    """Returns the study in a directory; no code that the study names is imported.

    Raises:
      InvalidInput: The directory does not hold a study.
    """
    study = Study(path)
    if not study.record:
        raise InvalidInput(f"{path}: no study here (no study.json)")
    return study


def is_study(path: str | Path) -> bool:
    """Returns whether a directory holds a study."""
    return (Path(path) / "study.json").exists()


def as_csv(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a CSV table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([heads, *rows])
    return text.getvalue()


def way_to(root: Path, path: Path) -> str:
    """Returns the path from a study to its root, relative if possible, so that both are movable."""
    try:
        return str(Path(*[".."] * len(path.absolute().relative_to(root.absolute()).parts)))
    except ValueError:
        return str(root.absolute())
