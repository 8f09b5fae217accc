"""modded-nanogpt's speedrun (Jordan et al. 2024; its records of January 2026) on tiny Shakespeare.

Expressed exactly: norms without scales, QK norm and its scale, half of the features rotated,
squared ReLU, value embeddings, windows of two sizes that grow in training, gates of heads, gains of
the stream, of the embedding and of what branches write, batches that grow, NorMuon with cautious
decay, its momentum and decay over the updates.
Nearly: the smear comes after the norm of the embedding; gates of heads read all features; the soft
cap has no offset; Newton-Schulz's products serve for Polar Express; learning rates stay when the
batch grows.
Not expressible by options: "backout", the gated skip from block 3 to 6 and MUDD (a wiring of your
own); the hash of token pairs (a stem); shifted keys, paired heads (an attention, a mixer); a block
without attention; shared value tables; YaRN's growth in training; further tokens predicted by the
same logits (an objective); Adam in every second update; untying the output layer in training; FP8.

Command:   python -m experiments.train --config=configs/modded_nanogpt.py --workdir=runs/speedrun
Takes:     about 3.5 minutes on 2 CPU cores (2,000 updates; three stages are compiled).
Expected:  nats per character, seed 0, jax 0.10.2 on a CPU (1,239,742 parameters):
             validation  1.4697
             test        1.5881
           Learning rates that were tried, loss on the validation split: 2e-3 1.4752, 8e-3 1.4725.
"""

from configs import shakespeare

_BLOCKS = "VVSWVW"


def get_config():
    """Returns configs/shakespeare.py with 6 blocks as modded-nanogpt builds and trains them."""
    config = shakespeare.get_config()
    model, optimizer, schedule = config.model, config.optimizer, config.schedule
    model.depth = len(_BLOCKS)
    model.embedding_norm = True
    model.stem = "smear"
    model.stem_options.gate_features = 12
    model.norm = "rms_norm"
    model.norm_options.epsilon = 1e-12
    model.query_key_norm = "rms_norm"
    model.attention_scale = 0.2
    model.position = "rotary"
    # The wavelengths of 1, ..., 1/1024 on a line of logarithms, for half of 32 features.
    model.position_options = {"fraction": 0.5, "max_wavelength": 1024 ** (16 / 14)}
    model.activation = "relu_squared"
    model.logits_soft_cap = 11.5
    model.initialisation = "xavier"
    model.initialisation_options.gain = 0.5
    model.init_std = 0.005
    model.wiring = "hyper_connections"
    model.wiring_options = {"streams": 1, "initial_scale": 0.0}
    model.skips = "embedding"
    model.skips_options.initial = 0.0
    model.head_output = "gated"
    model.head_output_options = {"gates": "head", "std": 1e-6}
    model.values_options = {"gate_features": 12, "std": 0.01}
    model.layers = _BLOCKS
    model.layer_types = {
        "V": {"mask": "window", "mask_options": {"size": 25}, "values": "embeddings"},
        "S": {"mask": "window", "mask_options": {"size": 25}},
        "W": {"mask": "window", "mask_options": {"size": 64}, "values": "embeddings"},
    }
    blocks = [f"block_{number}" for number in range(len(_BLOCKS))]
    norms = ("attention_norm", "feed_forward_norm", "attention/query_norm", "attention/key_norm")
    ones = (*norms, "attention_streams/read", "feed_forward_streams/read")
    fixed = [f"{block}/{name}" for block in blocks for name in ones]
    config.training.frozen = ("embedding_norm", "final_norm", *fixed)
    config.training.clip_norm = None
    optimizer.name = "normuon"
    optimizer.learning_rate = 4e-3
    optimizer.beta2, optimizer.b1, optimizer.b2 = 0.95, 0.75, 0.95
    optimizer.weight_decay = 0.0624
    optimizer.cautious_decay = True
    streams = [
        f"{block}/{branch}_streams" for block in blocks for branch in ("attention", "feed_forward")
    ]
    tables = [
        f"{block}/attention/value_mix/table"
        for block, letter in zip(blocks, _BLOCKS, strict=True)
        if letter != "S"
    ]
    # Rates of the groups as multiples of the kernels' at this width, and their decays.
    rates = {"token_embedding": 0.79, "stem/gain": 3.9, "stem/gate": 0.0079}
    rates |= {f"skip_{number}": 3.9 for number in range(1, len(_BLOCKS))}
    rates |= dict.fromkeys(tables, 59)
    rates |= {f"{stream}/kept": 3.9 for stream in streams}
    rates |= {f"{stream}/written": 0.79 for stream in streams}
    rates |= {f"{block}/feed_forward/down": 2 for block in blocks}
    decays = {"token_embedding": 0.096, "stem": 0} | dict.fromkeys(tables, 0.24)
    decays |= {f"{block}/feed_forward": 2 for block in blocks}
    optimizer.learning_rate_multipliers = tuple(f"{k}={v}" for k, v in rates.items())
    optimizer.decay_multipliers = tuple(f"{k}={v}" for k, v in decays.items())
    schedule.name = "warmup_stable_decay"
    schedule.warmup_steps = 0
    schedule.decay_fraction = 0.55
    schedule.final_fraction = 0.1
    config.training.scheduled = (
        "optimizer.beta=0.85@0/0.95@375/0.95@1940/0.85@2000",
        "optimizer.weight_decay=0.0624@0/0.0624@900/0.00624@2000",
        "model.layer_types.V.mask_options.size=5@0/13@667/25@1333",
        "model.layer_types.S.mask_options.size=5@0/13@667/25@1333",
        "model.layer_types.W.mask_options.size=13@0/29@667/53@1333",
        "training.batch_size=6@0/12@667/18@1333",
    )
    return config
