"""What courses say about transformers, one row each: what decides it, and what came out.

An exact statement has a check (checks.py). A statistical one has claims: what a sealed study of
`configs/ablations` would have to find if the statement held. Both are decided by what was computed,
and by nobody's hand.
"""

import dataclasses
from collections.abc import Callable

from experiments.course import checks


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a study would have to find.

    Attributes:
      study: its name in experiments/results.
      arm: compared with the study's base.
      wants: what it has to be: better, worse, same (no different within the margin), no better, or
        different. Or forecast: a ladder's smaller rungs tell the base's score at the largest within
        the margin. Or shrinks: a ladder's effect does as its scale grows. Or faster: of the times
        of experiments.speed, where the arm is the name of a ratio, that at the greatest length was
        above 1 in every round. Or keeps, of a further evaluation: what the arm loses there, by its
        interval, is less than the margin.
      also: name of a further evaluation of the study, in which the arm is compared instead.
    """

    study: str
    arm: str
    wants: str
    also: str = ""


@dataclasses.dataclass(frozen=True)
class Statement:
    """One row.

    Attributes:
      number: in the list that the course follows.
      says: the statement.
      formula: what it is about.
      where: our function or option.
      check: of an exact statement; raises AssertionError, or returns what was seen.
      claims: of a statistical one. It holds if all of them do, and its check where it has one.
      studies: further studies that belong to it.
      note: what else there is to say; why there is no verdict, say.
    """

    number: int
    says: str
    formula: str
    where: str
    check: Callable[[], str] | None = None
    claims: tuple[Claim, ...] = ()
    studies: tuple[str, ...] = ()
    note: str = ""


_ATTENTION = "softmax(Q K^T / sqrt(d_k)) V"
STATEMENTS = (
    Statement(
        1,
        "Attention weights are a distribution: rows sum to 1, masked entries are 0.",
        _ATTENTION,
        "layers.weights.attention_weights",
        checks.weights_are_a_distribution,
    ),
    Statement(
        2,
        "Dividing scores by sqrt(d_k) keeps the softmax from saturating and training stable.",
        _ATTENTION,
        "model.attention_scale",
        checks.softmax_saturates_without_the_scale,
        note="What held is of queries and keys that are drawn from a unit normal distribution; a "
        "trained net's scores were not looked at. Of training the loss was asked",
        claims=(Claim("scale", "not scaled", "worse"),),
    ),
    Statement(
        3,
        "Without positions attention is permutation-equivariant; a decoder that is told where "
        "tokens stand does better.",
        "f(P X) = P f(X)",
        "Encoder(position='none')",
        checks.an_encoder_is_equivariant,
        note="at the length that was trained on",
        claims=(
            Claim("positions", "none", "worse"),
            Claim("reverse", "none", "worse"),
        ),
    ),
    Statement(
        4,
        "Sinusoidal positions handle lengths not seen in training.",
        "p[i, 2k] = sin(i / 10000^(2k/d))",
        "model.position",
        note="a model trained at one length reads windows of twice that, where a learned table "
        "has rows that were never trained; all four lose there, and the sinusoidal table more "
        "than the learned one in every seed, rotary positions and none less (see `positions`, "
        "where these have intervals and no verdicts). Whether it handles them better than the "
        "learned one, as courses say, is unresolved at the level of that study's contrasts. The "
        "table is scaled to 0.06, as large as the vectors of tokens; unscaled, as the formula has "
        "it, it was not tried at other lengths",
        claims=(Claim("positions", "sinusoidal", "keeps", also="twice the length"),),
        studies=("positions_256",),
    ),
    Statement(
        5,
        "Learned and sinusoidal positions do about as well at equal amplitude.",
        "x + p",
        "model.position_options.sinusoidal.rms",
        claims=(Claim("positions", "sinusoidal", "same"),),
        studies=("positions_256", "positions_long"),
        note="in windows of 64 characters; in windows of 256, where neither is surely better "
        "than 4-grams, sinusoidal ones were ahead in every seed, which is not judged",
    ),
    Statement(
        6,
        "Several heads beat one at equal width.",
        "Concat(Z^1 ... Z^H) W_O",
        "model.num_heads",
        claims=(Claim("heads_wide", "1 heads", "worse"),),
        studies=("heads",),
    ),
    Statement(
        7,
        "More blocks, better representations.",
        "x + f(norm(x)), N times",
        "model.depth",
        claims=(
            Claim("depth_wide", "depth 1", "worse"),
            Claim("depth_wide", "depth 8", "better"),
        ),
        studies=("depth", "depth_at_width"),
        note="at equal parameters. One block was said to be worse until the procedure changed, "
        "after the scores were seen",
    ),
    Statement(
        8,
        "Residual connections make deep stacks trainable.",
        "x + f(x)",
        "model.wiring=no_residual",
        note="eight blocks of width 96, from one size of normal initial values; with attention "
        "that starts as the identity, and other initial values, deep stacks without them do "
        "learn (He et al. 2023), which was not tried here. Courses give as the reason that "
        "gradients reach early layers, which was not shown: in a smaller net norms alone carry "
        "them too at the start (see 32), and here norms alone learned no more than the "
        "frequencies of letters. The gradients of the net that was trained were not looked at",
        claims=(Claim("residuals_wide", "no residual", "worse"),),
        studies=("residuals",),
    ),
    Statement(
        9,
        "With layer norm the loss is lower after as many updates; where it stands matters.",
        "norm(x + f(x)) or x + f(norm(x))",
        "model.wiring, model.norm",
        claims=(
            Claim("norms_wide", "no norm", "worse"),
            Claim("residuals_wide", "no norm", "worse"),
            Claim("post_norm_rates", "pre at 0.0043", "different"),
        ),
        studies=("norms", "norm_kinds", "post_norm"),
        note="in norms_wide and residuals_wide each arm at its own rate; courses say that it "
        "speeds and stabilises training, which was not compared. residuals_wide, where a net "
        "without norms is not told from one with them, has initial values twice as large, which "
        "suited it better in runs of one seed, and more blocks. In norms_wide post-norm and "
        "sandwich norms are unresolved; with fresh seeds, "
        "at rates that were fixed beforehand, pre-norm is behind post-norm in six blocks of width "
        "128, after 2,000 updates of one text (post_norm_rates)",
    ),
    Statement(
        10,
        "The feed-forward layer adds learning power beyond mixing.",
        "max(0, x W_1) W_2",
        "model.feed_forward",
        claims=(Claim("feed_forward", "none", "worse"),),
    ),
    Statement(
        11,
        "The causal mask lets all positions train in parallel with the result of one at a time.",
        "sum over i of -log p(x_i | x_<i)",
        "masks.causal_mask",
        checks.masked_and_one_at_a_time_agree,
        studies=("speed",),
        note="the times are of reading a text, at once and word by word; training word by word "
        "was not timed",
    ),
    Statement(
        12,
        "Leaking the future makes the loss lie: the model cannot write what it seems to predict.",
        "mask = 1",
        "model.mask=unmasked",
        claims=(Claim("leak", "unmasked", "worse"),),
    ),
    Statement(
        13,
        "Recurrent nets find agreement in examples of 47 tokens after more updates than a "
        "transformer does, at the start an LSTM's or a GRU's first input counts less than a "
        "transformer's, and at 1,024 tokens an LSTM's update takes longer.",
        "h_t = f(h_(t-1), x_t)",
        "model.architecture=recurrent_decoder",
        checks.gradients_through_time,
        note="Courses say that they are hard to optimise over long distances and to parallelise, "
        "and transformers not. Both are open: no study varied the distance, or trained in parallel "
        "on many units. The check: in one untrained net of width 32 the first of 32 inputs "
        "moves the last output of an LSTM or a GRU net, beside what the last input does, less "
        "than a tenth as much as in a transformer, which has two layers where they have one. In "
        "the tanh net, which is the formula, it moves it more than there; the matrices of all "
        "three start orthogonal, and all biases at 0, so that gates are half open: with a "
        "larger bias of the forget gate, which is common and was not tried, an LSTM forgets "
        "less. And it is not training. With the transformer's settings LSTM and GRU took three "
        "to eight times as many updates to find agreement in examples of 14 tokens (when it was "
        "first found: one transformer lost it again near the end); the tanh net was not told "
        "from the transformer (agreement_solved). No recurrent net learned to recall in 5,000 "
        "updates at rates of 0.001 to 0.01; the transformer did at 0.001 and 0.003, and not at "
        "0.01 (recall_solved). In examples of 47 tokens, each net at a rate that one run chose, "
        "all found agreement in every run; half of them by 150 updates of the transformer, 450 "
        "of the tanh net (that it is later hangs on one run), 1,450 and 2,200 of GRU and LSTM "
        "(agreement_far_solved). On 2 CPU cores an update of the LSTM was the faster one in "
        "every round for 32 windows of 64, in seven of nine of 1,024 tokens, and the slower one "
        "for the 12 of configs/shakespeare.py by what two configs say of their times; on a "
        "device with more parallel units times may be otherwise",
        claims=(
            Claim("agreement_far_solved", "LSTM at 0.001", "worse"),
            Claim("agreement_far_solved", "GRU at 0.001", "worse"),
            Claim("agreement_far_solved", "tanh at 0.0003", "worse"),
            Claim("speed", "training", "faster"),
        ),
        studies=("agreement_solved", "recall_solved", "agreement_far", "agreement", "recall"),
    ),
    Statement(
        14,
        "A class token and average pooling do equally well in ViT.",
        "z_0 or mean of z_i",
        "model.vision_transformer.pooling",
        claims=(Claim("class_token", "class_token", "same"),),
        studies=("poolings_wide", "poolings"),
        note="accuracies on the 450 test images of 8 x 8 pixels are near each other, by a margin "
        "that is more than half of the errors, and more than what the base is ahead of the "
        "nearest neighbour by: no smaller one was asked for; one learning rate, 3,000 updates",
    ),
    Statement(
        15,
        "A query, a key and a value projection each have a role.",
        "X W_Q, X W_K, X W_V",
        "model.projections",
        claims=(
            Claim("projections", "query is key", "worse"),
            Claim("projections", "no value", "worse"),
            Claim("projections", "identity", "worse"),
        ),
    ),
    Statement(
        16,
        "One output matrix over concatenated heads equals the sum of the heads' own.",
        "Concat(Z^1 ... Z^H) W_O = sum_h Z^h W_O^h",
        "MultiHeadAttention",
        checks.heads_add_up,
    ),
    Statement(
        17,
        "Tying the embedding and the output layer saves parameters without loss.",
        "logits = h E^T",
        "model.tie_embeddings",
        claims=(Claim("tying", "untied", "no better"),),
    ),
    Statement(
        18,
        "In an encoder–decoder, cross-attention is what lets the decoder see the source.",
        "Q of the target, K and V of the source",
        "model.encoder_decoder.cross_attention",
        checks.the_source_comes_in_by_cross_attention,
    ),
    Statement(
        19,
        "Pretraining as a masked language model helps classification.",
        "-log p(x_i | the rest)",
        "initial.weights",
        note="our own pretraining saw no more than the sentences that were then classified; "
        "MiniLM was distilled from a masked language model (Wang et al. 2020, arXiv:2002.10957), "
        "and then read a billion pairs, contrastively",
        claims=(Claim("pretraining", "fine-tuned", "better"),),
        studies=("pretrained", "pretrained_ladder"),
    ),
    Statement(
        20,
        "Looking up an embedding equals a one-hot product.",
        "E[t] = onehot(t) E",
        "layers.embeddings.lookup",
        checks.a_lookup_is_a_product,
    ),
    Statement(
        21,
        "Initialising from existing word vectors helps when data is scarce.",
        "E_0 = vectors",
        "initial.word_vectors",
        note="vectors that `experiments.vectors` made of unlabelled sentences of the same source",
        claims=(
            Claim("word_vectors", "vectors", "better"),
            Claim("word_vectors_ladder", "vectors", "shrinks"),
        ),
    ),
    Statement(
        22,
        "Embeddings of patches by a linear projection suffice for images.",
        "patches W + p",
        "model.vision_transformer.stem",
        claims=(
            Claim("patches_wide", "2 x 2, convolutional", "no better"),
            Claim("stems", "convolutional", "no better"),
        ),
        studies=("patches",),
        note="on 450 test images of digits of 8 x 8 in patches of 2 x 2 a convolution in front is "
        "no different within a margin that is most of the errors, and more than what the base is "
        "ahead of the nearest neighbour by, at one rate. On Fashion-MNIST, where convolutions "
        "were ahead, it is not decided (stems)",
    ),
    Statement(
        23,
        "Layer norm gives mean 0 and deviation 1; the feed-forward layer acts on each "
        "position alone; masking after the softmax breaks normalisation.",
        "(x - mean) / deviation",
        "LayerNorm, FeedForward, masked_softmax",
        checks.norms_and_feed_forward,
    ),
    Statement(
        24,
        "Sinusoids carry relative distance: shifting their table is a rotation of it.",
        "p(i + D) = R(D) p(i)",
        "sinusoidal_positions",
        checks.sinusoids_shift_by_a_rotation,
    ),
    Statement(
        25,
        "Leaving the scale out equals W_Q times sqrt(d_k) at the start.",
        "softmax(Q K^T) = softmax((sqrt(d_k) Q) K^T / sqrt(d_k))",
        "attention_weights(scale=1)",
        checks.no_scale_is_larger_queries,
        studies=("scale",),
    ),
    Statement(
        26,
        "Without positions the last output of one causal layer ignores the order of the "
        "earlier tokens; of two layers it does not.",
        "z_L = sum_j w_Lj v_j",
        "Decoder(position='none')",
        checks.one_causal_layer_is_order_blind_at_its_end,
    ),
    Statement(
        27,
        "Teacher forcing leaves a model unprepared for its own mistakes.",
        "x_i or argmax p(x_i)",
        "objective.scheduled_sampling.share",
        note="a decoder that reverses eight symbols makes no mistakes to be prepared for",
        claims=(Claim("free_running", "half own", "better"),),
    ),
    Statement(
        28,
        "Representations are contextual: a word's vector depends on its sentence.",
        "cos(h(word, sentence), h(word, sentence'))",
        "inspection.similarity_by_layer",
        checks.words_are_contextual_in_real_weights,
        note="with random weights any layer that mixes places would pass, so the check looks at "
        "MiniLM: `make minilm`",
    ),
    Statement(
        29,
        "Seeing both sides helps understanding.",
        "mask",
        "model.mask=causal",
        claims=(Claim("both_sides", "the left alone", "worse"),),
    ),
    Statement(
        30,
        "Fine-tuning beats frozen features.",
        "d loss / d theta",
        "training.frozen",
        note="neither was tuned; the head alone has a larger rate",
        claims=(Claim("pretrained", "frozen features", "worse"),),
        studies=("pretraining", "pretrained_ladder"),
    ),
    Statement(
        31,
        "A transformer predicts text better than recurrent nets of as many parameters.",
        "p(x_i | x_<i)",
        "model.architecture, experiments.baselines",
        claims=(
            Claim("text_models_wide", "LSTM", "worse"),
            Claim("text_models_wide", "GRU", "worse"),
            Claim("text_models_wide", "tanh", "worse"),
        ),
        studies=("text_models",),
        note="after 2,000 updates, one and a half passes over the text, in windows of 64 "
        "characters that begin without a state, beside learned positions. Counting is ahead of "
        "this transformer: 5-grams are better than it, as LSTM and GRU are than 6-grams. From 500 "
        "updates to "
        "2,000 the lead of the recurrent nets shrank in every seed, and beside rotary positions "
        "it would be smaller, the tanh net's not surely more than the margin (the study's page "
        "says by how much), neither of which is judged; what is far away, for which attention is "
        "there, is not asked",
    ),
    Statement(
        32,
        "From small normal initial values (0.06, at width 32) gradients vanish at the start over "
        "eight blocks without residual connections and norms; either of them carries them.",
        "x + f(norm(x))",
        "model.wiring, model.norm",
        checks.either_carries_gradients,
        studies=("residuals_wide",),
        note="courses say that it takes both; this is about gradients at the start: in training, "
        "eight blocks of width 96 learned with residual connections alone, and with norms alone "
        "no more than the frequencies of letters in 2,000 updates, from normal initial values "
        "twice as large as configs/shakespeare.py has",
    ),
    Statement(
        33,
        "How large should the vocabulary be? Byte pairs beat characters, up to thousands of them.",
        "bits per byte",
        "data.vocab_size",
        claims=tuple(
            Claim("vocabulary_by_bytes", f"{size} byte pairs", "better") for size in (1024, 4096)
        ),
        studies=("vocabulary",),
        note="after as many bytes of one small text at as many operations an update",
    ),
    Statement(
        34,
        "Positions belong at the input; embeddings have to be learned.",
        "x + p",
        "model.position_in_every_layer, training.frozen",
        claims=(
            Claim("embeddings", "in every layer", "no better"),
            Claim("random_embeddings", "random", "worse"),
        ),
    ),
    Statement(
        35,
        "Loss is predictable from much smaller models.",
        "L = c N^-a",
        "ablate --ladder",
        note="each ladder forecasts its largest rung from the two or three smaller ones, by a "
        "power law without a floor. The two forecasts that were sealed before that rung was "
        "trained were too good: by 0.025 (mup_ladder, whose gains shrink faster than such a "
        "law's), where it is open whether by more than the margin of 0.01, and by 0.58 "
        "(standard_ladder, by more than the margin), which is not counted, since that rung did "
        "not learn: that it would not was not forecast either. In none of the five ladders does "
        "the base's score lie in the interval of its forecast; of the three that "
        "were not sealed, rotary_ladder's (too bad; its bases had not learned) and "
        "pretrained_ladder's (too good) missed by more than their margins",
        claims=(Claim("mup_ladder", "", "forecast"),),
        studies=("standard_ladder", "rotary_ladder"),
    ),
    Statement(
        36,
        "Transformers speed up inference.",
        "time per generated token",
        "generation.generate",
        note="a token after 1,023 others, one text at a time on 2 CPU cores, beside an LSTM of "
        "as many parameters; with a cache of keys and values, without which it is slower still",
        claims=(Claim("speed", "inference", "faster"),),
    ),
)
