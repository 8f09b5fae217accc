"""nGPT (Loshchilov et al. 2024, arXiv:2410.01131) on tiny Shakespeare.

All vectors of the width lie on the unit sphere: the stream, what branches return, queries and keys,
and those of kernels and embeddings, after each update. There is no warm-up and no weight decay.

Command:   python -m experiments.train --config=configs/ngpt.py --workdir=runs/ngpt
Takes:     about 1.5 minutes on 2 CPU cores (2,000 updates).
Expected:  nats per character, seed 0, jax 0.10.2 on a CPU (806,889 parameters):
             validation  1.6223
             test        1.7242
           A learning rate of 1e-2 gave 1.6395 on the validation split.
"""

from configs import shakespeare


def get_config():
    """Returns configs/shakespeare.py with all parts of nGPT, and SwiGLU of the same size."""
    config = shakespeare.get_config()
    config.model.norm = "none"
    for part in ("wiring", "attention", "feed_forward"):
        config.model[part] = "normalised"
    config.model.activation = "silu"
    config.model.use_bias = False
    config.model.position = "rotary"
    config.model.tie_embeddings = False
    config.model.logits_gain = True
    config.optimizer.unit_vectors = True
    config.optimizer.weight_decay = 0.0
    config.schedule.warmup_steps = 0
    return config
