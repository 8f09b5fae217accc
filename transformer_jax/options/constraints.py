"""What is wrong between values of a config that are right one by one."""

from collections.abc import Mapping
from typing import Any

from transformer_jax.options.layer_types import letters_of
from transformer_jax.options.rule import is_own, nearest_divisor
from transformer_jax.options.task_traits import traits_of

# schedules that end with the run, which has to be longer than their warm-up
ENDING = ("warmup_cosine", "warmup_linear", "warmup_stable_decay")
_OF_ATTENTION = {  # what would do nothing where a mixer takes its place
    "attention": "softmax",
    "query_key_norm": "none",
    **dict.fromkeys(("num_kv_heads", "value_dim", "attention_scale", "attention_dropout_rate")),
    "attention_chunk": None,
}
MIXING = ("fused", "local", "linear", "gated_delta", "diff_transformer")  # without all weights
_UNLIKE = {"layers": "", "distinct_blocks": None, "skips": "none"}  # makes blocks differ


def problems_between(flat: Mapping[str, Any]) -> list[str]:
    """Returns what has no meaning together in a flattened config, one line each."""
    checks = [*_of_positions(flat), *_of_attention(flat), *_of_mup(flat), *_of_blocks(flat)]
    checks += [*_of_layers(flat), *_of_task(flat), *_of_training(flat)]
    return [problem for problem, is_wrong in checks if is_wrong]


def remarks_on(flat: Mapping[str, Any]) -> list[str]:
    """Returns what the user should know of a flattened config that is allowed, one line each."""
    pattern, letters = flat["model.layers"], letters_of(flat)
    depth = None if flat["model.vision_transformer.variant"] else flat["model.depth"]
    used = set(pattern[:depth])
    remarks = [
        f"model.layer_types.{letter}: no block is of this type in model.layers="
        f"{pattern or '(empty)'}"
        for letter in letters
        if letter not in used
    ]
    if flat["model.scan_layers"] and depth is not None and depth < 2 * max(1, len(pattern)):
        remarks.append(
            f"model.scan_layers=True: model.depth={depth} has fewer than two repeats, and no loop"
        )
    if pattern and not used.intersection(letters):
        remarks.append(f"model.layers={pattern}: no type says what is different")
    masks = ["model.mask", *(f"model.layer_types.{letter}.mask" for letter in letters)]
    remarks += [
        f"{key}=unmasked shows this decoder the answers: its losses predict nothing"
        for key in masks
        if flat.get(key) == "unmasked"
        and flat["model.architecture"] in ("decoder", "encoder_decoder")
    ]
    if flat["model.wiring"] == "sandwich" and flat["model.stochastic_depth"]:
        remarks.append(
            "model.stochastic_depth: the norm behind a branch of model.wiring=sandwich undoes what "
            "kept branches are multiplied with; expected 0"
        )
    if flat["model.parametrisation"] == "mup" and flat["model.position"] == "contextual":
        remarks.append(
            "model.parametrisation=mup scales the scores, and model.position=contextual adds to "
            "them as it is: it is not worked out for that"
        )
    return remarks


Checks = list[tuple[str, Any]]


