"""Read float8 weights in a forward pass so that their gradients are not rounded to float8 (experimental)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .strategies import FLOAT8_DTYPES


def widened(param: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The words of a float8 parameter as `dtype`, same shape, for the forward pass; other parameters by a cast.

    The gradient reaches `param.grad` in `param.grad_dtype`. That of a plain `param.to(dtype)` is cast to float8 on
    the way, whatever `grad_dtype` is: in float8_e4m3fn nothing below 2⁻¹⁰ is left of it. Raises TypeError where
    `param.grad_dtype` is still float8, or this PyTorch has no such attribute.
    """
    if param.dtype not in FLOAT8_DTYPES:
        return param.to(dtype)
    if param.is_leaf and getattr(param, "grad_dtype", param.dtype) in FLOAT8_DTYPES:
        raise TypeError(
            f"the gradient of a {param.dtype} parameter would be rounded to 8 bit; {grad_dtype_of(param)}"
        )
    wide: Tensor = _Widened.apply(param, dtype)  # type: ignore[no-untyped-call]
    return wide


def grad_dtype_of(param: Tensor) -> str:
    """What to do for a gradient that is not rounded to float8."""
    if hasattr(param, "grad_dtype"):
        return "set param.grad_dtype = torch.bfloat16 before the first backward pass, and read it through `widened`"
    return "that it is not takes a PyTorch that has Tensor.grad_dtype, which this one has not"


class _Widened(torch.autograd.Function):
    """A cast whose gradient is handed on as it is."""

    @staticmethod
    def forward(ctx: Any, param: Tensor, dtype: torch.dtype) -> Tensor:  # noqa: ARG004
        return param.to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return grad, None
