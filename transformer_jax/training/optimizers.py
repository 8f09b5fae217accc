"""Optimizers by name, all from optax.

Each combines its own rule with the parts that all share: weight decay and the learning rate.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, NamedTuple

import jax
import optax
import optax.contrib
from jax import Array
from ml_collections import ConfigDict
from typing_extensions import Doc

from transformer_jax.config import OPTIONS
from transformer_jax.config_files import options_of, resolved
from transformer_jax.initialisation import PARAMETRISATIONS
from transformer_jax.options import Switch, Traced, TracedPositive, TracedShare, is_user_defined
from transformer_jax.own import chosen
from transformer_jax.paths import begins, path_text, with_state
from transformer_jax.resolve import options_read
from transformer_jax.training.schedules import SCHEDULES

Transformation = optax.GradientTransformation | optax.GradientTransformationExtraArgs


class UpdateParts(NamedTuple):
    """Parts of an update that all optimizers share."""

    decay: Transformation  # adds weight decay, for the parameters that decay
    rate: Transformation  # multiplies by minus the learning rate of the parameter's path
    schedule: optax.Schedule  # the learning rate alone


FirstDecay = Annotated[TracedShare, Doc("Decay per step of the moving mean of gradients.")]
SecondDecay = Annotated[TracedShare, Doc("Decay per step of the moving mean of squared gradients.")]
Epsilon = Annotated[
    TracedPositive, Doc("Added to the square root of the second moment, for numerical stability.")
]


def adamw(
    parts: UpdateParts, b1: FirstDecay = 0.9, b2: SecondDecay = 0.99, eps: Epsilon = 1e-8
) -> Transformation:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101, alg. 2)."""
    return optax.chain(optax.scale_by_adam(b1, b2, eps), parts.decay, parts.rate)


def adam(
    parts: UpdateParts, b1: FirstDecay = 0.9, b2: SecondDecay = 0.999, eps: Epsilon = 1e-8
) -> Transformation:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980, alg. 1); weight decay is part of the gradient."""
    return optax.chain(parts.decay, optax.scale_by_adam(b1, b2, eps), parts.rate)


def sgd(
    parts: UpdateParts, momentum: TracedShare = 0.9, nesterov: Switch = False
) -> Transformation:
    """Stochastic gradient descent with momentum (Sutskever et al. 2013); weight decay as in adam.

    Args:
      momentum: Decay per step of the sum of gradients.
      nesterov: Whether to use Nesterov momentum.
    """
    return optax.chain(parts.decay, optax.trace(momentum, nesterov), parts.rate)


def lion(parts: UpdateParts, b1: TracedShare = 0.9, b2: FirstDecay = 0.99) -> Transformation:
    """Sign of a mean of gradients as the update (Chen et al. 2023, arXiv:2302.06675, alg. 2).

    Use a learning rate 3 to 10 times lower than AdamW's, and a weight decay as much higher.

    Args:
      b1: Weight of the mean in the direction of an update.
    """
    return optax.chain(optax.scale_by_lion(b1, b2), parts.decay, parts.rate)


_MORE = "transformer_jax.training.more_optimizers"
_NEWER = "transformer_jax.training.preconditioned"
OPTIMIZERS = {
    "adamw": adamw,
    "adam": adam,
    "sgd": sgd,
    "lion": lion,
    "adafactor": f"{_MORE}:adafactor",
    "muon": f"{_MORE}:muon",
    "schedule_free": f"{_MORE}:schedule_free",
    "ademamix": f"{_NEWER}:ademamix",
    "normuon": f"{_NEWER}:normuon",
    "soap": f"{_NEWER}:soap",
}


def reads_the_width(path: tuple) -> bool:
    """Returns whether a parameter is a block's kernel with an input size that grows with width."""
    names = path_text(path).split("/")
    in_block = any(name.startswith("block_") for name in names)
    mixes_heads = names[-2:-1] in (["scores"], ["weights"])
    return in_block and names[-1] == "kernel" and not mixes_heads


