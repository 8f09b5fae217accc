"""The coordinate check: sizes of activations after some updates, at several widths of a model.

Yang et al. 2022, arXiv:2203.03466, appendix D.1. With a correct parametrisation no activation grows
with the width, so a learning rate found for a narrow model suits a wide one.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config_files import changed, own_modules
from transformer_jax.paths import by_path
from transformer_jax.training.build import make_model, make_objective, make_task
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.prepared import seed_of
from transformer_jax.training.step import draw_state, make_train_step


class Coordinate(NamedTuple):
    """Root mean squares of an activation after the updates, and of its change, at each width."""

    rms: tuple[float, ...]
    change: tuple[float, ...]

    def slopes(self, widths: Sequence[int]) -> tuple[float, float]:
        """Returns the exponents e in size ~ width^e for `rms` and `change`; ideally both are 0."""
        log_widths = np.log(widths)
        size, change = (
            float(np.polyfit(log_widths, np.log(np.maximum(sizes, 1e-30)), 1)[0]) for sizes in self
        )
        return size, change


def coordinate_check(config: ConfigDict, widths: Sequence, steps: int) -> dict[str, Coordinate]:
    """Returns a Coordinate for each activation, by name, after `steps` updates at each width.

    Activations are the outputs of the blocks and of their branches, and the logits, for the first
    batch. Each of two or more `widths` replaces `model.width`. If `model.head_dim` is given,
    `model.num_heads` grows with the width, since all sizes in a block must grow.

    Raises:
      ValueError: A width is not possible with this config.
    """
    task = make_task(config, allow=own_modules(config))
    measured = [_measure(_at_width(config, width), task, steps) for width in widths]
    return {
        name: Coordinate(*zip(*(sizes[name] for sizes in measured), strict=True))
        for name in measured[0]
    }


def _at_width(config: ConfigDict, width: int) -> ConfigDict:
    heads, rest = divmod(config.model.num_heads * width, config.model.width)
    if config.model.head_dim is None:
        return changed(config, {"model.width": width})
    if rest:
        raise ValueError(
            f"width {width}: model.head_dim={config.model.head_dim} is fixed, and model.num_heads="
            f"{config.model.num_heads} times {width} / {config.model.width} is not an integer"
        )
    return changed(config, {"model.width": width, "model.num_heads": heads})


def _measure(config: ConfigDict, task: Any, steps: int) -> dict[str, tuple[float, float]]:
    own = own_modules(config)
    model, optimizer = make_model(config, task.sizes, own), make_optimizer(config, own)
    objective, order = make_objective(config, own), seed_of(config, "order")
    state = jax.jit(lambda: draw_state(model, optimizer, seed_of(config, "initial")))()
    options = {"objective": objective, "chunk": config.training.loss_chunk}
    take_step = jax.jit(make_train_step(model, optimizer, seed_of(config, "dropout"), **options))
    inputs = task.batch(order, 0)["inputs"]

    def is_seen(module: Any, method: str) -> bool:
        is_named = re.match("(attention|mixer|feed_forward)$|block_", module.name or "")
        return method == "__call__" and is_named is not None

    @jax.jit
    def activations(params: Any) -> dict[str, jax.Array]:
        logits, captured = model.apply({"params": params}, **inputs, capture_intermediates=is_seen)
        named = sorted(by_path(captured["intermediates"]).items())
        outputs = {path.split("/__call__")[0]: leaf for path, leaf in named if "/__call__" in path}
        return outputs | {"logits": logits}

    before = activations(state.params)
    for step in range(steps):
        state, _ = take_step(state, task.batch(order, step))
    after = activations(state.params)
    return {name: (_rms(after[name]), _rms(after[name] - before[name])) for name in after}


def _rms(array: jax.Array) -> float:
    return float(jnp.sqrt(jnp.square(array.astype(jnp.float32)).mean()))
