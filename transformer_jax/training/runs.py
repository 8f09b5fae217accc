"""A run is a directory that needs no code of ours to read.

config.json      the resolved config
manifest.json    what ran: versions, git revision, device, hashes of data and tokenizer, launches
STATUS           running | done | failed | interrupted, when, and at which step
tokenizer.json   the tokenizer
metrics.jsonl    one object a line
evaluation.json  the final evaluation of each split, and its protocol
sequences.npz    its loss, weight and bytes for each window
samples/  checkpoints/  loss.png  diff.patch
"""

import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import platform
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Generator
from importlib import metadata
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.data.tokenizers import Tokenizer, load_tokenizer, save_tokenizer
from transformer_jax.errors import InvalidInput, Stop
from transformer_jax.training import config as configs
from transformer_jax.training.interruption import Interrupted

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "ml-collections", "numpy")
_ENVIRONMENT = ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION")


class RunDirectory:
    """The files of one run, and who may write them.

    Attributes:
      path: of the directory; the other paths are inside it.
      step: updates so far, as STATUS tells them.
    """

    def __init__(self, path: str | Path) -> None:
        """Creates nothing yet."""
        self.path = Path(path)
        self.step = 0
        self.config_path = self.path / "config.json"
        self.manifest_path = self.path / "manifest.json"
        self.tokenizer_path = self.path / "tokenizer.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.status_path = self.path / "STATUS"
        self.checkpoints = self.path / "checkpoints"
        self.samples = self.path / "samples"

    # ---- opening

    def refuse_other_config(self, config: ConfigDict) -> None:
        """Checks that the directory is new, empty, or this config's.

        Raises:
          InvalidInput: it belongs to a run with another config, or to something else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InvalidInput(f"--workdir={self.path}: there is a file of that name")
        if not self.config_path.exists():
            ours = (".lock", "STATUS")
            if self.path.is_dir() and any(e.name not in ours for e in self.path.iterdir()):
                raise InvalidInput(
                    f"--workdir={self.path}: the folder holds files but no run; "
                    "choose a new or an empty one"
                )
            return
        changed = {
            key: pair
            for key, pair in configs.differences(self.config(), config).items()
            if not key.startswith(configs.CADENCE)
        }
        if changed:
            lines = [f"  {key}: {old} there, {new} now" for key, (old, new) in changed.items()]
            if len(lines) > 5:
                lines[5:] = [f"  ... and {len(lines) - 5} more"]
            raise InvalidInput(
                f"--workdir={self.path}: it holds a run with another config\n"
                + "\n".join(lines)
                + "\nchoose another --workdir, or give the same config to resume"
            )

    @contextlib.contextmanager
    def failures_recorded(self) -> Generator[None]:
        """Leaves STATUS `failed` with the reason, and error.txt where the reason is a fault."""
        try:
            yield
        except (InvalidInput, Interrupted):
            raise
        except BaseException as error:
            if not isinstance(error, Stop):
                self.write_text("error.txt", traceback.format_exc())
            self.write_status("failed", f"{type(error).__name__}: {error}".splitlines()[0])
            raise

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Keeps a second process from writing here; the system frees the lock of a dead one.

        Raises:
          InvalidInput: another process is training here, or the folder is read-only.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("a+")
        except OSError as error:
            raise InvalidInput(f"--workdir={self.path}: not writable: {error.strerror}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.seek(0)
                raise InvalidInput(
                    f"--workdir={self.path}: another process is training here: "
                    f"{lock.read().strip()}\nwait for it, stop it, or choose another --workdir"
                ) from error
            lock.truncate(0)
            lock.write(f"pid {os.getpid()} on {socket.gethostname()}, since {_now()}\n")
            lock.flush()
            yield

    # ---- reading

    def config(self) -> ConfigDict:
        """The stored config, checked against today's rules; nothing that it names is imported."""
        return configs.from_json(self._text(self.config_path), str(self.config_path))

    def manifest(self) -> dict:
        """What ran."""
        return _parse(self._text(self.manifest_path), self.manifest_path)

    def status(self) -> str:
        """The first word of STATUS; `missing` without one."""
        words = self.status_path.read_text().split() if self.status_path.exists() else []
        return words[0] if words else "missing"

    def tokenizer(self) -> Tokenizer:
        """The run's own tokenizer."""
        return load_tokenizer(self.tokenizer_path)

    def metrics(self) -> list[dict]:
        """The rows of metrics.jsonl; a line torn by a kill is left out."""
        if not self.metrics_path.exists():
            return []
        rows = []
        for line in self.metrics_path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                rows.append(json.loads(line))
        return rows

    def _text(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"--workdir={self.path}: no run here: {error}") from error

    # ---- writing

    def write_status(self, word: str, reason: str = "") -> None:
        """Replaces STATUS; its time is the run's heartbeat."""
        _replace(self.status_path, f"{word} {_now()} step {self.step} {reason}".rstrip() + "\n")

    def write_json(self, name: str, value: Any) -> Path:
        """Replaces a JSON file."""
        return _replace(self.path / name, json.dumps(value, indent=1) + "\n")

    def write_text(self, name: str, value: str) -> Path:
        """Replaces a text file."""
        return _replace(self.path / name, value)

    def begin(
        self, config: ConfigDict, tokenizer: Tokenizer, data: dict, facts: dict[str, Any]
    ) -> None:
        """Writes config, tokenizer and manifest before the first step, and notes this launch.

        Args:
          config: resolved.
          tokenizer: of the data.
          data: what identifies the data.
          facts: what else the manifest shall hold.
        Raises:
          InvalidInput: the data is not what the run began with.
        """
        if self.manifest_path.exists():
            manifest = self.manifest()
            self._refuse_other_data(manifest["data"], data)
        else:
            around, difference = surroundings()
            manifest: dict[str, Any] = {**facts, "data": data, **around, "launches": []}
            if difference:
                self.write_text("diff.patch", difference)
        self.write_text("config.json", configs.to_json(config))
        save_tokenizer(tokenizer, self.tokenizer_path)
        manifest["launches"].append({"time": _now(), "argv": sys.argv, "pid": os.getpid()})
        self.write_json("manifest.json", manifest)

    def _refuse_other_data(self, stored: dict, now: dict) -> None:
        changed = [key for key in now if stored.get(key) != now[key] and key != "source"]
        if changed:
            lines = [f"  {key}: {stored.get(key)} there, {now[key]} now" for key in changed]
            raise InvalidInput(
                f"--workdir={self.path}: the data changed since this run began\n"
                + "\n".join(lines)
                + "\nrestore the data, or choose another --workdir"
            )

    def amend_launch(self, **facts: Any) -> None:
        """Adds facts to this launch's entry in the manifest."""
        manifest = self.manifest()
        manifest["launches"][-1] |= facts
        self.write_json("manifest.json", manifest)

    def append_metrics(self, rows: list[dict]) -> None:
        """Adds rows to metrics.jsonl."""
        with self.metrics_path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def cut_metrics(self, step: int) -> None:
        """Drops rows after a step, and a torn last line, so that a resumed run has no zigzag."""
        kept = [row for row in self.metrics() if row["step"] <= step]
        _replace(self.metrics_path, "".join(json.dumps(row) + "\n" for row in kept))


