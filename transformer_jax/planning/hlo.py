"""The largest buffers and the kernels of a compiled program, read from its text."""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator

_COMPUTATION = re.compile(r"(ENTRY )?%([\w.\-~]+) \(.*\{$")
_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?%?([\w.\-~]+) = (\((?:[^()]|\([^()]*\))*\)|\S+) ([\w\-]+)\("
)
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")
_CALLED = re.compile(
    r"\b(?:body|to_apply|true_computation|false_computation|calls)=%([\w.\-~]+)"
    r"|branch_computations=\{([^}]*)\}"
)
# Instructions that make no buffer and start no kernel.
_FREE = {
    *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "while"),
    *("conditional", "call", "partition-id", "replica-id", "opt-barrier", "async-start"),
}
_CALLS = {"while", "conditional", "call", "async-start"}
# Parts of an op_name that do not name a module.
_OF_NAME = {
    *("while", "body", "cond", "scan", "checkpoint", "rematted_computation", "closed_call"),
    *("stack", "blocks"),  # the stack has the model's parameters; a scan of blocks
    *("remat", "pjit", "custom_jvp_call", "custom_vjp_call", "core_call", "eval_jaxpr", "_Alone"),
}


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Arrays of the same shape that the same module makes."""

    nbytes: int  # of one array, including padding to the device's tiles
    shape: str  # dtype and lengths of the axes
    site: str  # the module, * for the number of a block; "gradient of ..." in the backward pass
    count: int  # of arrays; not all are kept at the same time


def largest_buffers(text: str, count: int) -> list[Buffer]:
    """Returns the `count` largest buffers in `text`, a program's `Compiled.as_text()`."""
    found: dict[tuple, int] = collections.Counter()
    for line, shape, _ in _instructions(text):
        for array in _ARRAY.finditer(shape):
            found[_nbytes(array), f"{array[1]}[{array[2]}]", _site_of(line)] += 1
    buffers = [Buffer(*key, number) for key, number in found.items()]
    return sorted(buffers, key=lambda b: (-b.nbytes, -b.count))[:count]


def kernels(text: str) -> dict[str, int]:
    """Returns the number of kernels by kind in a program's text; a loop's body counts once."""
    return dict(collections.Counter(kind for _, _, kind in _instructions(text)).most_common())


def _instructions(text: str) -> Iterator[tuple[str, str, str]]:
    """Yields (line, shape, kind) of each instruction outside fusions that produces a value."""
    lines: dict[str, list[str]] = {}
    current, entry = "", ""
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current, lines[head[2]] = head[2], []
            entry = current if head[1] else entry
        elif current and " = " in line:
            lines[current].append(line)
    waiting, seen = [entry], set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in lines:
            continue
        seen.add(name)
        for line in lines[name]:
            if not (match := _INSTRUCTION.match(line)):
                continue
            _, shape, kind = match.groups()
            if kind in _CALLS:
                for one, several in _CALLED.findall(line):
                    waiting += [one] if one else re.findall(r"%([\w.\-~]+)", several)
            if kind not in _FREE and not kind.endswith("-done"):
                yield line, shape, kind


def _nbytes(array: re.Match) -> int:
    """Returns the bytes of an array in main memory, with padding; 0 if it stays on the chip."""
    dtype, lengths, order, layout = array.groups(default="")
    if re.search(r"S\([1-46-9]\)", layout):  # 5 is the host's memory
        return 0
    bits = re.search(r"\d+", dtype)  # f8e4m3fn has 8
    size = int(bits[0]) / 8 if bits else float(dtype == "pred")
    shape = [int(length) for length in lengths.split(",") if length]
    tile = re.match(r"T\(([\d,]+)\)", layout)
    if tile and shape and order:
        minor_first = [int(axis) for axis in order.split(",")]
        for axis, multiple in zip(minor_first, reversed(tile[1].split(",")), strict=False):
            shape[axis] = math.ceil(shape[axis] / int(multiple)) * int(multiple)
    return int(math.prod(shape) * size)


def _site_of(line: str) -> str:
    """Returns the module path of `op_name="jit(f)/while/body/transpose(jvp(Decoder))/block_0"`.

    A fused operation has several names, `jit(advance)/(first:second)`; the result is the path of
    the first, with the number of other names.
    """
    match = re.search(r'op_name="([^"]*)"', line)
    op_name = match[1] if match else ""
    common, _, merged = op_name.partition("/(")
    first, *others = merged.split(":")
    more = f" and {len(others)} more" if others else ""
    op_name = (f"{common}/{first}" if others else op_name).partition(";")[0]
    parts = []
    for part in re.split(r"/(?![^(]*\))", op_name):
        part = re.sub(r"^(?:transpose\(|jvp\(|vmap\(|checkpoint\()+|\)+$", "", part)
        # A part that begins with a capital is the model, or a method of it.
        if part and part not in _OF_NAME and not re.match(r"jit\(|branch_|[A-Z]", part):
            parts.append(re.sub(r"^block_\d+$", "block_*", part))
    site = "/".join(parts)
    return f"gradient of {site}{more}" if "transpose(" in op_name and site else site + more
