"""The residual block: how attention, feed-forward layer and norms are wired together."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import flax.linen as nn
from jax import Array

from transformer_jax.layers.cache import CacheSlot
from transformer_jax.layers.linear import Initializer
from transformer_jax.layers.position_terms import NO_TERMS, PositionTerms
from transformer_jax.masks import Mask
from transformer_jax.options import InitialSize, Switch
from transformer_jax.sites import site

Branch = Callable[[Array], Array]
ModuleFactory = Callable[..., nn.Module]
Branches = Mapping[str, Branch]


class Wiring:
    """Sends a residual stream through the branches of a block; see WIRINGS.

    A wiring is called inside the block, so that the norms that it makes are the block's, under the
    branch's name, whatever the wiring.

    Attributes:
      final_norm: whether the stack ends with a norm: its last block's sum is not normalised yet.
    """

    final_norm: ClassVar[bool] = True

    @property
    def branch_gain(self) -> float:
        """Factor on the initial standard deviation of value kernels and of those that write out."""
        return 1.0

    def __call__(self, hidden: Array, branches: Branches, make_norm: ModuleFactory) -> Array:
        """[..., L, D] -> [..., L, D]."""
        for name, branch in branches.items():
            hidden = self._join(name, branch, hidden, make_norm)
        return hidden

    def _join(self, name: str, branch: Branch, hidden: Array, make_norm: ModuleFactory) -> Array:
        """One branch: [..., L, D] -> [..., L, D]."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class PreNorm(Wiring):
    """x + f(norm(x)): GPT-2's and ViT's wiring (Xiong et al. 2020, arXiv:2002.04745, section 3)."""

    def _join(self, name: str, branch: Branch, hidden: Array, make_norm: ModuleFactory) -> Array:
        return hidden + branch(make_norm(name=f"{name}_norm")(hidden))


@dataclasses.dataclass(frozen=True)
class PostNorm(Wiring):
    """norm(x + f(x)): the first transformer's wiring (Vaswani et al. 2017, section 3.1)."""

    final_norm: ClassVar[bool] = False

    def _join(self, name: str, branch: Branch, hidden: Array, make_norm: ModuleFactory) -> Array:
        return make_norm(name=f"{name}_norm")(hidden + branch(hidden))


@dataclasses.dataclass(frozen=True)
class SandwichNorm(Wiring):
    """x + norm(f(norm(x))): CogView's wiring (Ding et al. 2021, arXiv:2105.13290, section 2.4)."""

    def _join(self, name: str, branch: Branch, hidden: Array, make_norm: ModuleFactory) -> Array:
        inner = branch(make_norm(name=f"{name}_norm")(hidden))
        return hidden + make_norm(name=f"{name}_out_norm")(inner)


@dataclasses.dataclass(frozen=True)
class Parallel(Wiring):
    """x + f(norm(x)) + g(norm(x)): GPT-J's and GPT-NeoX's wiring (Black et al. 2022, section 2.1).

    arXiv:2204.06745.

    Attributes:
      share_norm: whether all branches read one norm, as in GPT-J, or each its own, as in GPT-NeoX.
    """

    share_norm: Switch = False

    def __call__(self, hidden: Array, branches: Branches, make_norm: ModuleFactory) -> Array:
        """[..., L, D] -> [..., L, D]."""
        first = next(iter(branches))
        read_by = [first] if self.share_norm else list(branches)
        normed = {name: make_norm(name=f"{name}_norm")(hidden) for name in read_by}
        for name, branch in branches.items():
            hidden = hidden + branch(normed.get(name, normed[first]))
        return hidden


@dataclasses.dataclass(frozen=True)
class NoResidual(Wiring):
    """f(norm(x)): what the residual connection is for (He et al. 2016, arXiv:1512.03385)."""

    def _join(self, name: str, branch: Branch, hidden: Array, make_norm: ModuleFactory) -> Array:
        return branch(make_norm(name=f"{name}_norm")(hidden))


@dataclasses.dataclass(frozen=True)
class ReZero(Wiring):
    """x + alpha f(x), alpha a learned number that starts at 0, and no norm at all.

    Bachlechner et al. 2020, arXiv:2003.04887, equation 2.
    """

    final_norm: ClassVar[bool] = False

    def _join(self, name: str, branch: Branch, hidden: Array, make_norm: ModuleFactory) -> Array:
        return hidden + Gain(1, nn.initializers.zeros, name=f"{name}_gain")(branch(hidden))


@dataclasses.dataclass(frozen=True)
class LayerScale(Wiring):
    """x + diag(gains) f(norm(x)), the gains learned (Touvron et al. 2021, arXiv:2103.17239, eq. 4).

    Attributes:
      initial: the gains at the start; the paper's 0.1 up to 18 blocks, 1e-5 up to 24, then 1e-6.
    """

    initial: InitialSize = 0.1

    def _join(self, name: str, branch: Branch, hidden: Array, make_norm: ModuleFactory) -> Array:
        inner = branch(make_norm(name=f"{name}_norm")(hidden))
        start = nn.initializers.constant(self.initial)
        return hidden + Gain(hidden.shape[-1], start, name=f"{name}_gain")(inner)


