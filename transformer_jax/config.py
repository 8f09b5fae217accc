"""Every option of a run: type, default, meaning. Nothing here imports jax.

A config has a section for each class below. An option whose value names a variant (`model.norm`)
has a section beside it for the options of the chosen one (`model.norm_options`), or shares its own
(`schedule.warmup_steps`): those are the typed fields of the variant. Variants of one family that
have an option of the same name share it, so that it stays stated when another variant is chosen.
"""

import math
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt, Predicate
from typing_extensions import Doc

from transformer_jax.declarations import Option, options_of_section
from transformer_jax.model_options import ModelOptions
from transformer_jax.options import (
    Count,
    Form,
    Natural,
    NonNegative,
    Number,
    OpenShare,
    Positive,
    SameAs,
    Switch,
    Text,
    TracedNonNegative,
    TracedPositive,
    UserDefined,
    Variant,
    is_number,
)


def _are_shares(value: tuple) -> bool:
    are_shares = all(is_number(share) and 0 < share < 1 for share in value)
    return len(value) == 3 and are_shares and math.isclose(sum(value), 1)


def _are_multipliers(value: tuple) -> bool:
    try:
        pairs = [part.split("=") for part in value]
        return all(path and 0 <= float(factor) < math.inf for path, factor in pairs)
    except (AttributeError, ValueError):
        return False


_TOKENIZERS = ("byte", "char", "bpe", "word")
Seed = Annotated[int, Ge(0), Lt(2**32), Form("an integer in [0, 2^32)", "0")]
MeshSize = Annotated[
    int, Predicate(lambda size: size == -1 or size >= 1), Form("an integer >= 1, or -1", "1")
]
Splits = Annotated[
    tuple[float, ...],
    Predicate(_are_shares),
    Form("3 numbers in (0, 1) that sum to 1", "0.8,0.1,0.1"),
]
ParameterPaths = Annotated[
    tuple[str, ...],
    Predicate(all),
    Form("beginnings of parameter paths", "token_embedding,block_0"),
]
Multipliers = Annotated[
    tuple[str, ...],
    Predicate(_are_multipliers),
    Form(
        "PATH=NUMBER, path the beginning of parameter paths, number >= 0",
        "token_embedding=0.1,block_0=0.5",
    ),
]
TokenizerName = Annotated[
    str,
    UserDefined(),
    Form(
        f"one of: {', '.join(_TOKENIZERS)}, the path of a tokenizer.json, or your own MODULE:NAME",
        "char",
        _TOKENIZERS,
    ),
    Predicate(
        lambda name: name in _TOKENIZERS or name.endswith(".json") or bool({*":/"} & {*name})
    ),
]


class Run:
    """Options of the whole run."""

    seed: Annotated[Seed, Doc("Seed of initial values, data order and dropout.")] = 0


class Seeds:
    """Separate seeds, which replace `seed` for one purpose each."""

    initial: Annotated[Seed | None, Doc("Seed of the initial values; `seed` if None.")] = None

    order: Annotated[Seed | None, Doc("Seed of the data order; `seed` if None.")] = None

    dropout: Annotated[Seed | None, Doc("Seed of dropout; `seed` if None.")] = None


class Data:
    """Training and evaluation data."""

    task: Annotated[
        str, Variant("data.tasks:TASKS", "data"), Doc("What an example is, and how it is scored.")
    ] = "language_modelling"

    source: Annotated[
        Text,
        UserDefined(),
        Doc(
            "Name of embedded data, or a path. language_modelling and "
            "masked_language_modelling: shakespeare, movie_snippets; a text file, a folder of "
            ".txt files, or shards made by `python -m experiments.make_shards`. Synthetic tasks "
            "with a known best loss: copy, reverse, recall, agreement, markov, "
            "modular_addition. translation: tatoeba_en_es; a .tsv or .csv file of sentence "
            "pairs without a header. text_classification: movie_snippets; a .tsv or .csv file "
            "with the columns text and label, and text_pair for pairs of texts. "
            "image_classification: digits, fashion_mnist; an .npz file, a folder of IDX files, "
            "CIFAR-10's binary version, or a folder with a folder of pictures per class. "
            "vector_classification: an .npz file with vectors [N, L, F] and labels [N]."
        ),
    ] = "shakespeare"

    tokenizer: Annotated[
        TokenizerName,
        Doc(
            "Tokenizer. A tokenizer.json is that of a run or of Hugging Face. Shards have their "
            "own."
        ),
    ] = "char"

    vocab_size: Annotated[
        Annotated[int, Ge(257)],
        Doc(
            "Vocabulary size of a bpe or word tokenizer, which is trained on the training "
            "split. Special tokens that some tasks need (end, mask) are added."
        ),
    ] = 4096

    document_separator: Annotated[
        Annotated[str, Form("a string", "<|endoftext|>")] | None,
        Doc(
            "Line that ends a document ('' is an empty line), or None if each file is a "
            "document. Shards must be made with the same one."
        ),
    ] = None

    separate_documents: Annotated[
        Switch, Doc("Documents in one window neither attend to nor predict each other.")
    ] = False

    splits: Annotated[
        Splits,
        Doc(
            "Shares of the training, validation and test split. Texts are split in order, rows "
            "and images at random (translations of one sentence together). If the source has a "
            "test set, validation is drawn from the rest."
        ),
    ] = (0.9, 0.05, 0.05)

    split_seed: Annotated[
        Natural,
        Doc(
            "Seed of the random split. Not part of `seed`, so that runs with other seeds are "
            "evaluated on the same examples."
        ),
    ] = 0

    train_examples: Annotated[
        Count | None,
        Doc(
            "Number of labelled training examples, or None for all; a smaller set is part of a "
            "larger one."
        ),
    ] = None

    length: Annotated[
        Annotated[int, Ge(2)],
        Doc("Length of the model's input in tokens, L, special tokens included."),
    ] = 64


