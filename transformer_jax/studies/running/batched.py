"""Many runs at once: arms that differ in numbers alone share a program, and members go in step.

Four ways to compute the members of a study:
  loop     one after another in one program a structure; the bits are those of single runs
  scan     several members in one call, one after another inside it; the same bits
  devices  members spread over the devices, which work at the same time; the same bits
  vmap     several members in one batched program; the bits differ, by about 1e-6 of a loss
A pair never mixes them: what vmap computed has cells of its own.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.programs import differing, stacked, unstacked, with_numbers
from transformer_jax.studies.asking.cells import ALONE, TOGETHER, Cell
from transformer_jax.training.coroutine import RunCoroutine, StepRequest, StepResult
from transformer_jax.training.memory import (
    device_memory,
    host_memory,
    laid_out_bytes,
    refuse_beyond_memory,
)
from transformer_jax.training.prepared import Prepared

_MOST_MEMBERS = 32
_SHARE_OF_MEMORY = 0.6
_NO_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory")


def computed(how: str) -> str:
    """Which bits a way gives: alone or together."""
    return TOGETHER if how == "vmap" else ALONE


class CompiledMembers(NamedTuple):
    """A compiled program for so many members.

    Attributes:
      run: (numbers, seeds, states, batches, nums of steps), lists -> states, records, lists.
      seconds: that compiling took.
      nbytes: of arguments, results and what is between them.
    """

    run: Callable
    seconds: float
    nbytes: int


class Group:
    """Arms whose steps are one program up to numbers."""

    def __init__(self, arms: Mapping[str, Prepared], how: str) -> None:
        """Compiles nothing yet.

        Args:
          arms: name -> what is trained; all of one structure.
          how: a row of HOWS (cells.py).
        """
        self.arms, self.how = dict(arms), how
        traces = [prepared.traced for prepared in arms.values()]
        self.places = differing(traces)
        self._advance = with_numbers(traces[0], self.places)
        self._programs: dict[int, CompiledMembers] = {}

    def numbers(self, arm: str) -> tuple[np.ndarray, ...]:
        """The numbers in which an arm differs from others of the group."""
        numbers = self.arms[arm].traced.numbers
        return tuple(numbers[index] for index in self.places)

    def program(self, width: int, arguments: Sequence[tuple]) -> CompiledMembers:
        """Returns the program for so many members, compiled once.

        Args:
          width: members.
          arguments: of one call with that many members.
        """
        if width not in self._programs:
            started = time.monotonic()
            make = _spread if self.how == "devices" else _compiled
            run, nbytes = make(self.how, self._advance, arguments)
            refuse_beyond_memory(nbytes // width, next(iter(self.arms.values())).config)
            self._programs[width] = CompiledMembers(run, time.monotonic() - started, nbytes)
        return self._programs[width]

    @property
    def nbytes_of_one(self) -> int:
        """Memory that a member needs, of the widest program so far; 0 before any was compiled."""
        widest = max(self._programs, default=0)
        return self._programs[widest].nbytes // widest if widest else 0

    def answer(self, calls: Sequence[tuple[str, StepRequest]], width: int) -> list[StepResult]:
        """Computes what members want, all of them in one call of the program.

        Args:
          calls: of (arm, call); at most `width`.
          width: members that the program is compiled for; missing ones stand still.
        """
        rows: list[tuple] = [(self.numbers(arm), *call.arguments) for arm, call in calls]
        rows += [(*rows[-1][:-1], np.int32(0))] * (width - len(rows))
        try:
            program = self.program(width, rows)
            started = time.monotonic()
            states, records = program.run(*[list(column) for column in zip(*rows, strict=True)])
            records = jax.tree.map(np.asarray, records)
        except Exception as error:
            if len(calls) == 1 or not any(text in str(error) for text in _NO_MEMORY):
                raise
            half = (len(calls) + 1) // 2  # they did not fit together
            parts = (calls[:half], calls[half:])
            return [answer for part in parts for answer in self.answer(part, len(part))]
        seconds = time.monotonic() - started
        return [
            StepResult(state, record, seconds)
            for state, record, _ in zip(states, records, calls, strict=False)
        ]


def _compiled(how: str, advance: Callable, arguments: Sequence[tuple]) -> tuple[Callable, int]:
    """One program for all members, and its memory."""
    columns = [list(column) for column in zip(*arguments, strict=True)]
    donated = (2,) if how == "loop" else ()
    compiled = jax.jit(_WAYS[how](advance), donate_argnums=donated).lower(*columns).compile()
    return compiled, laid_out_bytes(compiled)


def _spread(how: str, advance: Callable, arguments: Sequence[tuple]) -> tuple[Callable, int]:
    """The program of one member on every device, and their memory together.

    Devices work at the same time, each on its share of the members; a member's program is the one
    that it has alone, so its bits are the same.
    """
    devices = jax.devices()[: len(arguments)]
    step = jax.jit(advance)
    programs = [step.lower(*jax.device_put(arguments[0], device)).compile() for device in devices]

    def run(*columns: list) -> tuple[list, list]:
        results = []
        for index, row in enumerate(zip(*columns, strict=True)):
            device_index = index % len(devices)
            results.append(programs[device_index](*jax.device_put(row, devices[device_index])))
        return [state for state, _ in results], [records for _, records in results]

    return run, laid_out_bytes(programs[0]) * len(arguments)


def _one_after_another(advance: Callable) -> Callable:
    def run(*columns: list) -> tuple[list, list]:
        results = [advance(*row) for row in zip(*columns, strict=True)]
        return [state for state, _ in results], [records for _, records in results]

    return run


def _members(apply: Callable[[Callable, Any], Any]) -> Callable[[Callable], Callable]:
    """A way that gets all members stacked."""

    def way(advance: Callable) -> Callable:
        def run(*columns: list) -> tuple[list, list]:
            rows = stacked(list(zip(*columns, strict=True)))
            states, records = apply(lambda row: advance(*row), rows)
            count = len(columns[0])
            return unstacked(states, count), unstacked(records, count)

        return run

    return way


_WAYS: dict[str, Callable[[Callable], Callable]] = {
    "loop": _one_after_another,
    "scan": _members(jax.lax.map),
    "vmap": _members(lambda function, rows: jax.vmap(function)(rows)),
}


def group_arms(arms: Mapping[str, Prepared], how: str) -> list[Group]:
    """Returns the arms by what they can share.

    Args:
      arms: name -> what is trained.
      how: a row of HOWS (cells.py). Where the bits have to be those of single runs, arms whose
        divisors differ (dropout rates) do not share.
    """
    groups: dict[str, dict[str, Prepared]] = {}
    for name, prepared in arms.items():
        key = prepared.traced.structure if how == "vmap" else prepared.traced.exact
        groups.setdefault(key, {})[name] = prepared
    return [Group(members, how) for members in groups.values()]


def first_arguments(prepared: Prepared) -> tuple:
    """Real arguments of the first step from seed 0."""
    state = prepared.draw(np.uint32(0))
    return np.uint32(0), state, prepared.stacked_batches(0, 0, 1), np.int32(1)


# ---------------------------------------------------------------- how many at once


def members_at_once(group: Group, most: int, nbytes_of_one: int) -> int:
    """Returns how many members go together: as many as are wanted and fit into memory.

    Args:
      group: of arms.
      most: members at hand.
      nbytes_of_one: that one member needs.
    """
    if group.how == "loop":
        return 1
    there = device_memory(jax.devices()[0]) or host_memory()
    fits = int(_SHARE_OF_MEMORY * there / max(nbytes_of_one, 1))
    return max(1, min(most, fits, _MOST_MEMBERS))


# ---------------------------------------------------------------- running them


Member = tuple[Cell, RunCoroutine]  # a run that is to go on, and where it belongs


def run_together(
    group: Group,
    members: Sequence[Member],
    ended: Callable[[Cell, BaseException | None], None],
) -> None:
    """Drives runs in step until each has ended; the end of one does not touch the others.

    Args:
      group: of their arms.
      members: as many as the program is compiled for.
      ended: is told of each cell's end, and of the error that ended it.
    """
    waiting: list[tuple[Member, StepRequest]] = []

    def go_on(
        member: Member, answer: StepResult | None, error: BaseException | None = None
    ) -> None:
        cell, coroutine = member
        try:
            if error is not None:
                coroutine.throw(error)  # it leaves its directory in order and raises
            call = coroutine.send(answer) if answer else next(coroutine)
            waiting.append((member, call))
        except StopIteration:
            ended(cell, None)
        except Exception as fault:
            ended(cell, fault)

    for member in members:
        go_on(member, None)
    while waiting:
        calls, waiting[:] = list(waiting), []
        try:
            answers = group.answer([(cell.arm, call) for (cell, _), call in calls], len(members))
        except Exception as error:
            for member, _ in calls:
                go_on(member, None, error)
            continue
        for (member, _), answer in zip(calls, answers, strict=True):
            go_on(member, answer)
