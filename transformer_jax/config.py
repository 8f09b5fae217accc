"""Every option of a run, with its type, default and meaning. Nothing here imports jax.

A config has a section for each class below. If the value of an option names a variant
(`model.norm`), the variant's own options are in a section beside it (`model.norm_options`) or in
the same section (`schedule.warmup_steps`). They are the typed fields of the variant. Variants of
one family share options of the same name, so such an option keeps its value if another is chosen.
"""

import math
import re
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt, Predicate

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
)


def _are_shares(value: tuple) -> bool:
    return len(value) == 3 and all(0 < share < 1 for share in value) and math.isclose(sum(value), 1)


def _are_multipliers(value: tuple) -> bool:
    pairs = [part.split("=") for part in value]  # a ValueError means False
    return all(path and 0 <= float(factor) < math.inf for path, factor in pairs)


_TOKENIZERS = ("byte", "char", "bpe", "word", "numbers")
Seed = Annotated[int, Ge(0), Lt(2**32), Form("an integer in [0, 2^32)", "0")]
MeshSize = Annotated[
    int, Predicate(lambda size: size == -1 or size >= 1), Form("an integer >= 1, or -1", "1")
]
_SPLITS = Form("3 numbers in (0, 1) that sum to 1", "0.8,0.1,0.1")
Splits = Annotated[tuple[float, ...], Predicate(_are_shares), _SPLITS]
ParameterPaths = Annotated[
    tuple[str, ...], Predicate(all), Form("prefixes of parameter paths", "token_embedding,block_0")
]
MapNames = Annotated[
    tuple[str, ...],
    Predicate(lambda names: bool(names) and all(names)),
    Form("names of maps", "query,value"),
]
Multipliers = Annotated[
    tuple[str, ...],
    Predicate(_are_multipliers),
    Form(
        "PATH=NUMBER, where PATH is a prefix of parameter paths and NUMBER >= 0",
        "token_embedding=0.1,block_0=0.5",
    ),
]
Scheduled = Annotated[
    tuple[str, ...],
    Predicate(lambda them: all(re.fullmatch(r"[\w.]+=[^@/]+@\d+(/[^@/]+@\d+)*", t) for t in them)),
    Form("KEY=VALUE@UPDATE/VALUE@UPDATE/...", "optimizer.weight_decay=0.1@0/0.01@2000"),
]
ParameterName = Literal["kernel", "embedding", "bias", "scale", "gain", "alpha", "sink", "lambda"]
WeightsPath = Annotated[
    str,
    Predicate(bool),
    Form("a run's directory, a Hugging Face folder, or OWNER/NAME on its hub", "runs/a"),
]
VectorsPath = Annotated[str, Predicate(bool), Form("a file of word vectors", "vectors.txt")]
TokenizerName = Annotated[
    str,
    UserDefined(),
    Form(
        f"one of: {', '.join(_TOKENIZERS)}, the path of a tokenizer.json, or your own MODULE:NAME",
        "char",
        _TOKENIZERS,
    ),
    Predicate(lambda n: n in _TOKENIZERS or n.endswith(".json") or bool({*":/"} & {*n})),
]


class Run:
    """Options of the whole run.

    Attributes:
      seed: Seed of initial values, data order and dropout.
    """

    seed: Seed = 0


class Seeds:
    """Separate seeds, each of which replaces `seed` for one purpose.

    Attributes:
      initial: Seed of the initial values; `seed` if None.
      order: Seed of the data order; `seed` if None.
      dropout: Seed of dropout; `seed` if None.
    """

    initial: Seed | None = None
    order: Seed | None = None
    dropout: Seed | None = None


