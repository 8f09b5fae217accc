"""Settings of a config.json in transformers 5.23: defaults, second names, those without effect."""

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
        **{"hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_pct": 0.25},
    },
    "gptj": {
        **{"vocab_size": 50400, "n_positions": 2048, "n_embd": 4096, "n_layer": 28, "n_head": 16},
        **{"n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
        "rotary_dim": 64,
    },
    "opt": {
        **{"vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072},
        **{"num_attention_heads": 12, "max_position_embeddings": 2048, "dropout": 0.1},
        **{"activation_function": "relu", "do_layer_norm_before": True, "attention_dropout": 0.0},
    },
    "phi3": {
        **_OF_LLAMAS,
        **{"vocab_size": 32064, "max_position_embeddings": 4096, "intermediate_size": 8192},
        **{"hidden_size": 3072, "rms_norm_eps": 1e-5, "num_key_value_heads": None},
        **{"sliding_window": None, "partial_rotary_factor": 1.0},
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
        **{"activation_function": "gelu", "dropout": 0.1, "attention_dropout": 0.0},
    },
}
DEFAULTS["marian"] = {**DEFAULTS["bart"], "vocab_size": 58101}
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
ALIASES |= {"gptj": ALIASES["gpt2"], "marian": ALIASES["bart"]}
"""Second names of settings; if a file states both, transformers takes the value of the second."""

CLASSIFIER_RATES = ("classifier_dropout", "classif_dropout", "seq_classif_dropout")
INERT = frozenset({
    # Origin, storage, what is returned, and how it is computed
    *("architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "auto_map"),
    *("transformers.js_config", "return_dict", "output_attentions", "output_hidden_states"),
    *("output_past", "gradient_checkpointing", "use_cache", "cache_implementation"),
    *("chunk_size_feed_forward", "pretraining_tp", "slow_but_exact", "reorder_and_upcast_attn"),
    *("bias_dropout_fusion", "masked_softmax_fusion", "attention_softmax_in_fp32"),
    *("is_llama_config", "n_ctx", "task_specific_params", "tokenizer_class", "prefix"),
    # Generation, whose first and last tokens are read elsewhere
    *("max_length", "min_length", "num_beams", "length_penalty", "no_repeat_ngram_size"),
    *("early_stopping", "bad_words_ids", "is_encoder_decoder", "force_bos_token_to_be_generated"),
    # Initial values and training
    *("initializer_range", "initializer_factor", "init_std", "sinusoidal_pos_embds", "embd_pdrop"),
    # Heads that are not read, and names of classes where there are none
    *("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type"),
    *("summary_use_proj", "qa_dropout", "encoder_stride", "pooler_act", "pooler_output_size"),
    *CLASSIFIER_RATES,
    *("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_type"),
    *("pooler_size_per_head", "id2label", "label2id", "num_labels", "problem_type", "num_texts"),
    # In models that do not read them: an output layer, a second stack, a window, an activation
    *("tie_word_embeddings", "tie_weights_", "scale_decoder_outputs", "num_decoder_layers"),
    *("is_decoder", "is_gated_act", "sliding_window", "max_window_layers", "hidden_act"),
    *("original_max_position_embeddings", "scale_attn_weights"),
    # Of old versions, in which they had one value
    *("normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits"),
    *("static_position_embeddings", "extra_pos_embeddings", "directionality", "rotary"),
    *("offset_alibi", "skip_bias_add"),
})  # fmt: skip
"""Settings without effect on outputs, like those that begin with _ or end in _token_id."""
