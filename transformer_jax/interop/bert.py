"""BERT, RoBERTa and DistilBERT as Encoders.

Devlin et al., arXiv:1810.04805; Liu et al., arXiv:1907.11692; Sanh et al., arXiv:1910.01108.
"""

from transformer_jax.interop.architecture import NAMES_OF_TEXT, Architecture, labels_of, num_labels
from transformer_jax.interop.layouts import Table, rows_from, within
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

_ROBERTA = _BERT._replace(
    model_type="roberta",
    names={field: name for field, name in _NAMES.items() if field != "max_length"},
    # Their positions begin with two rows for padding, which no token reads.
    fields=lambda settings: {
        "num_classes": 0,
        "max_length": settings["max_position_embeddings"] - 2,
    },
    settings=lambda model: {
        "max_position_embeddings": model.max_length + 2,
        "type_vocab_size": model.num_types or 1,
        "pad_token_id": 1,
    },
    table=lambda _: _ROBERTAS_BODY,
    prefix="roberta.",
    heads=("lm_head.",),
    required={**_BERT.required, "pad_token_id": 1},
    not_read=("embeddings.position_ids", "pooler.*"),
)
_ROBERTAS_BODY = _BODY | {"positions": ("embeddings.position_embeddings", rows_from(2))}

_DISTIL_BODY: Table = {
    "token_embedding": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    **within(
        "block_#",
        "transformer.layer.#",
        {
            "attention/query": "attention.q_lin",
            "attention/key": "attention.k_lin",
            "attention/value": "attention.v_lin",
            "attention/out": "attention.out_lin",
            "attention_norm": "sa_layer_norm",
            "feed_forward/up": "ffn.lin1",
            "feed_forward/down": "ffn.lin2",
            "feed_forward_norm": "output_layer_norm",
        },
    ),
}
_DISTIL_FIXED = {"norm_options": {"epsilon": 1e-12}, "num_types": 0}
_DISTIL = Architecture(
    Encoder,
    "distilbert",
    {
        **{"vocab_size": "vocab_size", "max_length": "max_position_embeddings", "width": "dim"},
        **{"depth": "n_layers", "num_heads": "n_heads", "mlp_dim": "hidden_dim"},
        **{"activation": "activation", "dropout_rate": "dropout"},
        "attention_dropout_rate": "attention_dropout",
    },
    lambda _: {**_DISTIL_FIXED, "num_classes": 0},
    lambda _: {},
    lambda _: _DISTIL_BODY,
    prefix="distilbert.",
    heads=("vocab_",),
    not_read=("embeddings.position_ids",),
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
    "RobertaModel": _ROBERTA,
    "RobertaForMaskedLM": _ROBERTA._replace(
        fields=lambda settings: {**_ROBERTA.fields(settings), "num_classes": None},
        table=lambda _: {
            **_ROBERTAS_BODY,
            "transform": "lm_head.dense",
            "transform_norm": "lm_head.layer_norm",
            "output_bias/bias": "lm_head.bias",
        },
        # The head's activation is always GELU.
        required={**_ROBERTA.required, "tie_word_embeddings": True, "hidden_act": "gelu"},
        tied={
            "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
    ),
    "DistilBertModel": _DISTIL,
    "DistilBertForMaskedLM": _DISTIL._replace(
        fields=lambda _: {**_DISTIL_FIXED, "num_classes": None},
        table=lambda _: {
            **_DISTIL_BODY,
            "transform": "vocab_transform",
            "transform_norm": "vocab_layer_norm",
            "output_bias/bias": "vocab_projector.bias",
        },
        required={"tie_word_embeddings": True},
        tied={"vocab_projector.weight": "embeddings.word_embeddings.weight"},
    ),
}
