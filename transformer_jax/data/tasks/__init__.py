"""What is learned: examples of a source become Batches, and nothing downstream asks how.

Each row of TASKS makes a Task from options of a config; it declares those that it takes.
"""

from collections.abc import Callable

from transformer_jax.data.tasks.batch import Batch, Task, batch_rows, count_of_batch
from transformer_jax.data.tasks.classification import (
    Classification,
    image_classification,
    text_classification,
    vector_classification,
)
from transformer_jax.data.tasks.language_modelling import LanguageModelling
from transformer_jax.data.tasks.masked_language_modelling import MaskedLanguageModelling
from transformer_jax.data.tasks.synthetic import SyntheticTask
from transformer_jax.data.tasks.translation import Translation

TASKS: dict[str, Callable[..., Task]] = {
    "language_modelling": LanguageModelling.load,
    "masked_language_modelling": MaskedLanguageModelling.load,
    "synthetic": SyntheticTask.load,
    "translation": Translation.load,
    "text_classification": text_classification,
    "image_classification": image_classification,
    "vector_classification": vector_classification,
}

__all__ = [
    "TASKS",
    "Batch",
    "Classification",
    "LanguageModelling",
    "MaskedLanguageModelling",
    "SyntheticTask",
    "Task",
    "Translation",
    "batch_rows",
    "count_of_batch",
]
