"""Variants that papers of 2024 to 2026 ablate, and how this package expresses each of them.

A row has the variant with its papers; options that choose it; and how it is expressed: by a config,
by a file of your own (the kind of component), or not at all (the reason).
"""

from typing import Any, NamedTuple


class Row(NamedTuple):
    """A row of the table."""

    variant: str
    options: dict[str, Any]
    how: str = "config"


_TYPES = "model.layer_types"
_NONE: dict[str, Any] = {"model.position": "none"}

ROWS = [
    Row("QK norm (2010.04245)", {"model.query_key_norm": "rms_norm"}),
    Row("GQA, MQA (2305.13245)", {"model.num_kv_heads": 1}),
    Row("MLA (2405.04434)", {"model.mixer": "latent_attention"}),
    Row("Gated attention output (2505.06708)", {"model.head_output": "gated"}),
    Row("Learned sinks (2508.10925)", {"model.attention": "sink"}),
    Row("Exclusive self-attention (2603.09078)", {"model.head_output": "exclusive"}),
    Row("Differential attention (2410.05258)", {"model.attention": "diff_transformer"}),
    Row("NSA (2502.11089), MoBA (2502.13189), DSA (2512.02556)", {}, "own file: attention"),
    Row(
        "Forgetting attention (2503.02130); PaTH (2505.16381) in an own attention",
        {"model.attention": "forgetting"},
    ),
    Row("Stick-breaking, selective, softpick, SSMax", {}, "own file: attention"),
    Row("Sigmoid attention (2409.04431)", {"model.attention": "sigmoid"}),
    Row("Soft cap of scores (2408.00118)", {"model.attention_options.soft_cap": 20.0}),
    Row("Soft cap of the final logits (2408.00118)", {"model.logits_soft_cap": 15.0}),
    Row("z-loss (2204.02311)", {"objective.z_loss": 1e-4}),
    Row("Value residual (2410.17897)", {"model.values": "residual"}),
    Row(
        "Value embeddings, alternating layers (nanochat, modded-nanogpt)",
        {"model.layers": "VP", f"{_TYPES}.V.values": "embeddings"},
    ),
    Row(
        "Per-layer embeddings (Gemma 3n); bigram hash in a stem, Engram (2601.07372) in a wiring",
        {"model.wiring": "per_layer_embeddings"},
    ),
    Row("Skips from the embedding, U-net, DenseFormer (2402.02622)", {"model.skips": "dense"}),
    Row(
        "Attention residuals (2603.15031); MUDD (2502.12170) in an own wiring and attention",
        {"model.wiring": "attention_residuals"},
    ),
    Row(
        "Hyper-connections (2409.19606), mHC (2512.24880)",
        {"model.wiring": "manifold_hyper_connections"},
    ),
    Row(
        "Smearing, canon layers A and C; B and D in own components",
        {"model.convolution": "canon", "model.stem": "smear"},
    ),
    Row("Sandwich norm, post-norm, parallel, LayerScale, DeepNorm", {"model.wiring": "sandwich"}),
    Row(
        "nGPT (2410.01131)",
        {f"model.{part}": "normalised" for part in ("wiring", "attention", "feed_forward")}
        | {"model.norm": "none", "model.logits_gain": True, "optimizer.unit_vectors": True},
    ),
    Row("Dynamic tanh (2503.10622)", {"model.norm": "dynamic_tanh"}),
    Row("Norms scaled by depth (2502.05795)", {"model.wiring": "depth_scaled"}),
    Row(
        "SwiGLU, GEGLU, squared ReLU (2002.05202)",
        {"model.feed_forward": "gated", "model.activation": "silu"},
    ),
    Row("Mixture of experts with an auxiliary loss", {"model.feed_forward": "mixture"}),
    Row(
        "Sigmoid router, shared experts, balance without a loss (2408.15664, 2401.06066)",
        {
            "model.feed_forward": "mixture",
            "model.feed_forward_options.router": "sigmoid",
            "model.feed_forward_options.num_shared": 1,
            "model.feed_forward_options.bias_rate": 0.001,
            "model.feed_forward_options.balance": 0.0,
        },
    ),
    Row("Multi-token prediction (2404.19737, 2412.19437)", {"model.heads": "sequential"}),
    Row(
        "No positions in some layers (2501.18795)",
        {"model.position": "rotary", "model.layers": "RN", f"{_TYPES}.N.position": "none"},
    ),
    Row(
        "Partial rotary positions, bases by layer",
        {
            "model.position": "rotary",
            "model.layers": "LG",
            "model.position_options.fraction": 0.5,
            f"{_TYPES}.G.position_options.max_wavelength": 1e6,
        },
    ),
    Row("YaRN (2309.00071)", {"model.position": "yarn", "model.position_options.factor": 4.0}),
    Row(
        "Local and global layers; a window that grows in training",
        {
            "model.layers": "LG",
            f"{_TYPES}.L.mask": "window",
            f"{_TYPES}.L.mask_options.size": 8,
            "training.scheduled": f"{_TYPES}.L.mask_options.size=4@0/8@10",
        },
    ),
    Row(
        "Mamba-2 (2405.21060); Mamba-3 (2603.15569) in an own mixer",
        {"model.mixer": "state_space"} | _NONE,
    ),
    Row(
        "Gated DeltaNet (2412.06464), Kimi Delta Attention (2510.26692); RWKV-7 in an own mixer",
        {
            "model.mixer": "delta_net",
            "model.mixer_options.decay": "feature",
            "model.mixer_options.gate": "sigmoid",
        }
        | _NONE,
    ),
    Row(
        "Keys and values shared over layers (2405.12981, 2405.05254)",
        {
            "model.mixer": "shared_attention",
            "model.layers": "GS",
            f"{_TYPES}.S.mixer_options.keys": "earlier",
        },
    ),
    Row("Test-time training (2407.04620), Titans", {}, "own file: attention with a state"),
    Row("Looped depth; drawn depth is not expressible", {"model.distinct_blocks": 1}),
    Row("Mixture of depths or recursions", {}, "not expressible: all blocks read all positions"),
    Row(
        "Registers (2309.16588), attention pooling",
        {"model.registers": 4, "model.pooling": "attention"},
    ),
    Row(
        "Bytes; BLT (2412.09871), H-net (2507.07955) in an own architecture",
        {"data.tokenizer": "byte"},
    ),
    Row(
        "Masked diffusion (2406.07524, 2502.09992)",
        {"data.task": "masked_diffusion", "model.architecture": "encoder"},
    ),
    Row("Muon", {"optimizer.name": "muon"}),
    Row(
        "NorMuon (2510.05491), SOAP (2409.11321), AdEMAMix, cautious decay; MARS as an own one",
        {"optimizer.name": "normuon", "optimizer.cautious_decay": True},
    ),
    Row("Warm-up, plateau, decay (WSD) and branches", {"schedule.name": "warmup_stable_decay"}),
    Row(
        "Schedules of weight decay, batch size and length",
        {"training.scheduled": "optimizer.weight_decay=0.1@0/0.0@20,training.batch_size=4@0/8@9"},
    ),
    Row("Averages of weights and of checkpoints, schedule-free", {"training.weight_ema": 0.9}),
    Row(
        "muP; for depth, Muon and u-muP not expressible",
        {"model.parametrisation": "mup", "model.parametrisation_options.base_width": 16},
    ),
    Row("Over-tokenised embeddings, superwords", {}, "own file: stem, or tokenizer"),
    Row(
        "float8, quantisation-aware training",
        {},
        "not expressible: products are float32 or bfloat16",
    ),
    Row("Adapters (LoRA, 2106.09685)", {"adapters.rank": 4, "adapters.maps": "up,down"}),
]
