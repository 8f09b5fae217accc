"""Times one training step of this package beside PyTorch and plain flax.linen.

Each program runs in a process of its own, one after the other, in alternating rounds, so that a
machine that is busy for a while slows them all. What counts is the ratio within a round.

Example:
  python -m experiments.bench --rounds=5
  python -m experiments.bench --shape=gpt2 --dtype=bfloat16 --programs=ours,torch_compiled
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time

from experiments.bench_programs import PROGRAMS, SHAPES
from experiments.command import Parser, execute
from transformer_jax.errors import InvalidInput


def main(argv: list[str]) -> None:
    """Reads the arguments; without --worker, runs the rounds and prints the table."""
    parser = Parser("bench", __doc__)
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="which, by comma (all)")
    parser.add_argument("--shape", default="small", choices=SHAPES, help="what is trained (small)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rounds", type=int, default=5, help="of all programs (5)")
    parser.add_argument("--steps", type=int, default=100, help="timed in each process (100)")
    parser.add_argument("--worker", choices=PROGRAMS, help="time this program in this process")
    arguments = parser.read(argv)
    if arguments.worker:
        measured = _measure(arguments.worker, arguments.shape, arguments.dtype, arguments.steps)
        print(json.dumps(measured))
        return
    names = arguments.programs.split(",")
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        raise InvalidInput(f"--programs={unknown[0]}: expected some of {', '.join(PROGRAMS)}")
    if arguments.rounds < 1 or arguments.steps < 1:
        raise InvalidInput("--rounds and --steps: expected at least 1")
    options = [f"--{name}={getattr(arguments, name)}" for name in ("shape", "dtype", "steps")]
    print(f"{SHAPES[arguments.shape]}, {arguments.dtype}, {arguments.steps} steps a round")
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores", flush=True)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(1, arguments.rounds + 1):
        for name in list(times):
            measured = _in_its_own_process(name, options)
            if measured is None:
                del times[name]
                continue
            times[name].append(measured["ms"])
            print(f"round {number}  {name:15} {measured['ms']:9.2f} ms a step", flush=True)
    _print_table(times)


def _measure(name: str, shape: str, dtype: str, steps: int) -> dict[str, float]:
    """Milliseconds a step, compilation and warm-up left out."""
    take = PROGRAMS[name](SHAPES[shape], dtype)
    take(max(10, steps // 10))
    started = time.perf_counter()
    take(steps)
    return {"ms": (time.perf_counter() - started) / steps * 1e3}


def _in_its_own_process(name: str, options: list[str]) -> dict | None:
    """What the worker measured; None, with the reason, where the program cannot run."""
    command = [sys.executable, "-m", "experiments.bench", f"--worker={name}", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    print(f"left out: {name}: {reason}")
    return None


def _print_table(times: dict[str, list[float]]) -> None:
    """Prints median and range of each program, and its ratio to the first within a round."""
    first = next(iter(times.values()), [])
    print(
        f"\n{'program':15} {'median ms':>10} {'min':>8} {'max':>8}   time / first, median (range)"
    )
    for name, column in times.items():
        ratios = [a / b for a, b in zip(column, first, strict=True)]
        print(
            f"{name:15} {statistics.median(column):10.2f} {min(column):8.2f} {max(column):8.2f}   "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    execute(main)
