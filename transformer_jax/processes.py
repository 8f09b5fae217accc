"""One run in several processes: hosts of a cluster, each with devices of its own.

Every process goes through the same steps with the same numbers. What one of them alone knows, its
clock, a signal, which checkpoint is whole, is agreed before anybody acts on it; otherwise they
would ask each other for different things, and wait for ever.
"""

import contextlib
import itertools
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from transformer_jax.errors import InvalidInput, Stop

SILENT_SECONDS = 20  # after which a process is taken for dead, and the others end
_OURS = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNIMPLEMENTED")  # errors that are no other's
_BARRIERS = ("async_write_complete", "async_commit_complete")  # of orbax, in this order
_COUNT = itertools.count()
_LONGEST_WRITE = 20 * 60_000  # milliseconds, as orbax has it
_A_DAY = 24 * 3_600_000  # milliseconds; whoever is dead is found sooner, see others_watched
_MANUAL = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def join_processes() -> None:
    """Joins the other processes of a run, where the environment says that there are some.

    That is: Slurm (srun) with several tasks, a TPU slice of several hosts, or the three variables
    JAX_COORDINATOR_ADDRESS (HOST:PORT of the first), JAX_NUM_PROCESSES and JAX_PROCESS_ID. Tasks of
    Slurm take all GPUs of their node where every node has one task; else each takes the one of its
    number, unless JAX_LOCAL_DEVICE_IDS says which. To be called before jax is used.

    Raises:
      InvalidInput: only some of the three are set, or the others do not come.
    """
    variables = [name for name in _MANUAL if name in os.environ]
    if not are_several():
        return
    if variables and len(variables) < len(_MANUAL):
        missing = ", ".join(name for name in _MANUAL if name not in variables)
        raise InvalidInput(f"{variables[0]}: several processes need {missing} too")
    arguments: dict[str, Any] = {}
    if variables:
        address, count, own = (os.environ[name] for name in _MANUAL)
        if not count.isdecimal() or not own.isdecimal() or int(own) >= int(count):
            raise InvalidInput(
                f"JAX_PROCESS_ID={own}: expected a number below JAX_NUM_PROCESSES={count}"
            )
        arguments = {
            "coordinator_address": address,
            "num_processes": int(count),
            "process_id": int(own),
        }
    tasks, nodes = (os.environ.get(f"SLURM_STEP_NUM_{name}") for name in ("TASKS", "NODES"))
    if tasks is not None and tasks == nodes and "JAX_LOCAL_DEVICE_IDS" not in os.environ:
        arguments["local_device_ids"] = []  # no choice: jax would choose the node's first
    # Signals are ours: a run saves in good order and says so.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            **arguments,
            initialization_timeout=120,
            heartbeat_timeout_seconds=3 * SILENT_SECONDS,
            shutdown_timeout_seconds=SILENT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise InvalidInput(f"the processes of this run did not come together: {said}") from error


