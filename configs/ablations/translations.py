"""Question: cross-attention, none, or one state, by the length of the sentence.

Fuller than cross_attention.py: trained until translations can be told apart.

Command:   python -m experiments.ablate --config=configs/ablations/translations.py --seeds=10:15 \
             --workdir=runs/translations
Takes:     6 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import cross_attention


def get_config():
    """Returns the base: 1 + 1 layers of width 64 with cross-attention, 2,000 updates."""
    config = cross_attention.get_config()
    config.training.steps = 2000
    config.evaluation.every = 2000
    return config


def get_arms():
    """Returns those of cross_attention.py."""
    return cross_attention.get_arms()


def get_study():
    """Returns how it is judged."""
    return {
        "question": "How well is a source translated with cross-attention, without it, and through "
        "one state, and does that depend on its length?",
        "prediction": "Without cross-attention there is no translation, below 1 BLEU. The LSTM is "
        "worse than cross-attention, and the more so the longer the source.",
        "metric": "bleu",
        "margin": 1.0,
        "margin_reason": "the way in which BLEU is counted alone moves it by up to 1.8 (Post 2018, "
        "arXiv:1804.08771, section 3)",
        "looks": (5,),
        "base": "cross-attention",
    }
