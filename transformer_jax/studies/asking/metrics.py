"""What runs are compared by."""

# larger is better, and the margin that a question gets that names none
METRICS = {
    "loss": (False, 0.01),
    "bits_per_byte": (False, 0.01),
    "accuracy": (True, 0.01),
    "generated_accuracy": (True, 0.01),
    "bleu": (True, 0.5),
    "chrf": (True, 0.5),
}


def larger_is_better(metric: str) -> bool:
    """Returns the direction of a metric, with or without the split it is of.

    What is no score, a time or a norm say, is better smaller.
    """
    return METRICS.get(metric.rsplit("/", 1)[-1], (False, 0.0))[0]
