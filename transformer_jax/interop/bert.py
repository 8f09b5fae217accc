"""BERT as an Encoder: Devlin et al. 2019, arXiv:1810.04805."""

from transformer_jax.interop.architecture import NAMES_OF_TEXT, Architecture, labels_of, num_labels
from transformer_jax.interop.layouts import Table
from transformer_jax.models import Encoder

_NAMES = NAMES_OF_TEXT | {
    "num_types": "type_vocab_size",
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
}
_BODY: Table = {
    "token_embedding": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "type_embedding": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "block_#/attention/query": "encoder.layer.#.attention.self.query",
    "block_#/attention/key": "encoder.layer.#.attention.self.key",
    "block_#/attention/value": "encoder.layer.#.attention.self.value",
    "block_#/attention/out": "encoder.layer.#.attention.output.dense",
    "block_#/attention_norm": "encoder.layer.#.attention.output.LayerNorm",
    "block_#/feed_forward/up": "encoder.layer.#.intermediate.dense",
    "block_#/feed_forward/down": "encoder.layer.#.output.dense",
    "block_#/feed_forward_norm": "encoder.layer.#.output.LayerNorm",
}
_CLASSIFIER = _BODY | {"pooler": "pooler.dense", "head": "classifier"}
_MASKED = _BODY | {
    "transform": "cls.predictions.transform.dense",
    "transform_norm": "cls.predictions.transform.LayerNorm",
    "output_bias/bias": "cls.predictions.bias",
}
_BERT = Architecture(
    Encoder,
    "bert",
    _NAMES,
    lambda _: {"num_classes": 0},
    lambda model: {"type_vocab_size": model.num_types or 1, **labels_of(model.num_classes)},
    lambda _: _BODY,
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
        fields=lambda _: {"num_classes": None},
        table=lambda _: _MASKED,
        required={**_BERT.required, "tie_word_embeddings": True},
        tied={
            "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
    ),
    "BertForSequenceClassification": _BERT._replace(
        fields=lambda settings: {"num_classes": num_labels(settings)},
        table=lambda _: _CLASSIFIER,
        not_read=("embeddings.position_ids",),
    ),
}
