"""Resources that a config's training step needs on a device, according to its compiler."""

import dataclasses
import math
import time
from collections.abc import Collection
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from ml_collections import ConfigDict

from transformer_jax.config_files import own_modules
from transformer_jax.data.sources.files import EMBEDDED, OwnSource, is_there
from transformer_jax.data.tasks import traits_of
from transformer_jax.data.tokenizers import ByteTokenizer
from transformer_jax.errors import InvalidInput
from transformer_jax.own import names_own
from transformer_jax.planning.devices import Device
from transformer_jax.planning.hlo import Buffer, kernels, largest_buffers, traffic_of
from transformer_jax.runs.provenance import versions_of
from transformer_jax.training.announcement import kernels_of
from transformer_jax.training.build import make_task
from transformer_jax.training.flops import flops_of
from transformer_jax.training.memory import bytes_refused, laid_out_bytes, nbytes, peak_bytes
from transformer_jax.training.prepared import Prepared, prepare

_LARGEST = 5
_CALLS = 3  # timed calls, after one that is not timed
_COMPILERS = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin")


@dataclasses.dataclass(frozen=True)
class Plan:
    """Resources of one training step on a device, or on each of several.

    `estimate` is the time of a step in the roofline model (Williams et al. 2009): the larger of
    `seconds`. It is too large if arrays stay in a cache, and leaves communication out.
    """

    device: str
    mesh: dict[str, int]  # devices by axis; {} for one device
    changes: dict[str, Any]  # of the config, for this plan
    fits: bool
    memory: int  # bytes available to a program
    needed: int | None  # peak bytes, or None if the compiler failed without saying
    # Bytes of arguments and temporaries as placed by the compiler, with gaps; with spare room,
    # libtpu takes more than needed. None if the compiler failed.
    laid_out: int | None
    # Parts of the needed bytes: parameters, optimizer, batches, and the rest, which the step
    # itself keeps (activations, gradients, scratch).
    held: dict[str, int]
    parameters: int
    per_step: float  # tokens or examples (see `counted`) per update
    counted: str
    model_flops: float  # FLOPs of three forward passes' products, the basis of MFU
    step_flops: float  # FLOPs of products on all devices, including recomputed ones
    # Bytes to and from memory, by the compiler's count (see bytes_accessed) or, if it counts none,
    # by that of hlo.traffic_of. None if the compiler failed.
    traffic: float | None
    seconds: dict[str, float]  # at the device's full rates: for products, and for traffic if known
    estimate: float | None  # seconds of a step, or None if the traffic is not known
    mfu: float | None  # according to `estimate`; None if that is None
    largest: tuple[Buffer, ...]
    kernels: dict[str, int]  # number by kind; see hlo.kernels
    compile_seconds: float  # on this machine
    made_with: dict[str, str]  # versions of the compiler's packages
    attention: tuple[str, ...]  # implementations of fused attention
    made_up: bool  # whether the text was missing, so that only its shapes are those of the config
    taken: dict[str, Any] | None  # see _take; None if no step was taken


def make_plan(
    config: ConfigDict,
    device: Device,
    changes: dict[str, Any] | None = None,
    thorough: bool = False,
    allow: Collection[str] = (),
    steps: int = 0,
) -> Plan:
    """Returns a plan of a config's training step, which is compiled for a device as in a run.

    The config has been checked and includes the `changes`, which the plan names. If batches grow
    in training, the step is one with the largest batch. If `thorough`, the
    compiler uses its default options, not those for quick compilation. If `steps` is not 0, steps
    are also taken, which needs a device of this machine.

    Raises:
      InvalidInput: The data is needed and missing, or the model cannot be made.
    """
    task, target = stand_in(config, allow), device.targets[0]
    prepared = prepare(config, allow=allow, task=task, devices=device.targets)
    compiled, needed, laid_out, traffic, text = None, None, None, None, ""
    prepared = prepared.largest
    started = time.monotonic()
    try:
        compiled = lowered_for(prepared, target).compile(
            compiler_options={} if thorough else device.quick_options
        )
    except jax.errors.JaxRuntimeError as error:
        refused = bytes_refused(error)
        if refused is None:
            raise
        needed = refused or None
    seconds = time.monotonic() - started
    mesh = {} if prepared.sharding is None else dict(prepared.sharding.mesh.shape)
    step_flops = flops_of(jax.make_jaxpr(prepared.advance)(*prepared.shapes))
    flops_here = step_flops / math.prod(mesh.values())
    if compiled is not None:
        needed, text = peak_bytes(compiled, target.platform), compiled.as_text()
        laid_out = laid_out_bytes(compiled)
        traffic = bytes_accessed(compiled, flops_here, config) or traffic_of(text)
    held = {
        "parameters": nbytes((prepared.template.params, prepared.template.state)),
        "optimizer": nbytes(prepared.template.opt_state),
        "batches": nbytes(prepared.shapes[2]),
    }
    if needed:
        held["the step"] = max(0, needed - sum(held.values()))
    fits = compiled is not None and needed is not None and needed <= device.memory
    bounds = {"products": flops_here / device.rates[config.model.dtype]}
    estimate = mfu = None
    model_flops = prepared.operations_of_update
    if traffic is not None:
        bounds["traffic"] = traffic / device.bandwidth
        estimate = max(bounds.values())
        mfu = model_flops / step_flops * bounds["products"] / estimate
    return Plan(
        device=device.name,
        mesh={axis: size for axis, size in mesh.items() if size > 1},
        changes=changes or {},
        fits=fits,
        memory=device.memory,
        needed=needed,
        laid_out=laid_out,
        held=held,
        parameters=prepared.num_parameters,
        per_step=prepared.count_of_update,
        counted=prepared.task.counted,
        model_flops=model_flops,
        step_flops=step_flops,
        traffic=traffic,
        seconds=bounds,
        estimate=estimate,
        mfu=mfu,
        largest=tuple(largest_buffers(text, _LARGEST)),
        kernels=kernels(text),
        compile_seconds=seconds,
        made_with=versions_of(_COMPILERS),
        attention=tuple(kernels_of(prepared, target.platform)),
        made_up=task is not None,
        taken=_take(prepared, compiled, target, steps) if fits and steps else None,
    )


