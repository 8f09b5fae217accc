"""The residual block: attention, feed-forward layer and norms, wired together.

Each wiring is a class whose `__call__` reads from top to bottom; WIRINGS names these classes.
Besides the residual stream, a block takes a `Context` and a carry of values for later blocks.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.cache import CacheSlot
from transformer_jax.linear import Checked, ModuleFactory
from transformer_jax.masks import Mask
from transformer_jax.options import GivenShare
from transformer_jax.positions import NO_TERMS, PositionTerms, Sizes
from transformer_jax.sites import site


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Carry:
    """Outputs of earlier blocks, by name.

    A part of a block reads it and adds to it through `context.carry`; the block passes it on. In a
    scan over blocks (`scan_layers`), where arrays of all blocks cannot be told apart, the first and
    the latest output under each name are kept.

    Attributes:
      outputs: All outputs in order, by name; the first and the latest one in a scan.
      is_begun: Whether there is an output yet, by name, as arrays of bool; None outside a scan.
    """

    outputs: dict[str, tuple] = dataclasses.field(default_factory=dict)
    is_begun: dict[str, Array] | None = None

    def hand_on(self, name: str, value: Any) -> None:
        """Adds an output, a tree of arrays, for later blocks."""
        if self.is_begun is None:
            self.outputs[name] = (*self.outputs.get(name, ()), value)
        else:
            self.outputs[name] = self.first(name, value), value
            self.is_begun[name] = jnp.bool_(True)

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
        if self.is_begun is not None:
            raise ValueError(
                f"scan_layers: {who} reads the outputs of all earlier blocks, but a scan keeps "
                "only those of the first and the previous one; set scan_layers=False"
            )
        return self.outputs.get(name, ())

    def _output(self, name: str, index: int, otherwise: Any) -> Any:
        held = self.outputs.get(name)
        if not held and otherwise is None:
            raise ValueError(f"no earlier block has handed on {name!r}")
        if not held:
            return otherwise
        begun = self.is_begun
        if begun is None or otherwise is None:
            return held[index]
        return jax.tree.map(lambda a, b: jnp.where(begun[name], a, b), held[index], otherwise)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
    """Inputs of a block besides the residual stream.

    Attributes:
      mask: [..., L, L] or [..., H, L, L] bool, True = may attend; or a Mask.
      terms: Position terms for self-attention.
      memory: Output of an encoder, [..., M, D]; without it there is no cross-attention.
      memory_mask: Positions of the memory that may be attended to, [..., L, M] or [..., H, L, M].
      tokens: Tokens of the input, [..., L] int; None if the input is not text.
      is_token: False where a position is padding, [..., L] bool; None if none is.
      embedded: Input of the first block, [..., L, D].
      carry: Outputs of earlier blocks, to which a part may add.
      slot: Slot in the KV cache for the keys and values of self-attention.
      layer: Index of the block.
      sizes: Sizes of the model, for mixers.
      train: Whether dropout is on.
    """

    mask: Array | Mask | None = None
    terms: PositionTerms = NO_TERMS
    memory: Array | None = None
    memory_mask: Array | None = None
    tokens: Array | None = None
    is_token: Array | None = None
    embedded: Array | None = None
    carry: Carry = dataclasses.field(default_factory=Carry)
    slot: CacheSlot | None = None
    layer: int | Array = 0
    sizes: Sizes = dataclasses.field(default=Sizes(1), metadata={"static": True})
    train: bool = dataclasses.field(default=False, metadata={"static": True})


class Block(Checked):
    """Base class of blocks, which holds the parts that subclasses wire together.

    The parts come as factories (a class, or a partial of one) and are named here, so the paths of
    the parameters are the same for every wiring.

    Attributes:
      attention: Factory of the modules for self-attention and cross-attention.
      feed_forward: Factory of the feed-forward module, or None for a block without one.
      norm: Factory of a norm.
      mixer: Factory of the replacement for self-attention, a module that maps inputs [..., L, D]
        and a Context to [..., L, D], or None for attention.
      convolution: Factory of a module that changes what self-attention and the feed-forward layer
        read, from inputs [..., L, D] and a Context, or None.
      dropout_rate: Dropout rate of each branch's output in training.
      stochastic_depth: Fraction of examples that skip a branch of the last block in training;
        earlier blocks skip proportionally fewer (Huang et al. 2016, arXiv:1603.09382).
      depth: Number of blocks in the stack, N.
      side: "encoder" or "decoder" in a model that has both, else "".
      final_norm: Whether the stack must end with a norm because its last sum is not normalised.
    """

    attention: ModuleFactory
    feed_forward: ModuleFactory | None
    norm: ModuleFactory
    mixer: ModuleFactory | None = None
    convolution: ModuleFactory | None = None
    dropout_rate: GivenShare = 0.0
    stochastic_depth: GivenShare = 0.0
    depth: int = 1
    side: str = ""
    final_norm: ClassVar[bool] = True

    @classmethod
    def branch_gain(cls, depth: int, side: str) -> float:
        """Returns the factor for the initial standard deviation of value and output kernels."""
        return 1.0

    @classmethod
    def enter(cls, embedded: Array, **options: Any) -> Array:
        """Returns the stream of the first block, e.g. several, [..., n, L, D], from [..., L, D].

        `options` are those of the wiring.
        """
        return embedded

    @classmethod
    def leave(cls, hidden: Array, carry: Carry, **options: Any) -> Array:
        """Returns the output [..., L, D] of all blocks; it may create modules of the stack."""
        return hidden

    def __call__(self, hidden: Array, carry: Carry, context: Context) -> tuple[Array, Carry]:
        """Maps the residual stream [..., L, D] and the carry to their values after the block."""
        raise NotImplementedError

    # The parts, to be called inside the compact `__call__` of a wiring. They are not wrapped by
    # flax, so that profilers show `block_0/attention` and not `block_0.mix/attention`.

    @nn.nowrap
    def mix(self, hidden: Array, carry: Carry, context: Context) -> Array:
        """Applies self-attention, or the mixer: [..., L, D] -> [..., L, D]."""
        context = dataclasses.replace(context, carry=carry)
        hidden = self._convolved(self.kind, site(self, f"{self.kind}.input", hidden), context)
        if self.mixer is not None:
            return site(self, "mixer.out", self.mixer(name="mixer")(hidden, context))
        mixed = self.attention(name="attention")(
            hidden,
            mask=context.mask,
            terms=context.terms,
            slot=context.slot,
            layer=context.layer,
            train=context.train,
            context=context,
        )
        return site(self, "attention.out", mixed)

    @nn.nowrap
    def attend_memory(self, hidden: Array, context: Context) -> Array:
        """Applies cross-attention to the memory (Vaswani et al. 2017, section 3.1)."""
        read = site(self, "cross_attention.input", hidden)
        attention = self.attention(name="cross_attention")
        mixed = attention(
            read, context.memory, mask=context.memory_mask, layer=context.layer, train=context.train
        )
        return site(self, "cross_attention.out", mixed)

    @nn.nowrap
    def feed(self, hidden: Array, context: Context) -> Array:
        """Applies the feed-forward layer: [..., L, D] -> [..., L, D]."""
        assert self.feed_forward is not None
        hidden = site(self, "feed_forward.input", hidden)
        hidden = self._convolved("feed_forward", hidden, context)
        feed = self.feed_forward(name="feed_forward")
        hidden = feed(hidden, context.is_token) if hasattr(feed, "reads_padding") else feed(hidden)
        return site(self, "feed_forward.out", hidden)

    @nn.nowrap
    def _convolved(self, branch: str, hidden: Array, context: Context) -> Array:
        if self.convolution is None:
            return hidden
        return self.convolution(name=f"{branch}_convolution")(hidden, context)

    @nn.nowrap
    def normed(self, branch: str, hidden: Array) -> Array:
        """Applies the norm of a branch: [..., L, D] -> [..., L, D]."""
        return self.norm(name=f"{branch}_norm")(hidden)

    @property
    def kind(self) -> str:
        """Name of the layer that mixes positions, "attention" or "mixer"."""
        return "attention" if self.mixer is None else "mixer"

    @nn.nowrap
    def branch_dropout(self, context: Context) -> Callable[[Array], Array]:
        """Returns the function applied to a branch's output: dropout, then stochastic depth."""
        dropout = nn.Dropout(self.dropout_rate, deterministic=not context.train)
        if not self.stochastic_depth or not context.train:
            return dropout
        drop_branch = BranchDropout()
        rate = self.stochastic_depth * (context.layer + 1) / self.depth
        return lambda branch: drop_branch(dropout(branch), rate)


