"""Blocks that differ, share parameters, and read earlier streams: against the same by hand."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import ROOT, tiny_config
from tests.test_inspection import drawn
from transformer_jax.config_files import flatten, from_json, load_config, resolved, to_json
from transformer_jax.errors import InvalidInput
from transformer_jax.inspection import capture
from transformer_jax.models import Decoder, Encoder, EncoderDecoder
from transformer_jax.models.recurrent import RecurrentDecoder
from transformer_jax.models.stack import SKIPS, block_specs
from transformer_jax.options import entry_of
from transformer_jax.runs.progress import Silent
from transformer_jax.training import warm_start
from transformer_jax.training.build import count_parameters, make_model
from transformer_jax.training.loading import load_run
from transformer_jax.training.loop import train

TOKENS = jax.random.randint(jax.random.key(0), (2, 6), 0, 11)
SMALL = {"vocab_size": 11, "max_length": 6, "width": 8, "depth": 4, "num_heads": 2}
LOCAL = {"L": {"mask": "window", "mask_options": {"size": 2}}}


def logits_of(model, params):
    return _logits(model, params)


_logits = jax.jit(lambda model, params: model.apply({"params": params}, TOKENS), static_argnums=0)


def test_weights_of_blocks_that_compute_the_same_are_taken(monkeypatch):
    """Masks are the user's, and what computes the same in another way, in a type of layers too."""
    config = load_config("configs/tiny.py", {"initial.weights": "there"})

    def start(ours, theirs):
        given = jax.tree.map(lambda array: array + 1, drawn(theirs))
        monkeypatch.setattr(warm_start, "_read_weights", lambda *_: (theirs, given, []))
        own = drawn(ours)
        taken, _ = warm_start.start_from(ours, own, config.initial, None)
        jax.tree.map(np.testing.assert_array_equal, taken, given)

    made = {"layers": "LG", "layer_types": LOCAL}
    ours = Decoder.of(**SMALL | made)
    for changes in (
        {"mask": "window", "mask_options": {"size": 3}},
        {"attention_dropout_rate": 0.1, "attention": "chunked"},
        {"attention": "fused"},
    ):
        theirs = Decoder.of(**SMALL | {"layers": "LGLG", "layer_types": {"L": changes}})
        start(ours, theirs)
    everywhere = Decoder.of(**SMALL, mask="window", mask_options={"size": 2})
    start(Decoder.of(**SMALL | {"layers": "L", "layer_types": LOCAL}), everywhere)
    other = Decoder.of(**SMALL | {"layers": "GL", "layer_types": {"L": {"num_heads": 4}}})
    with pytest.raises(InvalidInput, match=r"num_heads: 4 there, 2 here, in block 1"):
        start(ours, other)
    with pytest.raises(InvalidInput, match=r"num_heads: 2 there, 4 here, in block 1"):
        start(other, ours)
    recurrent = RecurrentDecoder(vocab_size=11, max_length=6, width=8, recurrent_depth=1)
    assert warm_start._different(recurrent, ours) == [], "the embedding alone is taken"
    mixture = ours.with_options(feed_forward="mixture")
    chosen = mixture.with_options(feed_forward_options={"computed": "chosen"})
    assert warm_start._different(mixture, chosen) == [], "how, and not what"


def types_of(**fields):
    return "".join(spec.letter for spec in block_specs(Decoder.of(**SMALL | fields).options))


def test_a_pattern_is_repeated_over_the_depth():
    assert types_of(layers="LG", layer_types=LOCAL) == "LGLG"
    assert types_of(layers="LLLLLG", layer_types=LOCAL) == "LLLL"
    assert types_of(layers="LG", layer_types=LOCAL, depth=0) == ""
    assert types_of() == ""


def test_each_block_computes_what_its_type_says():
    """Block by block: what a plain model of one block makes of the stream before it."""
    global_fields = {"position_options": {"max_wavelength": 50.0}, "num_kv_heads": 1}
    types = {**LOCAL, "G": global_fields, "N": {"position": "none", "mlp_dim": 5}}
    model = Decoder.of(**SMALL, position="rotary", layers="LGNP", layer_types=types)
    params = drawn(model)
    seen = capture(model, params, {"tokens": TOKENS}, "embedded", "block_*.residual")
    streams = [seen.pop("embedded"), *seen.values()]
    plain = {"position": "rotary", "depth": 1}
    for block, fields in enumerate((LOCAL["L"], global_fields, types["N"], {})):
        alone = Decoder.of(**{**SMALL, **plain, **fields})
        own = {**params, "block_0": params[f"block_{block}"]}
        # One block over the stream: an embedding of which each row is looked up once.
        own["token_embedding"] = {"embedding": streams[block][0]}
        places = jnp.arange(6)[None]
        alone = alone.with_options(vocab_size=6)
        made = capture(alone, own, {"tokens": places}, "block_0.residual")["block_0.residual"]
        np.testing.assert_allclose(made[0], streams[block + 1][0], rtol=2e-5, atol=2e-5)


