"""The classic exercises as loops, one number at a time, to be read beside ours.

They are the definition and nothing else; `transformer_jax` computes the same with products of whole
arrays, and the course checks that they agree.
"""

import math

import numpy as np

Matrix = np.ndarray


def attention(query: Matrix, key: Matrix, value: Matrix, mask: Matrix | None = None) -> Matrix:
    """Single-head attention: softmax(Q K^T / sqrt(d_k)) V (Vaswani et al. 2017, equation 1).

    Args:
      query: [L, K].
      key: [M, K].
      value: [M, V].
      mask: [L, M] bool, True = may attend; every row has one.
    Returns:
      [L, V].
    """
    output = np.zeros((len(query), value.shape[1]))
    for i in range(len(query)):
        allowed = [j for j in range(len(key)) if mask is None or mask[i, j]]
        score = {}
        for j in allowed:
            product = sum(query[i, k] * key[j, k] for k in range(query.shape[1]))
            score[j] = product / math.sqrt(query.shape[1])
        largest = max(score.values())  # so that no exponential overflows
        exponential = {j: math.exp(score[j] - largest) for j in allowed}
        total = sum(exponential.values())
        for j in allowed:
            weight = exponential[j] / total
            for v in range(value.shape[1]):
                output[i, v] += weight * value[j, v]
    return output


def multi_head_attention(
    inputs: Matrix,
    w_query: Matrix,
    w_key: Matrix,
    w_value: Matrix,
    w_out: Matrix,
    num_heads: int,
    mask: Matrix | None = None,
) -> Matrix:
    """Multi-head self-attention: Concat(Z^1 ... Z^H) W_O (Vaswani et al. 2017, section 3.2.2).

    Head h owns columns h K to (h + 1) K of the three projections, and the rows of the same numbers
    of W_O.

    Args:
      inputs: [L, D].
      w_query: [D, H * K].
      w_key: [D, H * K].
      w_value: [D, H * K].
      w_out: [H * K, D].
      num_heads: H.
      mask: [L, L] bool, True = may attend.
    Returns:
      [L, D].
    """
    size = w_query.shape[1] // num_heads
    output = np.zeros((len(inputs), w_out.shape[1]))
    for head in range(num_heads):
        own = slice(head * size, (head + 1) * size)
        query, key = inputs @ w_query[:, own], inputs @ w_key[:, own]
        z = attention(query, key, inputs @ w_value[:, own], mask)
        output += z @ w_out[own]  # the sum over heads is the product with the concatenation
    return output


def vanilla_rnn(
    inputs: Matrix, w_inputs: Matrix, w_hidden: Matrix, bias: Matrix, start: Matrix | None = None
) -> Matrix:
    """A recurrent net: h_t = tanh(x_t W_x + h_(t-1) W_h + b) (Elman 1990).

    Args:
      inputs: [L, D].
      w_inputs: [D, H].
      w_hidden: [H, H].
      bias: [H].
      start: [H], the hidden vector before the first input; 0 if not given.
    Returns:
      [L, H], the hidden vector after each input.
    """
    size = len(bias)
    hidden = np.zeros(size) if start is None else start
    output = np.zeros((len(inputs), size))
    for t in range(len(inputs)):
        new = np.zeros(size)
        for h in range(size):
            total = bias[h]
            for d in range(inputs.shape[1]):
                total += inputs[t, d] * w_inputs[d, h]
            for before in range(size):
                total += hidden[before] * w_hidden[before, h]
            new[h] = math.tanh(total)
        hidden = output[t] = new
    return output
