"""What blocks hand on to later blocks: values, keys or hidden states, by name."""

from typing import Any

import jax
import jax.numpy as jnp


@jax.tree_util.register_pytree_node_class
class Carry:
    """Outputs of earlier blocks, by name.

    A part of a block reads it and adds to it through `context.carry`; the block passes it on. In a
    scan over blocks (`scan_layers`), where arrays of all blocks cannot be told apart, the first and
    the latest output under each name are kept.
    """

    def __init__(
        self, outputs: dict[str, tuple] | None = None, is_begun: dict[str, Any] | None = None
    ) -> None:
        """Creates a carry without outputs.

        Args:
          outputs: All outputs in order, by name; the first and the latest one in a scan.
          is_begun: Whether there is an output yet, by name, as arrays of bool; None outside a scan.
        """
        self._outputs, self._is_begun = outputs or {}, is_begun

    def hand_on(self, name: str, value: Any) -> None:
        """Adds an output, a tree of arrays, for later blocks."""
        if self._is_begun is None:
            self._outputs[name] = (*self._outputs.get(name, ()), value)
        elif name in self._outputs:
            self._outputs[name] = self.first(name, value), value
            self._is_begun[name] = jnp.bool_(True)
        else:
            self._outputs[name], self._is_begun[name] = (value, value), jnp.bool_(True)

    def first(self, name: str, otherwise: Any = None) -> Any:
        """Returns the first output under a name, or `otherwise` if there is none yet.

        Raises:
          ValueError: There is none yet, and nothing else to return.
        """
        return self._output(name, 0, otherwise)

    def latest(self, name: str, otherwise: Any = None) -> Any:
        """Returns the latest output under a name; see `first`."""
        return self._output(name, -1, otherwise)

    def every(self, name: str, who: str) -> tuple:
        """Returns all outputs under a name, in order.

        Raises:
          ValueError: A scan keeps only two of them; the message names `who` reads them.
        """
        if self._is_begun is not None:
            raise ValueError(
                f"scan_layers: {who} reads the outputs of all earlier blocks, but a scan keeps "
                "only those of the first and the previous one; set scan_layers=False"
            )
        return self._outputs.get(name, ())

    def _output(self, name: str, index: int, otherwise: Any) -> Any:
        held = self._outputs.get(name)
        if not held and otherwise is None:
            raise ValueError(f"no earlier block has handed on {name!r}")
        if not held:
            return otherwise
        begun = self._is_begun
        if begun is None or otherwise is None:
            return held[index]
        return jax.tree.map(lambda a, b: jnp.where(begun[name], a, b), held[index], otherwise)

    def tree_flatten(self) -> tuple:
        """Returns the arrays, for jax."""
        return (self._outputs, self._is_begun), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple) -> "Carry":
        """Returns a new carry with these arrays."""
        outputs, is_begun = children
        return cls(dict(outputs), None if is_begun is None else dict(is_begun))


def carry_of_scan(shapes: Carry) -> Carry:
    """Returns the carry with which a scan begins, given that after its first unit, as shapes."""
    outputs, _ = shapes.tree_flatten()[0]
    zeros = lambda leaf: jnp.zeros(leaf.shape, leaf.dtype)  # noqa: E731
    begun = {name: (jax.tree.map(zeros, held[-1]),) * 2 for name, held in outputs.items()}
    return Carry(begun, {name: jnp.bool_(False) for name in begun})
