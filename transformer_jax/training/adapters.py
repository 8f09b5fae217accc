"""Low-rank adapters: small trained matrices that are added to kernels, which stay as they are.

W' = W + (alpha / r) A B, with A [D, r] and B [r, F] (Hu et al. 2022, arXiv:2106.09685, equation 3).
A training state has the adapters as its parameters, and the model's own parameters, which no
gradient reaches, in its state under `base`. Everything but the training step sees the sums: models
are evaluated, loaded and exported with merged weights.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax import Array
from ml_collections import ConfigDict

from transformer_jax.errors import InvalidInput
from transformer_jax.paths import by_path


@dataclasses.dataclass(frozen=True)
class Adapted:
    """A model whose parameters are adapters, for the training step alone.

    Attributes:
      model: The model.
      rank: Number of columns of A, r.
      alpha: Numerator of the factor alpha / r.
      maps: Names of the maps whose kernels get an adapter.
    """

    model: Any
    rank: int
    alpha: float
    maps: tuple[str, ...]

    def init(self, key: Array, **inputs: Any) -> dict[str, Any]:
        """Returns adapters as `params`, B = 0, and the model's variables in `state`."""
        variables = self.model.init(key, **inputs)
        base, adapters = by_path(variables["params"]), {}
        for number, (path, kernel) in enumerate(base.items()):
            names = path.split("/")
            if names[-1] != "kernel" or names[-2] not in self.maps:
                continue
            *leading, rows, columns = kernel.shape
            own = jax.random.fold_in(jax.random.clone(key), number)
            draw = jax.random.normal(own, (*leading, rows, self.rank))
            adapters[f"{path}/a"] = draw * rows**-0.5
            adapters[f"{path}/b"] = jnp.zeros((*leading, self.rank, columns))
        if not adapters:
            known = sorted({path.split("/")[-2] for path in base if path.endswith("/kernel")})
            raise InvalidInput(
                f"adapters.maps={','.join(self.maps)}: this model has no such map; expected some "
                f"of {', '.join(known)}"
            )
        scale = jnp.float32(self.alpha / self.rank)
        state = {**variables.get("state", {}), "base": variables["params"], "scale": scale}
        return {"params": traverse_util.unflatten_dict(adapters, sep="/"), "state": state}

    def apply(self, variables: Mapping[str, Any], *arguments: Any, **options: Any) -> Any:
        """Applies the model with the merged parameters; arguments as those of its `apply`."""
        state = dict(variables["state"])
        merged = {"params": merge(variables["params"], state)}
        own = {name: part for name, part in state.items() if name not in ("base", "scale")}
        return self.model.apply(merged | ({"state": own} if own else {}), *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the model, e.g. `example_inputs` or `project`."""
        return getattr(self.model, name)


def merge(adapters: Any, state: Mapping[str, Any]) -> Any:
    """Returns the parameters of a model with its adapters added.

    Args:
      adapters: Pairs {"a": [..., D, r], "b": [..., r, F]} at the paths of kernels.
      state: `base`, the parameters of the model, and `scale`, the factor of the products.
    """

    def added(base: Any, own: Any) -> Any:
        if isinstance(base, Mapping) and (lost := own.keys() - base.keys()):
            raise ValueError(f"adapters of {', '.join(sorted(lost))}, which the model lacks")
        if not isinstance(base, Mapping):
            return base + (state["scale"] * (own["a"] @ own["b"])).astype(base.dtype)
        return {k: added(part, own[k]) if k in own else part for k, part in base.items()}

    return added(state["base"], adapters)


def trained_model(config: ConfigDict, model: Any) -> Any:
    """Returns the model that the training step of a config applies, with adapters if it has any."""
    adapters = config.adapters
    if not adapters.rank:
        return model
    return Adapted(model, adapters.rank, adapters.alpha, tuple(adapters.maps))
