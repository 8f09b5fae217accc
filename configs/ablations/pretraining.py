r"""Question: does pretraining on the hidden tokens of 8,000 sentences help to classify them.

Command:   python -m experiments.train --config=configs/ablations/masked.py --workdir=runs/masked
           python -m experiments.ablate --config=configs/ablations/pretraining.py --seeds=10:15 \
             --workdir=runs/pretraining
Takes:     about 2 minutes on 2 CPU cores that had other work.

Limits: the head on frozen features has a learning rate ten times the others', and no rate was
tuned.
"""

from configs import movies

_SOURCE = "runs/masked"


def get_config():
    """Returns the base: from scratch, 2 layers of width 64, 6,400 labelled sentences once each."""
    config = movies.get_config()
    config.data.tokenizer = f"{_SOURCE}/tokenizer.json"
    config.data.length = 48
    config.data.train_examples = 6400
    config.model.width = 64
    config.model.init_std = 0.06
    config.training.steps = 200
    config.schedule.warmup_cosine.warmup_steps = 20
    config.evaluation.every = 200
    config.evaluation.batch_size = 512
    return config


def get_arms():
    """Returns from scratch, fine-tuned, and with all but the head, whose rate is larger, frozen."""
    weights = {"initial.weights": _SOURCE}
    body = ("token_embedding", "block_0", "block_1", "final_norm")
    return {
        "from scratch": {},
        "fine-tuned": weights,
        "frozen features": {**weights, "training.frozen": body, "optimizer.learning_rate": 1e-2},
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Does pretraining as a masked language model on no more than the sentences "
        "that are then classified help?",
        "prediction": "Fine-tuned is no different within the margin: one run each of two other "
        "seeds was lower by 0.01. Frozen features are worse by more than 0.05.",
        "metric": "accuracy",
        "margin": 0.02,
        "margin_reason": "two standard errors of an accuracy of 0.7 over the 2,117 test sentences",
        "looks": (5,),
        "base": "from scratch",
    }