def _parse(text: str, path: Path) -> dict:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{path}: expected JSON: {error}") from error


def _replace(path: Path, text: str) -> Path:
    """Writes a file whole or not at all."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
    return path


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


# ---------------------------------------------------------------- provenance


def surroundings() -> tuple[dict, str]:
    """Returns what a run depends on beside its config, and the diff of the working tree.

    No value of the environment outside a short list, no remote address and no user name.
    """
    import jax

    device = jax.devices()[0]
    facts = {
        "packages": {name: metadata.version(name) for name in _PACKAGES if _is_installed(name)},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": {
            "kind": device.device_kind,
            "platform": device.platform,
            "count": jax.device_count(),
        },
        "environment": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    }
    if not _git("ls-files", "--", __file__):  # installed into somebody else's repository
        return facts | {"git": None}, ""
    difference = _git("diff", "HEAD", "--", ":/")
    facts["git"] = {
        "revision": _git("rev-parse", "HEAD").strip(),
        "dirty": bool(difference),
        "untracked": _git("ls-files", "--others", "--exclude-standard", "--", ":/").splitlines(),
    }
    return facts, difference


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _git(*arguments: str) -> str:
    """Output of git on the tree that this package is in; empty outside a repository."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=here, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


# ---------------------------------------------------------------- using a finished run


