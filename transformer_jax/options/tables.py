"""Options as they stand in the source: sections of a config, tables of rows, a user's own classes.

Read without running anything, so that a config is checked before jax is imported, and a class that
a stored run names is looked at without being executed. A table at the foot of a file stays the one
place where a row is named, and a field or an argument the one place where an option is.
"""

import ast
import dataclasses
import functools
from pathlib import Path
from typing import Any

from transformer_jax.options.declared import (
    PACKAGE,
    default_of,
    definition_in,
    definition_of,
    fields_of,
    literal_in,
    meanings_of,
    own_file,
    parsed_file,
    rule_of,
    said_of_value,
    with_example,
)
from transformer_jax.options.rule import ValueRule, is_own, one_of, own_or_one_of, own_or_some_of

# Every key that chooses a row: the file of the table, and its name there.
TABLES = {
    "data.task": ("data/tasks/__init__.py", "TASKS"),
    "model.architecture": ("models/__init__.py", "MODELS"),
    "model.encoder.pooling": ("layers/pooling.py", "POOLINGS"),
    "model.vision_transformer.pooling": ("layers/pooling.py", "POOLINGS"),
    "model.recurrent_decoder.cell": ("layers/recurrence.py", "CELLS"),
    "model.recurrent_encoder.cell": ("layers/recurrence.py", "CELLS"),
    "model.recurrent_encoder.pooling": ("layers/pooling.py", "POOLINGS"),
    "model.position": ("layers/positions.py", "POSITIONS"),
    "model.mixer": ("layers/mixers.py", "MIXERS"),
    "model.attention": ("layers/attention.py", "ATTENTIONS"),
    "model.query_key_norm": ("layers/norms.py", "NORMS"),
    "model.mask": ("masks.py", "MASKS"),
    "model.feed_forward": ("layers/feedforward.py", "FEED_FORWARDS"),
    "model.activation": ("layers/feedforward.py", "ACTIVATIONS"),
    "model.norm": ("layers/norms.py", "NORMS"),
    "model.wiring": ("layers/blocks.py", "WIRINGS"),
    "model.skips": ("layers/skips.py", "SKIPS"),
    "model.remat": ("layers/remat.py", "REMATS"),
    "model.initialisation": ("layers/initialisation.py", "INITIALISATIONS"),
    "model.parametrisation": ("layers/parametrisation.py", "PARAMETRISATIONS"),
    "objective.name": ("training/objectives.py", "OBJECTIVES"),
    "optimizer.name": ("training/optimizers.py", "OPTIMIZERS"),
    "schedule.name": ("training/schedules.py", "SCHEDULES"),
    "mesh.rules": ("sharding.py", "RULES"),
}
# Those whose rows have options, and the section in which these stand by row.
OPTION_SECTIONS = {
    f"model.{name}": f"model.{name}_options"
    for name in (
        *("position", "mixer", "attention", "mask", "feed_forward", "norm", "wiring", "skips"),
        *("remat", "initialisation", "parametrisation"),
    )
} | {f"{section}.name": section for section in ("objective", "optimizer", "schedule")}
# Options that name several rows: what looks on while a model is trained, and after it.
SEVERAL = {
    "evaluation.metrics": ("metrics.py", "METRICS"),
    "hooks.functions": ("training/hooks.py", "HOOKS"),
}
# Tables whose rows' options stand by row in the section itself: data.synthetic.symbols.
BY_NAME = {"data.task": "data", "model.architecture": "model"}
# A class of the user's, MODULE.NAME, may take a row's place; its options stand under `own` there.
OWN_SECTIONS = {**BY_NAME, **OPTION_SECTIONS}
OWN = (*TABLES, "data.source", "data.tokenizer")

# The sections of a config: their prefix, and the classes whose fields are their options.
SECTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "" if name == "Run" else f"{name.lower()}.": (("options/sections.py", name),)
    for name in (
        *("Run", "Seeds", "Data", "Model", "Initial", "Training", "Mesh", "Objective", "Optimizer"),
        *("Schedule", "Evaluation", "Hooks", "Logging", "Checkpoint", "Sample"),
    )
}
SECTIONS["model."] += (("models/parts.py", "Transformer"), ("models/decoder.py", "Decoder"))

GIVEN_TO_TASKS = ("batch_size", "stride")  # beside the options of data

# What the model hands to every row that declares it, so that no option may have these names.
_SUPPLIED = (
    *("width", "depth", "num_heads", "head_dim", "mlp_dim", "activation", "scale", "epsilon"),
    "value_dim",
    *("use_bias", "bidirectional", "max_length", "grid", "std", "kernel_gain", "branch_gain"),
    *("kernel_init", "out_init", "dtype", "side", "layer", "name", "parent"),
)


