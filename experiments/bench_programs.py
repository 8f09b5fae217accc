"""Programs for `experiments.bench`: the same training step and generation in several libraries.

Every program has a decoder with tied embeddings, no biases, GELU and pre-norm, and random tokens;
training uses AdamW with weight decay and clipping by global norm. TRAINERS train and evaluate;
WRITERS generate.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

Repeat = Callable[[int], None]


class Trainer(NamedTuple):
    """Functions of a training program to be timed; each returns when its work is done.

    Attributes:
      take: Runs a number of updates.
      score: Computes the mean loss of a number of batches, without gradients.
    """

    take: Repeat
    score: Repeat


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of the model and of its training batches."""

    depth: int = 4
    num_heads: int = 4
    width: int = 128
    length: int = 64
    batch_size: int = 12
    vocab_size: int = 65


SHAPES = {
    "small": Shape(),  # nanoGPT's published CPU example
    "large": Shape(depth=6, num_heads=6, width=384, length=256, batch_size=64),
    "gpt2": Shape(depth=12, num_heads=12, width=768, length=1024, batch_size=16, vocab_size=50_304),
}
_LEARNING_RATE, _DECAY, _BETAS, _CLIP = 1e-3, 0.1, (0.9, 0.99), 1.0
_CHUNK = 10
_PROMPT = 16


def _tokens(shape: Shape) -> np.ndarray:
    size = (_CHUNK, shape.batch_size, shape.length + 1)
    return np.random.default_rng(0).integers(0, shape.vocab_size, size, dtype=np.int32)


def _optax_adamw():
    import optax

    adamw = optax.adamw(_LEARNING_RATE, *_BETAS, weight_decay=_DECAY)
    return optax.chain(optax.clip_by_global_norm(_CLIP), adamw)


def our_decoder(shape: Shape, dtype: str) -> Any:
    """Returns this package's `Decoder` with these sizes."""
    import jax.numpy as jnp

    from transformer_jax import Decoder

    return Decoder.of(
        vocab_size=shape.vocab_size,
        max_length=shape.length,
        width=shape.width,
        depth=shape.depth,
        num_heads=shape.num_heads,
        use_bias=False,
        attention="fused",
        dtype=jnp.dtype(dtype),
    )


def ours(shape: Shape, dtype: str) -> Trainer:
    """Returns a trainer for our `Decoder`, with ten steps in each call of a compiled program."""
    import jax

    from transformer_jax.training.evaluation import make_score
    from transformer_jax.training.step import draw_state, make_run_steps, make_train_step

    model = our_decoder(shape, dtype)
    optimizer, tokens = _optax_adamw(), _tokens(shape)
    state = jax.jit(lambda: draw_state(model, optimizer, 0))()
    batches = {
        "inputs": {"tokens": tokens[..., :-1]},
        "targets": tokens[..., 1:],
        "weights": np.ones(tokens[..., 1:].shape, np.float32),
    }
    run_steps = jax.jit(make_run_steps(make_train_step(model, optimizer, 0)), donate_argnums=0)

    def take(num_steps: int) -> None:
        nonlocal state
        for first in range(0, num_steps, _CHUNK):
            state, _ = run_steps(state, batches, min(_CHUNK, num_steps - first))
        jax.block_until_ready(state)

    score_batch = make_score(model)

    def score(count: int) -> None:
        for index in range(count):
            batch = jax.tree.map(lambda leaf, at=index % _CHUNK: leaf[at], batches)
            jax.block_until_ready(score_batch(state.params, batch))

    return Trainer(take, score)


