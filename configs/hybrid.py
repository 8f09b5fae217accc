"""A hybrid of state-space and attention blocks, without positions, on tiny Shakespeare.

Three blocks of four are Mamba-2's, the third is attention, as in Jamba (Lieber et al. 2024,
arXiv:2403.19887, section 3.1, one attention block in eight): the recurrence tells the order.

Command:   python -m experiments.train --config=configs/hybrid.py --workdir=runs/hybrid
Takes:     about 1.5 minutes on 2 CPU cores (2,000 updates at about 35 ms, and evaluation).
Expected:  nats per character, seeds 0, 1, 2, jax 0.10.2 on a CPU (914,728 parameters, the
           transformer of shakespeare.py has 804,096):
             validation  1.5043, 1.5133, 1.5175
             test        1.6407, 1.6333, 1.6393
"""

from configs import shakespeare


def get_config():
    """Returns configs/shakespeare.py with a state-space mixer in all blocks but the third."""
    config = shakespeare.get_config()
    config.model.position = "none"
    config.model.layers = "SSAS"
    config.model.layer_types = {"S": {"mixer": "state_space", "mixer_options": {"state_size": 16}}}
    return config
