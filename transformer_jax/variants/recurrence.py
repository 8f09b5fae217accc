"""Recurrent layers: a cell applied along a sequence."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

# Elman 1990; Cho et al. 2014, arXiv:1406.1078; Hochreiter and Schmidhuber 1997.
CELLS = {"rnn": nn.SimpleCell, "gru": nn.GRUCell, "lstm": nn.OptimizedLSTMCell}


def cell_of(choice: str | Callable[..., nn.RNNCellBase]) -> Callable[..., nn.RNNCellBase]:
    """Returns the cell of a name, or the given class.

    Raises:
      ValueError: There is no such name.
    """
    if isinstance(choice, str) and choice not in CELLS:
        raise ValueError(f"cell: expected one of {', '.join(CELLS)}, got {choice!r}")
    return CELLS[choice] if isinstance(choice, str) else choice


class Recurrence(nn.Module):
    """One recurrent layer in one direction.

    Attributes:
      cell: A class like flax's cells.
      features: State features, D.
      reverse: Whether it reads from the end.
      dtype: Dtype of the computation.
    """

    cell: Callable[..., nn.RNNCellBase]
    features: int
    reverse: bool = False
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(
        self, inputs: Array, segments: Array, carry: Any = None, *, is_fresh: Array | None = None
    ) -> tuple[Any, Array]:
        """Applies the cell along a sequence.

        Args:
          inputs: [..., L, F].
          segments: [..., L] int, 0 = padding, which does not change the state.
          carry: Initial state; zeros if None.
          is_fresh: [..., L] bool, True where a document begins and the state is reset.
        Returns:
          The final state, and the outputs [..., L, D].
        """
        cell = self.cell(self.features, dtype=self.dtype, name="cell")
        empty = cell.initialize_carry(jax.random.key(0), (*inputs.shape[:-2], inputs.shape[-1]))
        carry = empty if carry is None else carry
        is_fresh = jnp.zeros(segments.shape, bool) if is_fresh is None else is_fresh

        def choose(condition: Array, chosen: Any, other: Any) -> Any:
            pick = lambda a, b: jnp.where(condition[..., None], a, b)  # noqa: E731
            return jax.tree.map(pick, chosen, other)

        def read(cell: nn.RNNCellBase, carry: Any, place: tuple) -> tuple[Any, Array]:
            features, is_token, begins = place
            before = choose(begins, empty, carry)
            after, output = cell(before, features)
            state = choose(is_token, after, before)
            return jax.tree.map(lambda new, old: new.astype(old.dtype), state, carry), output

        scan = nn.scan(
            read, variable_broadcast="params", split_rngs={"params": False}, reverse=self.reverse
        )
        by_time = (
            jnp.moveaxis(inputs, -2, 0),
            *(jnp.moveaxis(a, -1, 0) for a in (segments > 0, is_fresh)),
        )
        carry, outputs = scan(cell, carry, by_time)
        return carry, jnp.moveaxis(outputs, 0, -2)


def fresh_places(segments: Array) -> Array:
    """Returns where another document begins: [..., L] int -> [..., L] bool."""
    changes = segments[..., 1:] != segments[..., :-1]
    return jnp.concatenate([jnp.ones_like(segments[..., :1], bool), changes], axis=-1)
