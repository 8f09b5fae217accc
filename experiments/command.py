"""Arguments and exit codes of every command; importing this module does not import jax."""

import argparse
import contextlib
import hashlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from experiments.explained import as_lines, says
from transformer_jax.config import OPTIONS, SECTIONS
from transformer_jax.config_files import ConfigFile, flatten, resolved
from transformer_jax.constraints import ENDING
from transformer_jax.errors import InvalidInput, Stop, suggest
from transformer_jax.resolve import all_options, completed
from transformer_jax.runs.streams import Tolerant, plain_warnings

_UNITS = {"s": 1, "m": 60, "h": 3600}
_PRESETS = ("configs/ablations", "configs")
_LONGEST = 100  # characters of a directory's name
_FEW = 10  # most commands that an error message lists
_COMPLETES = "_ARGCOMPLETE"  # set if a shell asks for completions; see argcomplete


def file_to_write(path: str | Path, flag: str) -> Path:
    """Returns the path of a file to be written, and creates its folder.

    Raises:
      InvalidInput: The path is a folder, or its folder cannot be created.
    """
    path = Path(path)
    if path.is_dir():
        raise InvalidInput(f"{flag}={path}: there is a folder with that name; expected a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{flag}={path}: {path.parent}: {error.strerror}") from error
    return path


def refuse_unread(arguments: argparse.Namespace, names: Iterable[str], when: str) -> None:
    """Raises InvalidInput if one of some options, whose default is None, was given."""
    if given := [f"--{name}" for name in names if getattr(arguments, name) is not None]:
        raise InvalidInput(f"{', '.join(given)}: not read {when}")


@contextlib.contextmanager
def by_flags(*names: str) -> Generator[None]:
    """Replaces names of `data` options with flags in error messages, for use without a config.

    Args:
      *names: Names of the options that are flags of the command.
    """
    try:
        yield
    except InvalidInput as error:
        text = re.sub(rf"^(data\.)?(?=({'|'.join(names)})=)", "--", str(error))
        raise InvalidInput(text) from error


_FEWEST_EVALUATIONS = 5  # of a run that the command line made shorter


class Ended(NamedTuple):
    """A command's result with its exit code."""

    found: Any
    exit_code: int


