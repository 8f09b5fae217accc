"""Mixtures of experts: each token uses the few feed-forward layers that a router chooses."""

from typing import ClassVar, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.feedforward import FeedForward, GatedFeedForward
from transformer_jax.linear import Initializer, Linear
from transformer_jax.options import Count, Natural, NonNegative, Positive, Switch
from transformer_jax.sites import site

_LEAST = 1e-20  # added to sums of shares, as in DeepSeek-V3's code


class MixtureOfExperts(FeedForward):
    """Several feed-forward layers, of which each token uses the few with the highest router scores.

    y = sum over chosen e of p_e FFN_e(x), where p is the router's softmax, renormalised over the
    chosen experts (Shazeer et al. 2017, arXiv:1701.06538, equations 1 to 5, without noise). With a
    single chosen expert, p_e is unchanged (Fedus et al. 2022, arXiv:2101.03961, equation 2). No
    token is dropped. Either all experts are computed for all tokens, num_experts / num_chosen times
    the work needed, or only the chosen ones, in blocks of tokens. Results are equal up to rounding;
    with many experts, computing only the chosen ones is faster.

    The load-balancing loss, E * sum over e of (fraction of tokens that chose e) * (mean of p_e) / k
    (Fedus et al., equation 4), is 1 if all experts are used equally. It is computed per sequence,
    without padding, and stored under `losses`, multiplied by `balance`. There are no biases.

    As in DeepSeek-V3 (arXiv:2412.19437, equations 12 to 16), the shares can be sigmoids, and shared
    experts can be added, which all tokens use (arXiv:2401.06066, equation 9). With a `bias_rate` u,
    experts are chosen by their share plus a bias b_e, which every update changes by u sign(mean
    load - load of e), outside the gradient (Wang et al. 2024, arXiv:2408.15664, algorithm 1); set
    `balance` to 0 then. The biases and the latest loads are in the collection `state`.

    Attributes:
      mlp_dim: Number of hidden features of each expert, F; 4 * width if None.
      use_bias: Ignored; every feed-forward layer takes this argument, and experts have no biases.
      kernel_init: Initial values of the router and of the first kernels.
      out_init: Initial values of the last kernels; kernel_init if None.
      num_experts: Number of experts, E.
      num_chosen: Number of experts per token, k.
      balance: Weight of the load-balancing loss; 0.01 in the paper.
      computed: Experts computed for each token: all of them, or only the chosen ones.
      block: Number of tokens computed together, if only the chosen experts are computed.
      router: Function from router scores to shares.
      normalised: Whether the shares of several chosen experts are divided by their sum.
      share_gain: Factor of the shares; 2.5 in DeepSeek-V3.
      gated: Whether experts have gates, as in GatedFeedForward, by default with 8/3 of the width.
      num_shared: Number of shared experts, which make one layer of num_shared * mlp_dim features.
      shared_gate: Whether a gate sigmoid(x w) multiplies the shared experts' output (Qwen3-Next).
      bias_rate: Change u of the biases by an update; 0.001 in the papers; 0 for no biases.
    """

    reads_padding: ClassVar[bool] = True

    use_bias: bool = False
    num_experts: Count = 4
    num_chosen: Count = 2
    balance: NonNegative = 0.01
    computed: Literal["all", "chosen"] = "all"
    block: Count = 32
    router: Literal["softmax", "sigmoid"] = "softmax"
    normalised: Switch = True
    share_gain: Positive = 1.0
    gated: Switch = False
    num_shared: Natural = 0
    shared_gate: Switch = False
    bias_rate: NonNegative = 0.0

    @nn.compact
    def __call__(self, inputs: Array, is_token: Array | None = None) -> Array:
        """[..., L, D] -> [..., L, D]; padding, where is_token [..., L] is False, has no load.

        Raises:
          ValueError: num_chosen is larger than num_experts.
        """
        if self.num_chosen > self.num_experts:
            raise ValueError(f"num_chosen: expected <= {self.num_experts}, got {self.num_chosen}")
        width = inputs.shape[-1]
        mlp_dim = self.mlp_dim or round((8 / 3 if self.gated else 4) * width)
        router = Linear(self.num_experts, False, self.kernel_init, name="router")
        wide = jnp.promote_types(inputs.dtype, jnp.float32)
        scores_LE = router(inputs.astype(wide))
        share = jax.nn.softmax if self.router == "softmax" else jax.nn.sigmoid
        shares_LE = share(scores_LE)
        ranked_LE = shares_LE + self._biases() if self.bias_rate else scores_LE
        _, chosen = jax.lax.top_k(ranked_LE, self.num_chosen)
        taken_LE = jax.nn.one_hot(chosen, self.num_experts, dtype=wide).sum(-2)
        gates_LE = shares_LE * taken_LE
        if self.normalised and self.num_chosen > 1:  # one alone would be 1, and teach nothing
            gates_LE = gates_LE / (gates_LE.sum(-1, keepdims=True) + _LEAST)
        if self.share_gain != 1:
            gates_LE = gates_LE * self.share_gain
        if self.router == "sigmoid":  # the balance loss reads shares that sum to 1
            shares_LE = shares_LE / (shares_LE.sum(-1, keepdims=True) + _LEAST)
        used_E, asked_E = (_mean(values, is_token) for values in (taken_LE, shares_LE))
        used_E = used_E / self.num_chosen
        balance = self.num_experts * (jax.lax.stop_gradient(used_E) * asked_E).sum(-1)
        self.sow("losses", "balance", self.balance * balance)
        if self.bias_rate and chosen.size and self.is_mutable_collection("state"):
            self._count(used_E.reshape(-1, self.num_experts).mean(0))
        mixed = self._mixed(inputs, chosen, gates_LE, mlp_dim)
        return mixed + self._shared(inputs, mlp_dim) if self.num_shared else mixed

    def _mixed(self, inputs: Array, chosen: Array, gates: Array, mlp_dim: int) -> Array:
        """Sums the outputs of the chosen experts, times gates [..., L, E]: [..., L, D]."""
        names, init = ("gate", "up") if self.gated else ("up",), self.kernel_init
        read = [Experts(self.num_experts, mlp_dim, init, self.dtype, name=n) for n in names]
        out_init = self.out_init or self.kernel_init
        down = Experts(self.num_experts, inputs.shape[-1], out_init, self.dtype, name="down")
        if self.computed == "chosen" and chosen.size:  # without tokens there are no blocks
            gates_Lk = jnp.take_along_axis(gates, chosen, axis=-1)
            return self._of_chosen(inputs, chosen, gates_Lk, read, down)
        hidden_LEF = site(self, "hidden", self._activated([e(inputs[..., None, :]) for e in read]))
        written_LED = down(hidden_LEF)
        return (written_LED * gates[..., None].astype(written_LED.dtype)).sum(-2)

    def _activated(self, read: list[Array]) -> Array:
        """Returns the hidden features, from those of the up maps, or of the gates and up maps."""
        return self.activation(read[0]) * read[1] if self.gated else self.activation(read[0])

    def _shared(self, inputs: Array, mlp_dim: int) -> Array:
        """Applies the shared experts: [..., L, D] -> [..., L, D]."""
        make = GatedFeedForward if self.gated else FeedForward
        sizes = (mlp_dim * self.num_shared, self.activation, False)
        inits = (self.kernel_init, self.out_init, self.dtype)
        written = make(*sizes, *inits, name="shared")(inputs)
        if not self.shared_gate:
            return written
        gate = Linear(1, False, self.kernel_init, self.dtype, name="shared_gate")(inputs)
        return jax.nn.sigmoid(gate) * written

    def _biases(self) -> Array:
        """Returns the biases [E] after the latest update, float32."""
        zeros = jnp.zeros(self.num_experts)
        bias, load = (self.get_variable("state", name, zeros) for name in ("bias", "load"))
        # The loads are kept instead of the new biases: means of them over the parts of a batch are
        # those of the whole batch.
        return bias + self.bias_rate * jnp.sign(load.mean() - load)

    def _count(self, load: Array) -> None:
        """Stores the biases that were used, and the loads of the experts, [E]."""
        is_first = self.is_initializing()
        bias = jnp.zeros(self.num_experts) if is_first else self._biases()
        self.put_variable("state", "bias", bias)
        self.put_variable("state", "load", jnp.zeros_like(load) if is_first else load)

    def _of_chosen(
        self, inputs: Array, chosen: Array, gates: Array, up: list["Experts"], down: "Experts"
    ) -> Array:
        """Sums the chosen experts' outputs: [..., L, D], [..., L, k] twice -> [..., L, D]."""
        k = self.num_chosen
        routes = routes_of(chosen.reshape(-1, k), self.num_experts, self.block)
        blocks_NCD = routes.to_blocks(inputs.reshape(-1, inputs.shape[-1]))
        pairs = [routes.to_pairs(each.of_blocks(blocks_NCD, routes.expert)) for each in up]
        read = [each.reshape(*chosen.shape, each.shape[-1]) for each in pairs]
        hidden = site(self, "hidden", self._activated(read))
        filled_NCF = routes.pairs_to_blocks(hidden.reshape(-1, k, hidden.shape[-1]))
        written = routes.to_pairs(down.of_blocks(filled_NCF, routes.expert))
        weighted = written.reshape(*chosen.shape, -1) * gates[..., None].astype(written.dtype)
        return weighted.sum(-2)


