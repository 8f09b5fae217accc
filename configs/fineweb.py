"""FineWeb in modded-nanogpt's files of GPT-2 tokens, by the protocol of its speedrun.

The loss is that of the first 10,485,760 tokens of the validation file, after windows of 1,024
tokens. The record is the least time to 3.28 nats per token on 8 H100
(github.com/KellerJordan/modded-nanogpt), the loss of llm.c's GPT-2 of 124 million parameters.

Command:   python -m experiments.train --config=configs/fineweb.py --workdir=runs/fineweb \
               --config.data.source=fineweb10B/train \
               --config.data.validation_source=fineweb10B/fineweb_val_000000.bin
Published: 3.28 nats per token. Nothing was trained here yet.
"""

from configs import gpt2_124m


def get_config():
    """Returns configs/gpt2_124m.py on files of tokens, with their own validation file."""
    config = gpt2_124m.get_config()
    config.data.source = "fineweb10B/train"
    config.data.validation_source = "fineweb10B/fineweb_val_000000.bin"
    config.data.validation_tokens = 10_485_760
    config.data.tokenizer = "numbers"
    config.data.vocab_size = 50_304
    config.training.steps = 19_073  # of 2^19 tokens: 10 billion
    config.training.batch_size = 512
    config.training.accumulation = 16
    return config
