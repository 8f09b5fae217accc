"""What a compiled program moves and keeps, read from its text.

XLA's own `cost_analysis` counts the body of a loop once, however often it runs. Here a body counts
as often as its condition says: a scan is a loop whose condition compares a counter with a constant.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator

_ARRAY = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")
_NAME = re.compile(r"%([\w.\-~]+)")
_HEAD = re.compile(r"(ENTRY )?%([\w.\-~]+) \(.*\{$")
_FREE = {
    *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "while"),
    *("conditional", "call", "partition-id", "replica-id", "opt-barrier", "async-start"),
}
_OF_NAME = {  # parts of an op_name that are no module's
    *("while", "body", "cond", "scan", "checkpoint", "rematted_computation", "closed_call"),
    *("remat", "pjit", "custom_jvp_call", "custom_vjp_call", "core_call", "eval_jaxpr", "_Alone"),
}


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a program.

    Attributes:
      name: in its computation.
      operation: dot, fusion, while, ...
      shape: of the result as it is written.
      operands: names.
      rest: attributes as they are written.
      is_root: whether its result is that of the computation.
    """

    name: str
    operation: str
    shape: str
    operands: tuple[str, ...]
    rest: str
    is_root: bool

    @functools.cached_property
    def nbytes(self) -> float:
        """Size of the result in the device's main memory."""
        return sum(map(_nbytes, _ARRAY.finditer(self.shape)))

    @property
    def elements(self) -> float:
        """Bytes of the result's numbers, wherever they are and without what tiles pad."""
        arrays = _ARRAY.finditer(self.shape)
        return sum(_size_of(a[1]) * math.prod(_lengths(a[2])) for a in arrays)

    @property
    def group_size(self) -> int:
        """How many devices a collective joins; 1 if it does not say.

        Written as {{0,1},{2,3}}, as [4,2]<=[8], or as axes of a mesh, of which an axis may be named
        in part, 'x':(1)2.
        """
        listed = re.search(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])", self.rest)
        if listed:
            return int(listed[2]) if listed[2] else len(listed[1].split(","))
        meshed = re.search(r"replica_groups=mesh\[([^\]]*)\].*? \{([^}]*)\}", self.rest)
        if not meshed:
            return 1
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", meshed[1]))
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", meshed[2])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)

    def called(self, *attributes: str) -> list[str]:
        """The computations that attributes name: calls, body, condition, to_apply."""
        return re.findall(rf"\b(?:{'|'.join(attributes)})=%([\w.\-~]+)", self.rest)

    @property
    def number(self) -> int:
        """What stands in the brackets of a parameter or of a constant; -1 if that is no number."""
        inside = self.rest.partition("(")[2].partition(")")[0]
        return int(inside) if inside.isdecimal() else -1

    @property
    def site(self) -> str:
        """Which module computes it, as scopes of the model say; empty if none is known."""
        match = re.search(r'op_name="([^"]*)"', self.rest)
        return _site_of(match.group(1)) if match else ""


@dataclasses.dataclass(frozen=True)
class Held:
    """An array that a program makes.

    Attributes:
      nbytes: its size.
      shape: dtype and lengths of the axes.
      site: which module makes it, with * for the number of a block; `gradient of` it in the
        backward pass.
      count: how many arrays this is said of; not all are kept at the same time.
    """

    nbytes: int
    shape: str
    site: str
    count: int = 1


@dataclasses.dataclass(frozen=True)
class Sent:
    """What a device sends to others in operations of one kind.

    Attributes:
      kind: all-gather, all-reduce, reduce-scatter, all-to-all or collective-permute.
      site: which module asks for it, see Held.
      nbytes: that one device sends when the program runs once, by a ring where there are more than
        two.
      count: how often.
    """

    kind: str
    site: str
    nbytes: float
    count: int


# Kind of a collective -> bytes that each of n devices sends, by a ring, of an operand of one byte.
_SENDS = {
    "all-gather": lambda n: n - 1,
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
}


