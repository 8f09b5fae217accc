"""Every option of a run: meaning, unit and allowed values, once.

Other configs start from this one and change a few values. Any value can be changed on the command
line, `--config.model.depth=6`, and every value is checked before anything is compiled.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Returns a character-level decoder on tiny Shakespeare, the shape of nanoGPT's CPU example."""
    config = ConfigDict()

    # Draws initial values, data order and dropout; an integer in [0, 2^32).
    config.seed = 0

    # ---- What is learned from
    config.data = data = ConfigDict()
    # How text becomes examples; one of: language_modelling.
    data.task = "language_modelling"
    # The text: shakespeare (embedded), a text file, a folder of .txt files, or a folder of shards
    # made by `python -m experiments.tokenize`; a non-empty string.
    data.source = "shakespeare"
    # What a token is; one of: byte, char, bpe. Shards bring their own.
    data.tokenizer = "char"
    # Tokens of a bpe tokenizer, which is trained on the whole text; an integer >= 257.
    data.vocab_size = 4096
    # Line that ends a document ('' is an empty line); a string, or None: each file is a document.
    data.document_separator = None
    # Whether documents in one window neither see nor predict each other; True or False.
    data.separate_documents = False
    # Shares of the tokens for train, tuning and test, in the text's order;
    # 3 numbers in (0, 1) that sum to 1.
    data.splits = (0.9, 0.05, 0.05)
    # Tokens that the model sees at once, L; an integer >= 2.
    data.length = 64

    # ---- The model
    config.model = model = ConfigDict()
    # One of: decoder.
    model.architecture = "decoder"
    # Longest input that the model can take, in tokens; an integer >= 1, at least data.length.
    model.max_length = data.get_oneway_ref("length")
    # Features of the residual stream, D; an integer >= 1.
    model.width = 128
    # Number of blocks; an integer >= 0.
    model.depth = 4
    # Attention heads, H; an integer >= 1, a divisor of width unless head_dim is given.
    model.num_heads = 4
    # Features of one head, K; an integer >= 1, or None: width / num_heads.
    model.head_dim = None
    # Features inside the feed-forward layer, F; an integer >= 1, or None: 4 * width.
    model.mlp_dim = None
    # What tells positions apart; one of: none, learned, sinusoidal, rotary, alibi.
    model.position = "learned"
    model.position_options = ConfigDict()
    model.position_options.learned = ConfigDict()
    # Root mean square of the initial table; a number > 0.
    model.position_options.learned.rms = 0.02
    model.position_options.sinusoidal = ConfigDict()
    # Root mean square of the table; a number > 0. The first transformer's is sqrt(1/2).
    model.position_options.sinusoidal.rms = 0.02
    # Longest wavelength over 2 pi, in positions; a number > 1.
    model.position_options.sinusoidal.max_wavelength = 10_000.0
    model.position_options.rotary = ConfigDict()
    # Longest wavelength over 2 pi, in positions ("base" or "theta"); a number > 1.
    model.position_options.rotary.max_wavelength = 10_000.0
    # Normalisation; one of: layer_norm, rms_norm.
    model.norm = "layer_norm"
    # Where the norms stand; one of: pre, post.
    model.wiring = "pre"
    # Function inside the feed-forward layer; one of: gelu, gelu_tanh, relu.
    model.activation = "gelu"
    # Whether projections, feed-forward maps and layer norms have a bias; True or False.
    model.use_bias = False
    # Whether the output layer is the token embedding; True or False.
    model.tie_embeddings = True
    # Share dropped in training: after the embedding, of the attention weights, after each
    # sublayer; a number in [0, 1).
    model.dropout_rate = 0.0
    # Standard deviation of the initial kernels and embeddings; a number > 0.
    model.init_std = 0.02
    # Precision of the computation; one of: float32, bfloat16. Parameters, optimizer, softmax,
    # norms and loss are float32 in any case.
    model.dtype = "float32"

    # ---- Training
    config.training = training = ConfigDict()
    # Optimizer updates; an integer >= 1.
    training.steps = 2000
    # Examples in an update, B; an integer >= 1.
    training.batch_size = 12
    # Parts that a batch is computed in, to save memory; an integer >= 1, a divisor of batch_size.
    # The gradient is that of the whole batch, each part with its own dropout.
    training.accumulation = 1
    # Largest global norm of the gradient, larger ones are scaled down; a number > 0, or None.
    training.clip_norm = 1.0

    config.optimizer = optimizer = ConfigDict()
    # One of: adamw.
    optimizer.name = "adamw"
    # Peak learning rate; a number > 0.
    optimizer.learning_rate = 1e-3
    # Decoupled weight decay, times the learning rate; a number >= 0.
    optimizer.weight_decay = 0.1
    # Names of the parameters that decay; some of: kernel, embedding, bias, scale.
    optimizer.decay_parameters = ("kernel", "embedding")
    optimizer.adamw = ConfigDict()
    # Decay of the first moment a step; a number in [0, 1).
    optimizer.adamw.b1 = 0.9
    # Decay of the second moment a step; a number in [0, 1).
    optimizer.adamw.b2 = 0.99
    # Added to the root of the second moment; a number > 0.
    optimizer.adamw.eps = 1e-8

    config.schedule = schedule = ConfigDict()
    # How the learning rate moves; one of: constant, warmup_cosine.
    schedule.name = "warmup_cosine"
    schedule.warmup_cosine = ConfigDict()
    # Updates of linear warm-up from 0; an integer >= 0, less than training.steps.
    schedule.warmup_cosine.warmup_steps = 100
    # Learning rate at the last update over the peak; a number in [0, 1].
    schedule.warmup_cosine.final_fraction = 0.1

    # ---- What is measured and kept; none of these changes a bit of the trained parameters
    config.evaluation = evaluation = ConfigDict()
    # Updates between evaluations on the tuning split; an integer >= 1. The last update is always
    # followed by one, on the tuning and the test split.
    evaluation.every = 500
    # Windows in an evaluation batch; an integer >= 1.
    evaluation.batch_size = 64
    # Tokens between the starts of two windows, each token scored once; an integer >= 1, at most
    # data.length, or None: data.length.
    evaluation.stride = None

    config.logging = logging = ConfigDict()
    # Updates between rows of metrics.jsonl, which hold means since the last row; an integer >= 1.
    logging.every = 10

    config.checkpoint = checkpoint = ConfigDict()
    # Updates between checkpoints; an integer >= 1. The last update is always saved.
    checkpoint.every = 500
    # Checkpoints kept, the newest; an integer >= 1.
    checkpoint.keep = 2

    config.sample = sample = ConfigDict()
    # Tokens of the sample drawn at the end; an integer >= 0.
    sample.num_tokens = 300
    # Divides the logits; a number >= 0, 0 takes the likeliest token.
    sample.temperature = 0.8
    return config
