"""muP: under it no place's size goes with the width; configs/ablations/mup.py asks of the rate."""

from types import SimpleNamespace

import pytest

from tests.conftest import attempt, refused, tiny_config
from transformer_jax.training.coordinate_check import _at_width, coordinate_check

WIDTHS = (32, 64, 128)
STEPS = {"schedule__name": "constant", "optimizer__learning_rate": 0.01}


def slopes(parametrisation):
    config = tiny_config(
        model__parametrisation=parametrisation,
        model__parametrisation_options__base_width=32,
        model__depth=1,
        **STEPS,
    )
    places = coordinate_check(config, WIDTHS, steps=4)
    assert {"block_0", "block_0/attention", "block_0/feed_forward", "logits"} == set(places)
    return {name: place.slopes(WIDTHS) for name, place in places.items()}


@pytest.mark.thorough
def test_activations_do_not_drift_with_the_width_under_mup_and_do_without():
    for name, (size, change) in slopes("mup").items():
        assert abs(size) < 0.2, name
        assert abs(change) < 0.2, name
    standard = slopes("standard")
    assert standard["logits"][1] > 0.3
    assert standard["block_0"][1] > 0.8


def test_heads_of_a_given_size_grow_in_number():
    """Else what leads out of attention would read no more features than before."""
    config = tiny_config(model__head_dim=8, model__num_heads=4, model__width=32)
    assert _at_width(config, 128).model.num_heads == 16
    assert _at_width(tiny_config(), 128).model.num_heads == tiny_config().model.num_heads
    with pytest.raises(ValueError, match=r"is fixed, and model\.num_heads="):
        _at_width(config, 33)


def test_the_command_refuses_what_is_no_width():
    config = "--config=configs/tiny.py"
    refused(attempt("coordinates", config, "--widths=32"), "--widths=32", "two widths")
    refused(attempt("coordinates", config, "--widths=32,a"), "--widths=32,a", "integers")
    refused(attempt("coordinates", config, "--widths=32,\N{SUPERSCRIPT TWO}"), "integers")
    refused(attempt("coordinates", config, "--widths=32,33"), "33 is not a multiple of")


def test_sizes_that_are_no_numbers_go_with_the_width(monkeypatch):
    place = SimpleNamespace(rms=[1.0, float("nan")], slopes=lambda _: (float("nan"), 0.0))
    check = "transformer_jax.training.coordinate_check.coordinate_check"
    monkeypatch.setattr(check, lambda *_: {"logits": place})
    done = attempt("coordinates", "--config=configs/tiny.py", "--widths=16,32")
    assert "1 of 1 places change with the width" in done.stdout, done
