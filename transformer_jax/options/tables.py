"""Options as they stand in the source: sections of a config, tables of rows, a user's own classes.

Read without running anything, so that a config is checked before jax is imported, and a class that
a stored run names is looked at without being executed. A table at the foot of a file stays the one
place where a row is named, and a field or an argument the one place where an option is.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import sys
from pathlib import Path
from typing import Any

from transformer_jax.options.rule import (
    SPECIAL,
    Rule,
    bounded,
    is_own,
    one_of,
    optional,
    own_or_one_of,
    some_of,
    text,
)
from transformer_jax.options.types import SameAs

_PACKAGE = Path(__file__).parents[1]

# Every key that chooses a row: the file of the table, and its name there.
TABLES = {
    "data.task": ("data/tasks/__init__.py", "TASKS"),
    "model.architecture": ("models/__init__.py", "MODELS"),
    "model.encoder.pooling": ("layers/pooling.py", "POOLINGS"),
    "model.vision_transformer.pooling": ("layers/pooling.py", "POOLINGS"),
    "model.vision_transformer.stem": ("layers/stems.py", "STEMS"),
    "model.recurrent_decoder.cell": ("models/recurrent.py", "CELLS"),
    "model.recurrent_encoder_decoder.cell": ("models/recurrent.py", "CELLS"),
    "model.position": ("layers/positions.py", "POSITIONS"),
    "model.mixer": ("layers/mixers.py", "MIXERS"),
    "model.attention": ("layers/attention.py", "ATTENTIONS"),
    "model.projections": ("layers/projections.py", "PROJECTIONS"),
    "model.query_key_norm": ("layers/norms.py", "NORMS"),
    "model.mask": ("masks.py", "MASKS"),
    "model.feed_forward": ("layers/feedforward.py", "FEED_FORWARDS"),
    "model.activation": ("layers/feedforward.py", "ACTIVATIONS"),
    "model.norm": ("layers/norms.py", "NORMS"),
    "model.wiring": ("layers/blocks.py", "WIRINGS"),
    "model.skips": ("layers/skips.py", "SKIPS"),
    "model.initialisation": ("layers/initialisation.py", "INITIALISATIONS"),
    "model.parametrisation": ("layers/parametrisation.py", "PARAMETRISATIONS"),
    "objective.name": ("training/objectives.py", "OBJECTIVES"),
    "optimizer.name": ("training/optimizers.py", "OPTIMIZERS"),
    "schedule.name": ("training/schedules.py", "SCHEDULES"),
}
# Those whose rows have options, and the section in which these stand by row.
FAMILIES = {
    "model.position": "model.position_options",
    "model.mixer": "model.mixer_options",
    "model.attention": "model.attention_options",
    "model.mask": "model.mask_options",
    "model.feed_forward": "model.feed_forward_options",
    "model.norm": "model.norm_options",
    "model.wiring": "model.wiring_options",
    "model.skips": "model.skips_options",
    "model.initialisation": "model.initialisation_options",
    "model.parametrisation": "model.parametrisation_options",
    "objective.name": "objective",
    "optimizer.name": "optimizer",
    "schedule.name": "schedule",
}
# A class of the user's, MODULE.NAME, may take a row's place; its options stand under `own` there.
OWN_SECTIONS = {**FAMILIES, "model.architecture": "model", "data.task": "data"}
OWN = (
    *(*OWN_SECTIONS, "model.activation", "model.query_key_norm", "data.source", "data.tokenizer"),
    *("model.encoder.pooling", "model.vision_transformer.pooling"),
    *("model.vision_transformer.stem", "model.recurrent_decoder.cell"),
    "model.recurrent_encoder_decoder.cell",
)

# The sections of a config: their prefix, and the classes whose fields are their options.
SECTIONS = {
    "": (("options/sections.py", "Run"),),
    "seeds.": (("options/sections.py", "Seeds"),),
    "data.": (("options/sections.py", "Data"),),
    "model.": (
        ("options/sections.py", "Model"),
        ("models/parts.py", "Transformer"),
        ("models/decoder.py", "Decoder"),
    ),
    "initial.": (("options/sections.py", "Initial"),),
    "training.": (("options/sections.py", "Training"),),
    "objective.": (("options/sections.py", "Objective"),),
    "optimizer.": (("options/sections.py", "Optimizer"),),
    "schedule.": (("options/sections.py", "Schedule"),),
    "evaluation.": (("options/sections.py", "Evaluation"),),
    "logging.": (("options/sections.py", "Logging"),),
    "checkpoint.": (("options/sections.py", "Checkpoint"),),
    "sample.": (("options/sections.py", "Sample"),),
}
# Tables whose rows' options stand by row in the section itself: data.synthetic.symbols.
BY_NAME = {"data.task": "data", "model.architecture": "model"}


GIVEN_TO_TASKS = ("batch_size", "stride")  # beside the options of data

# What the model hands to every row that declares it, so that no option may have these names.
_SUPPLIED = (
    *("width", "depth", "num_heads", "head_dim", "mlp_dim", "activation", "scale", "epsilon"),
    *("use_bias", "bidirectional", "max_length", "grid", "std", "kernel_gain", "branch_gain"),
    *("kernel_init", "out_init", "dtype", "side", "name", "parent"),
)


@dataclasses.dataclass(frozen=True)
class Option:
    """What a user may choose.

    Attributes:
      rule: what it may be.
      default: what it is otherwise, a SameAs where that is another option's value.
      meaning: in words, with its unit.
    """

    rule: Rule
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
    file, table = TABLES[key]
    tree = _parsed(_PACKAGE / file)
    literal = _literal(tree, table)
    rows = {}
    for name_node, value in zip(literal.keys, literal.values, strict=True):
        assert isinstance(name_node, ast.Constant), f"{table}: expected names as literals"
        name, definition = str(name_node.value), ast.unparse(value)
        found = _definition(tree, definition) or _imported(tree, definition)
        if found is None:
            rows[name] = Row(name, definition, _said_of_value(tree, definition), (), {})
            continue
        rows[name] = _row(name, definition, found, f"{BY_NAME.get(key, key)}.{name}.")
        if key in FAMILIES:
            _refuse_supplied(rows[name])
    return rows


@functools.cache
def options_of_section(prefix: str) -> dict[str, Option]:
    """Returns the options of a section, full key -> option; those of rows are not among them."""
    found = {}
    for file, name in SECTIONS[prefix]:
        definition = _definition(_parsed(_PACKAGE / file), name)
        assert isinstance(definition, ast.ClassDef), f"{file}: {name} is no class"
        found |= _options(definition, prefix)
    return found


def says_of_section(prefix: str) -> str:
    """Returns what the class that declares a section says of itself."""
    file, name = SECTIONS[prefix][0]
    definition = _definition(_parsed(_PACKAGE / file), name)
    assert definition is not None
    return ast.get_docstring(definition) or ""


def options_of_rows() -> dict[str, Option]:
    """Returns the options of every row, by their keys in a config."""
    found = {}
    for key, section in {**BY_NAME, **FAMILIES}.items():
        shared = {name for _, name in SECTIONS.get(f"{section}.", ())}
        for row in rows_of(key).values():
            if row.definition not in shared:
                found |= {f"{section}.{row.name}.{name}": o for name, o in row.options.items()}
    return found


def _literal(tree: ast.Module, table: str) -> ast.Dict:
    """The dict that a name is assigned in a file."""
    for node in tree.body:
        if (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == table) or (
            isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == table
        ):
            value = node.value
        else:
            continue
        if isinstance(value, ast.Dict):
            return value
    raise LookupError(f"{table}: expected a literal dict at the top level of its file")


def own_row(choice: str, key: str = "") -> Row:
    """Returns what a class or function of the user's, MODULE.NAME, says of itself; runs nothing.

    An architecture gets the model's options by name, a task those of data, and the size of a batch;
    what else they have are options of their own.

    Raises:
      LookupError: there is no such file, or no such name in it; the text tells.
    """
    module, _, name = choice.rpartition(".")
    file = own_file(choice)
    if file is None:
        raise LookupError(f"no file {module.replace('.', '/')}.py here or on Python's path")
    try:
        found = _definition(_parse(file), name)
    except SyntaxError as error:
        raise LookupError(f"{file}, line {error.lineno}: {error.msg}") from error
    if found is None:
        raise LookupError(f"{file} defines no {name}")
    row = _row(choice, name, found, "")
    section = BY_NAME.get(key)
    if section is None:
        _refuse_supplied(row)
        return row
    shared = {*options_of_section(f"{section}."), *(f"data.{name}" for name in GIVEN_TO_TASKS)}
    own = {n: option for n, option in row.options.items() if f"{section}.{n}" not in shared}
    return dataclasses.replace(row, options=own)


def names_own(key: str, value: Any) -> bool:
    """Returns whether a value of a config stands for a class or function of the user's own.

    Args:
      key: of the config, that of a model where a type of layer has it.
      value: MODULE.NAME may be the name of a file too, where files may be given: the file wins.
    """
    if key not in OWN or not is_own(value):
        return False
    if key in ("data.source", "data.tokenizer"):
        return not Path(value).exists() and own_file(value) is not None
    return True


def own_file(choice: str) -> Path | None:
    """Returns the file that MODULE.NAME stands in, or None."""
    relative = choice.rpartition(".")[0].replace(".", "/")
    for folder in (Path.cwd(), *map(Path, sys.path)):
        for file in (folder / f"{relative}.py", folder / relative / "__init__.py"):
            if file.is_file():
                return file
    return None


def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


_parsed = functools.cache(_parse)  # of the package's own files, which do not change


def _definition(tree: ast.Module, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    """A class or a function at the top level of a file, or CLASS.METHOD."""
    first, _, method = name.partition(".")
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == first:
            return _definition(ast.Module(node.body, []), method) if method else node
    return None


def _imported(tree: ast.Module, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    """The same, where a file has it from another file of this package."""
    for node in tree.body:
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        names = node.names if isinstance(node, ast.ImportFrom) else []
        if module.startswith("transformer_jax.") and name.partition(".")[0] in {
            alias.name for alias in names
        }:
            path = module.partition(".")[2].replace(".", "/")
            return _definition(_parsed(_PACKAGE / f"{path}.py"), name)
    return None


def _said_of_value(tree: ast.Module, name: str) -> str:
    """The string behind a value of a file; empty for a row from elsewhere."""
    for before, after in itertools.pairwise(tree.body):
        is_it = isinstance(before, ast.AnnAssign) and ast.unparse(before.target) == name
        if is_it and _is_text(after):
            return _text(after)
    return ""


def _row(name: str, definition: str, found: ast.ClassDef | ast.FunctionDef, prefix: str) -> Row:
    names = tuple(field for field, _, _ in _fields(found))
    options = {key.removeprefix(prefix): o for key, o in _options(found, prefix).items()}
    return Row(name, definition, ast.get_docstring(found) or "", names, options)


def _fields(
    found: ast.ClassDef | ast.FunctionDef,
) -> list[tuple[str, ast.expr | None, ast.expr | None]]:
    """Name, annotation and default of every field of a class, or argument of a function."""
    if isinstance(found, ast.FunctionDef):
        return _arguments(found.args)
    return [
        (node.target.id, node.annotation, node.value)
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def _options(found: ast.ClassDef | ast.FunctionDef, prefix: str) -> dict[str, Option]:
    """The options among fields or arguments, prefix and name -> option."""
    meanings, options = _meanings(found), {}
    for field, annotation, default in _fields(found):
        key = prefix + field
        rule = None if annotation is None else _rule_of(annotation)
        if key in TABLES:
            rule = (own_or_one_of if key in OWN else one_of)(*_names(key))
        if rule is not None:
            value = _default(default, f"{found.name}.{field}")
            options[key] = Option(_with_example(rule, value), value, meanings.get(field, ""))
    return options


def _with_example(rule: Rule, default: Any) -> Rule:
    """The rule with the default as its example, where there is one to be shown."""
    if default in (None, (), "") or isinstance(default, SameAs):
        return rule
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return dataclasses.replace(rule, example=shown) if rule.accepts(default) else rule


def _names(key: str) -> list[str]:
    file, table = TABLES[key]
    return [str(ast.literal_eval(node)) for node in _literal(_parsed(_PACKAGE / file), table).keys]  # ty: ignore


def _meanings(found: ast.ClassDef | ast.FunctionDef) -> dict[str, str]:
    """What is said of fields or arguments: in the docstring's list, or in a string behind each."""
    said, name, indent = {}, "", 0
    lines = (ast.get_docstring(found) or "").splitlines()
    begins = {line.strip(): at for at, line in enumerate(lines)}
    for line in lines[begins.get("Attributes:", begins.get("Args:", len(lines))) + 1 :]:
        entry = re.match(r"( +)(\w+): (.*)", line)
        if entry and (not indent or len(entry[1]) == indent):
            indent, name = len(entry[1]), entry[2]
            said[name] = entry[3]
        elif line.startswith(" " * (indent + 1)) and name:
            said[name] += " " + line.strip()
        else:
            break
    for before, after in itertools.pairwise(found.body if isinstance(found, ast.ClassDef) else ()):
        if isinstance(before, ast.AnnAssign) and _is_text(after):
            said[ast.unparse(before.target)] = " ".join(_text(after).split())
    return said


