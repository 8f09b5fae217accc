"""Question: post-norm beside pre-norm, its rate found closely, with and without warm-up.

Command:   python -m experiments.ablate --config=configs/ablations/post_norm.py --seeds=40:45 \
             --workdir=runs/post_norm
Takes:     40 minutes on 2 CPU cores.

Limits: as of norms_wide.py: one text of characters, 6 blocks of width 128, windows of 64, one
initial size for all, which is pre-norm's. Deeper models may part pre- and post-norm more. Rates
were found at half the updates, where both were equal at the best of the first rates: were the
base's best one elsewhere after all updates, and cost it as much as a neighbour of it, post-norm
would stay better, and post-norm without warm-up not. Their upper limits say nothing, since seeds
fall apart at the next rate. Fewer updates may change it: in the tuning runs (validation, not
judged; each arm's best rate of those that all tried) pre-norm was 0.09 ahead of post-norm, and 0.05
of post-norm without warm-up, after 500 updates with one seed; after 1,000 the means of three seeds
lay within 0.006 of pre-norm's. Halved steps gave post-norm 23 tuning runs, without warm-up 20, and
the base 14. Whether post-norm needs warm-up is open: it is asked beside pre-norm alone. Without it,
post-norm was behind post-norm with it in every seed, by 0.007 to 0.023, which is not judged. By 18
crossed runs of shakespeare.py the test loss of one has a standard deviation of about 0.009 (some 5
degrees of freedom); they range over 0.029, more than the margin's reason says. Its 0.138 is 0.1374,
before 4-grams and 5-grams are rounded.
"""

from configs.ablations import norms_wide


def get_config():
    """Returns the base of norms_wide.py: 6 blocks, pre-norm, 100 updates of warm-up."""
    return norms_wide.get_config()


def get_arms():
    """Returns post-norm, and post-norm without warm-up."""
    arms = norms_wide.get_arms()
    return {
        "pre": {},
        "post": arms["post"],
        "post, no warm-up": arms["post"] | arms["pre, no warm-up"],
    }


def get_study():
    """Returns how it is judged: as norms_wide.py is, with smaller steps where a rate diverges."""
    study = norms_wide.get_study()
    return study | {
        "question": "Is post-norm better than pre-norm at a rate of its own, and does it need "
        "warm-up?",
        "prediction": "In norms_wide.py, of other seeds, post-norm was 0.026 better, with an "
        "interval that tuning made useless; so it is 0.01 to 0.04 better. Without warm-up it is "
        "worse than pre-norm by more than 0.02.",
        "expected": {"post": (0.01, 0.04), "post, no warm-up": (None, -0.02)},
        "tuning": study["tuning"]
        | {"seeds": (1000, 1001, 1002), "rungs": ((0.25, 1), (0.5, 3)), "halve": True},
        "supersedes": "two tuning seeds, one of which fell apart at twice the best rate, left "
        "norms_wide.py without an answer on post-norm",
    }