class Parser(argparse.ArgumentParser):
    """An argument parser whose error messages suggest the nearest choice, with exit code 2.

    With `takes_config`, `--config=FILE` is required and every `--config.KEY=VALUE` is collected.
    """

    def __init__(
        self, verb: str, description: str, takes_config: bool = False, config_required: bool = True
    ) -> None:
        """Sets the name of the command, `verb`, as the user types it, and its description."""
        super().__init__(
            prog=f"python -m experiments.{verb}".rstrip("."),
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=_sections_help() if takes_config else None,
            add_help=not takes_config,
        )
        self.takes_config = takes_config
        if takes_config:
            help_text = "show this, or help on an option or a section of options: --help=model"
            self.add_argument("-h", "--help", nargs="?", metavar="OPTION", help=help_text)
            what = "a Python file with get_config(); the name of one in configs, such as tiny; or "
            what += "a Hugging Face model to start from: its folder, or OWNER/NAME on the hub"
            self.add_argument("--config", required=config_required, help=what)

    def add_allow(self) -> None:
        """Adds --allow, the modules that may be imported for a run's user-defined classes."""
        what = "import this module if the run names a class in it; can be repeated"
        self.add_list("--allow", "MODULE", what)

    def add_list(self, flag: str, metavar: str, what: str) -> None:
        """Adds a flag that can be repeated, whose values become a list."""
        self.add_argument(flag, action="append", default=[], metavar=metavar, help=what)

    def add_run(self) -> None:
        """Adds --workdir, the directory of a trained run."""
        what = "a run's directory, or a Hugging Face model"
        self.add_argument("--workdir", required=True, help=what)

    def add_mesh(self, default: str = "one device") -> None:
        """Adds --mesh, the devices over which a trained run is spread."""
        what = f"spread the run over devices: fsdp=8, or data=2,tensor=4 ({default})"
        self.add_argument("--mesh", type=_sizes, default={}, help=what)

    def add_json(self) -> None:
        """Adds --json, which prints the result of `main` as one line, and all else to stderr."""
        self.add_argument("--json", action="store_true", help="print the result as a line of JSON")

    def choose(self, argv: list[str], names: Collection[str]) -> str:
        """Returns the first argument, a command's name; "" if help was requested and shown.

        Raises:
          InvalidInput: There is no such command, or no word was given.
        """
        first = argv[0] if argv else ""
        if first in names:
            return first
        if is_completing():
            self.add_argument("command", choices=list(names))
            self._complete()
        if first in ("-h", "--help"):
            self.print_help()
            return ""
        few = f"expected one of: {', '.join(names)}" if len(names) <= _FEW else "no such command"
        message = f"{first}: {few}{suggest(first, names)}" if first else few
        raise InvalidInput(f"{message}\nsee {self.prog} --help")

    def _complete(self) -> NoReturn:
        """Answers a shell's request for completions."""
        import argcomplete

        if self.takes_config:
            for key, names in _names_by_key().items():
                self.add_argument(f"--config.{key}", choices=names or None)
        for action in self._actions:
            if action.dest == "config":
                vars(action)["completer"] = _complete_config
        # The number of words that name the command; the words after them are completed.
        os.environ[_COMPLETES] = str(1 + len(self.prog.replace(".", " ").split()[3:]))
        argcomplete.autocomplete(self, always_complete_options="long")
        sys.exit(1)

    def error(self, message: str) -> NoReturn:
        """Raises InvalidInput instead of printing the usage."""
        raise InvalidInput(f"{message}\nsee {self.prog} --help")

    def read(self, argv: list[str]):
        """Returns the parsed arguments; `config` is a checked, locked ConfigDict.

        Raises:
          InvalidInput: A flag, key or value is invalid; one report has all problems of the config.
        """
        if is_completing():
            self._complete()
        home = os.path.expanduser("~")  # which shells expand only at the start of a word
        named = re.compile(r"(--(?![\w.]*prompt=)[\w.]+=)~(?=/|$)")  # a prompt is text
        argv = [named.sub(lambda match: match[1] + home, a) if named.match(a) else a for a in argv]
        asked = [a for a in argv if a == "-h" or a.partition("=")[0] == "--help"]
        if asked and self.takes_config:
            about = asked[0].partition("=")[2]
            behind = argv[argv.index(asked[0]) + 1 :]
            if not about and behind and not behind[0].startswith("-"):
                about = behind[0]
            files = [a.partition("=")[2] for a in argv if a.startswith("--config=")]
            flat = {}
            if files and about:  # its components of the user's own have options too
                flat = resolved(_file_at(preset(files[0])).config(_split_overrides(argv)[0]))
            print(_help_on(about, flat) if about else self.format_help())
            if value := flat.get(about.removeprefix("--").removeprefix("config.")):
                print(f"  in {files[0]}: {value}")
            sys.exit(0)
        flags = [a.partition("=")[0] for a in argv if a.startswith("--")]
        lists = [a.option_strings for a in self._actions if isinstance(a.default, list)]
        for flag in dict.fromkeys(flags):
            if flags.count(flag) > 1 and [flag] not in lists:
                print(f"note   {flag} is given more than once: the last counts", file=sys.stderr)
        overrides, rest = _split_overrides(argv) if self.takes_config else ({}, argv)
        arguments, unknown = self.parse_known_intermixed_args(rest)
        if unknown:
            flags = [flag for action in self._actions for flag in action.option_strings]
            flags += [f"--config.{key}" for key in _names_by_key()] if self.takes_config else []
            wrong = unknown[0].split("=")[0]
            raise InvalidInput(
                f"{wrong}: no such flag{suggest(wrong, flags)}\nsee {self.prog} --help"
            )
        if self.takes_config and arguments.config is None:
            if overrides:
                raise InvalidInput(f"--config.{next(iter(overrides))}: expected --config=FILE too")
        elif self.takes_config:
            arguments.config_path = preset(arguments.config)
            arguments.file = _file_at(arguments.config_path)
            arguments.stated = dict(overrides)
            overrides |= fitted_to_short_run(arguments.file, overrides, print)
            arguments.overrides = overrides
            arguments.config = arguments.file.config(overrides)
        return arguments


def _sizes(text: str) -> dict[str, int]:
    """Parses AXIS=NUMBER,AXIS=NUMBER into the number of devices by axis."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    try:
        sizes = {axis: int(size) for axis, _, size in pairs}
        if len(sizes) < len(pairs):
            raise ValueError("an axis twice")
        return sizes
    except ValueError as error:
        what = f"{text}: expected each axis once, with a number of devices: fsdp=4,tensor=2"
        raise argparse.ArgumentTypeError(what) from error


def is_completing() -> bool:
    """Returns whether this process was started by a shell to complete a command."""
    return _COMPLETES in os.environ


def words_so_far() -> list[str]:
    """Returns this command's arguments, or for completion the words before the cursor."""
    if not is_completing():
        return sys.argv[1:]
    from argcomplete.lexers import split_line

    *_, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
    return words[1:]


