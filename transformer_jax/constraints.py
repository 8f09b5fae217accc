"""Cross-field validation: combinations of individually valid options that make no sense together.

All functions take a completed flat config: full key -> value, with the options that the chosen
variants read.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from transformer_jax.data.tasks import traits_of
from transformer_jax.options import is_user_defined, nearest_divisor

# Schedules that end with the run, which has to be longer than their warm-up.
ENDING = ("warmup_cosine", "warmup_linear", "warmup_stable_decay")
_OF_ATTENTION = {  # these would do nothing if a mixer takes the place of attention
    "attention": "softmax",
    "query_key_norm": "none",
    **dict.fromkeys(("num_kv_heads", "value_dim", "attention_scale", "attention_dropout_rate")),
}
_UNLIKE = {"layers": "", "distinct_blocks": None, "skips": "none"}  # makes blocks differ
_MUP_OPTIMIZERS = ("adamw", "adam", "lion", "schedule_free")
Flat = Mapping[str, Any]


def problems_between(flat: Flat) -> Iterator[str]:
    """Yields contradictions in a config, one line each."""
    yield from _of_positions(flat)
    yield from _of_attention(flat)
    if flat["model.parametrisation"] == "mup":
        yield from (f"model.parametrisation=mup: {problem}" for problem in _of_mup(flat))
    yield from _of_blocks(flat)
    yield from _of_task(flat)
    yield from _of_training(flat)


def remarks_on(flat: Flat, letters: list[str]) -> Iterator[str]:
    """Yields remarks on a valid config for the user, one line each.

    Args:
      flat: The config.
      letters: Letters of the layer types that it defines.
    """
    pattern = flat["model.layers"]
    depth = None if flat.get("model.variant") else flat["model.depth"]
    used = set(pattern[:depth])
    for letter in letters:
        if letter not in used:
            where = f"model.layers={pattern or '(empty)'}"
            yield f"model.layer_types.{letter}: no block is of this type in {where}"
    if flat["model.scan_layers"] and depth is not None and depth < 2 * max(1, len(pattern)):
        yield f"model.scan_layers=True: model.depth={depth} has fewer than two repeats, and no loop"
    if pattern and not used.intersection(letters):
        letter = pattern[0]
        yield (
            f"model.layers={pattern} has no effect: none of its letters is in model.layer_types; "
            f"e.g. model.layer_types.{letter}.mask=window"
        )
    for key in ("model.mask", *(f"model.layer_types.{letter}.mask" for letter in letters)):
        is_causal = flat["model.architecture"] in ("decoder", "encoder_decoder")
        if flat.get(key) == "unmasked" and is_causal:
            yield f"{key}=unmasked shows this decoder the answers: its losses predict nothing"
    if flat["model.wiring"] == "sandwich" and flat["model.stochastic_depth"]:
        yield (
            "model.stochastic_depth: the norm behind a branch of model.wiring=sandwich undoes what "
            "kept branches are multiplied with; expected 0"
        )
    if flat["model.parametrisation"] == "mup" and flat["model.position"] == "contextual":
        yield (
            "model.parametrisation=mup scales the scores, and model.position=contextual adds to "
            "them as it is: it is not worked out for that"
        )


def _given(flat: Flat, usual: Mapping[str, Any]) -> list[str]:
    """Returns KEY=VALUE of the model options that differ from these values."""
    values = {name: flat[f"model.{name}"] for name in usual}
    return [f"model.{name}={v}" for name, v in values.items() if v != usual[name]]


def _of_positions(flat: Flat) -> Iterator[str]:
    length, section = flat["data.length"], "model.position_options"
    if flat["model.max_length"] < length:
        yield f"model.max_length={flat['model.max_length']}: expected at least data.length={length}"
    if flat["model.position"] == "contextual" and flat["model.mask"] == "prefix":
        yield "model.position=contextual: it counts up to the query; model.mask=prefix shows more"
    if flat["model.position"] != "rotary":
        return
    scaling, factor = flat[f"{section}.scaling"], flat[f"{section}.factor"]
    low, high = (flat[f"{section}.{name}_freq_factor"] for name in ("low", "high"))
    if scaling == "none" and factor != 1:
        yield (
            f"{section}.factor={factor:g}: it does nothing without {section}.scaling; expected "
            "linear, ntk or llama3"
        )
    if scaling != "llama3" and (flat[f"{section}.original_length"], low, high) != (8192, 1.0, 4.0):
        yield (
            f"{section}: original_length, low_freq_factor and high_freq_factor are of "
            "scaling=llama3; without it they do nothing"
        )
    if high <= low:
        yield f"{section}.high_freq_factor={high}: expected more than low_freq_factor={low}"


def _of_attention(flat: Flat) -> Iterator[str]:
    attention, mask, task = flat["model.attention"], flat["model.mask"], flat["data.task"]
    architecture, pooling = flat["model.architecture"], flat.get("model.pooling")
    pools = architecture == "vision_transformer" or task.endswith("_classification")
    if mask == "causal" and pools and pooling == "class_token":
        yield (
            "model.mask=causal: model.pooling=class_token reads the first place, which then sees "
            "nothing but itself; expected mean or max"
        )
    idle = _given(flat, _OF_ATTENTION)
    if flat["model.mixer"] != "attention" and idle and architecture != "encoder_decoder":
        yield (
            f"model.mixer={flat['model.mixer']} takes the place of self-attention, so that "
            f"{', '.join(idle)} would do nothing"
        )
    dropped = flat["model.attention_dropout_rate"]
    dropped = flat["model.dropout_rate"] if dropped is None else dropped
    if attention == "gated_delta" and dropped:
        yield (
            "model.attention=gated_delta has no weights that could be dropped; expected "
            f"model.attention_dropout_rate=0, got {dropped:g}"
        )
    if mask == "prefix" and architecture == "decoder" and task == "language_modelling":
        prefix, unscored = flat["model.mask_options.length"], flat["data.unscored"]
        if unscored < prefix - 1:
            yield (
                f"data.unscored={unscored}: within a prefix of {prefix} the model sees the "
                f"answers; expected at least {prefix - 1}"
            )


def _of_mup(flat: Flat) -> Iterator[str]:
    """Yields options that muP has no scaling rule for."""
    initialisation, optimizer = flat["model.initialisation"], flat["optimizer.name"]
    attention, mixer = flat["model.attention"], flat["model.mixer"]
    architecture, unlike = flat["model.architecture"], _given(flat, _UNLIKE)
    if initialisation in ("xavier", "fan_in"):
        yield (
            f"model.initialisation={initialisation} sets deviations by the width itself; expected "
            "depth_scaled or normal"
        )
    if optimizer not in _MUP_OPTIMIZERS:
        yield (
            f"its learning rates are for Adam and the like; optimizer.name={optimizer}, expected "
            f"one of {', '.join(_MUP_OPTIMIZERS)}"
        )
    if optimizer == "adam" and flat["optimizer.weight_decay"]:
        yield (
            "it is not worked out for weight decay that is part of the gradient, as in "
            f"optimizer.name=adam; optimizer.weight_decay={flat['optimizer.weight_decay']}, "
            "expected 0, or adamw"
        )
    if flat["model.mlp_dim"] is not None:
        yield (
            "all that is inside a block has to grow with the width; "
            f"model.mlp_dim={flat['model.mlp_dim']}, expected None"
        )
    if mixer != "attention":
        yield f"it is not worked out for model.mixer={mixer}"
    if attention in ("linear", "gated_delta", "differential", "diff_transformer"):
        yield f"model.attention={attention} has no scale to set"
    if architecture not in ("decoder", "vision_transformer"):
        yield f"it is worked out for decoder and vision_transformer, not for {architecture}"
    if flat.get("model.variant"):
        yield "model.variant sets a width of its own; give model.width"
    if flat["model.attention_scale"] or flat["model.value_dim"]:
        yield (
            "it sets the scale of the scores, and values have to grow; expected None for "
            "model.attention_scale and model.value_dim"
        )
    if flat.get("model.scale_embeddings"):
        yield "embeddings keep their size; expected model.scale_embeddings=False"
    if unlike:
        yield f"it is worked out for blocks that are alike; {', '.join(unlike)}"


def _of_blocks(flat: Flat) -> Iterator[str]:
    architecture = flat["model.architecture"]
    if flat["model.sharing"] != "cycle" and flat["model.distinct_blocks"] is None:
        yield (
            f"model.sharing={flat['model.sharing']}: without model.distinct_blocks all blocks have "
            "parameters of their own"
        )
    tied = _given(flat, {"distinct_blocks": None, "skips": "none"})
    if flat["model.scan_layers"] and tied:
        yield (
            "model.scan_layers=True: blocks that share parameters or read earlier streams are no "
            f"loop; expected False, or without {', '.join(tied)}"
        )
    by_path = [
        key
        for key in ("optimizer.learning_rate_multipliers", "optimizer.decay_multipliers")
        if any(path.startswith("block_") for path in flat[key])
    ]
    by_path += (
        ["training.frozen"] if any(p.startswith("block_") for p in flat["training.frozen"]) else []
    )
    if flat["model.scan_layers"] and by_path:
        yield (
            "model.scan_layers=True: the blocks of a loop are one array for the optimizer; "
            f"expected False, or {by_path[0]} without block_"
        )
    if flat["model.scan_layers"] and flat["optimizer.name"] == "adafactor":
        yield (
            "model.scan_layers=True: optimizer.name=adafactor takes statistics of whole arrays, "
            "which hold several blocks; expected False, or another optimizer"
        )
    of_blocks = {**_UNLIKE, "scan_layers": False, "remat": "none"}
    given = _given(flat, of_blocks)
    if given and architecture.startswith("recurrent_") and not is_user_defined(architecture):
        yield f"{', '.join(given)}: {architecture} has no blocks"
    if not flat.get("model.tie_output", True) and not flat["model.share_embeddings"]:
        yield (
            "model.tie_output=False: nothing is shared with model.share_embeddings=False; "
            "expected True"
        )
    if flat["model.wiring"] == "no_residual" and flat["model.stochastic_depth"]:
        yield "model.wiring=no_residual: model.stochastic_depth would make whole examples 0"


def _of_task(flat: Flat) -> Iterator[str]:
    task, architecture = flat["data.task"], flat["model.architecture"]
    is_own_task, is_own_model = is_user_defined(task), is_user_defined(architecture)
    fitting, matched = traits_of(task).architectures, flat["model.match_parameters"]
    if fitting and architecture not in fitting and not is_own_model:
        yield (
            f"model.architecture={architecture}: data.task={task} requires {' or '.join(fitting)}"
        )
    is_recurrent = architecture.startswith("recurrent_") and not is_own_model
    if matched is not None and not is_recurrent:
        yield (
            f"model.match_parameters={matched}: only a recurrent architecture is matched to "
            f"another, not {architecture}"
        )
    counterpart = architecture.removeprefix("recurrent_")
    if is_recurrent and matched not in (None, counterpart):
        yield (
            f"model.match_parameters={matched}: expected {counterpart}, which data.task={task} "
            "can train too"
        )
    if flat["training.loss_chunk"] and task.endswith("_classification") and not is_own_task:
        yield (
            f"training.loss_chunk={flat['training.loss_chunk']}: data.task={task} has one target "
            "for each example; expected None"
        )
    length, stride = flat["data.length"], flat["evaluation.stride"]
    if task == "language_modelling" and flat["data.unscored"] >= length:
        yield f"data.unscored={flat['data.unscored']}: expected less than data.length={length}"
    if stride and task != "language_modelling" and not is_own_task:
        yield f"evaluation.stride={stride}: data.task={task} has no windows; expected None"
    if (stride or 0) > length:
        yield f"evaluation.stride={stride}: expected at most data.length={length}"
    if flat["data.separate_documents"] and task != "language_modelling" and not is_own_task:
        yield f"data.separate_documents=True: data.task={task} keeps no documents apart"
    examples = flat["data.train_examples"]
    if examples and not task.endswith("_classification") and not is_own_task:
        yield (
            f"data.train_examples={examples}: data.task={task} has no labelled examples; give "
            "shares in data.splits"
        )
    tokenizer, vectors = flat["data.tokenizer"], flat["initial.word_vectors"]
    if vectors and tokenizer in ("byte", "char", "bpe"):
        yield (
            f"initial.word_vectors={vectors}: they are for words; data.tokenizer={tokenizer}, "
            "expected word or a tokenizer.json"
        )


def _of_training(flat: Flat) -> Iterator[str]:
    several = [axis for axis in ("data", "fsdp", "tensor", "sequence") if flat[f"mesh.{axis}"] < 0]
    if len(several) > 1:
        yield (
            f"mesh.{several[0]}=-1 and mesh.{several[1]}=-1: only one axis can take the devices "
            "that the others leave"
        )
    last_names = [hook.rpartition(":")[2] for hook in flat["hooks.functions"]]
    if len(set(last_names)) < len(last_names):
        yield (
            f"hooks.functions={','.join(flat['hooks.functions'])}: two have one name, under which "
            "their numbers are logged; expected functions of different names"
        )
    needing = [name for name in flat["evaluation.metrics"] if name.endswith("_to_target")]
    if needing and flat["evaluation.target"] is None:
        yield (
            f"evaluation.metrics={','.join(needing)}: requires a validation loss in "
            "evaluation.target"
        )
    batch, parts = flat["training.batch_size"], flat["training.accumulation"]
    if batch % parts:
        yield (
            f"training.accumulation={parts}: expected a divisor of training.batch_size={batch}, "
            f"nearest {nearest_divisor(batch, parts)}"
        )
    steps, schedule = flat["training.steps"], flat["schedule.name"]
    warmup = flat.get("schedule.warmup_steps", 0)
    if schedule in ENDING and warmup >= steps:
        yield (
            f"schedule.warmup_steps={warmup}: expected less than training.steps={steps}, for "
            f"example {steps // 10}"
        )
    falling = flat.get("schedule.decay_fraction", 0)
    if schedule == "warmup_stable_decay" and warmup + round(falling * steps) > steps:
        yield (
            f"schedule.decay_fraction={falling}: warm-up and decay are longer than "
            f"training.steps={steps}"
        )
    optimizer, ema = flat["optimizer.name"], flat["training.weight_ema"]
    if optimizer == "schedule_free" and schedule not in ("constant", "warmup_constant"):
        yield (
            f"schedule.name={schedule}: optimizer.name=schedule_free takes a mean instead of a "
            "falling rate; expected constant or warmup_constant"
        )
    if optimizer == "schedule_free" and ema is not None:
        yield (
            f"training.weight_ema={ema}: optimizer.name=schedule_free evaluates a mean already; "
            "expected None"
        )
    if optimizer == "muon" and flat["model.architecture"].startswith("recurrent_"):
        yield (
            "optimizer.name=muon: it is for the kernels of blocks, and a recurrent model has none"
        )
