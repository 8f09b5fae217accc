r"""Reports the resources that a training step needs on devices, according to their compiler.

The devices need not be present, only their compiler: `pip install -e '.[train,tpu]'` (or cuda) in
a clone, into a separate environment. For a device of this machine, cpu or gpu, rates are
measured, and --steps also runs some training steps. The text is not needed if
data.tokenizer=bpe and data.vocab_size state its vocabulary.

Example:
  python -m experiments.plan --config=configs/gpt2_124m.py --device=v5e
  python -m experiments.plan --config=configs/gpt2_124m.py --device=h100 --remedies
  python -m experiments.plan --config=configs/llama_7b.py --topology=v5p:4x4x4 \
    --mesh=fsdp=16,tensor=4 --config.training.batch_size=64 --config.training.accumulation=1
  python -m experiments.plan --config=configs/shakespeare.py --device=gpu --steps=20
  python -m experiments.plan --config=configs/gpt2_124m.py --device=v5e \
    --compare="model.remat=none" --compare="model.remat=none training.accumulation=60"
"""

import dataclasses
import json
import math
import os
import shlex
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.command import Parser, execute
from transformer_jax.errors import InvalidInput

if TYPE_CHECKING:
    from transformer_jax.planning.devices import Device
    from transformer_jax.planning.plan import Plan

_GIB = 1 << 30
_KINDS = 4  # most frequent kinds of kernels, which are shown
# jax computes on the CPU here; of libtpu only the compiler is used.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def main(argv: list[str]) -> dict[str, Any]:
    """Compiles the step and its variants; prints and returns the plans."""
    arguments = _parser().read(argv)
    if arguments.mesh:
        arguments.overrides |= {f"mesh.{axis}": str(n) for axis, n in arguments.mesh.items()}
        arguments.config = arguments.file.config(arguments.overrides)
    out = Path(arguments.out) if arguments.out else None
    if out and (out.is_dir() or not out.parent.is_dir()):
        raise InvalidInput(f"--out={out}: expected a file in a folder that exists")
    asked = map(_changes_of, arguments.compare)
    variants = {_in_words(changes): _variant(arguments, changes) for changes in asked}
    place = arguments.device.partition(":")[0]
    if place != "gpu":
        os.environ.update(ENVIRONMENT)

    from transformer_jax.planning.devices import HERE, find_device
    from transformer_jax.planning.plan import make_plan
    from transformer_jax.training.memory import remedies_for

    if arguments.steps < 0 or (arguments.steps and place not in HERE):
        raise InvalidInput(
            f"--steps={arguments.steps}: expected at least 0, and a --device of this machine: "
            f"{' or '.join(HERE)}"
        )
    device = find_device(arguments.device)
    configs = {"as it stands": ({}, arguments.config), **variants}
    if arguments.remedies:
        remedies = remedies_for(arguments.config)
        everything = {k: v for changes in remedies.values() for k, v in changes.items()}
        remedies |= {"all of these": everything} if len(remedies) > 1 else {}
        configs |= {n: _variant(arguments, changes) for n, changes in remedies.items()}
    plans = {}
    for number, (name, (changes, config)) in enumerate(configs.items(), 1):
        print(f"compiling {number} of {len(configs)}: {name} ...", file=sys.stderr, flush=True)
        plans[name] = make_plan(
            config, device, changes, arguments.thorough, arguments.allow, arguments.steps
        )
    figures = {name: dataclasses.asdict(plan) for name, plan in plans.items()}
    if out:
        out.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(_report(arguments, device, plans)))
    return figures


def _parser() -> Parser:
    """Returns the parser of the command line."""
    parser = Parser("plan", __doc__, takes_config=True)
    parser.add_argument(
        *("--device", "--topology"),
        default="cpu",
        help="v5e, v5p, v6e, h100, h200, a100, cpu or gpu (cpu); several: v5e:4x4, h100:8",
    )
    parser.add_mesh("the config's mesh")
    parser.add_argument(
        "--steps",
        type=int,
        default=0,
        help="also run this many steps (at most 64), three times, on a device of this machine",
    )
    parser.add_list("--compare", "KEY=VALUE ...", "plan this variant too; can be repeated")
    parser.add_argument(
        "--remedies", action="store_true", help="plan changes that save memory, alone and together"
    )
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="compile as a run does, 7 times as long for a TPU; else memory is up to 22 %% higher",
    )
    parser.add_json()
    parser.add_argument("--out", help="a JSON file for the figures")
    parser.add_allow()
    return parser


def _in_words(changes: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in changes.items())


def _changes_of(text: str) -> dict[str, str]:
    """Parses a string such as `model.depth=4 model.width=64` into values by key."""
    try:
        pairs = [part.partition("=") for part in shlex.split(text)]
    except ValueError as error:  # a quote that is not closed
        raise InvalidInput(f"--compare={text}: {error}") from error
    wrong = [key for key, equals, _ in pairs if not equals]
    if wrong or not pairs:
        raise InvalidInput(f"--compare={text}: expected KEY=VALUE KEY=VALUE ...")
    return {key.removeprefix("--config."): value for key, _, value in pairs}