def are_several() -> bool:
    """Whether the environment says that this process is one of several of a run."""
    counts = (os.environ.get(n) or "1" for n in ("SLURM_STEP_NUM_TASKS", "MEGASCALE_NUM_SLICES"))
    hosts = (os.environ.get(n, "") for n in ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES"))
    several = any(count != "1" for count in counts) or any("," in names for names in hosts)
    return several or any(name in os.environ for name in _MANUAL)


class OtherProcessEnded(Stop):
    """Another process of the run was killed, failed, or cannot be reached."""


@contextlib.contextmanager
def others_missed() -> Generator[None]:
    """Says so where what fails inside is that another process is no longer there.

    Raises:
      OtherProcessEnded: it is not.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        said = str(error).partition("\n")[0][:200]
        if jax.process_count() == 1 or said.startswith(_OURS):
            raise
        raise OtherProcessEnded(
            f"another process of this run has ended or cannot be reached: {said}\n"
            "start all of them again to go on from the last checkpoint"
        ) from error


@contextlib.contextmanager
def others_watched(say: Callable[[str], None]) -> Generator[None]:
    """Ends this process with a word where another of the run is silent for SILENT_SECONDS.

    jax would end it too, later and with a trace of its own code; and an operation over all devices
    never returns where those of one host are gone.

    Args:
      say: is told why, before the end.
    """
    client: Any = multihost_utils.distributed.global_state.client  # no public name gives it
    if jax.process_count() == 1 or client is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        seen: dict[str, tuple[str, float]] = {}  # process -> its last word, and when it was new
        for beat in itertools.count():
            now = time.monotonic()
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # jax itself tells of its service
                client.key_value_set(f"alive/{jax.process_index()}", str(beat), True)
                for key, word in client.key_value_dir_get("alive/"):
                    if seen.get(key, ("", now))[0] != word:
                        seen[key] = (word, now)
            silent = [key for key, (_, when) in seen.items() if now - when > SILENT_SECONDS]
            if silent:
                # Words are kept by the first: it is gone where not even one's own is new.
                gone = "alive/0" if f"alive/{jax.process_index()}" in silent else silent[0]
                reason = f"process {gone.rpartition('/')[2]} of this run has ended"
                with contextlib.suppress(Exception):  # a full disk must not keep it here
                    say(reason)
                print(f"error: {reason}; start all of them again to resume", file=sys.stderr)
                sys.stderr.flush()
                os._exit(1)  # the main thread waits for the one that is gone
            if ended.wait(1.0):
                return

    thread = threading.Thread(target=watch, name="others watched", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=5.0)


def is_first() -> bool:
    """Whether this process writes for all; in a run of one process it does."""
    return jax.process_index() == 0


def agreed(number: int) -> int:
    """Returns the first process's number of 32 bits, in all of them."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def largest(number: int) -> int:
    """Returns the largest of the processes' numbers of 32 bits, in all of them."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.process_allgather(np.int32(number)).max())


def refuse_other(what: str, text: str) -> None:
    """Raises InvalidInput, in all processes, where they differ in something.

    Args:
      what: that is, for the message.
      text: that is equal where it is the same.
    """
    own = zlib.crc32(text.encode()) & 0x7FFFFFFF
    if largest(own) != -largest(-own):
        raise InvalidInput(
            f"the processes of this run have different {what}; expected one command for all, on "
            "hosts that share the same files"
        )


def wait_for_all(what: str) -> None:
    """Returns when every process has come here.

    Args:
      what: said where they come to different places.
    """
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def whole(tree: Any) -> Any:
    """Returns a tree whose arrays this process has whole; those of several on one device of it."""

    def gathered(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        if leaf.is_fully_replicated:
            return jnp.asarray(np.asarray(leaf))
        return jnp.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    return tree if jax.process_count() == 1 else jax.tree.map(gathered, tree)


class Barriers:
    """Where the processes of a run wait for each other while orbax writes one checkpoint.

    One that could not write comes to the barriers that are left, else the others would wait there
    for as long as orbax waits, 20 minutes.
    """

    def __init__(self) -> None:
        from orbax.checkpoint import multihost

        self._wait: Any = multihost.get_barrier_sync_fn()
        self._name, self._left = f"checkpoint-{next(_COUNT)}", list(_BARRIERS)
        self._questions = itertools.count()

    def __call__(self, *, key: str, timeout_ms: int) -> None:
        """What orbax calls, by names of its own."""
        name = next((name for name in self._left if name in key), None)
        if name is not None:
            self._left.remove(name)
            key = f"{self._name}.{name}"
        self._wait(key=key, timeout_ms=timeout_ms)

    def any(self, flag: bool) -> bool:
        """Returns whether a flag is up in any process.

        The words go by the service of the first process and by no device, so that a thread may ask
        while another has the devices compute.
        """
        client: Any = multihost_utils.distributed.global_state.client
        question = f"{self._name}/{next(self._questions)}"
        client.key_value_set(f"{question}/{jax.process_index()}", str(int(flag)))
        others = (f"{question}/{number}" for number in range(jax.process_count()))
        return any(client.blocking_key_value_get(key, _A_DAY) == "1" for key in others)

    def pass_the_rest(self) -> None:
        """Comes to the barriers that are left."""
        for name in [*self._left]:
            self(key=name, timeout_ms=_LONGEST_WRITE)
