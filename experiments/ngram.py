"""Scores n-grams under the evaluation of a config: the baseline that a language model has to beat.

Example:
  python -m experiments.ngram --config=configs/shakespeare.py --orders=1,2,3,4,5,6
"""

from typing import Any

from experiments.command import Parser, execute
from transformer_jax.errors import InvalidInput


def main(argv: list[str]) -> None:
    """Reads the arguments, counts the training split, and prints a row for each order."""
    parser = Parser("ngram", __doc__, takes_config=True)
    parser.add_argument("--orders", default="1,2,3,4,5,6", help="lengths in tokens (1,2,3,4,5,6)")
    arguments = parser.read(argv)
    try:
        orders = sorted({int(order) for order in arguments.orders.split(",")})
    except ValueError:
        orders = []
    if not orders or orders[0] < 1:
        raise InvalidInput(f"--orders={arguments.orders}: expected integers >= 1, as 1,2,3")
    config = arguments.config
    if config.data.task != "language_modelling":
        raise InvalidInput(f"data.task={config.data.task}: n-grams are for language_modelling")

    import numpy as np

    from transformer_jax.data.ngrams import NGrams
    from transformer_jax.data.tasks import Batch, LanguageModelling
    from transformer_jax.training.build import make_task
    from transformer_jax.training.evaluation import evaluate
    from transformer_jax.training.metrics import Sums

    task = make_task(config)
    assert isinstance(task, LanguageModelling)
    train = task.splits["train"]
    text = train.windows(np.array([0]), len(train))[0]
    validation: dict[int, float] = {}
    for order in orders:
        grams = NGrams.fit(text, task.tokenizer.vocab_size, order)

        def score(grams: NGrams, batch: Batch) -> Sums:
            losses: Any = grams.losses(batch).sum(-1)
            return Sums(losses, 0 * losses, batch["weights"].sum(-1))

        told = []
        for split in ("validation", "test"):
            scored = evaluate(score, grams, task, split, config.evaluation.batch_size)
            told.append(
                "  ".join(
                    f"{name} {m:.4f}" for name, m in scored.means.items() if name != "accuracy"
                )
            )
            if split == "validation":
                validation[order] = scored.means["loss"]
        print(f"{order} tokens   validation: {told[0]}   test: {told[1]}", flush=True)
    best = min(validation, key=lambda order: validation[order])
    windows = f"windows of {task.length}, as models see them"
    print(f"best on the validation split: {best} tokens ({windows})")


if __name__ == "__main__":
    execute(main)
