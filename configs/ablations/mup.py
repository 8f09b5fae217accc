"""Does the best learning rate stay where it is as the model grows wider.

The rate was found at width 64 with two seeds; a parabola through the middle three of five values
has its lowest point at 0.009.

Command:   python -m experiments.ablate --config=configs/ablations/mup.py --seeds=5 \
             --ladder=model.width=64,128,256,512 --workdir=runs/mup
Takes:     36 minutes on 2 CPU cores, 24 of them at width 512.

Answer: Under muP the best learning rate moves by a factor of 1.18 (interval 0.40 to 1.79) while
the width grows from 64 to 512, and half of the rate found at width 64 is worse at every width.

Limits: One text of characters, 2 blocks, 1,000 updates, after which no width is better than
4-grams; three rates a factor of 2 apart. The rate found at width 64 lies below the interval of the
best one at every width. This does not say which parametrisation is better.
"""

from configs import shakespeare

_RATE = 9e-3


def get_config():
    """Returns 2 blocks under muP, at the rate that was found at width 64."""
    config = shakespeare.get_config()
    config.model.depth = 2
    config.model.parametrisation = "mup"
    config.optimizer.learning_rate = _RATE
    config.schedule.warmup_steps = 50
    config.training.steps = 1000
    return config


def get_arms():
    """Returns the rate that was found, half of it, and twice as much."""
    rate = "optimizer.learning_rate"
    return {"the rate": {}, "half": {rate: _RATE / 2}, "twice": {rate: 2 * _RATE}}


def get_study():
    """Returns how it is judged, at each width."""
    return {
        "question": "Does the learning rate that is best at width 64 serve wider models?",
        "prediction": "Under muP half and twice the rate are worse by more than the margin at all "
        "widths.",
        "metric": "loss",
        "margin": 0.01,
        "margin_reason": "1 % of the perplexity; three seeds of configs/shakespeare.py lie within "
        "0.007",
        "gate": {
            "by": "3-gram",
            "reason": "the narrow models are there to find a rate",
        },
        "looks": (5,),
        "base": "the rate",
    }
