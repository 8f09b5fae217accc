"""Types of what a row of a table lets its user choose.

A field or an argument with one of these types is an option: a config may set it, the command line
checks it, and the catalogue lists it. The others are supplied by the model or the trainer. Options
are read from the source without running it, so these names stand in annotations as they are; a
`Literal` of strings and `| None` are understood too.
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
Switch = bool
