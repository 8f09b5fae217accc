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
    # What examples are; one of: language_modelling, masked_language_modelling, translation,
    # text_classification, image_classification, vector_classification.
    data.task = "language_modelling"
    # Embedded data, or a path; a non-empty string. By task:
    #   language modelling, masked or not: shakespeare, movie_snippets; a text file, a folder of
    #     .txt files, or a folder of shards made by `python -m experiments.tokenize`
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
    # Tokens that the model sees at once, L, special ones included; an integer >= 2.
    data.length = 64
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
    # How one vector of the whole is taken; one of: class_token, mean.
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
    model.vision_transformer = ConfigDict()
    # Pixels along each side of a patch; an integer >= 1, a divisor of the image's sides.
    model.vision_transformer.patch_size = 4
    # A usual shape, instead of width, depth, num_heads, mlp_dim and patch_size;
    # a name like Ti/4: Ti, S, B, L or H, and the patch size, or None.
    model.vision_transformer.variant = None
    # How one vector of the whole is taken; one of: class_token, mean.
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
    # Features inside the feed-forward layer, F; an integer >= 1, or None: 4 * width.
    model.mlp_dim = None
    # What tells positions apart; one of: none, learned, sinusoidal, sinusoidal_2d, rotary, alibi.
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
    model.position_options.sinusoidal_2d = ConfigDict()
    # Root mean square of the table; a number > 0.
    model.position_options.sinusoidal_2d.rms = 0.02
    # Longest wavelength over 2 pi, in patches; a number > 1.
    model.position_options.sinusoidal_2d.max_wavelength = 10_000.0
    model.position_options.rotary = ConfigDict()
    # Longest wavelength over 2 pi, in positions ("base" or "theta"); a number > 1.
    model.position_options.rotary.max_wavelength = 10_000.0
    # Normalisation; one of: layer_norm, rms_norm.
    model.norm = "layer_norm"
    # What a norm adds before it takes the root; a number > 0. GPT-2 has 1e-5, BERT 1e-12.
    model.norm_epsilon = 1e-5
    # Whether a norm follows the sum of the embeddings, as in BERT; True or False.
    model.embedding_norm = False
    # Where the norms stand; one of: pre, post.
    model.wiring = "pre"
    # Function inside the feed-forward layer; one of: gelu, gelu_tanh, relu.
    model.activation = "gelu"
    # Whether projections, feed-forward maps and layer norms have a bias; True or False.
    model.use_bias = False
    # Whether a decoder's output layer is its token embedding, transformer or recurrent;
    # True or False.
    model.tie_embeddings = True
    # Share dropped in training: after the embedding, of the attention weights, after each
    # sublayer; a number in [0, 1).
    model.dropout_rate = 0.0
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
    # Parameters that stay as they start; beginnings of parameter paths, such as token_embedding or
    # block_0/attention.
    training.frozen = ()
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
    # How the learning rate moves; one of: constant, warmup_cosine, inverse_square_root.
    schedule.name = "warmup_cosine"
    schedule.warmup_cosine = ConfigDict()
    # Updates of linear warm-up from 0; an integer >= 0, less than training.steps.
    schedule.warmup_cosine.warmup_steps = 100
    # Learning rate at the last update over the peak; a number in [0, 1].
    schedule.warmup_cosine.final_fraction = 0.1

    schedule.inverse_square_root = ConfigDict()
    # Updates of linear warm-up; an integer >= 1.
    schedule.inverse_square_root.warmup_steps = 4000

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