def _variant(arguments: Any, changes: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Returns the changes with values as strings, and the config with these changes."""
    texts = {key: str(value) for key, value in changes.items()}
    return texts, arguments.file.config(arguments.overrides | texts)


def _report(arguments: Any, device: "Device", plans: "dict[str, Plan]") -> list[str]:
    """Returns lines that describe all plans."""
    first, count = plans["as it stands"], len(device.targets)
    lines = [f"{arguments.config_path} on {device.kind}", *_described(first)]
    if len(plans) > 1:
        lines += _compared(plans)
    idle = count - math.prod(first.mesh.values())
    if idle:
        lines.append(f"note   {idle} of {count} devices stay idle; --config.mesh.data=-1 takes all")
    return [*lines, f"note   {device.remark}"] if device.remark else lines


def _described(plan: "Plan") -> list[str]:
    """Returns lines that describe one plan."""
    needs = _size(plan.needed) if plan.needed else "more than the compiler says"
    held = ", ".join(f"{name} {_size(size)}" for name, size in plan.held.items())
    mesh = " ".join(f"{axis}={size}" for axis, size in plan.mesh.items())
    kernels = ", ".join(f"{count} {kind}" for kind, count in list(plan.kernels.items())[:_KINDS])
    seconds = ", ".join(f"{name} {1e3 * value:,.1f} ms" for name, value in plan.seconds.items())
    lines = [
        f"{'fits' if plan.fits else 'does not fit'}: needs {needs} of {_size(plan.memory)}"
        + (f", laid out in {_size(plan.laid_out)}" if plan.laid_out else ""),
        f"       {held}",
        f"step   {plan.per_step:,.0f} {plan.counted}, {plan.parameters:,} parameters",
        f"       {plan.step_flops:.3g} FLOPs; MFU is made of {plan.model_flops:.3g}"
        + (f"; {plan.traffic:.3g} bytes to and from memory" if plan.traffic else "")
        + (" of each device" if plan.mesh and plan.traffic else ""),
        f"       at full rates: {seconds}"
        + (
            f"; so {plan.per_step / plan.estimate:,.0f} {plan.counted} a second, MFU {plan.mfu:.0%}"
            if plan.estimate
            else ""
        ),
        *_taken(plan),
        *([f"mesh   {mesh}; memory is each device's"] if mesh else []),
        *(f"kernel {kernel}" for kernel in plan.attention),
        *(
            f"{'       ' if place else 'arrays '}{held.count} x {_size(held.nbytes)} {held.shape} "
            f"{held.site or '-'}"
            for place, held in enumerate(plan.largest)
        ),
    ]
    lines += [f"starts {kernels}, ..."] if kernels else []
    if plan.made_up:
        lines.append("note   the text was not found; its shapes are those of the config")
    return lines if plan.fits else [*lines, "--remedies tries changes that save memory"]


def _taken(plan: "Plan") -> list[str]:
    """Returns lines that describe the measured steps, or none."""
    if plan.taken is None:
        return []
    times = sorted(plan.taken["seconds"])
    middle = statistics.median(times)
    over = f", {middle / plan.estimate:.2f} times the estimate" if plan.estimate else ""
    held = "" if plan.taken["memory"] is None else f"; at most {_size(plan.taken['memory'])} held"
    return [
        f"taken  {1e3 * middle:,.1f} ms a step ({1e3 * times[0]:,.1f} to {1e3 * times[-1]:,.1f})"
        f"{over}; {plan.per_step / middle:,.0f} {plan.counted} a second{held}"
    ]


def _size(nbytes: float) -> str:
    return f"{nbytes / _GIB:.2f} GiB" if nbytes >= _GIB / 10 else f"{nbytes / (1 << 20):.1f} MiB"


def _compared(plans: "dict[str, Plan]") -> list[str]:
    """Returns the lines of a table with one plan per line."""
    width = max(map(len, plans))
    taken = f"  {'taken':>9}" if any(plan.taken for plan in plans.values()) else ""
    rows = [f"{'':{width}}  {'memory':>10}  fits  {'FLOPs':>8}  {'ms':>9}  {'MFU':>4}{taken}"]
    for name, plan in plans.items():
        needs = _size(plan.needed) if plan.needed else "?"
        speed = f"{1e3 * plan.estimate:9.1f}  {plan.mfu:4.0%}" if plan.estimate else f"{'-':>9}"
        rows.append(
            f"{name:{width}}  {needs:>10}  {'yes' if plan.fits else 'no':4}  "
            f"{plan.step_flops:8.3g}  {speed}"
            + (f"  {1e3 * statistics.median(plan.taken['seconds']):9.1f}" if plan.taken else "")
        )
    return rows


if __name__ == "__main__":
    execute(main)