@pytest.mark.thorough
def test_blocks_that_share_are_blocks_with_equal_parameters():
    shared, whole = Decoder.of(**SMALL, distinct_blocks=2), Decoder.of(**SMALL)
    params = drawn(shared)
    assert {name for name in params if name.startswith("block")} == {"block_0", "block_1"}
    same = {**params, "block_2": params["block_0"], "block_3": params["block_1"]}
    np.testing.assert_array_equal(logits_of(shared, params), logits_of(whole, same))
    of_loss = lambda model: jax.jit(jax.grad(lambda p: jnp.sin(logits_of(model, p)).sum()))
    ours, theirs = of_loss(shared)(params), of_loss(whole)(same)
    for own, other in (("block_0", "block_2"), ("block_1", "block_3")):
        total = jax.tree.map(jnp.add, theirs[own], theirs[other])
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
        jax.tree.map(close, ours[own], total)
    sites = capture(shared, params, {"tokens": TOKENS}, "block_*.residual")
    assert list(sites) == [f"block_{block}.residual" for block in range(4)]
    _, drop = shared.with_options(dropout_rate=0.5).apply(
        {"params": params},
        TOKENS,
        train=True,
        rngs={"dropout": jax.random.key(0)},
        mutable=["intermediates"],
        capture_intermediates=lambda module, _: type(module).__name__ == "Dropout",
    )
    blocks = (drop["intermediates"][f"block_{block}"]["Dropout_0"] for block in (0, 2))
    zeros = [np.asarray(block["__call__"][0]) == 0 for block in blocks]
    assert (zeros[0] != zeros[1]).any(), "blocks that share parameters draw dropout of their own"


@pytest.mark.parametrize(
    ("skips", "reads"),
    [
        ("none", [(), (), (), (), ()]),
        ("mirrored", [(), (), (), (1,), (0,)]),
        ("embedding", [(), (0,), (0,), (0,), (0,)]),
        ("dense", [(), (0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)]),
    ],
)
def test_skips_add_earlier_streams_times_learned_numbers(skips, reads):
    model = Decoder.of(**{**SMALL, "depth": 5}, skips=skips)
    assert [spec.reads for spec in block_specs(model.options)] == reads
    shallow = block_specs(model.with_options(depth=4).options)
    assert shallow[2].reads == {"mirrored": (1,)}.get(skips, reads[2])
    if skips == "none":
        return
    initial, params = model.init(jax.random.key(0), TOKENS)["params"], drawn(model)
    names = ("embedded", "block_*.residual", "block_*.attention.out", "block_*.feed_forward.out")
    seen = capture(model, params, {"tokens": TOKENS}, *names)
    before = [seen["embedded"], *(seen[f"block_{block}.residual"] for block in range(5))]
    gains_in = lambda params, block: params.get(f"skip_{block}", {}).get("gain", np.zeros(0))
    for block, streams in enumerate(reads):
        start = np.full(len(streams), entry_of(SKIPS, skips)().initial)
        np.testing.assert_array_equal(gains_in(initial, block), start)
        pairs = zip(gains_in(params, block), streams, strict=True)
        total = before[block] + sum(gain * before[stream] for gain, stream in pairs)
        total += seen[f"block_{block}.attention.out"] + seen[f"block_{block}.feed_forward.out"]
        np.testing.assert_allclose(total, before[block + 1], rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
def test_other_transformers_have_layers_too():
    encoder = Encoder.of(**SMALL, num_classes=3, layers="LG", layer_types=LOCAL)
    assert logits_of(encoder, drawn(encoder)).shape == (2, 3)
    both = EncoderDecoder.of(**SMALL, layers="LG", layer_types=LOCAL, distinct_blocks=2)
    params = drawn(both)
    assert {"block_0", "block_1"} == {name for name in params["encoder"] if "block" in name}


NOT_ADDED = {"layers": "LN", "layer_types": {**LOCAL, "N": {"position": "none"}}}
ADDED = {"layers": "LN", "layer_types": {"N": {"position": "sinusoidal"}}, "position": "rotary"}
NOWHERE = {"layers": "N", "layer_types": {"N": {"position": "none"}}, "position": "t5"}
NO_SCORES = {"layers": "SA", "layer_types": {"S": {"mixer": "state_space"}}, "position": "rotary"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"layers": "LG", "layer_types": {"X": {}}}, "no block has type 'X' in layers='LG'; "),
        ({"layers": ("L", "G")}, "layers: expected letters"),
        ({"layers": "L", "layer_types": {"L": 3}}, "L: expected a dict of fields, got 3"),
        ({"distinct_blocks": 0}, "expected an integer >= 1, or None, got 0"),
        ({"distinct_blocks": 2, "sharing": "zig"}, "expected one of: cycle, sequence, got 'zig'"),
        ({"layers": "L G", "layer_types": LOCAL}, "layers: expected letters"),
        ({"layer_types": LOCAL}, "no block has type 'L' in layers=''"),
        ({"layers": "LG", "layer_types": {"L": {"width": 3}}}, r"L\.width: expected one of mask, "),
        ({"distinct_blocks": 5}, "expected 1 to depth 4, got 5"),
        (
            {"layers": "LG", "layer_types": LOCAL, "distinct_blocks": 3},
            "block 3 of type G would share the parameters of block 0, of type L",
        ),
        (NOT_ADDED, r"N\.position='none': 'learned' is added to the embeddings, once for all"),
        (ADDED, "'sinusoidal' is added to the embeddings"),
        (NOWHERE, "no layer uses 't5'"),
        (NO_SCORES, "no scores to which positions could be added"),
    ],
)
def test_layers_without_a_meaning_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(Decoder.of(**SMALL | fields).init, jax.random.key(0), TOKENS)


