"""What goes on inside a model, as arrays: attention maps, hidden vectors, gradients.

Every function takes a Linen module, its parameters and the keyword arguments of a call, and gives
arrays; `pictures` are drawn elsewhere.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.errors import InvalidInput

Inputs = Mapping[str, Any]
_EMBEDS = ("positions", "patches", "projection", "class_token")


def attention_maps(model: Any, params: Any, inputs: Inputs) -> dict[str, Array]:
    """Returns the weights of every attention, by the path of its module.

    Args:
      model: a transformer.
      params: its parameters.
      inputs: keyword arguments of a call.
    Returns:
      "block_0/attention" -> [..., H, L, M]: how much query l listens to key m in head h. In an
      encoder–decoder the paths begin with the side, and there are those of `cross_attention`.
    Raises:
      InvalidInput: the model has no attention.
    """
    sown = _sown(model, params, inputs, "weights")
    if not sown:
        raise InvalidInput(f"{type(model).__name__} has no attention to look at")
    return sown


def _sown(model: Any, params: Any, inputs: Inputs, name: str) -> dict[str, Array]:
    apply = jax.jit(functools.partial(model.apply, mutable=["intermediates"]))
    _, state = apply({"params": params}, **inputs)
    leaves = jax.tree_util.tree_flatten_with_path(state.get("intermediates", {}))[0]
    found = {}
    for path, leaf in leaves:
        keys = [str(part.key) for part in path if hasattr(part, "key")]
        if keys[-1] == name:
            found["/".join(keys[:-1])] = leaf
    return found


def head_similarity(weights: Array) -> Array:
    """Returns how alike the maps of two heads are: 1 minus the mean total variation of their rows.

    sim(a, b) = 1 - mean over rows of 1/2 sum_m |a_m - b_m|: 1 where two heads attend alike, 0 where
    they never attend to the same key. Rows that may attend nothing are left out.

    Args:
      weights: [..., H, L, M], rows that sum to 1 or are 0.
    Returns:
      [H, H], the mean over all rows of all examples.
    """
    by_head = jnp.moveaxis(weights, -3, 0).reshape(weights.shape[-3], -1, weights.shape[-1])
    is_row = by_head[0].sum(-1) > 0
    apart = jnp.abs(by_head[:, None] - by_head[None, :]).sum(-1) / 2
    return 1 - (apart * is_row).sum(-1) / jnp.maximum(is_row.sum(), 1)


def attention_entropy(weights: Array) -> Array:
    """Returns the entropy of each row in nats, [..., H, L]: 0 listens to one key, log M to all."""
    logs = jnp.log(jnp.where(weights > 0, weights, 1))
    return -(weights * logs).sum(-1)


def hidden_vectors(model: Any, params: Any, inputs: Inputs) -> Array:
    """Returns the residual stream before the first block and after each block.

    Args:
      model: a Decoder, Encoder or VisionTransformer.
      params: its parameters.
      inputs: keyword arguments of a call.
    Returns:
      [depth + 1, ..., L, D], before the final norm.
    Raises:
      InvalidInput: the model is no single stack of blocks.
    """
    kept = _inputs_and_outputs_of_blocks(model, params, inputs)
    names = ["block_-1", *(f"block_{layer}" for layer in range(len(kept) - 1))]
    if len(kept) < 2 or set(names) != set(kept) or len({v.shape for v in kept.values()}) > 1:
        raise InvalidInput(f"{type(model).__name__} is no single stack of blocks")
    return jnp.stack([kept[name] for name in names])


def _inputs_and_outputs_of_blocks(model: Any, params: Any, inputs: Inputs) -> dict[str, Array]:
    """What the first block reads, as block_-1, and what each gives."""
    kept: dict[str, Array] = {}

    def keep(function: Callable, arguments: Any, options: Any, context: Any) -> Any:
        result = function(*arguments, **options)
        name = context.module.name or ""
        if context.method_name == "__call__" and name.startswith("block_"):
            kept.setdefault("block_-1", arguments[0])
            kept[name] = result
        return result

    def run(params: Any, inputs: Inputs) -> dict[str, Array]:
        kept.clear()
        with nn.intercept_methods(keep):
            model.apply({"params": params}, **inputs)
        return kept

    return jax.jit(run)(params, inputs)


def cosine_similarity(vectors: Array, others: Array | None = None) -> Array:
    """Returns the cosine of the angle between each pair, [..., N, N'].

    Args:
      vectors: [..., N, D].
      others: [..., N', D]; the same if not given.
    """
    unit = lambda rows: rows / jnp.linalg.norm(rows, axis=-1, keepdims=True)  # noqa: E731
    left, right = unit(vectors), unit(vectors if others is None else others)
    return jnp.einsum("...ND,...MD->...NM", left, right)


def similarity_by_layer(hidden: Array, places: Array) -> Array:
    """Returns how alike the vectors of one word in several sentences are, layer by layer.

    A static embedding gives 1 in layer 0 (without positions); where vectors are contextual it falls
    (Ethayarajh 2019, arXiv:1909.00512, section 3.3, self-similarity).

    Args:
      hidden: [depth + 1, N, L, D], of N sentences.
      places: [N] int, where the word stands in each.
    Returns:
      [depth + 1, N, N] cosines.
    """
    of_word = jnp.take_along_axis(hidden, places[None, :, None, None], axis=2)[:, :, 0]
    return cosine_similarity(of_word)


def gradient_norms(gradients: Any) -> dict[str, Array]:
    """Returns the norm of a gradient by part of the model: embeddings, blocks, what is left.

    Args:
      gradients: a tree like the parameters.
    Returns:
      "positions", "token_embedding", "block_0", "block_1", ..., "final_norm" -> []: root of the sum
      of squares.
    """

    def place(part: str) -> tuple[int, int, str]:
        if part.startswith("block_"):
            return 1, int(part.removeprefix("block_")), part
        return (0 if part.endswith("embedding") or part in _EMBEDS else 2), 0, part

    parts = sorted(gradients, key=place)
    return {part: _norm(gradients[part]) for part in parts}


def _norm(tree: Any) -> Array:
    return jnp.linalg.norm(jnp.stack([jnp.linalg.norm(leaf) for leaf in jax.tree.leaves(tree)]))


def gradient_by_layer(model: Any, params: Any, inputs: Inputs, loss: Callable) -> Array:
    """Returns how large the gradient of a loss is at the residual stream after each block.

    Args:
      model: a Decoder, Encoder or VisionTransformer.
      params: its parameters.
      inputs: keyword arguments of a call.
      loss: output of the model -> [] number.
    Returns:
      [depth + 1], norms of d loss / d hidden: before the first block, then after each.
    """
    depth = model.depth

    def with_offsets(offsets: list[Array]) -> Array:
        def shift(function: Callable, arguments: Any, options: Any, context: Any) -> Any:
            name = context.module.name or ""
            if context.method_name != "__call__" or not name.startswith("block_"):
                return function(*arguments, **options)
            layer = int(name.removeprefix("block_"))
            if layer == 0:
                arguments = (arguments[0] + offsets[0], *arguments[1:])
            return function(*arguments, **options) + offsets[layer + 1]

        with nn.intercept_methods(shift):
            return loss(model.apply({"params": params}, **inputs))

    shape = jax.eval_shape(functools.partial(hidden_vectors, model, params, inputs)).shape[1:]
    gradients = jax.jit(jax.grad(with_offsets))([jnp.zeros(shape) for _ in range(depth + 1)])
    return jnp.stack([jnp.linalg.norm(gradient) for gradient in gradients])


def gradient_through_time(model: Any, params: Any, tokens: Array, target: Array) -> Array:
    """Returns how much the loss at the last place depends on each earlier input.

    The norm of d loss_L / d e_i, e_i the embedding of token i: in a recurrent net it falls with the
    distance (Bengio et al. 1994; Hochreiter and Schmidhuber 1997, section 3).

    Args:
      model: a Decoder or RecurrentDecoder.
      params: its parameters.
      tokens: [B, L] int.
      target: [B] int, what the last place should predict.
    Returns:
      [L], the mean over the examples of the norms.
    """

    def loss(offset: Array) -> Array:
        def shift(function: Callable, arguments: Any, options: Any, context: Any) -> Any:
            result = function(*arguments, **options)
            called = (context.module.name, context.method_name)
            return result + offset if called == ("token_embedding", "__call__") else result

        with nn.intercept_methods(shift):
            logits = cast(Array, model.apply({"params": params}, tokens))[:, -1]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), target[:, None], axis=-1).sum()

    gradient = jax.jit(jax.grad(loss))(jnp.zeros((*tokens.shape, model.width)))
    return jnp.linalg.norm(gradient, axis=-1).mean(0)
