r"""Question: does pretraining on hidden tokens help with few labels, and is it enough to freeze it.

Command:   python -m experiments.train --config=configs/ablations/masked.py --workdir=runs/masked
           python -m experiments.ablate --config=configs/ablations/pretraining.py --seeds=5 \
             --workdir=runs/pretraining
Takes:     TAKES.
"""

from configs import movies

_SOURCE = "runs/masked"


def get_config():
    """Returns the base: from scratch, on the 1,600 or so labels of 15 % of the sentences."""
    config = movies.get_config()
    config.data.tokenizer = f"{_SOURCE}/tokenizer.json"
    config.data.length = 48
    config.data.splits = (0.15, 0.65, 0.2)
    config.model.width = 64
    config.model.init_std = 0.06
    config.training.steps = 300
    config.schedule.warmup_cosine.warmup_steps = 30
    config.evaluation.every = 300
    config.evaluation.batch_size = 512
    return config


def get_arms():
    """Returns from scratch, fine-tuned, and with all but the head as it was pretrained."""
    weights = {"initial.weights": _SOURCE}
    body = ("token_embedding", "block_0", "block_1", "final_norm")
    return {
        "from scratch": {},
        "fine-tuned": weights,
        "frozen features": {**weights, "training.frozen": body},
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Does pretraining as a masked language model help where labels are few?",
        "prediction": "Fine-tuned is better than from scratch by more than the margin, since the "
        "labels are few; frozen features are worse than fine-tuned ones and no better than from "
        "scratch.",
        "metric": "accuracy",
        "margin": 0.01,
        "margin_reason": "one sentence in a hundred; the standard error of an accuracy of 0.7 "
        "over the 2,117 test sentences is 0.010",
        "looks": (5,),
        "base": "from scratch",
    }
