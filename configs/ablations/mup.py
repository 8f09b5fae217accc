"""Question: does the best learning rate stay where it is as the model grows wider.

Command:   python -m experiments.ablate --config=configs/ablations/mup.py --seeds=5 \
             --ladder=model.width=64,128,256,512 --workdir=runs/mup_ladder
           The same without muP, into a --workdir of its own:
           --config.model.parametrisation=standard
Takes:     36 minutes on 2 CPU cores, 24 of them at width 512; without muP, to width 256, 11.

The rate was found at width 64, with seeds 1000 and 1001 (validation loss, means of both): 2.089 at
0.002, 1.953 at 0.004, 1.900 at 0.008, 1.927 at 0.016, 1.934 at 0.032.

Limits: the rate is 0.009, half is 0.0045, twice is 0.018. The gate is 3-grams, sealed with the
reason that narrow models are there to find a rate. One text of characters, 2 blocks, 1,000
updates, after which no width is better than 4-grams (1.821); one way of growing, 4 heads at every
width, and three rates a factor of 2 apart. Longer training or deeper models may have their best
rates elsewhere. It is about where the best rate lies, not about which parametrisation is better:
without muP no rate below half was tried. At width 64 both are the same, bit for bit, and their runs
one sample. The rate, found by two seeds' validation losses, lies under muP below the interval of
the best one at every width, 64 too. Under muP half the rate is worse at every width, as was
predicted, by more than the margin surely at 128 and 512 only; that twice the rate is was seen at
none. Without muP twice the rate falls apart at width 128 with all seeds (losses of 2.04 to 2.39),
which bends the parabola there, and at 256 the rate itself is worse than 3-grams (2.453, they
2.114).
"""

from configs import shakespeare

_RATE = 9e-3  # where a parabola through the middle three has its lowest point


def get_config():
    """Returns the base: 2 blocks under muP, at the rate that was found at width 64."""
    config = shakespeare.get_config()
    config.model.depth = 2
    config.model.parametrisation = "mup"
    config.optimizer.learning_rate = _RATE
    config.schedule.warmup_cosine.warmup_steps = 50
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
        "widths. Without it half is better than the rate at width 256, and the more so the wider.",
        "metric": "loss",
        "margin": 0.01,
        "margin_reason": "1 % of the perplexity; three seeds of shakespeare.py lie within 0.007",
        "gate": {
            "by": "3-gram",
            "reason": "the narrow models are there to find a rate; the widest is shown beside "
            "4-grams too",
        },
        "looks": (5,),
        "base": "the rate",
    }
