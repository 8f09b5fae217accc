r"""Sentences from film reviews, positive or negative, with an encoder of two layers.

Command:   python -m experiments.train --config=configs/movies.py --workdir=runs/movies
           after masked_lm.py:  ... --config.initial.weights=runs/masked_lm \
               --config.data.tokenizer=runs/masked_lm/tokenizer.json
Takes:     about 90 seconds on 2 CPU cores (1,500 updates and evaluation).
Expected:  accuracy on a random fifth of the sentences (2,117); seeds 0, 1, 2, jax 0.10.2 on a CPU:
             from scratch                          0.7473, 0.7416, 0.7430   (mean 0.744)
             from masked_lm.py's, of that seed     0.7426, 0.7487, 0.7463   (mean 0.746)
             from MiniLM's (movies_minilm.py)      0.8521, 0.8573, 0.8540   (mean 0.854)
             TF-IDF and a linear SVM               0.782 (scikit-learn, words and pairs of words)
           The standard error of so many sentences is 0.009: after pretraining on 8,000 sentences
           it was no better (at the same learning rate). MiniLM is a larger net with other settings
           that had read a billion pairs; what of its accuracy is the pretraining is not told apart.
"""

from configs import reference


def get_config():
    """Returns 2 layers of width 128 over byte-pair tokens, trained for 6 epochs."""
    config = reference.get_config()
    config.data.task = "text_classification"
    config.data.source = "movie_snippets"
    config.data.tokenizer = "bpe"
    config.data.vocab_size = 3000
    config.data.splits = (0.78, 0.02, 0.2)
    config.data.length = 64
    config.model.architecture = "encoder"
    config.model.pooling = "mean"
    config.model.use_bias = True
    config.model.depth = 2
    config.model.position = "rotary"
    config.model.dropout_rate = 0.3
    config.training.steps = 1500
    config.training.batch_size = 32
    config.evaluation.every = 250
    return config
