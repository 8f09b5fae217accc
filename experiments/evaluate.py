"""Scores a trained run on a whole split, each target once.

Example:
  python -m experiments.evaluate --workdir=runs/a --split=test --stride=32
  python -m experiments.evaluate --workdir=runs/a --source=other_text.txt
  python -m experiments.evaluate --workdir=runs/a --metrics=exact_match,calibration_error
  python -m experiments.evaluate --workdir=smollm2/weights --source=my_text.txt
  python -m experiments.evaluate --workdir=runs/a --choices=my_items.jsonl
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from experiments.command import Parser, execute, file_to_write, refuse_unread, use_compilation_cache
from transformer_jax.config_files import changed
from transformer_jax.data.order import SPLITS
from transformer_jax.errors import InvalidInput
from transformer_jax.hub import is_of_huggingface
from transformer_jax.options import is_user_defined
from transformer_jax.runs.directory import RunDirectory


def main(argv: list[str]) -> dict[str, Any]:
    """Loads the run and its data; prints and returns the mean scores and the settings."""
    parser = Parser("evaluate", __doc__)
    parser.add_run()
    parser.add_argument("--source", help="different data to score (the run's data.source)")
    parser.add_argument("--split", choices=SPLITS, help="split to score (test)")
    parser.add_argument("--stride", type=int, help="tokens between starts of windows (the run's)")
    parser.add_argument("--batch_size", type=int, help="windows in a batch (the run's)")
    parser.add_argument("--average", type=int, help="newest checkpoints to average (1)")
    parser.add_argument("--metrics", help="in place of the run's evaluation.metrics: NAME,NAME")
    parser.add_argument("--choices", help="JSON lines with context, choices and answer, instead")
    parser.add_argument("--core", metavar="FOLDER", help="CORE's bundle, with core.yaml, instead")
    parser.add_argument(
        "--tasks", help="of lm-evaluation-harness, instead: NAME,NAME, or FOLDER/NAME"
    )
    parser.add_argument("--begin", help="special token before an item without context (none)")
    parser.add_argument("--out", help="file for the scores of each item (in the run's folder)")
    parser.add_mesh()
    parser.add_allow()
    parser.add_json()
    arguments = parser.read(argv)
    if kinds := [kind for kind in ("choices", "core", "tasks") if getattr(arguments, kind)]:
        if len(kinds) > 1:
            raise InvalidInput("expected one of --choices, --core and --tasks")
        of_splits = ("source", "split", "stride", "average", "metrics")
        refuse_unread(arguments, of_splits, f"with --{kinds[0]}")
        return _benchmark(arguments, kinds[0], getattr(arguments, kinds[0]))
    refuse_unread(arguments, ("begin", "out"), "without --choices, --core or --tasks")
    split = arguments.split or "test"
    is_run = not is_of_huggingface(arguments.workdir)
    directory, config = RunDirectory(arguments.workdir), _config_to_score(arguments, is_run)
    length, default_size = config.data.length, config.evaluation.batch_size
    stride = config.evaluation.stride if arguments.stride is None else arguments.stride
    batch_size = default_size if arguments.batch_size is None else arguments.batch_size
    if stride is not None and not 1 <= stride <= length:
        raise InvalidInput(f"--stride={stride}: expected 1 to data.length={length} tokens")
    if batch_size < 1:
        raise InvalidInput(f"--batch_size={batch_size}: expected at least 1")
    use_compilation_cache()

    from transformer_jax.config_files import own_modules
    from transformer_jax.data.tasks.synthetic import SyntheticTask
    from transformer_jax.training.build import make_task
    from transformer_jax.training.compatibility import refuse_missing_packages
    from transformer_jax.training.evaluation import evaluate, score_of
    from transformer_jax.training.loading import load_run, refuse_unlike
    from transformer_jax.training.measuring import measured
    from transformer_jax.training.run import to_write
    from transformer_jax.training.showcases import demonstration_of

    refuse_missing_packages(config.data.task)
    average: Any = 1 if arguments.average is None else arguments.average
    where = {"allow": arguments.allow, "mesh": arguments.mesh, "average": average}
    run = load_run(arguments.workdir, **where)
    of_size = run.config.copy_and_resolve_references().unlock()
    of_size.evaluation.batch_size = batch_size
    run = dataclasses.replace(run, config=of_size.lock())
    task = make_task(config, run.tokenizer, arguments.allow, stride=stride)
    if arguments.stride is not None and "stride" not in task.protocol:
        raise InvalidInput(f"--stride={stride}: data.task={config.data.task} has no windows")
    if is_run and arguments.source is None:
        directory.refuse_other_data(task.facts)
    else:
        refuse_unlike(run, task, config.data.source)
    if isinstance(task, SyntheticTask) and split not in task.splits:
        raise InvalidInput(
            f"--split={split}: data.source={config.data.source} draws every training "
            "batch anew; expected validation or test"
        )
    remarks = list(task.remarks)
    if arguments.source is not None and "context" in task.protocol:
        share = config.data.splits[SPLITS.index(split)]
        remarks.append(f"scored: {split}, {share:.0%} of {arguments.source} (data.splits)")
    for remark in remarks:
        print(f"note   {remark}", file=sys.stderr)
    scored = evaluate(score_of(run), run.params, task, split, batch_size)
    if run.begins:  # the task frames targets differently from those that the model was trained on
        scored = scored._replace(means={})
    writer = to_write(run, run.sharding)
    written = demonstration_of(config.data.task).scores(writer, task, split)
    scored = scored.with_generated(*written)
    own = own_modules(config) <= set(arguments.allow)
    asked = [name for name in config.evaluation.metrics if own or not is_user_defined(name)]
    means = scored.means | measured(asked, run, task, split, scored, arguments.allow)
    print("  ".join(f"{name} {mean:.4f}" for name, mean in means.items() if mean is not None))
    for name in config.evaluation.metrics:
        if name not in means:
            why = "it needs the finished run" if name in asked else "it needs --allow"
            is_stored = is_run and arguments.source is None
            is_stored = is_stored and name in directory.evaluation().get(split, {})
            print(f"{name}: not measured here: {why}{'; evaluation.json has it' * is_stored}")
    print("  ".join(f"{name} {value}" for name, value in scored.protocol.items()))
    if not is_run or arguments.source is not None:
        print(f"data {config.data.source}")
    return {
        "split": split,
        "source": config.data.source,
        "means": means,
        "protocol": scored.protocol,
    }


def _benchmark(arguments: Any, kind: str, name: str) -> dict[str, Any]:
    """Scores the items of a benchmark; returns the results."""
    from transformer_jax.training.benchmarks import run_benchmark
    from transformer_jax.training.loading import load_run

    size = 16 if arguments.batch_size is None else arguments.batch_size
    if size < 1:
        raise InvalidInput(f"--batch_size={size}: expected at least 1")
    folder = "." if is_of_huggingface(arguments.workdir) else arguments.workdir
    out = file_to_write(arguments.out or f"{folder}/{kind}-{Path(name).stem}.jsonl", "--out")
    is_of_run = out.name == "metrics.jsonl" or out.suffix != ".jsonl"
    if is_of_run or out.resolve() == Path(name).resolve():
        raise InvalidInput(f"--out={out}: expected a new name that ends with .jsonl")
    use_compilation_cache()
    run = load_run(arguments.workdir, allow=arguments.allow, mesh=arguments.mesh)
    results, rows = run_benchmark(run, kind, name, size, arguments.begin)
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for task, means in results.items():
        print(f"{task}  {'  '.join(f'{key} {mean:.4f}' for key, mean in means.items())}")
    print(f"scores of each item in {out}")
    return {"results": results, "scores": str(out)}


def _config_to_score(arguments: Any, is_run: bool) -> Any:
    """Returns the config of the run or the model, with the command's data and metrics."""
    if is_run:
        config = RunDirectory(arguments.workdir).config()
    else:
        from transformer_jax.training.pretrained import config_to_use

        config = config_to_use(arguments.workdir)
    if arguments.source is not None:
        if config.data.task == "image_classification":
            raise InvalidInput(
                f"--source={arguments.source}: pixels are scaled by the training images of the "
                "same data; other images would be scaled differently"
            )
        alone = {"data.source": arguments.source, "data.mixture": ()}
        alone |= dict.fromkeys(("data.validation_source", "data.test_source"))
        alone |= {"data.validation_tokens": None}
        alone |= {"data.train_examples": None, "hooks.functions": ()}  # nothing is trained
        config = changed(config, alone)
    if arguments.metrics is not None:
        config = changed(
            config, {"hooks.functions": ()}, texts={"evaluation.metrics": arguments.metrics}
        )
    return config


if __name__ == "__main__":
    execute(main)