class BranchDropout(nn.Module):
    """Dropout of a whole branch for random examples; for the others, the branch is scaled up."""

    @nn.compact
    def __call__(self, branch: Array, rate: float | Array) -> Array:
        """[..., L, D] and a rate in [0, 1) -> [..., L, D]."""
        shape = (*branch.shape[:-2], 1, 1)
        is_kept = jax.random.bernoulli(self.make_rng("dropout"), 1 - rate, shape)
        return jnp.where(is_kept, branch / (1 - rate), 0).astype(branch.dtype)


class PreNorm(Block):
    """x + f(norm(x)): GPT-2's and ViT's wiring (Xiong et al. 2020, arXiv:2002.04745, section 3)."""

    @nn.compact
    def __call__(self, hidden: Array, carry: Carry, context: Context) -> tuple[Array, Carry]:
        """[..., L, D] -> [..., L, D]; parts may add to the carry."""
        drop = self.branch_dropout(context)
        hidden = hidden + drop(self.mix(self.normed(self.kind, hidden), carry, context))
        if context.memory is not None:
            normed = self.normed("cross_attention", hidden)
            hidden = hidden + drop(self.attend_memory(normed, context))
        if self.feed_forward is not None:
            hidden = hidden + drop(self.feed(self.normed("feed_forward", hidden), context))
        return site(self, "residual", hidden), carry


