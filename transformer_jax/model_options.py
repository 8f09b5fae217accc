"""Options of a transformer, as one hashable value. Nothing here imports jax."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Predicate

from transformer_jax.options import (
    Count,
    Form,
    FrozenOptions,
    Natural,
    Positive,
    Share,
    Switch,
    Variant,
    check_values,
)

LayerPattern = Annotated[
    str,
    Predicate(lambda pattern: re.fullmatch(r"[A-Za-z]*", pattern) is not None),
    Form("letters, one for each block, repeated over the depth", "LLLG"),
]


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """Options of a transformer, as one hashable value.

    A field that names a variant may hold a class, or a partial of one, instead. The `..._options`
    fields hold the options of the chosen variants. `layer_types` holds, by letter, the options in
    which a type of layer differs.

    Attributes:
      width: Model width, D.
      depth: Number of blocks.
      num_heads: Number of attention heads, H; must divide width unless head_dim is given.
      num_kv_heads: Number of key and value heads, G, a divisor of H; H if None.
      head_dim: Number of features of one head, K; width / num_heads if None.
      value_dim: Number of features of one head's values, V; head_dim if None.
      mlp_dim: Number of features inside the feed-forward layer, F. If None, 4 * width, or 8/3 *
        width for gated layers, which have three matrices.
      position: Position encoding.
      mixer: Layer that mixes positions: attention, or a recurrence.
      attention: Variant of attention.
      attention_scale: Factor that multiplies the scores; 1 / sqrt(head_dim) if None.
      query_key_norm: Norm of the queries and keys of each head.
      values: Change of the values of self-attention.
      head_output: Change of the outputs of the heads of self-attention.
      convolution: Short convolution of what self-attention and the feed-forward layer read.
      stem: Change of the embedded input before the first block.
      heads: Further predictions of a decoder in training, besides that of the next token.
      mask: Mask of self-attention, in addition to the causal mask of a decoder: full hides nothing
        more; causal is for encoders; prefix and unmasked show the future.
      feed_forward: Feed-forward layer.
      activation: Activation of the feed-forward layer.
      norm: Normalisation.
      embedding_norm: Adds a norm after the sum of the embeddings, as in BERT and BART.
      wiring: Wiring of attention, feed-forward layer and norms in a block.
      initialisation: Initial values.
      parametrisation: Scaling of initial values, learning rates and logits with the width.
      layers: Layer types by letter, one per block and repeated over the depth, e.g. "LLLG";
        `layer_types.L` says how blocks of type L differ. If empty, all blocks are alike.
      distinct_blocks: Number of blocks that have their own parameters, which the other blocks
        share; all blocks if None. ALBERT (Lan et al. 2020, arXiv:1909.11942, section 3.1) and the
        universal transformer have 1.
      sharing: Order of shared blocks: in a cycle (1 2 3 1 2 3) or in sequence (1 1 2 2 3 3); see
        Takase and Kiyono 2021, arXiv:2104.06022, section 2.
      skips: Skip connections from earlier blocks.
      scan_layers: Runs the blocks as a loop (nn.scan), so that deep models compile faster; combine
        it with `remat` to save memory. Caches and captured sites keep one entry per block.
      remat: Rematerialisation: the values that a block keeps for the backward pass.
      use_bias: Gives projections, feed-forward layers and norms a bias.
      dropout_rate: Rate of dropout on the embedded input, attention weights and each branch.
      attention_dropout_rate: Rate of dropout on the attention weights alone; dropout_rate if None.
      stochastic_depth: Share of examples that skip the branches of the last block in training;
        earlier blocks skip proportionally less (Huang et al. 2016, arXiv:1603.09382).
      init_std: Standard deviation of the initial values.
    """

    width: Count = 128
    depth: Natural = 4
    num_heads: Count = 4
    num_kv_heads: Count | None = None
    head_dim: Count | None = None
    value_dim: Count | None = None
    mlp_dim: Count | None = None
    position: Annotated[str, Variant("positions:POSITIONS", "model.position_options")] = "learned"
    mixer: Annotated[str, Variant("blocks:MIXERS", "model.mixer_options")] = "attention"
    attention: Annotated[str, Variant("attention:ATTENTIONS", "model.attention_options")] = (
        "softmax"
    )
    attention_scale: Positive | None = None
    query_key_norm: Annotated[str, Variant("norms:NORMS", "model.norm_options")] = "none"
    values: Annotated[str, Variant("attention:VALUES", "model.values_options")] = "none"
    head_output: Annotated[str, Variant("attention:HEAD_OUTPUTS", "model.head_output_options")] = (
        "none"
    )
    convolution: Annotated[str, Variant("blocks:CONVOLUTIONS", "model.convolution_options")] = (
        "none"
    )
    stem: Annotated[str, Variant("models.stack:STEMS", "model.stem_options")] = "none"
    heads: Annotated[str, Variant("models.stack:HEADS", "model.heads_options")] = "none"
    mask: Annotated[str, Variant("masks:MASKS", "model.mask_options")] = "full"
    feed_forward: Annotated[
        str, Variant("feedforward:FEED_FORWARDS", "model.feed_forward_options")
    ] = "mlp"
    activation: Annotated[str, Variant("feedforward:ACTIVATIONS")] = "gelu"
    norm: Annotated[str, Variant("norms:NORMS", "model.norm_options")] = "layer_norm"
    embedding_norm: Switch = False
    wiring: Annotated[str, Variant("blocks:WIRINGS", "model.wiring_options")] = "pre"
    initialisation: Annotated[
        str, Variant("initialisation:INITIALISATIONS", "model.initialisation_options")
    ] = "depth_scaled"
    parametrisation: Annotated[
        str, Variant("initialisation:PARAMETRISATIONS", "model.parametrisation_options")
    ] = "standard"
    layers: LayerPattern = ""
    distinct_blocks: Count | None = None
    sharing: Literal["cycle", "sequence"] = "cycle"
    skips: Annotated[str, Variant("models.stack:SKIPS", "model.skips_options")] = "none"
    scan_layers: Switch = False
    remat: Annotated[str, Variant("remat:REMATS", "model.remat_options")] = "none"
    use_bias: Switch = True
    dropout_rate: Share = 0.0
    attention_dropout_rate: Share | None = None
    stochastic_depth: Share = 0.0
    init_std: Positive = 0.02

    position_options: Mapping[str, Any] = FrozenOptions()
    mixer_options: Mapping[str, Any] = FrozenOptions()
    attention_options: Mapping[str, Any] = FrozenOptions()
    values_options: Mapping[str, Any] = FrozenOptions()
    head_output_options: Mapping[str, Any] = FrozenOptions()
    convolution_options: Mapping[str, Any] = FrozenOptions()
    stem_options: Mapping[str, Any] = FrozenOptions()
    heads_options: Mapping[str, Any] = FrozenOptions()
    mask_options: Mapping[str, Any] = FrozenOptions()
    feed_forward_options: Mapping[str, Any] = FrozenOptions()
    norm_options: Mapping[str, Any] = FrozenOptions()
    wiring_options: Mapping[str, Any] = FrozenOptions()
    skips_options: Mapping[str, Any] = FrozenOptions()
    remat_options: Mapping[str, Any] = FrozenOptions()
    initialisation_options: Mapping[str, Any] = FrozenOptions()
    parametrisation_options: Mapping[str, Any] = FrozenOptions()
    layer_types: Mapping[str, Mapping[str, Any]] = FrozenOptions()
    dtype: Any = None

    def __post_init__(self) -> None:
        """Raises ValueError, naming the option, if one is not allowed."""
        check_values(ModelOptions, vars(self))

    @property
    def unit(self) -> int:
        """Number of consecutive blocks that a scan repeats."""
        return max(1, len(self.layers))

    @classmethod
    def of(cls, **fields: Any) -> "ModelOptions":
        """Returns options with these fields; dicts may be given for the options of variants."""
        return cls(**FrozenOptions.of(fields))


# Options of the model that a type of layer may override, e.g. `model.layer_types.L.mask`.
LAYER_FIELDS = (
    *("mask", "mask_options", "position", "position_options", "mixer", "mixer_options"),
    *("attention", "attention_options", "attention_scale", "attention_dropout_rate"),
    *("values", "values_options", "head_output", "head_output_options"),
    *("convolution", "convolution_options"),
    *("query_key_norm", "num_heads", "num_kv_heads", "head_dim", "value_dim"),
    *("feed_forward", "feed_forward_options", "activation", "mlp_dim"),
)
