"""Transformer or recurrent net on characters, at equal parameters.

Command:   python -m experiments.ablate --config=configs/ablations/text_models.py --seeds=20:25 \
             --workdir=runs/text_models
Takes:     64 minutes on 2 CPU cores.

Answer: After 2,000 updates GRU, LSTM and tanh net are all better than the transformer, by 0.171,
0.138 and 0.080 nats.

Limits: One text of characters, 0.8 million parameters, windows of 64 that begin without a state,
and one and a half passes over the text. The transformer has learned positions and is worse than
5-grams; compared with rotary ones the tanh net's lead is not certainly more than the margin. One
schedule, weight decay and batch for all, chosen for the transformer.
"""

from configs import shakespeare
from configs.ablations import CHARACTERS, LEARNING_RATES, and_recurrent_nets


def get_config():
    """Returns the transformer of configs/shakespeare.py."""
    return shakespeare.get_config()


def get_arms():
    """Returns recurrent nets of 2 layers, as wide as gives the transformer's parameters."""
    return and_recurrent_nets()


def get_study():
    """Returns how it is judged."""
    return {
        **CHARACTERS,
        "question": "Which of transformer, LSTM, GRU and tanh net predicts characters best, each "
        "at its own learning rate?",
        "prediction": "LSTM and GRU are better than the transformer by 0.05 to 0.15; the tanh net "
        "lies between 0.1 worse and 0.05 better.",
        "expected": {"LSTM": (0.05, 0.15), "GRU": (0.05, 0.15), "tanh": (-0.1, 0.05)},
        "base": "transformer",
        "tuning": LEARNING_RATES,
    }