class Model(ModelOptions):
    """The model."""

    architecture: Annotated[
        str,
        Variant("models:MODELS", "model"),
        Doc(
            "Architecture; the task decides which ones are possible. A class of your own gets "
            "the model options that it has fields for, and its other fields are options too."
        ),
    ] = "decoder"

    match_parameters: Annotated[
        Literal["decoder", "encoder"] | None,
        Doc(
            "Chooses the width of a recurrent architecture so that it has as many parameters as "
            "this architecture with the same options; None leaves the width."
        ),
    ] = None

    max_length: Annotated[
        Count,
        Doc("Longest possible input in tokens, at least data.length."),
    ] = SameAs("data.length")  # ty: ignore

    dtype: Annotated[
        Literal["float32", "bfloat16"],
        Doc(
            "Precision of the computation. Parameters, optimizer, softmax, norms and loss are "
            "always float32."
        ),
    ] = "float32"


class Mesh:
    """Number of devices per axis of the mesh. A mesh changes only the order of sums, so a run may
    continue with another one.
    """

    data: Annotated[
        MeshSize,
        Doc("Devices that each take a part of the batch; -1 means all that the other axes leave."),
    ] = 1

    fsdp: Annotated[
        MeshSize,
        Doc(
            "Devices that each take a part of the batch, and keep a part of every large array "
            "of parameters and optimizer state."
        ),
    ] = 1

    tensor: Annotated[
        MeshSize, Doc("Devices that each have some heads and some hidden features.")
    ] = 1

    sequence: Annotated[
        MeshSize, Doc("Devices that each have some positions of each sequence.")
    ] = 1

    rules: Annotated[
        str,
        Variant("placement:RULES"),
        Doc(
            "Rules that divide arrays over the mesh, see transformer_jax/sharding.py, or "
            "MODULE:NAME of a function that returns such Rules."
        ),
    ] = "default"


class Initial:
    """Sources of initial weights other than random initialisation."""

    weights: Annotated[
        Annotated[
            str,
            Predicate(bool),
            Form("a run's directory, a Hugging Face folder, or OWNER/NAME on its hub", "runs/a"),
        ]
        | None,
        Doc(
            "Weights for every parameter with the same path and shape. The tokenizer must be "
            "the same: give data.tokenizer the run's tokenizer.json. `--config=FOLDER` also "
            "takes a Hugging Face folder's shapes and tokenizer."
        ),
    ] = None

    word_vectors: Annotated[
        Annotated[str, Predicate(bool), Form("a file of word vectors", "vectors.txt")] | None,
        Doc(
            "Word vectors in word2vec's text format for the embedding of the words that the "
            "file has. model.width must be their size."
        ),
    ] = None


class Training:
    """Parameter updates."""

    steps: Annotated[Count, Doc("Number of updates.")] = 2000

    batch_size: Annotated[Count, Doc("Examples per update, B.")] = 12

    accumulation: Annotated[
        Count,
        Doc(
            "Number of parts in which a batch is computed, to save memory; a divisor of "
            "batch_size. The gradient is that of the whole batch; each part draws its own "
            "dropout."
        ),
    ] = 1

    loss_chunk: Annotated[
        Count | None,
        Doc("Number of positions whose logits are made at once, to save memory, or None for all."),
    ] = None

    frozen: Annotated[
        ParameterPaths,
        Doc("Parameters that are not trained, e.g. token_embedding or block_0/attention."),
    ] = ()

    weight_ema: Annotated[
        OpenShare | None,
        Doc(
            "Decay per update of an exponential moving average of the weights, which is "
            "evaluated, sampled from and loaded, or None for the weights themselves."
        ),
    ] = None

    clip_norm: Annotated[
        Positive | None,
        Doc(
            "Largest global norm of the gradient; a larger gradient is scaled down. None does "
            "not clip."
        ),
    ] = 1.0


