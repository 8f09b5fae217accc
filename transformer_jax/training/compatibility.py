"""Checks, made before training, that the parts of a config fit together."""

import functools
import zlib
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config_files import flatten, resolved
from transformer_jax.data.tasks import Task, traits_of
from transformer_jax.errors import InvalidInput, require
from transformer_jax.models import Decoder
from transformer_jax.models.stack import block_specs, made
from transformer_jax.options import is_user_defined
from transformer_jax.own import faults_of
from transformer_jax.paths import begins, by_path
from transformer_jax.resolve import own_choices_of
from transformer_jax.training.optimizers import make_schedule


def refuse_what_is_not_installed(config: ConfigDict) -> None:
    """Raises InvalidInput if training this config needs a package that is not installed."""
    require("orbax", "training")
    refuse_missing_packages(config.data.task)
    if config.evaluation.benchmark is not None:
        from transformer_jax.training.benchmarks import refuse_benchmark

        refuse_benchmark(config.evaluation.benchmark)
    for name in config.logging.writers:
        from transformer_jax.runs.writers import WRITERS

        require(WRITERS[name][1], f"logging.writers={name}", "trackers")


def refuse_hosts_with_other_data(task: Task, order: int) -> None:
    """Raises InvalidInput in all processes of a run if they have read different data."""
    if jax.process_count() == 1:
        return
    from transformer_jax.runs.several_processes import refuse_other

    leaves = jax.tree.leaves(task.batch(order, 0))
    sums = [zlib.crc32(np.asarray(leaf).tobytes()) for leaf in leaves]
    refuse_other("data", repr([task.facts, sums]))


def refuse_missing_packages(task: str) -> None:
    """Raises InvalidInput if a package that a task's scores need is not installed."""
    for package in traits_of(task).scored_with:
        require(package, f"data.task={task}")


def refuse_task(config: ConfigDict, task: Task) -> None:
    """Raises InvalidInput if a split has nothing to score, or a user-defined task breaks a law."""
    if is_user_defined(config.data.task):
        from transformer_jax.data.laws import TASK_LAWS, disjoint_splits

        who = f"data.task={config.data.task}"
        for name, law in TASK_LAWS.items():
            if law is disjoint_splits:  # examples can coincide: only a remark
                continue
            try:
                with faults_of(who):
                    law(task)
            except AssertionError as error:
                raise InvalidInput(f"{who}: {name}: {error}") from error
    for split in ("validation", "test"):
        batches = task.evaluation_batches(split, config.evaluation.batch_size)
        if not any(batch["weights"].any() for batch in batches):
            raise InvalidInput(
                f"data.source={config.data.source}: the {split} split has no "
                f"{task.target} to score; provide more data, or change data.splits"
            )


def own_rows_of_model(config: ConfigDict) -> list[str]:
    """Returns KEY=MODULE:NAME for each user-defined part of a model and for a user-defined task."""
    choices = own_choices_of(flatten(config))
    return [f"{k}={v}" for k, v in choices if k.startswith("model.") or k == "data.task"]


def own_rows_of_training(config: ConfigDict) -> list[str]:
    """Returns KEY=MODULE:NAME for a user-defined optimizer, schedule and objective."""
    choices, kinds = own_choices_of(flatten(config)), ("optimizer.", "schedule.", "objective.")
    return [f"{key}={choice}" for key, choice in choices if key.startswith(kinds)]


def refuse_unfit(prepared: Any, of_user: list[str]) -> None:
    """Raises an error if a config's model, task, objective and options do not fit together.

    `of_user` lists the user-defined parts of model and task as KEY=MODULE:NAME.
    """
    _refuse_broken_updates(prepared)
    refuse_unknown_prefixes(prepared.template.params, prepared.config)
    _refuse_what_is_not_kept(prepared)
    _refuse_shown_answers(prepared)
    _refuse_inseparable_objective(prepared)
    if not of_user:
        return
    who = ", ".join(of_user)
    config, model, task = prepared.config, prepared.model, prepared.task
    for name in traits_of(config.data.task).needs:
        if not hasattr(model, name):
            raise InvalidInput(f"{who}: data.task={config.data.task} needs the attribute {name}")
    inputs, targets = task.batch(0, 0)["inputs"], task.batch(0, 0)["targets"]

    def logits(params: Any) -> Any:
        apply = functools.partial(model.apply, {"params": params}, **inputs)
        if isinstance(model, Decoder):  # it generates one text, [L], without a batch axis
            model.apply({"params": params}, inputs["tokens"][0])
        return apply(), apply(train=True, rngs={"dropout": jax.random.key(0)})

    classes = task.sizes.get("num_classes") or task.sizes.get("vocab_size")
    for shape in jax.eval_shape(logits, prepared.weights):
        got = getattr(shape, "shape", type(shape).__name__)
        if isinstance(got, str) or got[:-1] != targets.shape or (classes and got[-1] < classes):
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in inputs.items())
            axes = ", ".join(map(str, [*targets.shape, classes or "classes"]))
            raise InvalidInput(
                f"{who}: given {shapes}, the model returns {got}; expected logits [{axes}]"
            )