def is_hidden_kernel(path: tuple) -> bool:
    """Returns whether both sizes of a block's kernel grow with the width, as Muon requires.

    Small gates of some variants, whose output has the size of the heads, count too.
    """
    return reads_the_width(path) and path_text(path).split("/")[-2] != "router"


def _is_frozen(path: tuple, prefixes: tuple[str, ...]) -> bool:
    return any(begins(path_text(path), prefix) for prefix in prefixes)


def multiplier(path: tuple, multipliers: tuple[str, ...]) -> float:
    """Returns the product of NUMBER over all PATH=NUMBER whose PATH is a prefix of `path`."""
    product = 1.0
    for text in multipliers:
        prefix, _, factor = text.partition("=")
        product *= float(factor) if begins(path_text(path), prefix) else 1.0
    return product


def decay_multiplier(path: tuple, config: ConfigDict, width_gain: float = 1.0) -> float:
    """Returns a parameter's weight decay as a multiple of optimizer.weight_decay.

    Its name decides, not its number of axes: parameters may be stacked over layers or seeds.
    """
    optimizer = config.optimizer
    name = re.sub(r"kernel/[ab]$", "kernel", path_text(path)).rsplit("/", 1)[-1]  # of an adapter
    if name not in optimizer.decay_parameters or _is_frozen(path, config.training.frozen):
        return 0.0
    # The parametrisation changes the rate but not the product of rate and decay.
    gain = width_gain if reads_the_width(path) else 1.0
    return multiplier(path, optimizer.decay_multipliers) / gain


def stateless_by_path(function: Callable[[tuple, Array, Array], Array]) -> Transformation:
    """Returns a stateless transformation: each update becomes function(path, update, parameter)."""
    return optax.stateless(lambda u, params: jax.tree.map_with_path(function, u, params))


def map_paths(function: Callable[[tuple], Any]) -> Callable[[Any], Any]:
    """Returns a function from parameters to a tree with `function(path)` for each parameter."""
    return lambda params: jax.tree.map_with_path(lambda path, _: function(path), params)


class WeightMean(NamedTuple):
    """Exponential moving average of the weights, kept in the optimizer state."""

    mean: Any


def weight_mean(decay: float) -> Transformation:
    """Returns a transformation that keeps mean = decay * mean + (1 - decay) * weights.

    The mean starts from the initial weights; updates pass unchanged. Polyak and Juditsky 1992;
    Tarvainen and Valpola 2017, arXiv:1703.01780, equation 1.
    """

    def update(updates: Any, state: WeightMean, params: Any) -> tuple[Any, WeightMean]:
        new = optax.apply_updates(params, updates)
        # In decay m + (1 - decay) p, rounding would keep the factors from adding up to 1.
        mean = jax.tree.map(lambda m, p: m + (1 - decay) * (p - m), state.mean, new)
        return updates, WeightMean(mean)

    return optax.GradientTransformation(WeightMean, update)  # ty: ignore[invalid-argument-type]


def evaluated_params(opt_state: Any, params: Any, state: Any = None) -> Any:
    """Returns the weights to evaluate and load: their average if the optimizer keeps one.

    They hold `state`, the collection of that name, if the model has one; see paths.with_state.
    """
    params, state = _average_or(params, opt_state), state or {}
    if "base" in state:
        from transformer_jax.training.adapters import merge

        params = merge(params, state)
        state = {name: part for name, part in state.items() if name not in ("base", "scale")}
    return with_state(params, state)


def _average_or(params: Any, opt_state: Any) -> Any:
    kinds = (WeightMean, optax.contrib.ScheduleFreeState)
    for state in jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, kinds)):
        if isinstance(state, WeightMean):
            return state.mean
        if isinstance(state, optax.contrib.ScheduleFreeState):
            return optax.contrib.schedule_free_eval_params(state, params)
    return params


