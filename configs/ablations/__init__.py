"""Studies: questions about transformers, each with its arms and how it is judged.

A study's docstring is its record: the command, the time, the answer and its limits.
"""

# Of studies on tiny Shakespeare that start from configs/shakespeare.py.
CHARACTERS = {
    "metric": "loss",
    "margin": 0.01,
    "margin_reason": "1 % of the perplexity; three seeds of configs/shakespeare.py lie within "
    "0.007, and going from 4-grams to 5-grams gives 0.137",
    "looks": (5,),
}
LEARNING_RATES = {
    "key": "optimizer.learning_rate",
    "grid": (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
    "seeds": (1000, 1001),
}


def and_recurrent_nets():
    """Returns a transformer, and recurrent nets of 2 layers that have as many parameters."""
    recurrent = {"model.architecture": "recurrent_decoder", "model.match_parameters": "decoder"}
    cells = {"LSTM": "lstm", "GRU": "gru", "tanh": "rnn"}
    return {
        "transformer": {},
        **{name: {**recurrent, "model.cell": c} for name, c in cells.items()},
    }
