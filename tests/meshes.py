"""Trains cases on one device and over a mesh of several, and prints how far they come apart.

`JAX_NUM_CPU_DEVICES=8 python -m tests.meshes NAME ...`: a process of its own, since jax counts its
devices once; or several processes, of which the first prints.
"""

import functools
import json
import sys

import jax
import numpy as np

from tests.conftest import ROOT, TINY, random_params
from transformer_jax import Decoder
from transformer_jax.config_files import load_config
from transformer_jax.models.layouts import unstack_blocks
from transformer_jax.paths import by_path, with_state
from transformer_jax.placement import sharded
from transformer_jax.processes import is_first, join_processes, whole
from transformer_jax.sharding import AXES, Rules, make_sharding
from transformer_jax.training.ahead import in_one_call
from transformer_jax.training.evaluation import score_of
from transformer_jax.training.prepared import prepare
from transformer_jax.variants.fused import FusedAttention

STEPS = 3
_SMALL = {"width": 32, "depth": 2, "num_heads": 4, "dropout_rate": 0.1}
_OTHERS = {"training.steps": 4, "schedule.warmup_steps": 1, "training.batch_size": 8}
SOURCES = {
    "decoder": (TINY, {"model.num_heads": 4}),
    "encoder_decoder": ("translation.py", {"data.length": 16, "data.tokenizer": "char"}),
    "vision_transformer": ("digits.py", {}),
    "classifier": ("movies.py", {"data.length": 16, "data.tokenizer": "char"}),
    "encoder": ("masked_lm.py", {"data.length": 16, "data.tokenizer": "char"}),
    "recurrent_decoder": (TINY, {"model.architecture": "recurrent_decoder"}),
    "recurrent_encoder": (
        "movies.py",
        {"model.architecture": "recurrent_encoder", "data.length": 16, "data.tokenizer": "char"},
    ),
}
_ALL = {"data": 2, "fsdp": 2, "tensor": 2}
_NO_HEADS = {"data": 2, "fsdp": 4}
# name -> architecture, changes, mesh
CASES = {
    "data": ("decoder", {}, {"data": 8}),
    "fsdp": ("decoder", {}, {"fsdp": 8}),
    "tensor": ("decoder", {}, {"data": 2, "tensor": 4}),
    "sequence": ("decoder", {"model.position": "rotary"}, {"data": 2, "sequence": 4}),
    "mixed": (
        "decoder",
        {
            **{"training.accumulation": 2, "training.loss_chunk": 8},
            **{"model.scan_layers": True, "model.num_kv_heads": 2},
        },
        _ALL,
    ),
    "uneven": ("decoder", {"training.batch_size": 12, "model.dropout_rate": 0.2}, {"data": 8}),
    "remat": (
        "decoder",
        {
            **{"model.remat": "block", "training.loss_chunk": 8},
            **{"model.attention": "chunked", "model.attention_options.size": 8},
        },
        {"fsdp": 4, "sequence": 2},
    ),
    "gated_rms": (
        "decoder",
        {"model.feed_forward": "gated", "model.norm": "rms_norm", "model.position": "t5"},
        _ALL,
    ),
    "experts": ("decoder", {"model.feed_forward": "mixture", "model.position": "alibi"}, _ALL),
    "biased": (  # state outside the gradient, further tokens, several streams
        "decoder",
        {
            **{"model.feed_forward": "mixture", "model.feed_forward_options.bias_rate": 0.01},
            **{"model.heads": "sequential", "model.wiring": "hyper_connections"},
            **{"model.values": "residual", "model.scan_layers": True},
        },
        _ALL,
    ),
    "latent": ("decoder", {"model.mixer": "latent_attention", "model.head_output": "none"}, _ALL),
    "linear": ("decoder", {"model.attention": "linear", "model.use_bias": True}, _ALL),
    "gated_delta": (
        "decoder",
        {
            **{"model.attention": "gated_delta", "model.attention_dropout_rate": 0},
            "optimizer.name": "lion",
        },
        _ALL,
    ),
    "differential": ("decoder", {"model.attention": "diff_transformer"}, _ALL),
    "window": ("decoder", {"model.mask": "window", "model.attention": "local"}, _ALL),
    "fused": (  # the kernel of a TPU, step by step, on each device's own texts and heads
        "decoder",
        {
            **{"model.attention": "tests.meshes:Interpreted", "model.attention_dropout_rate": 0},
            **{"model.num_kv_heads": 2, "data.length": 128},
        },
        _ALL,
    ),
    "state_space": ("decoder", {"model.mixer": "state_space"}, _NO_HEADS),
    "mean": ("decoder", {"training.weight_ema": 0.9, "optimizer.name": "muon"}, _ALL),
    "factored": ("decoder", {"optimizer.name": "adafactor", "model.tie_embeddings": False}, _ALL),
    "shared": ("decoder", {"model.distinct_blocks": 1, "model.wiring": "parallel"}, _ALL),
    "bfloat16": ("decoder", {"model.dtype": "bfloat16", "model.dropout_rate": 0.0}, _ALL),
    **{name: (name, {}, _ALL) for name in SOURCES if not name.startswith("recurrent")},
    **{name: (name, {}, _NO_HEADS) for name in SOURCES if name.startswith("recurrent")},
}


