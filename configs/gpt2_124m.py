"""GPT-2 small, 124 million parameters, on shards of the reader's own text.

The shape of GPT-2 (Radford et al. 2019, table 2) without dropout; batch, learning rate and schedule
of nanoGPT's reproduction: 480 windows of 1,024 tokens an update, here 32 at a time.

Command:   python -m experiments.make_shards --source=TEXTS --tokenizer=bpe --vocab_size=50257 \
               --out=openwebtext
           python -m experiments.train --config=configs/gpt2_124m.py --workdir=runs/gpt2_124m
Plan:      .venv-tpu/bin/python -m experiments.plan --config=configs/gpt2_124m.py --device=v5e
           experiments/results/plans/gpt2_124m.json is what it said; nothing was trained, but
           steps were timed on an H200 (docs/speed.md).
"""

from configs import reference


def get_config():
    """Returns 12 layers of width 768 in bfloat16, blocks computed again in the backward pass."""
    config = reference.get_config()
    config.data.source = "openwebtext"
    config.data.tokenizer = "bpe"
    config.data.vocab_size = 50_257
    config.data.length = 1024
    model = config.model
    model.width = 768
    model.depth = 12
    model.num_heads = 12
    model.activation = "gelu_tanh"
    model.use_bias = True
    model.dtype = "bfloat16"
    model.remat = "block"
    model.scan_layers = True
    model.attention = "fused"
    training = config.training
    training.steps = 600_000
    training.batch_size = 480
    training.accumulation = 15
    config.optimizer.learning_rate = 6e-4
    config.optimizer.b2 = 0.95
    config.schedule.warmup_steps = 2000
    config.evaluation.every = 2000
    config.evaluation.batch_size = 32
    config.checkpoint.every = 2000
    config.logging.every = 100
    return config