def test_a_type_that_looks_ahead_keeps_no_cache():
    model = Decoder.of(**SMALL, layers="DM", layer_types={"M": {"mask": "prefix"}})
    assert not model.can_cache()
    with pytest.raises(ValueError, match=r"that hide later positions, got 'full', 'prefix'"):
        model.apply({"params": drawn(model)}, TOKENS, mutable=["cache"])
    assert Decoder.of(**SMALL, layers="LG", layer_types=LOCAL).can_cache()


OPTIONS = {
    "model__layers": "LG",
    "model__layer_types__L__mask": "window",
    "model__layer_types__L__mask_options__size": 3,
}


def test_options_of_a_type_are_checked_stored_and_reach_its_blocks():
    config = tiny_config(**OPTIONS, model__layer_types__G__num_kv_heads=2)
    again = from_json(to_json(config), "stored")
    assert flatten(again) == resolved(config)
    model = make_model(again, {"vocab_size": 11})
    types = {spec.letter: spec.options for spec in block_specs(model.options)}
    local, globally = types["L"], types["G"]
    assert (local.mask, dict(local.mask_options)) == ("window", {"size": 3})
    assert (globally.mask, globally.num_kv_heads, local.num_kv_heads) == ("full", 2, None)
    plain = make_model(tiny_config(), {"vocab_size": 11})
    assert count_parameters(model) < count_parameters(plain)  # fewer key and value heads


BOTH = {"model__layer_types__G__mixer": "state_space", "model__layer_types__G__attention": "linear"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model__layer_types__G__maks": "full"}, r"did you mean model\.layer_types\.G\.mask\?"),
        ({"model__layer_types__G__mask": "windw"}, r"G\.mask=windw: .* did you mean window\?"),
        ({"model__layer_types__G__width": "8"}, "a type of layer has no such option"),
        ({"model__sharing": "sequence"}, "all blocks have their own parameters"),
        ({"model__layer_types__LG__mask": "full"}, "no such option"),
        ({"model__layers": "L-G"}, r"expected letters.*e\.g\. model\.layers=LLLG"),
        (BOTH, r"type G: model\.mixer=state_space.* replaces self-attention.*attention=linear"),
        ({"model__parametrisation": "mup"}, "requires blocks that are alike"),
        ({"model__architecture": "recurrent_decoder"}, "recurrent_decoder has no blocks"),
    ],
)
def test_wrong_options_of_types_are_refused(options, words):
    with pytest.raises(InvalidInput, match=words):
        tiny_config(**OPTIONS | options)


@pytest.mark.thorough
def test_a_hybrid_with_a_mixer_of_ones_own_trains_and_asks_before_it_is_read(tmp_path, monkeypatch):
    template = ROOT / "experiments" / "templates" / "mixer.py"
    (tmp_path / "own_mixing.py").write_text(template.read_text())
    monkeypatch.chdir(tmp_path)
    changes = {"model__position": "none", "model__layers": "MA", "training__steps": 4}
    changes |= {"schedule__name": "constant", "checkpoint__every": 2}
    config = tiny_config(**changes, model__layer_types__M__mixer="own_mixing:Mine")
    last = train(config, "run", Silent())
    assert train(config, "run", Silent()) == last
    stored = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert list(stored["own_rows"]) == ["own_mixing:Mine"]
    with pytest.raises(InvalidInput, match="--allow=own_mixing"):
        load_run("run")
    assert load_run("run", allow=["own_mixing"]).sample("a", num_tokens=3)
    with pytest.raises(InvalidInput, match="own_mixing:Nine"):
        tiny_config(**changes, model__layer_types__M__mixer="own_mixing:Nine")
