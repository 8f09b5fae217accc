"""WikiText-103 with its official validation and test files, in the raw version.

Papers state perplexity per word. The test file has 245,569 words, ends of lines included, in
1,290,590 bytes, so that the perplexity is 2 ** (5.2555 * bits_per_byte).

Command:   python -m experiments.train --config=configs/wikitext103.py --workdir=runs/wikitext103 \
               --config.data.source=wikitext-103-raw/wiki.train.raw \
               --config.data.validation_source=wikitext-103-raw/wiki.valid.raw \
               --config.data.test_source=wikitext-103-raw/wiki.test.raw
Published: perplexity of the test file: 24.0 (151 million parameters) and 18.3 (257 million; Dai et
           al. 2019, arXiv:1901.02860, table 1, for the version with unknown words); 37.5, without
           training on it, of GPT-2 (117 million; Radford et al. 2019, table 3, detokenized).
           Nothing was trained here yet.
"""

from configs import gpt2_124m


def get_config():
    """Returns configs/gpt2_124m.py with 16,384 tokens that are learned from the text."""
    config = gpt2_124m.get_config()
    config.data.source = "wikitext-103-raw/wiki.train.raw"
    config.data.validation_source = "wikitext-103-raw/wiki.valid.raw"
    config.data.test_source = "wikitext-103-raw/wiki.test.raw"
    config.data.tokenizer = "bpe"
    config.data.vocab_size = 16_384
    config.data.length = 512
    config.model.dropout_rate = 0.1
    config.evaluation.stride = 256
    config.training.steps = 30_000
    config.training.batch_size = 64
    config.training.accumulation = 2
    return config
