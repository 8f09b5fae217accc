"""Puts runs side by side: what differed in their configs, what came out, what may be claimed.

Example:
  python -m experiments.compare runs/a runs/b --metric=eval/loss --out=comparison.png
"""

import json
from pathlib import Path
from typing import Any

from experiments.command import Parser, execute
from transformer_jax.errors import InvalidInput
from transformer_jax.training.config import CADENCE, flatten
from transformer_jax.training.rule import suggest
from transformer_jax.training.runs import RunDirectory


def main(argv: list[str]) -> None:
    """Reads the arguments and prints the table, the warnings and the verdict."""
    parser = Parser("compare", __doc__)
    parser.add_argument("runs", nargs="+", help="run directories")
    parser.add_argument("--metric", default="eval/loss", help="of metrics.jsonl (eval/loss)")
    parser.add_argument("--out", help="a picture of the metric over the updates (.png or .svg)")
    arguments = parser.read(argv)
    out = None if arguments.out is None else Path(arguments.out)
    if out is not None and out.suffix not in (".png", ".svg", ".pdf"):
        raise InvalidInput(f"--out={out}: expected a picture, .png, .svg or .pdf")
    runs = {path.rstrip("/"): RunDirectory(path) for path in arguments.runs}
    if len(runs) < 2:
        raise InvalidInput("compare: expected two or more different run directories")
    columns = {name: _facts(run, arguments.metric) for name, run in runs.items()}
    _print_table(columns)
    for warning in _warnings(runs):
        print(f"warning: {warning}")
    print(_verdict(runs))
    if out is not None:
        from transformer_jax.training.pictures import draw_comparison

        rows = {name: run.metrics() for name, run in runs.items()}
        out.parent.mkdir(parents=True, exist_ok=True)
        print(f"picture: {draw_comparison(rows, arguments.metric, out)}")


def _facts(run: RunDirectory, metric: str) -> dict[str, Any]:
    """Config values and results of one run, by row of the table."""
    facts = flatten(run.config())
    last: dict[str, Any] = {}
    for row in run.metrics():
        last |= row
    if metric not in last:
        known = [name for name in last if name != "step"]
        raise InvalidInput(
            f"--metric={metric}: {run.path} has no such metric{suggest(metric, known)}"
            + (f"\nit has: {', '.join(known)}" if known else "\nit has none yet")
        )
    measured = [metric, "test/loss", "test/accuracy", "test/bits_per_byte"]
    measured += ["test/bleu", "test/chrf", "time/step_ms"]
    facts |= {"status": run.status(), "step": last["step"]}
    facts |= {"parameters": run.manifest()["parameters"]}
    return facts | {name: last[name] for name in dict.fromkeys(measured) if name in last}


def _print_table(columns: dict[str, dict[str, Any]]) -> None:
    """Prints what differs between the configs, and every result."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    for heading in ("", *columns):
        table.add_column(_spell(heading), overflow="fold")
    keys = dict.fromkeys(key for facts in columns.values() for key in facts)
    results = ("status", "step", "parameters")
    for key in keys:
        values = [facts.get(key, "-") for facts in columns.values()]
        is_result = key in results or "/" in key
        if is_result or any(value != values[0] for value in values):
            table.add_row(key, *map(_spell, values))
    console.print(table)


def _spell(value: Any) -> Any:
    """A cell of the table; what could steer a terminal shows as what it is."""
    from rich.text import Text

    if isinstance(value, float):
        return f"{value:.4f}" if 1e-3 <= abs(value) < 1e5 else f"{value:g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return Text(str(value) if str(value).isprintable() else repr(value))


def _warnings(runs: dict[str, RunDirectory]) -> list[str]:
    """What makes a difference between the runs mean less than it seems."""
    warnings = []
    unfinished = [name for name, run in runs.items() if run.status() != "done"]
    if unfinished:
        warnings.append(f"not finished: {', '.join(unfinished)}")
    manifests = [run.manifest() for run in runs.values()]
    configs = [flatten(run.config()) for run in runs.values()]

    def differ(values: list) -> bool:
        return any(value != values[0] for value in values)

    if differ([m["data"]["sha256"] for m in manifests]):
        warnings.append("trained and evaluated on different data: their losses do not compare")
    elif differ([m["data"].get("tokenizer_sha256") for m in manifests]):
        warnings.append("different tokenizers: losses per token do not compare, bits_per_byte do")
    elif differ([m["data"]["counts"] for m in manifests]):
        warnings.append("the same data split otherwise: they are evaluated on different parts")
    protocols = [_protocol(run) for run in runs.values()]
    if differ(protocols):
        warnings.append(f"evaluated otherwise: {'; '.join(protocols)}")
    budgets = [c["training.steps"] * c["training.batch_size"] * c["data.length"] for c in configs]
    if differ([c["data.task"] for c in configs]):
        warnings.append("different tasks: their losses are of different things")
    elif differ(budgets):
        warnings.append(f"different token budgets: {', '.join(f'{b:,}' for b in budgets)}")
    counts = [m["parameters"] for m in manifests]
    if max(counts) > 1.02 * min(counts):
        warnings.append("parameters differ by more than 2 %")
    if differ([m["git"] for m in manifests]):
        warnings.append("different versions of the code")
    if differ([m["packages"] for m in manifests]) or differ([m["device"] for m in manifests]):
        warnings.append("different packages or devices")
    return warnings


def _protocol(run: RunDirectory) -> str:
    """How a finished run was scored, beside what its data decides; of others, how they will be."""
    path = run.path / "evaluation.json"
    if path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))["tuning"]["protocol"]
        counts = ("split", "examples", "targets", "bytes", "sentences")
        scored = {name: value for name, value in stored.items() if name not in counts}
    else:
        config = flatten(run.config())
        stride = config["evaluation.stride"] or config["data.length"]
        scored = {"context": config["data.length"], "stride": stride}
    apart = ", documents apart" if run.config().data.separate_documents else ""
    return ", ".join(f"{name} {value}" for name, value in scored.items()) + apart


def _verdict(runs: dict[str, RunDirectory]) -> str:
    """Says what so few runs can support: nothing about a cause."""
    arms: dict[tuple, set[int]] = {}
    for run in runs.values():
        config = flatten(run.config())
        arm = tuple(
            sorted(
                (key, str(value))
                for key, value in config.items()
                if key != "seed" and not key.startswith(CADENCE)
            )
        )
        arms.setdefault(arm, set()).add(config["seed"])
    fewest = min(len(seeds) for seeds in arms.values())
    if len(arms) == 1 and fewest == 1:
        return "the same config and the same seed: one run and its copies"
    if len(arms) == 1:
        return "the same config with different seeds: the spread between them is noise"
    return (
        f"no claim: {fewest} seed{'s' if fewest > 1 else ''} of some config; a difference may be "
        "the seed's. Train each with several values of --config.seed before believing it"
    )


if __name__ == "__main__":
    execute(main)
