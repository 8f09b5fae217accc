r"""Compares arms over paired seeds: shows the plan, runs what is missing, and judges.

Example:
  python -m experiments.ablate --config=configs/ablations/positions.py --seeds=20:25 \
    --workdir=runs/positions
  python -m experiments.ablate --config=configs/tiny.py --arm=model.num_heads=1,2,4 --seeds=5 \
    --workdir=runs/heads
  python -m experiments.ablate --config=configs/tiny.py --drop=positions,norm,heads --seeds=5 \
    --workdir=runs/parts
  python -m experiments.ablate --config=configs/ablations/scale.py --seeds=5 \
    --ladder=model.head_dim=16,32,64,128 --workdir=runs/scale_ladder
  python -m experiments.ablate --config=shakespeare --arm=model.norm=layer_norm,rms_norm \
    --suite --seeds=3 --workdir=runs/norm_suite
"""

from typing import Any

from experiments.command import (
    Parser,
    execute,
    preset,
    seconds_of,
    shorter_warmup,
    use_compilation_cache,
)
from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import ConfigFile
from transformer_jax.studies.asking.arms import DROPS
from transformer_jax.studies.asking.cells import HOWS
from transformer_jax.studies.asking.design import design_of, parse_seeds
from transformer_jax.studies.asking.ladder import ladder_of
from transformer_jax.studies.asking.suite import EMBEDDED, suite_of
from transformer_jax.studies.reporting.ladder import ladder_text
from transformer_jax.studies.reporting.suite import suite_text
from transformer_jax.studies.running.cluster import KINDS, parse_cluster


def main(argv: list[str]) -> dict[str, Any]:
    """Reads the arguments and runs the study; returns its verdicts."""
    arguments = _parser().read(argv)
    cluster = parse_cluster(arguments.executor, arguments.cells_per_job, arguments.job)
    drops = [name for name in arguments.drop.split(",") if name]
    budget = _budget(arguments)
    is_suite = arguments.suite is not None
    stated, arms = arguments.stated, (arguments.arm, drops)

    def own(file: ConfigFile) -> dict[str, str]:
        say = print if file is not arguments.file else lambda line: None  # it was said of that one
        return shorter_warmup(file, stated, lambda line: say(f"{line}, in {file.path}"))

    if is_suite:
        designs = suite_of(_files_of(arguments), arguments.file, stated, *arms, own)
    else:
        designs = {"": design_of(arguments.file, arguments.overrides, *arms)}
    first = next(iter(designs.values()))
    ladder = ladder_of(arguments.ladder, first) if arguments.ladder else None
    seeds = parse_seeds(arguments.seeds or "5")
    size = f"{len(first.arms)} arms" + ("" if ladder is None else f" x {len(ladder.rungs)} rungs")
    size += f" on {len(designs)} data sets" if is_suite else ""
    if arguments.until and first.trend:
        raise InvalidInput("--until: a study with a trend needs all arms in each seed; --seeds=5")
    print(f"study  {arguments.workdir}: {arguments.config_path}, {size}")
    print("       loading jax and reading the data: some seconds ...", flush=True)
    use_compilation_cache()

    from transformer_jax.studies.running.ladder import run_ladder
    from transformer_jax.studies.running.launch import run
    from transformer_jax.studies.running.suite import run_suite
    from transformer_jax.studies.running.until import Until

    options: dict[str, Any] = {
        "how": arguments.how,
        "retry": arguments.retry,
        "dry_run": arguments.dry_run,
        "adopt": arguments.adopt,
        "cluster": cluster,
        "root": arguments.root,
    }
    if ladder is None and not is_suite:
        until = Until(budget) if arguments.until else None
        study = run(first, arguments.workdir, seeds, until=until, **options)
        return {"study": arguments.workdir, "verdicts": study.verdicts()}
    if ladder is None:
        judged = run_suite(designs, arguments.workdir, seeds, **options)
        if judged:
            print(suite_text(judged))
            print(f"suite  {arguments.workdir} (suite.html, suite.md, suite.json, a study each)")
        return {"suite": arguments.workdir, "verdicts": judged}
    judged = run_ladder(ladder, arguments.workdir, seeds, **options)
    if judged:
        print(ladder_text(judged))
        print(f"ladder {arguments.workdir} (ladder.json, ladder.md, a study for each rung)")
    return {"ladder": arguments.workdir, "verdicts": judged}