def _mean(values: Array, is_token: Array | None) -> Array:
    """Returns the mean over tokens, [..., E], of values [..., L, E]; 0 without a token."""
    if is_token is None:
        return values.mean(-2)
    counted = is_token[..., None]
    return jnp.where(counted, values, 0).sum(-2) / jnp.maximum(counted.sum(-2), 1)


class Experts(nn.Module):
    """One linear map per expert, in one kernel [E, D, F]."""

    num_experts: int
    features: int
    kernel_init: Initializer
    dtype: DTypeLike | None = None

    def __call__(self, inputs: Array) -> Array:
        """[..., E, D] (or [..., 1, D] for all of them) -> [..., E, features]."""
        inputs, kernel_EDF = self._promoted(inputs)
        each_ED = jnp.broadcast_to(inputs, (*inputs.shape[:-2], self.num_experts, inputs.shape[-1]))
        return jnp.einsum("...ED,EDF->...EF", each_ED, kernel_EDF)

    def of_blocks(self, blocks: Array, expert: Array) -> Array:
        """Applies the expert of each block: [N, C, D], [N] int -> [N, C, features]."""
        blocks, kernel_EDF = self._promoted(blocks)
        return jnp.einsum("NCD,NDF->NCF", blocks, kernel_EDF[expert])

    @nn.compact
    def _promoted(self, inputs: Array) -> tuple[Array, Array]:
        shape = (inputs.shape[-1], self.features)

        def draw(key: Array, _: tuple[int, ...]) -> Array:
            """Returns the kernels [E, D, F], each drawn as for a separate layer of shape [D, F]."""
            keys = jax.random.split(key, self.num_experts)
            return jax.vmap(lambda one: self.kernel_init(one, shape))(keys)

        kernel_EDF = self.param("kernel", draw, (self.num_experts, *shape))
        return tuple(promote_dtype(inputs, kernel_EDF, dtype=self.dtype))