def preset(path: str) -> str:
    """Returns the path of a config given by path or name: tiny is configs/tiny.py.

    Raises:
      InvalidInput: There is no config with that name.
    """
    if Path(path).suffix or "/" in path or Path(path).is_file():
        return path
    from transformer_jax.hub import holds_weights

    if holds_weights(Path(path)):
        return path
    presets = _presets()
    if path not in presets:
        near = suggest(path, presets)
        raise InvalidInput(f"--config={path}: no such file, nor a name in configs{near}")
    return presets[path]


def _presets() -> dict[str, str]:
    """Returns the paths of all configs in `configs` by name."""
    return {file.stem: str(file) for folder in _PRESETS for file in Path(folder).glob("[!_]*.py")}


def _complete_config(prefix: str, **_: Any) -> list[str]:
    """Returns names of configs, and files, that begin with `prefix`."""
    from argcomplete.completers import FilesCompleter

    named = [name for name in _presets() if name.startswith(prefix)]
    return [*named, *FilesCompleter(["py"])(prefix)]


def _file_at(path: str) -> ConfigFile:
    """Returns the config at a path: a file, or a Hugging Face folder or repository."""
    if path.endswith(".py"):
        return ConfigFile(path)
    from transformer_jax.hub import is_of_huggingface

    if not is_of_huggingface(path):
        return ConfigFile(path)
    from transformer_jax.training.pretrained import FolderAsConfig

    return FolderAsConfig(path)