def _refuse_what_is_not_kept(prepared: Any) -> None:
    """Raises an error if blocks cannot be scanned, or a site that remat should keep is missing."""
    wanted = resolved(prepared.config).get("model.remat_options.sites") or ()
    if not wanted and not prepared.config.model.scan_layers:
        return
    from transformer_jax.jaxprs import names_in

    inputs = prepared.task.batch(0, 0)["inputs"]
    traced = jax.make_jaxpr(prepared.training_pass)(prepared.stacked_weights, inputs)
    present = names_in(traced)
    if missing := [name for name in wanted if name not in present]:
        raise InvalidInput(
            f"model.remat_options.sites: this model has no site {missing[0]}; expected "
            f"some of {', '.join(sorted(name for name in present if '.' in name))}"
        )


def _refuse_shown_answers(prepared: Any) -> None:
    """Raises InvalidInput if a prefix mask shows scored answers to the model.

    For language modelling, data.unscored is checked instead, before any data is read.
    """
    config, model, task = prepared.config, prepared.model, prepared.task
    if config.data.task == "language_modelling" or not isinstance(model, Decoder):
        return
    options = [spec.options for spec in block_specs(model.options)]
    lengths = [made(each, "mask").length for each in options if each.mask == "prefix"]
    if not lengths:
        return
    from transformer_jax.data.laws import predicts_its_inputs

    batch = task.batch(0, 0)
    if not predicts_its_inputs(batch):
        return
    is_scored = np.asarray(batch["weights"])[:, :-1] > 0  # positions whose target is the next input
    for length in lengths:
        if is_scored[:, : length - 1].any():
            first = int(is_scored.any(0).argmax())
            raise InvalidInput(
                f"model.mask=prefix: a prefix of {length} positions shows the model answers that "
                f"are scored; expected a length of at most {first + 1}"
            )


def _refuse_inseparable_objective(prepared: Any) -> None:
    """Raises InvalidInput if the logits of an objective cannot be computed in chunks."""
    chunk, name = prepared.config.training.loss_chunk, prepared.config.objective.name
    if hasattr(prepared.objective, "sums"):
        if chunk is not None:
            raise InvalidInput(
                f"training.loss_chunk={chunk}: objective.name={name} cannot be computed in chunks, "
                "since it has a method sums; set training.loss_chunk=None"
            )
        return
    if not is_user_defined(name):
        return
    draws, sizes = np.random.default_rng(0), prepared.task.sizes
    classes = sizes.get("vocab_size", sizes.get("num_classes", 8))
    logits = draws.normal(size=(2, 5, classes)).astype(np.float32)
    targets = draws.integers(0, classes, (2, 5))
    with faults_of(f"objective.name={name}"):
        whole = prepared.objective.losses(logits, targets)
        part = prepared.objective.losses(logits[1:, 2:], targets[1:, 2:])
    if np.shape(whole) != (2, 5) or not np.allclose(whole[1:, 2:], part, rtol=1e-4, atol=1e-4):
        raise InvalidInput(
            f"objective.name={name}: losses(logits, targets) must return the loss of each target "
            "from its own row of logits; expected shape (2, 5) for logits (2, 5, "
            f"{classes}), and the same losses for a part of them, got shape {np.shape(whole)}\n"
            "a loss of whole texts has a method sums instead; see docs/own-components.md"
        )


def _refuse_broken_updates(prepared: Any) -> None:
    """Raises InvalidInput if the user's optimizer or schedule cannot be traced, with the line."""
    if own := own_rows_of_training(prepared.config):
        with faults_of(*own):
            state = prepared.template
            jax.eval_shape(prepared.optimizer.update, state.params, state.opt_state, state.params)
            rate = jax.eval_shape(make_schedule(prepared.config, prepared.allow), np.int32(0))
            if rate.shape:
                name = prepared.config.schedule.name
                raise InvalidInput(f"schedule.name={name}: expected a number, got {rate.shape}")


def refuse_unknown_prefixes(params: Any, config: ConfigDict) -> None:
    """Raises InvalidInput if no parameter's path begins with a path given in an option."""
    names, flat = by_path(params), flatten(config)
    multipliers = ("optimizer.learning_rate_multipliers", "optimizer.decay_multipliers")
    for key in ("training.frozen", *multipliers):
        for prefix in (text.partition("=")[0] for text in flat[key]):
            if not any(begins(name, prefix) for name in names):
                first = ", ".join(dict.fromkeys(name.split("/")[0] for name in names))
                raise InvalidInput(
                    f"{key}: no parameter's path begins with {prefix!r}; paths begin with {first}"
                )