def bytes_accessed(compiled: Any, flops: float, config: ConfigDict) -> float | None:
    """Returns the bytes that a step accesses: the compiler's count, scaled to all repeats of loops.

    The compiler counts the body of a loop once. Parts of an accumulated batch and scanned blocks
    are loops, so its count is multiplied by the ratio of all operations to counted operations, but
    at most by the number of repeats of these loops. Returns None if the compiler counts no bytes.
    `flops` is the number of operations in a step's products on one device, with all repeats.
    """
    analysis = compiled.cost_analysis() or {}
    accessed, counted = analysis.get("bytes accessed"), analysis.get("flops", 0.0)
    if not accessed:
        return None
    model = config.model
    blocks = model.depth // max(1, len(model.layers)) if model.scan_layers else 1
    repeats = float(config.training.accumulation * max(blocks, 1))
    missed = flops / counted if counted > 0 else repeats
    return accessed * min(max(missed, 1.0), repeats)


def _take(prepared: Prepared, compiled: Any, device: Any, steps: int) -> dict[str, Any]:
    """Takes one step, then makes several calls of `steps` steps each; returns measurements.

    `seconds` holds the seconds per step in each of these calls. `memory` is the peak in bytes, or
    None if the device does not report a peak or this process used more before.
    """

    def most_held() -> int:
        return (device.memory_stats() or {}).get("peak_bytes_in_use", 0)

    later = [start for start in prepared.starts if start > prepared.first]
    reached = min(later, default=prepared.first + steps) - prepared.first
    before, count = most_held(), min(steps, prepared.capacity, reached)
    seconds: list[float] = []
    with jax.default_device(device):
        state, batches = (
            prepared.draw(np.uint32(0)),
            prepared.stacked_batches(0, prepared.first, count),
        )
        for number in (1, *[count] * _CALLS):
            arguments = (prepared.numbers(), state, batches, np.int32(number))
            arguments = jax.block_until_ready(jax.device_put(prepared.on_devices(arguments)))
            started = time.perf_counter()
            state, _ = jax.block_until_ready(compiled(*arguments))
            seconds.append((time.perf_counter() - started) / number)
    held = most_held()
    return {"seconds": seconds[1:], "memory": held if held > before else None}


def lowered_for(prepared: Prepared, device: Any) -> Any:
    """Returns a run's program, lowered for its sharding, or for the device if it has none."""
    mesh = prepared.sharding
    elsewhere = SingleDeviceSharding(device) if mesh is None else mesh.everywhere

    def placed(leaf: Any) -> jax.ShapeDtypeStruct:
        sharding = getattr(leaf, "sharding", None) or elsewhere
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    shapes = jax.tree.map(placed, prepared.shapes)
    return jax.jit(prepared.advance, donate_argnums=1).lower(*shapes)


def stand_in(config: ConfigDict, allow: Collection[str] = ()) -> Any:
    """Returns a task over made-up text if the text that a config names is missing, else None.

    A plan needs only shapes, and for a text these follow from the config.

    Raises:
      InvalidInput: The size of the vocabulary is unknown.
    """
    data = config.data
    is_own = names_own("data.source", data.source)
    if traits_of(data.task).source != "text" or is_own or is_there(data.source, "text"):
        return None
    sizes = {"byte": 256, **dict.fromkeys(("bpe", "word", "numbers"), data.vocab_size)}
    if data.tokenizer not in sizes:
        raise InvalidInput(
            f"data.source={data.source}: no such file or folder; embedded text: "
            f"{', '.join(EMBEDDED['text'])}\nto plan without the text, set data.tokenizer=bpe and "
            "data.vocab_size"
        )
    length = math.ceil(4 * data.length / min(data.splits))
    letters = bytes(range(32, 127)) * math.ceil(length / 95)
    source = OwnSource(data.source, lambda: [letters.decode()])
    tokenizer = ByteTokenizer()
    tokenizer.vocab_size = sizes[data.tokenizer]
    alone = dict.fromkeys(("validation_source", "test_source", "validation_tokens"))
    return make_task(config, tokenizer, own_modules(config) | set(allow), source=source, **alone)
