"""A run, top to bottom: open, restore, take steps, evaluate, save, finish.

The state is data, a step is a pure function of state and batch, and the batch of a step is a pure
function of seed and step. So a run that was killed anywhere and started again ends with the same
bits, and how often it logs, evaluates or saves changes none of them.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from ml_collections import ConfigDict

from transformer_jax.data.tasks import Batch
from transformer_jax.data.tokenizers import fingerprint, save_tokenizer
from transformer_jax.errors import InvalidInput, Stop
from transformer_jax.training import config as configs
from transformer_jax.training.build import make_model, make_task
from transformer_jax.training.checkpoints import Checkpoints, SaveFailed, leaf_names
from transformer_jax.training.evaluation import Evaluation, evaluate, make_score
from transformer_jax.training.interruption import Interrupted, StopSignal
from transformer_jax.training.metrics import safe_mean, total
from transformer_jax.training.optimizers import make_optimizer, make_schedule
from transformer_jax.training.pictures import draw_loss_curve
from transformer_jax.training.progress import Progress
from transformer_jax.training.runs import Run, RunDirectory, surroundings
from transformer_jax.training.step import (
    TrainState,
    make_initial_state,
    make_run_steps,
    make_train_step,
)

_SECONDS_PER_CALL = 1.0  # how long one call of the compiled program may keep signals waiting
_MOST_STEPS_PER_CALL = 64
_MOST_BYTES_PER_CALL = 64 << 20


class NonFinite(Stop):
    """Training met a loss or a gradient that is no number; the parameters were not touched."""


def train(
    config: ConfigDict, workdir: str | Path, progress: Progress | None = None
) -> dict[str, float]:
    """Trains what a config describes, in a run directory; again with the same, it resumes.

    Args:
      config: checked, as load_config returns it.
      workdir: a new or empty directory, or that of the same run.
      progress: where to tell how it goes; standard output if not given.
    Returns:
      The last row of metrics.jsonl.
    Raises:
      InvalidInput: the config, the data or the directory is wrong; nothing was lost.
      NonFinite: the loss or a gradient is no number; saved before that step.
      Interrupted: SIGTERM or SIGINT came; saved.
    """
    configs.check(config)
    progress = progress or Progress()
    run = RunDirectory(workdir)
    run.claim(config)
    with run.locked(), StopSignal() as stop:
        try:
            return _Training(config, run, progress, stop).run()
        except (InvalidInput, Interrupted):
            raise
        except BaseException as error:
            with contextlib.suppress(OSError):
                run.write_status("failed", -1, f"{type(error).__name__}: {error}".splitlines()[0])
            raise
        finally:
            progress.close()


class _Training:
    """One launch of a run: what it was given, and what it has made of it."""

    def __init__(
        self, config: ConfigDict, run: RunDirectory, progress: Progress, stop: StopSignal
    ) -> None:
        self.config, self.directory, self.progress, self.stop = config, run, progress, stop
        tokenizer = run.tokenizer() if run.tokenizer_path.exists() else None
        self.task, text_sha256 = make_task(config.data, config.training.batch_size, tokenizer)
        self.model = make_model(config.model, self.task.vocab_size)
        self.optimizer = make_optimizer(config)
        self.initial_state = make_initial_state(self.model, self.optimizer, config)
        self.template = jax.eval_shape(self.initial_state)
        self.parameters = sum(leaf.size for leaf in jax.tree.leaves(self.template.params))
        self._write_provenance(text_sha256)
        self.schedule = make_schedule(config)
        self.score = make_score(self.model)
        self.checkpoints = Checkpoints(run.checkpoints, config.checkpoint.keep, self._warn)
        self.unsaved: str | None = None
        self.warnings: list[str] = []
        self.pending: list[tuple[float, float]] = []  # loss, gradient norm since the last row
        self.seconds_per_step = 0.0

    def run(self) -> dict[str, float]:
        config, steps = self.config, self.config.training.steps
        state = self._restore_or_start()
        step = int(state.step)
        if step == steps and self.directory.status() == "done":
            self.progress.say(f"complete ({step}/{steps}): {self.directory.path}")
            return self.directory.metrics()[-1]
        self._announce()
        self.directory.write_status("running", step)
        capacity = self._capacity()
        if step < steps:
            run_steps = self._compile(state, capacity)
        while step < steps:
            boundary = min(_next_multiple(step, every) for every in self._cadences())
            num_steps = min(boundary, steps) - step
            if self.seconds_per_step:
                affordable = max(1, int(_SECONDS_PER_CALL / self.seconds_per_step))
                num_steps = min(num_steps, affordable, capacity)
            else:
                num_steps = 1  # times the first step, so that a slow model answers signals too
            state, rows = self._advance(run_steps, state, step, num_steps, capacity)
            step += num_steps
            if step % config.evaluation.every == 0 or step == steps:
                self._merge(rows, step, self._evaluate(state, is_last=step == steps))
            self.directory.append_metrics(rows)
            self.directory.write_status("running", step)
            if step % config.checkpoint.every == 0 or step == steps or self.stop.signal:
                self._save(state, step)
            if self.stop.signal and step < steps:
                raise self._interrupted(step)
        return self._finish(state)

    # ---- starting

    def _write_provenance(self, text_sha256: str) -> None:
        """Writes config, tokenizer and manifest, or refuses data that is not the run's."""
        data = {
            "source": self.config.data.source,
            "text_sha256": text_sha256,
            "tokenizer_sha256": fingerprint(self.task.tokenizer),
            "tokens": {split: len(stream) for split, stream in self.task.splits.items()},
        }
        run = self.directory
        if run.manifest_path.exists():
            stored = run.manifest()["data"]
            changed = [key for key in data if stored.get(key) != data[key] and key != "source"]
            if changed:
                lines = [f"  {key}: {stored.get(key)} there, {data[key]} now" for key in changed]
                raise InvalidInput(
                    f"--workdir={run.path}: the data changed since this run began\n"
                    + "\n".join(lines)
                    + "\nrestore the data, or choose another --workdir"
                )
        else:
            save_tokenizer(self.task.tokenizer, run.tokenizer_path)
        facts, difference = surroundings()
        if difference and not run.manifest_path.exists():
            run.write_text("diff.patch", difference)
        facts |= {"seed": self.config.seed, "parameters": self.parameters, "data": data}
        run.record_launch(facts)
        run.write_text("config.json", configs.to_json(self.config))

    def _restore_or_start(self) -> TrainState:
        self.checkpoints.tidy()
        restored = self.checkpoints.restore(self.template)
        if restored is None:
            self.directory.cut_metrics(0)
            return jax.jit(self.initial_state)()
        self.pending = [tuple(pair) for pair in restored.extra["pending"]]
        self.directory.cut_metrics(restored.step)
        self.directory.amend_launch(resumed_from=restored.step, warnings=self.warnings)
        self.progress.say(f"resuming from step {restored.step} (checkpoint verified)")
        return restored.state

    def _announce(self) -> None:
        splits = ", ".join(f"{len(part):,} {name}" for name, part in self.task.splits.items())
        config = self.config
        self.progress.say(
            f"data   {config.data.source}: {splits} tokens, {self.task.vocab_size} symbols\n"
            f"model  {config.model.architecture}, {self.parameters:,} parameters; "
            f"{config.training.steps:,} updates of {config.training.batch_size} x "
            f"{config.data.length} tokens on {jax.devices()[0].device_kind}"
        )

    def _capacity(self) -> int:
        """Most batches that one call takes: bounded by steps, by memory and by the cadences."""
        nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self.task.batch(self.config.seed, 0)))
        affordable = max(1, _MOST_BYTES_PER_CALL // nbytes)
        return min(_MOST_STEPS_PER_CALL, affordable, self.config.training.steps)

    def _cadences(self) -> tuple[int, int]:
        return self.config.evaluation.every, self.config.checkpoint.every

    def _compile(self, state: TrainState, capacity: int) -> Callable:
        config = self.config
        train_step = make_train_step(
            self.model, self.optimizer, config.seed, config.training.accumulation
        )
        batches = self._batches(0, 1, capacity)
        with self.progress.busy("compiling the training step"):
            program = jax.jit(make_run_steps(train_step), donate_argnums=0)
            return program.lower(state, batches, np.int32(1)).compile()

    # ---- going on

    def _batches(self, step: int, num_steps: int, capacity: int) -> Batch:
        """Stacks the batches of the next steps; the program's unused places repeat the last one."""
        batches = [self.task.batch(self.config.seed, step + index) for index in range(num_steps)]
        batches += [batches[-1]] * (capacity - num_steps)
        return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)

    def _advance(
        self, run_steps: Callable, state: TrainState, step: int, num_steps: int, capacity: int
    ) -> tuple[TrainState, list[dict]]:
        """Takes some steps; returns the new state and the rows that became due."""
        started = time.monotonic()
        batches = self._batches(step, num_steps, capacity)
        state, records = run_steps(state, batches, np.int32(num_steps))
        records = jax.tree.map(np.asarray, records)
        seconds = max(time.monotonic() - started, 1e-9) / num_steps
        if not records.finite[:num_steps].all():
            raise self._non_finite(state)
        self.seconds_per_step = seconds
        tokens_per_second = batches["weights"].shape[1] * batches["weights"].shape[2] / seconds
        rows = []
        for index in range(num_steps):
            now = step + index + 1
            self.pending.append((float(records.loss[index]), float(records.gradient_norm[index])))
            if now % self.config.logging.every == 0 or now == self.config.training.steps:
                rows.append(self._row(now, seconds, tokens_per_second))
        last = step + num_steps
        steps_left = self.config.training.steps - last
        self.progress.step(
            last,
            self.config.training.steps,
            float(records.loss[:num_steps].mean()),
            tokens_per_second,
            steps_left * seconds,
        )
        return state, rows

    def _row(self, step: int, seconds: float, tokens_per_second: float) -> dict:
        losses, norms = zip(*self.pending, strict=True)
        self.pending = []
        return {
            "step": step,
            "train/loss": float(np.mean(losses)),
            "train/gradient_norm": float(np.mean(norms)),
            "train/learning_rate": float(np.asarray(self.schedule(step - 1))),
            "time/step_ms": round(seconds * 1e3, 3),
            "time/tokens_per_second": round(tokens_per_second, 1),
        }

    @staticmethod
    def _merge(rows: list[dict], step: int, means: dict[str, float]) -> None:
        """Adds an evaluation to the row of its step."""
        if not rows or rows[-1]["step"] != step:
            rows.append({"step": step})
        rows[-1] |= means

    def _evaluate(self, state: TrainState, is_last: bool) -> dict[str, float]:
        """Scores the tuning split; after the last step the test split too, kept whole."""
        names = {"tuning": "eval"} | ({"test": "test"} if is_last else {})
        scored = {}
        for split in names:
            self.progress.note(f"evaluating the {split} split ...")
            options = self.config.evaluation
            scored[split] = evaluate(
                self.score, state.params, self.task, split, options.batch_size, options.stride
            )
        if is_last:
            self._keep_evaluations(scored)
        return {
            f"{prefix}/{name}": value
            for split, prefix in names.items()
            for name, value in scored[split].means.items()
        }

    def _keep_evaluations(self, scored: dict[str, Evaluation]) -> None:
        self.directory.write_json(
            "evaluation.json",
            {split: {**e.means, "protocol": e.protocol} for split, e in scored.items()},
        )
        columns: dict[str, Any] = {
            f"{split}/{name}": column
            for split, evaluation in scored.items()
            for name, column in evaluation.sequences.items()
        }
        np.savez_compressed(self.directory.path / "sequences.npz", **columns)

    def _save(self, state: TrainState, step: int) -> None:
        try:
            self.checkpoints.save(step, state, {"pending": self.pending})
            self.unsaved = None
        except SaveFailed as error:
            self.unsaved = str(error)
            self._warn(f"NOT SAVED at step {step}: {error}")

    # ---- ending

    def _finish(self, state: TrainState) -> dict[str, float]:
        """Draws a sample and a picture, and says what came out."""
        run, row = self.directory, self.directory.metrics()[-1]
        sample = self.config.sample
        loaded = Run(self.config, self.model, state.params, self.task.tokenizer, int(state.step))
        prompt = self.task.tokenizer.decode(self.task.splits["test"].windows(np.array([0]), 1)[0])
        drawn = loaded.sample(prompt, sample.num_tokens, sample.temperature) if prompt else ""
        run.samples.mkdir(exist_ok=True)
        kept = run.write_text(f"samples/step-{int(state.step):08d}.txt", prompt + drawn)
        picture = draw_loss_curve(run.metrics(), run.path / "loss.png")
        if self.unsaved:
            raise SaveFailed(self.unsaved)
        run.write_status("done", int(state.step))
        self.progress.say(
            f"\n{prompt}{drawn}\n\n"
            f"loss       {row['eval/loss']:.4f} tuning, {row['test/loss']:.4f} test "
            f"(nats per token), {row['test/bits_per_byte']:.4f} bits per byte on test\n"
            f"written    {run.path}/: config.json, manifest.json, metrics.jsonl, evaluation.json, "
            f"checkpoints/\n"
            f"sample     {kept}\n"
            f"picture    {picture}"
        )
        return row

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        self.progress.say(text)

    def _non_finite(self, state: TrainState) -> NonFinite:
        """Finds out where the numbers end, and saves the state before that step."""
        step = int(state.step)
        batch = self.task.batch(self.config.seed, step)
        probe = jax.tree.map(np.asarray, self._gradients(state, batch))
        trees = {"parameter": state.params, "gradient": probe}
        bad = [
            f"{kind} {name}"
            for kind, tree in trees.items()
            for name, leaf in leaf_names(tree).items()
            if not np.isfinite(np.asarray(leaf)).all()
        ]
        self._save(state, step)
        where = (
            f"first of {len(bad)} non-finite arrays: {bad[0]}" if bad else "all arrays are finite"
        )
        return NonFinite(
            f"the loss or its gradient is not finite in update {step + 1}; parameters untouched, "
            f"they are those after update {step}\n{where}\n"
            "the same command repeats that update; a lower optimizer.learning_rate, a longer "
            "warm-up or training.clip_norm may avoid it (in a new --workdir)"
        )

    def _gradients(self, state: TrainState, batch: Batch) -> Any:
        """Gradients of one batch without dropout, for a diagnosis."""

        def mean_loss(params: Any) -> Array:
            sums = total(self.score(params, batch))
            return safe_mean(sums.loss, sums.weight)

        return jax.grad(mean_loss)(state.params)

    def _interrupted(self, step: int) -> Interrupted:
        assert self.stop.signal is not None
        if self.unsaved:
            raise SaveFailed(self.unsaved)
        self.directory.write_status("interrupted", step)
        return Interrupted(
            self.stop.signal,
            f"interrupted at step {step}, saved; the same command again resumes",
        )


def _next_multiple(step: int, every: int) -> int:
    return (step // every + 1) * every
