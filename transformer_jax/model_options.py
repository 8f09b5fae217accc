"""Options of a transformer, as one value. No jax here."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Predicate
from typing_extensions import Doc

from transformer_jax.errors import suggest
from transformer_jax.options import (
    Count,
    Form,
    FrozenOptions,
    Natural,
    Positive,
    Share,
    Switch,
    Variant,
)

LayerPattern = Annotated[
    str,
    Predicate(lambda pattern: re.fullmatch(r"[A-Za-z]*", pattern) is not None),
    Form("letters, one for each block, repeated over the depth", "LLLG"),
]


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """Options of a transformer, as one value.

    A field that names a variant may hold a class, or a partial of one, instead. `..._options` hold
    the options of the chosen variants, and `layer_types` by letter what types of layers have
    otherwise.
    """

    width: Annotated[Count, Doc("Model width, D.")] = 128

    depth: Annotated[Natural, Doc("Number of blocks.")] = 4

    num_heads: Annotated[
        Count, Doc("Attention heads, H; must divide width unless head_dim is given.")
    ] = 4

    num_kv_heads: Annotated[
        Count | None,
        Doc("Key and value heads, G, a divisor of H; H if None. 1 is multi-query attention."),
    ] = None

    head_dim: Annotated[
        Count | None, Doc("Features of one head, K; width / num_heads if None.")
    ] = None

    value_dim: Annotated[
        Count | None, Doc("Features of one head's values, V; head_dim if None.")
    ] = None

    mlp_dim: Annotated[
        Count | None,
        Doc(
            "Features inside the feed-forward layer, F. If None, 4 * width, or 8/3 * width for "
            "gated layers, which have three matrices."
        ),
    ] = None

    position: Annotated[
        str, Variant("positions:POSITIONS", "model.position_options"), Doc("Position encoding.")
    ] = "learned"

    mixer: Annotated[
        str,
        Variant("blocks:MIXERS", "model.mixer_options"),
        Doc("Layer that mixes positions: attention, or a recurrence."),
    ] = "attention"

    attention: Annotated[
        str,
        Variant("attention:ATTENTIONS", "model.attention_options"),
        Doc("Variant of attention."),
    ] = "softmax"

    attention_scale: Annotated[
        Positive | None, Doc("Factor of the scores; 1 / sqrt(head_dim) if None.")
    ] = None

    query_key_norm: Annotated[
        str,
        Variant("norms:NORMS", "model.norm_options"),
        Doc("Norm of the queries and keys of each head."),
    ] = "none"

    mask: Annotated[
        str,
        Variant("masks:MASKS", "model.mask_options"),
        Doc(
            "Mask of self-attention, in addition to the causal mask of a decoder: full hides "
            "nothing more; causal is for encoders; prefix and unmasked show the future."
        ),
    ] = "full"

    feed_forward: Annotated[
        str,
        Variant("feedforward:FEED_FORWARDS", "model.feed_forward_options"),
        Doc("Feed-forward layer."),
    ] = "mlp"

    activation: Annotated[
        str, Variant("feedforward:ACTIVATIONS"), Doc("Activation of the feed-forward layer.")
    ] = "gelu"

    norm: Annotated[str, Variant("norms:NORMS", "model.norm_options"), Doc("Normalisation.")] = (
        "layer_norm"
    )

    embedding_norm: Annotated[
        Switch, Doc("A norm follows the sum of the embeddings, as in BERT and BART.")
    ] = False

    wiring: Annotated[
        str,
        Variant("blocks:WIRINGS", "model.wiring_options"),
        Doc("Wiring of attention, feed-forward layer and norms in a block."),
    ] = "pre"

    initialisation: Annotated[
        str,
        Variant("initialisation:INITIALISATIONS", "model.initialisation_options"),
        Doc("Initial values."),
    ] = "depth_scaled"

    parametrisation: Annotated[
        str,
        Variant("parametrisation:PARAMETRISATIONS", "model.parametrisation_options"),
        Doc(
            "Scaling of initial values, learning rates and logits with the width: standard, or muP."
        ),
    ] = "standard"

    layers: Annotated[
        LayerPattern,
        Doc(
            'Layer types by letter, one per block and repeated over the depth, e.g. "LLLG"; '
            "`layer_types.L` says how blocks of type L differ. Empty: all blocks are alike."
        ),
    ] = ""

    distinct_blocks: Annotated[
        Count | None,
        Doc(
            "Number of blocks with their own parameters, which the other blocks share; all if "
            "None. 1 is ALBERT's (Lan et al. 2020, arXiv:1909.11942, section 3.1) and the "
            "universal transformer's."
        ),
    ] = None

    sharing: Annotated[
        Literal["cycle", "sequence"],
        Doc(
            "Order of shared blocks: in a cycle (1 2 3 1 2 3) or in sequence (1 1 2 2 3 3), "
            "Takase and Kiyono 2021, arXiv:2104.06022, section 2."
        ),
    ] = "cycle"

    skips: Annotated[
        str,
        Variant("models.stack:SKIPS", "model.skips_options"),
        Doc("Skip connections from earlier blocks."),
    ] = "none"

    scan_layers: Annotated[
        Switch,
        Doc(
            "Runs the blocks as a loop (nn.scan), so that deep models compile faster; to save "
            "memory combine it with `remat`. Caches and captured sites keep one entry per "
            "block."
        ),
    ] = False

    remat: Annotated[
        str,
        Variant("remat:REMATS", "model.remat_options"),
        Doc("Rematerialisation: what a block keeps for the backward pass."),
    ] = "none"

    use_bias: Annotated[Switch, Doc("Projections, feed-forward layers and norms have a bias.")] = (
        True
    )

    dropout_rate: Annotated[
        Share,
        Doc("Dropout rate after the embedding, of the attention weights and after each branch."),
    ] = 0.0

    attention_dropout_rate: Annotated[
        Share | None, Doc("Dropout rate of the attention weights alone; dropout_rate if None.")
    ] = None

    stochastic_depth: Annotated[
        Share,
        Doc(
            "Share of examples that skip the branches of the last block in training; earlier "
            "blocks skip proportionally less (Huang et al. 2016, arXiv:1603.09382)."
        ),
    ] = 0.0

    init_std: Annotated[Positive, Doc("Standard deviation of the initial values.")] = 0.02

    position_options: Mapping[str, Any] = FrozenOptions()
    mixer_options: Mapping[str, Any] = FrozenOptions()
    attention_options: Mapping[str, Any] = FrozenOptions()
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

    @property
    def unit(self) -> int:
        """Number of blocks that a scan repeats."""
        return max(1, len(self.layers))

    @classmethod
    def of(cls, **fields: Any) -> "ModelOptions":
        """Makes them of fields by name; dicts may be given for the options of variants.

        Raises:
          ValueError: There is no such field.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in fields:
            if name not in names:
                raise ValueError(f"{name}: no such option{suggest(name, names)}")
        return cls(**FrozenOptions.of(fields))


# Options of the model that a type of layer may have otherwise: `model.layer_types.L.mask`.
LAYER_FIELDS = (
    *("mask", "mask_options", "position", "position_options", "mixer", "mixer_options"),
    *("attention", "attention_options", "attention_scale", "attention_dropout_rate"),
    *("query_key_norm", "num_heads", "num_kv_heads", "head_dim", "value_dim"),
    *("feed_forward", "feed_forward_options", "activation", "mlp_dim"),
)