class Program:
    """The computations of a compiled module."""

    def __init__(self, text: str) -> None:
        """Reads what `Compiled.as_text` gives."""
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry = ""
        self._traffic_by_name: dict[str, float] = {}
        lines: dict[str, Instruction] = {}
        for line in text.splitlines():
            head = _HEAD.match(line)
            if head:
                lines = self.computations[head.group(2)] = {}
                self.entry = head.group(2) if head.group(1) else self.entry
            elif line.startswith("  ") and " = " in line:
                instruction = _read(line.strip())
                lines[instruction.name] = instruction

    def traffic(self) -> float:
        """Returns bytes that go to or come from main memory when the program runs once.

        A fusion reads its operands and writes its result, what is inside stays in registers; of an
        array of which only a part is read or written that part counts. Of branches the dearest
        counts. A loop whose length is not known (that over the steps of a call) counts once.
        """
        return self._traffic(self.entry)

    def largest(self, count: int) -> list[Held]:
        """Returns the largest arrays that are computed, those of one shape and site as one."""
        counts: dict[Held, int] = collections.Counter()
        for name in self._reached(self.entry):
            for each in self.computations[name].values():
                if each.operation in _FREE or each.operation.endswith("-done"):
                    continue
                for array in _ARRAY.finditer(each.shape):
                    shape = f"{array.group(1)}[{array.group(2)}]"
                    counts[Held(int(_nbytes(array)), shape, each.site)] += 1
        counted = [dataclasses.replace(held, count=number) for held, number in counts.items()]
        return sorted(counted, key=lambda held: (-held.nbytes, -held.count))[:count]

    def sent(self) -> list[Sent]:
        """Returns what a device sends to others, by kind and site, most first."""
        by_site: dict[tuple[str, str], list[float]] = {}
        for each, inside, lines, times in self._run(self.entry, 1):
            kind = each.operation.removesuffix("-start")
            if kind == "all-reduce" and "all-reduce-scatter" in inside:  # as TPUs write it
                kind = "reduce-scatter"
            if kind in _SENDS:
                operands = sum(lines[name].elements for name in each.operands if name in lines)
                nbytes = _SENDS[kind](each.group_size) * operands
                entry = by_site.setdefault((kind, each.site), [0.0, 0])
                entry[0] += times * nbytes
                entry[1] += times
        collectives = [
            Sent(*key, nbytes, int(count)) for key, (nbytes, count) in by_site.items() if nbytes
        ]
        return sorted(collectives, key=lambda sent: -sent.nbytes)

    def _run(
        self, name: str, times: int
    ) -> Iterator[tuple[Instruction, str, dict[str, Instruction], int]]:
        """Every instruction with its computation, the lines of that, and how often it runs."""
        lines = self.computations[name]
        for each in lines.values():
            yield each, name, lines, times
            if each.operation == "while":
                inner, often = each.called("body"), times * self._trips(each)
            elif each.operation == "conditional":
                inner, often = [max(_computations_of(each), key=self._traffic)], times
            elif each.operation in ("fusion", "call", "async-start"):
                inner, often = each.called("to_apply", "calls"), times
            else:
                continue
            for computation in inner:
                if computation in self.computations:
                    yield from self._run(computation, often)

    def _reached(self, name: str) -> Iterator[str]:
        """Computations whose results are in memory: not those inside fusions."""
        yield name
        for each in self.computations[name].values():
            if each.operation in ("while", "conditional", "call", "async-start"):
                for inner in _computations_of(each):
                    if inner in self.computations:
                        yield from self._reached(inner)

    def _traffic(self, name: str) -> float:
        if name not in self._traffic_by_name:
            lines = self.computations[name]
            counted = sum(self._traffic_of(each, lines) for each in lines.values())
            self._traffic_by_name[name] = counted
        return self._traffic_by_name[name]

    def _traffic_of(self, each: Instruction, lines: dict[str, Instruction]) -> float:
        operation = each.operation
        sizes = [lines[name].nbytes for name in each.operands if name in lines]
        if operation == "while":
            return self._trips(each) * sum(map(self._traffic, each.called("body")))
        if operation == "conditional":
            return max(map(self._traffic, _computations_of(each)))
        if operation in ("call", "async-start"):
            return sum(map(self._traffic, each.called("to_apply", "calls")))
        if operation in _FREE or operation.endswith("-done"):
            return 0.0
        if operation == "fusion":
            return self._traffic_of_fusion(each, sizes)
        if operation in ("dynamic-slice", "slice", "gather"):
            return 2 * each.nbytes
        if operation == "dynamic-update-slice":
            return 2 * sizes[1]
        if operation == "scatter":
            return 3 * sizes[-1]
        if operation.endswith("-start") and operation != "all-reduce-start":
            return each.nbytes  # its result names its operands too
        return sum(sizes) + each.nbytes

    def _traffic_of_fusion(self, fusion: Instruction, sizes: list[float]) -> float:
        inner = self.computations[fusion.called("calls")[0]]
        parameters = [each for each in inner.values() if each.operation == "parameter"]
        parameters.sort(key=lambda each: each.number)
        read = sum(
            min(size, self._part_read(parameter, inner))
            for parameter, size in zip(parameters, sizes, strict=False)
        )
        root = next(each for each in inner.values() if each.is_root)
        if root.operation == "tuple":
            return read + sum(_written(inner[name], inner) for name in root.operands)
        return read + min(fusion.nbytes, _written(root, inner))

    def _part_read(self, parameter: Instruction, lines: dict[str, Instruction]) -> float:
        """Bytes of a fusion's operand that are read, in fusions inside it too."""
        total = 0.0
        for user, name in _users(parameter.name, lines):
            if user.operation in ("dynamic-slice", "slice", "gather") and user.operands[0] == name:
                total += user.nbytes
            elif user.operation == "dynamic-update-slice" and user.operands[0] == name:
                continue  # written in place
            elif user.operation == "fusion":
                inner = self.computations[user.called("calls")[0]]
                for each in inner.values():
                    if each.operation == "parameter" and user.operands[each.number] == name:
                        total += self._part_read(each, inner)
            else:
                return math.inf
        return total

    def _trips(self, loop: Instruction) -> int:
        """How often a loop runs, if its condition compares a counter with a constant; else 1.

        The counter starts at 0; one that XLA unrolled goes up by more than 1 in a body.
        """
        seen = self.computations[loop.called("condition")[0]]
        root = next(each for each in seen.values() if each.is_root)
        if root.operation == "fusion":  # which gets the constant
            inner = self.computations[root.called("calls")[0]]
            outside = [seen[name] for name in root.operands]
            seen = {
                name: outside[each.number] if each.operation == "parameter" else each
                for name, each in inner.items()
            }
            root = next(each for each in inner.values() if each.is_root)
        if root.operation != "compare" or "direction=LT" not in root.rest:
            return 1
        counter, limit = (seen[name] for name in root.operands)
        if limit.operation != "constant" or limit.number < 0:
            return 1
        return -(-limit.number // self._step_of(counter, loop.called("body")[0]))

    def _step_of(self, counter: Instruction, body: str) -> int:
        """By how much a body adds to a counter; 1 where that cannot be read."""
        index = re.search(r"\bindex=(\d+)", counter.rest)
        lines = self.computations[body]
        root = next(each for each in lines.values() if each.is_root)
        if index is None or root.operation != "tuple":
            return 1
        each, step = lines[root.operands[int(index[1])]], 0
        while each.operation in ("add", "copy", "bitcast"):
            others = []
            for name in each.operands:
                if lines[name].operation == "constant":
                    step += lines[name].number
                else:
                    others.append(lines[name])
            if len(others) != 1:
                return 1
            each = others[0]
        return max(step, 1)


def _users(name: str, lines: dict[str, Instruction]) -> Iterator[tuple[Instruction, str]]:
    """Who takes a value, behind what only renames it, and under which name."""
    for each in lines.values():
        if name in each.operands:
            if each.operation in ("bitcast", "reshape", "copy", "convert") and not each.is_root:
                yield from _users(each.name, lines)
            else:
                yield each, name


def _written(root: Instruction, lines: dict[str, Instruction]) -> float:
    """Bytes that a fusion's result adds to memory: a part that is put in place counts alone."""
    inner = root
    while inner.operation in ("bitcast", "reshape", "copy", "convert") and inner.operands:
        inner = lines[inner.operands[0]]
    if inner.operation == "dynamic-update-slice":
        return 2 * lines[inner.operands[1]].nbytes
    return root.nbytes


def _computations_of(each: Instruction) -> list[str]:
    """The computations that an instruction runs."""
    branches = re.search(r"branch_computations=\{([^}]*)\}", each.rest)
    if branches:
        return _NAME.findall(branches.group(1))
    return each.called("body", "true_computation", "false_computation", "to_apply", "calls")


def _read(line: str) -> Instruction:
    """Reads `ROOT %name = shape operation(%a, %b), attributes`."""
    left, right = line.split(" = ", 1)
    end = _closing(right) + 1 if right.startswith("(") else right.index(" ")
    shape, right = right[:end], right[end:].lstrip()
    opened = right.index("(")
    closed = opened + _closing(right[opened:])
    inside = right[opened + 1 : closed]
    return Instruction(
        left.removeprefix("ROOT ").removeprefix("%"),
        right[:opened],
        shape,
        tuple(_NAME.findall(inside)),
        right if right.startswith(("parameter", "constant")) else right[closed + 1 :],
        left.startswith("ROOT "),
    )


def _closing(text: str) -> int:
    """Where the bracket closes that a text begins with."""
    depth = 0
    for bracket in re.finditer(r"[()]", text):
        depth += 1 if bracket.group() == "(" else -1
        if depth == 0:
            return bracket.start()
    raise ValueError(f"no closing bracket in {text[:80]!r}")


def _nbytes(array: re.Match) -> float:
    """Size of an array in main memory, with what its tiles pad; 0 if it is kept on the chip."""
    dtype, lengths, order, layout = array.groups()
    layout = layout or ""
    if re.search(r"S\([1-46-9]\)", layout):  # 5 is the host's memory
        return 0.0
    size, shape = _size_of(dtype), _lengths(lengths)
    tile = re.match(r"T\(([\d,]+)\)", layout)
    if tile and shape and order:
        minor_first = [int(axis) for axis in order.split(",")]
        for axis, multiple in zip(minor_first, reversed(tile.group(1).split(",")), strict=False):
            shape[axis] = math.ceil(shape[axis] / int(multiple)) * int(multiple)
    return math.prod(shape) * size


def _size_of(dtype: str) -> float:
    """Bytes of a number."""
    bits = re.search(r"\d+", dtype)  # f8e4m3fn has 8
    return int(bits.group()) / 8 if bits else float(dtype == "pred")


def _lengths(text: str) -> list[int]:
    return [int(length) for length in text.split(",") if length]


def _site_of(op_name: str) -> str:
    """A module's path out of `jit(advance)/while/body/transpose(jvp(Decoder))/block_0/...`.

    What XLA made one has several names, `jit(advance)/(first:second)`: the first and their number.
    """
    common, _, merged = op_name.partition("/(")
    first, *others = merged.split(":")
    more = f" and {len(others)} more" if others else ""
    op_name = (f"{common}/{first}" if others else op_name).partition(";")[0]
    parts = []
    for part in re.split(r"/(?![^(]*\))", op_name):
        part = re.sub(r"^(?:transpose\(|jvp\(|vmap\(|checkpoint\()+|\)+$", "", part)
        # What begins with a capital is the model, or a method of it.
        if part and part not in _OF_NAME and not re.match(r"jit\(|branch_|[A-Z]", part):
            parts.append(re.sub(r"^block_\d+$", "block_*", part))
    site = "/".join(parts)
    return f"gradient of {site}{more}" if "transpose(" in op_name and site else site + more
