"""The buffers, the kernels and the traffic of a compiled program, read from its text."""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator

_COMPUTATION = re.compile(r"(ENTRY )?%([\w.\-~]+) \(.*\{$")
_MADE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-~]+) = (\((?:[^()]|\([^()]*\))*\)|\S+) ([\w\-]+)\(")
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
_REPEATS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_OPERANDS = re.compile(r"\((.*?)\)(?:, |$)")
_SLICES = {"dynamic-slice", "gather"}
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
    for _, line, shape, _, _ in _instructions(_computations(text)):
        for array in _ARRAY.finditer(shape):
            found[_nbytes(array), f"{array[1]}[{array[2]}]", _site_of(line)] += 1
    buffers = [Buffer(*key, number) for key, number in found.items()]
    return sorted(buffers, key=lambda b: (-b.nbytes, -b.count))[:count]


def kernels(text: str) -> dict[str, int]:
    """Returns the number of kernels that a program starts, by kind.

    A loop counts as often as it runs, or once if the compiler does not know.
    """
    counts: dict[str, int] = collections.Counter()
    for _, _, _, kind, repeats in _instructions(_computations(text)):
        counts[kind] += repeats
    return dict(counts.most_common())


def traffic_of(text: str) -> float:
    """Returns the bytes that the kernels of a program read and write; loops as in `kernels`.

    A kernel reads its operands once and writes its result once. Of an array of which it takes or
    replaces a slice, the slice counts.
    """
    program, total = _computations(text), 0.0
    sizes = {name: _sizes(lines) for name, lines in program.items()}
    for computation, line, shape, kind, repeats in _instructions(program):
        called = re.search(r"\bcalls=%([\w.\-~]+)", line) if kind == "fusion" else None
        inside = program.get(called[1], []) if called else [line]
        operands = _operands(line, kind)
        counted = {name: sizes[computation].get(name, 0) for name in operands}
        result = _bytes_of(shape)
        known = sizes[called[1]] if called else sizes[computation]
        for name, kind_inside, inner in _parsed(inside):
            if kind_inside not in (*_SLICES, "dynamic-update-slice"):
                continue
            first, *others = _operands(inner, kind_inside)
            whole = _parameter(inside, first, operands) if called else first
            if whole is None or whole not in counted:
                continue
            if kind_inside in _SLICES:
                counted[whole] = min(counted[whole], known[name])
            else:
                counted[whole], result = 0, result - known[name] + known.get(others[0], 0)
        total += repeats * (result + sum(counted.values()))
    return total


def _parameter(lines: list[str], name: str, operands: list[str]) -> str | None:
    """Returns the operand of a fusion that a value inside it is, through bitcasts, or None."""
    by_name = {made: (kind, line) for made, kind, line in _parsed(lines)}
    while name in by_name and by_name[name][0] in ("bitcast", "copy", "convert"):
        name = _operands(by_name[name][1], by_name[name][0])[0]
    if name not in by_name or by_name[name][0] != "parameter":
        return None
    index = int(re.search(r" parameter\((\d+)\)", by_name[name][1])[1])  # ty: ignore
    return operands[index] if index < len(operands) else None


def _parsed(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yields (name, kind, line) of each instruction."""
    for line in lines:
        if match := _MADE.match(line):
            yield match[1], match[3], line


def _sizes(lines: list[str]) -> dict[str, int]:
    """Returns the bytes of each value of a computation, by name."""
    matches = filter(None, map(_MADE.match, lines))
    return {match[1]: _bytes_of(match[2]) for match in matches}


def _bytes_of(shape: str) -> int:
    return sum(map(_nbytes, _ARRAY.finditer(shape)))


def _operands(line: str, kind: str) -> list[str]:
    """Returns the names of the operands of an instruction."""
    match = _OPERANDS.search(line, line.index(f" {kind}(") + len(kind) + 1)
    return re.findall(r"%([\w.\-~]+)", match[1]) if match else []


def _computations(text: str) -> dict[str, list[str]]:
    """Returns the lines of each computation by name; the first is the program's entry."""
    lines: dict[str, list[str]] = {}
    current, entry = "", ""
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current, lines[head[2]] = head[2], []
            entry = current if head[1] else entry
        elif current and " = " in line:
            lines[current].append(line)
    return {entry: lines.get(entry, []), **lines}


def _instructions(program: dict[str, list[str]]) -> Iterator[tuple[str, str, str, str, int]]:
    """Yields (computation, line, shape, kind, repeats) of each value made outside fusions."""
    waiting, seen = [(next(iter(program)), 1)], set()
    while waiting:
        name, repeats = waiting.pop()
        if name in seen or name not in program:
            continue
        seen.add(name)
        for line in program[name]:
            if not (match := _MADE.match(line)):
                continue
            _, shape, kind = match.groups()
            if kind in _CALLS:
                known = _REPEATS.search(line)
                inner = repeats * (int(known[1]) if known else 1)
                for one, several in _CALLED.findall(line):
                    called = [one] if one else re.findall(r"%([\w.\-~]+)", several)
                    waiting += [(each, inner) for each in called]
            if kind not in _FREE and not kind.endswith("-done"):
                yield name, line, shape, kind, repeats


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

    A fused operation `jit(f)/(first:second)` gives its first path, with the number of the others.
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
