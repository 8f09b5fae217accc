"""Reads somebody's attention that is a class: of PyTorch, Keras, Flax, or plain Python."""

import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.errors import in_one_line

CLASSES = ("SingleHeadAttention", "SimpleMultiHeadAttention", "MultiHeadAttention")
LENGTH, _WIDTH, _HEADS, _HEAD_DIM = 5, 8, 2, 4
# What a constructor may call its sizes -> the value that it gets.
_SIZES: dict[str, int] = {
    name: size
    for size, names in {
        _WIDTH: "d_model dim embed_dim emb_dim embedding_dim d_in input_dim in_features width "
        "n_embd hidden_size d D",
        _HEADS: "num_heads n_heads n_head heads h H",
        _HEAD_DIM: "d_k d_q d_v dk dq dv d_head head_dim head_size d_out key_dim output_dim "
        "out_features",
    }.items()
    for name in names.split()
}
_ROLES = {"q": "query", "k": "key", "v": "value", "o": "out", "output": "out"}
_NAMES = re.compile(
    r"_?(?:w|to|lin|linear|fc|proj)?_?(q|k|v|o|query|key|value|out|output)s?"
    r"_?(?:w|proj|projection|lin|linear|layer|weight|weights|matrix)?"
)


_OUT = ("proj", "projection", "fc", "linear", "c_proj")  # alone: of the output


class Unreadable(Exception):
    """The class cannot be made, or its matrices are not found; the text says what is expected."""


class Weights(NamedTuple):
    """What a module multiplies with.

    Attributes:
      inputs: [L, D] that it was given.
      kernels: of query, key and value, [D, H * K], and of the output, [H * K, D] or None.
      biases: by role, those that it has.
      num_heads: H.
    """

    inputs: np.ndarray
    kernels: dict[str, np.ndarray]
    biases: dict[str, np.ndarray]
    num_heads: int

    def expected(self, attention: Callable, mask: np.ndarray | None) -> np.ndarray:
        """What a function of exercises.multi_head_attention's arguments makes of these weights."""
        # A bias is the row of one more input, which is 1.
        ones = np.concatenate([self.inputs, np.ones((len(self.inputs), 1))], axis=1)
        three = [self._with_bias(role) for role in ("query", "key", "value")]
        out = self.kernels.get("out")
        out = np.eye(three[2].shape[1]) if out is None else out
        rest = () if mask is None else (mask,)
        result = attention(ones, *three, out, self.num_heads, *rest)
        return result + self.biases.get("out", 0)

    def _with_bias(self, role: str) -> np.ndarray:
        kernel = self.kernels[role]
        row = self.biases.get(role, np.zeros(kernel.shape[1]))
        return np.concatenate([kernel, row[None]])


def build(name: str, made: type) -> tuple[np.ndarray, Weights]:
    """Makes a module with small sizes.

    Args:
      name: of the class; one with a single head has no output matrix, unless it has one.
      made: the class.
    Returns:
      What it makes of inputs, and these with its weights.
    Raises:
      Unreadable: it wants other arguments, or keeps its matrices under other names.
    """
    num_heads, options = 1 if name.startswith("Single") else _HEADS, {}
    # A library's metaclass may hide the constructor's own arguments.
    parameters = [*inspect.signature(made.__init__).parameters.values()][1:]
    for parameter in parameters:
        if parameter.name in _SIZES:
            options[parameter.name] = _SIZES[parameter.name]
        elif parameter.name == "rngs":
            from flax import nnx

            options["rngs"] = nnx.Rngs(0)
        elif parameter.default is parameter.empty and parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY
        ):  # fmt: skip
            raise Unreadable(
                f"its constructor wants {parameter.name}: expected sizes by name, d_model, d_k and "
                "num_heads say"
            )
    try:
        module = made(**options)
    except Exception as error:
        raise Unreadable(f"when it was made: {in_one_line(error)}") from error
    inputs = np.random.default_rng(0).normal(size=(LENGTH, _WIDTH)).astype(np.float32)
    returned = _call(module, inputs)  # some libraries make their matrices now
    kernels, biases = _matrices(module)
    missing = [role for role in ("query", "key", "value") if role not in kernels]
    if missing:
        raise Unreadable(
            f"no matrix of {', '.join(missing)} found: expected attributes such as W_q, W_k, W_v, "
            "W_o, or query, key, value, out; arrays, or layers"
        )
    for role, kernel in kernels.items():
        if kernel.ndim != 2 or (role != "out" and len(kernel) != _WIDTH):
            raise Unreadable(
                f"the matrix of {role} is {kernel.shape}: expected those of all heads in one, "
                f"[{_WIDTH}, heads x d_k] of query, key and value"
            )
    own = [getattr(module, n, None) for n in ("num_heads", "n_heads", "n_head")]
    num_heads = next((count for count in own if isinstance(count, int)), num_heads)
    return returned, Weights(inputs, kernels, biases, num_heads)


def _call(module: Any, inputs: np.ndarray) -> np.ndarray:
    """Calls a module on [L, D], as one example of a batch if it wants one."""
    problems = []
    for form in (inputs[None], inputs):
        try:
            returned = module(_as_theirs(module, form))
        except Exception as error:  # of the other shape
            problems.append(in_one_line(error))
            continue
        result = _as_array(returned[0] if isinstance(returned, tuple) else returned)
        return result[0] if result.ndim == 3 else result
    raise Unreadable(f"it raised {problems[0]}")


def _as_theirs(module: Any, inputs: np.ndarray) -> Any:
    if any(base.__module__.startswith("torch") for base in type(module).__mro__):
        import torch

        return torch.tensor(inputs)
    return inputs


def _as_array(value: Any) -> np.ndarray:
    value = value.detach() if hasattr(value, "detach") else value
    return np.asarray(value, float)


def _matrices(module: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Kernels [in, out] and biases by role, of attributes that are arrays or layers with them."""
    kernels, biases = {}, {}
    held = {**vars(module), **getattr(module, "_parameters", {}), **getattr(module, "_modules", {})}
    for name, value in held.items():
        match = _NAMES.fullmatch(name.lower())
        role = _ROLES.get(match[1], match[1]) if match else "out" * (name in _OUT)
        if not role or value is None or (callable(value) and not _is_layer(value)):
            continue
        if hasattr(value, "kernel"):  # Keras and Flax: [in, out]
            kernels[role] = _as_array(value.kernel)
        elif getattr(value, "weight", None) is not None:  # torch.nn.Linear: [out, in]
            kernels[role] = _as_array(value.weight).T
        else:
            kernels[role] = _as_array(value)
        if getattr(value, "bias", None) is not None:
            biases[role] = _as_array(value.bias)
    if "query" not in kernels:
        heads = next((found for value in held.values() if (found := _heads_in(value))), [])
        for role in ("query", "key", "value") if heads else ():
            kernels[role] = np.concatenate([its[role] for its, _ in heads], axis=1)
            rows = [b.get(role, np.zeros(its[role].shape[1])) for its, b in heads]
            biases[role] = np.concatenate(rows)
    return kernels, biases


def _heads_in(value: Any) -> list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """The matrices of each head, of an attribute that is a list of heads."""
    if isinstance(value, str | np.ndarray | dict):
        return []
    try:
        matrices = [_matrices(head) for head in value]
    except TypeError:  # no list, or of other things
        return []
    return [pair for pair in matrices if {"query", "key", "value"} <= pair[0].keys()]


def _is_layer(value: Any) -> bool:
    return hasattr(value, "kernel") or hasattr(value, "weight")
