r"""Writes the catalogue of components: description, options, laws and cost of each variant.

Example:
  python -m experiments.catalogue --out=docs/catalogue.md
"""

import ast
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.command import Parser, execute, file_to_write, use_compilation_cache
from experiments.field import ROWS
from transformer_jax.config import OPTIONS, VARIANT_SECTIONS
from transformer_jax.declarations import Option
from transformer_jax.metrics import metric_facts
from transformer_jax.options import entry_of
from transformer_jax.resolve import all_options, variant_options
from transformer_jax.sites import SITES

# key of a config -> heading, and a line about the variants
_TITLES = {
    "model.position": ("Positions", "Encodings of token positions."),
    "model.mixer": ("Mixers", "Layers that exchange information between positions."),
    "model.attention": ("Attention", "Weights from queries and keys."),
    "model.values": ("Values", "Changes of the values of self-attention."),
    "model.head_output": (
        "Outputs of heads",
        "Changes of what each head of self-attention returns.",
    ),
    "model.mask": ("Masks", "Positions that self-attention may see."),
    "model.feed_forward": ("Feed-forward layers", "Layers applied to each position separately."),
    "model.activation": ("Activations", "Nonlinearities of the feed-forward layer."),
    "model.norm": ("Norms", "Normalisation; also of queries and keys (`model.query_key_norm`)."),
    "model.wiring": ("Wirings", "Arrangements of branches and norms in a block."),
    "model.convolution": ("Convolutions", "Short convolutions of what a branch of a block reads."),
    "model.stem": ("Stems", "Changes of the embedded input before the first block."),
    "model.heads": ("Heads", "Predictions of further tokens, in training alone."),
    "model.skips": ("Skips", "Earlier residual streams that a block reads besides its own."),
    "model.remat": (
        "Rematerialisation",
        "Values of a block that a training step keeps for its backward pass.",
    ),
    "model.initialisation": ("Initialisations", "Initial values of kernels."),
    "model.parametrisation": (
        "Parametrisations",
        "Scaling of initial values, learning rates and scores with the width.",
    ),
    "model.pooling": ("Poolings", "From all positions to one vector."),
    "objective.name": ("Objectives", "The quantity that training minimises."),
    "optimizer.name": (
        "Optimizers",
        "From optax, with clipping, weight decay and multipliers by parameter path.",
    ),
    "schedule.name": ("Schedules", "The learning rate over the updates."),
}
_HEAD = """# Components

All variants with their descriptions and options, written by `python -m experiments.catalogue`. A
config chooses a variant by name (`--config.model.position=rotary`) and sets its options
(`--config.model.position_options.fraction=0.5`). Your own class is chosen by MODULE:NAME, see
[your own components](own-components.md).

Parameters and operations are relative to a decoder of the shape of `configs/shakespeare.py` (width
128, 4 blocks, 4 heads, 64 tokens) with the default variants. Operations are those of the matrix
products in the loss of one window and its gradient; they are not times. Laws are those of
`transformer_jax/laws.py`. For attention and mixers, operations are also given at 256, 1,024 and
4,096 tokens (`local` with a window of 32).

All variants work in every transformer, except contextual positions, prefix masks, state_space,
gated_delta and forgetting (decoders only), embeddings of tokens in blocks (text only), heads
(models that write), sinusoidal_2d (images only) and muP (decoders and vision transformers).
Learning rates and decay can be multiplied by parameter path
(`--config.optimizer.learning_rate_multipliers=token_embedding=0.1`), and weights averaged
(`--config.training.weight_ema=0.999`).
"""
_METRICS = """
## Metrics

Further scores of a run (`evaluation.metrics`), by which a study can be judged too
(`transformer_jax/metrics.py`). Your own function with `@metric(unit, larger_is_better=...)` is
chosen by its import path.
"""
_HOOKS = """
## Hooks

Functions that run every `hooks.every` updates (`hooks.functions`,
`transformer_jax/training/hooks.py`); your own are chosen by their import path.
"""
_SITES = """
## Named sites

Named places inside every model: `capture` returns their values, `intervene` changes them, and
rematerialisation keeps them by name (`transformer_jax/sites.py`). `*` is the number of a block; in
an encoder–decoder, names begin with `encoder.` or `decoder.`. Shapes: L queries, M keys, H heads, G
heads of keys and values, K and V features of a head, width D, F hidden features.
"""


_ABLATIONS = """
## Ablations of 2024 to 2026

Variants that papers of these years ablate, by arXiv number, and how a run or a study chooses them:
options of a config, or a file of your own (see [your own components](own-components.md)).
"""

_CONFIGS = """
These and older variants are put together in the configs of the repository. Docstrings have records:
"""

_LENGTHS = (256, 1024, 4096)


def main(argv: list[str]) -> None:
    """Reads the arguments, measures every variant and writes the page."""
    parser = Parser("catalogue", __doc__)
    parser.add_argument("--out", default="docs/catalogue.md", help="the page (docs/catalogue.md)")
    arguments = parser.read(argv)
    use_compilation_cache()
    out = file_to_write(arguments.out, "--out")
    parts = [_HEAD]
    for key, (title, what) in _TITLES.items():
        parts.append(f"\n## {title}\n\n{what} `{key}`\n")
        parts += [
            entry(key, name, row, _cost_of(key, name)) for name, row in entries_of(key).items()
        ]
    parts += [metrics(), hooks(), sites(), ablations()]
    out.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    print(f"wrote {out}")


class Entry(NamedTuple):
    """A variant: its docstring, and its options by full key."""

    says: str
    options: dict[str, Option]


