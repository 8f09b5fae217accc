"""Scores simple methods, which models have to beat, on the data of a config.

Example:
  python -m experiments.baselines --config=configs/shakespeare.py
  python -m experiments.baselines --config=configs/digits.py --json
"""

from typing import Any

from experiments.command import Parser, execute


def main(argv: list[str]) -> dict[str, Any]:
    """Reads the arguments and prints a row per method; returns scores and gate."""
    parser = Parser("baselines", __doc__, takes_config=True)
    parser.add_json()
    arguments = parser.read(argv)
    config = arguments.config

    from transformer_jax.config_files import own_modules
    from transformer_jax.data.baselines import baselines_of
    from transformer_jax.studies.tables import spell, table_text
    from transformer_jax.training.build import make_task

    scores, gate = baselines_of(make_task(config, allow=own_modules(config)), config.training.steps)
    found = {"scores": scores, "gate": gate}
    if not scores:
        print(f"no simple method is known for data.task={config.data.task}")
        return found
    columns = [(split, n) for split in ("validation", "test") for n in ("loss", "accuracy")]
    rows = [
        [name, *[spell(by_split[split].get(metric)) for split, metric in columns]]
        for name, by_split in scores.items()
    ]
    print(table_text(["simple method", *[f"{split} {metric}" for split, metric in columns]], rows))
    print(f"a study's base has to be better than: {gate}")
    return found


if __name__ == "__main__":
    execute(main)
