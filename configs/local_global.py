"""Local and global layers in turn, as in Gemma 3, on characters of tiny Shakespeare.

Three blocks of four see 16 characters back, the fourth sees all; each kind has its own rotation.

Command:   python -m experiments.train --config=configs/local_global.py --workdir=runs/local_global
Takes:     about 1 minute on 2 CPU cores (2,000 updates at about 23 ms, and evaluation).
Expected:  nats per character, seeds 0, 1, 2, jax 0.10.2 on a CPU (795,904 parameters):
             validation  1.5934, 1.6107, 1.6018
             test        1.7029, 1.7324, 1.6975
           What of that is the windows and what the rotations is no question that this answers.
"""

from configs import shakespeare


def get_config():
    """Returns configs/shakespeare.py with windows in all blocks but the last, and rotations."""
    config = shakespeare.get_config()
    config.model.position = "rotary"
    config.model.layers = "LLLG"
    config.model.layer_types = {
        "L": {
            "mask": "window",
            "mask_options": {"size": 16},
            "position_options": {"max_wavelength": 100.0},
        }
    }
    return config
