"""Suggestions of the name that was probably meant, including names from other tools."""

import difflib
from collections.abc import Iterable
from typing import Any

_NAMES = {  # KEY or KEY=VALUE -> its names in other tools, in lower case; the last entry wins
    "data.source": ("dataset", "data", "corpus", "path"),
    "data.vocab_size": ("vocab", "n_vocab", "num_tokens"),
    "data.length": (
        *("block_size", "context_length", "context", "n_ctx", "seq_len", "seq_length"),
        *("sequence_length", "max_seq_len", "window"),
    ),
    "model.max_length": ("max_position_embeddings", "n_positions"),
    "model.width": (
        *("hidden_size", "d_model", "n_embd", "embed_dim", "embedding_dim", "dim", "model_dim"),
        *("hidden_dim", "emb_dim"),
    ),
    "model.depth": ("n_layer", "n_layers", "num_layers", "num_hidden_layers", "num_blocks"),
    "model.num_heads": ("n_head", "n_heads", "heads", "nhead", "num_attention_heads"),
    "model.num_kv_heads": ("n_kv_heads", "num_key_value_heads", "kv_heads"),
    "model.head_dim": ("d_k", "d_head", "head_size"),
    "model.mlp_dim": ("d_ff", "ffn_dim", "intermediate_size", "dim_feedforward", "ff_dim"),
    "model.position": ("pos_emb", "pos_encoding", "position_embedding_type", "positional_encoding"),
    "model.activation": ("act", "act_fn", "activation_function", "hidden_act"),
    "model.norm_options.epsilon": ("layer_norm_eps", "rms_norm_eps", "layer_norm_epsilon"),
    "model.dropout_rate": ("dropout", "resid_pdrop", "hidden_dropout_prob", "drop_rate"),
    "model.attention_dropout_rate": ("attn_pdrop", "attention_dropout", "attn_dropout"),
    "model.use_bias": ("bias",),
    "model.tie_embeddings": ("tie_weights", "tie_word_embeddings", "weight_tying"),
    "model.init_std": ("initializer_range",),
    "model.dtype": ("precision", "mixed_precision", "fp16", "bf16", "half"),
    "model.position_options.max_wavelength": ("rope_theta", "rope_base", "rotary_base"),
    "model.remat": ("gradient_checkpointing", "checkpointing", "activation_checkpointing"),
    "training.steps": (
        *("epochs", "epoch", "num_epochs", "n_epochs", "num_train_epochs", "max_epochs"),
        *("max_iters", "max_steps", "num_steps", "n_steps", "iterations", "iters", "train_steps"),
    ),
    "training.batch_size": ("bs", "batch", "per_device_train_batch_size", "train_batch_size"),
    "training.accumulation": ("gradient_accumulation_steps", "grad_accum", "accumulate"),
    "training.clip_norm": ("grad_clip", "max_grad_norm", "gradient_clip_val", "clip"),
    "training.weight_ema": ("ema", "ema_decay"),
    "objective.smoothing": ("label_smoothing", "label_smoothing_factor"),
    "optimizer.name": ("optim", "optimiser", "opt"),
    "optimizer.learning_rate": ("lr", "max_lr", "peak_lr", "base_lr"),
    "optimizer.weight_decay": ("wd", "decay"),
    "schedule.name": ("scheduler", "lr_scheduler", "lr_scheduler_type", "lr_schedule"),
    "schedule.warmup_steps": ("warmup", "warmup_iters", "num_warmup_steps"),
    "evaluation.every": ("eval_interval", "eval_steps", "eval_every", "val_check_interval"),
    "logging.every": ("log_interval", "logging_steps", "log_every"),
    "checkpoint.every": ("save_steps", "save_interval", "save_every"),
    "checkpoint.keep": ("save_total_limit",),
    "sample.num_tokens": ("max_new_tokens",),
    "model.position=rotary": ("rope", "roformer"),
    "model.position=sinusoidal": ("sin", "sine", "fixed"),
    "model.position=learned": ("absolute", "wpe"),
    "model.position=none": ("nope",),
    "model.norm=layer_norm": ("layernorm", "ln"),
    "model.norm=rms_norm": ("rmsnorm", "rms"),
    "model.wiring=pre": ("prenorm", "pre_norm", "pre_ln", "preln", "pre-ln"),
    "model.wiring=post": ("postnorm", "post_norm", "post_ln", "postln", "post-ln"),
    "model.feed_forward=gated": ("swiglu", "geglu", "glu"),
    "model.feed_forward=mixture": ("moe", "mixture_of_experts"),
    "model.attention=fused": ("flash", "flash_attention", "flash_attention_2", "sdpa", "cudnn"),
    "model.num_kv_heads=1": ("mqa",),
    "model.dtype=bfloat16": ("bf16", "mixed_precision", "amp"),
    "model.dtype=float32": ("fp32", "float"),
    "schedule.name=warmup_cosine": ("cosine", "cos"),
    "schedule.name=warmup_linear": ("linear",),
    "schedule.name=warmup_stable_decay": ("wsd", "trapezoidal"),
    "schedule.name=inverse_square_root": ("noam", "inv_sqrt", "rsqrt"),
}
# The reverse: a name in other tools -> KEY or KEY=VALUE.
OTHER_NAMES = {name: our_name for our_name, names in _NAMES.items() for name in names}


def suggest(wrong: Any, candidates: Iterable[str]) -> str:
    """Returns '; did you mean X?' for the nearest candidate, or ''.

    Keys are compared as a whole and by their last part, so that a correct name in a wrong section
    is found. Other tools' names, and names in different letter case, are found too.
    """
    candidates, wrong = list(candidates), str(wrong)
    tail = wrong.rsplit(".", 1)[-1]
    last_parts = {name.rsplit(".", 1)[-1]: name for name in reversed(candidates)}
    near = [name for name in candidates if name.lower() == wrong.lower()]
    is_path = "/" in wrong or wrong.endswith(".py")
    near = near or _longer(wrong, candidates)
    near = near or ([last_parts[tail]] if tail in last_parts and not is_path else [])
    near = near or _called_otherwise(tail.lower().lstrip("-"), candidates)
    near = near or difflib.get_close_matches(wrong, candidates, 1, 0.75)
    near = near or [last_parts[t] for t in difflib.get_close_matches(tail, last_parts, 1, 0.6)]
    return f"; did you mean {near[0]}?" if near else ""


def _longer(wrong: str, candidates: list[str]) -> list[str]:
    """Returns a list of the only option in the same section with this prefix, or [].

    For example, model.dropout gives model.dropout_rate.
    """
    begun = [name for name in candidates if name.startswith(wrong) and "." in wrong]
    of_section = [name for name in begun if name.rpartition(".")[0] == wrong.rpartition(".")[0]]
    return of_section if len(of_section) == 1 else []


def _called_otherwise(name: str, candidates: list[str]) -> list[str]:
    """Returns candidates that other tools call by this name: a value, or a key with its value."""
    key, equals, value = OTHER_NAMES.get(name, "").partition("=")
    spellings = [f"{c}{equals}{value}" for c in candidates if c in (key, f"--config.{key}")]
    return spellings or [c for c in candidates if value and c == value]