class Interpreted(FusedAttention):
    """Fused attention by splash attention on a CPU."""

    interpret: bool = True


def config_of(architecture, changes, mesh):
    file, more = SOURCES[architecture]
    known = {**{f"model.{k}": v for k, v in _SMALL.items()}, **_OTHERS, **more, **changes}
    known |= {f"mesh.{axis}": size for axis, size in mesh.items()}
    path = file if file == TINY else str(ROOT / "configs" / file)
    return load_config(path, {key: str(value) for key, value in known.items()})


@functools.cache
def on_one_device(architecture, changes):
    """The results of a case without a mesh, which several meshes are compared with."""
    config = config_of(architecture, json.loads(changes), {})
    return trained(config, devices=jax.local_devices()[:1])[0]


def trained(config, devices=None):
    """Losses and gradient norms of some steps, scores of some examples, the parameters."""
    prepared = prepare(config, devices=devices)
    seed, count = np.uint32(0), min(STEPS, prepared.capacity)
    state = prepared.draw(seed)
    start = by_path(whole(unstack_blocks(state.params)))
    start = {name: np.asarray(leaf) for name, leaf in start.items()}
    rows = in_one_call([prepared.own_batch(0, step) for step in range(count)], prepared.capacity)
    arguments = prepared.on_devices((prepared.numbers(), state, rows, np.int32(count)))
    state, records = prepared.program(*arguments)
    params = by_path(unstack_blocks(with_state(state.params, state.state)))
    # The first batch and the last, which is filled up; those between have the same program.
    batches = list(prepared.task.evaluation_batches("validation", 24))
    score = score_of(prepared)
    loose = unstack_blocks(with_state(state.params, state.state))
    sums = [score(loose, batch) for batch in (batches[0], batches[-1])]
    loss, weight = (np.concatenate([getattr(s, part) for s in sums]) for part in ("loss", "weight"))
    places = {name: str(getattr(leaf.sharding, "spec", "")) for name, leaf in params.items()}
    return {
        "losses": np.asarray(records.loss)[:count],
        "norms": np.asarray(records.gradient_norm)[:count],
        "score": loss[weight > 0] / weight[weight > 0],
        "start": start,
        "params": {name: np.asarray(leaf) for name, leaf in whole(params).items()},
    }, places


def compare(case):
    architecture, changes, mesh = CASES[case]
    one = on_one_device(architecture, json.dumps(changes))
    many, places = trained(config_of(architecture, changes, mesh))
    furthest = lambda first, second: float(np.abs(first - second).max())
    apart = {name: furthest(one[name], many[name]) for name in ("losses", "norms", "score")}
    for kind in ("start", "params"):
        apart[kind] = max(furthest(one[kind][name], many[kind][name]) for name in one[kind])
    return {"apart": apart, "places": places}


def compare_texts_in_parts():
    """Logits and gradients of decoders whose texts are cut into four, beside those of one device.

    What keys and values are gathered for, and what comes back to them.
    """
    tokens = np.random.default_rng(0).integers(65, size=(4, 32)).astype(np.int32)
    sizes = dict.fromkeys(AXES, 1) | {"data": 2, "sequence": 4}
    apart = {}
    of_eight = {"attention": "chunked", "attention_options": {"size": 8}}
    for fields in ({"position": "rotary"}, {"position": "t5", **of_eight}):
        model = Decoder.of(vocab_size=65, max_length=32, width=32, depth=1, num_heads=4, **fields)
        params = random_params(model, tokens)

        def results(sharding, model=model, params=params):
            def loss(params):
                with sharded(sharding):
                    logits = model.apply({"params": params}, tokens)
                return (logits**2).mean(), logits

            (_, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
            return by_path({"logits": logits, **gradients})

        one, many = results(None), results(make_sharding(sizes, Rules()))
        sizes_of = {name: float(np.abs(leaf).max()) for name, leaf in one.items()}
        for name, expected in one.items():
            difference = np.abs(np.asarray(many[name]) - np.asarray(expected)).max()
            # Some gradients are 0 but for rounding: a bias of keys moves no softmax.
            size = max(sizes_of[name], 1e-2 * max(sizes_of.values()))
            apart[f"{fields['position']} {name}"] = float(difference / size)
    return {"apart": apart}


def holds(one):
    """Losses, gradients' norms and scores are those of one device; the start is to the bit."""
    assert "error" not in one, one
    tolerance = 3e-2 if one["case"] == "bfloat16" else 5e-6
    apart = one["apart"]
    assert apart["start"] == 0
    assert apart["losses"] < tolerance, apart
    assert apart["score"] < tolerance, apart
    assert apart["norms"] < tolerance * 10, apart


if __name__ == "__main__":
    join_processes()
    for case in sys.argv[1:] or CASES:
        try:
            found = compare_texts_in_parts() if case == "texts in parts" else compare(case)
        except Exception as error:  # the others are tried all the same
            if len(sys.argv) == 2:
                raise
            found = {"error": f"{type(error).__name__}: {error}"[:600]}
        if is_first():
            print(json.dumps({"case": case, **found}), flush=True)
        jax.clear_caches()