class Objective:
    """The training objective. Evaluation always uses cross-entropy."""

    name: Annotated[
        str, Variant("training.objectives:OBJECTIVES", "objective"), Doc("See docs/catalogue.md.")
    ] = "cross_entropy"


class Optimizer:
    """The optimizer."""

    name: Annotated[
        str, Variant("training.optimizers:OPTIMIZERS", "optimizer"), Doc("See docs/catalogue.md.")
    ] = "adamw"

    learning_rate: Annotated[TracedPositive, Doc("Peak learning rate.")] = 0.001

    weight_decay: Annotated[
        TracedNonNegative,
        Doc(
            "Weight decay. It is multiplied with the learning rate; in adam and sgd it is added "
            "to the gradient."
        ),
    ] = 0.1

    decay_parameters: Annotated[
        tuple[
            Literal["kernel", "embedding", "bias", "scale", "gain", "alpha", "sink", "lambda"], ...
        ],
        Doc("Names of the parameters with weight decay."),
    ] = ("kernel", "embedding")

    learning_rate_multipliers: Annotated[
        Multipliers, Doc("Factors of the learning rate by parameter path; 0 freezes.")
    ] = ()

    decay_multipliers: Annotated[
        Multipliers, Doc("Factors of the weight decay by parameter path.")
    ] = ()


class Schedule:
    """The learning rate schedule."""

    name: Annotated[
        str, Variant("training.schedules:SCHEDULES", "schedule"), Doc("See docs/catalogue.md.")
    ] = "warmup_cosine"


class Evaluation:
    """Evaluation. It does not affect the trained parameters."""

    every: Annotated[
        Count,
        Doc(
            "Updates between evaluations on the validation split. After the last update the "
            "validation and test splits are evaluated."
        ),
    ] = 500

    batch_size: Annotated[Count, Doc("Examples per evaluation batch.")] = 64

    stride: Annotated[
        Count | None,
        Doc(
            "Tokens between the starts of two windows, at most data.length (None). Each token "
            "is scored once."
        ),
    ] = None

    metrics: Annotated[
        tuple[str, ...],
        Variant("metrics:METRICS"),
        Doc(
            "Metrics besides loss, accuracy and the task's own scores, see docs/catalogue.md, "
            "or MODULE:NAME of your own."
        ),
    ] = ()

    target: Annotated[
        Number | None,
        Doc("Validation loss that metrics such as updates_to_target refer to."),
    ] = None


class Hooks:
    """Functions that are called during training. They do not affect it, except those marked
    `intervenes`.
    """

    functions: Annotated[
        tuple[str, ...],
        Variant("training.hooks:HOOKS"),
        Doc("Hooks, or MODULE:NAME of your own; their numbers go to metrics.jsonl."),
    ] = ()

    every: Annotated[
        Count, Doc("Updates between two calls; hooks are also called after the last update.")
    ] = 100


class Logging:
    """Logging. It does not affect the trained parameters."""

    every: Annotated[
        Count, Doc("Updates between rows of metrics.jsonl, which are means since the last row.")
    ] = 10

    writers: Annotated[
        tuple[Literal["tensorboard", "wandb"], ...],
        Doc(
            "Further destinations of the rows of metrics.jsonl (the extra `trackers`). wandb "
            "writes offline unless WANDB_MODE is set."
        ),
    ] = ()


class Checkpoint:
    """Checkpoints. They do not affect the trained parameters."""

    every: Annotated[
        Count, Doc("Updates between checkpoints. The last update is always saved.")
    ] = 500

    keep: Annotated[Count, Doc("Number of newest checkpoints that are kept.")] = 2


class Sample:
    """The sample at the end. It does not affect the trained parameters."""

    num_tokens: Annotated[Natural, Doc("Tokens of the sample; 0 draws none.")] = 300

    temperature: Annotated[
        NonNegative, Doc("Divisor of the logits; 0 takes the likeliest token.")
    ] = 0.8


SECTIONS: dict[str, type] = {
    "": Run,
    "seeds.": Seeds,
    "data.": Data,
    "model.": Model,
    "initial.": Initial,
    "training.": Training,
    "mesh.": Mesh,
    "objective.": Objective,
    "optimizer.": Optimizer,
    "schedule.": Schedule,
    "evaluation.": Evaluation,
    "hooks.": Hooks,
    "logging.": Logging,
    "checkpoint.": Checkpoint,
    "sample.": Sample,
}

# The options that every config has, by their full keys; those of variants come with the variant.
OPTIONS: dict[str, Option] = {
    key: option
    for prefix, section in SECTIONS.items()
    for key, option in options_of_section(section, prefix).items()
}
DEFAULTS: dict[str, Any] = {key: option.default for key, option in OPTIONS.items()}

# What chooses a variant that has options: its key -> the section of these options.
VARIANT_SECTIONS = {
    key: option.variant.section
    for key, option in OPTIONS.items()
    if option.variant is not None and option.variant.section
}
