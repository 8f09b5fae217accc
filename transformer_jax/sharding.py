"""Sharding rules: a table for parameters by path, and one for values by site.

Devices are arranged in a mesh with four axes:

  data      each device takes a part of the batch
  fsdp      each device takes a part of the batch too, and keeps a part of every large array of the
            parameters and the optimizer, which the others fetch when they need it (ZeRO's third
            stage, Rajbhandari et al. 2020, arXiv:1910.02054)
  tensor    each device has some of the heads and of the hidden features (Shoeybi et al. 2019,
            arXiv:1909.08053)
  sequence  each device has some positions of the text, and gathers the keys and values of the rest

Only these tables say how arrays are divided; models do not, and XLA's partitioner adds the
communication (Xu et al. 2021, arXiv:2105.04663). So a mesh only changes the order of sums.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer_jax.errors import InvalidInput
from transformer_jax.paths import path_text

AXES = ("data", "fsdp", "tensor", "sequence")
# Names in rules: an axis, or `batch` for the two that divide a batch.
_PARTS = {"batch": ("data", "fsdp"), **{axis: (axis,) for axis in AXES}}

Cuts = tuple[str | EllipsisType | None, ...]

# Division of a parameter's dimensions by its path; the first match counts. An axis that does not
# divide a dimension leaves it whole. Arrays of two or more dimensions without a match have the
# largest one divided over fsdp. The optimizer's arrays are divided like their parameters.
PARAMETER_CUTS: tuple[tuple[str, Cuts], ...] = (
    (r"(query|key|value|\w+_gate|up|gate)/kernel$", ("fsdp", "tensor")),  # [D, H K], [D, F]
    (r"(query|key|value|\w+_gate|up|gate)/bias$", ("tensor",)),
    (r"(out|down)/kernel$", ("tensor", "fsdp")),  # [H V, D], [F, D]
    (r"token_embedding/embedding$", ("tensor", "fsdp")),  # [V, D]
    (r"(output|head)/kernel$", ("fsdp", "tensor")),  # [D, V]
)
# Division of values at sites (see sites.py); `...` stands for axes between. XLA divides the rest.
SITE_CUTS: tuple[tuple[str, Cuts], ...] = (
    ("token_embedding.table", ("tensor", None)),  # [V, D], as it is used: rows are looked up whole
    ("*layer_*.out", ("batch", ...)),  # of a recurrent layer, [B, L, D]
    ("*embedded", ("batch", ..., "sequence", None)),  # [B, L, D]
    ("*.input", ("batch", ..., "sequence", None)),
    ("*.out", ("batch", ..., "sequence", None)),
    ("*.residual", ("batch", ..., "sequence", None)),
    ("*attention.query", ("batch", ..., "tensor", "sequence", None)),  # [B, H, L, K]
    ("*attention.key", ("batch", ..., "tensor", None, None)),  # [B, G, M, K], all M
    ("*attention.value", ("batch", ..., "tensor", None, None)),
    ("*attention.mixed", ("batch", ..., "tensor", "sequence", None)),
)


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules for the division of arrays over a mesh.

    Attributes:
      parameters: Patterns of paths (re.search), and the axes that divide the last dimensions.
      sites: Patterns of sites (fnmatch), and the axes that divide a value's dimensions.
    """

    parameters: tuple[tuple[str, Cuts], ...] = PARAMETER_CUTS
    sites: tuple[tuple[str, Cuts], ...] = SITE_CUTS

    def __post_init__(self) -> None:
        """Converts lists to tuples.

        Raises:
          InvalidInput: A row names an axis that no mesh has.
        """
        for name in ("parameters", "sites"):
            rows = tuple((pattern, tuple(cuts)) for pattern, cuts in getattr(self, name))
            for pattern, cuts in rows:
                for cut in cuts:
                    if cut not in (None, ..., *_PARTS):
                        raise InvalidInput(
                            f"Rules.{name}: {pattern}: there is no axis {cut!r}; expected one of "
                            f"{', '.join(_PARTS)}, or None"
                        )
            object.__setattr__(self, name, rows)


def default_rules() -> Rules:
    """Returns rules with the default tables, PARAMETER_CUTS and SITE_CUTS."""
    return Rules()


