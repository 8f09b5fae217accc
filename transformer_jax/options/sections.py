"""The sections of a config, declared once: type, default, and what each option means.

What a component lets its user choose stands with the component: the fields of
models/parts.Transformer and models/decoder.Decoder are options of `model`, those of other
architectures and of tasks stand below their names, those of rows below `model.position_options`
and the like. Rules, defaults, `--help`, docs/options.md and refusals follow from all of these.
"""

from typing import Annotated, Literal

from transformer_jax.options import (
    AnyText,
    Choice,
    Count,
    MeshSize,
    Multipliers,
    Natural,
    NonNegative,
    Number,
    OpenShare,
    ParameterPaths,
    Positive,
    SameAs,
    Seed,
    Several,
    Splits,
    Switch,
    Text,
    TokenizerName,
)


class Run:
    """What all of a run shares."""

    seed: Seed = 0
    """Draws initial values, data order and dropout."""


class Seeds:
    """Seeds of one thing alone, in the place of `seed`."""

    initial: Seed | None = None
    """Draws initial values; None: `seed` does."""

    order: Seed | None = None
    """Draws the data order; None: `seed` does."""

    dropout: Seed | None = None
    """Draws dropout; None: `seed` does."""


class Data:
    """What is learned from."""

    task: Choice = "language_modelling"
    """What examples are."""

    source: Text = "shakespeare"
    """Embedded data, or a path. By task:
    language modelling, masked or not: shakespeare, movie_snippets; a text file, a folder of .txt
    files, or a folder of shards made by `python -m experiments.make_shards`;
    synthetic: copy, reverse, recall, agreement, markov, modular_addition; made up, with a best loss
    that is known;
    translation: tatoeba_en_es; a .tsv or .csv file of sentence pairs, without a header;
    text_classification: movie_snippets; a .tsv or .csv file with the columns text and label, and
    text_pair where two texts are judged together;
    image_classification: digits, fashion_mnist; an .npz file, a folder of IDX files, of CIFAR-10's
    binary version, or with a folder of pictures for each class;
    vector_classification: an .npz file with vectors [N, L, F] and labels [N]."""

    tokenizer: TokenizerName = "char"
    """What a token is. A tokenizer.json is a run's, or one of Hugging Face; shards bring their
    own."""

    vocab_size: Annotated[int, ">= 257"] = 4096
    """Tokens of a bpe or word tokenizer, which is trained on the training split (of a text that is
    cut by tokens on as large a share of its bytes); the special ones that some tasks need (end of a
    text, mask) come beside them."""

    document_separator: AnyText | None = None
    """Line that ends a document ('' is an empty line); None: each file is a document. Shards have
    to be made with the same one."""

    separate_documents: Switch = False
    """Whether documents in one window neither see nor predict each other."""

    splits: Splits = (0.9, 0.05, 0.05)
    """Shares for train, validation and test. A text is cut in its order, rows and images are drawn
    at random (a sentence with several translations as one). A source's own test set stays the test
    set, and validation is drawn from the rest."""

    split_seed: Natural = 0
    """Another seed draws other rows for the splits. Not part of `seed`, so that runs with other
    seeds are scored on the same examples."""

    train_examples: Count | None = None
    """How many examples of the training split a classifier learns from, fewer being among more;
    None: all."""

    length: Annotated[int, ">= 2"] = 64
    """Tokens that the model sees at once, L, special ones included."""


class Model:
    """The model, beside what its class declares."""

    architecture: Choice = "decoder"
    """The task says which of them fit. A class of your own has its options under `model.own`, and
    gets of the model's those that it has a field for."""

    match_parameters: Literal["decoder", "encoder"] | None = None
    """Chooses the width of a recurrent architecture so that it has as many parameters as this one
    with the same options; None: width is taken as it is."""

    max_length: Count = SameAs("data.length")  # ty: ignore[invalid-assignment]
    """Longest input that the model can take, in tokens; at least data.length. Data whose sequences
    have a length of their own says so, and it is taken."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the computation. Parameters, optimizer, softmax, norms and loss are float32 in
    any case. There is no float8."""


class Mesh:
    """How many devices share the work, and how. A mesh changes the order of sums and nothing else,
    so a run may go on with another one.
    """

    data: MeshSize = 1
    """Devices that each take a part of the batch; -1: as many as the other axes leave."""

    fsdp: MeshSize = 1
    """Devices that each take a part of the batch too, and keep a part of every large array of
    parameters and optimizer."""

    tensor: MeshSize = 1
    """Devices that each have some of the heads and of the hidden features."""

    sequence: MeshSize = 1
    """Devices that each have some places of the text."""

    rules: Choice = "default"
    """Which arrays are cut, and where; see transformer_jax/sharding.py. A function of your own that
    gives such Rules may take its place."""


