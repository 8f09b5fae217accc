"""Studies: arms trained with the same seeds in few compiled programs, compared seed by seed.

from transformer_jax.studies import load_design, load_study, run
study = run(load_design("configs/ablations/positions.py"), "runs/positions", range(20, 25))
load_study("runs/positions").frame()
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_jax.studies.design import Design, load_design
    from transformer_jax.studies.running import run
    from transformer_jax.studies.study import Study, load_study

__all__ = ["Design", "Study", "load_design", "load_study", "run"]
_HOMES = {
    **dict.fromkeys(("Design", "load_design"), "design"),
    **dict.fromkeys(("Study", "load_study"), "study"),
    "run": "running",
}


def __getattr__(name: str) -> Any:
    # Imported on first use, so that the public judge needs nothing but scipy.
    if name not in _HOMES:
        raise AttributeError(f"transformer_jax.studies has no name {name!r}; it has {__all__}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