class Data:
    """Training and evaluation data.

    Attributes:
      task: Kind of example, and how it is scored.
      source: Name of embedded data, or a path. language_modelling, masked_language_modelling and
        masked_diffusion: shakespeare, movie_snippets; a text file, documents (.jsonl, .parquet,
        .arrow), tokens (.bin of nanoGPT, llm.c, modded-nanogpt), a folder of such files, or shards
        made by `python -m experiments.make_shards`. Synthetic tasks with a known best loss: copy,
        reverse, recall, agreement, markov, modular_addition. translation: tatoeba_en_es; a .tsv or
        .csv file of sentence pairs without a header. text_classification: movie_snippets; a .tsv or
        .csv file with the columns text and label, and text_pair for pairs of texts.
        image_classification: digits, fashion_mnist; an .npz file, a folder of IDX files, CIFAR-10's
        binary version, or a folder that holds one folder of pictures per class.
        vector_classification: an .npz file with vectors [N, L, F] and labels [N].
      tokenizer: Tokenizer, or a tokenizer.json of a run or of Hugging Face. Shards have their own.
      vocab_size: Vocabulary size of a bpe or word tokenizer, which is trained on the training
        split; for numbers, that of the tokens in the files. Special tokens of tasks are added.
      document_separator: Line that ends a document ('' is an empty line), or None if each file is a
        document. Shards must be made with the same separator.
      text_field: Field of JSON lines, or column of tables, with the texts.
      validation_source: Source of the validation split of a text, e.g. an official file; all of
        data.source is then for training. None splits data.source.
      test_source: Source of the test split; None means the validation split, if that has its own.
      validation_tokens: Number of tokens at the beginning of validation_source; all if None.
      separate_documents: Prevents tokens from attending to, or predicting, tokens of other
        documents in the same window.
      splits: Shares of the training, validation and test splits. Texts are split in order, rows and
        images at random; translations of one sentence stay together. If the source has a test set,
        the validation split is drawn from the rest.
      split_seed: Seed of the random split. It does not depend on `seed`, so that runs with
        different seeds are evaluated on the same examples.
      train_examples: Number of labelled training examples; None: all. Smaller sets are nested.
      length: Length of the model's input in tokens, L, including special tokens.
    """

    task: Annotated[str, Variant("data.tasks:TASKS", "data")] = "language_modelling"
    source: Annotated[Text, UserDefined()] = "shakespeare"
    tokenizer: TokenizerName = "char"
    vocab_size: Annotated[int, Ge(257)] = 4096
    document_separator: Annotated[str, Form("a string", "<|endoftext|>")] | None = None
    text_field: Text = "text"
    validation_source: Text | None = None
    test_source: Text | None = None
    validation_tokens: Count | None = None
    separate_documents: Switch = False
    splits: Splits = (0.9, 0.05, 0.05)
    split_seed: Natural = 0
    train_examples: Count | None = None
    length: Annotated[int, Ge(2)] = 64


class Model(ModelOptions):
    """Architecture, size and precision of the model.

    Attributes:
      architecture: Architecture; the task decides which ones are possible. A class of your own
        receives the model options that match its fields; its other fields are options too.
      match_parameters: Reference architecture: the width of a recurrent architecture is chosen to
        match the number of parameters that the reference has with the same options, or None.
      max_length: Longest possible input in tokens, at least data.length.
      dtype: Precision of the computation. Parameters, optimizer, softmax, norms and loss: float32.
    """

    architecture: Annotated[str, Variant("models:MODELS", "model")] = "decoder"
    match_parameters: Literal["decoder", "encoder"] | None = None
    max_length: Count = SameAs("data.length")  # ty: ignore
    dtype: Literal["float32", "bfloat16"] = "float32"


class Mesh:
    """Number of devices per axis of the mesh.

    A mesh changes only the order of sums, so a run may be continued with a different one.

    Attributes:
      data: Devices that each take a part of the batch; -1 means all that other axes leave.
      fsdp: Devices that each take a part of the batch, and keep a part of every large array of
        parameters and optimizer state.
      tensor: Devices that each have some heads and some hidden features.
      sequence: Devices that each have some positions of each sequence.
      rules: Rules that divide arrays over the mesh (see transformer_jax/sharding.py), or
        MODULE:NAME of a function that returns such Rules.
    """

    data: MeshSize = 1
    fsdp: MeshSize = 1
    tensor: MeshSize = 1
    sequence: MeshSize = 1
    rules: Annotated[str, Variant("placement:RULES")] = "default"


