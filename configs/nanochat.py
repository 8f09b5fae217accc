"""nanochat's model and optimizer (Karpathy 2025; its state of July 2026) on tiny Shakespeare.

Expressed exactly: embeddings that are normalised and smeared, norms without scales, QK norm and
its scale, rotary base, squared ReLU, separate output layer, soft cap, windows in three layers of
four, value embeddings in every other layer up to the last, gains of the stream and of the embedding
in each block (hyper-connections with one stream, and skips from the embedding).
Nearly: initial gains are 1 and 0.1 in all blocks (there 1.15 to 1.05, and 0.20 to 0.05); NorMuon's
products are Newton-Schulz's (there Polar Express), and one pair of b1, b2 serves all other groups;
weight decay is cautious in all groups and falls on straight lines (there on a cosine).
Not expressible by options: "backout" (a wiring of your own), projections that start at 0 (an
initialisation of your own), FP8, documents packed from their beginning.

Command:   python -m experiments.train --config=configs/nanochat.py --workdir=runs/nanochat
Takes:     about 2 minutes on 2 CPU cores (2,000 updates).
Expected:  nats per character, seeds 0, 1, jax 0.10.2 on a CPU (824,484 parameters):
             validation  1.4883, 1.4924
             test        1.6241, 1.6049
           Learning rates that were tried, loss on the validation split: 4e-3 1.4924, 8e-3 1.4984.
"""

from configs import shakespeare

_DEPTH, _WITH_VALUES = 4, (1, 3)


def get_config():
    """Returns configs/shakespeare.py with 4 blocks as nanochat builds and trains them."""
    config = shakespeare.get_config()
    model, optimizer, schedule = config.model, config.optimizer, config.schedule
    model.embedding_norm = True
    model.stem = "smear"
    model.norm = "rms_norm"
    model.norm_options.epsilon = 1e-12
    model.query_key_norm = "rms_norm"
    model.attention_scale = 1.44 * 32**-0.5  # 1.2 for queries and 1.2 for keys
    model.position = "rotary"
    model.position_options.max_wavelength = 1e5
    model.activation = "relu_squared"
    model.tie_embeddings = False
    model.logits_soft_cap = 15.0
    model.initialisation = "xavier"
    model.init_std = 0.001
    model.wiring = "hyper_connections"
    model.wiring_options = {"streams": 1, "initial_scale": 0.0}
    model.skips = "embedding"
    model.skips_options.initial = 0.1
    # Its gate is 3 sigmoid(.), here 2 sigmoid(.) of a table that starts 1.5 times as large.
    model.values_options = {"gate_features": 12, "std": 1.5 * 128**-0.5}
    model.layers = "STSG"
    model.layer_types = {
        "S": {"mask": "window", "mask_options": {"size": 17}},
        "T": {"mask": "window", "mask_options": {"size": 17}, "values": "embeddings"},
        "G": {"values": "embeddings"},
    }
    blocks = [f"block_{number}" for number in range(_DEPTH)]
    norms = ("attention_norm", "feed_forward_norm", "attention/query_norm", "attention/key_norm")
    ones = (*norms, "attention_streams/read", "attention_streams/written", "feed_forward_streams")
    fixed = [f"{block}/{name}" for block in blocks for name in ones]
    config.training.frozen = ("embedding_norm", "final_norm", *fixed)
    config.training.clip_norm = None
    optimizer.name = "normuon"
    optimizer.learning_rate = 2e-3
    optimizer.beta2, optimizer.b1, optimizer.b2 = 0.9, 0.8, 0.96
    optimizer.weight_decay = 0.64
    optimizer.cautious_decay = True
    tables = [f"block_{number}/attention/value_mix/table" for number in _WITH_VALUES]
    # Rates of the groups as multiples of the kernels' at this width, and their decays.
    rates = {"output": 2.2, "token_embedding": 0.104, "stem": 22.7}
    rates |= {f"skip_{number}": 56.8 for number in range(1, _DEPTH)}
    rates |= dict.fromkeys(tables, 62.6)
    rates |= {f"{block}/attention_streams": 0.57 for block in blocks}
    rates |= {f"{block}/feed_forward/down": 0.5 for block in blocks}
    decays = {"output": 0.016, "token_embedding": 1.25, "stem": 0} | dict.fromkeys(tables, 0.0104)
    decays |= {f"{block}/feed_forward": 2 for block in blocks}
    optimizer.learning_rate_multipliers = tuple(f"{k}={v}" for k, v in rates.items())
    optimizer.decay_multipliers = tuple(f"{k}={v}" for k, v in decays.items())
    schedule.name = "warmup_stable_decay"
    schedule.warmup_steps = 40
    schedule.decay_fraction = 0.65
    schedule.final_fraction = 0.05
    config.training.scheduled = (
        "optimizer.beta=0.85@0/0.97@400/0.97@700/0.9@2000",
        "optimizer.weight_decay=0.64@0/0.546@500/0.32@1000/0.094@1500/0.0@2000",
    )
    return config
