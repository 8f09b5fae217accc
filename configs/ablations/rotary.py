"""Question: does what rotary positions gain hold as the model grows wider.

Command:   python -m experiments.ablate --config=configs/ablations/rotary.py --seeds=5 \
             --ladder=model.width=16,32,64,128 --workdir=runs/rotary_ladder
Takes:     about 5 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import quick


def get_config():
    """Returns the base: learned positions; the ladder sets the width."""
    return quick.get_config()


def get_arms():
    """Returns learned and rotary positions."""
    return {"learned": {}, "rotary": {"model.position": "rotary"}}


def get_study():
    """Returns how it is judged, at each width."""
    return {
        "question": "Does what rotary positions gain hold as the model grows wider?",
        "prediction": "Rotary is better at every width, and its gain grows neither nor shrinks by "
        "more than its interval; a power law through the smaller widths forecasts the largest's "
        "loss to within the margin.",
        "metric": "loss",
        "margin": 0.02,
        "margin_reason": "about what 6 % more training gives at width 64: 15 % gave 0.050 over 3 "
        "seeds; the same for all widths, so that they compare",
        "looks": (5,),
        "base": "learned",
    }
