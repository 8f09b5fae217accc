"""Question: which positions does reversing a row need.

Command:   python -m experiments.ablate --config=configs/ablations/reverse.py --seeds=5:10 \
             --workdir=runs/reverse
Takes:     about 2 minutes on 2 CPU cores that had other work.

Limits: 500 updates at one rate, rows of one length; judged with the right answers before each
given. Writing by itself the decoder is right in 0.86 of the answers with ALiBi (0.96 as judged) and
in 0.30 without positions (0.47). ALiBi may only need longer, and so may a decoder without
positions: it is not shown that it cannot solve it, as was predicted, since the last answer is right
in 0.77 and 0.91 of two of its five runs. The three that are right in all answers are at a ceiling,
so that nothing is said between them. That rotary positions are worse than learned ones was
predicted and not seen.
"""

from configs.ablations import synthetic


def get_config():
    """Returns the base: learned positions, rows of 8 symbols."""
    config = synthetic.get_config()
    config.data.source = "reverse"
    config.training.steps = 500
    return config


def get_arms():
    """Returns the encodings, those that are added equally large."""
    positions = ("learned", "none", "sinusoidal", "rotary", "alibi")
    rms = {"model.position_options.sinusoidal.rms": 0.06}
    return {
        name: {"model.position": name} | (rms if name == "sinusoidal" else {}) for name in positions
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Which position encodings let a decoder write a row backwards?",
        "prediction": "Learned and sinusoidal positions solve it; without positions it cannot "
        "be solved, though a causal decoder is not blind to order; rotary and "
        "ALiBi, which know distances alone, are worse than learned ones.",
        "metric": "accuracy",
        "margin": 0.02,
        "margin_reason": "two answers in a hundred; a writer that is so often wrong is one to be "
        "looked at",
        "looks": (5,),
        "base": "learned",
    }
