"""Two programs, the same bits: compiled as users' programs are, with emitters."""

import jax

from tests.test_step import leaves_equal, random_batch, setup
from transformer_jax.training.step import make_run_steps, make_train_step


def test_single_steps_give_the_same_bits_as_the_loop():
    config, model, optimizer, state = setup()
    batches = random_batch(0, 4)
    train_step = make_train_step(model, optimizer, 0)
    whole, _ = jax.jit(make_run_steps(train_step))(state, batches, 4)
    one = jax.jit(train_step)
    for index in range(4):
        state, _ = one(state, jax.tree.map(lambda leaf, i=index: leaf[i], batches))
    leaves_equal(whole, state)
