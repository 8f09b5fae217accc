r"""Trains a config; the same command resumes.

Example:
  python -m experiments.train --config=shakespeare
  python -m experiments.train --config=configs/shakespeare.py --workdir=runs/a
  python -m experiments.train --config=configs/shakespeare.py --workdir=runs/b \
    --config.model.depth=6
  python -m experiments.train --config=configs/shakespeare.py --workdir=runs/a --extend \
    --config.training.steps=4000
"""

import tempfile
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.command import Parser, default_workdir, execute, use_compilation_cache
from transformer_jax.config_files import changed, flatten, resolved
from transformer_jax.constraints import ENDING
from transformer_jax.data.sources.files import refuse_missing
from transformer_jax.data.tasks import traits_of
from transformer_jax.errors import InvalidInput
from transformer_jax.own import names_own
from transformer_jax.resolve import unread
from transformer_jax.runs.directory import RunDirectory


def main(argv: list[str]) -> dict[str, Any]:
    """Reads the arguments and trains; returns the run's directory and its scores."""
    parser = Parser("train", __doc__, takes_config=True)
    parser.add_argument(
        "--workdir", help="the run's directory: new, or to resume (runs/NAME,CHANGES)"
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="describe the run, compile it, and stop"
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="try everything once, for two updates, in a temporary directory",
    )
    parser.add_argument(
        "--across_numerics",
        action="store_true",
        help="continue a run that began with different numerics",
    )
    parser.add_argument(
        "--extend",
        action="store_true",
        help="continue a run with new training.steps, optimizer.learning_rate or schedule",
    )
    parser.add_argument(
        "--profile", action="store_true", help="write a trace of some steps to WORKDIR/profile"
    )
    parser.add_allow()
    parser.add_json()
    arguments = parser.read(argv)
    fields = ("workdir", "extend", "profile", "dry_run")
    if arguments.fast and any(getattr(arguments, name) for name in fields):
        raise InvalidInput(f"--fast: not allowed with {', '.join(f'--{n}' for n in fields)}")
    if arguments.extend and (arguments.dry_run or not arguments.workdir):
        raise InvalidInput("--extend: expected --workdir=DIR, the run to extend, and no --dry_run")
    if arguments.dry_run and arguments.profile:
        raise InvalidInput("--profile: not read with --dry_run")
    if arguments.fast:
        from transformer_jax.processes import are_several

        if are_several():
            raise InvalidInput("--fast: expected one process, found several")
        with tempfile.TemporaryDirectory() as folder:
            arguments.workdir = folder
            arguments.config = changed(arguments.config, _once(resolved(arguments.config)))
            result = _train(arguments)
        print("fast   all of it works: updates, evaluation, checkpoint; nothing was kept")
        return {**result, "run": None}
    arguments.workdir = arguments.workdir or default_workdir(
        arguments.config_path, arguments.stated
    )
    return _train(arguments)


def _once(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns changes for a run of two updates that does everything that a long run does."""
    every = ("evaluation", "logging", "checkpoint", "hooks")
    warmup = "schedule.warmup_steps"
    most = 0 if flat["schedule.name"] in ENDING else 1  # its ending takes updates too
    shorter = {warmup: min(flat[warmup], most)} if warmup in flat else {}
    return {"training.steps": 2, **dict.fromkeys([f"{name}.every" for name in every], 1), **shorter}


def _train(arguments: Namespace) -> dict[str, Any]:
    # Checks that do not need jax come first, since importing it takes two seconds.
    directory = RunDirectory(arguments.workdir)
    extension = None
    if arguments.extend:
        from transformer_jax.training.extension import extension_of

        extension = extension_of(arguments.config, directory, arguments.across_numerics)
        for key, (before, now) in extension.changed.items():
            print(f"extend {key}: {before} until update {extension.step}, then {now}")
    else:
        directory.refuse_other_config(arguments.config)
    if not arguments.across_numerics:
        directory.refuse_other_numerics()
    data = arguments.config.data
    kind = traits_of(data.task).source
    if kind is not None and not names_own("data.source", data.source):
        refuse_missing(data.source, kind)
    print(f"run    {arguments.workdir}: {arguments.config_path}, seed {arguments.config.seed}")
    flat = flatten(arguments.config)
    for key, choice in unread(flat).items():
        print(f"note   {key} is not read: {choice}")
    print("       loading jax, reading the data, then compiling: some seconds ...", flush=True)
    use_compilation_cache()
    from transformer_jax.processes import join_processes

    join_processes()
    if arguments.dry_run:
        return _announce(arguments)

    from transformer_jax.training.loop import train

    last = train(
        arguments.config,
        arguments.workdir,
        allow=arguments.allow,
        across_numerics=arguments.across_numerics,
        profile=arguments.profile,
        extension=extension,
    )
    traces = sorted(Path(arguments.workdir).glob("profile/**/*.trace.json.gz"))
    if arguments.profile and traces:
        print(f"profile    {traces[-1]} (ui.perfetto.dev; the folder: xprof)")
    elif arguments.profile:
        print("profile    none: the program's second call is traced, but one call ran all steps")
    return {"run": arguments.workdir, "last": last, "evaluation": directory.evaluation()}


def _announce(arguments: Namespace) -> dict[str, Any]:
    """Prints the model that would be trained and whether it fits; writes nothing."""
    from transformer_jax.runs.progress import Progress
    from transformer_jax.training.announcement import announce
    from transformer_jax.training.prepared import prepare

    prepared = prepare(arguments.config, allow=arguments.allow)
    announce(prepared, Progress(), compiles=True, is_new=True)
    print("dry run: nothing was written")
    return {"run": arguments.workdir, "parameters": prepared.num_parameters}


if __name__ == "__main__":
    execute(main)
