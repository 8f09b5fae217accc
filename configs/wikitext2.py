"""WikiText-2, the smaller training file with the validation and test files of WikiText-103.

Command:   python -m experiments.train --config=configs/wikitext2.py --workdir=runs/wikitext2 \
               --config.data.source=wikitext-2-raw/wiki.train.raw \
               --config.data.validation_source=wikitext-2-raw/wiki.valid.raw \
               --config.data.test_source=wikitext-2-raw/wiki.test.raw
Published: perplexity of the test file: 29.4, without training on it, of GPT-2 (117 million
           parameters; Radford et al. 2019, table 3, detokenized).
Record:    600 updates, 2.5 million tokens, less than an epoch, seed 0, about 12 minutes on two CPU
           cores: bits per byte 1.950 (validation) and 1.981 (test), a perplexity of 1,361 per word
           (see configs/wikitext103.py). The reference for changes, and no result.
"""

from configs import reference


def get_config():
    """Returns 4 layers of width 256 over windows of 256 of 4,096 learned tokens."""
    config = reference.get_config()
    config.data.source = "wikitext-2-raw/wiki.train.raw"
    config.data.validation_source = "wikitext-2-raw/wiki.valid.raw"
    config.data.test_source = "wikitext-2-raw/wiki.test.raw"
    config.data.tokenizer = "bpe"
    config.data.vocab_size = 4096
    config.data.length = 256
    model = config.model
    model.width = 256
    model.depth = 4
    model.num_heads = 4
    model.norm = "rms_norm"
    model.position = "rotary"
    model.dropout_rate = 0.1
    config.training.steps = 600
    config.training.batch_size = 16
    config.optimizer.learning_rate = 2e-3
    config.schedule.warmup_steps = 50
    config.schedule.final_fraction = 0.01
    config.evaluation.every = 300
    config.evaluation.batch_size = 16
    config.evaluation.stride = 128
    return config