class PostNorm(Block):
    """norm(x + f(x)): the original transformer's wiring (Vaswani et al. 2017, section 3.1)."""

    final_norm: ClassVar[bool] = False

    @nn.compact
    def __call__(self, hidden: Array, carry: Carry, context: Context) -> tuple[Array, Carry]:
        """[..., L, D] -> [..., L, D]; parts may add to the carry."""
        drop = self.branch_dropout(context)
        hidden = self.normed(self.kind, hidden + drop(self.mix(hidden, carry, context)))
        if context.memory is not None:
            attended = drop(self.attend_memory(hidden, context))
            hidden = self.normed("cross_attention", hidden + attended)
        if self.feed_forward is not None:
            hidden = self.normed("feed_forward", hidden + drop(self.feed(hidden, context)))
        return site(self, "residual", hidden), carry


_VARIANTS = "transformer_jax.variants"
WIRINGS = {
    "pre": PreNorm,
    "post": PostNorm,
    "sandwich": f"{_VARIANTS}.wirings:SandwichNorm",
    "parallel": f"{_VARIANTS}.wirings:Parallel",
    "no_residual": f"{_VARIANTS}.wirings:NoResidual",
    "rezero": f"{_VARIANTS}.wirings:ReZero",
    "layer_scale": f"{_VARIANTS}.wirings:LayerScale",
    "deep_norm": f"{_VARIANTS}.wirings:DeepNorm",
    "normalised": f"{_VARIANTS}.normalised:NormalisedResidual",
    "depth_scaled": f"{_VARIANTS}.wirings:DepthScaledNorm",
    "per_layer_embeddings": f"{_VARIANTS}.embeddings:PerLayerEmbeddings",
    "hyper_connections": f"{_VARIANTS}.hyper_connections:HyperConnections",
    "manifold_hyper_connections": f"{_VARIANTS}.hyper_connections:ManifoldHyperConnections",
    "attention_residuals": f"{_VARIANTS}.attention_residuals:AttentionResiduals",
}
"""Wirings by name: classes, or "module:Class" strings that are imported when chosen."""

MIXERS = {
    "attention": "transformer_jax.attention:MultiHeadAttention",
    "shared_attention": f"{_VARIANTS}.shared_attention:SharedAttention",
    "latent_attention": f"{_VARIANTS}.latent_attention:LatentAttention",
    "delta_net": f"{_VARIANTS}.delta_net:DeltaNet",
    "state_space": f"{_VARIANTS}.mamba:StateSpace",
}
"""Layers that mix positions, by name.

Each is constructed with use_bias, dtype, and the initialisers kernel_init and out_init of its
kernels. Mixers other than attention are called with inputs [..., L, D] and a Context.
"""


CONVOLUTIONS = {"none": None, "canon": f"{_VARIANTS}.convolutions:CanonConvolution"}
"""Convolutions of what a branch reads, [..., L, D], given a Context, by name; None for none."""


def refuse_terms_of_scores(who: str, context: Context) -> None:
    """Raises ValueError if a mixer without scores gets a rotation or a bias."""
    if context.terms.rotation is not None or context.terms.bias is not None:
        raise ValueError(
            f"position: {who} has no scores to which positions could be added; expected positions "
            "that are added to the embeddings, or none"
        )
