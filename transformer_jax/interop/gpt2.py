"""GPT-2 as a Decoder: Radford et al. 2019."""

from transformer_jax.interop.architecture import NAMES_OF_TEXT, Architecture
from transformer_jax.interop.layouts import SAME, Table
from transformer_jax.models import Decoder

_NAMES = NAMES_OF_TEXT | {
    "max_length": "n_positions",
    "width": "n_embd",
    "depth": "n_layer",
    "num_heads": "n_head",
    "mlp_dim": "n_inner",
    "activation": "activation_function",
    "norm_epsilon": "layer_norm_epsilon",
    "dropout_rate": "resid_pdrop",
    "attention_dropout_rate": "attn_pdrop",
}
_TABLE: Table = {
    "token_embedding": "wte",
    "positions": "wpe",
    "block_#/attention_norm": "h.#.ln_1",
    # GPT-2's Conv1D keeps [in, out], as our kernels do.
    "block_#/attention/query+key+value": ("h.#.attn.c_attn", SAME),
    "block_#/attention/out": ("h.#.attn.c_proj", SAME),
    "block_#/feed_forward_norm": "h.#.ln_2",
    "block_#/feed_forward/up": ("h.#.mlp.c_fc", SAME),
    "block_#/feed_forward/down": ("h.#.mlp.c_proj", SAME),
    "final_norm": "ln_f",
}
_GPT2 = Architecture(
    Decoder,
    "gpt2",
    _NAMES,
    lambda settings: {"mlp_dim": settings["n_inner"] or 4 * settings["n_embd"]},
    lambda model: {"embd_pdrop": model.dropout_rate},
    lambda _: _TABLE,
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

ROWS = {"GPT2LMHeadModel": _GPT2, "GPT2Model": _GPT2}
