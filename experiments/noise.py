"""Measures where the differences between runs of a config come from, and keeps it for its studies.

A launch that is interrupted goes on after the runs that it had finished, if nothing changed.

Example:
  python -m experiments.noise --config=configs/ablations/quick.py --levels=4
"""

from pathlib import Path
from typing import Any

from experiments.command import Parser, execute, file_to_write, use_compilation_cache
from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import flatten, has_intervening_hooks

# Metrics that are a ratio of sums over sequences: its columns in sequences.npz.
_METRICS = {
    "loss": ("loss", "weight"),
    "accuracy": ("correct", "weight"),
    "bits_per_byte": ("loss", "bytes"),
}


def main(argv: list[str]) -> dict[str, Any]:
    """Runs the crossed design, writes the ledger beside the config, and returns it."""
    parser = Parser("noise", __doc__, takes_config=True)
    parser.add_argument("--levels", type=int, default=4, help="seeds of each factor (4)")
    parser.add_argument("--metric", choices=_METRICS, help="(what the config's study is judged by)")
    parser.add_argument("--out", help="the ledger (noise/NAME.json beside the config)")
    parser.add_json()
    arguments = parser.read(argv)
    if arguments.levels < 2:
        raise InvalidInput(f"--levels={arguments.levels}: expected at least 2")
    config, path = arguments.config, Path(arguments.config_path)
    metric = arguments.metric or _judged_metric(arguments.file)
    of_metric = "" if metric == "loss" else f".{metric}"
    out = arguments.out or path.parent / "noise" / f"{path.stem}{of_metric}.json"
    out = file_to_write(out, "--out")
    use_compilation_cache()

    import jax
    import numpy as np

    from transformer_jax.runs.files import read_json, write_json
    from transformer_jax.runs.progress import Progress
    from transformer_jax.runs.provenance import surroundings
    from transformer_jax.studies.asking.cells import code_hash, deciding
    from transformer_jax.studies.asking.noise import as_lines, config_hash_of
    from transformer_jax.studies.inference.variance_components import cells_of, ledger
    from transformer_jax.studies.running.computation import digest_of
    from transformer_jax.training.evaluation import refuse_unknown_bytes, score_of
    from transformer_jax.training.own import fingerprint_of_own
    from transformer_jax.training.prepared import prepare

    initial_options = [option for option, value in config.initial.items() if value is not None]
    if initial_options:
        raise InvalidInput(
            f"initial.{initial_options[0]}: the design draws all initial values; give None"
        )
    model, objective = config.model, config.objective.name
    rates = ("dropout_rate", "stochastic_depth")
    draws = objective != "cross_entropy" or any(
        value for key, value in flatten(model).items() if key.endswith(rates)
    )
    levels = (arguments.levels, arguments.levels, 2 if draws else 1)
    cells = cells_of(levels)
    if has_intervening_hooks(config):
        raise InvalidInput("hooks.functions: one intervenes, and the design trains without hooks")
    prepared = prepare(config)
    refuse_unknown_bytes(prepared.task, metric)
    score, progress = score_of(prepared), Progress()
    what = {
        "config": str(path),
        "overrides": arguments.overrides,
        "config_hash": config_hash_of(config),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }
    # What is finished lies beside the ledger until that is written.
    unfinished = out.with_name(f".{out.stem}.begun")
    decides = [code_hash(), fingerprint_of_own(config), digest_of(prepared.task)]
    decides += [deciding(surroundings()[0])]
    design = {**what, "metric": metric, "levels": list(levels), "decides": decides}
    kept = read_json(out) if out.exists() else {}
    if kept and kept.get("config_hash") != what["config_hash"]:
        raise InvalidInput(f"{out}: the ledger of another config; --out=FILE.json keeps it")
    finished: dict[str, Any] = read_json(unfinished) if unfinished.exists() else {}
    if finished and finished.get("design") != design:
        raise InvalidInput(
            f"{unfinished}: {len(finished.get('scores', ()))} runs of other levels, or of another "
            "config or code; go on with those, remove it, or give --out=FILE.json"
        )
    finished = finished or {"design": design, "scores": [], "sequences": []}
    scores, sequences = finished["scores"], finished["sequences"]
    if scores:
        progress.say(f"goes on after {len(scores)} of {len(cells)} runs, from {unfinished}")
    for number, cell in list(enumerate(cells, 1))[len(scores) :]:
        mean, of_sequences = _run(prepared, score, cell, metric)
        scores.append(mean)
        sequences.append(of_sequences)
        write_json(out.parent, unfinished.name, finished)
        initial, order, dropout, size = cell
        progress.say(
            f"{number:>3}/{len(cells)}  initial {initial}, order {order}, dropout {dropout}, "
            f"changed by {size:g}: test {metric} {scores[-1]:.5f}"
        )
    table = np.array(scores).reshape(*levels, 2)
    sums = ledger(table, np.array(sequences), f"test/{metric}", what)
    write_json(out.parent, out.name, sums)
    unfinished.unlink()
    print("\n".join([*as_lines(sums), f"wrote {out}"]))
    return sums


def _run(prepared: Any, score: Any, cell: tuple, metric: str) -> tuple[float, list[float]]:
    """Trains a run of the design; returns its score, and what each test sequence gives of it."""
    from transformer_jax.training.evaluation import evaluate
    from transformer_jax.training.optimizers import evaluated_params

    initial, order, dropout, size = cell
    config = prepared.config.copy_and_resolve_references()
    config.seeds.update(initial=initial, perturbation=size)
    start, _ = prepared.start(config)
    state = prepared.train(start, order, dropout)
    params = evaluated_params(state.opt_state, state.params)
    sums = evaluate(score, params, prepared.task, "test", config.evaluation.batch_size)
    columns, mean = sums.sequences, sums.means[metric]
    # Linearised: longer sequences count more, and the mean over tokens is a ratio.
    top, below = (columns[name] for name in _METRICS[metric])
    scale = mean * below.sum() / top.sum()  # bits in place of nats
    added = (top * scale - mean * below) / below.mean()
    return float(mean), (mean + added).tolist()


def _judged_metric(file: Any) -> str:
    """What the study of a config file is judged by, as far as it has one that can be measured."""
    study = file.call("get_study") if hasattr(file.module, "get_study") else {}
    metric = study.get("metric", "loss").removeprefix("test/")
    if metric not in _METRICS:
        raise InvalidInput(
            f"--metric: the study of {file.path} is judged by {metric}, which has no parts by test "
            f"sequence; give one of {', '.join(_METRICS)}"
        )
    return metric


if __name__ == "__main__":
    execute(main)
