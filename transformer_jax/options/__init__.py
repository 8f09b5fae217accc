"""What may be asked of a run: the types of options here, rules and configs beside. No jax.

A field or an argument with one of these types is an option: a config may set it, the command line
checks it, `--help` and docs/options.md explain it. Fields of other types are supplied by the model
or the trainer. Declarations are read from the source without running it, so these names stand in
annotations as they are; `Annotated[int, ">= 2"]`, `Annotated[float, "in [0, 180]"]`, a `Literal` of
strings, a tuple of such literals, and `| None` are understood too.
"""

from typing import Annotated

Positive = Annotated[float, "> 0"]
NonNegative = Annotated[float, ">= 0"]
AboveOne = Annotated[float, "> 1"]
Number = Annotated[float, "finite"]
Share = Annotated[float, "in [0, 1)"]
Fraction = Annotated[float, "in [0, 1]"]
OpenShare = Annotated[float, "in (0, 1)"]
PositiveShare = Annotated[float, "in (0, 1]"]
Count = Annotated[int, ">= 1"]
Natural = Annotated[int, ">= 0"]
MeshSize = Annotated[int, "-1 or >= 1"]
Switch = bool

# Where a parameter starts: two models that differ in it alone compute the same from the same
# parameters.
InitialSize = Annotated[float, "> 0", "initial"]
InitialNumber = Annotated[float, "finite", "initial"]

# What only the sections of a config need; rule.py says what they may be.
Seed = Annotated[int, "in [0, 2^32)"]
Choice = str  # a row of a table, see tables.TABLES
Text = str
AnyText = str
TokenizerName = str
ModelVariant = str
LayerPattern = str
Several = tuple[str, ...]  # rows of a table, see tables.SEVERAL
Splits = tuple[float, ...]
ParameterPaths = tuple[str, ...]
Multipliers = tuple[str, ...]
Mixture = tuple[str, ...]  # of texts, see data/sources/mixture.py
SitesOfBlock = tuple[str, ...]  # what sites.SITES has inside a block


class SameAs:
    """A default that is another option's value, until it is set."""

    def __init__(self, key: str) -> None:
        """Takes the other option's full key."""
        self.key = key
