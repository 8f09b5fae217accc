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
    config.seeds = seeds = ConfigDict()
    # Draws initial values in its place; an integer in [0, 2^32), or None.
    seeds.initial = None
    # Draws data order in its place; an integer in [0, 2^32), or None.
    seeds.order = None
    # Draws dropout in its place; an integer in [0, 2^32), or None.
    seeds.dropout = None
    # Relative deviation by which drawn values are then changed, to see what rounding can do;
    # a number >= 0.
    seeds.perturbation = 0.0

    # ---- What is learned from
    config.data = data = ConfigDict()
    # What examples are; one of: language_modelling, masked_language_modelling, exact, translation,
    # text_classification, image_classification, vector_classification.
    data.task = "language_modelling"
    # Embedded data, or a path; a non-empty string. By task:
    #   language modelling, masked or not: shakespeare, movie_snippets; a text file, a folder of
    #     .txt files, or a folder of shards made by `python -m experiments.tokenize`
    #   exact: copy, reverse, recall, agreement, markov, modular_addition; made up, with a best
    #     loss that is known
    #   translation: tatoeba_en_es; a .tsv or .csv file of sentence pairs, without a header
    #   text_classification: movie_snippets; a .tsv or .csv file with the columns text and label
    #   image_classification: digits, fashion_mnist; an .npz file, a folder of IDX files, of
    #     CIFAR-10's binary version, or with a folder of pictures for each class
    #   vector_classification: an .npz file with vectors [N, L, F] and labels [N]
    data.source = "shakespeare"
    # What a token is; one of: byte, char, bpe, word, or the path of a tokenizer.json (a run's, or
    # one of Hugging Face). Shards bring their own.
    data.tokenizer = "char"
    # Tokens of a bpe or word tokenizer, which is trained on the whole text; an integer >= 257.
    data.vocab_size = 4096
    # Line that ends a document ('' is an empty line); a string, or None: each file is a document.
    data.document_separator = None
    # Whether documents in one window neither see nor predict each other; True or False.
    data.separate_documents = False
    # Shares for train, tuning and test; 3 numbers in (0, 1) that sum to 1. A text is cut in its
    # order, rows and images are drawn at random (a sentence with several translations as one). A
    # source's own test set stays the test set, and tuning is drawn from the rest.
    data.splits = (0.9, 0.05, 0.05)
    # Another seed draws other rows for the splits; an integer >= 0. Not part of `seed`, so that
    # runs with other seeds are scored on the same examples.
    data.split_seed = 0
    # How many examples of the training split a classifier learns from, fewer being among more; an
    # integer >= 1, or None: all.
    data.train_examples = None
    # Tokens that the model sees at once, L, special ones included; an integer >= 2.
    data.length = 64
    data.language_modelling = ConfigDict()
    # Tokens at the beginning of each window that are read and not predicted; an integer >= 0.
    data.language_modelling.unscored = 0
    data.exact = ConfigDict()
    # Symbols of the made-up language, nouns of agreement, the modulus of modular_addition; an
    # integer >= 2.
    data.exact.symbols = 8
    data.masked_language_modelling = ConfigDict()
    # Probability that a token has to be predicted; a number in (0, 1).
    data.masked_language_modelling.mask_rate = 0.15
    data.image_classification = ConfigDict()
    # Most degrees by which a training image is turned; a number in [0, 180].
    data.image_classification.max_rotation = 0.0
    # Most pixels by which a training image is moved in each direction; an integer >= 0.
    data.image_classification.max_shift = 0
    # Whether every other training image is mirrored left to right; True or False.
    data.image_classification.flip = False

    # ---- The model
    config.model = model = ConfigDict()
    # One of: decoder, encoder, encoder_decoder, vision_transformer, recurrent_decoder,
    # recurrent_encoder_decoder. The task says which of them fit.
    model.architecture = "decoder"
    # Chooses the width of a recurrent architecture so that it has as many parameters as this one
    # with the same options; one of: decoder, encoder_decoder, or None: width is taken as it is.
    model.match_parameters = None
    model.encoder = ConfigDict()
    # How one vector of the whole is taken; one of: class_token, mean, max, flatten.
    model.encoder.pooling = "class_token"
    # Kinds of text in one input (BERT's have 2); an integer >= 0, 0 has no embedding of them.
    model.encoder.num_types = 0
    model.encoder_decoder = ConfigDict()
    # Whether source, target and output layer share one embedding; True or False.
    model.encoder_decoder.share_embeddings = True
    # Whether embeddings are multiplied by sqrt(width); True or False.
    model.encoder_decoder.scale_embeddings = True
    # Whether the logits have a bias; True or False.
    model.encoder_decoder.output_bias = False
    # Whether the decoder looks at the source; True or False.
    model.encoder_decoder.cross_attention = True
    model.vision_transformer = ConfigDict()
    # Pixels along each side of a patch; an integer >= 1, a divisor of the image's sides.
    model.vision_transformer.patch_size = 4
    # A usual shape, instead of width, depth, num_heads, mlp_dim and patch_size;
    # a name like Ti/4: Ti, S, B, L or H, and the patch size, or None.
    model.vision_transformer.variant = None
    # How patches become vectors; one of: linear, convolutional (patch_size a power of 2).
    model.vision_transformer.stem = "linear"
    # How one vector of the whole is taken; one of: class_token, mean, max, flatten.
    model.vision_transformer.pooling = "class_token"
    model.recurrent_decoder = ConfigDict()
    # One of: rnn, gru, lstm.
    model.recurrent_decoder.cell = "lstm"
    # Layers, instead of model.depth; an integer >= 1.
    model.recurrent_decoder.depth = 2
    model.recurrent_encoder_decoder = ConfigDict()
    # One of: rnn, gru, lstm.
    model.recurrent_encoder_decoder.cell = "lstm"
    # Layers on each side, instead of model.depth; an integer >= 1.
    model.recurrent_encoder_decoder.depth = 2
    # Whether the encoder also reads from the end; True or False.
    model.recurrent_encoder_decoder.bidirectional = False
    # Whether source, target and output layer share one embedding; True or False.
    model.recurrent_encoder_decoder.share_embeddings = True
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
    # Features inside the feed-forward layer, F; an integer >= 1, or None: 4 * width, and 8/3 of it
    # where a gate makes it three maps.
    model.mlp_dim = None
    # Heads of keys and values, G; an integer >= 1, a divisor of num_heads, or None: num_heads.
    # 1 is multi-query attention.
    model.num_kv_heads = None
    # Features of one head's values; an integer >= 1, or None: head_dim.
    model.value_dim = None
    # What attention scores are multiplied with; a number > 0, or None: 1 / sqrt(head_dim).
    model.attention_scale = None
    # Where queries, keys and values come from; one of: separate, shared_query_key, no_value,
    # identity.
    model.projections = "separate"
    # Norm of each head's queries and keys; one of: layer_norm, rms_norm, dynamic_tanh, none.
    model.query_key_norm = "none"

    # ---- Components. Each choice is a row of a table; the catalogue (docs/catalogue.md) says what
    # the rows and their options are. A class of your own takes the place of a row by its import
    # path, MODULE.NAME, with its options under `own`.
    # What tells positions apart; one of: none, learned, sinusoidal, sinusoidal_2d, rotary, alibi,
    # t5, shaw, contextual, or MODULE.NAME of your own.
    model.position = "learned"
    model.position_options = options = ConfigDict()
    # rms: root mean square of the initial table, the same for all of them unless it is asked for;
    # the first transformer's table has sqrt(1/2). max_wavelength: over 2 pi, in positions.
    options.learned = ConfigDict({"rms": 0.02})
    options.sinusoidal = ConfigDict({"rms": 0.02, "max_wavelength": 10_000.0})
    options.sinusoidal_2d = ConfigDict({"rms": 0.02, "max_wavelength": 10_000.0})
    # share: of each head's features that are rotated. scaling: none, linear or ntk, to contexts
    # that are longer by the factor.
    options.rotary = ConfigDict(
        {"max_wavelength": 10_000.0, "share": 1.0, "scaling": "none", "factor": 1.0}
    )
    options.t5 = ConfigDict({"num_buckets": 32, "max_distance": 128, "rms": 0.02})
    options.shaw = ConfigDict({"max_distance": 16, "rms": 0.02})
    options.contextual = ConfigDict({"max_count": 64, "rms": 0.02})
    # Whether what they add to the embeddings is added again before each further block;
    # True or False.
    model.position_in_every_layer = False
    # How queries and keys become weights; one of: softmax, sink, sigmoid, linear, talking_heads,
    # differential, or MODULE.NAME of your own.
    model.attention = "softmax"
    model.attention_options = options = ConfigDict()
    # soft_cap: bends scores so that none is beyond it, or None.
    options.softmax = ConfigDict({"soft_cap": None})
    options.sigmoid = ConfigDict({"soft_cap": None})
    options.differential = ConfigDict({"initial_lambda": 0.5})
    # What self-attention may see; one of: full, causal, window, prefix, unmasked, or MODULE.NAME of
    # your own. causal is for an encoder, unmasked shows a decoder even the answers.
    model.mask = "full"
    model.mask_options = options = ConfigDict()
    # size: positions, with one's own. sinks: first positions that everybody sees.
    options.window = ConfigDict({"size": 32, "sinks": 0})
    # length: positions that see each other; data.language_modelling.unscored has to cover them.
    options.prefix = ConfigDict({"length": 16})
    # The layer on each position alone; one of: mlp, gated, mixture, none, or MODULE.NAME of your
    # own. gated with the activation silu is SwiGLU, with gelu GEGLU.
    model.feed_forward = "mlp"
    model.feed_forward_options = options = ConfigDict()
    # Experts, how many a token takes, and the weight of the load-balancing loss.
    options.mixture = ConfigDict({"num_experts": 4, "num_chosen": 2, "balance": 0.01})
    # Function inside the feed-forward layer; one of: gelu, gelu_tanh, relu, relu_squared, silu, or
    # MODULE.NAME of your own.
    model.activation = "gelu"
    # Normalisation; one of: layer_norm, rms_norm, dynamic_tanh, none, or MODULE.NAME of your own.
    model.norm = "layer_norm"
    model.norm_options = options = ConfigDict()
    options.dynamic_tanh = ConfigDict({"initial_alpha": 0.5})
    # What a norm adds before it takes the root; a number > 0. GPT-2 has 1e-5, BERT 1e-12.
    model.norm_epsilon = 1e-5
    # Whether a norm follows the sum of the embeddings, as in BERT; True or False.
    model.embedding_norm = False
    # How branches and norms are joined; one of: pre, post, sandwich, parallel, no_residual, rezero,
    # layer_scale, deep_norm, or MODULE.NAME of your own.
    model.wiring = "pre"
    model.wiring_options = options = ConfigDict()
    # share_norm: whether attention and feed-forward layer read one norm, as in GPT-J.
    options.parallel = ConfigDict({"share_norm": False})
    options.layer_scale = ConfigDict({"initial": 0.1})
    # Where kernels start; one of: normal, depth_scaled, xavier, fan_in, or MODULE.NAME of your own.
    model.initialisation = "depth_scaled"
    model.initialisation_options = options = ConfigDict()
    # gain: multiplies the deviation of the kernels.
    options.xavier = ConfigDict({"gain": 1.0})
    options.fan_in = ConfigDict({"gain": 1.0})
    # How initial values, learning rates and scores go with the width; one of: standard, mup, or
    # MODULE.NAME of your own.
    model.parametrisation = "standard"
    model.parametrisation_options = options = ConfigDict()
    # base_width: for which init_std and the learning rate were chosen.
    options.mup = ConfigDict({"base_width": 64})

    # Whether projections, feed-forward maps and layer norms have a bias; True or False.
    model.use_bias = False
    # Whether a decoder's output layer is its token embedding, transformer or recurrent;
    # True or False.
    model.tie_embeddings = True
    # Share dropped in training: after the embedding, of the attention weights, after each
    # sublayer; a number in [0, 1).
    model.dropout_rate = 0.0
    # Share of the examples for which the last block's branches are left out in training, earlier
    # blocks having less; a number in [0, 1).
    model.stochastic_depth = 0.0
    # Standard deviation of the initial kernels and embeddings; a number > 0.
    model.init_std = 0.02
    # Precision of the computation; one of: float32, bfloat16. Parameters, optimizer, softmax,
    # norms and loss are float32 in any case.
    model.dtype = "float32"

    # ---- What training starts from, beside freshly drawn values
    config.initial = initial = ConfigDict()
    # Weights for every parameter of the same path and shape; a run's directory or a Hugging Face
    # folder, or None. A run's tokenizer has to be this one's: give data.tokenizer its file.
    initial.weights = None
    # Vectors for the embedding of the words that it holds; a file of word vectors (word2vec's text
    # format), or None. model.width has to be their size.
    initial.word_vectors = None

    # ---- Training
    config.training = training = ConfigDict()
    # Optimizer updates; an integer >= 1.
    training.steps = 2000
    # Examples in an update, B; an integer >= 1.
    training.batch_size = 12
    # Parts that a batch is computed in, to save memory; an integer >= 1, a divisor of batch_size.
    # The gradient is that of the whole batch, each part with its own dropout.
    training.accumulation = 1
    # Share of the target's probability that is spread over all classes; a number in [0, 1).
    # Only the training loss has it.
    training.label_smoothing = 0.0
    # Probability with which an input token of a decoder is what the model itself would have written
    # there, and not the text's; a number in [0, 1], 0 is teacher forcing, 1 is free running.
    training.own_inputs = 0.0
    # Parameters that stay as they start; beginnings of parameter paths, such as token_embedding or
    # block_0/attention.
    training.frozen = ()
    # Decay a step of a running mean of the weights, which is evaluated, shown and loaded in their
    # place; a number in (0, 1), or None: the weights themselves.
    training.weight_ema = None
    # Largest global norm of the gradient, larger ones are scaled down; a number > 0, or None.
    training.clip_norm = 1.0

    config.optimizer = optimizer = ConfigDict()
    # One of: adamw, adam, sgd, lion, adafactor, muon, schedule_free, sam, or MODULE.NAME of your
    # own.
    optimizer.name = "adamw"
    # Peak learning rate; a number > 0.
    optimizer.learning_rate = 1e-3
    # Weight decay, times the learning rate, or in adam and sgd a part of the gradient;
    # a number >= 0.
    optimizer.weight_decay = 0.1
    # Names of the parameters that decay; some of: kernel, embedding, bias, scale, gain, alpha,
    # sink, lambda.
    optimizer.decay_parameters = ("kernel", "embedding")
    # Further factors of the learning rate by path; PATH=NUMBER, path the beginning of parameter
    # paths, number >= 0. 0 freezes.
    optimizer.learning_rate_multipliers = ()
    # The same for weight decay; PATH=NUMBER, path the beginning of parameter paths, number >= 0.
    optimizer.decay_multipliers = ()
    # b1, b2: decay of the first and second moments a step. eps: added to the second's root.
    optimizer.adamw = ConfigDict({"b1": 0.9, "b2": 0.99, "eps": 1e-8})
    optimizer.adam = ConfigDict({"b1": 0.9, "b2": 0.999, "eps": 1e-8})
    optimizer.sgd = ConfigDict({"momentum": 0.9, "nesterov": False})
    optimizer.lion = ConfigDict({"b1": 0.9, "b2": 0.99})
    optimizer.adafactor = ConfigDict({"decay_rate": 0.8, "clip": 1.0, "scale_by_parameters": False})
    optimizer.muon = ConfigDict({"beta": 0.95, "nesterov": True, "b1": 0.9, "b2": 0.99})
    optimizer.schedule_free = ConfigDict({"b1": 0.9, "b2": 0.99, "eps": 1e-8})
    # rho: how far away the worst point nearby is looked for.
    optimizer.sam = ConfigDict({"rho": 0.05, "b1": 0.9, "b2": 0.99, "eps": 1e-8})

    config.schedule = schedule = ConfigDict()
    # How the learning rate moves; one of: constant, warmup_constant, warmup_cosine, warmup_linear,
    # warmup_stable_decay, inverse_square_root, or MODULE.NAME of your own.
    schedule.name = "warmup_cosine"
    # warmup_steps: updates of linear warm-up, less than training.steps. final_fraction: learning
    # rate of the last update over the peak. decay_fraction: share of the updates in which it falls.
    schedule.warmup_constant = ConfigDict({"warmup_steps": 100})
    schedule.warmup_cosine = ConfigDict({"warmup_steps": 100, "final_fraction": 0.1})
    schedule.warmup_linear = ConfigDict({"warmup_steps": 100, "final_fraction": 0.0})
    schedule.warmup_stable_decay = ConfigDict(
        {"warmup_steps": 100, "decay_fraction": 0.2, "final_fraction": 0.0}
    )
    schedule.inverse_square_root = ConfigDict({"warmup_steps": 4000})

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
    # Where they go beside metrics.jsonl; some of: tensorboard, wandb. They need the extra
    # `trackers`; wandb writes offline unless WANDB_MODE says otherwise.
    logging.writers = ()

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
