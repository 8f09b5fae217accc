"""Cells are found by what they compute."""

import dataclasses
import shutil

from tests.conftest import TINY, tiny_config
from transformer_jax.config_files import changed, flatten, load_config
from transformer_jax.runs import provenance
from transformer_jax.studies import cells
from transformer_jax.studies.arms import digest_of
from transformer_jax.studies.cells import cell_hash, options_read
from transformer_jax.training.prepared import prepare

DEVICE = {"kind": "cpu", "platform": "cpu", "count": 1}
AROUND = {"device": DEVICE, "packages": {"jax": "1"}, "environment": {}}


def hashed(config=None, data="x", members=1, initial=None, **changes):
    config = config or tiny_config()
    return cell_hash(config, data, members, {**AROUND, **changes}, initial)[0]


def test_the_code_of_a_run_is_all_of_the_package(tmp_path, monkeypatch):
    copy, before = tmp_path / "transformer_jax", cells.code_hash()
    shutil.copytree(cells.PACKAGE, copy)
    monkeypatch.setattr(cells, "PACKAGE", copy)
    hash_now = cells.code_hash.__wrapped__
    assert hash_now() == before
    with (copy / "attention.py").open("a") as opened:
        opened.write("\nADDED = 1\n")
    assert hash_now() != before


def test_the_hash_covers_what_decides_and_nothing_else(monkeypatch):
    base = hashed()
    gpu = {"kind": "H200", "platform": "gpu", "count": 1}
    assert hashed(tiny_config(seed=5)) == base
    assert hashed(tiny_config(logging__every=1, checkpoint__keep=1)) == base
    assert hashed(tiny_config(optimizer__momentum=0.5)) == base, "adamw reads none of it"
    assert hashed(packages={"jax": "1", "orbax-checkpoint": "2"}) == base
    assert hashed(device=gpu) == hashed(device={**gpu, "count": 8})
    others = [
        hashed(data="y"),
        hashed(tiny_config(seeds__order=1)),
        hashed(tiny_config(model__init_std=0.03)),
        hashed(tiny_config(optimizer__learning_rate=0.003)),
        hashed(tiny_config(evaluation__stride=8)),
        hashed(tiny_config(training__steps=51)),
        hashed(members=8),
        hashed(device=gpu),
        hashed(device={**DEVICE, "count": 2}),
        hashed(packages={"jax": "2"}),
        hashed(packages={"jax": "1", "optax": "2"}),
        hashed(environment={"JAX_ENABLE_X64": "1"}),
        hashed(initial={"weights": "abc"}),
    ]
    assert len({base, *others}) == 1 + len(others)
    monkeypatch.setattr(cells, "NUMERICS", provenance.NUMERICS + 1)
    assert hashed() != base


def test_a_default_that_is_written_out_is_no_other_option():
    flat = flatten(tiny_config())
    given = {key: str(value) for key, value in flat.items() if key.startswith("optimizer.adamw")}
    given["sample.num_tokens"] = "0"
    assert options_read(flatten(load_config(TINY, given))) == options_read(flat)


def test_options_of_a_component_count_where_it_is_chosen():
    other = {"model.mask_options.size": 3}
    plain = load_config(TINY, {})
    assert hashed(changed(plain, other)) == hashed(plain)
    window = changed(plain, {"model.mask": "window"})
    assert hashed(changed(window, other)) != hashed(window)


def test_what_a_matched_model_is_made_from_counts():
    """The size of another architecture is matched, whose options are read too."""
    task = {"data__task": "text_classification", "data__source": "movie_snippets"}
    nets = {"model__architecture": "recurrent_encoder", "model__match_parameters": "encoder"}
    mean, first = (tiny_config(**task, **nets, model__pooling=p) for p in ("mean", "class_token"))
    assert hashed(mean) != hashed(first)


def test_a_digest_is_of_what_the_data_gives(monkeypatch):
    task = prepare(tiny_config()).task
    base, kind = digest_of(task), type(task)
    assert digest_of(dataclasses.replace(task)) == base
    batch, evaluated = kind.batch, kind.evaluation_batches
    with monkeypatch.context() as patched:
        patched.setattr(kind, "batch", lambda self, seed, n: batch(self, seed, n + (n > 99)))
        otherwise_ordered = digest_of(task)
    monkeypatch.setattr(kind, "evaluation_batches", lambda *a: list(evaluated(*a))[:-1])
    assert len({base, otherwise_ordered, digest_of(task)}) == 3