def _given(flat: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    """KEY=VALUE of the model's options that are not what they usually are."""
    values = {name: flat[f"model.{name}"] for name in usual}
    return [f"model.{name}={v}" for name, v in values.items() if v != usual[name]]


def _of_positions(flat: Mapping[str, Any]) -> Checks:
    position, length = flat["model.position"], flat["data.length"]
    rotary = "model.position_options.rotary"
    low, high = (flat[f"{rotary}.{name}_freq_factor"] for name in ("low", "high"))
    of_llama3 = (flat[f"{rotary}.original_length"], low, high)
    return [
        (
            f"model.max_length={flat['model.max_length']}: expected at least data.length={length}",
            flat["model.max_length"] < length,
        ),
        (
            "model.position_options.rotary.factor: without a scaling it does nothing; "
            "give model.position_options.rotary.scaling=linear, ntk or llama3",
            position == "rotary"
            and flat["model.position_options.rotary.scaling"] == "none"
            and flat["model.position_options.rotary.factor"] != 1,
        ),
        (
            f"{rotary}: original_length, low_freq_factor and high_freq_factor are of "
            "scaling=llama3; without it they do nothing",
            position == "rotary"
            and flat[f"{rotary}.scaling"] != "llama3"
            and of_llama3 != (8192, 1.0, 4.0),
        ),
        (
            f"{rotary}.high_freq_factor={high}: expected more than low_freq_factor={low}",
            position == "rotary" and high <= low,
        ),
        (
            "model.position=contextual: it counts up to the query, and model.mask=prefix shows "
            "what is ahead",
            position == "contextual" and flat["model.mask"] == "prefix",
        ),
    ]


def _of_attention(flat: Mapping[str, Any]) -> Checks:
    attention = flat["model.attention"]
    idle = _given(flat, _OF_ATTENTION)
    mask, architecture, task = flat["model.mask"], flat["model.architecture"], flat["data.task"]
    prefix, unscored = (
        flat["model.mask_options.prefix.length"],
        flat["data.language_modelling.unscored"],
    )
    dropped = flat["model.attention_dropout_rate"]
    dropped = flat["model.dropout_rate"] if dropped is None else dropped
    pooling = flat.get(f"model.{architecture}.pooling")
    pools = architecture == "vision_transformer" or task.endswith("_classification")
    return [
        (
            f"model.mask=causal: model.{architecture}.pooling=class_token reads the first place, "
            "which then sees nothing but itself; expected mean or max",
            mask == "causal" and pools and pooling == "class_token",
        ),
        (
            f"model.mixer={flat['model.mixer']} takes the place of self-attention, so that "
            f"{', '.join(idle)} would do nothing",
            flat["model.mixer"] != "attention" and idle and architecture != "encoder_decoder",
        ),
        (
            f"model.attention_chunk={flat['model.attention_chunk']}: model.attention={attention} "
            "mixes values itself; expected None",
            flat["model.attention_chunk"] is not None and attention in MIXING,
        ),
        (
            "model.attention=gated_delta has no weights that could be dropped; expected "
            f"model.attention_dropout_rate=0, got {dropped:g}",
            attention == "gated_delta" and dropped,
        ),
        (
            f"data.language_modelling.unscored={unscored}: within a prefix of {prefix} the model "
            f"sees the answers; expected at least {prefix - 1}",
            mask == "prefix"
            and architecture == "decoder"
            and task == "language_modelling"
            and unscored < prefix - 1,
        ),
    ]


def _of_layers(flat: Mapping[str, Any]) -> Checks:
    given = _given(flat, _UNLIKE)
    given += _given(flat, {"scan_layers": False, "remat": "none", "attention_chunk": None})
    kept = {"distinct_blocks": None, "skips": "none"}
    tied, architecture = _given(flat, kept), flat["model.architecture"]
    return [
        (
            f"model.sharing={flat['model.sharing']}: without model.distinct_blocks all blocks have "
            "parameters of their own",
            flat["model.sharing"] != "cycle" and flat["model.distinct_blocks"] is None,
        ),
        (
            "model.scan_layers=True: blocks that share parameters or read earlier streams are no "
            f"loop; expected False, or without {', '.join(tied)}",
            flat["model.scan_layers"] and tied,
        ),
        (
            f"{', '.join(given)}: {architecture} has no blocks",
            given and architecture.startswith("recurrent_") and not is_own(architecture),
        ),
    ]


def _of_mup(flat: Mapping[str, Any]) -> Checks:
    """What muP is not worked out for."""
    initialisation, optimizer = flat["model.initialisation"], flat["optimizer.name"]
    attention, mixer = flat["model.attention"], flat["model.mixer"]
    architecture, unlike = flat["model.architecture"], _given(flat, _UNLIKE)
    vision = "model.vision_transformer" if architecture == "vision_transformer" else ""
    checks = [
        (
            f"model.initialisation={initialisation} sets deviations by the width itself; take "
            "depth_scaled or normal",
            initialisation in ("xavier", "fan_in"),
        ),
        (
            f"its learning rates are for Adam and the like; optimizer.name={optimizer}, expected "
            "adamw, adam, lion or schedule_free",
            optimizer not in ("adamw", "adam", "lion", "schedule_free"),
        ),
        (
            "it is not worked out for weight decay that is part of the gradient, as optimizer.name="
            f"adam has it; optimizer.weight_decay={flat['optimizer.weight_decay']}, expected 0, or "
            "adamw",
            optimizer == "adam" and flat["optimizer.weight_decay"],
        ),
        (
            "all that is inside a block has to grow with the width; "
            f"model.mlp_dim={flat['model.mlp_dim']}, expected None",
            flat["model.mlp_dim"] is not None,
        ),
        (f"it is not worked out for model.mixer={mixer}", mixer != "attention"),
        (
            f"model.attention={attention} has no scale to set",
            attention in ("linear", "gated_delta", "differential", "diff_transformer"),
        ),
        (
            f"it is worked out for decoder and vision_transformer, not for {architecture}",
            architecture not in ("decoder", "vision_transformer"),
        ),
        (
            "model.vision_transformer.variant sets a width of its own; give model.width",
            vision and flat[f"{vision}.variant"],
        ),
        (
            "it sets the scale of the scores, and values have to grow; expected None for "
            "model.attention_scale and model.value_dim",
            flat["model.attention_scale"] or flat["model.value_dim"],
        ),
        (
            "embeddings keep their size; expected model.scale_embeddings=False",
            flat["model.scale_embeddings"],
        ),
        (f"it is worked out for blocks that are alike; {', '.join(unlike)}", unlike),
    ]
    is_mup = flat["model.parametrisation"] == "mup"
    return [(f"model.parametrisation=mup: {why}", is_mup and wrong) for why, wrong in checks]


def _of_blocks(flat: Mapping[str, Any]) -> Checks:
    architecture = flat["model.architecture"]
    return [
        (
            f"model.scale_embeddings=True: {architecture} has no such field; expected decoder, or "
            "model.encoder_decoder.scale_embeddings",
            flat["model.scale_embeddings"]
            and architecture != "decoder"
            and not is_own(architecture),
        ),
        (
            "model.encoder_decoder.tie_output=False: nothing is shared with "
            "model.encoder_decoder.share_embeddings=False; expected True",
            not flat["model.encoder_decoder.tie_output"]
            and not flat["model.encoder_decoder.share_embeddings"],
        ),
        (
            "model.wiring=no_residual: model.stochastic_depth would leave whole examples 0; give 0",
            flat["model.wiring"] == "no_residual" and flat["model.stochastic_depth"],
        ),
    ]


def _of_task(flat: Mapping[str, Any]) -> Checks:
    task, architecture = flat["data.task"], flat["model.architecture"]
    matched, fitting = flat["model.match_parameters"], traits_of(task).architectures
    is_recurrent = architecture.startswith("recurrent_") and not is_own(architecture)
    length, tokenizer = flat["data.length"], flat["data.tokenizer"]
    stride = flat["evaluation.stride"] or length
    unscored = flat["data.language_modelling.unscored"]
    return [
        (
            f"model.architecture={architecture}: data.task={task} needs {' or '.join(fitting)}",
            fitting and architecture not in fitting and not is_own(architecture),
        ),
        (
            f"model.match_parameters={matched}: only a recurrent architecture is matched to "
            f"another, not {architecture}",
            matched is not None and not is_recurrent,
        ),
        (
            f"model.match_parameters={matched}: expected "
            f"{architecture.removeprefix('recurrent_')}, which data.task={task} can train too",
            is_recurrent and matched not in (None, architecture.removeprefix("recurrent_")),
        ),
        (
            f"training.loss_chunk={flat['training.loss_chunk']}: data.task={task} has one target "
            "for each example; expected None",
            flat["training.loss_chunk"] and task.endswith("_classification") and not is_own(task),
        ),
        (
            f"data.language_modelling.unscored={unscored}: expected less than data.length={length}",
            unscored >= length and task == "language_modelling",
        ),
        (
            f"evaluation.stride={stride}: data.task={task} has no windows; expected None",
            flat["evaluation.stride"] and task != "language_modelling" and not is_own(task),
        ),
        (
            f"evaluation.stride={stride}: expected at most data.length={length}",
            stride > length,
        ),
        (
            f"data.separate_documents=True: data.task={task} keeps no documents apart",
            flat["data.separate_documents"] and task != "language_modelling" and not is_own(task),
        ),
        (
            f"data.train_examples={flat['data.train_examples']}: data.task={task} has no labelled "
            "examples; give shares in data.splits",
            flat["data.train_examples"]
            and not task.endswith("_classification")
            and not is_own(task),
        ),
        (
            f"initial.word_vectors={flat['initial.word_vectors']}: they are for words; "
            f"data.tokenizer={tokenizer}, expected word or a tokenizer.json",
            flat["initial.word_vectors"] and tokenizer in ("byte", "char", "bpe"),
        ),
    ]


def _of_training(flat: Mapping[str, Any]) -> Checks:
    batch, parts = flat["training.batch_size"], flat["training.accumulation"]
    steps, schedule = flat["training.steps"], flat["schedule.name"]
    warmup = flat.get(f"schedule.{schedule}.warmup_steps", 0)
    ends = schedule in ENDING
    falling = flat["schedule.warmup_stable_decay.decay_fraction"]
    optimizer, ema = flat["optimizer.name"], flat["training.weight_ema"]
    needing = [name for name in flat["evaluation.metrics"] if name.endswith("_to_target")]
    hooks = {name: name.rpartition(".")[2] for name in flat["hooks.functions"]}
    alike = [name for name, last in hooks.items() if [*hooks.values()].count(last) > 1]
    several = [axis for axis in ("data", "fsdp", "tensor", "sequence") if flat[f"mesh.{axis}"] < 0]
    return [
        (
            f"mesh.{several[0]}=-1 and mesh.{several[-1]}=-1: only one axis can take the devices "
            "that the others leave"
            if several
            else "",
            len(several) > 1,
        ),
        (
            f"hooks.functions={','.join(alike)}: the numbers of both would have one name; expected "
            "functions of different names",
            alike,
        ),
        (
            f"evaluation.metrics={','.join(needing)}: give the validation loss that they ask for, "
            "evaluation.target",
            needing and flat["evaluation.target"] is None,
        ),
        (
            f"training.accumulation={parts}: expected a divisor of training.batch_size={batch}, "
            f"nearest {nearest_divisor(batch, parts)}",
            batch % parts,
        ),
        (
            f"schedule.{schedule}.warmup_steps={warmup}: expected less than "
            f"training.steps={steps}, {steps // 10} say",
            ends and warmup >= steps,
        ),
        (
            f"schedule.warmup_stable_decay.decay_fraction={falling}: warm-up and decay are longer "
            f"than training.steps={steps}",
            schedule == "warmup_stable_decay" and warmup + round(falling * steps) > steps,
        ),
        (
            f"schedule.name={schedule}: optimizer.name=schedule_free takes a mean in place of a "
            "falling rate; take constant or warmup_constant",
            optimizer == "schedule_free" and schedule not in ("constant", "warmup_constant"),
        ),
        (
            "optimizer.name=muon: it is for the kernels of blocks, which a recurrent model has not",
            optimizer == "muon" and flat["model.architecture"].startswith("recurrent_"),
        ),
        (
            f"training.weight_ema={ema}: optimizer.name=schedule_free evaluates a mean already; "
            "give None",
            optimizer == "schedule_free" and ema is not None,
        ),
    ]
