"""GPT-2 medium, 350 million parameters, on shards of the reader's own text.

Command:   as of configs/gpt2_124m.py
Plan:      .venv-tpu/bin/python -m experiments.plan --config=configs/gpt2_350m.py --device=v5e
           experiments/results/plans/gpt2_350m.json is what it said; nothing was trained.
"""

from configs import gpt2_124m


def get_config():
    """Returns 24 layers of width 1,024, 16 windows at a time."""
    config = gpt2_124m.get_config()
    config.model.width = 1024
    config.model.depth = 24
    config.model.num_heads = 16
    config.training.accumulation = 30
    config.optimizer.learning_rate = 3e-4
    return config
