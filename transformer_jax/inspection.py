"""Values inside a model: attention maps, hidden vectors, gradients.

Functions that read a model take a Linen module, its parameters and the keyword arguments of a call.
All values that can be read or changed are named in sites.SITES.
"""

import functools
import re
from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.errors import InvalidInput
from transformer_jax.paths import variables_of
from transformer_jax.sites import Intervention, interventions, values_by_site

Inputs = Mapping[str, Any]
_EMBEDS = ("positions", "patches", "projection", "class_token")


def sites_of(model: Any, params: Any, inputs: Inputs) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shape and dtype of the value at each site of a model, without computing it.

    Args:
      model: Any Linen module with sites, or your own module around one.
      params: Its parameters, or their shapes.
      inputs: Keyword arguments of a call.
    """
    _, found = jax.eval_shape(functools.partial(_run, model, inputs, {}), params)
    return {name: found[name] for name in sorted(found, key=_by_number)}


def _run(model: Any, inputs: Inputs, changes: Any, params: Any) -> tuple[Any, dict[str, Array]]:
    """Returns a model's output and the values at its sites."""
    with interventions(changes):
        output, state = model.apply(variables_of(params), **inputs, mutable=["intermediates"])
    return output, values_by_site(state.get("intermediates", {}))


def capture(
    model: Any,
    params: Any,
    inputs: Inputs,
    *patterns: str,
    changes: Mapping[str, Intervention] = MappingProxyType({}),
) -> dict[str, Array]:
    """Returns the values at some sites of a model, by name of the site.

    Args:
      model, inputs: As in `sites_of`.
      params: Its parameters.
      *patterns: Names of sites; `*` stands for any part, as in "block_*.attention.weights".
      changes: Interventions, as in `intervene`.
    Returns:
      Values by name of their site, with blocks in order; see sites.SITES for shapes.
    Raises:
      InvalidInput: A pattern matches no site of this model; the message names the nearest site.
    """
    known_sites = list(sites_of(model, params, inputs))
    _refuse_unknown([*patterns, *changes], known_sites, model)
    sites = [name for name in known_sites if any(fnmatchcase(name, p) for p in patterns)]

    def values(params: Any) -> list[Array]:
        _, found = _run(model, inputs, changes, params)
        return [found[name] for name in sites]

    return dict(zip(sites, jax.jit(values)(params), strict=True))


def intervene(model: Any, params: Any, inputs: Inputs, changes: Mapping[str, Intervention]) -> Any:
    """Returns the output of a model in which functions change the values at some sites.

    For example, to remove head 2 of block 1, and to insert the residual stream of a different run:

        without = {"block_1.attention.mixed": lambda mixed: mixed.at[..., 2, :, :].set(0)}
        intervene(model, params, inputs, without)
        patch = {"block_1.residual": lambda residual: other["block_1.residual"]}

    Args:
      model, inputs: As in `capture`.
      params: Its parameters; the result is differentiable in them.
      changes: Functions by site name or pattern; each returns a value of the same shape and dtype.
    Returns:
      The model's output.
    Raises:
      InvalidInput: A name matches no site, a shape or dtype changes, or the value is unused.
    """
    _refuse_unknown(list(changes), list(sites_of(model, params, inputs)), model)
    return jax.jit(lambda params: _run(model, inputs, changes, params)[0])(params)


