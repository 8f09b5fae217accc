"""Writers that send metrics to experiment trackers, in addition to metrics.jsonl."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import inside, read_json


class TensorBoard:
    """Writer of TensorBoard event files in the run's folder, using tensorboardX."""

    def __init__(self, workdir: Path, config: Mapping[str, Any], step: int) -> None:
        from tensorboardX import SummaryWriter

        # Hides what earlier launches wrote, and writes it again: a kill may have lost some rows.
        self._writer = SummaryWriter(str(inside(workdir, "tensorboard")), purge_step=1)
        self.add([row for row in RunDirectory(workdir).metrics() if row["step"] <= step])

    def add(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Writes rows of metrics.jsonl, each with its step."""
        for row in rows:
            for name, value in row.items():
                if name != "step" and value is not None:
                    self._writer.add_scalar(name, value, int(row["step"]))

    def close(self) -> None:
        """Flushes pending rows."""
        self._writer.close()


class WeightsAndBiases:
    """Writer to a W&B run, offline unless WANDB_MODE is set; `wandb sync` uploads the run later."""

    def __init__(self, workdir: Path, config: Mapping[str, Any], step: int) -> None:
        import wandb

        for name in ("wandb", ".wandb"):  # wandb uses the second if it exists
            inside(workdir, name)
        folder = str(workdir.absolute())
        # A run that begins in a folder of the same name, e.g. on a different machine, is a new one.
        began = read_json(inside(workdir, "manifest.json"))["launches"][0]["time"]
        self._run = wandb.init(
            project="transformer_jax",
            name=workdir.name,
            id=hashlib.sha256(f"{folder} {began}".encode()).hexdigest()[:16],
            resume="allow",
            reinit="create_new",  # one process may train several runs of a study
            dir=folder,
            config=dict(config),
            mode=None if "WANDB_MODE" in os.environ else "offline",
            settings=wandb.Settings(silent=True),
        )
        self._run.define_metric("*", step_metric="step")

    def add(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Writes rows of metrics.jsonl."""
        for row in rows:
            self._run.log(dict(row))

    def close(self) -> None:
        """Flushes pending rows."""
        self._run.finish()


# Name in the config -> the writer, and the package that it needs.
WRITERS: dict[str, tuple[Callable[..., Any], str]] = {
    "tensorboard": (TensorBoard, "tensorboardX"),
    "wandb": (WeightsAndBiases, "wandb"),
}


@contextlib.contextmanager
def writing_to(
    names: Sequence[str], workdir: Path, config: Mapping[str, Any], step: int
) -> Generator[Callable[[list[dict]], None]]:
    """Yields a function that passes rows to all writers, which are closed at the end.

    `names` are keys of WRITERS; `step` is the step from which the run resumes.
    """
    with contextlib.ExitStack() as stack:
        made = (WRITERS[name][0](workdir, config, step) for name in names)
        writers = [stack.enter_context(contextlib.closing(writer)) for writer in made]

        def write(rows: list[dict]) -> None:
            for writer in writers:
                writer.add(rows)

        yield write
