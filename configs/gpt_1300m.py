"""A GPT of 1.3 billion parameters, on shards of the reader's own text.

24 layers of width 2,048 and texts of 2,048 tokens, as GPT-3 XL (Brown et al. 2020, table 2.1), with
16 heads of 128.

Command:   as of configs/gpt2_124m.py
Plan:      .venv-cuda/bin/python -m experiments.plan --config=configs/gpt_1300m.py --device=h100
           experiments/results/plans/gpt_1300m.json is what it said; nothing was trained, but
           steps were timed on an H200 (docs/speed.md). Beside it
           gpt_1300m_v5e_4x4.json and gpt_1300m_h100_8.json, of 16 and 8 devices.
"""

from configs import gpt2_124m


def get_config():
    """Returns 24 layers of width 2,048, 8 windows at a time."""
    config = gpt2_124m.get_config()
    config.data.length = 2048
    config.model.width = 2048
    config.model.depth = 24
    config.model.num_heads = 16
    config.training.accumulation = 60
    config.optimizer.learning_rate = 2e-4
    return config
