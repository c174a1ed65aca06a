"""Storage formats, their spacing, and rounding to nearest exactly once.

Everything is worked out in float64 on the integer bit pattern: no logarithm, no detour through float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_F64_MANTISSA = 52
_F64_BIAS = 1023
_F64_EXPONENT_MASK = 0x7FF


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point storage format: `precision` bits p, exponents from `emin`, largest finite value."""

    dtype: torch.dtype
    precision: int
    emin: int
    largest: float
    has_infinity: bool = True

    @property
    def smallest(self) -> float:
        """The smallest positive value, a subnormal: 2^(emin − p + 1)."""
        return 2.0 ** (self.emin - self.precision + 1)

    @property
    def overflow(self) -> float:
        """The tie between the largest finite value and what would follow it."""
        return self.largest + 2.0 ** (math.frexp(self.largest)[1] - 1 - self.precision)


FORMATS: dict[torch.dtype, Format] = {
    form.dtype: form
    for form in (
        Format(torch.bfloat16, 8, -126, torch.finfo(torch.bfloat16).max),
        Format(torch.float16, 11, -14, torch.finfo(torch.float16).max),
        Format(torch.float8_e4m3fn, 4, -6, torch.finfo(torch.float8_e4m3fn).max, has_infinity=False),
        Format(torch.float8_e5m2, 3, -14, torch.finfo(torch.float8_e5m2).max),
        Format(torch.float32, 24, -126, torch.finfo(torch.float32).max),
    )
}
"""The storage formats of numerics §1, by torch dtype."""


def format_of(dtype: torch.dtype) -> Format:
    """The storage format of a dtype. Raises TypeError for a dtype that is none."""
    try:
        return FORMATS[dtype]
    except KeyError:
        known = ", ".join(str(known).removeprefix("torch.") for known in FORMATS)
        raise TypeError(f"{dtype} is not a storage format that roundoff knows; known are {known}") from None


def exponent(x: Tensor) -> Tensor:
    """floor(log2(abs(x))) of a float64 tensor, exact, as int64; −1023 for zero and float64 subnormals."""
    return ((x.view(torch.int64) >> _F64_MANTISSA) & _F64_EXPONENT_MASK) - _F64_BIAS


def power_of_two(exponents: Tensor) -> Tensor:
    """2^exponents as float64, exact, for int64 exponents in [−1022, 1023]."""
    return ((exponents + _F64_BIAS) << _F64_MANTISSA).view(torch.float64)


def spacing(x: Tensor, form: Format) -> Tensor:
    """Spacing of `form` at float64 values x: 2^(max(e, emin) − p + 1), float64; huge for NaN and Inf."""
    return power_of_two(exponent(x).clamp_min(form.emin) - (form.precision - 1))


def ulp(x: Tensor) -> Tensor:
    """Spacing of x's own storage format at x, elementwise, as float64 of the same shape (numerics §1).

    Raises TypeError where x's dtype is no storage format. NaN where x is not finite.
    """
    wide = x.to(torch.float64)
    return torch.where(wide.isfinite(), spacing(wide, format_of(x.dtype)), torch.nan)


def gap(x: Tensor, u: Tensor) -> Tensor:
    """Distance from x to its neighbour in the direction of u, float64, in x's storage format (numerics §1).

    It is ulp(x), but half of it where abs(x) is a power of two above 2^emin and u points to zero. `u` is any
    float tensor that broadcasts against x; only its sign is read. NaN where x is not finite.
    """
    form = format_of(x.dtype)
    wide = x.to(torch.float64)
    return torch.where(wide.isfinite(), gap_of(wide, u.to(torch.float64), form), torch.nan)


def gap_of(wide: Tensor, u: Tensor, form: Format) -> Tensor:
    """`gap` for values of `form` held in float64, without the check for non-finite ones."""
    mantissa = wide.view(torch.int64) & ((1 << _F64_MANTISSA) - 1)
    is_power = (mantissa == 0) & (wide.abs() > 2.0**form.emin)
    toward_zero = ((wide > 0) & (u < 0)) | ((wide < 0) & (u > 0))
    step = spacing(wide, form)
    return torch.where(is_power & toward_zero, step * 0.5, step)


def round_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to nearest, ties to even, once, to a storage format (numerics §1, RN).

    `x` is a float tensor of any shape, read as float64. Overflow gives ±Inf, NaN in float8_e4m3fn. A plain
    cast from float64 goes through float32 and rounds twice. Raises TypeError for an unknown dtype.
    """
    form = format_of(dtype)
    wide = x.to(torch.float64)
    step = spacing(wide, form)
    # Scaling by a power of two is exact, and torch.round is ties-to-even.
    rounded = torch.where(wide.isfinite(), torch.round(wide / step) * step, wide)
    overflow = torch.inf if form.has_infinity else torch.nan
    too_large = rounded.abs() > form.largest
    rounded = torch.where(too_large, torch.copysign(torch.full_like(rounded, overflow), wide), rounded)
    # `rounded` is representable (or ±Inf, NaN), so these casts change nothing; copysign keeps −0.0.
    return torch.copysign(rounded, wide).to(torch.float32).to(dtype)


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """RN of float32 `x`, or of words of the format, to a storage format by one cast; quicker than `round_to`.

    Overflow in float8_e4m3fn gives NaN (numerics §1): newer versions of PyTorch saturate to ±448 there, infinities
    too (pytorch/pytorch#178817), older ones do not.
    """
    if dtype == torch.float8_e4m3fn and x.dtype != dtype:
        x = torch.where(x.abs() > FORMATS[dtype].overflow, torch.nan, x)
    return x.to(dtype)
