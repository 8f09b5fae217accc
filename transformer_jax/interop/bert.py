"""BERT as an Encoder: Devlin et al. 2019, arXiv:1810.04805."""

from collections.abc import Callable
from typing import Any

from transformer_jax.interop.architecture import (
    NAMES_OF_TEXT,
    Architecture,
    Settings,
    attention_dropout,
    dropout_fields,
    labels_of,
    num_labels,
    our_fields,
    their_settings,
)
from transformer_jax.interop.layouts import Entry, affine, embedding, norm
from transformer_jax.models import Encoder


def _make_bert(num_classes: Callable[[Settings], int | None]) -> Callable[[Settings], Encoder]:
    def make(settings: Settings) -> Encoder:
        return Encoder.of(
            **our_fields(settings, NAMES_OF_TEXT),
            num_types=settings["type_vocab_size"],
            num_classes=num_classes(settings),
            mlp_dim=settings["intermediate_size"],
            **dropout_fields(settings, "hidden_dropout_prob", "attention_probs_dropout_prob"),
        )

    return make


def _describe_bert(model: Encoder) -> dict[str, Any]:
    labels = labels_of(model.num_classes)
    return {
        "model_type": "bert",
        **their_settings(model, NAMES_OF_TEXT),
        "type_vocab_size": model.num_types or 1,
        "intermediate_size": model.mlp_dim or 4 * model.width,
        "hidden_dropout_prob": model.dropout_rate,
        "attention_probs_dropout_prob": attention_dropout(model),
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
        our_path, their_name = f"block_{layer}", f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            entries += affine(f"{our_path}/attention/{name}", f"{their_name}.attention.self.{name}")
        entries += [
            *affine(f"{our_path}/attention/out", f"{their_name}.attention.output.dense"),
            *norm(f"{our_path}/attention_norm", f"{their_name}.attention.output.LayerNorm"),
            *affine(f"{our_path}/feed_forward/up", f"{their_name}.intermediate.dense"),
            *affine(f"{our_path}/feed_forward/down", f"{their_name}.output.dense"),
            *norm(f"{our_path}/feed_forward_norm", f"{their_name}.output.LayerNorm"),
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


_BERT = Architecture(
    _make_bert(lambda settings: 0),
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
    not_read=("embeddings.position_ids", "pooler.*", "cls.seq_relationship.*"),
    renames={r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"},
)

ROWS = {
    "BertModel": _BERT,
    "BertForMaskedLM": _BERT._replace(
        make=_make_bert(lambda settings: None),
        entries=_bert_masked_entries,
        required={**_BERT.required, "tie_word_embeddings": True},
        tied={
            "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
    ),
    "BertForSequenceClassification": _BERT._replace(
        make=_make_bert(num_labels),
        entries=_bert_classifier_entries,
        not_read=("embeddings.position_ids",),
    ),
}