def linen(shape: Shape, dtype: str) -> Trainer:
    """Returns a trainer in plain flax.linen with jax.nn's attention, one jitted step per call."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import optax

    compute = jnp.dtype(dtype)
    init = nn.initializers.normal(0.02)

    def dense(features: int) -> nn.Dense:
        return nn.Dense(features, use_bias=False, kernel_init=init, dtype=compute)

    class PlainBlock(nn.Module):
        @nn.compact
        def __call__(self, inputs):
            hidden = nn.LayerNorm(use_bias=False, dtype=compute)(inputs)
            heads = (*hidden.shape[:-1], shape.num_heads, -1)
            parts = jnp.split(dense(3 * shape.width)(hidden), 3, axis=-1)
            query, key, value = (part.reshape(heads) for part in parts)
            mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
            hidden = inputs + dense(shape.width)(mixed.reshape(inputs.shape))
            normed = nn.LayerNorm(use_bias=False, dtype=compute)(hidden)
            up = nn.gelu(dense(4 * shape.width)(normed), approximate=False)
            return hidden + dense(shape.width)(up)

    class PlainDecoder(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            embed = nn.Embed(
                shape.vocab_size, shape.width, embedding_init=init, dtype=compute, name="embed"
            )
            table = self.param("positions", init, (shape.length, shape.width))
            hidden = embed(tokens) + table.astype(compute)
            for _ in range(shape.depth):
                hidden = PlainBlock()(hidden)
            return embed.attend(nn.LayerNorm(use_bias=False, dtype=compute)(hidden))

    model, optimizer, tokens = PlainDecoder(), _optax_adamw(), _tokens(shape)
    params = jax.jit(model.init)(jax.random.key(0), tokens[0, :1, :-1])["params"]
    state = (params, jax.jit(optimizer.init)(params))

    def loss(params, batch):
        logits = cast(jax.Array, model.apply({"params": params}, batch[:, :-1]))
        logits = logits.astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()

    @jax.jit
    def step(state, batch):
        params, opt_state = state
        gradients = jax.grad(loss)(params, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    def take(num_steps: int) -> None:
        nonlocal state
        for index in range(num_steps):
            state = step(state, tokens[index % _CHUNK])
        jax.block_until_ready(state)

    compiled_loss = jax.jit(loss)

    def score(count: int) -> None:
        for index in range(count):
            jax.block_until_ready(compiled_loss(state[0], tokens[index % _CHUNK]))

    return Trainer(take, score)


def torch_eager(shape: Shape, dtype: str, wrap: Callable = lambda model: model) -> Trainer:
    """Returns a PyTorch trainer: nanoGPT's architecture, fused attention, fused AdamW on a GPU."""
    import torch
    from torch import nn
    from torch.nn import functional

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if device == "cuda" else "highest")

    class TorchBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = shape.width
            self.norm_1 = nn.LayerNorm(width, bias=False)
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.out = nn.Linear(width, width, bias=False)
            self.norm_2 = nn.LayerNorm(width, bias=False)
            self.up = nn.Linear(width, 4 * width, bias=False)
            self.down = nn.Linear(4 * width, width, bias=False)

        def forward(self, inputs):
            batch, length, width = inputs.shape
            parts = self.qkv(self.norm_1(inputs)).split(width, dim=2)
            query, key, value = (
                part.view(batch, length, shape.num_heads, -1).transpose(1, 2) for part in parts
            )
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            mixed = mixed.transpose(1, 2).contiguous().view(batch, length, width)
            hidden = inputs + self.out(mixed)
            return hidden + self.down(functional.gelu(self.up(self.norm_2(hidden))))

    class TorchDecoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(shape.vocab_size, shape.width)
            self.positions = nn.Embedding(shape.length, shape.width)
            self.blocks = nn.ModuleList(TorchBlock() for _ in range(shape.depth))
            self.norm = nn.LayerNorm(shape.width, bias=False)

        def forward(self, batch):
            hidden = self.embed(batch[:, :-1]) + self.positions.weight
            for block in self.blocks:
                hidden = block(hidden)
            logits = functional.linear(self.norm(hidden), self.embed.weight)
            return functional.cross_entropy(
                logits.view(-1, shape.vocab_size), batch[:, 1:].reshape(-1)
            )

    model = TorchDecoder().to(device)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    forward = wrap(model)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        _LEARNING_RATE,
        _BETAS,
        weight_decay=_DECAY,
        fused=True if device == "cuda" else None,
    )
    tokens = torch.from_numpy(_tokens(shape).astype(np.int64)).to(device)
    lower = dtype != "float32"

    def take(num_steps: int) -> None:
        for index in range(num_steps):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=lower):
                loss = forward(tokens[index % _CHUNK])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()

    @torch.no_grad()
    def score(count: int) -> None:
        for index in range(count):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=lower):
                forward(tokens[index % _CHUNK]).item()

    return Trainer(take, score)


def torch_compiled(shape: Shape, dtype: str) -> Trainer:
    """Returns a trainer for the model of torch_eager, compiled by torch.compile."""
    import torch

    return torch_eager(shape, dtype, wrap=torch.compile)


def ours_writing(shape: Shape, dtype: str, batch_size: int, count: int) -> Repeat:
    """Returns a function that generates `count` tokens with our `Decoder`, greedily."""
    import jax

    from transformer_jax.generation import generate_from

    model, prompt = our_decoder(shape, dtype), _prompt(shape, batch_size)
    params = jax.jit(model.init)(jax.random.key(0), prompt[:1])["params"]

    def write(times: int) -> None:
        for _ in range(times):
            written = generate_from(
                model, params, prompt, jax.random.key(0), num_tokens=count, temperature=0.0
            )
            jax.block_until_ready(written)

    return write


def transformers_writing(shape: Shape, dtype: str, batch_size: int, count: int) -> Repeat:
    """Returns a function that generates `count` tokens with GPT-2 of transformers, greedily."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.length,
        n_embd=shape.width,
        n_layer=shape.depth,
        n_head=shape.num_heads,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = GPT2LMHeadModel(config).to(device, getattr(torch, dtype)).train(False)
    prompt = torch.from_numpy(_prompt(shape, batch_size).astype(np.int64)).to(device)

    @torch.no_grad()
    def write(times: int) -> None:
        for _ in range(times):
            written = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=count,
                do_sample=False,
                use_cache=True,
            )
            assert written.shape[1] == prompt.shape[1] + count

    return write


def _prompt(shape: Shape, batch_size: int) -> np.ndarray:
    size = (batch_size, _PROMPT)
    return np.random.default_rng(0).integers(0, shape.vocab_size, size, dtype=np.int32)


TRAINERS = {
    "ours": ours,
    "linen": linen,
    "torch_eager": torch_eager,
    "torch_compiled": torch_compiled,
}
WRITERS = {"ours": ours_writing, "transformers": transformers_writing}
