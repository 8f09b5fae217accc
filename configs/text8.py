"""text8, enwik8 without markup in 27 letters, with the same model and the same split.

Command:   python -m experiments.train --config=configs/text8.py --workdir=runs/text8 \
               --config.data.source=PATH/TO/text8
Published: bits per letter of the last 5 million: 1.18 (44 million parameters) and 1.13 (235
           million; Al-Rfou et al. 2019, arXiv:1808.04444), 1.08 (277 million; Dai et al. 2019,
           arXiv:1901.02860, table 3). Nothing was trained here yet.
"""

from configs import enwik8


def get_config():
    """Returns configs/enwik8.py for the text of the same length in lower case."""
    config = enwik8.get_config()
    config.data.source = "text8"
    config.data.tokenizer = "char"
    return config
