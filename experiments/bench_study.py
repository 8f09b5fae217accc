"""Times a study against what it replaces: one process a run; and members in step against one.

The study is 4 learning rates x 8 seeds of a config (32 cells) in one `ablate` process; beside it
32 `train` processes, with the compilation cache that they share and, as a plain script would be,
without one. Each round does all of them, one after the other.

Example:
  python -m experiments.bench_study --rounds=2
  python -m experiments.bench_study --members=32 --config=configs/tiny.py
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.command import Parser, execute, use_compilation_cache
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.provenance import machine_name

_RATES = ("0.001", "0.002", "0.004", "0.008")
_SEEDS = 8


def main(argv: list[str]) -> None:
    """Reads the arguments and prints what was measured."""
    parser = Parser("bench_study", __doc__)
    parser.add_argument("--config", default="configs/tiny.py", help="(configs/tiny.py)")
    parser.add_argument("--rounds", type=int, default=1, help="(1)")
    parser.add_argument("--sample", type=int, default=32, help="processes that are timed (32)")
    parser.add_argument("--members", type=int, help="instead: this many seeds in step against one")
    arguments = parser.read(argv)
    for name in ("rounds", "members"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise InvalidInput(f"--{name}={value}: expected an integer >= 1")
    if arguments.members is not None:
        _in_step(arguments.config, arguments.members)
        return
    if not 1 <= arguments.sample <= len(_RATES) * _SEEDS:
        raise InvalidInput(f"--sample={arguments.sample}: expected 1 to {len(_RATES) * _SEEDS}")
    print(machine_name())
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            study = _study(arguments.config, Path(folder))
            for cached in (True, False):
                whole = _processes(arguments.config, Path(folder), arguments.sample, cached)
                ratios[cached].append(whole / study)
                kind = "with" if cached else "without"
                print(
                    f"round {number + 1}: study {study:.1f} s; 32 processes {kind} the compilation "
                    f"cache {whole:.0f} s, {whole / study:.1f} times as long"
                )
    for cached, found in ratios.items():
        print(
            f"median ratio, {'with' if cached else 'without'} cache: {statistics.median(found):.1f}"
        )


def _run(*arguments: str, **environment: str) -> float:
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", *arguments],
        check=False,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    if ended.returncode:
        raise InvalidInput(f"{' '.join(arguments)}: ended with code {ended.returncode}")
    return time.monotonic() - started


def _study(config: str, folder: Path) -> float:
    arm = f"--arm=optimizer.learning_rate={','.join(_RATES)}"
    place = f"--workdir={folder / 'study'}"
    return _run("experiments.ablate", f"--config={config}", arm, f"--seeds={_SEEDS}", place)


def _processes(config: str, folder: Path, sample: int, cached: bool) -> float:
    """Seconds of 32 processes; of a sample, scaled."""
    runs = [(rate, seed) for seed in range(_SEEDS) for rate in _RATES][:sample]
    cache = {} if cached else {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    seconds = [
        _run(
            "experiments.train",
            f"--config={config}",
            f"--workdir={folder / f'{cached}-{rate}-{seed}'}",
            f"--config.seed={seed}",
            f"--config.optimizer.learning_rate={rate}",
            **cache,
        )
        for rate, seed in runs
    ]
    return sum(seconds) * len(_RATES) * _SEEDS / len(runs)


def _in_step(config_path: str, members: int) -> None:
    """Times a step of so many seeds in each way of computing, against a step of one."""
    use_compilation_cache()
    import jax

    from transformer_jax.options.config import load_config
    from transformer_jax.studies.running.batched import group_arms
    from transformer_jax.studies.running.planning import measure
    from transformer_jax.training.prepared import prepare

    prepared = prepare(load_config(config_path, {}))
    print(f"{jax.device_count()} {jax.devices()[0].device_kind}, jax {jax.__version__}")
    (group,) = group_arms({"one": prepared}, "loop")
    alone, *_ = measure(group, "one", 1)
    print(f"one member: {alone * 1e3:.3f} ms a step")
    for how in ("scan", "vmap", *(["devices"] if jax.device_count() > 1 else [])):
        (group,) = group_arms({"one": prepared}, how)
        each, compiling, nbytes = measure(group, "one", members)
        print(
            f"{how:<8} {members} members: {each * members * 1e3:.3f} ms a step of all, "
            f"{each * members / alone:.2f} times one; compiled in {compiling:.1f} s, "
            f"{nbytes / 2**20:,.0f} MiB"
        )


if __name__ == "__main__":
    execute(main)
