"""A small DeepSeek-V3 (DeepSeek-AI 2024, arXiv:2412.19437) on tiny Shakespeare.

Multi-head latent attention; a dense block, then mixtures of experts with sigmoid routers, a shared
expert and balance by biases instead of a loss; a head that predicts the token after the next.

Command:   python -m experiments.train --config=configs/deepseek_v3.py --workdir=runs/deepseek_v3
Takes:     about 4 minutes on 2 CPU cores (2,000 updates).
Expected:  nats per character, seed 0, jax 0.10.2 on a CPU (1,066,912 parameters):
             validation  1.6244
             test        1.7332
"""

from configs import shakespeare


def get_config():
    """Returns configs/shakespeare.py with DeepSeek-V3's blocks and one sequential head."""
    config = shakespeare.get_config()
    model = config.model
    model.norm = "rms_norm"
    model.activation = "silu"
    model.feed_forward = "gated"
    model.position = "rotary"
    model.position_options.fraction = 0.25
    model.mixer = "latent_attention"
    model.mixer_options.rank = 32
    model.layers = "DEEE"
    model.layer_types = {
        "E": {
            "feed_forward": "mixture",
            "mlp_dim": 48,
            "feed_forward_options": {
                "num_experts": 8,
                "num_chosen": 2,
                "num_shared": 1,
                "router": "sigmoid",
                "gated": True,
                "balance": 0.0,
                "bias_rate": 0.001,
            },
        }
    }
    model.heads = "sequential"
    return config
