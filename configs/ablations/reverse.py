"""Study: the positions that reversing a row needs.

Command:   python -m experiments.ablate --config=configs/ablations/reverse.py --seeds=5:10 \
             --workdir=runs/reverse
Takes:     about 2 minutes on 2 CPU cores that had other work.

Answer: With learned, sinusoidal and rotary positions a decoder reverses rows of 8 without a
mistake; with ALiBi it is 0.038 less accurate, and without positions 0.530.

Limits: 500 updates at one rate and rows of one length, judged with the right answers before each
given. ALiBi, and a decoder without positions, may only need longer. The three that make no mistake
are at a ceiling, so that nothing is said between them.
"""

from configs.ablations import synthetic


def get_config():
    """Returns learned positions, rows of 8 symbols."""
    config = synthetic.get_config()
    config.data.source = "reverse"
    config.training.steps = 500
    return config


def get_arms():
    """Returns the encodings, those that are added equally large."""
    positions = ("learned", "none", "sinusoidal", "rotary", "alibi")
    rms = {"model.position_options.rms": 0.06}
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
