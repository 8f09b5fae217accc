r"""Question: what is pretraining on a billion pairs of sentences worth with few labels.

Command:   make minilm
           python -m experiments.ablate --config=configs/ablations/pretrained.py --seeds=10:15 \
             --workdir=runs/pretrained
           and with 100, 400 and 1,600 labels:  ... --ladder=data.train_examples=100,400,1600 \
             --workdir=runs/pretrained_ladder
Takes:     10 minutes, the ladder 20 more, on 2 CPU cores that had other work.

Limits: the head on frozen features has a learning rate a hundred times the others', and no rate was
tuned.
"""

from configs import movies_minilm

_BODY = ("token_embedding", "type_embedding", "positions", "embedding_norm")
_BLOCKS = tuple(f"block_{layer}" for layer in range(6))


def get_config():
    """Returns the base: MiniLM's 6 layers of width 384, fine-tuned on 400 labelled sentences."""
    config = movies_minilm.get_config()
    config.data.length = 40
    config.data.train_examples = 400
    config.training.steps = 50
    config.schedule.warmup_cosine.warmup_steps = 5
    config.optimizer.learning_rate = 1e-4
    config.evaluation.every = 50
    config.evaluation.batch_size = 128
    return config


def get_arms():
    """Returns fine-tuned, frozen but for its head, whose rate is larger, and untrained."""
    return {
        "fine-tuned": {},
        "frozen features": {
            "training.frozen": (*_BODY, *_BLOCKS),
            "optimizer.learning_rate": 1e-2,
        },
        "from scratch": {"initial.weights": None},
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Do weights of a net that read a billion pairs of sentences help where labels "
        "are few, and is it enough to train a head on them?",
        "prediction": "From scratch is worse by more than ten margins: it can hardly learn words "
        "from 400 sentences. Frozen features are worse by one to four margins.",
        "metric": "accuracy",
        "margin": 0.02,
        "margin_reason": "two standard errors of an accuracy of 0.75 over the 2,117 test sentences",
        "looks": (5,),
        "base": "fine-tuned",
    }
