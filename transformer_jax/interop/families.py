"""Which of their architectures is which of our models, and which array is which.

A row of ARCHITECTURES is one class of Hugging Face's transformers.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer_jax.errors import InvalidInput
from transformer_jax.interop.layouts import (
    SAME,
    Entry,
    affine,
    embedding,
    leading_ones,
    norm,
    patches,
    rows_from,
)
from transformer_jax.models import Decoder, Encoder, EncoderDecoder, VisionTransformer

Config = Mapping[str, Any]
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_THEIR_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}


class Architecture(NamedTuple):
    """One of their classes.

    Attributes:
      make: their config -> our model.
      describe: our model -> their config.
      entries: our model -> all arrays.
      model: our class.
      prefix: what their names of the body begin with, in a model with a head.
      heads: what the names outside the body begin with.
      required: values of their config that our model has built in, where they are given.
      not_read: beginnings of names that our model has no use for.
      tied: copy -> name of the array that it has to equal.
      renames: parts of names as their objects have them -> as their files have them.
    """

    make: Callable[[Config], Any]
    describe: Callable[[Any], dict[str, Any]]
    entries: Callable[[Any], list[Entry]]
    model: type
    prefix: str
    heads: tuple[str, ...] = ()
    required: Mapping[str, Any] = {}
    not_read: tuple[str, ...] = ()
    tied: Mapping[str, str] = {}
    renames: Mapping[str, str] = {}


def _activation(config: Config, key: str) -> str:
    name = config[key]
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise InvalidInput(f"config.json: {key}={name}: expected one of {known}")
    return _ACTIVATIONS[name]


def _their_activation(model: Any) -> str:
    if model.activation not in _THEIR_ACTIVATIONS:
        known = ", ".join(_THEIR_ACTIVATIONS)
        raise InvalidInput(f"activation: expected one of {known}, got {model.activation}")
    return _THEIR_ACTIVATIONS[model.activation]


# ---------------------------------------------------------------- GPT-2


def _make_gpt2(config: Config) -> Decoder:
    return Decoder(
        vocab_size=config["vocab_size"],
        max_length=config["n_positions"],
        width=config["n_embd"],
        depth=config["n_layer"],
        num_heads=config["n_head"],
        mlp_dim=config.get("n_inner") or 4 * config["n_embd"],
        activation=_activation(config, "activation_function"),
        norm_epsilon=config["layer_norm_epsilon"],
        dropout_rate=config.get("resid_pdrop", 0.0),
    )


def _describe_gpt2(model: Decoder) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "vocab_size": model.vocab_size,
        "n_positions": model.max_length,
        "n_embd": model.width,
        "n_layer": model.depth,
        "n_head": model.num_heads,
        "n_inner": model.mlp_dim or 4 * model.width,
        "activation_function": _their_activation(model),
        "layer_norm_epsilon": model.norm_epsilon,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), model.dropout_rate),
    }


def _gpt2_entries(model: Decoder) -> list[Entry]:
    entries = embedding("token_embedding", "wte.weight") + embedding("positions", "wpe.weight")
    for layer in range(model.depth):
        ours, theirs = f"block_{layer}", f"h.{layer}"
        projections = tuple(f"{ours}/attention/{name}" for name in ("query", "key", "value"))
        # GPT-2's Conv1D keeps [in, out], as we do.
        entries += [
            *norm(f"{ours}/attention_norm", f"{theirs}.ln_1"),
            *affine(projections, f"{theirs}.attn.c_attn", SAME),
            *affine(f"{ours}/attention/out", f"{theirs}.attn.c_proj", SAME),
            *norm(f"{ours}/feed_forward_norm", f"{theirs}.ln_2"),
            *affine(f"{ours}/feed_forward/up", f"{theirs}.mlp.c_fc", SAME),
            *affine(f"{ours}/feed_forward/down", f"{theirs}.mlp.c_proj", SAME),
        ]
    return entries + norm("final_norm", "ln_f")


# ---------------------------------------------------------------- BERT


def _make_bert(num_classes: Callable[[Config], int | None]) -> Callable[[Config], Encoder]:
    def make(config: Config) -> Encoder:
        return Encoder(
            vocab_size=config["vocab_size"],
            max_length=config["max_position_embeddings"],
            num_types=config["type_vocab_size"],
            num_classes=num_classes(config),
            width=config["hidden_size"],
            depth=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            mlp_dim=config["intermediate_size"],
            activation=_activation(config, "hidden_act"),
            norm_epsilon=config["layer_norm_eps"],
            dropout_rate=config.get("hidden_dropout_prob", 0.0),
        )

    return make


def _describe_bert(model: Encoder) -> dict[str, Any]:
    labels = {} if not model.num_classes else _labels(model.num_classes)
    return {
        "model_type": "bert",
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_length,
        "type_vocab_size": model.num_types,
        "hidden_size": model.width,
        "num_hidden_layers": model.depth,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.mlp_dim or 4 * model.width,
        "hidden_act": _their_activation(model),
        "layer_norm_eps": model.norm_epsilon,
        "hidden_dropout_prob": model.dropout_rate,
        "attention_probs_dropout_prob": model.dropout_rate,
        **labels,
    }


def _bert_entries(model: Encoder) -> list[Entry]:
    entries = [
        *embedding("token_embedding", "embeddings.word_embeddings.weight"),
        *embedding("positions", "embeddings.position_embeddings.weight"),
        *embedding("type_embedding", "embeddings.token_type_embeddings.weight"),
        *norm("embedding_norm", "embeddings.LayerNorm"),
    ]
    for layer in range(model.depth):
        ours, theirs = f"block_{layer}", f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            entries += affine(f"{ours}/attention/{name}", f"{theirs}.attention.self.{name}")
        entries += [
            *affine(f"{ours}/attention/out", f"{theirs}.attention.output.dense"),
            *norm(f"{ours}/attention_norm", f"{theirs}.attention.output.LayerNorm"),
            *affine(f"{ours}/feed_forward/up", f"{theirs}.intermediate.dense"),
            *affine(f"{ours}/feed_forward/down", f"{theirs}.output.dense"),
            *norm(f"{ours}/feed_forward_norm", f"{theirs}.output.LayerNorm"),
        ]
    return entries


def _bert_classifier_entries(model: Encoder) -> list[Entry]:
    head = [*affine("pooler", "pooler.dense"), *affine("head", "classifier")]
    return _bert_entries(model) + head


def _bert_masked_entries(model: Encoder) -> list[Entry]:
    head = "cls.predictions"
    return [
        *_bert_entries(model),
        *affine("transform", f"{head}.transform.dense"),
        *norm("transform_norm", f"{head}.transform.LayerNorm"),
        Entry(("output_bias/bias",), f"{head}.bias"),
    ]


# ---------------------------------------------------------------- ViT


def _make_vit(num_classes: Callable[[Config], int]) -> Callable[[Config], VisionTransformer]:
    def make(config: Config) -> VisionTransformer:
        side = config["image_size"]
        return VisionTransformer(
            image_shape=(side, side, config["num_channels"]),
            num_classes=num_classes(config),
            patch_size=config["patch_size"],
            width=config["hidden_size"],
            depth=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            mlp_dim=config["intermediate_size"],
            activation=_activation(config, "hidden_act"),
            norm_epsilon=config["layer_norm_eps"],
            dropout_rate=config.get("hidden_dropout_prob", 0.0),
        )

    return make


def _describe_vit(model: VisionTransformer) -> dict[str, Any]:
    height, width, channels = model.image_shape
    if height != width:
        raise InvalidInput(f"image_shape: their ViT takes squares, got {height} x {width}")
    return {
        "model_type": "vit",
        "image_size": height,
        "num_channels": channels,
        "patch_size": model.patch_size,
        "hidden_size": model.width,
        "num_hidden_layers": model.depth,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.mlp_dim or 4 * model.width,
        "hidden_act": _their_activation(model),
        "layer_norm_eps": model.norm_epsilon,
        "hidden_dropout_prob": model.dropout_rate,
        "attention_probs_dropout_prob": model.dropout_rate,
        **({} if not model.num_classes else _labels(model.num_classes)),
    }


def _vit_entries(model: VisionTransformer) -> list[Entry]:
    projection = patches(model.patch_size, model.image_shape[2])
    entries = [
        *embedding("class_token", "embeddings.cls_token", leading_ones(1)),
        *embedding("positions", "embeddings.position_embeddings", leading_ones(1)),
        *affine("patches", "embeddings.patch_embeddings.projection", projection),
        *norm("final_norm", "layernorm"),
    ]
    for layer in range(model.depth):
        ours, theirs = f"block_{layer}", f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            entries += affine(f"{ours}/attention/{name}", f"{theirs}.attention.attention.{name}")
        entries += [
            *norm(f"{ours}/attention_norm", f"{theirs}.layernorm_before"),
            *affine(f"{ours}/attention/out", f"{theirs}.attention.output.dense"),
            *norm(f"{ours}/feed_forward_norm", f"{theirs}.layernorm_after"),
            *affine(f"{ours}/feed_forward/up", f"{theirs}.intermediate.dense"),
            *affine(f"{ours}/feed_forward/down", f"{theirs}.output.dense"),
        ]
    return entries


def _vit_classifier_entries(model: VisionTransformer) -> list[Entry]:
    return _vit_entries(model) + affine("head", "classifier")


_VIT_RENAMES = {  # transformers 5 renames in memory what its files keep
    r"^layers\.(\d+)\.": r"encoder.layer.\1.",
    r"\.attention\.q_proj\.": ".attention.attention.query.",
    r"\.attention\.k_proj\.": ".attention.attention.key.",
    r"\.attention\.v_proj\.": ".attention.attention.value.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
}


# ---------------------------------------------------------------- BART


def _make_bart(config: Config) -> EncoderDecoder:
    for encoder_key in ("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"):
        decoder_key = encoder_key.replace("encoder", "decoder")
        if config[encoder_key] != config[decoder_key]:
            raise InvalidInput(
                f"config.json: {encoder_key}={config[encoder_key]} and "
                f"{decoder_key}={config[decoder_key]}: expected both sides alike"
            )
    return EncoderDecoder(
        vocab_size=config["vocab_size"],
        max_length=config["max_position_embeddings"],
        width=config["d_model"],
        depth=config["encoder_layers"],
        num_heads=config["encoder_attention_heads"],
        mlp_dim=config["encoder_ffn_dim"],
        position="learned",
        embedding_norm=True,
        scale_embeddings=bool(config.get("scale_embedding", False)),
        output_bias=True,
        activation=_activation(config, "activation_function"),
        dropout_rate=config.get("dropout", 0.0),
    )


def _describe_bart(model: EncoderDecoder) -> dict[str, Any]:
    both = {
        "layers": model.depth,
        "attention_heads": model.num_heads,
        "ffn_dim": model.mlp_dim or 4 * model.width,
    }
    sides = {f"{side}_{name}": v for side in ("encoder", "decoder") for name, v in both.items()}
    return {
        "model_type": "bart",
        "is_encoder_decoder": True,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_length,
        "d_model": model.width,
        **sides,
        "scale_embedding": model.scale_embeddings,
        "activation_function": _their_activation(model),
        "dropout": model.dropout_rate,
    }


def _bart_entries(model: EncoderDecoder) -> list[Entry]:
    entries = embedding("token_embedding", "shared.weight")
    entries += [Entry(("logits_bias/bias",), "final_logits_bias", leading_ones(1))]
    attentions = {
        "encoder": {"attention": "self_attn"},
        "decoder": {"attention": "self_attn", "cross_attention": "encoder_attn"},
    }
    for side, kinds in attentions.items():
        # Their positions begin with two rows for padding, which no position reads.
        entries += embedding(f"{side}/positions", f"{side}.embed_positions.weight", rows_from(2))
        entries += norm(f"{side}/embedding_norm", f"{side}.layernorm_embedding")
        for layer in range(model.depth):
            ours, theirs = f"{side}/block_{layer}", f"{side}.layers.{layer}"
            for kind, their_kind in kinds.items():
                for name in ("query", "key", "value"):
                    projection = f"{theirs}.{their_kind}.{name[0]}_proj"
                    entries += affine(f"{ours}/{kind}/{name}", projection)
                entries += affine(f"{ours}/{kind}/out", f"{theirs}.{their_kind}.out_proj")
                entries += norm(f"{ours}/{kind}_norm", f"{theirs}.{their_kind}_layer_norm")
            entries += [
                *affine(f"{ours}/feed_forward/up", f"{theirs}.fc1"),
                *affine(f"{ours}/feed_forward/down", f"{theirs}.fc2"),
                *norm(f"{ours}/feed_forward_norm", f"{theirs}.final_layer_norm"),
            ]
    return entries


# ---------------------------------------------------------------- the table


def _labels(count: int) -> dict[str, Any]:
    """Their config tells the number of classes by the names of the classes."""
    names = {str(number): f"LABEL_{number}" for number in range(count)}
    return {"id2label": names, "label2id": {name: int(n) for n, name in names.items()}}


def _num_labels(config: Config) -> int:
    return len(config.get("id2label") or {0: "", 1: ""})


_GPT2 = Architecture(
    _make_gpt2,
    _describe_gpt2,
    _gpt2_entries,
    Decoder,
    prefix="transformer.",
    heads=("lm_head.",),
    required={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    not_read=("h.*.attn.bias", "h.*.attn.masked_bias"),
    tied={"lm_head.weight": "wte.weight"},
)
_BERT = Architecture(
    _make_bert(lambda config: 0),
    _describe_bert,
    _bert_entries,
    Encoder,
    prefix="bert.",
    heads=("cls.", "classifier."),
    required={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
    },
    not_read=("embeddings.position_ids", "pooler.*"),
)
_VIT = Architecture(
    _make_vit(lambda config: 0),
    _describe_vit,
    _vit_entries,
    VisionTransformer,
    prefix="vit.",
    heads=("classifier.",),
    required={"qkv_bias": True},
    not_read=("pooler.*",),
    renames=_VIT_RENAMES,
)
_BART = Architecture(
    _make_bart,
    _describe_bart,
    _bart_entries,
    EncoderDecoder,
    prefix="model.",
    heads=("lm_head.", "final_logits_bias"),
    required={"tie_word_embeddings": True},
    tied={
        "lm_head.weight": "shared.weight",
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    },
)

ARCHITECTURES = {
    "GPT2LMHeadModel": _GPT2,
    "GPT2Model": _GPT2,
    "BertModel": _BERT,
    "BertForMaskedLM": _BERT._replace(
        make=_make_bert(lambda config: None),
        entries=_bert_masked_entries,
        required={**_BERT.required, "tie_word_embeddings": True},
        tied={
            "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
    ),
    "BertForSequenceClassification": _BERT._replace(
        make=_make_bert(_num_labels),
        entries=_bert_classifier_entries,
        not_read=("embeddings.position_ids",),
    ),
    "ViTModel": _VIT,
    "ViTForImageClassification": _VIT._replace(
        make=_make_vit(_num_labels), entries=_vit_classifier_entries
    ),
    "BartForConditionalGeneration": _BART,
}
