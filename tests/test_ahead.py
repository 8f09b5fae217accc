"""Batches that are made while a device computes are those that are made when they are asked for."""

import functools
import threading
import time

import numpy as np
import pytest

from transformer_jax.training.ahead import BatchesAhead, in_one_call, meanwhile


class Maker:
    """Counts who makes which batch, and fails at one step as often as it is asked."""

    def __init__(self, fails_at=None):
        self.made, self.fails_at = [], fails_at

    def __call__(self, step):
        self.made.append((step, threading.current_thread() is threading.main_thread()))
        if step == self.fails_at:
            raise ValueError(f"no batch {step}")
        return {"weights": np.full(2, step)}


def made_ahead(ahead, steps):
    return meanwhile(functools.partial(ahead.make, step) for step in steps)


def wait_for(maker, count):
    for _ in range(1000):
        if len(maker.made) >= count:
            return
        time.sleep(0.005)


def test_what_was_made_meanwhile_is_not_made_again():
    maker = Maker()
    ahead = BatchesAhead(maker)
    with made_ahead(ahead, range(3, 5)):
        wait_for(maker, 2)
    batches = ahead.take(range(3, 4)) + ahead.take(range(4, 6))
    assert [int(batch["weights"][0]) for batch in batches] == [3, 4, 5]
    assert maker.made == [(3, False), (4, False), (5, True)]
    ahead.take(range(3, 4))  # what was taken is gone
    assert maker.made[-1] == (3, True)


def test_nothing_is_made_once_the_device_is_done():
    maker = Maker()
    ahead = BatchesAhead(lambda step: time.sleep(0.01) or maker(step))
    with made_ahead(ahead, range(1000)):
        wait_for(maker, 1)
    count = len(maker.made)
    time.sleep(0.05)
    assert 1 <= len(maker.made) == count < 1000
    assert not any(thread.name == "batches ahead" for thread in threading.enumerate())


def test_a_batch_that_fails_is_told_where_it_is_taken():
    ahead = BatchesAhead(Maker(fails_at=1))
    with made_ahead(ahead, range(1, 3)):
        pass
    with pytest.raises(ValueError, match="no batch 1"):
        ahead.take([1])


def test_unused_places_of_a_call_are_nothing():
    call = in_one_call([{"a": np.ones((2, 3), np.int32)}, {"a": np.full((2, 3), 2, np.int32)}], 4)
    assert call["a"].shape == (4, 2, 3)
    assert call["a"].dtype == np.int32
    assert call["a"][:, 0, 0].tolist() == [1, 2, 0, 0]
