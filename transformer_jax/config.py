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
    """What all of a run shares."""

    seed: Annotated[
        Seed,
        Doc("Draws initial values, data order and dropout."),
    ] = 0


class Seeds:
    """Seeds of one thing alone, in the place of `seed`."""

    initial: Annotated[
        Seed | None,
        Doc("Draws initial values; None: `seed` does."),
    ] = None

    order: Annotated[
        Seed | None,
        Doc("Draws the data order; None: `seed` does."),
    ] = None

    dropout: Annotated[
        Seed | None,
        Doc("Draws dropout; None: `seed` does."),
    ] = None


class Data:
    """What is learned from."""

    task: Annotated[
        str,
        Variant("data.tasks:TASKS", "data"),
        Doc("What an example is, and how it is scored."),
    ] = "language_modelling"

    source: Annotated[
        Text,
        UserDefined(),
        Doc(
            "Embedded data, or a path. By task: language modelling, masked or not: shakespeare, "
            "movie_snippets; a text file, a folder of .txt files, or a folder of shards made by "
            "`python -m experiments.make_shards`; synthetic: copy, reverse, recall, agreement, "
            "markov, modular_addition; made up, with a best loss that is known; translation: "
            "tatoeba_en_es; a .tsv or .csv file of sentence pairs, without a header; "
            "text_classification: movie_snippets; a .tsv or .csv file with the columns text and "
            "label, and text_pair where two texts are judged together; image_classification: "
            "digits, fashion_mnist; an .npz file, a folder of IDX files, of CIFAR-10's binary "
            "version, or with a folder of pictures for each class; vector_classification: an .npz "
            "file with vectors [N, L, F] and labels [N]."
        ),
    ] = "shakespeare"

    tokenizer: Annotated[
        TokenizerName,
        Doc(
            "What a token is. A tokenizer.json is a run's, or one of Hugging Face; shards bring "
            "their own."
        ),
    ] = "char"

    vocab_size: Annotated[
        Annotated[int, Ge(257)],
        Doc(
            "Tokens of a bpe or word tokenizer, which is trained on the training split (of a text "
            "that is cut by tokens on as large a share of its bytes); the special ones that some "
            "tasks need (end of a text, mask) come beside them."
        ),
    ] = 4096

    document_separator: Annotated[
        Annotated[str, Form("a string", "<|endoftext|>")] | None,
        Doc(
            "Line that ends a document ('' is an empty line); None: each file is a document. "
            "Shards have to be made with the same one."
        ),
    ] = None

    separate_documents: Annotated[
        Switch,
        Doc("Whether documents in one window neither see nor predict each other."),
    ] = False

    splits: Annotated[
        Splits,
        Doc(
            "Shares for train, validation and test. A text is cut in its order, rows and images "
            "are drawn at random (a sentence with several translations as one). A source's own "
            "test set stays the test set, and validation is drawn from the rest."
        ),
    ] = (0.9, 0.05, 0.05)

    split_seed: Annotated[
        Natural,
        Doc(
            "Another seed draws other rows for the splits. Not part of `seed`, so that runs with "
            "other seeds are scored on the same examples."
        ),
    ] = 0

    train_examples: Annotated[
        Count | None,
        Doc(
            "How many examples of the training split a classifier learns from, fewer being among "
            "more; None: all."
        ),
    ] = None

    length: Annotated[
        Annotated[int, Ge(2)],
        Doc("Tokens that the model sees at once, L, special ones included."),
    ] = 64


class Model(ModelOptions):
    """The model."""

    architecture: Annotated[
        str,
        Variant("models:MODELS", "model"),
        Doc(
            "The task says which of them fit. Your own class gets the options of the model that it "
            "has a field for; its other fields are options too."
        ),
    ] = "decoder"

    match_parameters: Annotated[
        Literal["decoder", "encoder"] | None,
        Doc(
            "Chooses the width of a recurrent architecture so that it has as many parameters as "
            "this one with the same options; None: width is taken as it is."
        ),
    ] = None

    max_length: Annotated[
        Count,
        Doc(
            "Longest input that the model can take, in tokens; at least data.length. Data whose "
            "sequences have a length of their own says so, and it is taken."
        ),
    ] = SameAs("data.length")  # ty: ignore

    dtype: Annotated[
        Literal["float32", "bfloat16"],
        Doc(
            "Precision of the computation. Parameters, optimizer, softmax, norms and loss are "
            "float32 in any case. There is no float8."
        ),
    ] = "float32"


class Mesh:
    """How many devices share the work, and how. A mesh changes the order of sums and nothing else,
    so a run may go on with another one.
    """

    data: Annotated[
        MeshSize,
        Doc("Devices that each take a part of the batch; -1: as many as the other axes leave."),
    ] = 1

    fsdp: Annotated[
        MeshSize,
        Doc(
            "Devices that each take a part of the batch too, and keep a part of every large array "
            "of parameters and optimizer."
        ),
    ] = 1

    tensor: Annotated[
        MeshSize,
        Doc("Devices that each have some of the heads and of the hidden features."),
    ] = 1

    sequence: Annotated[
        MeshSize,
        Doc("Devices that each have some places of the text."),
    ] = 1

    rules: Annotated[
        str,
        Variant("placement:RULES"),
        Doc(
            "Which arrays are cut, and where; see transformer_jax/sharding.py. A function of your "
            "own that gives such Rules may take its place."
        ),
    ] = "default"


