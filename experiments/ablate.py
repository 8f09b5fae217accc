r"""Compares arms over paired seeds: shows the plan, trains missing runs, and judges.

Example:
  python -m experiments.ablate --config=configs/ablations/positions.py --seeds=20:25 \
    --workdir=runs/positions
  python -m experiments.ablate --config=configs/tiny.py --arm=model.num_heads=1,2,4 --seeds=5 \
    --workdir=runs/heads
  python -m experiments.ablate --config=configs/ablations/scale.py --seeds=5 \
    --ladder=model.head_dim=16,32,64,128 --workdir=runs/scale_ladder
"""

from typing import Any

from experiments.command import Parser, execute, use_compilation_cache
from transformer_jax.studies.cluster import KINDS, parse_cluster
from transformer_jax.studies.design import load_design, parse_seeds
from transformer_jax.studies.ladder import ladder_of, ladder_text


def main(argv: list[str]) -> dict[str, Any]:
    """Reads the arguments and runs the study; returns its verdicts."""
    arguments = _parser().read(argv)
    cluster = parse_cluster(arguments.executor, arguments.cells_per_job, arguments.job)
    design = load_design(
        *(arguments.file, arguments.overrides, arguments.arm, arguments.margin, arguments.gate)
    )
    ladder = ladder_of(arguments.ladder, design) if arguments.ladder else None
    seeds = parse_seeds(arguments.seeds or "5")
    size = f"{len(design.arms)} arms" + ("" if ladder is None else f" x {len(ladder.rungs)} rungs")
    print(f"study  {arguments.workdir}: {arguments.config_path}, {size}")
    print("       loading jax and reading the data: some seconds ...", flush=True)
    use_compilation_cache()

    from transformer_jax.studies.ladder import run_ladder
    from transformer_jax.studies.running import run

    options: dict[str, Any] = {
        "members": arguments.members,
        "retry": arguments.retry,
        "dry_run": arguments.dry_run,
        "cluster": cluster,
        "root": arguments.root,
    }
    if ladder is None:
        study = run(design, arguments.workdir, seeds, **options)
        return {"study": arguments.workdir, "verdicts": study.verdicts()}
    judged = run_ladder(ladder, arguments.workdir, seeds, **options)
    if judged:
        print(ladder_text(judged))
        print(f"ladder {arguments.workdir} (ladder.json, ladder.md, a study for each rung)")
    return {"ladder": arguments.workdir, "verdicts": judged}


def _parser() -> Parser:
    parser = Parser("ablate", __doc__, takes_config=True)
    parser.add_argument("--workdir", required=True, help="the study's directory, new or old")
    parser.add_argument("--seeds", help="5 means 0 to 4; 5:10 means 5 to 9; or 3,7,8 (5)")
    parser.add_list(
        "--arm",
        "KEY=VALUE,VALUE",
        "arms to compare with the config itself, without a study file (--config.KEY=VALUE "
        "changes it); repeat --arm for more; 'KEY=VALUE,VALUE x KEY=VALUE,VALUE' is a grid",
    )
    parser.add_argument(
        "--margin", type=float, help="with --arm: the smallest difference that matters"
    )
    parser.add_argument("--gate", help="with --arm: the simple method to beat, e.g. 2-gram")
    parser.add_argument(
        "--ladder",
        metavar="KEY=NUMBER,NUMBER,...",
        help="repeat the study at each of these values of an option",
    )
    parser.add_argument(
        "--members",
        type=int,
        help="number of runs that one program trains together, under vmap "
        "(1 on a CPU, 8 on a GPU or TPU)",
    )
    parser.add_argument("--root", help="directory whose `cells` studies share (workdir's parent)")
    parser.add_argument("--dry_run", action="store_true", help="print the plan and stop")
    parser.add_argument("--retry", action="store_true", help="train failed cells again")
    parser.add_argument("--executor", choices=KINDS, help="train cells as jobs through submitit")
    parser.add_argument("--cells_per_job", type=int, help="number of cells in each job (4)")
    what = "for submitit: timeout_min=60, slurm_partition=gpu, gpus_per_node=1, ..."
    parser.add_list("--job", "KEY=VALUE", what)
    parser.add_json()
    return parser


if __name__ == "__main__":
    execute(main)
