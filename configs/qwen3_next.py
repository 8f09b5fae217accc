"""A small Qwen3-Next (Qwen team 2025) on tiny Shakespeare, without its experts.

Three blocks of four are Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464), which needs no
positions; the fourth is attention with gated outputs, QK norm and rotation of a quarter of the
features.

Command:   python -m experiments.train --config=configs/qwen3_next.py --workdir=runs/qwen3_next
Takes:     about 4 minutes on 2 CPU cores (2,000 updates).
Expected:  nats per character, seed 0, jax 0.10.2 on a CPU (868,792 parameters):
             validation  1.5396
             test        1.6688
"""

from configs import shakespeare


def get_config():
    """Returns configs/shakespeare.py with the delta rule in all blocks but the last."""
    config = shakespeare.get_config()
    model = config.model
    model.norm = "zero_centred_rms_norm"
    model.activation = "silu"
    model.feed_forward = "gated"
    model.position = "rotary"
    model.position_options.fraction = 0.25
    model.layers = "LLLA"
    model.layer_types = {
        "L": {"mixer": "delta_net", "position": "none"},
        "A": {"head_output": "gated", "query_key_norm": "zero_centred_rms_norm"},
    }
    return config