@dataclasses.dataclass(frozen=True)
class Option:
    """What a user may choose.

    Attributes:
      rule: what it may be.
      default: what it is otherwise, a SameAs where that is another option's value.
      meaning: in words, with its unit.
    """

    rule: ValueRule
    default: Any
    meaning: str


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
      name: in the table.
      definition: name of the class or function.
      says: its docstring.
      takes: names of all its fields or arguments.
      options: name -> option.
    """

    name: str
    definition: str
    says: str
    takes: tuple[str, ...]
    options: dict[str, Option]


@functools.cache
def rows_of(key: str) -> dict[str, Row]:
    """Returns the rows that a key of the config chooses from, in the table's order."""
    file, table = {**TABLES, **SEVERAL}[key]
    tree = parsed_file(PACKAGE / file)
    literal = literal_in(tree, table)
    rows = {}
    for name_node, value in zip(literal.keys, literal.values, strict=True):
        assert isinstance(name_node, ast.Constant), f"{table}: expected names as literals"
        name, definition = str(name_node.value), ast.unparse(value)
        definition_there = definition_in(tree, definition) or _imported(tree, definition)
        if definition_there is None:
            rows[name] = Row(name, definition, said_of_value(tree, definition), (), {})
            continue
        rows[name] = _row(name, definition, definition_there, f"{BY_NAME.get(key, key)}.{name}.")
        if key in OPTION_SECTIONS:
            _refuse_supplied(rows[name])
    return rows


@functools.cache
def options_of_section(prefix: str) -> dict[str, Option]:
    """Returns the options of a section, full key -> option; those of rows are not among them."""
    options = {}
    for file, name in SECTIONS[prefix]:
        definition = definition_in(parsed_file(PACKAGE / file), name)
        assert isinstance(definition, ast.ClassDef), f"{file}: {name} is no class"
        options |= _options(definition, prefix)
    return options


def says_of_section(prefix: str) -> str:
    """Returns what the class that declares a section says of itself."""
    file, name = SECTIONS[prefix][0]
    definition = definition_in(parsed_file(PACKAGE / file), name)
    assert definition is not None
    return ast.get_docstring(definition) or ""


def options_of_rows() -> dict[str, Option]:
    """Returns the options of every row, by their keys in a config."""
    options = {}
    for key, section in OWN_SECTIONS.items():
        shared = {name for _, name in SECTIONS.get(f"{section}.", ())}
        for row in rows_of(key).values():
            if row.definition not in shared:
                options |= {f"{section}.{row.name}.{name}": o for name, o in row.options.items()}
    return options


def own_row(choice: str, key: str = "") -> Row:
    """Returns what a class or function of the user's, MODULE.NAME, says of itself; runs nothing.

    An architecture gets the model's options by name, a task those of data, and the size of a batch;
    what else they have are options of their own.

    Raises:
      LookupError: there is no such file, or no such name in it; the text tells.
    """
    row = _row(choice, choice.rpartition(".")[2], definition_of(choice), "")
    section = BY_NAME.get(key)
    if section is None:
        _refuse_supplied(row)
        return row
    shared = {*options_of_section(f"{section}."), *(f"data.{name}" for name in GIVEN_TO_TASKS)}
    own = {n: option for n, option in row.options.items() if f"{section}.{n}" not in shared}
    return dataclasses.replace(row, options=own)


_ENDINGS = tuple(f".{end}" for end in ("csv", "gz", "json", "npz", "tsv", "txt"))  # of files


def names_own(key: str, value: Any) -> bool:
    """Returns whether a value of a config stands for a class or function of the user's own.

    Args:
      key: of the config, that of a model where a type of layer has it.
      value: MODULE.NAME may be the name of a file too, where files may be given: the file wins.
    """
    if key not in OWN or not is_own(value):
        return False
    if key in ("data.source", "data.tokenizer"):
        is_file = Path(value).exists() or value.endswith(_ENDINGS)  # one that is missing, then
        return not is_file and own_file(value) is not None
    return True


def _imported(tree: ast.Module, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    """The class or function of that name that a file imports from another file of this package."""
    for node in tree.body:
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        names = node.names if isinstance(node, ast.ImportFrom) else []
        if module.startswith("transformer_jax.") and name.partition(".")[0] in {
            alias.name for alias in names
        }:
            path = module.partition(".")[2].replace(".", "/")
            return definition_in(parsed_file(PACKAGE / f"{path}.py"), name)
    return None


def _row(name: str, definition: str, node: ast.ClassDef | ast.FunctionDef, prefix: str) -> Row:
    names = tuple(field for field, _, _ in fields_of(node))
    options = {key.removeprefix(prefix): o for key, o in _options(node, prefix).items()}
    return Row(name, definition, ast.get_docstring(node) or "", names, options)


def _options(node: ast.ClassDef | ast.FunctionDef, prefix: str) -> dict[str, Option]:
    """The options among fields or arguments, prefix and name -> option."""
    meanings, options = meanings_of(node), {}
    for field, annotation, default in fields_of(node):
        key = prefix + field
        rule = None if annotation is None else rule_of(annotation)
        if key in TABLES:
            rule = (own_or_one_of if key in OWN else one_of)(*_names(*TABLES[key]))
        elif key in SEVERAL:
            rule = own_or_some_of(*_names(*SEVERAL[key]))
        if rule is not None:
            value = default_of(default, f"{node.name}.{field}")
            options[key] = Option(with_example(rule, value), value, meanings.get(field, ""))
    return options


def _names(file: str, table: str) -> list[str]:
    names = literal_in(parsed_file(PACKAGE / file), table).keys
    return [str(ast.literal_eval(name)) for name in names if name is not None]


def _refuse_supplied(row: Row) -> None:
    for name in row.options:
        if name in _SUPPLIED:
            what = f"{row.definition}.{name}"
            raise LookupError(f"{what}: the model supplies it; name it otherwise")
