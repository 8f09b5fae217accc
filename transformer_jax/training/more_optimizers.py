"""Less common optimizers, imported only when one of them is chosen."""

from typing import Any

import optax
import optax.contrib

from transformer_jax.options import OpenShare, Positive, Share, Switch, TracedShare
from transformer_jax.training.optimizers import (
    Epsilon,
    SecondDecay,
    Transformation,
    UpdateParts,
    is_hidden_kernel,
    map_paths,
    stateless_by_path,
)


def adafactor(
    parts: UpdateParts,
    decay_rate: Share = 0.8,
    clip: Positive = 1.0,
    scale_by_parameters: Switch = False,
) -> Transformation:
    """Factored second moments (Shazeer and Stern 2018, arXiv:1804.04235, alg. 4).

    Moments are factored for arrays with two axes of 128 or more, and kept whole for others.

    Args:
      decay_rate: Exponent c; at update t, older moments are multiplied by 1 - t^-c.
      clip: Maximum root mean square of an update.
      scale_by_parameters: Whether updates are relative to the size of the parameters, as in the
        paper; the learning rate should then be higher.
    """
    rule = [optax.scale_by_factored_rms(decay_rate=decay_rate), optax.clip_by_block_rms(clip)]
    if scale_by_parameters:
        rule.append(optax.scale_by_param_block_rms())
    return optax.chain(*rule, parts.decay, parts.rate)


def muon(
    parts: UpdateParts,
    beta: TracedShare = 0.95,
    nesterov: Switch = True,
    b1: TracedShare = 0.9,
    b2: TracedShare = 0.99,
) -> Transformation:
    """Orthogonalised momentum for the blocks' kernels, AdamW for everything else.

    Jordan et al. 2024, kellerjordan.github.io/posts/muon; updates are scaled to the size of
    AdamW's, 0.2 sqrt(max(inputs, outputs)), so that one learning rate serves both (Liu et al.
    2025, arXiv:2502.16982, section 2.2). The parameter's name decides which axes form a matrix, so
    stacked kernels of experts are treated one by one.

    Args:
      beta: Decay of the momentum.
      nesterov: Whether to use Nesterov momentum.
      b1: AdamW's b1, for embeddings, norms, biases and parameters outside the blocks.
      b2: AdamW's b2, for the same parameters.
    """
    orthogonal = orthogonal_momentum(beta, nesterov)
    as_adam = stateless_by_path(lambda path, x, _: x * (0.2 * max(x.shape[-2:]) ** 0.5))
    rule = of_matrices(optax.chain(orthogonal, as_adam), optax.scale_by_adam(b1, b2))
    return optax.chain(rule, parts.decay, parts.rate)


def orthogonal_momentum(beta: Any, nesterov: bool) -> Transformation:
    """Returns Muon's rule: momentum whose singular values are made 1, for the blocks' kernels."""
    numbers = optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)
    matrices = map_paths(lambda path: numbers if is_hidden_kernel(path) else None)
    return optax.contrib.scale_by_muon(
        beta=beta, nesterov=nesterov, weight_dimension_numbers=matrices
    )


def of_matrices(rule: Transformation, otherwise: Transformation) -> Transformation:
    """Returns a transformation that follows `rule` for the blocks' kernels only."""
    rules: dict = {"muon": rule, "adam": otherwise}
    return optax.partition(rules, map_paths(lambda p: "muon" if is_hidden_kernel(p) else "adam"))


def schedule_free(
    parts: UpdateParts, b1: OpenShare = 0.9, b2: SecondDecay = 0.99, eps: Epsilon = 1e-8
) -> Transformation:
    """AdamW whose evaluated weights are a running mean, instead of a decaying learning rate.

    Defazio et al. 2024, arXiv:2405.15682, algorithm 1. Suits the schedules `constant` and
    `warmup_constant`. Models are evaluated and loaded with the mean of the weights.

    Args:
      b1: Weight of the mean in the weights at which gradients are taken; kept in the state.
    """
    base = optax.chain(optax.scale_by_adam(0.0, b2, eps), parts.decay, parts.rate)
    # optax weights by rates and counts from 1; a schedule counts the earlier updates.
    return optax.contrib.schedule_free(base, lambda count: parts.schedule(count - 1), b1=b1)