@dataclasses.dataclass(frozen=True)
class DeepNorm(Wiring):
    """norm(alpha x + f(x)): post-norm for very deep stacks, whose branches start smaller by beta.

    Values, the feed-forward layer and kernels that write are those of branches. Wang et al. 2022,
    arXiv:2203.00555, figure 2: an encoder or a decoder of N blocks alone has alpha = (2N)^(1/4) and
    beta = (8N)^(-1/4); with both, N blocks each, the encoder has 0.81 N^(5/16) and 0.87 N^(-5/16),
    the decoder (3N)^(1/4) and (12N)^(-1/4).

    Attributes:
      depth: number of blocks, N.
      side: encoder or decoder, where there are both.
    """

    depth: int
    side: str = ""
    final_norm: ClassVar[bool] = False

    @property
    def _gains(self) -> tuple[float, float]:
        """Alpha and beta."""
        blocks = max(self.depth, 1)
        if self.side == "encoder":
            return 0.81 * blocks ** (5 / 16), 0.87 * blocks ** (-5 / 16)
        stretch = 3 if self.side == "decoder" else 2
        return (stretch * blocks) ** 0.25, (4 * stretch * blocks) ** -0.25

    @property
    def branch_gain(self) -> float:
        """Beta."""
        return self._gains[1]

    def _join(self, name: str, branch: Branch, hidden: Array, make_norm: ModuleFactory) -> Array:
        return make_norm(name=f"{name}_norm")(self._gains[0] * hidden + branch(hidden))


class Gain(nn.Module):
    """Multiplies each feature, or all by the same number, with something learned."""

    features: int
    initial: Initializer

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., D]."""
        gain = self.param("gain", self.initial, (self.features,))
        return inputs * gain.astype(inputs.dtype)


WIRINGS = {
    "pre": PreNorm,
    "post": PostNorm,
    "sandwich": SandwichNorm,
    "parallel": Parallel,
    "no_residual": NoResidual,
    "rezero": ReZero,
    "layer_scale": LayerScale,
    "deep_norm": DeepNorm,
}


class Block(nn.Module):
    """Attention or what takes its place, and a feed-forward layer, joined by a wiring.

    Given a memory, there is cross-attention over it in between (Vaswani et al. 2017, section 3.1).

    The parts come as factories (a class, or a partial of one) and are named here, so the paths of
    the parameters are the same whatever the wiring.

    Attributes:
      attention: makes the attention module, for the memory too.
      feed_forward: makes the feed-forward module, or None for a block without one.
      norm: makes a norm.
      wiring: how they are joined.
      dropout_rate: share of each branch's output that is dropped in training.
      branch_dropout_rate: share of the examples for which a whole branch is left out in training.
      mixer: makes what takes the place of self-attention, see mixers; None: attention does.
    """

    attention: ModuleFactory
    feed_forward: Callable[..., nn.Module | None]
    norm: ModuleFactory
    wiring: Wiring = PreNorm()
    dropout_rate: float = 0.0
    branch_dropout_rate: float = 0.0
    mixer: ModuleFactory | None = None

    @nn.compact
    def __call__(
        self,
        inputs: Array,
        memory: Array | None = None,
        *,
        mask: Array | Mask | None = None,
        memory_mask: Array | None = None,
        terms: PositionTerms = NO_TERMS,
        slot: CacheSlot | None = None,
        train: bool = False,
    ) -> Array:
        """[..., L, D] -> [..., L, D].

        Args:
          inputs: [..., L, D].
          memory: [..., M, D], the output of an encoder; without it there is no cross-attention.
          mask: [..., L, L] or [..., H, L, L] bool, True = may attend; or a Mask.
          memory_mask: [..., L, M] or [..., H, L, M] bool, the same for the memory.
          terms: what the position encoding gives to self-attention.
          slot: where in a KV cache the inputs' keys and values go, for self-attention.
          train: whether dropout is on.
        """
        kind = "attention" if self.mixer is None else "mixer"
        mixer = (self.mixer or self.attention)(name=kind)
        feed_forward = self.feed_forward(name="feed_forward")
        dropout = nn.Dropout(self.dropout_rate, deterministic=not train)
        drop_branch = nn.Dropout(
            self.branch_dropout_rate, broadcast_dims=(-2, -1), deterministic=not train
        )

        def branch(name: str, layer: Callable[..., Array], **options: Any) -> Branch:
            def run(hidden_LD: Array) -> Array:
                hidden_LD = layer(site(self, f"{name}.input", hidden_LD), **options)
                return drop_branch(dropout(site(self, f"{name}.out", hidden_LD)))

            return run

        of_inputs = {"mask": mask, "terms": terms, "slot": slot, "train": train}
        branches = {kind: branch(kind, mixer, **of_inputs)}
        if memory is not None:
            cross = self.attention(name="cross_attention")
            of_memory = {"memory": memory, "mask": memory_mask, "train": train}
            branches["cross_attention"] = branch("cross_attention", cross, **of_memory)
        if feed_forward is not None:
            branches["feed_forward"] = branch("feed_forward", feed_forward)
        # The wiring makes its norms by self.norm inside this block, so their parameters are ours.
        return site(self, "residual", self.wiring(inputs, branches, self.norm))
