"""The model and the training of configs/enwik8.py in PyTorch, from a run's first values on.

    python -m tests.torch_curve RUN

trains again what the run trained, with torch's own layers, optimizer and derivatives: the same
parameters at first, the same bytes in each batch, the same learning rates. Prints the validation
losses of both; tests/test_oracles.py does the same with a tiny model.
"""

import math
import sys

import jax
import torch
from flax.traverse_util import flatten_dict
from torch import nn
from torch.nn.functional import cross_entropy, linear, rms_norm, scaled_dot_product_attention

from transformer_jax.runs.directory import RunDirectory
from transformer_jax.training.prepared import prepare, seed_of


def parameters_of(params):
    """Returns torch's parameters for flax's, by path."""
    return nn.ParameterDict(
        {
            "-".join(path): nn.Parameter(torch.tensor(jax.device_get(leaf)))
            for path, leaf in flatten_dict(params).items()
        }
    )


def logits_of(params, tokens, model):
    """Returns the logits, [B, L, V], of tokens, [B, L], by the config's section `model`."""
    embedding, epsilon = params["token_embedding-embedding"], model.norm_options.epsilon
    hidden = embedding[tokens]
    head_dim = model.width // model.num_heads
    exponents = torch.arange(0, head_dim, 2).double() / head_dim
    angles = torch.outer(torch.arange(tokens.shape[1]).double(), 10_000.0**-exponents)
    cos, sin = angles.cos().float(), angles.sin().float()

    def normed(inputs, name):
        return rms_norm(inputs, inputs.shape[-1:], params[f"{name}-scale"], epsilon)

    def rotated(heads):
        first, second = heads.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    for number in range(model.depth):
        block = f"block_{number}"
        inputs = normed(hidden, f"{block}-attention_norm")

        def heads_of(name, block=block, inputs=inputs):
            heads = inputs @ params[f"{block}-attention-{name}-kernel"]
            heads = heads.unflatten(-1, (model.num_heads, head_dim)).transpose(1, 2)
            if name == "value":
                return heads
            return rotated(normed(heads, f"{block}-attention-{name}_norm"))

        of_all = map(heads_of, ("query", "key", "value"))
        heads = scaled_dot_product_attention(*of_all, is_causal=True)
        mixed = heads.transpose(1, 2).flatten(2)
        hidden = hidden + mixed @ params[f"{block}-attention-out-kernel"]
        up, down = (params[f"{block}-feed_forward-{name}-kernel"] for name in ("up", "down"))
        inputs = normed(hidden, f"{block}-feed_forward_norm")
        hidden = hidden + (inputs @ up).relu().square() @ down
    return linear(normed(hidden, "final_norm"), embedding)


def loss_of(params, batch, model):
    """Returns the sum of the losses of a batch, in nats, and the number of its targets."""
    tokens, targets, weights = (
        torch.tensor(array)
        for array in (batch["inputs"]["tokens"], batch["targets"], batch["weights"])
    )
    losses = cross_entropy(logits_of(params, tokens, model).mT, targets.long(), reduction="none")
    return (losses * weights).sum(), weights.sum()


def rate_of(config, update):
    """Returns the learning rate of update 1, 2, ...: warm-up, then half a cosine."""
    schedule, peak = config.schedule, config.optimizer.learning_rate
    if update < schedule.warmup_steps:
        return peak * update / schedule.warmup_steps
    done = (update - schedule.warmup_steps) / (config.training.steps - schedule.warmup_steps)
    falling = (1 + math.cos(math.pi * done)) / 2
    return peak * (schedule.final_fraction + (1 - schedule.final_fraction) * falling)


def curve_of(prepared, params, seed):
    """Yields the step and the mean validation loss at each evaluation."""
    config, task, params = prepared.config, prepared.task, parameters_of(params)
    numbers = config.optimizer
    decayed = [params[name] for name in params if not name.endswith("scale")]
    others = [params[name] for name in params if name.endswith("scale")]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": numbers.weight_decay}, {"params": others}],
        betas=(numbers.b1, numbers.b2),
        eps=numbers.eps,
        weight_decay=0.0,
    )
    for step in range(config.training.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_of(config, step + 1)
        optimizer.zero_grad()
        loss, count = loss_of(params, task.batch(seed, step), config.model)
        (loss / count).backward()
        nn.utils.clip_grad_norm_(params.values(), config.training.clip_norm)
        optimizer.step()
        if (step + 1) % config.evaluation.every == 0 or step + 1 == config.training.steps:
            with torch.no_grad():
                batches = task.evaluation_batches("validation", config.evaluation.batch_size)
                sums = [loss_of(params, batch, config.model) for batch in batches]
            total, targets = (float(sum(part)) for part in zip(*sums, strict=True))
            yield step + 1, total / targets


def both_curves(path):
    """Yields the step, torch's validation loss and that of a finished run, at each evaluation."""
    directory = RunDirectory(path)
    config, rows = directory.config(), directory.metrics()
    ours = {row["step"]: row["eval/loss"] for row in rows if "eval/loss" in row}
    prepared = prepare(config, directory.tokenizer())
    params = prepared.initial_state(seed_of(config, "initial")).params
    for step, loss in curve_of(prepared, params, seed_of(config, "order")):
        yield step, loss, ours[step]


if __name__ == "__main__":
    for losses in both_curves(sys.argv[1]):
        print("{:6} torch {:.5f} ours {:.5f}".format(*losses), flush=True)
