"""The data, model and optimizer of a config, ready to train from any seed."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from jax import Array
from ml_collections import ConfigDict

from transformer_jax.config_files import CADENCE, flatten, own_modules, report
from transformer_jax.curves import starts_of
from transformer_jax.data.sources.folders import left_out
from transformer_jax.data.tasks import Batch, Task
from transformer_jax.data.tasks.batch import batch_rows, count_of_batch
from transformer_jax.data.tokenizers import Tokenizer, unknown_words
from transformer_jax.errors import InvalidInput
from transformer_jax.models.stack import Transformer
from transformer_jax.options import is_user_defined
from transformer_jax.own import faults_of
from transformer_jax.paths import variables_of, with_state
from transformer_jax.placement import (
    cut_examples,
    keep_everywhere,
    keep_placed,
    put,
    put_own,
    sharded,
    with_places,
)
from transformer_jax.resolve import import_own, read_instead, stated
from transformer_jax.training.ahead import in_one_call
from transformer_jax.training.build import make_model, make_objective, make_run_sharding, make_task
from transformer_jax.training.compatibility import (
    own_rows_of_model,
    own_rows_of_training,
    refuse_task,
    refuse_unfit,
)
from transformer_jax.training.memory import nbytes, refusal_explained, refuse_large_state
from transformer_jax.training.objectives import score_batch
from transformer_jax.training.optimizers import evaluated_params, make_optimizer, traced_numbers
from transformer_jax.training.step import (
    StepRecord,
    TrainState,
    draw_state,
    make_run_steps,
    make_train_step,
)

if TYPE_CHECKING:
    from transformer_jax.sharding import Sharding
    from transformer_jax.training.run import Run

_MOST_STEPS_PER_CALL = 64
_MOST_BYTES_PER_CALL = 64 << 20


def seed_of(config: ConfigDict, purpose: str) -> int:
    """Returns the seed for a purpose: `initial` values, the `order` of the data, or `dropout`."""
    given = config.seeds[purpose]
    return config.seed if given is None else given


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Data, model and optimizer of a config, with the pure functions initial_state and advance."""

    config: ConfigDict  # complete; its seed is not used
    task: Task
    model: Any  # a Linen module
    optimizer: optax.GradientTransformation
    objective: Any  # the training loss
    allow: frozenset[str]  # user-defined modules that may be imported
    sharding: "Sharding | None"  # placement on several devices, or None for one device
    first: int = 0  # the first update of the stage that `advance` is for

    def run(self, params: Any, step: int, config: ConfigDict | None = None) -> "Run":
        """Returns a Run with these parameters; `config` replaces that of this object, if given."""
        from transformer_jax.training.run import Run  # lazily, since it imports generation

        return Run(
            config=config or self.config,
            model=self.model,
            params=params,
            tokenizer=self.task.tokenizer,
            step=step,
            classes=tuple(self.task.facts.get("classes", ())),
            num_texts=self.task.sizes.get("num_types", 1),
            sharding=self.sharding if jax.process_count() == 1 else None,  # else params are whole
        )

    def numbers(self, config: ConfigDict | None = None) -> dict[str, np.generic]:
        """Returns the numbers that `advance` takes: dropout's seed and traced options, by name.

        `config` may differ from self.config in seeds and the options of optimizers.traced_numbers.
        """
        config = config or self.config
        traced = {key: np.float32(value) for key, value in traced_numbers(config).items()}
        return {"seed": np.uint32(seed_of(config, "dropout")), **traced}

    @functools.cached_property
    def program_key(self) -> str:
        """A string that is equal for configs whose `advance` differs at most in its `numbers`."""
        flat, traced = flatten(self.config), self.numbers().keys()
        passive = ("seed", "seeds.", "initial.", *CADENCE)
        read = {
            key: value
            for key, value in stated(flat).items()
            if key not in traced and not key.startswith(passive) and not read_instead(key, flat)
        }
        return repr(sorted(read.items()))

    @property
    def starts(self) -> tuple[int, ...]:
        """The first update of each stage, in which batches and masks keep their shape."""
        return starts_of(self.config.training.scheduled)

    def at(self, step: int) -> "Prepared":
        """Returns this object for the shapes of the update after `step`."""
        first = max(start for start in self.starts if start <= step)
        if first == self.first:
            return self
        return self._others.setdefault(first, dataclasses.replace(self, first=first))

    @property
    def largest(self) -> "Prepared":
        """Returns this object for the stage with the largest batches that the run reaches."""
        reached = [start for start in self.starts if start < self.config.training.steps]
        return max(map(self.at, reached), key=lambda stage: stage.count_of_update)

    @functools.cached_property
    def _others(self) -> dict[int, "Prepared"]:
        return {}

    @functools.cached_property
    def first_batch(self) -> Batch:
        """A batch with the shapes of the stage."""
        return self.task.batch(0, self.first)

    def initial_state(self, seed: int | Array) -> TrainState:
        """Returns the state at step 0, drawn with a seed."""
        return self._draw(seed)

    @property
    def _draw(self) -> Callable[[int | Array], TrainState]:
        # A function that does not hold self, which holds the data.
        model, optimizer = self._adapted(self.model), self.optimizer
        if not self.config.optimizer.unit_vectors:
            return functools.partial(draw_state, model, optimizer)
        from transformer_jax.training.unit_vectors import draw_on_sphere

        return functools.partial(draw_on_sphere, model, optimizer, self.config.model.width)

    def _adapted(self, model: Any) -> Any:
        """Returns the model that a training step applies: with adapters, if the config has any."""
        if not self.config.adapters.rank:
            return model
        from transformer_jax.training.adapters import trained_model

        return trained_model(self.config, model)

    def advance(
        self, numbers: Mapping[str, Any], state: TrainState, batches: Batch, num_steps: Array
    ) -> tuple[TrainState, StepRecord]:
        """Takes `num_steps` training steps on stacked batches [C, B, ...]; see make_run_steps.

        `numbers`, `stack` and `stacked_batches` give the other arguments; num_steps is at most C.
        """
        traced = {key: number for key, number in numbers.items() if key != "seed"}
        training = self.config.training

        def make_step(model: Any, objective: Any, changes: dict[str, Any]) -> Callable:
            optimizer = make_optimizer(self.config, self.allow, traced | changes)
            parts = training.accumulation, objective, training.loss_chunk
            return make_train_step(self._adapted(model), optimizer, numbers["seed"], *parts)

        train_step = make_step(self.model, self.objective, {})
        if training.scheduled:
            from transformer_jax.training.scheduled import make_scheduled_step

            parts = training.scheduled, self.model, self.objective
            train_step = make_scheduled_step(*parts, make_step, self.first)
        with sharded(self.sharding):
            state, records = make_run_steps(train_step)(state, cut_examples(batches, 1), num_steps)
            return keep_placed(state), keep_everywhere(records)

    def start(self, config: ConfigDict) -> tuple[TrainState, list[str]]:
        """Returns the state at step 0, with the initial weights of the config, and remarks on them.

        Raises:
          InvalidInput: The device has too little memory, or the weights do not match the model.
        """
        refuse_large_state(self.template, config)
        state = self.draw(np.uint32(seed_of(config, "initial")))
        if not any(config.initial.values()):
            return state, []
        from transformer_jax.training.warm_start import start_from

        drawn = self.unstacked(state)
        # With adapters, the weights are those of the model, which the state holds.
        own = {name: drawn.state[name] for name in ("base", "scale") if name in drawn.state}
        others = {name: part for name, part in drawn.state.items() if name not in own}
        whole = with_state(own.get("base", drawn.params), others)
        whole, remarks = start_from(self.model, whole, config.initial, self.task, self.allow)
        variables = variables_of(whole)
        params, held = variables["params"], variables.get("state", {})
        if own:
            params, held = drawn.params, {**own, "base": params, **held}
        if config.optimizer.unit_vectors:
            from transformer_jax.training.unit_vectors import on_sphere

            params = on_sphere(params, config.model.width)
        # Weights that an optimizer keeps, e.g. an average, must start from these too.
        opt_state = jax.jit(self.optimizer.init)(params)
        return self.stack(state._replace(params=params, opt_state=opt_state, state=held)), remarks

    @property
    def draw(self) -> Callable[[np.uint32], TrainState]:
        """The compiled function from a seed to the stacked initial state; equal models share it."""
        key = self.model, self.program_key, self.sharding
        if key not in _DRAWS:
            draw, unit = self._draw, self._unit
            places = self.sharding and self.sharding.of_state(self.stacked_template)
            _DRAWS[key] = jax.jit(lambda seed: _stacked(unit, draw(seed)), out_shardings=places)
        return _DRAWS[key]

    def stack(self, state: TrainState) -> TrainState:
        """Returns a state in the layout of `advance`: scanned blocks stacked, arrays on devices."""
        stacked = _stacked(self._unit, state)
        return put(stacked, self.sharding.of_state(stacked)) if self.sharding else stacked

    def unstacked(self, tree: Any) -> Any:
        """Returns a state, or its parameters, with separate blocks: the reverse of `stack`."""
        if self._unit is None:
            return tree
        from transformer_jax.models.layouts import unstack_blocks

        return unstack_blocks(tree)

    @functools.cached_property
    def _unit(self) -> int | None:
        """Number of blocks in the unit that a scan of layers repeats, or None without a scan."""
        if not (self.config.model.scan_layers and isinstance(self.model, Transformer)):
            return None
        return self.model.options.unit

    @functools.cached_property
    def weights(self) -> Any:
        """Shapes of the model's parameters, with its state: those that are evaluated."""
        return self._weights_of(self.template)

    @functools.cached_property
    def stacked_weights(self) -> Any:
        """The same, with the blocks of a scan stacked."""
        return self._weights_of(self.stacked_template)

    def _weights_of(self, state: TrainState) -> Any:
        return jax.eval_shape(evaluated_params, state.opt_state, state.params, state.state)

    @functools.cached_property
    def stacked_template(self) -> TrainState:
        """Shapes of the state in the layout of `advance`."""
        return self._with_places(jax.eval_shape(lambda s: _stacked(self._unit, s), self.template))

    @functools.cached_property
    def program(self) -> Callable[..., tuple[TrainState, StepRecord]]:
        """The compiled `advance`, which reuses the memory of the state.

        Raises:
          InvalidInput: The device has too little memory; the message names remedies.
        """
        if jax.config.jax_disable_jit:  # ty: ignore[missing-attribute]
            raise InvalidInput("JAX_DISABLE_JIT: the training step is always compiled; unset it")
        lowered = jax.jit(self.advance, donate_argnums=1).lower(*self.shapes)
        with refusal_explained(self.config):
            return lowered.compile()

    @functools.cached_property
    def shapes(self) -> tuple:
        """Shapes of the arguments of `advance`, with their placement on several devices."""
        batches = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((self.capacity, *leaf.shape), leaf.dtype),
            self.first_batch,
        )
        if self.sharding is not None:
            batches = with_places(batches, self.sharding.of_batch(batches, 1))
        return self.numbers(), self.stacked_template, batches, np.int32(1)

    def on_devices(self, arguments: tuple) -> tuple:
        """Returns arguments of `advance` with this process's batches placed on its devices."""
        if self.sharding is None:
            return arguments
        numbers, state, batches, num_steps = arguments
        return numbers, state, jax.tree.map(put_own, batches, self.shapes[2]), num_steps

    def own_batch(self, seed: int, step: int) -> Batch:
        """Returns the training batch of a step, or this process's rows of it."""
        rows = self.at(step)._own_rows
        if rows is None:
            return self.task.batch(seed, step)
        return batch_rows(self.task, seed, step, rows)

    @functools.cached_property
    def _own_rows(self) -> np.ndarray | None:
        is_alone = self.sharding is None or jax.process_count() == 1
        return None if is_alone else self.sharding.rows_of_process(self.first_batch)

    @functools.cached_property
    def capacity(self) -> int:
        """Maximum number of batches in one call of `advance`, limited by their memory."""
        affordable = max(1, _MOST_BYTES_PER_CALL // nbytes(self.first_batch))
        return min(_MOST_STEPS_PER_CALL, affordable, self.config.training.steps)

    def stacked_batches(self, seed: int, step: int, num_steps: int) -> Batch:
        """Returns `num_steps` batches from `step` on, stacked for `advance`; see in_one_call."""
        batches = [self.task.batch(seed, step + index) for index in range(num_steps)]
        return in_one_call(batches, self.at(step).capacity)

    @functools.cached_property
    def template(self) -> TrainState:
        """Shapes of the state, with their placement on several devices."""
        return self._with_places(jax.eval_shape(self.initial_state, np.uint32(0)))

    def _with_places(self, shapes: TrainState) -> TrainState:
        return with_places(shapes, self.sharding.of_state(shapes)) if self.sharding else shapes

    @functools.cached_property
    def remarks(self) -> tuple[str, ...]:
        """Warnings about the data, for the user to read before training."""
        data = self.config.data
        remarks = [*self.task.remarks, *left_out(data.task, data.source)]
        if remark := unknown_words(getattr(self.task, "tokenizer", None)):
            remarks.append(remark)
        text = getattr(self.task, "splits", {}).get("train")
        if len(getattr(text, "document_starts", ())) == 1:
            by = {key: data[key] for key in ("document_separator", "separate_documents")}
            remarks += [f"data.{key}={value!r}: one document" for key, value in by.items() if value]
        mask = self.config.model.mask
        is_own, is_own_mask = is_user_defined(data.task), is_user_defined(mask)
        if not is_own and not is_own_mask:
            return tuple(remarks)
        from transformer_jax.data.laws import disjoint_splits, predicts_its_inputs
        from transformer_jax.models import Encoder

        predicts = predicts_its_inputs(self.first_batch)
        if is_own:
            try:
                disjoint_splits(self.task)
            except AssertionError as error:
                remarks.append(str(error))
            if predicts and isinstance(self.model, Encoder):
                remarks.append("each target is the next input, which this model sees and can copy")
        if predicts and is_own_mask and not getattr(self.model, "is_causal", lambda: True)():
            remarks.append(
                f"model.mask={mask}: a token sees later ones, and targets are the next inputs, so "
                "the loss does not measure prediction; to hide later tokens, a mask written as a "
                "function should return its result & past"
            )
        return tuple(remarks)

    def training_pass(self, params: Any, inputs: Mapping[str, Any]) -> Any:
        """Returns the outputs and sown losses of the model, applied as in a training step."""
        options = {"train": True, "rngs": {"dropout": jax.random.key(0)}, "mutable": ["losses"]}
        return self.model.apply({"params": params}, **inputs, **options)

    @functools.cached_property
    def operations_of_update(self) -> float:
        """Number of operations in an update's matrix products: those of three forward passes."""
        from transformer_jax.training.flops import TRAINING_OVER_FORWARD, flops_of

        batch, options = self.first_batch, getattr(self.model, "options", None)

        def forward(params: Any) -> Any:
            if options is None or options.heads == "none":
                return self.model.apply(variables_of(params), **batch["inputs"])
            # Heads for further tokens are applied in training alone, each with its own logits.
            trains: Any = {"train": True, "rngs": {"dropout": jax.random.key(0)}}
            length = batch["targets"].shape[-1]
            return score_batch(self.model, params, batch, chunk=length, **trains).loss

        return TRAINING_OVER_FORWARD * flops_of(jax.make_jaxpr(forward)(self.weights))

    def mfu(self, seconds: float) -> float | None:
        """Returns the model FLOPs utilization of an update that takes `seconds`.

        Chowdhery et al. 2022, arXiv:2204.02311, appendix B: rematerialisation does not count.
        Returns None if the device's rate is not known.
        """
        from transformer_jax.training.flops import RATES

        rates = RATES.get(jax.devices()[0].device_kind)
        if rates is None:
            return None
        devices = 1 if self.sharding is None else self.sharding.mesh.size
        rate = self.operations_of_update / seconds / devices
        return rate / rates[self.config.model.dtype]

    def curve(self, rows: Sequence[Mapping[str, Any]], alone: bool) -> list[dict[str, Any]]:
        """Returns rows of metrics.jsonl with the cost of training up to each; see curve_of."""
        from transformer_jax.training.measuring import curve_of

        return curve_of(rows, self.task.counted, self.spent, alone)

    def spent(self, updates: int) -> tuple[int, float]:
        """Returns the numbers of tokens (or examples) and of operations in the first updates."""
        counts, operations = 0, 0.0
        for start, end in itertools.pairwise((*self.starts, updates)):
            stage, taken = self.at(start), max(0, min(end, updates) - start)
            counts += taken * stage.count_of_update
            operations += taken * stage.operations_of_update
        return counts, operations

    @functools.cached_property
    def count_of_update(self) -> int:
        """Number of tokens or examples in an update; see Task.counted."""
        return count_of_batch(self.first_batch, self.task.counted)

    @functools.cached_property
    def num_parameters(self) -> int:
        """Number of parameters in the model."""
        return sum(leaf.size for leaf in jax.tree.leaves(variables_of(self.weights)["params"]))


_DRAWS: dict[tuple, Callable[[np.uint32], TrainState]] = {}


def _stacked(unit: int | None, tree: Any) -> Any:
    if unit is None:
        return tree
    from transformer_jax.models.layouts import stack_blocks

    return stack_blocks(tree, unit)


def prepare(
    config: ConfigDict,
    tokenizer: Tokenizer | None = None,
    allow: Collection[str] = (),
    task: Task | None = None,
    devices: Sequence[Any] | None = None,
) -> Prepared:
    """Reads the data and builds the model and the optimizer of a checked config.

    Args:
      config: The config.
      tokenizer: Tokenizer of a stored run; that of the config if None.
      allow: Modules that may be imported besides those that the config names.
      task: Task whose data was already read; that of the config if None.
      devices: Devices of the mesh; all of jax's devices if None.
    Raises:
      InvalidInput: The data has nothing to score or does not fit, or the mesh has more devices.
    """
    own = own_modules(config) | set(allow)  # the user's config names its own modules
    report(import_own(flatten(config)))
    task = task or make_task(config, tokenizer, own)
    refuse_task(config, task)
    if config.training.scheduled:
        from transformer_jax.training.stages import in_stages

        task = in_stages(task, config)
    of_user, of_training = own_rows_of_model(config), own_rows_of_training(config)
    with faults_of(*of_training) if of_training else contextlib.nullcontext():
        optimizer, objective = make_optimizer(config, own), make_objective(config, own)
    try:
        with faults_of(*of_user) if of_user else contextlib.nullcontext():
            model = make_model(config, task.sizes, own)
            if not hasattr(model, "example_inputs"):
                raise InvalidInput(
                    f"{', '.join(of_user)}: expected a method example_inputs() that returns inputs "
                    "with which the parameters can be initialised"
                )
            sharding = make_run_sharding(config, own, devices)
            parts = (config, task, model, optimizer, objective, frozenset(own), sharding)
            prepared = Prepared(*parts)
            refuse_unfit(prepared, of_user)
    except InvalidInput:
        raise
    except ValueError as error:  # e.g. patches that do not fit the images
        reason = str(error).partition("\n")[0]
        raise InvalidInput(f"the model cannot be made for this data: {reason}") from error
    return prepared