def traced_numbers(config: ConfigDict) -> dict[str, float]:
    """Returns the numeric options of optimizer and schedule that a step takes as arguments, by key.

    There are none if either is user-defined, since its code may compare numbers in Python.
    """
    if is_user_defined(config.optimizer.name) or is_user_defined(config.schedule.name):
        return {}
    flat = resolved(config)
    options = OPTIONS | options_read(flat)
    return {key: float(flat[key]) for key in sorted(options) if options[key].mark(Traced)}


def make_schedule(config: ConfigDict, allow: Collection = (), peak: Any = None) -> optax.Schedule:
    """Returns the learning rate as a function of the number of earlier updates.

    `peak` replaces the config's learning rate.
    """
    schedule = chosen(SCHEDULES, config.schedule.name, "schedule.name", allow)
    options = options_of(config, "schedule.name")
    peak = config.optimizer.learning_rate if peak is None else peak
    return schedule(peak, config.training.steps, **options)


def make_optimizer(
    config: ConfigDict, allow: Collection[str] = (), numbers: Mapping[str, Any] | None = None
) -> optax.GradientTransformation:
    """Returns the config's optimizer with clipping, freezing and averaging of weights.

    `numbers`, floats or float32, replace those of the config; see traced_numbers.
    """
    numbers, training = numbers or {}, config.training
    schedule = make_schedule(config, allow, numbers.get("optimizer.learning_rate"))
    decay = numbers.get("optimizer.weight_decay", config.optimizer.weight_decay)
    parametrisation = chosen(
        PARAMETRISATIONS, config.model.parametrisation, "model.parametrisation", allow
    )(**options_of(config, "model.parametrisation"))
    gain = parametrisation.learning_rate_gain(config.model.width)
    parts = UpdateParts(
        decay=_decay_by_path(config, decay, gain),
        rate=_rate_by_path(config, schedule, gain),
        schedule=schedule,
    )
    make = chosen(OPTIMIZERS, config.optimizer.name, "optimizer.name", allow)
    own = {key.removeprefix("optimizer."): n for key, n in numbers.items() if key not in OPTIONS}
    optimizer = make(parts, **options_of(config, "optimizer.name") | own)
    if config.optimizer.unit_vectors:
        from transformer_jax.training.unit_vectors import end_on_sphere

        optimizer = optax.chain(optimizer, end_on_sphere(config.model.width))
    if training.clip_norm is not None:
        optimizer = optax.chain(optax.clip_by_global_norm(training.clip_norm), optimizer)
    if training.frozen:
        stop = optax.masked(
            optax.set_to_zero(), map_paths(lambda path: _is_frozen(path, training.frozen))
        )
        optimizer = optax.chain(stop, optimizer, stop)  # clipping ignores frozen gradients
    if training.weight_ema is not None:
        optimizer = optax.chain(optimizer, weight_mean(training.weight_ema))
    return optimizer


def _rate_by_path(config: ConfigDict, schedule: optax.Schedule, gain: float) -> Transformation:
    """Returns a transformation that multiplies each update by minus the rate for its path."""
    same = optax.scale_by_learning_rate(schedule)

    def scaled(path: tuple, update: Array) -> Array:
        rate = multiplier(path, config.optimizer.learning_rate_multipliers)
        rate *= gain if reads_the_width(path) else 1.0
        return update if rate == 1 else update * rate

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = same.update(updates, state, params)
        return jax.tree.map_with_path(scaled, updates), state

    return optax.GradientTransformation(same.init, update)


def _decay_by_path(config: ConfigDict, decay: Any, gain: float) -> Transformation:
    def decayed(path: tuple, update: Array, param: Array) -> Array:
        shrinks = update * param >= 0 if config.optimizer.cautious_decay else 1.0
        return update + decay * decay_multiplier(path, config, gain) * (param * shrinks)

    decays = map_paths(lambda path: decay_multiplier(path, config) != 0)
    return optax.masked(stateless_by_path(decayed), decays)
