r"""Question: do word vectors made from unlabelled sentences help where labels are few.

Command:   python -m experiments.vectors --source=movie_snippets --vocab_size=2000 --width=64 \
             --rms=0.06 --out=runs/vectors.txt
           python -m experiments.ablate --config=configs/ablations/word_vectors.py --seeds=20:25 \
             --workdir=runs/word_vectors
           and with fewer and more labels:  ... --ladder=data.train_examples=400,1600,6400 \
             --workdir=runs/word_vectors_ladder
Takes:     about 1 minute on 2 CPU cores that had other work.
"""

from configs import movies


def get_config():
    """Returns the base: 2 layers of width 64 over 2,000 words, 3,200 labels once each."""
    config = movies.get_config()
    config.data.tokenizer = "word"
    config.data.vocab_size = 2000
    config.data.length = 40
    config.data.train_examples = 3200
    config.model.width = 64
    config.model.init_std = 0.06
    config.training.steps = 100
    config.schedule.warmup_cosine.warmup_steps = 10
    config.evaluation.every = 100
    config.evaluation.batch_size = 512
    return config


def get_arms():
    """Returns embeddings drawn at random, and vectors of the same root mean square."""
    return {"random": {}, "vectors": {"initial.word_vectors": "runs/vectors.txt"}}


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Does an embedding that starts from word vectors of unlabelled sentences beat "
        "one that is drawn at random, where labels are few?",
        "prediction": "Vectors are better by more than the margin: with 1,600 labels five other "
        "seeds gave 0.05, though one run without them overfitted beyond a guess.",
        "metric": "accuracy",
        "margin": 0.02,
        "margin_reason": "two standard errors of an accuracy of 0.7 over the 2,117 test sentences",
        "looks": (5,),
        "base": "random",
    }
