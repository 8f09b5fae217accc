"""What the course's questions switch on and off does what it says, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import attempt, fingerprint_of, random_params, refused, tiny_config, tree_hash
from transformer_jax import MultiHeadAttention, scaled_dot_product_attention
from transformer_jax.layers.pooling import AllPlaces
from transformer_jax.layers.projections import PROJECTIONS
from transformer_jax.models import Decoder, Encoder, EncoderDecoder, VisionTransformer
from transformer_jax.runs.progress import Silent
from transformer_jax.studies.asking.design import load_design
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.judging.decision import Evidence, decide
from transformer_jax.studies.running.launch import run
from transformer_jax.training.loop import train

TOKENS = jax.random.randint(jax.random.key(0), (3, 6), 0, 11)
SMALL = {"vocab_size": 11, "max_length": 6, "width": 8, "depth": 2, "num_heads": 2}


# ---------------------------------------------------------------- projections


@pytest.mark.parametrize("name", PROJECTIONS)
def test_projections_are_what_they_say(name):
    inputs = jax.random.normal(jax.random.key(3), (5, 8))
    attend = MultiHeadAttention(num_heads=2, use_bias=False, projections=PROJECTIONS[name])
    params = random_params(attend, inputs)
    kernels = {part: params[part]["kernel"] for part in params}
    wanted = {
        "separate": {"query", "key", "value", "out"},
        "shared_query_key": {"query", "value", "out"},
        "no_value": {"query", "key", "out"},
        "identity": {"out"},
    }[name]
    assert set(kernels) == wanted
    own = jnp.eye(8)
    query = kernels.get("query", own)
    key = query if name == "shared_query_key" else kernels.get("key", own)
    value = kernels.get("value", own)
    heads = [
        scaled_dot_product_attention(
            *(inputs @ k[:, 4 * h : 4 * h + 4] for k in (query, key, value))
        )
        for h in range(2)
    ]
    expected = jnp.concatenate(heads, axis=-1) @ kernels["out"]
    np.testing.assert_allclose(attend.apply({"params": params}, inputs), expected, atol=1e-5)


def test_shared_maps_are_used_for_both_sides_of_cross_attention():
    inputs, memory = (jax.random.normal(jax.random.key(n), (4, 8)) for n in (1, 2))
    attend = MultiHeadAttention(1, use_bias=False, projections=PROJECTIONS["shared_query_key"])
    params = random_params(attend, inputs, memory)
    kernels = {part: params[part]["kernel"] for part in params}
    expected = scaled_dot_product_attention(
        inputs @ kernels["query"], memory @ kernels["query"], memory @ kernels["value"]
    )
    got = attend.apply({"params": params}, inputs, memory)
    np.testing.assert_allclose(got, expected @ kernels["out"], atol=1e-5)


# ---------------------------------------------------------------- positions, masks, pooling


@pytest.mark.thorough
def test_positions_in_every_layer_are_added_before_each_block():
    once, often = (Decoder(**SMALL, position_in_every_layer=flag) for flag in (False, True))
    params = random_params(once, tokens=TOKENS)
    assert jax.tree.structure(params) == jax.tree.structure(random_params(often, tokens=TOKENS))
    at_input, everywhere = (m.apply({"params": params}, TOKENS) for m in (once, often))
    assert np.abs(at_input - everywhere).max() > 0.01
    without = {
        **params,
        "positions": {"embedding": jnp.zeros_like(params["positions"]["embedding"])},
    }
    first, second = (m.apply({"params": without}, TOKENS) for m in (once, often))
    np.testing.assert_array_equal(first, second)
    one = SMALL | {"depth": 1}
    shallow = {name: leaf for name, leaf in params.items() if name != "block_1"}
    first, second = (
        Decoder(**one, position_in_every_layer=flag).apply({"params": shallow}, TOKENS)
        for flag in (False, True)
    )
    np.testing.assert_array_equal(first, second)


@pytest.mark.thorough
def test_a_causal_encoder_and_an_unmasked_decoder():
    encoder = Encoder(**SMALL, num_classes=0, mask="causal")
    params = random_params(encoder, tokens=TOKENS)
    changed = TOKENS.at[:, 4].add(1) % 11
    before, after = (encoder.apply({"params": params}, t) for t in (TOKENS, changed))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.abs(before[:, 4:] - after[:, 4:]).max() > 0.01
    leaking = Decoder(**SMALL, mask="unmasked")
    params = random_params(leaking, tokens=TOKENS)
    before, after = (leaking.apply({"params": params}, t) for t in (TOKENS, changed))
    assert np.abs(before[:, 0] - after[:, 0]).max() > 1e-3


def test_flattening_keeps_every_place_and_zeroes_padding():
    hidden = jax.random.normal(jax.random.key(0), (2, 3, 4))
    np.testing.assert_array_equal(AllPlaces()(hidden), hidden.reshape(2, 12))
    is_token = jnp.array([[True, True, False], [True, False, False]])
    kept = AllPlaces()(hidden, is_token).reshape(2, 3, 4)
    assert (kept[0, 2] == 0).all()
    np.testing.assert_array_equal(kept[0, :2], hidden[0, :2])
    images = jax.random.normal(jax.random.key(1), (2, 8, 4, 3))
    vision = VisionTransformer(
        image_shape=(8, 4, 3), num_classes=5, width=8, depth=1, num_heads=2, pooling="flatten"
    )
    params = random_params(vision, images=images)
    assert params["head"]["kernel"].shape == (2 * 8, 5)
    assert vision.apply({"params": params}, images).shape == (2, 5)


def test_without_cross_attention_the_source_does_not_matter():
    model = EncoderDecoder(**SMALL, cross_attention=False)
    params = random_params(model, source=TOKENS, tokens=TOKENS)
    assert "cross_attention" not in str(jax.tree_util.tree_structure(params))
    ours, other = (
        model.apply({"params": params}, source, TOKENS) for source in (TOKENS, (TOKENS + 3) % 11)
    )
    np.testing.assert_array_equal(ours, other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("model.projections=identity", "model.num_kv_heads=1"), ("of one size", "num_kv_heads=1")),
        (("model.position=rotary", "model.position_in_every_layer=True"), ("adds nothing",)),
        (("model.projections=idntity",), ("did you mean identity",)),
    ],
)
def test_what_means_nothing_together_is_refused(changes, words):
    given = [f"--config.{change}" for change in changes]
    refused(attempt("train", "--config=configs/tiny.py", "--workdir=x", *given), *words)


def test_a_leak_is_announced(tmp_path):
    short = ("--config.training.steps=12", "--config.model.mask=unmasked")
    done = attempt("train", "--config=configs/tiny.py", f"--workdir={tmp_path / 'a'}", *short)
    assert done.returncode == 0, done.stderr
    assert "shows this decoder the answers" in done.stdout


# ---------------------------------------------------------------- seeds apart


def trained(folder, **changes):
    short = {"training__steps": 12, "model__dropout_rate": 0.1}
    train(tiny_config(**short, **changes), folder, Silent())
    return fingerprint_of(folder)


@pytest.mark.thorough
@pytest.mark.usefixtures("one_program")
def test_seeds_are_drawn_apart(tmp_path):
    """All three given are the one seed; each alone changes the run, and in its own way."""
    one = trained(tmp_path / "one", seed=3)
    three = {f"seeds__{name}": 3 for name in ("initial", "order", "dropout")}
    assert trained(tmp_path / "three", seed=8, **three)[1:] == one[1:]
    others = {
        name: trained(tmp_path / name, seed=3, **{f"seeds__{name}": 8})
        for name in ("initial", "order", "dropout")
    }
    losses = {name: rows[0]["train/loss"] for name, (_, _, rows) in others.items()}
    assert len({one[1], *(found[1] for found in others.values())}) == 4
    assert len({one[2][0]["train/loss"], *losses.values()}) == 4


@pytest.mark.usefixtures("one_program")
def test_a_perturbation_is_of_its_size(tmp_path):
    from transformer_jax.training.warm_start import perturbed

    params = {"a": jnp.ones((50, 50)), "b": jnp.full(9, -3.0)}
    assert tree_hash(perturbed(params, 0.0)) == tree_hash(params)
    moved = perturbed(params, 1e-3)["a"] - 1
    assert np.std(moved) == pytest.approx(1e-3, rel=0.1)
    plain, changed = (
        trained(tmp_path / name, seeds__perturbation=size)
        for name, size in (("plain", 0.0), ("changed", 1e-4))
    )
    assert plain[1] != changed[1]
    first, second = (rows[-1]["train/loss"] for _, _, rows in (plain, changed))
    assert first == pytest.approx(second, abs=1e-2)


@pytest.mark.thorough
def test_free_running_trains_and_is_refused_where_nothing_is_written(tmp_path):
    exact = {"data__task": "synthetic", "data__source": "copy"}
    free_running = {
        "objective__name": "scheduled_sampling",
        "objective__scheduled_sampling__share": 1.0,
    }
    teacher, free = (
        trained(tmp_path / name, **given, **exact)
        for name, given in (("teacher", {}), ("free", free_running))
    )
    assert teacher[1] != free[1]
    given = ("--config=configs/movies.py", f"--workdir={tmp_path / 'x'}")
    refused(
        attempt("train", *given, "--config.objective.name=scheduled_sampling"), "writes nothing"
    )


# ---------------------------------------------------------------- studies of synthetic tasks


@pytest.mark.thorough
def test_a_study_of_a_synthetic_task_knows_distances_and_the_floor(tmp_path):
    changes = {
        "data.task": "synthetic",
        "data.source": "agreement",
        "training.steps": "12",
        "evaluation.every": "6",
    }
    design = load_design("configs/tiny.py", changes, ("model.position=learned,none",))
    study = run(design, tmp_path / "runs" / "study", range(3), progress=Silent())
    found = study.verdicts()["by_distance"]
    assert set(found) == {"position=learned", "position=none"}
    assert all(set(by) == {"1", "4", "7", "10", "13"} for by in found.values())
    assert all(len(shares) == 3 for by in found.values() for shares in by.values())
    page = (tmp_path / "runs" / "study" / "report.html").read_text()
    assert '"floor": 0.0' in page
    assert "accuracy by distance" in page
    assert (tmp_path / "runs" / "study" / "curves.svg").exists()


def test_equal_because_perfect_is_told_from_changes_that_did_nothing():
    def words(value, metric):
        same = {seed: Outcome(value) for seed in range(3)}
        sealed = {"arms": {"base": {}, "arm": {}}, "base": "base", "metric": metric, "margin": 0.1}
        sealed |= {"larger_is_better": metric == "accuracy", "tuning": None}
        (found,) = decide(sealed, {"arm": Evidence(same, same, 0.05)}, {"arm": []}).values()
        return found["words"]

    assert words(1.0, "accuracy").startswith("identical: every answer of both is right")
    assert words(0.9, "accuracy").startswith("identical: the change did nothing")
    assert words(1.0, "loss").startswith("identical: the change did nothing")
