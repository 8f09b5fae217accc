"""Softmax attention using a kernel for the device, which keeps the weights out of main memory.

Dao et al. 2022, arXiv:2205.14135. The kernels are jax's: splash attention (Pallas) on a TPU, and
cuDNN's on an NVIDIA GPU. The compilation target decides which one a program uses.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.attention import AttentionCall, SoftmaxAttention
from transformer_jax.masks import Mask
from transformer_jax.placement import cuts_heads_apart, cuts_sequence, over_devices
from transformer_jax.variants.local import count_by_one

_BLOCK = 128  # splash attention needs lengths that are multiples of this
_RULES = {"full", "causal", "unmasked", "window", "segment"}  # rules that some kernel supports
_SIZES = (  # splash attention's options for the sizes of blocks of queries, and of keys
    ("block_q", "block_q_dkv", "block_q_dq"),
    ("block_kv", "block_kv_compute", "block_kv_dkv", "block_kv_dkv_compute", "block_kv_dq"),
)
_TELL: ContextVar[Callable[[Mapping[str, str]], None]] = ContextVar("tell", default=lambda _: None)


class FusedAttention(SoftmaxAttention):
    """Softmax attention using splash attention on a TPU or cuDNN on an NVIDIA GPU.

    Weights stay on the chip (Dao et al. 2022, arXiv:2205.14135). Both kernels support causal masks
    and windows that end at the query; splash attention also supports other windows, documents and
    padding. On other devices, and for unsupported calls, `softmax` is computed. Not supported are a
    bias, dropout of weights, other masks, a cache, in splash attention a length that is not a
    multiple of 128, and in cuDNN float32. Results are equal up to the rounding of the dtype, and
    exactly 0 for a query that may attend to nothing. With a window, positions must count the tokens
    of each document one by one; otherwise the result is NaN if a kernel might be used.

    Attributes:
      soft_cap: Bends scores to soft_cap * tanh(score / soft_cap), but not in cuDNN; or None.
      interpret: Whether to run splash attention in an interpreter, on any device, for tests.
    """

    interpret: bool = False
    hides_weights: ClassVar[bool] = True

    @nn.compact
    def __call__(self, query: Array, key: Array, value: Array, call: AttentionCall) -> Array:
        """[..., H, L, K], [..., G, M, K] and [..., G, M, V] -> [..., H, L, V]."""
        softmax = SoftmaxAttention(self.soft_cap, parent=None)

        def plain(query: Array, key: Array, value: Array) -> Array:
            return softmax(query, key, value, call)

        scale = query.shape[-1] ** -0.5 if call.scale is None else call.scale
        why_none = _why_none(query, key, call)
        rule = call.mask if isinstance(call.mask, Mask) else None
        options: Any = {"mask": rule, "scale": scale, "soft_cap": self.soft_cap}
        kernels = {
            "splash": functools.partial(_splash, interpret=self.interpret, **options),
            "cudnn": functools.partial(_cudnn, **options),
        }
        why = dict.fromkeys(kernels, why_none) if why_none else {}
        for name, kernel in kernels.items() if not why else ():
            try:
                jax.eval_shape(kernel, query, key, value)
            except (ValueError, NotImplementedError, RuntimeError) as error:
                why[name] = str(error).partition("\n")[0]
        _TELL.get()(why)
        platforms = {"tpu": "splash", "cuda": "cudnn"}
        ways = {p: kernels[name] for p, name in platforms.items() if name not in why}
        if self.interpret and "splash" not in why:
            mixed = kernels["splash"](query, key, value)
        elif ways:
            mixed = jax.lax.platform_dependent(query, key, value, **ways, default=plain)
        else:
            return plain(query, key, value)
        if rule is not None and "window" in rule.names:  # kernels count places, not positions
            counts = count_by_one(rule.query)[..., None, None, None]
            mixed = jnp.where(counts, mixed, jnp.nan)
        return mixed


@contextlib.contextmanager
def kernels_taken(platform: str) -> Generator[list[str]]:
    """Collects the implementation that each fused attention uses while a program is traced.

    Args:
      platform: Target platform: cpu, gpu or tpu.
    Yields:
      A list that receives "splash", "cudnn", or "all weights: REASON".
    """
    name = {"tpu": "splash", "gpu": "cudnn", "cuda": "cudnn"}.get(platform, "")
    taken: list[str] = []

    def tell(why: Mapping[str, str]) -> None:
        reason = why.get(name) if name else f"no kernel for a {platform}"
        taken.append(name if reason is None else f"all weights: {reason}")

    token = _TELL.set(tell)
    try:
        yield taken
    finally:
        _TELL.reset(token)


def _why_none(query: Array, key: Array, call: AttentionCall) -> str | None:
    """Returns the reason why no kernel supports the call, or None if one might."""
    mask = call.mask
    if not (query.size and key.size):
        return "there are no queries or no keys"
    if call.bias is not None:
        return "a bias is added to scores"
    if call.dropout_rate:
        return "weights are dropped"
    if mask is None:
        return None
    if not isinstance(mask, Mask):
        return "the mask is an array"
    unknown = mask.names - _RULES
    if unknown:
        return f"no kernel supports the mask {', '.join(sorted(unknown))}"
    windows = [options for name, options in mask.tags if name == "window"]
    if len(windows) > 1 or any(window["sinks"] for window in windows):
        return "there are several windows, or one with sinks"
    if query.shape[-2] != key.shape[-2]:
        return "the numbers of queries and keys differ"
    return None


def _reach(mask: Mask | None) -> tuple[int | None, int | None]:
    """Returns the numbers of keys that a query sees before and after itself; None for all."""
    if mask is None:
        return None, None
    size = dict(mask.tags).get("window", {}).get("size")
    before = None if size is None else size - 1
    return before, 0 if "causal" in mask.names else before


def _splash(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Mask | None,
    scale: float,
    soft_cap: float | None,
    interpret: bool,
) -> Array:
    """[..., H, L, K], [..., G, M, K], [..., G, M, V] -> [..., H, L, V]."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    shape, (length, key_length) = query.shape, (query.shape[-2], key.shape[-2])
    groups = key.shape[-3]
    if length % _BLOCK or key_length % _BLOCK:
        raise ValueError(f"lengths {length} and {key_length} are not multiples of {_BLOCK}")
    if value.shape[-1] != key.shape[-1]:
        raise ValueError("the numbers of features of keys and values differ")
    if cuts_sequence():
        raise ValueError("the positions of a text are divided over several devices")
    before, after = _reach(mask)
    if before is None and after is None:
        shown = splash.FullMask((length, key_length))
    elif before is None:
        shown = splash.CausalMask((length, key_length))
    else:
        shown = splash.LocalMask((length, key_length), (before, after), 0)
    sizes = [next(s for s in (512, 256, 128) if n % s == 0) for n in (length, key_length)]
    of_query, of_key = map(dict.fromkeys, _SIZES, sizes)
    kernel = splash.make_splash_mqa_single_device(
        splash.MultiHeadMask([shown] * (shape[-3] // groups)),
        block_sizes=splash.BlockSizes(**of_query, **of_key),
        attn_logits_soft_cap=soft_cap,
        interpret=interpret,
    )
    lead, count = shape[:-3], math.prod(shape[:-3])
    # [..., H, L, K] -> [N, G, H / G, L, K]: the queries that one head of keys serves
    queries = (query * scale).astype(query.dtype).reshape(count, groups, -1, *shape[-2:])
    keys, values = (a.reshape(count, groups, *a.shape[-2:]) for a in (key, value))
    over_heads = ("batch", "tensor", ...)  # of queries, keys, values and the result
    if mask is None or mask.query.segment is None or mask.key.segment is None:
        over_texts = over_devices(jax.vmap(jax.vmap(kernel)), *[over_heads] * 4)
        mixed = over_texts(queries, keys, values)
    else:
        query_ids, key_ids = (
            jnp.broadcast_to(s, (*lead, s.shape[-1])).reshape(count, -1).astype(jnp.int32)
            for s in (mask.query.segment, mask.key.segment)
        )
        over_groups = jax.vmap(kernel, (0, 0, 0, None))

        def of_documents(queries: Array, keys: Array, values: Array, *ids: Array) -> Array:
            return jax.vmap(over_groups)(queries, keys, values, splash.SegmentIds(*ids))

        cuts = (*[over_heads] * 3, *[("batch", None)] * 2, over_heads)
        mixed = over_devices(of_documents, *cuts)(queries, keys, values, query_ids, key_ids)
        sees = (query_ids[:, :, None] == key_ids[:, None, :]).any(-1) & (query_ids != 0)
        mixed = jnp.where(sees[:, None, None, :, None], mixed, 0)
    return mixed.reshape(*shape[:-1], value.shape[-1]).astype(value.dtype)


def _cudnn(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Mask | None,
    scale: float,
    soft_cap: float | None,
) -> Array:
    """[..., H, L, K], [..., G, M, K], [..., G, M, V] -> [..., H, L, V]."""
    if soft_cap is not None:
        raise ValueError("cuDNN does not support a soft cap of the scores")
    if cuts_sequence() or cuts_heads_apart(query.shape[-3], key.shape[-3]):
        raise ValueError("queries and keys are divided over devices differently")
    if mask is not None and mask.query.segment is not None:
        raise ValueError("cuDNN does not support documents or padding")
    before, after = _reach(mask)
    lead = query.shape[:-3]

    kernel = functools.partial(
        jax.nn.dot_product_attention,
        scale=scale,
        is_causal=after == 0,
        local_window_size=None if before is None else (before, after or 0),
        implementation="cudnn",
    )
    with_heads_behind = [
        jnp.swapaxes(array.reshape(-1, *array.shape[-3:]), -3, -2) for array in (query, key, value)
    ]
    mixed = mapped_as_examples(kernel)(*with_heads_behind)
    return jnp.swapaxes(mixed, -3, -2).reshape(*lead, *query.shape[-3:-1], value.shape[-1])


def mapped_as_examples(kernel: Callable[..., Array]) -> Callable[..., Array]:
    """Returns the kernel; its vmap, and that of its derivative, merges the mapped axis into N.

    This replaces jax's batching rule for cuDNN's derivative, which fails inside XLA.

    Args:
      kernel: Function from arrays [N, ...] to an array [N, ...]; examples are independent.
    """
    structures: dict[int, Any] = {}  # tree structures of derivatives, by the number of examples

    def forward(*arrays: Array) -> tuple[Array, list[Array]]:
        mixed, derivative = jax.vjp(kernel, *arrays)
        held, structures[len(mixed)] = jax.tree.flatten(derivative)
        return mixed, held

    def backward(cotangent: Array, held: list[Array]) -> tuple[Array, ...]:
        return jax.tree.unflatten(structures[len(cotangent)], held)(cotangent)

    mapped_kernel, mapped_forward, mapped_backward = map(_longer, (kernel, forward, backward))
    attend = jax.custom_vjp(mapped_kernel)
    attend.defvjp(mapped_forward, lambda held, cotangent: mapped_backward(cotangent, held))
    return attend


def _longer(function: Callable) -> Callable:
    """Wraps a function of pytrees [N, ...] so that a vmap over M is one call with [M * N, ...]."""
    mapped = jax.custom_batching.custom_vmap(function)

    def rule(size: int, are_mapped: Any, *trees: Any) -> tuple[Any, Any]:
        leaves, structure = jax.tree.flatten(trees)
        flags = jax.tree.leaves(are_mapped)
        count = leaves[0].shape[1 if flags[0] else 0]

        def merged(leaf: Array, is_mapped: bool) -> Array:
            if not is_mapped and leaf.shape[:1] != (count,):
                return leaf  # has no axis of examples
            array = leaf if is_mapped else jnp.broadcast_to(leaf, (size, *leaf.shape))
            return array.reshape(size * count, *array.shape[2:])

        merged_trees = jax.tree.unflatten(structure, list(map(merged, leaves, flags)))
        results = mapped(*merged_trees)
        of_examples = jax.tree.map(lambda leaf: leaf.shape[:1] == (size * count,), results)

        def split(leaf: Array, is_one: bool) -> Array:
            return leaf.reshape(size, count, *leaf.shape[1:]) if is_one else leaf

        return jax.tree.map(split, results, of_examples), of_examples

    mapped.def_vmap(rule)
    return mapped