class Initial:
    """What training starts from, beside freshly drawn values."""

    weights: (
        Annotated[str, "a run's directory, a Hugging Face folder, or OWNER/NAME on its hub"] | None
    ) = None
    """Weights for every parameter of the same path and shape. A run's tokenizer has to be this
    one's: give data.tokenizer its file. `--config=FOLDER` takes a Hugging Face folder's shapes and
    tokenizer too."""

    word_vectors: Annotated[str, "a file of word vectors"] | None = None
    """Vectors for the embedding of the words that it holds, in word2vec's text format. model.width
    has to be their size."""


class Training:
    """How parameters are updated."""

    steps: Count = 2000
    """Optimizer updates."""

    batch_size: Count = 12
    """Examples in an update, B."""

    accumulation: Count = 1
    """Parts that a batch is computed in, to save memory; a divisor of batch_size. The gradient is
    that of the whole batch, each part with its own dropout."""

    loss_chunk: Count | None = None
    """Places of a text whose logits are made at once, in training and evaluation, to save memory;
    None: all."""

    frozen: ParameterPaths = ()
    """Parameters that stay as they start: token_embedding or block_0/attention say."""

    weight_ema: OpenShare | None = None
    """Decay a step of a running mean of the weights, which is evaluated, shown and loaded in their
    place; None: the weights themselves."""

    clip_norm: Positive | None = 1.0
    """Largest global norm of the gradient, larger ones are scaled down."""


class Objective:
    """What training makes small. Evaluation is always by cross-entropy."""

    name: Choice = "cross_entropy"
    """See docs/catalogue.md."""


class Optimizer:
    """Which rule makes updates of gradients."""

    name: Choice = "adamw"
    """See docs/catalogue.md."""

    learning_rate: Positive = 1e-3
    """Peak learning rate."""

    weight_decay: NonNegative = 0.1
    """Weight decay, times the learning rate, or in adam and sgd a part of the gradient."""

    decay_parameters: tuple[
        Literal["kernel", "embedding", "bias", "scale", "gain", "alpha", "sink", "lambda"], ...
    ] = ("kernel", "embedding")
    """Names of the parameters that decay."""

    learning_rate_multipliers: Multipliers = ()
    """Further factors of the learning rate by path; 0 freezes."""

    decay_multipliers: Multipliers = ()
    """The same for weight decay."""


class Schedule:
    """How the learning rate moves."""

    name: Choice = "warmup_cosine"
    """See docs/catalogue.md."""


class Evaluation:
    """What is measured; none of it changes a bit of the trained parameters."""

    every: Count = 500
    """Updates between evaluations on the validation split. The last update is always followed by
    one, on the validation and the test split."""

    batch_size: Count = 64
    """Windows in an evaluation batch."""

    stride: Count | None = None
    """Tokens between the starts of two windows, each token scored once; at most data.length, which
    None takes."""

    metrics: Several = ()
    """What is measured beside loss, accuracy and the task's own scores; see docs/catalogue.md. A
    function of your own is a metric too, MODULE.NAME."""

    target: Number | None = None
    """Validation loss that the metrics of time ask for, updates_to_target say."""


class Hooks:
    """Functions that are called while a model is trained. They change no bit of it, unless one says
    that it intervenes.
    """

    functions: Several = ()
    """Which ones, or MODULE.NAME of your own; what they give goes to metrics.jsonl."""

    every: Count = 100
    """Updates between two calls; the last update is always followed by one."""


class Logging:
    """What is written down; none of it changes a bit of the trained parameters."""

    every: Count = 10
    """Updates between rows of metrics.jsonl, which hold means since the last row."""

    writers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Where rows go beside metrics.jsonl. They need the extra `trackers`; wandb writes offline
    unless WANDB_MODE says otherwise."""


class Checkpoint:
    """What is kept; none of it changes a bit of the trained parameters."""

    every: Count = 500
    """Updates between checkpoints. The last update is always saved."""

    keep: Count = 2
    """Checkpoints kept, the newest."""


class Sample:
    """The sample at the end; none of it changes a bit of the trained parameters."""

    num_tokens: Natural = 300
    """Tokens of the sample; 0: none is drawn."""

    temperature: NonNegative = 0.8
    """Divides the logits; 0 takes the likeliest token."""
