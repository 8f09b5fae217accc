"""Attention residuals: each branch reads a weighted mean of all earlier outputs."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.blocks import Block, Carry, Context
from transformer_jax.norms import RMSNorm
from transformer_jax.shapes import widen
from transformer_jax.sites import site


class AttentionResiduals(Block):
    """Branches that read softmax-weighted means of the embedding and all earlier branch outputs.

    h = sum over i of softmax_i(w . norm(v_i)) v_i, with a learned query w for each branch and one
    for the output of the stack, where v_0 is the embedding and v_i the output of branch i. Kimi
    Team 2026, arXiv:2603.15031, the full form (equations 2 and 3). The queries start at 0, which
    gives plain means. The query of the first branch is idle: it reads the embedding alone.
    """

    @classmethod
    def leave(cls, hidden: Array, carry: Carry, **options: Any) -> Array:
        """[..., L, D] -> [..., L, D], the mean that the stack returns."""
        outputs = carry.every("branches", "wiring=attention_residuals")
        return DepthMean(name="read_out")(outputs) if outputs else hidden

    @nn.compact
    def __call__(self, hidden: Array, carry: Carry, context: Context) -> tuple[Array, Carry]:
        """[..., L, D] -> [..., L, D], the sum of all outputs so far, which no branch reads."""
        drop, who = self.branch_dropout(context), "wiring=attention_residuals"

        def earlier() -> tuple:
            return carry.every("branches", who)

        def read(branch: str) -> Array:
            return self.normed(branch, DepthMean(name=f"{branch}_mean")(earlier()))

        if not earlier():
            carry.hand_on("branches", hidden)
        carry.hand_on("branches", drop(self.mix(read(self.kind), carry, context)))
        if context.memory is not None:
            attended = self.attend_memory(read("cross_attention"), context)
            carry.hand_on("branches", drop(attended))
        if self.feed_forward is not None:
            carry.hand_on("branches", drop(self.feed(read("feed_forward"), context)))
        total = sum(earlier()[1:], earlier()[0])
        return site(self, "residual", total), carry


class DepthMean(nn.Module):
    """The mean of several arrays, weighted for each position by a softmax over the arrays."""

    @nn.compact
    def __call__(self, outputs: tuple[Array, ...]) -> Array:
        """A sequence of [..., L, D] -> [..., L, D]."""
        query_D = self.param("query", nn.initializers.zeros, outputs[0].shape[-1:])
        stacked = jnp.stack(outputs)
        normed = widen(RMSNorm(name="norm")(stacked))
        weights = jax.nn.softmax(normed @ query_D, axis=0)
        return (weights[..., None] * widen(stacked)).sum(0).astype(stacked.dtype)
