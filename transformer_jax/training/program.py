"""The compiled training program of one run, or of several runs that differ only in numbers."""

import functools
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.data.tasks import Batch
from transformer_jax.errors import InvalidInput
from transformer_jax.training.memory import GIB, bytes_refused, device_memory, laid_out_bytes
from transformer_jax.training.prepared import Prepared
from transformer_jax.training.step import StepRecord, TrainState


class StepRequest(NamedTuple):
    """Steps requested by a run: the arguments of Prepared.advance."""

    numbers: Mapping[str, np.generic | Array]
    state: TrainState
    batches: Batch
    num_steps: np.int32 | Array


class StepResult(NamedTuple):
    """Result of a StepRequest: the new state and the records of its steps."""

    state: TrainState  # after the steps
    records: StepRecord  # of each step [C], in host memory
    seconds: float  # duration of the call, without compilation
    num_steps: int  # largest number of steps that a member requested


class Program:
    """A compiled program for members: runs that differ only in seeds and traced options.

    With width 1, members are trained one after another, with the program and bits of a single run.
    With a larger width, several are trained together under vmap, which sums in a different order.
    Each then equals a single run up to rounding, and does not depend on the other members.
    """

    def __init__(self, prepared: Prepared, width: int = 1) -> None:
        """Compiles nothing yet; `width` is the number of members in a call.

        `prepared` is that of any member, or one with the same program_key.
        """
        self.prepared, self.width = prepared, width
        self._of_stages: dict[int, Program] = {}

    def at(self, step: int) -> "Program":
        """Returns the program for the update after `step`; it differs if batches change shape."""
        prepared = self.prepared.at(step)
        if prepared is self.prepared:
            return self
        return self._of_stages.setdefault(prepared.first, Program(prepared, self.width))

    @functools.cached_property
    def compiled(self) -> Any:
        """The compiled program, which reuses the memory of the states.

        Raises:
          InvalidInput: The device has too little memory for `width` members.
        """
        if self.width == 1:
            return self.prepared.program
        lists = [[shape] * self.width for shape in self.prepared.shapes]
        has = device_memory(jax.local_devices()[0])
        available = "" if has is None else f", {has / GIB:.1f} GiB"
        too_large = InvalidInput(
            f"--members={self.width}: too many runs for the memory of the device{available}\n"
            f"expected fewer, e.g. --members={self.width // 2}; 1 trains them one after another"
        )
        try:
            compiled = jax.jit(self._advance, donate_argnums=1).lower(*lists).compile()
        except jax.errors.JaxRuntimeError as error:
            if bytes_refused(error) is None:
                raise
            raise too_large from error
        if has is not None and laid_out_bytes(compiled) > has:
            raise too_large
        return compiled

    @property
    def bytes_of_member(self) -> int | None:
        """Memory per member in bytes: arguments, results and temporaries; None until compiled."""
        stages = (self, *self._of_stages.values())
        compiled = [s.__dict__["compiled"] for s in stages if "compiled" in s.__dict__]
        return max(map(laid_out_bytes, compiled)) // self.width if compiled else None

    def take(self, requests: Sequence[StepRequest]) -> list[StepResult]:
        """Takes the steps in at most `width` requests of members; returns the results in order.

        The memory of the requested states is reused.
        """
        program = self.compiled
        started = time.monotonic()
        if self.width == 1:
            (request,) = requests
            results = [program(*self.prepared.on_devices(request))]
        else:
            # Unused lanes take no steps; their results are dropped.
            first, num_idle = requests[0], self.width - len(requests)
            states = [jax.tree.map(jnp.zeros_like, first.state) for _ in range(num_idle)]
            idle = [first._replace(state=state, num_steps=np.int32(0)) for state in states]
            lists = zip(*requests, *idle, strict=True)
            results = program(*map(list, lists))
        results = [(state, jax.tree.map(np.asarray, records)) for state, records in results]
        seconds = time.monotonic() - started
        most = max(int(request.num_steps) for request in requests)
        return [StepResult(*pair, seconds, most) for pair in results[: len(requests)]]

    def _advance(self, *requests: list) -> list[tuple[TrainState, StepRecord]]:
        """Applies Prepared.advance to several members; each argument is a list over members."""
        stacked = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *column) for column in requests]
        results = jax.vmap(self.prepared.advance)(*stacked)
        lanes = range(self.width)
        return [jax.tree.map(lambda leaf, lane=lane: leaf[lane], results) for lane in lanes]
