"""What a transformer is made of: the options that models take as one value. No jax here."""

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
    """What a transformer is made of: the options that models take as one value.

    A field that names a variant may hold a class, or a partial of one, instead. `..._options` hold
    the options of the chosen variants, and `layer_types` by letter what types of layers have
    otherwise.
    """

    width: Annotated[
        Count,
        Doc("Model width, D."),
    ] = 128

    depth: Annotated[
        Natural,
        Doc("Number of blocks."),
    ] = 4

    num_heads: Annotated[
        Count,
        Doc("Attention heads, H; a divisor of width unless head_dim is given."),
    ] = 4

    num_kv_heads: Annotated[
        Count | None,
        Doc(
            "Heads of keys and values, G, a divisor of H; H if not given; 1 is multi-query "
            "attention."
        ),
    ] = None

    head_dim: Annotated[
        Count | None,
        Doc("Features of one head, K; width / num_heads if not given."),
    ] = None

    value_dim: Annotated[
        Count | None,
        Doc("Features of one head's values, V; head_dim if not given."),
    ] = None

    mlp_dim: Annotated[
        Count | None,
        Doc(
            "Features inside the feed-forward layer, F; if not given 4 * width, or 8/3 of the "
            "width where a gate makes it three maps."
        ),
    ] = None

    position: Annotated[
        str,
        Variant("positions:POSITIONS", "model.position_options"),
        Doc("A row of POSITIONS."),
    ] = "learned"

    mixer: Annotated[
        str,
        Variant("blocks:MIXERS", "model.mixer_options"),
        Doc("A row of MIXERS: what lets places exchange what they know."),
    ] = "attention"

    attention: Annotated[
        str,
        Variant("attention:ATTENTIONS", "model.attention_options"),
        Doc("A row of ATTENTIONS."),
    ] = "softmax"

    attention_scale: Annotated[
        Positive | None,
        Doc("What scores are multiplied with; 1 / sqrt(head_dim) if not given."),
    ] = None

    query_key_norm: Annotated[
        str,
        Variant("norms:NORMS", "model.norm_options"),
        Doc("A row of NORMS, for the queries and the keys of each head."),
    ] = "none"

    mask: Annotated[
        str,
        Variant("masks:MASKS", "model.mask_options"),
        Doc(
            "A row of MASKS: what self-attention hides beside the future, which a decoder hides "
            "anyway: full nothing more. causal is for an encoder, prefix and unmasked show the "
            "future."
        ),
    ] = "full"

    feed_forward: Annotated[
        str,
        Variant("feedforward:FEED_FORWARDS", "model.feed_forward_options"),
        Doc("A row of FEED_FORWARDS."),
    ] = "mlp"

    activation: Annotated[
        str,
        Variant("feedforward:ACTIVATIONS"),
        Doc("A row of ACTIVATIONS."),
    ] = "gelu"

    norm: Annotated[
        str,
        Variant("norms:NORMS", "model.norm_options"),
        Doc("A row of NORMS."),
    ] = "layer_norm"

    embedding_norm: Annotated[
        Switch,
        Doc("Whether a norm follows the sum of the embeddings, as in BERT and BART."),
    ] = False

    wiring: Annotated[
        str,
        Variant("blocks:WIRINGS", "model.wiring_options"),
        Doc("A row of WIRINGS."),
    ] = "pre"

    initialisation: Annotated[
        str,
        Variant("initialisation:INITIALISATIONS", "model.initialisation_options"),
        Doc("A row of INITIALISATIONS."),
    ] = "depth_scaled"

    parametrisation: Annotated[
        str,
        Variant("parametrisation:PARAMETRISATIONS", "model.parametrisation_options"),
        Doc(
            "A row of PARAMETRISATIONS: how initial values, rates and logits go with the width; "
            "standard, or muP."
        ),
    ] = "standard"

    layers: Annotated[
        LayerPattern,
        Doc(
            'Letters of layer types, one for each block and repeated over the depth, "LLLG" say; '
            "what is different stands in `layer_types.L`; empty: all blocks are alike."
        ),
    ] = ""

    distinct_blocks: Annotated[
        Count | None,
        Doc(
            "Blocks with parameters of their own, which the others share; None: all. 1 is "
            "ALBERT's (Lan et al. 2020, arXiv:1909.11942, section 3.1) and the universal "
            "transformer's."
        ),
    ] = None

    sharing: Annotated[
        Literal["cycle", "sequence"],
        Doc(
            "In a cycle (1 2 3 1 2 3) or in sequence (1 1 2 2 3 3), as Takase and Kiyono 2021 "
            "call them (arXiv:2104.06022, section 2)."
        ),
    ] = "cycle"

    skips: Annotated[
        str,
        Variant("models.stack:SKIPS", "model.skips_options"),
        Doc("A row of SKIPS: which earlier streams a block reads beside its own."),
    ] = "none"

    scan_layers: Annotated[
        Switch,
        Doc(
            "Whether blocks are a loop of the compiled program, of which a deep model's is "
            "shorter; to save memory it takes `remat` too. Caches and captured sites have blocks "
            "one by one, as without it."
        ),
    ] = False

    remat: Annotated[
        str,
        Variant("remat:REMATS", "model.remat_options"),
        Doc("A row of REMATS: what a training step keeps of each block for its backward pass."),
    ] = "none"

    use_bias: Annotated[
        Switch,
        Doc("Whether projections, feed-forward maps and norms have a bias."),
    ] = True

    dropout_rate: Annotated[
        Share,
        Doc(
            "Share dropped in training after the embedding, on the attention weights and after "
            "each branch."
        ),
    ] = 0.0

    attention_dropout_rate: Annotated[
        Share | None,
        Doc("Share of the attention weights alone; dropout_rate if not given."),
    ] = None

    stochastic_depth: Annotated[
        Share,
        Doc(
            "Share of the examples for which the last block's branches are left out in training; "
            "earlier blocks have proportionally less (Huang et al. 2016, arXiv:1603.09382)."
        ),
    ] = 0.0

    init_std: Annotated[
        Positive,
        Doc("Deviation of the initial values."),
    ] = 0.02

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
        """How many blocks a scan repeats."""
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