class Initial:
    """What training starts from, beside freshly drawn values."""

    weights: Annotated[
        Annotated[
            str,
            Predicate(bool),
            Form("a run's directory, a Hugging Face folder, or OWNER/NAME on its hub", "runs/a"),
        ]
        | None,
        Doc(
            "Weights for every parameter of the same path and shape. A run's tokenizer has to be "
            "this one's: give data.tokenizer its file. `--config=FOLDER` takes a Hugging Face "
            "folder's shapes and tokenizer too."
        ),
    ] = None

    word_vectors: Annotated[
        Annotated[str, Predicate(bool), Form("a file of word vectors", "vectors.txt")] | None,
        Doc(
            "Vectors for the embedding of the words that it holds, in word2vec's text format. "
            "model.width has to be their size."
        ),
    ] = None


class Training:
    """How parameters are updated."""

    steps: Annotated[
        Count,
        Doc("Optimizer updates."),
    ] = 2000

    batch_size: Annotated[
        Count,
        Doc("Examples in an update, B."),
    ] = 12

    accumulation: Annotated[
        Count,
        Doc(
            "Parts that a batch is computed in, to save memory; a divisor of batch_size. The "
            "gradient is that of the whole batch, each part with its own dropout."
        ),
    ] = 1

    loss_chunk: Annotated[
        Count | None,
        Doc(
            "Places of a text whose logits are made at once, in training and evaluation, to save "
            "memory; None: all."
        ),
    ] = None

    frozen: Annotated[
        ParameterPaths,
        Doc("Parameters that stay as they start: token_embedding or block_0/attention say."),
    ] = ()

    weight_ema: Annotated[
        OpenShare | None,
        Doc(
            "Decay a step of a running mean of the weights, which is evaluated, shown and loaded "
            "in their place; None: the weights themselves."
        ),
    ] = None

    clip_norm: Annotated[
        Positive | None,
        Doc("Largest global norm of the gradient, larger ones are scaled down."),
    ] = 1.0


class Objective:
    """What training makes small. Evaluation is always by cross-entropy."""

    name: Annotated[
        str,
        Variant("training.objectives:OBJECTIVES", "objective"),
        Doc("See docs/catalogue.md."),
    ] = "cross_entropy"


class Optimizer:
    """Which rule makes updates of gradients."""

    name: Annotated[
        str,
        Variant("training.optimizers:OPTIMIZERS", "optimizer"),
        Doc("See docs/catalogue.md."),
    ] = "adamw"

    learning_rate: Annotated[
        TracedPositive,
        Doc("Peak learning rate."),
    ] = 0.001

    weight_decay: Annotated[
        TracedNonNegative,
        Doc("Weight decay, times the learning rate, or in adam and sgd a part of the gradient."),
    ] = 0.1

    decay_parameters: Annotated[
        tuple[
            Literal["kernel", "embedding", "bias", "scale", "gain", "alpha", "sink", "lambda"], ...
        ],
        Doc("Names of the parameters that decay."),
    ] = ("kernel", "embedding")

    learning_rate_multipliers: Annotated[
        Multipliers,
        Doc("Further factors of the learning rate by path; 0 freezes."),
    ] = ()

    decay_multipliers: Annotated[
        Multipliers,
        Doc("The same for weight decay."),
    ] = ()


class Schedule:
    """How the learning rate moves."""

    name: Annotated[
        str,
        Variant("training.schedules:SCHEDULES", "schedule"),
        Doc("See docs/catalogue.md."),
    ] = "warmup_cosine"


class Evaluation:
    """What is measured; none of it changes a bit of the trained parameters."""

    every: Annotated[
        Count,
        Doc(
            "Updates between evaluations on the validation split. The last update is always "
            "followed by one, on the validation and the test split."
        ),
    ] = 500

    batch_size: Annotated[
        Count,
        Doc("Windows in an evaluation batch."),
    ] = 64

    stride: Annotated[
        Count | None,
        Doc(
            "Tokens between the starts of two windows, each token scored once; at most "
            "data.length, which None takes."
        ),
    ] = None

    metrics: Annotated[
        tuple[str, ...],
        Variant("metrics:METRICS"),
        Doc(
            "What is measured beside loss, accuracy and the task's own scores; see "
            "docs/catalogue.md. A function of your own is a metric too, MODULE:NAME."
        ),
    ] = ()

    target: Annotated[
        Number | None,
        Doc("Validation loss that the metrics of time ask for, updates_to_target say."),
    ] = None


class Hooks:
    """Functions that are called while a model is trained. They change no bit of it, unless one says
    that it intervenes.
    """

    functions: Annotated[
        tuple[str, ...],
        Variant("training.hooks:HOOKS"),
        Doc("Which ones, or MODULE:NAME of your own; what they give goes to metrics.jsonl."),
    ] = ()

    every: Annotated[
        Count,
        Doc("Updates between two calls; the last update is always followed by one."),
    ] = 100


class Logging:
    """What is written down; none of it changes a bit of the trained parameters."""

    every: Annotated[
        Count,
        Doc("Updates between rows of metrics.jsonl, which hold means since the last row."),
    ] = 10

    writers: Annotated[
        tuple[Literal["tensorboard", "wandb"], ...],
        Doc(
            "Where rows go beside metrics.jsonl. They need the extra `trackers`; wandb writes "
            "offline unless WANDB_MODE says otherwise."
        ),
    ] = ()


class Checkpoint:
    """What is kept; none of it changes a bit of the trained parameters."""

    every: Annotated[
        Count,
        Doc("Updates between checkpoints. The last update is always saved."),
    ] = 500

    keep: Annotated[
        Count,
        Doc("Checkpoints kept, the newest."),
    ] = 2


class Sample:
    """The sample at the end; none of it changes a bit of the trained parameters."""

    num_tokens: Annotated[
        Natural,
        Doc("Tokens of the sample; 0: none is drawn."),
    ] = 300

    temperature: Annotated[
        NonNegative,
        Doc("Divides the logits; 0 takes the likeliest token."),
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
