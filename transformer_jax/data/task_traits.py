"""What configs, checks and judges have to know of a task without making it."""

from typing import NamedTuple


class TaskTraits(NamedTuple):
    """One task; the defaults are those of the user's own, of which nothing is known.

    Attributes:
      architectures: take its inputs and give what it scores; empty: any may.
      source: the kind that it reads, as data/sources/files.py names them; None: any.
      needs: methods and fields of a model that it uses beside training it.
      rereads: whether a model reads what was written before, token by token.
      running_text: whether its examples are windows of texts, so that neighbours are alike.
      framed: what stands around a text that its models read, in the words of
        data/huggingface_tokenizers.as_huggingface.
    """

    architectures: tuple[str, ...] = ()
    source: str | None = None
    needs: tuple[str, ...] = ()
    rereads: bool = False
    running_text: bool = False
    framed: str = "$A"


TRAITS = {
    "language_modelling": TaskTraits(
        ("decoder", "recurrent_decoder"),
        "text",
        ("max_length",),
        rereads=True,
        running_text=True,
    ),
    "masked_language_modelling": TaskTraits(
        ("encoder",), "text", ("max_length",), running_text=True, framed="{begin} $A"
    ),
    "synthetic": TaskTraits(
        ("decoder", "recurrent_decoder"), "made-up languages", ("max_length",), rereads=True
    ),
    "translation": TaskTraits(
        ("encoder_decoder",),
        "pairs",
        ("max_length", "encode", "decode"),
        rereads=True,
        framed="$A {end}",
    ),
    "text_classification": TaskTraits(
        ("encoder", "recurrent_encoder"), "labelled text", framed="{begin} $A {end}"
    ),
    "image_classification": TaskTraits(("vision_transformer",), "images"),
    "vector_classification": TaskTraits(("encoder", "recurrent_encoder"), "vectors"),
}


def traits_of(task: str) -> TaskTraits:
    """Returns what is known of a task, by its name in a config."""
    return TRAITS.get(task, TaskTraits())
