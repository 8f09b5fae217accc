"""Hyper-connections: several residual streams, which every branch reads from and writes to."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.blocks import Carry, Context
from transformer_jax.norms import rms_norm
from transformer_jax.options import Count, InitialNumber
from transformer_jax.shapes import widen
from transformer_jax.variants.wirings import Sequential

_FAR = -8.0  # exp(-8) is nearly no exchange between two streams
_NEAR = 2.0


class HyperConnections(Sequential):
    """Several streams H [n, D]; a branch reads one mixture of them and is added to each.

    H' = A_r^T H + B^T f(norm(A_m^T H)), with A_m [n], A_r [n, n] and B [n] that depend on each
    position: a learned array plus s * tanh(norm(H) W). Zhu et al. 2024, arXiv:2409.19606, equations
    5 and 10 to 13, with the initial values of section 2.3: branch k reads stream k mod n. The
    streams begin as copies of the embedding and are summed at the end.

    Attributes:
      streams: Number of residual streams, n; 4 in the paper's models. A wiring of 1 has no
        mixtures to learn but the scales.
      initial_scale: Initial s; 0.01 in the paper. W starts at 0.
    """

    streams: Count = 4
    initial_scale: InitialNumber = 0.01

    @classmethod
    def enter(cls, embedded: Array, **options: Any) -> Array:
        """[..., L, D] -> [..., n, L, D], copies."""
        count = options.get("streams", cls.streams)
        shape = (*embedded.shape[:-2], count, *embedded.shape[-2:])
        return jnp.broadcast_to(embedded[..., None, :, :], shape)

    @classmethod
    def leave(cls, hidden: Array, carry: Carry, **options: Any) -> Array:
        """[..., n, L, D] -> [..., L, D], the sum."""
        return hidden.sum(-3)

    @nn.nowrap
    def connect(
        self, name: str, branch: Callable[[Array], Array], hidden: Array, context: Context
    ) -> Array:
        """[..., n, L, D] -> [..., n, L, D]."""
        index = 2 * context.layer + (name == "feed_forward")
        gates = self.gates(name=f"{name}_streams", streams=self.streams)
        read_nL, kept_nnL, written_nL = gates(hidden, index)
        wide = widen(hidden)
        read = jnp.einsum("...nL,...nLD->...LD", read_nL, wide).astype(hidden.dtype)
        new = widen(branch(self.normed(name, read)))
        kept = jnp.einsum("...nmL,...nLD->...mLD", kept_nnL, wide)
        return (kept + written_nL[..., None] * new[..., None, :, :]).astype(hidden.dtype)

    @nn.nowrap
    def gates(self, **fields: Any) -> "StreamGates":
        """Returns the module that computes A_m, A_r and B."""
        return StreamGates(initial_scale=self.initial_scale, **fields)


class StreamGates(nn.Module):
    """Shares of n streams that a branch reads, keeps and writes, for each position."""

    streams: int
    initial_scale: float

    @nn.compact
    def __call__(self, hidden: Array, index: int | Array) -> tuple[Array, Array, Array]:
        """[..., n, L, D] and the branch's index -> [..., n, L], [..., n, n, L], [..., n, L]."""
        n, width = self.streams, hidden.shape[-1]
        scales = nn.initializers.constant(self.initial_scale)
        scale_kept, scale_written = self.param("scale", scales, (2,))
        read_n = self.param("read", lambda *_: jax.nn.one_hot(index % n, n), (n,))
        kept_nn = self.param("kept", lambda *_: jnp.eye(n), (n, n))
        written_n = self.param("written", nn.initializers.ones, (n,))
        kernel = self.param("gate_kernel", nn.initializers.zeros, (width, n + 2))
        # A row for each stream: its share of what is read and written, and what each stream keeps.
        moved = jnp.tanh(rms_norm(widen(hidden)) @ kernel)
        read = read_n[:, None] + scale_kept * moved[..., 0]
        written = written_n[:, None] + scale_written * moved[..., 1]
        kept = kept_nn[..., None] + scale_kept * jnp.moveaxis(moved[..., 2:], -1, -2)
        return read, kept, written


class ManifoldHyperConnections(HyperConnections):
    """Hyper-connections whose matrices A_r are doubly stochastic, so that streams keep their size.

    A_r is the result of 20 Sinkhorn-Knopp iterations on exp(...), A_m = sigmoid(...) and B = 2
    sigmoid(...), each of a learned array plus s * (norm(vec H) W). Xie et al. 2025,
    arXiv:2512.24880, equations 7 to 9. The paper does not give the initial arrays: here A_r starts
    near the identity, B at 1, and branch k reads mostly stream k mod n.
    """

    @nn.nowrap
    def gates(self, **fields: Any) -> "StreamGates":
        """Returns the module that computes A_m, A_r and B."""
        return ManifoldGates(initial_scale=self.initial_scale, **fields)


class ManifoldGates(StreamGates):
    """The gates of ManifoldHyperConnections."""

    @nn.compact
    def __call__(self, hidden: Array, index: int | Array) -> tuple[Array, Array, Array]:
        """[..., n, L, D] and the branch's index -> [..., n, L], [..., n, n, L], [..., n, L]."""
        n, length, width = hidden.shape[-3:]
        scales = nn.initializers.constant(self.initial_scale)
        scale_read, scale_kept, scale_written = self.param("scale", scales, (3,))
        is_read = lambda *_: _NEAR * (2 * jax.nn.one_hot(index % n, n) - 1)  # noqa: E731
        read_n = self.param("read", is_read, (n,))
        kept_nn = self.param("kept", lambda *_: _FAR * (1 - jnp.eye(n)), (n, n))
        written_n = self.param("written", nn.initializers.zeros, (n,))
        kernel = self.param("gate_kernel", nn.initializers.zeros, (n * width, n * n + 2 * n))
        flat = jnp.moveaxis(widen(hidden), -3, -2).reshape(*hidden.shape[:-3], length, n * width)
        moved_L = jnp.moveaxis(rms_norm(flat) @ kernel, -1, -2)
        moved_nL, more_nL, moved_nnL = jnp.split(moved_L, (n, 2 * n), axis=-2)
        moved_nnL = moved_nnL.reshape(*moved_nnL.shape[:-2], n, n, length)
        read = jax.nn.sigmoid(read_n[:, None] + scale_read * moved_nL)
        written = 2 * jax.nn.sigmoid(written_n[:, None] + scale_written * more_nL)
        return read, doubly_stochastic(kept_nn[..., None] + scale_kept * moved_nnL), written


def doubly_stochastic(logits: Array, iterations: int = 20) -> Array:
    """Returns exp(logits) with rows and columns scaled in turn to sums of 1 (Sinkhorn 1964).

    Args:
      logits: [..., n, n, L], a matrix for each position.
      iterations: Number of times that columns and then rows are scaled.
    Returns:
      [..., n, n, L], positive; the sums over the second axis are 1, the others nearly so.
    """

    def rescale(matrix: Array, _: None) -> tuple[Array, None]:
        matrix = matrix / matrix.sum(-3, keepdims=True)
        return matrix / matrix.sum(-2, keepdims=True), None

    largest = jax.lax.stop_gradient(logits.max((-3, -2), keepdims=True))  # which cancels
    matrix = jnp.exp(logits - largest)
    return jax.lax.scan(rescale, matrix, length=iterations)[0]
