"""What classes and functions declare, read from their source without running it."""

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_jax.options import SameAs
from transformer_jax.options.rule import (
    SPECIAL,
    ValueRule,
    bounded,
    one_of,
    optional,
    some_of,
    text,
)

PACKAGE = Path(__file__).parents[1]
_INSTALLED = {"site-packages", "dist-packages"}  # folders with packages of others


def literal_in(tree: ast.Module, table: str) -> ast.Dict:
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


def own_file(choice: str) -> Path | None:
    """Returns the file that MODULE.NAME stands in, or None."""
    relative = choice.rpartition(".")[0].replace(".", "/")
    for folder in (Path.cwd(), *map(Path, sys.path)):
        for file in (folder / f"{relative}.py", folder / relative / "__init__.py"):
            if file.is_file():
                return file
    return None


def own_files(choice: str) -> list[Path]:
    """Returns the file that MODULE.NAME stands in, and those of the user's that it imports.

    These lie in the folder that its import begins in, or of an installed module in its package;
    what they import counts too, wherever the import stands. [] where there is no such file.
    """
    first, module = own_file(choice), choice.rpartition(".")[0]
    if first is None:
        return []
    root = first.parents[module.count(".") + (first.name == "__init__.py")]
    files, is_installed = [first], bool(_INSTALLED & {*root.parts})
    for file in files:  # which grows meanwhile
        for parts in _imports_of(file, root):
            if parts[0] == PACKAGE.name or (is_installed and parts[0] != module.split(".")[0]):
                continue
            *above, place = itertools.accumulate(parts, Path.joinpath, initial=root)
            inits = (folder / "__init__.py" for folder in (*above[1:], place))
            for found in (*inits, place.with_suffix(".py")):
                if found.is_file() and found not in files:
                    files.append(found)
    return files


def _imports_of(file: Path, root: Path) -> Iterator[list[str]]:
    """What a file imports from a root folder, in parts: modules, and names that may be some."""
    package = file.relative_to(root).parent.parts
    try:
        tree = parse_file(file)
    except (SyntaxError, ValueError):  # that of a module which is never reached, say
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = [*above, *(node.module or "").split(".")]
            base = [part for part in base if part]
            yield from (parts for parts in (base, *([*base, a.name] for a in node.names)) if parts)


def definition_of(choice: str) -> ast.ClassDef | ast.FunctionDef:
    """Returns the syntax of a class or function of the user's, MODULE.NAME; runs nothing.

    Raises:
      LookupError: there is no such file, or no such name in it; the text tells.
    """
    module, _, name = choice.rpartition(".")
    file = own_file(choice)
    if file is None:
        raise LookupError(f"no file {module.replace('.', '/')}.py here or on Python's path")
    try:
        definition = definition_in(parse_file(file), name)
    except SyntaxError as error:
        raise LookupError(f"{file}, line {error.lineno}: {error.msg}") from error
    if definition is None:
        raise LookupError(f"{file} defines no {name}")
    return definition


def parse_file(file: Path) -> ast.Module:
    """Returns the syntax tree of a file."""
    return ast.parse(file.read_bytes())


def definition_in(tree: ast.Module, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    """A class or a function at the top level of a file, or CLASS.METHOD."""
    first, _, method = name.partition(".")
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == first:
            return definition_in(ast.Module(node.body, []), method) if method else node
    return None


def said_of_value(tree: ast.Module, name: str) -> str:
    """The string behind a value of a file; empty for a row from elsewhere."""
    for before, after in itertools.pairwise(tree.body):
        is_it = isinstance(before, ast.AnnAssign) and ast.unparse(before.target) == name
        if is_it and _is_text(after):
            return _text(after)
    return ""


def fields_of(
    definition: ast.ClassDef | ast.FunctionDef,
) -> list[tuple[str, ast.expr | None, ast.expr | None]]:
    """Name, annotation and default of every field of a class, or argument of a function."""
    if isinstance(definition, ast.FunctionDef):
        return _arguments(definition.args)
    return [
        (node.target.id, node.annotation, node.value)
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def with_example(rule: ValueRule, default: Any) -> ValueRule:
    """The rule with the default as its example, where there is one to be shown."""
    if default in (None, (), "") or isinstance(default, SameAs):
        return rule
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    return dataclasses.replace(rule, example=shown) if rule.accepts(default) else rule


def meanings_of(definition: ast.ClassDef | ast.FunctionDef) -> dict[str, str]:
    """What is said of fields or arguments: in the docstring's list, or in a string behind each."""
    said, name, indent = {}, "", 0
    lines = (ast.get_docstring(definition) or "").splitlines()
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
    for before, after in itertools.pairwise(
        definition.body if isinstance(definition, ast.ClassDef) else ()
    ):
        if isinstance(before, ast.AnnAssign) and _is_text(after):
            said[ast.unparse(before.target)] = " ".join(_text(after).split())
    return said


def _is_text(node: ast.stmt) -> bool:
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str)


def _text(node: ast.stmt) -> str:
    """The string that a statement is."""
    return inspect.cleandoc(ast.literal_eval(node.value))  # ty: ignore[missing-attribute]


def default_of(node: ast.expr | None, option: str) -> Any:
    """Returns what a default stands for: a value that is written out, or a SameAs."""
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


def rule_of(annotation: ast.expr) -> ValueRule | None:
    """The rule that an annotation stands for; None if it makes no option."""
    if isinstance(annotation, ast.BinOp) and ast.unparse(annotation.right) == "None":
        rule = rule_of(annotation.left)
        return rule and optional(rule)
    if isinstance(annotation, ast.Subscript):
        return _rule_of_subscript(ast.unparse(annotation.value), annotation.slice)
    name = ast.unparse(annotation)
    return _SPECIAL.get(name) or (rule_of(_NAMED[name]) if name in _NAMED else None)


def _rule_of_subscript(name: str, inside: ast.expr) -> ValueRule | None:
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


parsed_file = functools.cache(parse_file)  # of the package's own files, which do not change

# The names of __init__.py that stand for an annotation.
_NAMED = {
    ast.unparse(node.targets[0]): node.value
    for node in parsed_file(Path(__file__).with_name("__init__.py")).body
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)
    if ast.unparse(node.value).startswith("Annotated[")
}
_TABLE = literal_in(parsed_file(PACKAGE / "sites.py"), "SITES")
_SITES = [ast.literal_eval(key) for key in _TABLE.keys if key]
_OF_BLOCK = [key.removeprefix("block_*.") for key in _SITES if key.startswith("block_*.")]
_OF_BLOCK.remove("residual")  # what a block ends with is kept anyway
_SPECIAL = {**SPECIAL, "SitesOfBlock": some_of(*_OF_BLOCK)}
