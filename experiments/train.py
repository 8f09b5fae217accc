r"""Trains what a config describes; the same command again resumes.

Example:
  python -m experiments.train --config=configs/shakespeare.py --workdir=runs/a
  python -m experiments.train --config=configs/shakespeare.py --workdir=runs/b \
    --config.model.depth=6
  python -m experiments.train --config=configs/shakespeare.py --workdir=runs/a --extend \
    --config.training.steps=4000
"""

from pathlib import Path
from typing import Any

from experiments.command import Parser, execute, use_compilation_cache
from transformer_jax.data.sources.files import refuse_missing
from transformer_jax.options.constraints import SOURCE_KINDS
from transformer_jax.options.tables import names_own
from transformer_jax.runs.directory import RunDirectory


def main(argv: list[str]) -> dict[str, Any]:
    """Reads the arguments and trains."""
    parser = Parser("train", __doc__, takes_config=True)
    parser.add_argument("--workdir", required=True, help="the run's directory: new, or to resume")
    parser.add_argument(
        "--across_numerics",
        action="store_true",
        help="go on with a run that began with code whose bits differ",
    )
    parser.add_argument(
        "--extend",
        action="store_true",
        help="go on with a run though training.steps, optimizer.learning_rate or schedule changed",
    )
    parser.add_argument(
        "--profile", action="store_true", help="trace some steps, into WORKDIR/profile (xprof)"
    )
    parser.add_allow()
    parser.add_json()
    arguments = parser.read(argv)
    # What can be refused without jax is refused before its two seconds of import.
    directory = RunDirectory(arguments.workdir)
    extension = None
    if arguments.extend:
        from transformer_jax.training.branching import extension_of

        extension = extension_of(arguments.config, directory, arguments.across_numerics)
        for line in extension.told():
            print(f"extend {line}")
    else:
        directory.refuse_other_config(arguments.config)
    if not arguments.across_numerics:
        directory.refuse_other_numerics()
    data = arguments.config.data
    if data.task in SOURCE_KINDS and not names_own("data.source", data.source):
        refuse_missing(data.source, SOURCE_KINDS[data.task])
    print(f"run    {arguments.workdir}: {arguments.config_path}, seed {arguments.config.seed}")
    print("       loading jax, reading the data, then compiling: some seconds ...", flush=True)
    use_compilation_cache()

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
        print(
            "profile    none: all steps were one call of the program, of which the second is traced"
        )
    return {"run": arguments.workdir, "last": last, "evaluation": directory.evaluation()}


if __name__ == "__main__":
    execute(main)
