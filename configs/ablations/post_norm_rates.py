"""Question: post-norm with and without warm-up, and pre-norm, at fixed rates and with fresh seeds.

post_norm.py had each rate from runs of half the updates, and its words come from a procedure that
changed after its scores were seen. Here the rates are arms, so that none is chosen: those that it
chose (0.0024 for post-norm, with and without warm-up, and 0.0043 for pre-norm), and lower ones.

Command:   python -m experiments.ablate --config=configs/ablations/post_norm_rates.py \
             --seeds=60:66 --workdir=runs/post_norm_rates
Takes:     65 minutes on 2 CPU cores that had other work for half of it.

Limits: as of norms_wide.py: one text of characters, 6 blocks of width 128, windows of 64, one
initial size for all, which is pre-norm's, and 2,000 updates. Deeper models may part pre- and
post-norm otherwise. Pre-norm's mean is 0.009 better at 0.003 than at 0.0043, which is not judged,
so that a rate below both may suit it better: to be told from post-norm no more, it would have to
gain 0.031 over 0.003. Post-norm with warm-up has one rate, and higher rates were not tried. At that
rate it is ahead of post-norm without warm-up in five of six seeds, and in post_norm.py in five of
five. At 0.0017 both the rate and the warm-up differ from the base; without warm-up that rate is
worse than 0.0024 by 0.032 in all seeds, which is not judged. At lower rates the lead was smaller:
in norms_wide.py, post-norm at 0.0015, it was 0.026 and unresolved. What was predicted is open for
all four: intervals reach past its ranges. A first launch, of one arm and one seed more, was
stopped within its first two runs, to be made shorter; of these a training loss was seen, no score.
"""

from configs.ablations import post_norm

_RATE = "optimizer.learning_rate"


def get_config():
    """Returns the base: 6 blocks, post-norm, 100 updates of warm-up, post_norm.py's rate for it."""
    config = post_norm.get_config()
    config.model.wiring = "post"
    config.optimizer.learning_rate = 0.0024
    return config


def get_arms():
    """Returns pre-norm, and post-norm without warm-up, at the rate post_norm.py chose and below."""
    without = post_norm.get_arms()["post, no warm-up"]
    return {
        "post at 0.0024": {},
        **{f"pre at {rate}": {"model.wiring": "pre", _RATE: rate} for rate in (0.003, 0.0043)},
        **{f"post, no warm-up at {rate}": without | {_RATE: rate} for rate in (0.0017, 0.0024)},
    }


def get_study():
    """Returns how it is judged."""
    shared = post_norm.get_study()
    return {
        "question": "Is post-norm better than pre-norm with fresh seeds, and worse without warm-up "
        "than with it?",
        "prediction": "As post_norm.py found with other seeds: pre-norm is worse by 0.04 to 0.09 "
        "at both rates. Without warm-up post-norm is worse by 0.005 to 0.03 at 0.0024, and by "
        "0.005 or more at 0.0017.",
        "expected": {
            "pre at 0.003": (-0.09, -0.04),
            "pre at 0.0043": (-0.09, -0.04),
            "post, no warm-up at 0.0017": (None, -0.005),
            "post, no warm-up at 0.0024": (-0.03, -0.005),
        },
        "metric": shared["metric"],
        "margin": shared["margin"],
        "margin_reason": "the one of norms_wide.py: 1 % of the perplexity; going from 4-grams to "
        "5-grams gives 0.137",
        "looks": (6,),
        "base": "post at 0.0024",
        "supersedes": "post_norm.py's words changed with the procedure after its scores were seen, "
        "its rates were found at half the updates, and it compared post-norm without warm-up with "
        "pre-norm alone",
    }
