"""Question: what does the causal mask protect from.

Command:   python -m experiments.ablate --config=configs/ablations/leak.py --seeds=5:10 \
             --workdir=runs/leak
Takes:     36 seconds on 2 CPU cores.
"""

from configs.ablations import synthetic


def get_config():
    """Returns the base: a causal decoder that copies rows of 8 symbols."""
    config = synthetic.get_config()
    config.data.source = "copy"
    config.training.steps = 300
    return config


def get_arms():
    """Returns with and without the mask."""
    return {"causal": {}, "unmasked": {"model.mask": "unmasked"}}


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Does a decoder that sees what it has to predict learn to predict it?",
        "prediction": "Unmasked, the loss comes near 0 sooner, and what the model writes by "
        "itself is at chance.",
        "metric": "generated_accuracy",
        "margin": 0.02,
        "margin_reason": "two answers in a hundred; a writer that is so often wrong is one to be "
        "looked at",
        "looks": (5,),
        "base": "causal",
    }
