"""Mixtures of experts: each token uses the few feed-forward layers that a router chooses."""

from collections.abc import Callable
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.feedforward import gelu
from transformer_jax.linear import Initializer, Linear
from transformer_jax.options import Count, NonNegative
from transformer_jax.sites import site
from transformer_jax.variants.routing import routes_of


class MixtureOfExperts(nn.Module):
    """Several feed-forward layers, of which each token uses the few with the highest router scores.

    y = sum over chosen e of p_e FFN_e(x), p the router's softmax, renormalised over the chosen ones
    (Shazeer et al. 2017, arXiv:1701.06538, equations 1 to 5, without noise); for a single expert,
    p_e unchanged (Fedus et al. 2022, arXiv:2101.03961, equation 2). No token is dropped.
    Either all experts are computed for all tokens, num_experts / num_chosen times the work
    needed, or only the chosen ones, in blocks of tokens (see routing): equal up to rounding, and
    faster for many experts.

    The load-balancing loss, E * sum over e of (fraction of tokens that chose e) * (mean of p_e) / k
    (Fedus et al., equation 4; 1 if all are used equally), is computed per sequence, padding
    included, and returned under `losses`, times `balance`. There are no biases.

    Attributes:
      mlp_dim: Hidden features of each expert, F; 4 * width if None.
      activation: Activation between the two maps.
      use_bias: Ignored; every feed-forward layer takes this argument, and experts have no biases.
      kernel_init: Initial values of the router and of the first kernels.
      out_init: Initial values of the last kernels; kernel_init if None.
      dtype: Computation dtype; promoted from inputs and parameters if None.
      num_experts: Experts, E.
      num_chosen: Experts per token, k.
      balance: Weight of the load-balancing loss; the paper's 0.01.
      computed: Experts that are computed for a token.
      block: Tokens that are computed together, if only chosen experts are computed.
    """

    mlp_dim: int | None = None
    activation: Callable[[Array], Array] = gelu
    use_bias: bool = False
    kernel_init: Initializer = nn.initializers.normal(0.02)
    out_init: Initializer | None = None
    dtype: DTypeLike | None = None
    num_experts: Count = 4
    num_chosen: Count = 2
    balance: NonNegative = 0.01
    computed: Literal["all", "chosen"] = "all"
    block: Count = 32

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., L, D] -> [..., L, D].

        Raises:
          ValueError: More experts are chosen than there are.
        """
        if self.num_chosen > self.num_experts:
            raise ValueError(
                f"num_chosen: expected at most num_experts {self.num_experts}, "
                f"got {self.num_chosen}"
            )
        width = inputs.shape[-1]
        mlp_dim = self.mlp_dim or 4 * width
        router = Linear(self.num_experts, False, self.kernel_init, name="router")
        wide = jnp.promote_types(inputs.dtype, jnp.float32)
        scores_LE = router(inputs.astype(wide))
        shares_LE = jax.nn.softmax(scores_LE, axis=-1)
        _, chosen = jax.lax.top_k(scores_LE, self.num_chosen)
        taken_LE = jax.nn.one_hot(chosen, self.num_experts, dtype=wide).sum(-2)
        gates_LE = shares_LE * taken_LE
        if self.num_chosen > 1:  # of one alone it would be 1, and teach the router nothing
            gates_LE = gates_LE / gates_LE.sum(-1, keepdims=True)
        used_E, asked_E = taken_LE.mean(-2) / self.num_chosen, shares_LE.mean(-2)
        balance = self.num_experts * (jax.lax.stop_gradient(used_E) * asked_E).sum(-1)
        self.sow("losses", "balance", self.balance * balance)
        up = Experts(self.num_experts, mlp_dim, self.kernel_init, self.dtype, name="up")
        out_init = self.out_init or self.kernel_init
        down = Experts(self.num_experts, width, out_init, self.dtype, name="down")
        if self.computed == "chosen" and chosen.size:  # without tokens there are no blocks
            gates_Lk = jnp.take_along_axis(gates_LE, chosen, axis=-1)
            return self._of_chosen(inputs, chosen, gates_Lk, up, down)
        hidden_LEF = site(self, "hidden", self.activation(up(inputs[..., None, :])))
        written_LED = down(hidden_LEF)
        return (written_LED * gates_LE[..., None].astype(written_LED.dtype)).sum(-2)

    def _of_chosen(
        self, inputs: Array, chosen: Array, gates: Array, up: "Experts", down: "Experts"
    ) -> Array:
        """Returns the chosen experts' sum: [..., L, D], [..., L, k] twice -> [..., L, D]."""
        k = self.num_chosen
        routes = routes_of(chosen.reshape(-1, k), self.num_experts, self.block)
        blocks_NCD = routes.to_blocks(inputs.reshape(-1, inputs.shape[-1]))
        read = routes.to_pairs(up.of_blocks(blocks_NCD, routes.expert))
        read = read.reshape(*chosen.shape, read.shape[-1])
        hidden = site(self, "hidden", self.activation(read))
        filled_NCF = routes.pairs_to_blocks(hidden.reshape(-1, k, hidden.shape[-1]))
        written = routes.to_pairs(down.of_blocks(filled_NCF, routes.expert))
        weighted = written.reshape(*chosen.shape, -1) * gates[..., None].astype(written.dtype)
        return weighted.sum(-2)


class Experts(nn.Module):
    """One linear map per expert, in one kernel [E, D, F]."""

    num_experts: int
    features: int
    kernel_init: Initializer
    dtype: DTypeLike | None = None

    def __call__(self, inputs: Array) -> Array:
        """[..., E, D] (or [..., 1, D] for all of them) -> [..., E, features]."""
        inputs, kernel_EDF = self._promoted(inputs)
        repeated_ED = jnp.broadcast_to(
            inputs, (*inputs.shape[:-2], self.num_experts, inputs.shape[-1])
        )
        return jnp.einsum("...ED,EDF->...EF", repeated_ED, kernel_EDF)

    def of_blocks(self, blocks: Array, expert: Array) -> Array:
        """[N, C, D], each block for one expert [N] -> [N, C, features]."""
        blocks, kernel_EDF = self._promoted(blocks)
        return jnp.einsum("NCD,NDF->NCF", blocks, kernel_EDF[expert])

    @nn.compact
    def _promoted(self, inputs: Array) -> tuple[Array, Array]:
        shape = (inputs.shape[-1], self.features)

        def draw(key: Array, _: tuple[int, ...]) -> Array:
            """Draws each expert as a separate layer, by its own inputs and outputs."""
            keys = jax.random.split(key, self.num_experts)
            return jax.vmap(lambda one: self.kernel_init(one, shape))(keys)

        kernel_EDF = self.param("kernel", draw, (self.num_experts, *shape))
        return tuple(promote_dtype(inputs, kernel_EDF, dtype=self.dtype))