class Initial:
    """Sources of initial weights other than random initialisation.

    Attributes:
      weights: Source of the weights of every parameter with the same path and shape. The tokenizer
        must be the same: set data.tokenizer to the run's tokenizer.json. `--config=FOLDER` also
        adopts the shapes and the tokenizer of a Hugging Face folder.
      word_vectors: File of word vectors in word2vec's text format, for the embeddings of the words
        that it contains. model.width must be the size of the vectors.
    """

    weights: WeightsPath | None = None
    word_vectors: VectorsPath | None = None


class Adapters:
    """Low-rank adapters (LoRA) of kernels, which are trained instead of the parameters themselves.

    Weights are merged in evaluation, loading and export.

    Attributes:
      rank: Rank of the adapters; 0 trains the parameters themselves.
      alpha: Factor of an adapter, times its rank.
      maps: Names of the maps whose kernels get one, e.g. query, key, value, out, up, down.
    """

    rank: Natural = 0
    alpha: Positive = 16.0
    maps: MapNames = ("query", "value")


class Training:
    """Parameter updates.

    Attributes:
      steps: Number of updates.
      batch_size: Examples per update, B.
      accumulation: Number of parts in which a batch is computed, to save memory; a divisor of
        batch_size. The gradient is that of the whole batch; each part draws its own dropout.
      loss_chunk: Number of positions of a text whose logits are computed at a time. None means an
        eighth of the text if the vocabulary has at least 4,096 entries and the logits of the batch
        (or of a part of it, see accumulation) take at least 256 MiB, and else the whole text.
      frozen: Parameters that are not trained, e.g. token_embedding or block_0/attention.
      weight_ema: Decay per update of an exponential moving average of the weights, or None for no
        average. The average replaces the weights in evaluation, sampling and loading.
      clip_norm: Global norm to which a larger gradient is scaled down; None disables clipping.
      scheduled: Numbers that change in training: an option of the optimizer (but its rates have
        schedule.name), of the objective, or of model.mask; or training.batch_size or data.length,
        for which the step is compiled again. KEY=VALUE@UPDATE/VALUE@UPDATE/... has the values at
        some updates, with straight lines between them; integers change at these updates.
        Evaluation uses the option itself.
    """

    steps: Count = 2000
    batch_size: Count = 12
    accumulation: Count = 1
    loss_chunk: Count | None = None
    frozen: ParameterPaths = ()
    weight_ema: OpenShare | None = None
    clip_norm: Positive | None = 1.0
    scheduled: Scheduled = ()


class Objective:
    """The training objective. Evaluation always uses cross-entropy.

    Attributes:
      name: Objective; see docs/catalogue.md.
    """

    name: Annotated[str, Variant("training.objectives:OBJECTIVES", "objective")] = "cross_entropy"


class Optimizer:
    """The optimizer.

    Attributes:
      name: Optimizer; see docs/catalogue.md.
      learning_rate: Peak learning rate.
      weight_decay: Weight decay, times the learning rate; in adam and sgd, added to the gradient.
      cautious_decay: Whether a number decays only when its update shrinks it too (Chen et al. 2025,
        arXiv:2510.12402, algorithm 1).
      unit_vectors: Whether initial values and each update end with the vectors of kernels and
        embeddings, along the axis of the width, at length 1 (nGPT, arXiv:2410.01131, section 2.6).
      decay_parameters: Names of the parameters with weight decay.
      learning_rate_multipliers: Factors for the learning rate by parameter path; 0 freezes one.
      decay_multipliers: Factors for the weight decay by parameter path.
    """

    name: Annotated[str, Variant("training.optimizers:OPTIMIZERS", "optimizer")] = "adamw"
    learning_rate: TracedPositive = 0.001
    weight_decay: TracedNonNegative = 0.1
    cautious_decay: Switch = False
    unit_vectors: Switch = False
    decay_parameters: tuple[ParameterName, ...] = ("kernel", "embedding")
    learning_rate_multipliers: Multipliers = ()
    decay_multipliers: Multipliers = ()


