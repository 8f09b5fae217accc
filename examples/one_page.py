"""One page from attention to a trained model: a decoder learns the letters of tiny Shakespeare.

    python examples/one_page.py [--steps=300]

Everything is a module or a function of transformer_jax; nothing here reads a config or writes a
file. `python -m experiments.train` does the same with resume, evaluation, records and refusals.
Takes about half a minute on 2 CPU cores.
"""

import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer_jax import causal_mask
from transformer_jax.attention import MultiHeadAttention
from transformer_jax.data.tasks.language_modelling import LanguageModelling
from transformer_jax.generation import generate_from
from transformer_jax.models import Decoder
from transformer_jax.training.evaluation import evaluate, make_score
from transformer_jax.training.step import draw_state, make_run_steps, make_train_step

LENGTH, BATCH, SEED = 64, 12, 0  # tokens of a window, windows of an update


def attention_by_itself() -> None:
    """One layer of attention: each position gathers from those before it, and from no other."""
    inputs_BLD = jax.random.normal(jax.random.key(SEED), (2, 5, 16))
    attention = MultiHeadAttention(num_heads=4)
    variables = attention.init(jax.random.key(1), inputs_BLD)
    outputs_BLD, seen = attention.apply(
        variables, inputs_BLD, mask=causal_mask(5), mutable=["intermediates"]
    )
    (weights_BHLM,) = seen["intermediates"]["weights"]
    print(f"attention  {inputs_BLD.shape} -> {outputs_BLD.shape}, weights {weights_BHLM.shape}")
    print(np.round(np.asarray(weights_BHLM[0, 0]), 2))


def read_text() -> LanguageModelling:
    """The text as batches: `task.batch(seed, step)` is windows and their next characters."""
    return LanguageModelling.load(
        source="shakespeare",
        tokenizer="char",
        vocab_size=0,  # a character tokenizer takes what it finds
        document_separator=None,
        separate_documents=False,
        splits=(0.9, 0.05, 0.05),
        length=LENGTH,
        batch_size=BATCH,
        stride=None,
    )


def train(model: nn.Module, task: LanguageModelling, steps: int) -> dict:
    """Takes the updates, many in one compiled program, and returns the parameters."""
    rate = optax.warmup_cosine_decay_schedule(0.0, 4e-3, min(100, steps // 2), steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.99))
    optimizer = optax.with_extra_args_support(optimizer)
    state = draw_state(model, optimizer, SEED)
    run_steps = jax.jit(make_run_steps(make_train_step(model, optimizer, SEED)))
    ahead = min(50, steps)
    for first in range(0, steps, ahead):
        batches = [task.batch(SEED, first + step) for step in range(ahead)]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
        count = min(ahead, steps - first)
        state, records = run_steps(state, stacked, np.int32(count))
        print(f"step {first + count:5d}  loss {records.loss[:count].mean():.3f} nats a character")
    return state.params


def main() -> float:
    """Shows attention, trains a decoder, scores it, and lets it write; returns the test loss."""
    parser = argparse.ArgumentParser(description="A decoder on one page.")
    parser.add_argument("--steps", type=int, default=300, help="optimizer updates (300)")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps={arguments.steps}: expected at least 1")
    attention_by_itself()
    task = read_text()
    model = Decoder.of(
        **task.sizes, max_length=LENGTH, width=128, depth=4, num_heads=4, init_std=0.06
    )
    params = train(model, task, arguments.steps)
    loss = evaluate(make_score(model), params, task, "test", 64).means["loss"]
    print(f"test loss  {loss:.3f} nats a character")
    prompt = jnp.asarray(task.tokenizer.encode("ROMEO:"))
    drawn = generate_from(
        model, params, prompt, jax.random.key(SEED), num_tokens=120, temperature=0.8
    )
    print("ROMEO:" + task.tokenizer.decode(drawn.tolist()))
    return loss


if __name__ == "__main__":
    main()