@dataclasses.dataclass(frozen=True)
class Sharding:
    """A mesh, and the rules by which arrays are divided over it.

    Attributes:
      mesh: Devices along AXES.
      rules: Tables of paths and sites.
    """

    mesh: Mesh
    rules: Rules = Rules()

    def spec(self, cuts: Cuts, shape: Sequence[int], uneven: str | None = None) -> PartitionSpec:
        """Returns the partition spec of an array whose last dimensions are divided by `cuts`.

        Args:
          cuts: Entries of a sharding table for the last dimensions; `...` stands for those before.
          shape: Shape of the array.
          uneven: Entry of `cuts` that may divide its dimension into unequal parts.
        """
        if ... in cuts:
            index = cuts.index(...)
            missing = len(shape) - len(cuts) + 1
            if missing < 0:
                return PartitionSpec()
            cuts = (*cuts[:index], *[None] * missing, *cuts[index + 1 :])
        elif len(cuts) > len(shape):
            return PartitionSpec()
        else:
            cuts = (*[None] * (len(shape) - len(cuts)), *cuts)
        parts: list[Any] = []
        for cut, size in zip(cuts, shape, strict=True):
            axes = tuple(a for a in _PARTS.get(str(cut), ()) if self.mesh.shape[a] > 1)
            divides = size % math.prod(self.mesh.shape[axis] for axis in axes) == 0
            parts.append(axes if axes and (divides or cut == uneven) else None)
        return PartitionSpec(*parts)

    def of_parameter(self, path: str, shape: Sequence[int]) -> NamedSharding:
        """Returns the sharding of a parameter, or of an array of the optimizer.

        Args:
          path: Path of the array; `blocks/block_0` is a stack of blocks, with a leading axis.
          shape: Shape of the array.
        """
        inner = list(shape[1:] if re.search(r"\bblocks/", path) else shape)
        for pattern, cuts in self.rules.parameters:
            if re.search(pattern, path):
                fits = ... in cuts or len(cuts) <= len(inner)  # a moment can have fewer dimensions
                return NamedSharding(self.mesh, self.spec(cuts, shape)) if fits else self.everywhere
        if len(inner) < 2:
            return self.everywhere
        largest = inner.index(max(inner))
        cuts = tuple("fsdp" if axis == largest else None for axis in range(len(inner)))
        return NamedSharding(self.mesh, self.spec(cuts, shape))

    def of_state(self, state: Any) -> Any:
        """Returns the sharding of each array in a tree of parameters or in a whole TrainState."""
        return jax.tree.map_with_path(
            lambda path, x: self.of_parameter(path_text(path), x.shape), state
        )

    def of_batch(self, batch: Any, axis: int) -> Any:
        """Returns the sharding with which each array, or shape, of a batch enters a program.

        The `axis` of examples is divided into equal parts, or left whole if that is impossible.
        """
        cuts = (*[None] * axis, "batch", ...)
        return jax.tree.map(lambda x: NamedSharding(self.mesh, self.spec(cuts, np.shape(x))), batch)

    def rows_of_process(self, batch: Any) -> np.ndarray:
        """Returns the numbers of the batch rows that this process's devices hold, [R] int64."""
        targets = batch["targets"]
        places = self.of_batch(targets, 0).addressable_devices_indices_map(np.shape(targets))
        numbers = np.arange(len(targets))
        return np.unique(np.concatenate([numbers[index[0]] for index in places.values()]))

    def cut(self, value: Array, cuts: Cuts) -> Array:
        """Returns a value inside a program, divided by `cuts`; the last part may be smaller."""
        spec = self.spec(cuts, value.shape, uneven="batch")
        return jax.lax.with_sharding_constraint(value, NamedSharding(self.mesh, spec))

    @property
    def everywhere(self) -> NamedSharding:
        """Sharding of an array that every device has whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def num_parts(self) -> int:
        """Number of parts that a batch is divided into."""
        return self.mesh.shape["data"] * self.mesh.shape["fsdp"]

    def __str__(self) -> str:
        sizes = [f"{axis}={size}" for axis, size in self.mesh.shape.items() if size > 1]
        return f"{self.mesh.size} devices, {' '.join(sizes)}"


def make_sharding(
    sizes: Mapping[str, int], rules: Rules, devices: Sequence[Any] | None = None
) -> Sharding | None:
    """Returns the sharding of a config's `mesh`, or None for one device.

    Args:
      sizes: Sizes of AXES; one may be -1, which takes the remaining devices.
      rules: Tables of paths and sites.
      devices: Devices to use; jax's if None.
    Raises:
      InvalidInput: There are too few devices, the sizes do not divide their number, or a run of
        several processes would leave some devices unused.
    """
    devices = list(jax.devices() if devices is None else devices)
    product = math.prod(size for size in sizes.values() if size > 0)
    shown = " ".join(f"mesh.{axis}={size}" for axis, size in sizes.items() if size != 1)
    rest, over = divmod(len(devices), product)
    if -1 in sizes.values() and (over or not rest):
        raise InvalidInput(
            f"{shown}: expected a divisor of the device count, got {product}; there {_are(devices)}"
        )
    shape = [rest if sizes[axis] == -1 else sizes[axis] for axis in AXES]
    count = math.prod(shape)
    if count > len(devices):
        lines = [f"{shown}: the mesh needs {count} devices, but there {_are(devices)}"]
        if devices[0].platform == "cpu":
            lines.append(f"to try it on a CPU, put JAX_NUM_CPU_DEVICES={count} before the command")
        raise InvalidInput("\n".join(lines))
    if jax.process_count() > 1 and count < len(devices):
        raise InvalidInput(
            f"{shown or 'mesh.data=1'}: {jax.process_count()} processes have {len(devices)} "
            "devices together; expected a mesh of all devices, such as mesh.data=-1"
        )
    if count == 1:
        return None
    automatic = (AxisType.Auto,) * len(AXES)
    return Sharding(Mesh(_arranged(shape, devices[:count]), AXES, axis_types=automatic), rules)


def _arranged(shape: Sequence[int], devices: Sequence[Any]) -> np.ndarray:
    """Returns the devices of a mesh, with its outer axes across TPU slices and GPU hosts."""
    slices = Counter(getattr(device, "slice_index", 0) for device in devices)
    if len({*slices.values()}) > 1:
        sizes = " ".join(f"mesh.{axis}={size}" for axis, size in zip(AXES, shape, strict=True))
        counts = ", ".join(map(str, slices.values()))
        raise InvalidInput(f"{sizes}: hosts or slices have {counts} devices; expected equal counts")
    outer, left = [], len(slices)
    for size in shape:
        outer.append(math.gcd(size, left))
        left //= outer[-1]
    options = {"allow_split_physical_axes": True}  # along a TPU's torus
    if len(slices) == 1:
        return mesh_utils.create_device_mesh(shape, devices, **options)
    inner = [size // over for size, over in zip(shape, outer, strict=True)]
    return mesh_utils.create_hybrid_device_mesh(inner, outer, devices, **options)


def _are(devices: Sequence[Any]) -> str:
    one = len(devices) == 1
    return f"{'is' if one else 'are'} {len(devices)} ({devices[0].device_kind})"