class Schedule:
    """The learning rate schedule.

    Attributes:
      name: Schedule; see docs/catalogue.md.
    """

    name: Annotated[str, Variant("training.schedules:SCHEDULES", "schedule")] = "warmup_cosine"


class Evaluation:
    """Evaluation. It does not affect the trained parameters.

    Attributes:
      every: Updates between evaluations on the validation split. After the last update the
        validation and test splits are evaluated.
      batch_size: Examples per evaluation batch.
      stride: Tokens between the starts of consecutive windows, at most data.length; data.length if
        None. Each token is scored once.
      metrics: Metrics besides loss, accuracy and the task's own (see docs/catalogue.md).
      target: Validation loss that metrics such as updates_to_target refer to.
      benchmark: What the metric benchmark measures: a file of choices (.jsonl), the folder of CORE,
        or tasks NAME,NAME of lm-evaluation-harness (FOLDER/NAME for those in a folder).
      benchmark_begin: Special token before each of its texts without a context.
    """

    every: Count = 500
    batch_size: Count = 64
    stride: Count | None = None
    metrics: Annotated[tuple[str, ...], Variant("metrics:METRICS")] = ()
    target: Number | None = None
    benchmark: Text | None = None
    benchmark_begin: Text | None = None


class Hooks:
    """Functions that are called during training.

    They do not affect training, except those marked `intervenes`.

    Attributes:
      functions: Hooks, or MODULE:NAME of your own; metrics.jsonl has the numbers they return.
      every: Updates between calls; hooks are also called after the last update.
    """

    functions: Annotated[tuple[str, ...], Variant("training.hooks:HOOKS")] = ()
    every: Count = 100


class Logging:
    """Logging. It does not affect the trained parameters.

    Attributes:
      every: Updates between rows of metrics.jsonl; each row holds means since the previous one.
      writers: Further destinations for the rows of metrics.jsonl; they require the extra
        `trackers`. wandb writes offline unless WANDB_MODE is set.
    """

    every: Count = 10
    writers: tuple[Literal["tensorboard", "wandb"], ...] = ()


class Checkpoint:
    """Checkpoints. They do not affect the trained parameters.

    Attributes:
      every: Updates between checkpoints. A checkpoint is always saved after the last update.
      keep: Number of checkpoints to keep, the newest ones.
    """

    every: Count = 500
    keep: Count = 2


class Sample:
    """The sample drawn at the end of a run. It does not affect the trained parameters.

    Attributes:
      num_tokens: Number of tokens in the sample; 0 draws no sample.
      temperature: Divisor of the logits; 0 always takes the likeliest token.
    """

    num_tokens: Natural = 300
    temperature: NonNegative = 0.8


SECTIONS: dict[str, type] = {
    "": Run,
    "seeds.": Seeds,
    "data.": Data,
    "model.": Model,
    "initial.": Initial,
    "adapters.": Adapters,
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

# Options that every config has, by full key; each variant adds its own.
OPTIONS: dict[str, Option] = {
    f"{prefix}{name}": option
    for prefix, section in SECTIONS.items()
    for name, option in options_of_section(section).items()
}
DEFAULTS: dict[str, Any] = {key: option.default for key, option in OPTIONS.items()}

# Key of an option that chooses a variant with options -> the section of those options.
VARIANT_SECTIONS = {
    key: option.variant.section
    for key, option in OPTIONS.items()
    if option.variant is not None and option.variant.section
}
