"""One run in several processes, e.g. on the hosts of a cluster, each with its own devices.

All processes execute the same steps with the same numbers. Before they act on a fact that only one
of them knows (the time, a signal, which checkpoint is complete), they agree on it.
"""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from transformer_jax.errors import InvalidInput

SILENT_SECONDS = 20  # of silence after which a process counts as dead, and the others end
_MANUAL = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def join_processes() -> None:
    """Joins the other processes of a run, if the environment says that there are any.

    It does so in Slurm (srun) with several tasks, on a TPU slice with several hosts, or if the
    variables JAX_COORDINATOR_ADDRESS (HOST:PORT of the first process), JAX_NUM_PROCESSES and
    JAX_PROCESS_ID are set. A Slurm task takes all GPUs of its node if every node has one task; if
    not, it takes the GPU of its own number, unless JAX_LOCAL_DEVICE_IDS is set. Call it before jax.

    Raises:
      InvalidInput: Only some of the three variables are set, or the other processes do not join.
    """
    variables = [name for name in _MANUAL if name in os.environ]
    if not are_several():
        return
    if variables and len(variables) < len(_MANUAL):
        missing = ", ".join(name for name in _MANUAL if name not in variables)
        raise InvalidInput(f"{variables[0]} is set: for several processes, set {missing} too")
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
        arguments["local_device_ids"] = []  # no selection; jax would select the node's first
    # A run handles signals itself: it saves its state and reports that.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            **arguments,
            initialization_timeout=120,
            heartbeat_timeout_seconds=3 * SILENT_SECONDS,
            shutdown_timeout_seconds=SILENT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidInput(f"the processes of this run did not connect: {reason}") from error


def are_several() -> bool:
    """Returns whether the environment says that this process is one of several in a run."""
    counts = (os.environ.get(n) or "1" for n in ("SLURM_STEP_NUM_TASKS", "MEGASCALE_NUM_SLICES"))
    hosts = (os.environ.get(n, "") for n in ("TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES"))
    several = any(count != "1" for count in counts) or any("," in names for names in hosts)
    return several or any(name in os.environ for name in _MANUAL)


def is_first() -> bool:
    """Returns whether this is the first process, which writes for all, or the only one."""
    return jax.process_index() == 0


def agreed(number: int) -> int:
    """Returns the first process's 32-bit integer, in every process."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def largest(number: int) -> int:
    """Returns the largest of the processes' 32-bit integers, in every process."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.process_allgather(np.int32(number)).max())


def wait_for_all(what: str) -> None:
    """Blocks until every process is here; `what` is shown if they reach different barriers."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def whole(tree: Any) -> Any:
    """Returns a tree whose arrays this process holds whole, gathered from the others if needed."""

    def gathered(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        if leaf.is_fully_replicated:
            return jnp.asarray(np.asarray(leaf))
        return jnp.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    return tree if jax.process_count() == 1 else jax.tree.map(gathered, tree)
