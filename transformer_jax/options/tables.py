"""The tables of components as text: names of rows, what they say of themselves, and their options.

Read from the source without running it, so that a config is checked before jax is imported, and
a class that a stored run names is looked at without being executed. The table at the foot of a file
stays the one place where a row is named.
"""

import ast
import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any

from transformer_jax.options.rule import Rule, integer, number, one_of, optional, truth

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
    "model.attention": ("layers/weights.py", "ATTENTIONS"),
    "model.projections": ("layers/projections.py", "PROJECTIONS"),
    "model.query_key_norm": ("layers/norms.py", "NORMS"),
    "model.mask": ("masks.py", "MASKS"),
    "model.feed_forward": ("layers/feedforward.py", "FEED_FORWARDS"),
    "model.activation": ("layers/feedforward.py", "ACTIVATIONS"),
    "model.norm": ("layers/norms.py", "NORMS"),
    "model.wiring": ("layers/blocks.py", "WIRINGS"),
    "model.initialisation": ("layers/initialisation.py", "INITIALISATIONS"),
    "model.parametrisation": ("layers/parametrisation.py", "PARAMETRISATIONS"),
    "optimizer.name": ("training/optimizers.py", "OPTIMIZERS"),
    "schedule.name": ("training/schedules.py", "SCHEDULES"),
}
# Those whose rows have options of their own, and the section in which these stand by row. A class
# of the user's, named by MODULE.NAME, may take the place of a row; its options stand under `own`.
# (An activation may be the user's too, but has no options.)
FAMILIES = {
    "model.position": "model.position_options",
    "model.attention": "model.attention_options",
    "model.mask": "model.mask_options",
    "model.feed_forward": "model.feed_forward_options",
    "model.norm": "model.norm_options",
    "model.wiring": "model.wiring_options",
    "model.initialisation": "model.initialisation_options",
    "model.parametrisation": "model.parametrisation_options",
    "optimizer.name": "optimizer",
    "schedule.name": "schedule",
}
OWN = (*FAMILIES, "model.activation")

# The types of transformer_jax/options/types.py, and what they allow.
_TYPES = {
    "Positive": number("> 0", "0.02", lambda value: value > 0),
    "NonNegative": number(">= 0", "0.01", lambda value: value >= 0),
    "AboveOne": number("> 1", "10000.0", lambda value: value > 1),
    "Number": number("that is finite", "0.5", lambda value: True),
    "Share": number("in [0, 1)", "0.9", lambda value: 0 <= value < 1),
    "Fraction": number("in [0, 1]", "0.1", lambda value: 0 <= value <= 1),
    "OpenShare": number("in (0, 1)", "0.9", lambda value: 0 < value < 1),
    "PositiveShare": number("in (0, 1]", "0.25", lambda value: 0 < value <= 1),
    "Count": integer(1),
    "Natural": integer(0),
    "Switch": truth(),
}


# What the model hands to every row that declares it, so that no option may have these names.
_SUPPLIED = (
    *("width", "depth", "num_heads", "head_dim", "mlp_dim", "activation", "scale", "epsilon"),
    *("use_bias", "bidirectional", "max_length", "grid", "std", "kernel_gain", "branch_gain"),
    *("kernel_init", "out_init", "dtype", "name", "parent"),
)


@dataclasses.dataclass(frozen=True)
class Option:
    """What a row lets its user choose.

    Attributes:
      rule: what it may be.
      default: what it is otherwise.
    """

    rule: Rule
    default: Any


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
        rows[name] = _row(name, definition, _definition(tree, definition))
    return rows


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


def own_row(choice: str) -> Row:
    """Returns what a class or function of the user's, MODULE.NAME, says of itself; runs nothing.

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
    return _row(choice, name, found)


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
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return node
    return None


def _row(name: str, definition: str, found: ast.ClassDef | ast.FunctionDef | None) -> Row:
    if found is None:  # a row from elsewhere, which has no options here
        return Row(name, definition, "", (), {})
    if isinstance(found, ast.ClassDef):
        fields = [
            (node.target.id, node.annotation, node.value)
            for node in found.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ]
    else:
        fields = _arguments(found.args)
    options = {}
    for field, annotation, default in fields:
        rule = None if annotation is None else _rule_of(annotation)
        if rule is not None:
            options[field] = Option(rule, _default(default, f"{definition}.{field}"))
            if field in _SUPPLIED:
                raise LookupError(f"{definition}.{field}: the model supplies it; name it otherwise")
    names = tuple(field for field, _, _ in fields)
    return Row(name, definition, ast.get_docstring(found) or "", names, options)


def _default(node: ast.expr | None, option: str) -> Any:
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
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        names = ast.literal_eval(annotation.slice)
        return one_of(*(names if isinstance(names, tuple) else (names,)))
    return _TYPES.get(ast.unparse(annotation))