def _by_number(name: str) -> list[tuple[str, int]]:
    """Returns a sort key that puts block_10 after block_2."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name)]


def _refuse_unknown(patterns: list[str], sites: list[str], model: Any) -> None:
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in sites):
            near = get_close_matches(pattern, sites, 1, 0) or ["none"]
            raise InvalidInput(
                f"{pattern}: {type(model).__name__} has no such site; the nearest is {near[0]}"
            )


def attention_maps(model: Any, params: Any, inputs: Inputs) -> dict[str, Array]:
    """Returns the weights of every attention layer, by the path of its module.

    Args:
      model: A transformer.
      params, inputs: As in `capture`.
    Returns:
      Weights [..., H, L, M] by path, such as "block_0/attention": weight of key m for query l in
      head h. In an encoder–decoder, paths begin with the side and include `cross_attention`.
    Raises:
      InvalidInput: The model has no attention.
    """
    try:
        maps = capture(model, params, inputs, "*.weights")
    except InvalidInput as error:
        raise InvalidInput(f"{type(model).__name__} has no attention weights") from error
    return {name.removesuffix(".weights").replace(".", "/"): maps[name] for name in maps}


def head_similarity(weights: Array) -> Array:
    """Returns the similarity of each pair of heads: 1 minus the mean distance between their rows.

    sim(a, b) = 1 - mean over rows of 1/2 sum_m |a_m - b_m|: 1 for equal maps, 0 if heads never
    attend to the same key. Fully masked rows are left out.

    Args:
      weights: [..., H, L, M], with rows that sum to 1 or are 0; see are_distributions.
    Returns:
      [H, H], the mean over all rows of all examples.
    """
    by_head = jnp.moveaxis(weights, -3, 0).reshape(weights.shape[-3], -1, weights.shape[-1])
    is_row = (by_head != 0).any((0, -1))
    apart = jnp.abs(by_head[:, None] - by_head[None, :]).sum(-1) / 2
    return 1 - (apart * is_row).sum(-1) / jnp.maximum(is_row.sum(), 1)


def attention_entropy(weights: Array) -> Array:
    """Returns the entropy of each row in nats, [..., H, L]: 0 for one key, log M for equal weights.

    Rows should be distributions, as tested by are_distributions; fully masked rows give 0.
    """
    logs = jnp.log(jnp.where(weights > 0, weights, 1))
    return -(weights * logs).sum(-1)


def mean_entropy(weights: Array) -> Array:
    """Returns the mean entropy of each head in nats, [H], leaving out fully masked rows.

    Args:
      weights: [..., H, L, M]; the rows of padded queries are 0.
    """
    rows = (*range(weights.ndim - 3), -1)
    listens = (weights != 0).any(-1)
    return attention_entropy(weights).sum(rows) / jnp.maximum(listens.sum(rows), 1)


def are_distributions(weights: Array) -> Array:
    """Returns whether every row [..., M] is 0, or has weights >= 0 that sum to 1 (within 2 %).

    The tolerance is for bfloat16. Rows of sigmoids, or differences of maps, are no distributions.
    """
    sums = weights.astype(jnp.float32).sum(-1)
    is_one = (jnp.abs(sums - 1) < 0.02) | (weights == 0).all(-1)
    return is_one.all() & (weights >= 0).all()


def hidden_vectors(model: Any, params: Any, inputs: Inputs) -> Array:
    """Returns the residual stream before the first block and after each block.

    Args:
      model: A Decoder, Encoder or VisionTransformer.
      params, inputs: As in `capture`.
    Returns:
      [depth + 1, ..., L, D], before the final norm.
    Raises:
      InvalidInput: The model is not a single stack of blocks.
    """
    try:
        captured = capture(model, params, inputs, "embedded", "block_*.residual")
    except InvalidInput as error:
        raise InvalidInput(f"{type(model).__name__} is not a single stack of blocks") from error
    return jnp.stack([captured.pop("embedded"), *captured.values()])


def gradient_norms(gradients: Any) -> dict[str, Array]:
    """Returns the norms of a gradient by part of the model: embeddings, blocks, and the rest.

    Args:
      gradients: A tree like the parameters.
    Returns:
      Norms [] by part: "positions", "token_embedding", "block_0", "block_1", ..., "final_norm".
    """

    def place(part: str) -> tuple[int, int, str]:
        if part.startswith("block_"):
            return 1, int(part.removeprefix("block_")), part
        return (0 if part.endswith("embedding") or part in _EMBEDS else 2), 0, part

    parts = sorted(gradients, key=place)
    return {part: _norm(gradients[part]) for part in parts}


def _norm(tree: Any) -> Array:
    return jnp.linalg.norm(jnp.stack([jnp.linalg.norm(leaf) for leaf in jax.tree.leaves(tree)]))