@dataclasses.dataclass(frozen=True)
class Run:
    """A trained model with all that it needs.

    Attributes:
      config: the run's resolved config.
      model: the Linen module; `model.apply({'params': params}, tokens)` gives logits.
      params: of the newest whole checkpoint.
      tokenizer: text <-> tokens.
      step: optimizer updates behind the parameters.
    """

    config: ConfigDict
    model: Any
    params: Any
    tokenizer: Tokenizer
    step: int

    def sample(
        self,
        prompt: str = "\n",
        num_tokens: int = 300,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> str:
        """Continues a prompt.

        Args:
          prompt: text in characters that the tokenizer knows; not empty.
          num_tokens: tokens to add.
          temperature: 0 takes the likeliest token.
          top_k: draw among the k likeliest only.
          top_p: draw among the likeliest that together reach this probability.
          seed: the same seed gives the same text.
        Returns:
          The continuation, without the prompt.
        Raises:
          InvalidInput: an unknown character, an empty prompt, an option without meaning, or a
            model whose logits are not numbers.
        """
        import jax
        import jax.numpy as jnp

        from transformer_jax.generation import generate, windowed_next_logits

        tokens = jnp.asarray(self.tokenizer.encode(prompt))
        max_length = self.config.model.max_length

        @jax.jit
        def draw(params, tokens, rng):
            apply = lambda context: self.model.apply({"params": params}, context)  # noqa: E731
            return generate(
                windowed_next_logits(apply),
                tokens,
                num_tokens,
                rng,
                max_length,
                temperature,
                top_k,
                top_p,
            )

        drawn = draw(self.params, tokens, jax.random.key(seed))
        if (drawn < 0).any():
            raise InvalidInput(
                "the model's logits are NaN: its parameters or the prompt are broken"
            )
        return self.tokenizer.decode(drawn.tolist())


def load_run(workdir: str | Path, say: Callable[[str], None] = print) -> Run:
    """Loads the newest whole checkpoint of a run; writes nothing, so a read-only copy will do.

    Args:
      workdir: the run's directory.
      say: takes one line about each checkpoint that is skipped.
    Returns:
      The run, ready to apply or to sample from.
    Raises:
      InvalidInput: no run, no whole checkpoint, a damaged or foreign one, or another tokenizer
        than the run was trained with.
    """
    import jax

    from transformer_jax.data.tokenizers import fingerprint
    from transformer_jax.training.build import make_model
    from transformer_jax.training.checkpoints import Checkpoints
    from transformer_jax.training.optimizers import make_optimizer
    from transformer_jax.training.step import make_initial_state

    directory = RunDirectory(workdir)
    config, tokenizer = directory.config(), directory.tokenizer()
    if fingerprint(tokenizer) != directory.manifest()["data"]["tokenizer_sha256"]:
        raise InvalidInput(
            f"{directory.tokenizer_path}: not the tokenizer that this run was trained with"
        )
    model = make_model(config.model, tokenizer.vocab_size)
    template = jax.eval_shape(make_initial_state(model, make_optimizer(config), config))
    restored = Checkpoints(directory.checkpoints, say=say).restore(template, read_only=True)
    if restored is None:
        raise InvalidInput(f"--workdir={workdir}: no checkpoint yet; train it first")
    return Run(config, model, restored.state.params, tokenizer, restored.step)