def entries_of(key: str) -> dict[str, Entry]:
    """Returns the variants that an option chooses from, by name, in the order of their table."""
    option = OPTIONS[key] if key in OPTIONS else all_options()[key][0][1]
    assert option.variant is not None
    table, section = option.variant.entries(), VARIANT_SECTIONS.get(key)
    return {
        name: Entry(
            inspect.getdoc(entry_of(table, name)) or "",
            (variant_options(key, name) or {}) if section else {},
        )
        for name in table
    }


def entry(key: str, name: str, row: Entry, cost: Sequence[str] | None = None) -> str:
    """Returns the catalogue's section on a variant, as Markdown; `cost` has further lines."""
    described = re.split(r"\n\s*(?:Args|Attributes|Returns|Raises):\n", row.says)[0].strip()
    lines = [f"### `{name}`\n", described, ""]
    for option_key, option in row.options.items():
        lines.append(
            f"- `{option_key}` = {option.default!r} ({option.allowed}): "
            f"{option.meaning.rstrip('.')}"
        )
    return "\n".join([*lines, *(cost or ())]) + "\n"


def metrics() -> str:
    """Returns the catalogue's section on metrics, as Markdown."""
    rows = []
    for name, row in entries_of("evaluation.metrics").items():
        facts = metric_facts(name)
        better = "larger" if facts.larger_is_better else "smaller"
        rows.append(f"| `{name}` | {facts.unit} | {better} | {' '.join(row.says.split())} |")
    return "\n".join([_METRICS, "| metric | unit | better | |", "|---|---|---|---|", *rows, ""])


def hooks() -> str:
    """Returns the catalogue's section on hooks, as Markdown."""
    rows = (
        f"| `{name}` | {' '.join(row.says.split())} |"
        for name, row in entries_of("hooks.functions").items()
    )
    return "\n".join([_HOOKS, "| hook | result |", "|---|---|", *rows, ""])


def sites() -> str:
    """Returns the catalogue's section on sites, as Markdown."""
    rows = (f"| `{name}` | {what} |" for name, what in SITES.items())
    return "\n".join([_SITES, "| site | value |", "|---|---|", *rows])


def ablations() -> str:
    """Returns the catalogue's section on ablations of recent papers, as Markdown."""
    rows = []
    for row in ROWS:
        options = "<br>".join(f"`{key}={value}`" for key, value in row.options.items())
        rows.append(f"| {row.variant} | {row.how} | {options} |")
    table = [_ABLATIONS, "| variant | expressed by | options |", "|---|---|---|", *rows]
    configs = []
    for path in sorted((Path(__file__).parents[1] / "configs").glob("[a-z]*.py")):
        summary = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        configs.append(f"| `configs/{path.name}` | {summary} |")
    return "\n".join([*table, _CONFIGS, "| config | what it trains |", "|---|---|", *configs])


def _cost_of(key: str, name: str) -> list[str]:
    """Returns lines about the cost of a variant, measured in a decoder relative to the default."""
    # sinusoidal_2d needs rows and columns, which text does not have.
    if not key.startswith("model.") or key not in OPTIONS or name == "sinusoidal_2d":
        return []
    print(f"{key}={name}", flush=True)
    family = key.removeprefix("model.")
    fields: dict[str, Any] = {family: name}
    parameters, operations = _times_the_default(fields)
    lines = [
        f"- {parameters:.3f} times the parameters, {operations:.3f} times the operations; "
        f"{_laws_kept(fields)} laws kept"
    ]
    if family in ("attention", "mixer"):
        fields |= {"mask": "window"} if name == "local" else {}
        times = ", ".join(f"{_times_the_default(fields, n)[1]:.3f}" for n in _LENGTHS)
        lines.append(f"- at {', '.join(f'{n:,}' for n in _LENGTHS)} tokens: {times} times")
    return lines


def _times_the_default(fields: dict[str, Any], length: int = 64) -> tuple[float, float]:
    (parameters, operations), base = _size_of(fields, length), _size_of({}, length)
    return parameters / base[0], operations / base[1]


def _size_of(fields: dict[str, Any], length: int) -> tuple[float, float]:
    """Returns a decoder's number of parameters, and of operations for its loss and gradient."""
    import jax
    import jax.numpy as jnp

    from transformer_jax.models import Decoder
    from transformer_jax.training.flops import flops_of

    shape: dict[str, Any] = {"vocab_size": 65, "max_length": length, "use_bias": False}
    model = Decoder.of(**shape | fields)
    tokens = jnp.zeros((1, length), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]

    # Rematerialisation takes effect in training alone.
    trains: dict[str, Any] = {"train": True, "rngs": {"dropout": jax.random.key(0)}}
    options = trains if "remat" in fields else {}

    def loss(params: Any) -> jax.Array:
        logits: Any = model.apply({"params": params}, tokens, **options)
        return jax.nn.log_softmax(logits)[..., 0].sum()

    operations = flops_of(jax.make_jaxpr(jax.value_and_grad(loss))(params))
    return sum(leaf.size for leaf in jax.tree.leaves(params)), operations


def _laws_kept(fields: dict[str, Any]) -> str:
    from transformer_jax.laws import LAWS, Subject, small_decoder

    subject = Subject(small_decoder(**fields))
    num_kept = 0
    for name, law in LAWS.items():
        try:
            law(subject)
        except AssertionError as error:
            print(f"  {name}: {error}")
        else:
            num_kept += 1
    return f"{num_kept} of {len(LAWS)}"


if __name__ == "__main__":
    execute(main)
