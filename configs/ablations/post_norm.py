"""Post-norm with and without warm-up, and pre-norm, at learning rates fixed beforehand.

The rates are arms, so that none is chosen: those that earlier runs with other seeds had chosen
(0.0024 for post-norm, with and without warm-up, and 0.0043 for pre-norm), and lower ones.

Command:   python -m experiments.ablate --config=configs/ablations/post_norm.py --seeds=60:66 \
             --workdir=runs/post_norm
Takes:     65 minutes on 2 CPU cores that had other work for half of it.

Answer: In six blocks pre-norm is worse than post-norm by 0.060 to 0.070 nats at both of its rates;
whether post-norm needs warm-up is not decided (0.007 worse without, interval -0.026 to 0.011).

Limits: One text of characters, 6 blocks of width 128 and 2,000 updates, from one initial size that
suits pre-norm. Pre-norm's mean is better at the lower of its rates, and no lower one was tried;
deeper models may order the two otherwise. At 0.0017 both the rate and the warm-up differ from the
baseline.
"""

from configs import shakespeare
from configs.ablations import CHARACTERS

_RATE, _WARMUP = "optimizer.learning_rate", "schedule.warmup_steps"


def get_config():
    """Returns configs/shakespeare.py with 6 blocks, post-norm, 100 updates of warm-up."""
    config = shakespeare.get_config()
    config.model.depth = 6
    config.model.wiring = "post"
    config.optimizer.learning_rate = 0.0024
    return config


def get_arms():
    """Returns pre-norm, and post-norm without warm-up, each at two rates."""
    return {
        "post at 0.0024": {},
        **{f"pre at {rate}": {"model.wiring": "pre", _RATE: rate} for rate in (0.003, 0.0043)},
        **{f"post, no warm-up at {r}": {_WARMUP: 0, _RATE: r} for r in (0.0017, 0.0024)},
    }


def get_study():
    """Returns how it is judged."""
    return {
        **CHARACTERS,
        "question": "Is post-norm better than pre-norm with fresh seeds, and worse without warm-up "
        "than with it?",
        "prediction": "Pre-norm is worse by 0.04 to 0.09 at both rates. Without warm-up post-norm "
        "is worse by 0.005 to 0.03 at 0.0024, and by 0.005 or more at 0.0017.",
        "expected": {
            "pre at 0.003": (-0.09, -0.04),
            "pre at 0.0043": (-0.09, -0.04),
            "post, no warm-up at 0.0017": (None, -0.005),
            "post, no warm-up at 0.0024": (-0.03, -0.005),
        },
        "looks": (6,),
        "base": "post at 0.0024",
    }
