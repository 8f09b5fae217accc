"""Studies: questions about transformers, each with its arms and how it will be judged."""


def beside_recurrent_nets():
    """Returns a transformer, and recurrent nets of 2 layers that have as many parameters."""
    recurrent = {"model.architecture": "recurrent_decoder", "model.match_parameters": "decoder"}
    cells = {"LSTM": "lstm", "GRU": "gru", "tanh": "rnn"}
    return {
        "transformer": {},
        **{name: {**recurrent, "model.recurrent_decoder.cell": c} for name, c in cells.items()},
    }
