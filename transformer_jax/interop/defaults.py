"""Values of settings that a config.json may leave out, as transformers 5.23 fills them in."""

from typing import Any

_OF_LLAMAS: dict[str, Any] = {
    **{"num_attention_heads": 32, "num_hidden_layers": 32, "rms_norm_eps": 1e-6},
    **{"hidden_size": 4096, "hidden_act": "silu", "head_dim": None},
}
_OF_QWENS: dict[str, Any] = {
    **{"vocab_size": 151936, "max_position_embeddings": 32768, "intermediate_size": 22016},
    "num_key_value_heads": 32,
}
_OF_GEMMAS: dict[str, Any] = {
    **{"hidden_size": 2304, "num_hidden_layers": 26, "num_attention_heads": 8},
    **{"intermediate_size": 9216, "num_key_value_heads": 4, "head_dim": 256, "rms_norm_eps": 1e-6},
    **{"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256},
    **{"sliding_window": 4096, "tie_word_embeddings": True},
}
_OF_BERTS: dict[str, Any] = {
    **{"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    **{"intermediate_size": 3072, "hidden_act": "gelu", "layer_norm_eps": 1e-12},
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": {
        **{"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
        **{"n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
        **{"resid_pdrop": 0.1, "attn_pdrop": 0.1},
    },
    "llama": {
        **_OF_LLAMAS,
        **{"vocab_size": 32000, "max_position_embeddings": 2048, "intermediate_size": 11008},
        "num_key_value_heads": None,
    },
    "mistral": {
        **_OF_LLAMAS,
        **{"vocab_size": 32000, "max_position_embeddings": 131072, "intermediate_size": 14336},
        **{"num_key_value_heads": 8, "sliding_window": 4096},
    },
    "qwen2": {**_OF_LLAMAS, **_OF_QWENS},
    "qwen3": {**_OF_LLAMAS, **_OF_QWENS, "head_dim": 128},
    "gemma2": {
        **_OF_GEMMAS,
        **{"vocab_size": 256000, "max_position_embeddings": 8192},
        **{"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    },
    "gemma3_text": {**_OF_GEMMAS, "vocab_size": 262208, "max_position_embeddings": 131072},
    "gpt_neox": {
        **{"vocab_size": 50432, "max_position_embeddings": 2048, "intermediate_size": 24576},
        **{"hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64},
        **{"hidden_act": "gelu", "layer_norm_eps": 1e-5},
    },
    # BLOOM's and T5's files store no length; these are the lengths that they were trained on.
    "bloom": {
        **{"vocab_size": 250880, "hidden_size": 64, "n_layer": 2, "n_head": 8},
        **{"layer_norm_epsilon": 1e-5, "seq_length": 2048},
    },
    "bert": {
        **_OF_BERTS,
        **{"vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2},
        **{"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    },
    "roberta": {
        **_OF_BERTS,
        **{"vocab_size": 50265, "max_position_embeddings": 512, "type_vocab_size": 2},
        **{"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    },
    "distilbert": {
        **{"vocab_size": 30522, "max_position_embeddings": 512, "dim": 768, "n_layers": 6},
        **{"n_heads": 12, "hidden_dim": 3072, "activation": "gelu", "dropout": 0.1},
        "attention_dropout": 0.1,
    },
    "smollm3": {
        **_OF_LLAMAS,
        **{"vocab_size": 128256, "max_position_embeddings": 32768, "intermediate_size": 11008},
        **{"hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16},
        **{"num_key_value_heads": 4, "rope_theta": 2_000_000.0, "tie_word_embeddings": True},
    },
    "t5": {
        **{"vocab_size": 32128, "d_model": 512, "num_layers": 6, "num_heads": 8, "d_kv": 64},
        **{"d_ff": 2048, "layer_norm_epsilon": 1e-6, "dropout_rate": 0.1, "n_positions": 512},
        **{"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
    },
    "vit": {**_OF_BERTS, "image_size": 224, "patch_size": 16, "num_channels": 3},
    "bart": {
        **{"encoder_layers": 12, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096},
        **{"vocab_size": 50265, "max_position_embeddings": 1024, "d_model": 1024},
        **{"activation_function": "gelu", "dropout": 0.1},
    },
}
ALIASES: dict[str, dict[str, str]] = {
    "gpt2": {
        **{"hidden_size": "n_embd", "max_position_embeddings": "n_positions"},
        **{"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    },
    "bloom": {
        **{"num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
        "n_embed": "hidden_size",
    },
    "distilbert": {
        **{"hidden_size": "dim", "num_attention_heads": "n_heads"},
        "num_hidden_layers": "n_layers",
    },
    "t5": {
        **{"hidden_size": "d_model", "num_attention_heads": "num_heads"},
        **{"num_hidden_layers": "num_layers", "head_dim": "d_kv"},
    },
    "bart": {
        **{"num_attention_heads": "encoder_attention_heads", "hidden_size": "d_model"},
        "num_hidden_layers": "encoder_layers",
    },
}
"""Second names of settings; if a file states both, transformers takes the value of the second."""