def _is_text(node: ast.stmt) -> bool:
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str)


def _text(node: ast.stmt) -> str:
    """The string that a statement is."""
    return inspect.cleandoc(ast.literal_eval(node.value))  # ty: ignore[missing-attribute]


def _refuse_supplied(row: Row) -> None:
    for name in row.options:
        if name in _SUPPLIED:
            what = f"{row.definition}.{name}"
            raise LookupError(f"{what}: the model supplies it; name it otherwise")


def _default(node: ast.expr | None, option: str) -> Any:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "SameAs":
        return SameAs(ast.literal_eval(node.args[0]))
    try:
        return ast.literal_eval(node)  # ty: ignore[invalid-argument-type]
    except (TypeError, ValueError) as error:
        raise LookupError(f"{option}: an option needs a default that is written out") from error


def _arguments(arguments: ast.arguments) -> list[tuple[str, ast.expr | None, ast.expr | None]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = zip(positional, missing + arguments.defaults, strict=True)
    pairs = [*pairs, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return [(argument.arg, argument.annotation, default) for argument, default in pairs]


def _rule_of(annotation: ast.expr) -> Rule | None:
    """The rule that an annotation stands for; None if it makes no option."""
    if isinstance(annotation, ast.BinOp) and ast.unparse(annotation.right) == "None":
        rule = _rule_of(annotation.left)
        return rule and optional(rule)
    if isinstance(annotation, ast.Subscript):
        return _rule_of_subscript(ast.unparse(annotation.value), annotation.slice)
    name = ast.unparse(annotation)
    return SPECIAL.get(name) or (_rule_of(_NAMED[name]) if name in _NAMED else None)


def _rule_of_subscript(name: str, inside: ast.expr) -> Rule | None:
    parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
    if name == "Literal":
        return one_of(*map(ast.literal_eval, parts))
    if name == "tuple" and ast.unparse(parts[0]).startswith("Literal["):
        names = parts[0].slice  # ty: ignore[missing-attribute]
        return some_of(*(ast.literal_eval(n) for n in getattr(names, "elts", [names])))
    kind, *said = parts
    if name == "Annotated" and said and isinstance(said[0], ast.Constant):
        kind, words = ast.unparse(kind), said[0].value
        if kind in ("int", "float", "str") and isinstance(words, str):
            return text(words, "runs/a", bool) if kind == "str" else bounded(kind, words)
    return None  # annotated with something of the user's own


# The names of types.py that stand for an Annotated.
_NAMED = {
    ast.unparse(node.targets[0]): node.value
    for node in _parsed(Path(__file__).with_name("types.py")).body
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)
    if ast.unparse(node.value.value) == "Annotated"
}
