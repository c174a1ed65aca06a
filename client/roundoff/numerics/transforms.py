"""Error-free transforms in a storage format: every operation rounded to that format, once.

The exact intermediate is formed in float64 rounded to odd, which makes the second rounding, to the storage
format, the only one that counts (Boldo and Melquiond, *Emulation of FMA and correctly rounded sums*, 2008).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .formats import format_of, round_to


def add_to_odd(a: Tensor, b: Tensor) -> Tensor:
    """a + b of float64 tensors, rounded to odd: a later rounding to ≤ 51 bits sees the exact sum."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    bits = total.view(torch.int64)
    inexact_even = (error != 0) & total.isfinite() & (bits & 1 == 0)
    away = (error > 0) == (total > 0)
    nudged = torch.where(away, bits + 1, bits - 1)
    return torch.where(inexact_even, nudged, bits).view(torch.float64)


def add(a: Tensor, b: Tensor) -> Tensor:
    """RN(a + b) in the common storage format of a and b."""
    _check_same(a, b)
    return round_to(add_to_odd(a.to(torch.float64), b.to(torch.float64)), a.dtype)


def subtract(a: Tensor, b: Tensor) -> Tensor:
    """RN(a − b) in the common storage format of a and b."""
    _check_same(a, b)
    return round_to(add_to_odd(a.to(torch.float64), -b.to(torch.float64)), a.dtype)


def product(a: Tensor, b: Tensor) -> Tensor:
    """RN(a · b) in the common storage format of a and b (binary64 holds the exact product)."""
    _check_same(a, b)
    return round_to(a.to(torch.float64) * b.to(torch.float64), a.dtype)


def multiply_add(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """RN(a · b + c), rounded once, as a fused multiply-add in the common storage format does."""
    _check_same(a, b)
    _check_same(a, c)
    return round_to(add_to_odd(a.to(torch.float64) * b.to(torch.float64), c.to(torch.float64)), a.dtype)


def product_error(a: Tensor, b: Tensor, p: Tensor) -> Tensor:
    """RN(a · b − p), rounded once, in the common storage format of a, b and p."""
    _check_same(a, b)
    _check_same(a, p)
    return round_to(add_to_odd(a.to(torch.float64) * b.to(torch.float64), -p.to(torch.float64)), a.dtype)


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """s = RN(a + b) and its exact error e, s + e = a + b, in any order of magnitude (Knuth).

    `a`, `b`: tensors of one storage dtype, shapes that broadcast; returns (s, e) of that dtype. Where s
    overflows, e is NaN or infinite as well; so it may be where an operand is the largest of the format. Raises
    TypeError for dtypes that differ or are no storage format.
    """
    s = add(a, b)
    part = subtract(s, a)
    return s, add(subtract(a, subtract(s, part)), subtract(b, part))


def fast_two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """As `two_sum`, with three operations; exact only where abs(a) ≥ abs(b) or a = 0 (Dekker)."""
    s = add(a, b)
    return s, subtract(b, subtract(s, a))


def two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """p = RN(a · b) and e = RN(a · b − p), exact unless e falls below the format's smallest value.

    Shapes, dtypes and errors as `two_sum`.
    """
    p = product(a, b)
    return p, product_error(a, b, p)


def expand(value: float | Tensor, dtype: torch.dtype, components: int = 2) -> tuple[Tensor, ...]:
    """Split a float64 value into `components` words of a storage format that add up to it, largest first.

    `value` is a number or a tensor of any shape; returns that many tensors of its shape. Each word is RN of
    what the ones before left over. Raises ValueError for fewer than one component.
    """
    if components < 1:
        raise ValueError(f"components must be at least 1, got {components}")
    rest = torch.as_tensor(value, dtype=torch.float64)
    words = []
    for _ in range(components):
        word = round_to(rest, dtype)
        words.append(word)
        left = rest - word.to(torch.float64)  # exact: a float64 minus its own leading bits
        rest = torch.where(left.isfinite(), left, torch.zeros_like(left))
    return tuple(words)


def _check_same(a: Tensor, b: Tensor) -> None:
    format_of(a.dtype)
    if a.dtype != b.dtype:
        raise TypeError(f"both operands must have one storage dtype, got {a.dtype} and {b.dtype}")