def _files_of(arguments: Any) -> str:
    """The configs of a --suite, of which each may be a name; or those of other embedded data."""
    if arguments.suite is not EMBEDDED:
        return ",".join(preset(name, "--suite") for name in arguments.suite.split(",") if name)
    paths = [preset(name, "--suite") for name in EMBEDDED]
    own = (arguments.config.data.task, arguments.config.data.source)
    others = {path: ConfigFile(path, "--suite").config({}).data for path in paths}
    return ",".join(path for path, data in others.items() if (data.task, data.source) != own)


def _parser() -> Parser:
    parser = Parser("ablate", __doc__, takes_config=True)
    parser.add_argument("--workdir", required=True, help="the study's directory: new, or to go on")
    parser.add_argument("--seeds", help="5 means 0 to 4; 5:10 means 5 to 9; or 3,7,8 (5)")
    parser.add_argument(
        "--until",
        choices=("decided",),
        help="in place of --seeds: look by look, without the arms that have their word",
    )
    parser.add_argument("--budget", help="with --until: no look begins that takes longer, as 30m")
    parser.add_argument(
        "--arm",
        action="append",
        default=[],
        metavar="KEY=VALUE,VALUE",
        help="arms without a study file, beside the config as it is (--config.KEY=VALUE sets what "
        "they are compared with); several --arm: each its own arms; joined by x: products",
    )
    parser.add_argument(
        "--drop",
        default="",
        metavar="PART,PART",
        help=f"what does each part do? one arm without each: {', '.join(DROPS)}",
    )
    parser.add_argument(
        "--ladder",
        action="append",
        default=[],
        metavar="KEY=NUMBER,NUMBER,NUMBER",
        help="the whole study at each of these scales or splits: does the effect hold? Several "
        "--ladder: options that grow together",
    )
    parser.add_argument(
        "--suite",
        nargs="?",
        const=EMBEDDED,
        metavar="FILE,FILE",
        help="the same on the data of these configs too: does it matter in general? Without files "
        f"on what comes with the package: {', '.join(EMBEDDED)}",
    )
    parser.add_argument("--how", choices=HOWS, help="force how members are computed")
    parser.add_argument("--root", help="directory whose `cells` is shared (workdir's parent)")
    parser.add_argument("--dry_run", action="store_true", help="stop after the plan")
    parser.add_argument("--retry", action="store_true", help="try cells again that failed")
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="take over finished cells that older code left, if one comes out equal bit by bit",
    )
    parser.add_argument("--executor", choices=KINDS, help="train cells as jobs, through submitit")
    parser.add_argument("--cells_per_job", type=int, help="(4)")
    parser.add_argument(
        "--job",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for submitit: timeout_min=60, slurm_partition=gpu, gpus_per_node=1, ...",
    )
    parser.add_json()
    return parser


def _budget(arguments: Any) -> float | None:
    """The seconds that a study may take until its last look begins; None: no limit."""
    if arguments.suite is not None and arguments.ladder:
        raise InvalidInput("--suite: not with --ladder: ask one after the other")
    if arguments.until is None:
        if arguments.budget is not None:
            raise InvalidInput("--budget: without --until=decided")
        return None
    for flag in ("seeds", "ladder", "suite"):
        if getattr(arguments, flag) not in (None, []):
            why = "its looks say how many" if flag == "seeds" else "each study needs the same seeds"
            raise InvalidInput(f"--{flag}: not with --until: {why}")
    return None if arguments.budget is None else seconds_of("--budget", arguments.budget)


if __name__ == "__main__":
    execute(main)