class Routes(NamedTuple):
    """Assignment of N tokens, with k experts each, to rows in blocks of b; one expert per block.

    No token is dropped: an expert gets as many blocks as its tokens fill
    (Gale et al. 2022, arXiv:2211.15841, section 4, with whole blocks instead of a sparse kernel).
    Plain gathers and batched products run under jit, vmap and grad; ragged_dot in jax 0.10 has no
    gradient under vmap, and computes all experts on a CPU.

    Attributes:
      place: [N, k] int, row for each chosen expert of each token, counted over all blocks.
      token: [blocks * b] int, token of each row; N for an empty row.
      expert: [blocks] int, expert of each block.
    """

    place: Array
    token: Array
    expert: Array

    def to_blocks(self, rows: Array) -> Array:
        """[N, D] -> [blocks, b, D], 0 in empty rows."""
        wide = jnp.concatenate([rows, jnp.zeros_like(rows[:1])])
        return wide[self.token].reshape(len(self.expert), -1, rows.shape[-1])

    def pairs_to_blocks(self, pairs: Array) -> Array:
        """[N, k, F] -> [blocks, b, F], 0 in empty rows."""
        flat = jnp.zeros((len(self.token), pairs.shape[-1]), pairs.dtype)
        filled = flat.at[self.place.reshape(-1)].set(pairs.reshape(-1, pairs.shape[-1]))
        return filled.reshape(len(self.expert), -1, pairs.shape[-1])

    def to_pairs(self, blocks: Array) -> Array:
        """[blocks, b, F] -> [N, k, F]."""
        return blocks.reshape(-1, blocks.shape[-1])[self.place]


def routes_of(chosen: Array, num_experts: int, block: int) -> Routes:
    """Returns routes that give each token a row in a block of each of its experts.

    Args:
      chosen: Chosen experts, [N, k] int.
      num_experts: Number of experts, E.
      block: Number of rows in a block, b.
    """
    pairs, k = chosen.size, chosen.shape[-1]
    of_pair = chosen.reshape(-1)
    one_hot = of_pair[:, None] == jnp.arange(num_experts)
    rank = (jnp.cumsum(one_hot, axis=0) - 1)[jnp.arange(pairs), of_pair]  # within its expert
    blocks = -(-one_hot.sum(0) // block)
    ends = jnp.cumsum(blocks)
    slot = (ends - blocks)[of_pair] * block + rank
    # Each expert leaves at most one block unfilled.
    count = -(-pairs // block) + min(num_experts, pairs)
    token = jnp.full(count * block, len(chosen), jnp.int32)
    token = token.at[slot].set(jnp.arange(pairs, dtype=jnp.int32) // k)
    expert = jnp.searchsorted(ends, jnp.arange(count), side="right")
    return Routes(slot.reshape(chosen.shape), token, jnp.minimum(expert, num_experts - 1))
