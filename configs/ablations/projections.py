"""Question: which of the query, key and value projections are needed.

Command:   python -m experiments.ablate --config=configs/ablations/projections.py --seeds=5 \
             --workdir=runs/projections
Takes:     about 2 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import quick


def get_config():
    """Returns the base: all three."""
    return quick.get_config()


def get_arms():
    """Returns which of them are learned; fewer are fewer parameters."""
    return {
        "separate": {},
        "query is key": {"model.projections": "shared_query_key"},
        "no value": {"model.projections": "no_value"},
        "identity": {"model.projections": "identity"},
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Do a query, a key and a value projection each have a role?",
        "prediction": "Sharing query and key is worse by more than the margin; leaving the "
        "value projection out is within it, since the output matrix follows; "
        "without any the loss is much worse.",
        "metric": "loss",
        "margin": 0.02,
        "margin_reason": "about what 6 % more training gives quick.py: 15 % gave 0.050 over 3 "
        "seeds",
        "looks": (5,),
        "base": "separate",
    }
