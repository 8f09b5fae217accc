"""Compares this package's speed with PyTorch, plain flax.linen, transformers and the machine.

  training  an update, the evaluation of a batch, compilation, memory
  writing   generation token by token, for 1 text and for 8
  start     `train` of a config: the time to its first step, and its parts
  members   an update of several seeds of a config, in one program under vmap
  limits    the machine's rates of matrix products and memory

Programs run one after the other, each in its own process, in alternating rounds, so that a busy
machine slows all of them. Compare ratios within a round.

Example:
  python -m experiments.bench --rounds=5
  python -m experiments.bench --what=training,limits --shape=gpt2 --dtype=bfloat16
  python -m experiments.bench --what=members --config=configs/tiny.py
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from experiments.bench_programs import SHAPES, TRAINERS, WRITERS, our_decoder
from experiments.command import Parser, execute, file_to_write
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.provenance import machine_name

Figures = dict[str, float]

_WARM_UP = 10
_MEMBERS = (1, 4, 16, 32, 64)
_WRITTEN = 0.5  # share of the longest text that is generated
_SIDE = 2048  # rows and columns of each multiplied matrix
_READ = 64 << 20  # numbers of 4 bytes each


class Measure(NamedTuple):
    """Properties of a measured figure.

    Attributes:
      unit: Unit of the figure.
      limit: Names of a machine's rate and of a count of operations or bytes, from which the share
        of the rate that a program reaches is computed; None for no share.
    """

    unit: str
    limit: tuple[str, str] | None = None


MEASURES = {
    "update": Measure("ms", ("products", "update_flops")),
    "evaluation of a batch": Measure("ms", ("products", "score_flops")),
    "until the first update is done": Measure("s"),
    "most memory": Measure("MiB"),
    "a token of 1 text": Measure("ms", ("reading", "bytes_of_1")),
    "a token of each of 8 texts": Measure("ms", ("reading", "bytes_of_8")),
    "first step, nothing compiled": Measure("s"),
    "first step, compiled before": Measure("s"),
    "whole run, compiled before": Measure("s"),
    "steps in the rest of it": Measure("%"),
    "update of all members": Measure("ms"),
    "products": Measure("GFLOP/s"),
    "reading": Measure("GB/s"),
}


def main(argv: list[str]) -> dict[str, Any]:
    """Runs the rounds, prints the tables and returns the figures; with --worker only measures."""
    parser = Parser("bench", __doc__)
    parser.add_argument("--what", default=",".join(WHAT), help="kinds of work: A,B,... (all)")
    parser.add_argument("--programs", help="programs, separated by commas (all)")
    parser.add_argument("--shape", default="small", choices=SHAPES, help="model size (small)")
    parser.add_argument(
        "--dtype", default="float32", choices=("float32", "bfloat16"), help="dtype (float32)"
    )
    parser.add_argument(
        "--config", default="configs/tiny.py", help="for start and members (configs/tiny.py)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all programs (5)")
    parser.add_argument("--steps", type=int, default=100, help="steps per process (100)")
    parser.add_argument("--out", help="a JSON file for the figures")
    workers = [f"{what}:{name}" for what, work in WHAT.items() for name in work.programs]
    parser.add_argument(
        "--worker", choices=workers, metavar="WHAT:PROGRAM", help="measure it in this process"
    )
    parser.add_json()
    arguments = parser.read(argv)
    if arguments.worker:
        what, _, name = arguments.worker.partition(":")
        return dict(WHAT[what].measure(name, arguments))
    jobs = _jobs(arguments)
    out = file_to_write(arguments.out, "--out") if arguments.out else None
    machine = machine_name()
    print(f"{SHAPES[arguments.shape]}, {arguments.dtype}, {arguments.steps} steps a round")
    print(machine, flush=True)
    # one figure per round, by measure and then program
    by_program: dict[str, dict[str, list[float]]] = {}
    options = [
        f"--{key}={getattr(arguments, key)}" for key in ("shape", "dtype", "steps", "config")
    ]
    for number in range(1, arguments.rounds + 1):
        for job in list(jobs):
            figures = _in_its_own_process(job, options)
            if figures is None:
                jobs.remove(job)
                continue
            lines = [(name, MEASURES[name].unit) for name in figures if name in MEASURES]
            line = ", ".join(f"{name} {figures[name]:.4g} {unit}" for name, unit in lines)
            print(f"round {number}  {job:23} {line}", flush=True)
            for name, value in figures.items():
                by_program.setdefault(name, {}).setdefault(job.partition(":")[2], []).append(value)
    _print_tables(by_program)
    about = {"machine": machine, "shape": arguments.shape, "dtype": arguments.dtype}
    stored = {**about, "figures": by_program}
    if out is not None:
        out.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        print(f"\nwrote {out}")
    return stored


def _jobs(arguments: Any) -> list[str]:
    """Returns the requested jobs, each as WHAT:PROGRAM."""
    asked = arguments.what.split(",")
    for name in asked:
        if name not in WHAT:
            raise InvalidInput(f"--what={name}: expected some of {', '.join(WHAT)}")
    available = list(dict.fromkeys(name for what in asked for name in WHAT[what].programs))
    programs = arguments.programs.split(",") if arguments.programs else available
    for name in programs:
        if name not in available:
            raise InvalidInput(f"--programs={name}: expected some of {', '.join(available)}")
    if arguments.rounds < 1 or arguments.steps < 1:
        raise InvalidInput("--rounds and --steps: expected at least 1")
    return [f"{what}:{name}" for what in asked for name in WHAT[what].programs if name in programs]


# ---------------------------------------------------------------- workers


def _time(repeat: Callable[[int], None], count: int) -> float:
    """Returns the mean number of seconds per repetition."""
    started = time.perf_counter()
    repeat(count)
    return (time.perf_counter() - started) / count


def _training(name: str, arguments: Any) -> Figures:
    shape, steps = SHAPES[arguments.shape], arguments.steps
    with tempfile.TemporaryDirectory() as folder:  # so that PyTorch, too, has nothing compiled
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        started = time.perf_counter()
        trainer = TRAINERS[name](shape, arguments.dtype)
        trainer.take(1)
        first = time.perf_counter() - started
    trainer.take(max(_WARM_UP, steps // 10))
    update = _time(trainer.take, steps)
    trainer.score(_WARM_UP)
    figures = {
        "update": update * 1e3,
        "evaluation of a batch": _time(trainer.score, steps) * 1e3,
        "until the first update is done": first,
        "most memory": _most_memory() / (1 << 20),
    }
    return figures | (_operations(shape, arguments.dtype) if name == "ours" else {})


def _most_memory() -> float:
    """Returns the peak memory of this process in bytes: GPU memory, or main memory without one."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    stats = jax.local_devices()[0].memory_stats() if jax is not None else None
    if stats:
        return stats["peak_bytes_in_use"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _operations(shape: Any, dtype: str) -> Figures:
    """Returns the FLOPs of an evaluated batch and of an update, from our traced model."""
    import jax
    import numpy as np

    from transformer_jax.training.flops import TRAINING_OVER_FORWARD, flops_of

    model = our_decoder(shape, dtype)
    tokens = np.zeros((shape.batch_size, shape.length), np.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)
    forward = flops_of(jax.make_jaxpr(model.apply)(params, tokens))
    return {"score_flops": forward, "update_flops": TRAINING_OVER_FORWARD * forward}


def _writing(name: str, arguments: Any) -> Figures:
    shape, figures = SHAPES[arguments.shape], {}
    count = int(shape.length * _WRITTEN)
    for texts, label in ((1, "a token of 1 text"), (8, "a token of each of 8 texts")):
        write = WRITERS[name](shape, arguments.dtype, texts, count)
        write(1)
        figures[label] = min(_time(write, 1) for _ in range(3)) / count * 1e3
        if name == "ours":
            size = 2 if arguments.dtype == "bfloat16" else 4
            held = 2 * shape.depth * shape.width * texts * count / 2  # keys and values, on average
            blocks = 12 * shape.depth * shape.width**2 + shape.vocab_size * shape.width
            figures[f"bytes_of_{texts}"] = size * (blocks + held)
    return figures


def _start(name: str, arguments: Any) -> Figures:
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for label in ("nothing compiled", "compiled before"):
            run = Path(folder) / label.replace(" ", "_")
            first, whole = _watch(arguments.config, run, Path(folder) / "cache")
            figures[f"first step, {label}"] = first
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    times = [row["time/step_ms"] for row in rows if "time/step_ms" in row]
    in_steps = statistics.fmean(times) * rows[-1]["step"] / 1e3
    share = 100 * in_steps / (whole - first)
    return figures | {"whole run, compiled before": whole, "steps in the rest of it": share}


def _watch(config: str, run: Path, cache: Path) -> tuple[float, float]:
    """Runs `train`; returns the seconds until its first step is done, and until it ends."""
    command = [sys.executable, "-m", "experiments.train", f"--config={config}", f"--workdir={run}"]
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
    first, status = None, run / "STATUS"
    started = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as training:
        while training.poll() is None:
            if first is None and status.exists() and " step 0" not in status.read_text():
                first = time.perf_counter() - started
            time.sleep(0.005)
    whole = time.perf_counter() - started
    if training.returncode or first is None:
        raise InvalidInput(f"--config={config}: train ended with code {training.returncode}")
    return first, whole


def _members(name: str, arguments: Any) -> Figures:
    from transformer_jax.config_files import load_config
    from transformer_jax.studies.arms import measure
    from transformer_jax.training.prepared import prepare
    from transformer_jax.training.program import Program

    width = int(name.split("_")[0])
    program = Program(prepare(load_config(arguments.config, {})), width)
    return {"update of all members": measure(program) * width * 1e3}


def _limits(name: str, arguments: Any) -> Figures:
    import jax
    import jax.numpy as jnp

    from transformer_jax.planning.devices import matrix_rate, shortest

    larger = 1 if jax.default_backend() == "cpu" else 4
    numbers = jnp.ones(larger * _READ, jnp.float32)
    return {
        "products": matrix_rate(arguments.dtype, larger * _SIDE) / 1e9,
        "reading": 1e-9 * numbers.nbytes / shortest(jax.jit(jnp.sum), numbers),
    }


class Work(NamedTuple):
    """A kind of work: the programs that are compared, and a function that measures one of them.

    Attributes:
      programs: Names of the programs.
      measure: Function (name, arguments) -> figures by name: those in MEASURES, and counts.
    """

    programs: tuple[str, ...]
    measure: Callable[[str, Any], Figures]


WHAT = {
    "training": Work(tuple(TRAINERS), _training),
    "writing": Work(tuple(WRITERS), _writing),
    "start": Work(("ours",), _start),
    "members": Work(tuple(f"{n}_seeds" for n in _MEMBERS), _members),
    "limits": Work(("machine",), _limits),
}


# ---------------------------------------------------------------- rounds and tables


def _in_its_own_process(job: str, options: list[str]) -> Figures | None:
    """Returns a worker's figures; if the program cannot run, prints the reason and returns None."""
    command = [sys.executable, "-m", "experiments.bench", f"--worker={job}", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    print(f"left out: {job}: {reason}")
    return None


def _print_tables(figures: dict[str, dict[str, list[float]]]) -> None:
    """Prints each program's median, range, ratio to the first program, and share of the limit."""
    for name, (unit, limit) in MEASURES.items():
        columns = figures.get(name)
        if not columns:
            continue
        first = next(iter(columns.values()))
        print(f"\n{name + ', ' + unit:33} {'median':>9} {'min':>9} {'max':>9}   / first (range)")
        for program, column in columns.items():
            middle = statistics.median(column)
            line = f"  {program:31} {middle:9.4g} {min(column):9.4g} {max(column):9.4g}"
            if len(columns) > 1 and len(column) == len(first):
                ratios = [a / b for a, b in zip(column, first, strict=True)]
                middle_ratio = statistics.median(ratios)
                line += f"   {middle_ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(line + _share(limit, middle, figures))


def _share(limit: tuple[str, str] | None, milliseconds: float, figures: dict) -> str:
    """Returns the share of the machine's limit as text, or "" if the limit was not measured."""
    if limit is None or limit[0] not in figures or limit[1] not in figures:
        return ""
    rate = statistics.median(figures[limit[0]]["machine"]) * 1e9
    count = figures[limit[1]]["ours"][0]
    return f"   {count / (milliseconds / 1e3) / rate:.0%} of the machine's {limit[0]}"


if __name__ == "__main__":
    execute(main)
