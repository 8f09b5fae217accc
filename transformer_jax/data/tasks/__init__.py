"""Tasks, which turn the examples of a source into Batches.

An entry of TASKS is the import path of a function that makes a task from the options of a config;
TRAITS has facts about each task. Such code is imported only when its task is chosen.
"""

from typing import NamedTuple

from transformer_jax.data.tasks.batch import Batch as Batch
from transformer_jax.data.tasks.batch import Task as Task

_HERE, _SHOWN = "transformer_jax.data.tasks", "transformer_jax.training.showcases"
TASKS = {
    "language_modelling": f"{_HERE}.language_modelling:LanguageModelling.load",
    "masked_language_modelling": f"{_HERE}.masked_language_modelling:MaskedLanguageModelling.load",
    "masked_diffusion": f"{_HERE}.masked_diffusion:MaskedDiffusion.load",
    "synthetic": f"{_HERE}.synthetic:SyntheticTask.load",
    "translation": f"{_HERE}.translation:Translation.load",
    "text_classification": f"{_HERE}.classification:text_classification",
    "image_classification": f"{_HERE}.classification:image_classification",
    "vector_classification": f"{_HERE}.classification:vector_classification",
}


class TaskTraits(NamedTuple):
    """Facts about a task that are known without loading it.

    The defaults suit a user-defined task, about which nothing is known.

    Attributes:
      architectures: Names of the architectures that fit; empty for any.
      source: Kind of its source, a key of data/sources/files.EMBEDDED, or None for any.
      needs: Methods and fields that a model must have besides those used in training.
      sampled: Whether a model's answers are drawn at random.
      running_text: Whether examples are windows of text, so that neighbours are correlated.
      framed: Template of the special tokens around a text; see
        data/huggingface_tokenizers.as_huggingface.
      shown_by: Import path, "module:NAME", of the Demonstration that shows a model's answers.
      scored_with: Names of the packages that its scores require.
      heads: Suffixes of the names of Hugging Face classes whose head suits it.
      tried_on: Name of an embedded source on which to try a model; "" for none.
    """

    architectures: tuple[str, ...] = ()
    source: str | None = None
    needs: tuple[str, ...] = ()
    sampled: bool = False
    running_text: bool = False
    framed: str = "$A"
    shown_by: str = f"{_SHOWN}:GUESSES"
    scored_with: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    tried_on: str = ""


TRAITS = {
    "language_modelling": TaskTraits(
        ("decoder", "recurrent_decoder"),
        "text",
        ("max_length",),
        sampled=True,
        running_text=True,
        shown_by=f"{_SHOWN}:CONTINUATION",
        heads=("",),
        tried_on="shakespeare",
    ),
    "masked_language_modelling": TaskTraits(
        ("encoder",),
        "text",
        ("max_length",),
        running_text=True,
        framed="{begin} $A",
        shown_by=f"{_SHOWN}:FILLED_PLACES",
        heads=("MaskedLM",),
        tried_on="shakespeare",
    ),
    "synthetic": TaskTraits(
        ("decoder", "recurrent_decoder"),
        "made-up languages",
        ("max_length",),
        sampled=True,
        shown_by=f"{_SHOWN}:ANSWERS",
    ),
    "translation": TaskTraits(
        ("encoder_decoder",),
        "pairs",
        ("max_length", "encode", "decode"),
        framed="$A {end}",
        shown_by=f"{_SHOWN}:TRANSLATIONS",
        scored_with=("sacrebleu",),
        heads=("ConditionalGeneration", "MarianMTModel"),
        tried_on="tatoeba_en_es",
    ),
    "text_classification": TaskTraits(
        ("encoder", "recurrent_encoder"),
        "labelled text",
        framed="{begin} $A {end}",
        shown_by=f"{_SHOWN}:CLASSES_OF_TEXTS",
        heads=("SequenceClassification", "BertModel", "RobertaModel", "T5EncoderModel"),
        tried_on="movie_snippets",
    ),
    "image_classification": TaskTraits(
        ("vision_transformer",),
        "images",
        shown_by=f"{_SHOWN}:CLASSES",
        heads=("ImageClassification", "ViTModel"),
        tried_on="digits",
    ),
    "vector_classification": TaskTraits(
        ("encoder", "recurrent_encoder"), "vectors", shown_by=f"{_SHOWN}:CLASSES"
    ),
}
TRAITS["masked_diffusion"] = TRAITS["masked_language_modelling"]._replace(
    sampled=True, shown_by=f"{_SHOWN}:UNMASKED_TEXT", heads=()
)


def traits_of(task: str) -> TaskTraits:
    """Returns the facts about a task, by its name in a config; defaults if it is user-defined."""
    return TRAITS.get(task, TaskTraits())


def task_of_head(name: str) -> str:
    """Returns the task for a Hugging Face class name, by the longest matching suffix in `heads`."""
    suffixes = {suffix: task for task, traits in TRAITS.items() for suffix in traits.heads}
    return suffixes[max(filter(name.endswith, suffixes), key=len)]
