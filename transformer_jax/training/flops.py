"""Operations in a traced program (model FLOPs): two for each multiplication with its addition."""

import math
from typing import Any

from transformer_jax.jaxprs import operations_of, subprograms

TRAINING_OVER_FORWARD = 3  # the backward pass has two products for each one in the forward pass

# Kind of device, as jax names it -> dtype -> FLOPs per second of dense products, as published
# (cloud.google.com/tpu/docs; NVIDIA H100, H200, A100). A TPU multiplies float32 as bfloat16 unless
# jax_default_matmul_precision says otherwise; these GPUs multiply it as TF32.
RATES = {
    "TPU v5 lite": {"bfloat16": 197e12, "float32": 197e12},
    "TPU v5": {"bfloat16": 459e12, "float32": 459e12},
    "TPU v6 lite": {"bfloat16": 918e12, "float32": 918e12},
    "NVIDIA H100 80GB HBM3": {"bfloat16": 989e12, "float32": 494e12},
    "NVIDIA H200": {"bfloat16": 989e12, "float32": 494e12},
    "NVIDIA A100-SXM4-80GB": {"bfloat16": 312e12, "float32": 156e12},
}


def flops_of(program: Any) -> float:
    """Returns twice the number of multiplications in a jaxpr's matrix products and convolutions.

    Of alternative branches the most expensive counts; the body of an unknown loop counts once.
    """
    total = 0.0
    for equation in operations_of(program).eqns:
        name, numbers = equation.primitive.name, equation.params.get("dimension_numbers")
        summed = 0.0  # terms in each sum of products
        if name == "dot_general":
            (contracted, _), _ = numbers
            summed = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            summed = math.prod(kernel) / kernel[numbers.rhs_spec[0]]
        if summed:
            total += 2.0 * math.prod(equation.outvars[0].aval.shape) * summed
        times = equation.params["length"] if name == "scan" else 1
        total += times * max(map(flops_of, subprograms(equation)), default=0.0)
    return total