def fitted_to_short_run(
    file: ConfigFile, overrides: Mapping[str, str], say: Callable[[str], None] = lambda line: None
) -> dict[str, str]:
    """Returns changes that shorten warm-up and evaluation intervals in a shortened run.

    Args:
      file: File of the config.
      overrides: Strings from the command line by full key; options in it stay unchanged.
      say: Function that receives a line about each change.
    """
    if "training.steps" not in overrides:
        return {}
    options = flatten(file.stated(overrides))
    schedule = overrides.get("schedule.name", options.get("schedule.name", "warmup_cosine"))
    flat = completed(options | {"schedule.name": schedule})
    try:
        steps = OPTIONS["training.steps"].parse(overrides["training.steps"])
    except (ValueError, OverflowError):  # refused later, with everything else
        return {}
    whole, changes = flat["training.steps"], {}
    if not all(isinstance(number, int) for number in (whole, steps)) or not 0 < steps < whole:
        return {}
    key = "schedule.warmup_steps"
    before = flat.get(key) if schedule in ENDING and key not in overrides else None
    if isinstance(before, int) and steps <= before < whole:
        changes[key] = shorter = before * steps // whole
        say(f"note   {key}={shorter}: the same share of {steps:,} updates as {before} of {whole:,}")
    key = "evaluation.every"
    every = flat[key] if key not in overrides else None
    if isinstance(every, int) and steps < _FEWEST_EVALUATIONS * every:
        changes[key] = every = max(1, steps // _FEWEST_EVALUATIONS)
        say(f"note   {key}={every}, so that {steps:,} updates give a curve")
    return {key: str(value) for key, value in changes.items()}


def default_workdir(path: str, overrides: dict[str, str]) -> str:
    """Returns the default directory of a run, named after its config and its changes."""
    lasts = [key.rsplit(".", 1)[-1] for key in overrides]
    keys = [k if lasts.count(last) > 1 else last for k, last in zip(overrides, lasts, strict=True)]
    config, at, revision = path.partition("@")  # of a model on the hub
    stem = Path(config).stem + at + revision
    parts = [stem, *map("=".join, zip(keys, overrides.values(), strict=True))]
    name = re.sub(r"[^\w.=,+-]", "_", ",".join(parts))
    if len(name) > _LONGEST:
        digest = hashlib.sha256(repr(sorted(overrides.items())).encode()).hexdigest()[:8]
        name = f"{name[: _LONGEST - 9]}-{digest}"
    return f"runs/{name}"


def seconds_of(flag: str, text: str) -> float:
    """Parses a time such as 90s, 10m or 2h, or a number of seconds, into seconds."""
    number, unit = re.fullmatch(r"([\d.]*)(.*)", text, re.DOTALL).groups()  # ty: ignore
    try:
        return float(number) * _UNITS[unit or "s"]
    except (KeyError, ValueError):
        raise InvalidInput(f"{flag}={text}: expected a time such as 90s, 10m or 2h") from None


def _split_overrides(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    """Returns the overrides of config options by key, and the other arguments.

    Overrides are `--config.KEY=VALUE`, `--config.KEY VALUE`, `--config.KEY` and `--noconfig.KEY`.
    """
    overrides, rest, waiting = {}, [], list(argv)
    while waiting:
        argument = waiting.pop(0)
        flag, equals, value = argument.partition("=")
        if flag.startswith("--noconfig."):
            overrides[flag.removeprefix("--noconfig.")] = "False"
        elif flag.startswith("--config."):
            if not equals:
                has_value = waiting and not waiting[0].startswith("--")
                value = waiting.pop(0) if has_value else "True"
            overrides[flag.removeprefix("--config.")] = value
        else:
            rest.append(argument)
    return overrides, rest


def _names_by_key() -> dict[str, tuple[str, ...]]:
    """Returns the names that each option accepts as its value, by the option's key."""
    names = {key: option.names for key, option in OPTIONS.items()}
    return names | {key: owners[0][1].names for key, owners in all_options().items()}


def _sections_help() -> str:
    """Returns the sections of a config, one line each."""
    wide = max(map(len, SECTIONS))
    meanings = {name.rstrip(".") or "seed": says(section) for name, section in SECTIONS.items()}
    lines = [f"  {name:<{wide}}  {meaning}" for name, meaning in meanings.items()]
    head = "options of a config, given as --config.KEY=VALUE; --help=SECTION lists them:"
    return "\n".join([head, *lines])


def _help_on(name: str, flat: Mapping[str, Any]) -> str:
    """Returns help on an option or a section of options, with defaults, not the file's values.

    Raises:
      InvalidInput: There is no section or option with that name.
    """
    name = name.removeprefix("--").removeprefix("config.").rstrip(".")
    text = as_lines(name, flat)
    if not text:
        sections = [section.rstrip(".") for section in SECTIONS if section]
        raise InvalidInput(
            f"--help={name}: no such option{suggest(name, [*sections, *_names_by_key()])}"
        )
    return text


def use_compilation_cache() -> None:
    """Keeps compiled programs on disk, so that a second launch compiles nothing.

    JAX_COMPILATION_CACHE_DIR sets the folder; there is no cache if it is not writable.
    """
    import jax

    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(
        os.environ.get("JAX_COMPILATION_CACHE_DIR") or home / "transformer_jax" / "compiled"
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def execute(main: Callable[[list[str]], Any], argv: Sequence[str] | None = None) -> NoReturn:
    """Runs a command; expected errors end it with a message and no traceback.

    Args:
      main: Function that takes the arguments; its result is printed if they contain --json.
      argv: Arguments of the command; those of the process if None.
    """
    asked = list(sys.argv[1:] if argv is None else argv)
    os.environ["MPLBACKEND"] = "agg"  # a notebook's, which commands inherit, may not be installed
    err = Tolerant(sys.stderr)
    out = err if "--json" in asked else Tolerant(sys.stdout)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), plain_warnings():
            outcome = main(asked)
            out.flush()
        result = outcome if isinstance(outcome, Ended) else Ended(outcome, 0)
        if "--json" in asked:
            _print_json(result.found)
            sys.stdout.flush()
    except Stop as error:
        lines = str(error).splitlines()
        shown = lines if len(lines) <= 8 else [*lines[:7], f"... and {len(lines) - 7} more lines"]
        if was_asked := error.exit_code > 128:  # by a signal: another must not break into the end
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("error: " * (not was_asked) + "\n".join(shown), file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        from transformer_jax.runs.files import DISK_ERRORS, REFUSED_PATHS

        if error.errno in REFUSED_PATHS and error.filename:
            print(f"error: {str(error.filename)[:80]}: {error.strerror}", file=sys.stderr)
            sys.exit(2)
        if error.errno not in DISK_ERRORS:
            raise
        what = "what was finished is kept, and the same command continues"
        print(f"error: {error.filename or 'writing'}: {error.strerror}; {what}", file=sys.stderr)
        sys.exit(1)
    except (AssertionError, RuntimeError) as error:
        if not traceback.extract_tb(error.__traceback__)[-1].filename.endswith("xla_bridge.py"):
            raise
        asked = os.environ.get("JAX_PLATFORMS", "")
        print(f"error: JAX_PLATFORMS={asked}: jax has no such device: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # training handles this itself; see runs/interruption
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(result.exit_code)


def _print_json(result: Any) -> None:
    """Prints a result as one line of valid JSON."""
    import json

    from transformer_jax.runs.files import as_plain

    print(json.dumps(as_plain(result), allow_nan=False))
