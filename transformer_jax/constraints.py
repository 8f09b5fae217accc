"""Cross-field validation: combinations of individually valid options that make no sense together.

Functions that take `flat` expect a completed flat config: full key -> value, including the options
that the chosen variants read. The `_of_...` functions yield keys with reasons to refuse them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from transformer_jax.data.tasks import traits_of
from transformer_jax.declarations import as_text
from transformer_jax.options import is_user_defined, nearest_divisor

# Schedules that end with the run, which has to be longer than their warm-up.
ENDING = ("warmup_cosine", "warmup_linear", "warmup_stable_decay")
_OF_ATTENTION = {  # without effect if a different mixer replaces attention
    "attention": "softmax",
    "query_key_norm": "none",
    **{"values": "none", "head_output": "none"},
    **dict.fromkeys(("num_kv_heads", "value_dim", "attention_scale", "attention_dropout_rate")),
}
_READ_BY_MIXER = {  # which of these a mixer reads
    "shared_attention": tuple(_OF_ATTENTION),
    "latent_attention": ("value_dim", "attention_scale"),
    "delta_net": ("value_dim",),
}
_UNLIKE = {"layers": "", "distinct_blocks": None, "skips": "none"}  # other values: blocks differ
_BY_PATH = ("optimizer.learning_rate_multipliers", "optimizer.decay_multipliers", "training.frozen")
_WITHOUT_MUP = ("values", "head_output", "convolution", "stem", "heads")
_OF_OTHER_FILES = ("data.validation_source", "data.test_source", "data.validation_tokens")
_OF_KERNELS = ("muon", "normuon", "soap")
_STREAMS = (
    *("hyper_connections", "manifold_hyper_connections", "attention_residuals"),
    "per_layer_embeddings",
)
_MUP_OPTIMIZERS = ("adamw", "adam", "lion", "schedule_free")
Flat = Mapping[str, Any]
Problems = Iterator[tuple[str, str]]


def problems_between(flat: Flat) -> Iterator[str]:
    """Yields contradictions in a config, one line each."""
    for find in (_of_positions, _of_attention, _of_mup, _of_blocks, _of_task, _of_training):
        yield from (f"{key}={as_text(flat[key])}: {reason}" for key, reason in find(flat))


def remarks_on(flat: Flat, letters: list[str]) -> Iterator[str]:
    """Yields remarks on a valid config and its layer types, one line each."""
    pattern = flat["model.layers"]
    depth = None if flat.get("model.variant") else flat["model.depth"]
    used = set(pattern[:depth])
    for letter in letters:
        if letter not in used:
            where = f"model.layers={pattern or '(empty)'}"
            yield f"model.layer_types.{letter}: no block is of this type in {where}"
    if flat["model.scan_layers"] and depth is not None and depth < 2 * max(1, len(pattern)):
        yield (
            f"model.scan_layers=True has no effect: with model.depth={depth} there are fewer than "
            "two repetitions to scan"
        )
    if pattern and not used.intersection(letters):
        yield (
            f"model.layers={pattern} has no effect: none of its letters is in model.layer_types; "
            f"e.g. model.layer_types.{pattern[0]}.mask=window"
        )
    for key in ("model.mask", *(f"model.layer_types.{letter}.mask" for letter in letters)):
        is_causal = flat["model.architecture"] in ("decoder", "encoder_decoder")
        if flat.get(key) == "unmasked" and is_causal:
            yield f"{key}=unmasked shows this decoder the answers, so its losses mean nothing"
    if flat["model.wiring"] == "sandwich" and flat["model.stochastic_depth"]:
        yield (
            "model.stochastic_depth: the norm after a branch of model.wiring=sandwich cancels the "
            "factor by which kept branches are scaled; expected 0"
        )
    if flat["model.parametrisation"] == "mup" and flat["model.position"] == "contextual":
        yield (
            "model.parametrisation=mup scales the scores, but not the numbers that "
            "model.position=contextual adds to them; muP has no rule for this combination"
        )


def _given(flat: Flat, usual: Mapping[str, Any]) -> str:
    """Returns the model options that differ from the values in `usual`, as KEY=VALUE, KEY=VALUE."""
    values = {name: flat[f"model.{name}"] for name in usual}
    return ", ".join(f"model.{name}={v}" for name, v in values.items() if v != usual[name])


def _of_positions(flat: Flat) -> Problems:
    length, section = flat["data.length"], "model.position_options"
    if flat["model.max_length"] < length:
        yield "model.max_length", f"expected at least data.length={length}"
    if flat["model.position"] == "contextual" and flat["model.mask"] == "prefix":
        reason = "it counts keys up to the query, but model.mask=prefix also shows later keys"
        yield "model.position", reason
    if flat["model.position"] != "rotary":
        return
    names = ("scaling", "factor", "original_length", "low_freq_factor", "high_freq_factor")
    scaling, factor, *of_llama3 = (flat[f"{section}.{name}"] for name in names)
    _, low, high = of_llama3
    if scaling == "none" and factor != 1:
        reason = f"it has no effect without {section}.scaling=linear, ntk or llama3"
        yield f"{section}.factor", reason
    if scaling != "llama3" and of_llama3 != [8192, 1.0, 4.0]:
        reason = f"{', '.join(names[2:])} have no effect without scaling=llama3"
        yield f"{section}.scaling", reason
    if high <= low:
        yield f"{section}.high_freq_factor", f"expected more than low_freq_factor={low}"


def _of_attention(flat: Flat) -> Problems:
    mask, task, architecture = flat["model.mask"], flat["data.task"], flat["model.architecture"]
    pools = architecture == "vision_transformer" or task.endswith("_classification")
    if mask == "causal" and pools and flat.get("model.pooling") == "class_token":
        reason = "reads the first position, which then sees only itself"
        expected = "expected model.pooling=mean or max"
        yield "model.mask", f"model.pooling=class_token {reason}; {expected}"
    read = _READ_BY_MIXER.get(flat["model.mixer"], ())
    idle = _given(flat, {name: v for name, v in _OF_ATTENTION.items() if name not in read})
    if flat["model.mixer"] != "attention" and idle and architecture != "encoder_decoder":
        yield "model.mixer", f"it replaces self-attention, so {idle} would have no effect"
    dropped = flat["model.attention_dropout_rate"]
    dropped = flat["model.dropout_rate"] if dropped is None else dropped
    if flat["model.attention"] == "gated_delta" and dropped:
        expected = f"expected model.attention_dropout_rate=0, got {dropped:g}"
        yield "model.attention", f"it has no attention weights to drop; {expected}"
    if mask == "prefix" and architecture == "decoder" and task == "language_modelling":
        prefix = flat["model.mask_options.length"]
        if flat["data.unscored"] < prefix - 1:
            sees = f"within a prefix of {prefix} tokens the model sees the answers"
            yield "data.unscored", f"{sees}; expected at least {prefix - 1}"


def _of_mup(flat: Flat) -> Problems:
    if flat["model.parametrisation"] == "mup":
        yield from (("model.parametrisation", reason) for reason in _without_mup_rule(flat))


def _without_mup_rule(flat: Flat) -> Iterator[str]:
    """Yields reasons why muP has no scaling rule for a config."""
    initialisation, optimizer = flat["model.initialisation"], flat["optimizer.name"]
    attention, mixer = flat["model.attention"], flat["model.mixer"]
    architecture, mlp_dim = flat["model.architecture"], flat["model.mlp_dim"]
    if initialisation in ("xavier", "fan_in"):
        reason = "already adapts deviations to the width; expected depth_scaled or normal"
        yield f"model.initialisation={initialisation} {reason}"
    if optimizer not in _MUP_OPTIMIZERS:
        expected = f"expected one of {', '.join(_MUP_OPTIMIZERS)}, got optimizer.name={optimizer}"
        yield f"its learning rates are for optimizers like Adam; {expected}"
    if optimizer == "adam" and flat["optimizer.weight_decay"]:
        yield (
            "it has no rule for weight decay that is added to the gradient, as in "
            "optimizer.name=adam; expected optimizer.name=adamw or optimizer.weight_decay=0, got "
            f"{flat['optimizer.weight_decay']}"
        )
    if mlp_dim is not None:
        inside = "all sizes inside a block must grow with the width"
        yield f"{inside}; expected model.mlp_dim=None, got {mlp_dim}"
    if mixer != "attention":
        yield f"it has no rule for model.mixer={mixer}; expected attention"
    if attention in ("linear", "gated_delta", "differential", "diff_transformer"):
        yield f"model.attention={attention} has no scale of the scores for muP to set"
    if architecture not in ("decoder", "vision_transformer"):
        yield f"it has rules for decoder and vision_transformer, but not for {architecture}"
    if flat.get("model.variant"):
        yield "model.variant sets its own width; give model.width instead"
    if flat["model.attention_scale"] or flat["model.value_dim"]:
        expected = "expected None for model.attention_scale and model.value_dim"
        yield f"it sets the scale of the scores, and values must grow with the width; {expected}"
    if flat.get("model.scale_embeddings"):
        yield "it leaves embeddings unscaled; expected model.scale_embeddings=False"
    if unlike := _given(flat, _UNLIKE):
        yield f"it requires blocks that are alike, got {unlike}"
    if flat["adapters.rank"]:
        yield f"it has no rule for adapters; expected adapters.rank=0, got {flat['adapters.rank']}"
    if others := _given(flat, dict.fromkeys(_WITHOUT_MUP, "none")):
        yield f"it has no rule for {others}"
    if flat["model.wiring"] in _STREAMS:
        yield f"it has no rule for model.wiring={flat['model.wiring']}"


def _of_blocks(flat: Flat) -> Problems:
    architecture = flat["model.architecture"]
    if flat["model.sharing"] != "cycle" and flat["model.distinct_blocks"] is None:
        reason = "all blocks have their own parameters"
        yield "model.sharing", f"without model.distinct_blocks, {reason}"
    if flat["model.scan_layers"]:
        yield from (("model.scan_layers", reason) for reason in _not_a_loop(flat))
    given = _given(flat, {**_UNLIKE, "scan_layers": False, "remat": "none"})
    if given and _is_recurrent(architecture):
        yield "model.architecture", f"{architecture} has no blocks, so {given} would have no effect"
    if not flat.get("model.tie_output", True) and not flat["model.share_embeddings"]:
        reason = "with model.share_embeddings=False nothing is tied anyway; expected True"
        yield "model.tie_output", reason
    if flat["model.heads"] != "none" and architecture not in ("decoder", "encoder_decoder"):
        yield "model.heads", f"{architecture} does not predict next tokens; expected none"
    if flat["model.wiring"] == "no_residual" and flat["model.stochastic_depth"]:
        yield "model.wiring", "model.stochastic_depth would set whole examples to 0"


def _not_a_loop(flat: Flat) -> Iterator[str]:
    """Yields reasons why the blocks cannot be scanned."""
    if tied := _given(flat, {"distinct_blocks": None, "skips": "none"}):
        reason = "blocks that share parameters or read earlier streams cannot be scanned"
        yield f"{reason}; expected False, or a model without {tied}"
    if flat["model.wiring"] == "attention_residuals":
        reason = "model.wiring=attention_residuals reads the outputs of all earlier blocks"
        yield f"{reason}, of which a scan keeps two; expected False"
    by_path = [key for key in _BY_PATH if any(path.startswith("block_") for path in flat[key])]
    if by_path:
        reason = "the optimizer sees the blocks of a loop as one array"
        yield f"{reason}; expected False, or no paths of blocks in {by_path[0]}"
    if flat["optimizer.name"] == "adafactor":
        reason = "takes statistics of whole arrays, which would then hold several blocks"
        yield f"optimizer.name=adafactor {reason}; expected False, or a different optimizer"


def _is_recurrent(architecture: str) -> bool:
    return architecture.startswith("recurrent_") and not is_user_defined(architecture)


def _of_task(flat: Flat) -> Problems:
    task, architecture = flat["data.task"], flat["model.architecture"]
    length, stride = flat["data.length"], flat["evaluation.stride"]
    fitting, matched = traits_of(task).architectures, flat["model.match_parameters"]
    # A user-defined task may be a classification or have windows.
    classifies = task.endswith("_classification") or is_user_defined(task)
    has_windows = task == "language_modelling" or is_user_defined(task)
    if fitting and architecture not in fitting and not is_user_defined(architecture):
        yield "model.architecture", f"data.task={task} requires {' or '.join(fitting)}"
    if matched is not None and not _is_recurrent(architecture):
        reason = f"only a recurrent architecture can be matched, not {architecture}; expected None"
        yield "model.match_parameters", reason
    counterpart = architecture.removeprefix("recurrent_")
    if _is_recurrent(architecture) and matched not in (None, counterpart):
        reason = f"expected {counterpart}, which data.task={task} can train too"
        yield "model.match_parameters", reason
    if flat["training.loss_chunk"] and classifies and not is_user_defined(task):
        reason = f"data.task={task} has one target for each example; expected None"
        yield "training.loss_chunk", reason
    if task == "language_modelling" and flat["data.unscored"] >= length:
        yield "data.unscored", f"expected less than data.length={length}"
    if stride and not has_windows:
        yield "evaluation.stride", f"data.task={task} has no windows; expected None"
    if (stride or 0) > length:
        yield "evaluation.stride", f"expected at most data.length={length}"
    if flat["data.separate_documents"] and not has_windows:
        yield "data.separate_documents", f"data.task={task} cannot separate documents"
    if flat["data.train_examples"] and not classifies:
        reason = f"data.task={task} has no labelled examples; give shares in data.splits"
        yield "data.train_examples", reason
    own = [key for key in _OF_OTHER_FILES if flat[key] is not None]
    if own and not is_user_defined(task) and not traits_of(task).running_text:
        yield own[0], f"data.task={task} has no text in files of its own; expected None"
    if own and flat["data.validation_source"] is None:
        yield own[0], "expected data.validation_source as well"
    if own and flat.get("data.mixture"):
        yield "data.mixture", f"each source of it is split; expected no {own[0]}"
    tokenizer = flat["data.tokenizer"]
    if flat["initial.word_vectors"] and tokenizer in ("byte", "char", "bpe"):
        expected = f"expected word or a tokenizer.json, got data.tokenizer={tokenizer}"
        yield "initial.word_vectors", f"word vectors need a tokenizer of words; {expected}"


def _of_training(flat: Flat) -> Problems:
    axes = [f"mesh.{axis}" for axis in ("data", "fsdp", "tensor", "sequence")]
    several = [axis for axis in axes if flat[axis] < 0]
    if len(several) > 1:
        reason = "only one axis can take the devices that the others leave"
        yield several[0], f"{reason}, but {several[1]} is -1 too"
    hooks = flat["hooks.functions"]
    logged = [hook.rpartition(":")[2] for hook in hooks]
    if taken := sorted({"train", "eval", "test", "time"} & {*logged}):
        reason = f"numbers of the run itself are logged under {taken[0]}"
        yield "hooks.functions", f"{reason}; expected another name of the function"
    if len({*logged}) < len(hooks):
        reason = "two hooks have the same name, under which their numbers are logged"
        yield "hooks.functions", f"{reason}; expected functions with distinct names"
    needing = [name for name in flat["evaluation.metrics"] if name.endswith("_to_target")]
    if needing and flat["evaluation.target"] is None:
        reason = f"{', '.join(needing)} requires a validation loss in evaluation.target"
        yield "evaluation.metrics", reason
    needing = [name for name in flat["evaluation.metrics"] if name.startswith("benchmark")]
    if needing and flat["evaluation.benchmark"] is None:
        yield (
            "evaluation.metrics",
            f"{needing[0]} requires evaluation.benchmark, e.g. a .jsonl file",
        )
    batch, parts = flat["training.batch_size"], flat["training.accumulation"]
    if batch % parts:
        expected = f"expected a divisor of training.batch_size={batch}"
        yield "training.accumulation", f"{expected}, nearest {nearest_divisor(batch, parts)}"
    steps, schedule = flat["training.steps"], flat["schedule.name"]
    warmup, falling = flat.get("schedule.warmup_steps", 0), flat.get("schedule.decay_fraction", 0)
    if schedule in ENDING and warmup >= steps:
        reason = f"expected less than training.steps={steps}, for example {steps // 10}"
        yield "schedule.warmup_steps", reason
    if schedule == "warmup_stable_decay" and warmup + round(falling * steps) > steps:
        reason = f"warm-up and decay are longer than training.steps={steps} together"
        yield "schedule.decay_fraction", reason
    optimizer = flat["optimizer.name"]
    if optimizer == "schedule_free" and schedule not in ("constant", "warmup_constant"):
        reason = "optimizer.name=schedule_free averages weights instead of lowering the rate"
        yield "schedule.name", f"{reason}; expected constant or warmup_constant"
    if optimizer == "schedule_free" and flat["training.weight_ema"] is not None:
        reason = "optimizer.name=schedule_free already evaluates an average; expected None"
        yield "training.weight_ema", reason
    if flat["optimizer.unit_vectors"]:
        reason = "an average of unit vectors is shorter, and adapters are no such vectors"
        if optimizer == "schedule_free" or flat["training.weight_ema"] or flat["adapters.rank"]:
            yield "optimizer.unit_vectors", f"{reason}; expected False"
    if optimizer in _OF_KERNELS and flat["adapters.rank"]:
        yield "optimizer.name", "it is for whole kernels, not for adapters; expected e.g. adamw"
    if flat["optimizer.cautious_decay"] and optimizer in ("adam", "sgd"):
        reason = f"optimizer.name={optimizer} adds the decay to the gradient, before its update"
        yield "optimizer.cautious_decay", f"{reason} is known; expected False"
    if optimizer in _OF_KERNELS and flat["model.architecture"].startswith("recurrent_"):
        yield "optimizer.name", "it is for the kernels of blocks, which a recurrent model lacks"
