"""Values held as a pair hi + lo in a storage format, and as an exact float32 master in 16 + 16 bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .formats import narrow
from .transforms import add, multiply_add, product, product_error, two_sum

LOWER_WORDS = ("lo", "lo2")
"""What the words below the visible one are called where they are kept, largest first."""

_HALF = 0x8000
_QUIET_NAN = 0x7FC0


def grow(hi: Tensor, lo: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Add x to the pair in storage arithmetic: (s, e) = TwoSum(hi, x), TwoSum(s, RN(lo + e)). [Collage]

    All three of one storage dtype and of shapes that broadcast; returns (hi, lo) of that dtype.
    """
    s, error = two_sum(hi, x)
    return two_sum(s, add(lo, error))


def multiply(hi: Tensor, lo: Tensor, c_hi: Tensor, c_lo: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply the pair by the pair (c_hi, c_lo) in storage arithmetic (numerics §2).

    All four of one storage dtype and of shapes that broadcast; returns (hi, lo) of that dtype. The released
    code of [Collage] aliases its input here and never reduces the residual; this does.
    """
    p = product(hi, c_hi)
    error = product_error(hi, c_hi, p)
    t = product(lo, c_hi)
    t = multiply_add(hi, c_lo, t)
    return two_sum(p, add(t, error))


def add_to_pair(hi: Tensor, lo: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Add a float32 update to the pair: t = hi + (lo + u) in binary32, hi' = RN(t), lo' = RN(t − hi') (§2).

    `hi`, `lo`: one storage dtype of at most 16 bits; `u`: float32 of the same shape. Returns (hi', lo') with
    abs(lo') ≤ ulp(hi')/2; in bfloat16 the error is at most 2⁻¹⁶ · max(abs(hi), abs(u), abs(hi')).
    Where hi' is not finite, lo' is 0. Never compile this without `emulate_precision_casts`: the casts to
    storage and back are the point, and a compiler removes them.
    """
    new_hi, new_lo = add_to_expansion((hi, lo), u)
    return new_hi, new_lo


def add_to_expansion(words: Sequence[Tensor], u: Tensor) -> tuple[Tensor, ...]:
    """Add a float32 update to a value held in several words: `add_to_pair` for any number of them.

    `words`: largest first, one storage dtype of at most 16 bits; `u`: float32 of the same shape. The sum is formed
    in binary32 from the smallest on; then each word is RN of what the ones before left over, which is exact. So
    every word but the first is at most half a unit of the one before. Returns as many words of that dtype; 0 behind
    a first one that is not finite. The warning of `add_to_pair` about compilers holds here.
    """
    total = u
    for word in reversed(words):
        total = word.to(torch.float32) + total
    dtype, new = words[0].dtype, []
    for _ in words:
        word = narrow(total, dtype)
        wide = word.to(torch.float32)
        new.append(word)
        total = torch.where(wide.isfinite(), total - wide, 0.0)
    return tuple(new)


def join_words(words: Sequence[Tensor]) -> Tensor:
    """The value of words of a storage format, largest first, as float32: hi + (lo + lo2)."""
    total = words[-1].to(torch.float32)
    for word in reversed(words[:-1]):
        total = word.to(torch.float32) + total
    return total


def add_compensated(w: Tensor, c: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Kahan's addition in binary32: y = u + c, w' = RN(w + y), c' = RN(y − (w' − w)) ([Zamirai] algorithm 3).

    Shapes, dtypes and the warning as `add_to_pair`, from which it differs only where abs(u) is not small
    against w. Returns (w', c'); where w' or its change is not finite, c' is 0.
    """
    y = u + c.to(torch.float32)
    old = w.to(torch.float32)
    new = (old + y).to(w.dtype)
    rest = y - (new.to(torch.float32) - old)
    # Not only where w' is infinite: from one end of binary32's range to the other, w' − w alone overflows.
    return new, torch.where(rest.isfinite(), rest, 0.0).to(w.dtype)


def split_master(w32: Tensor) -> tuple[Tensor, Tensor]:
    """Split float32 into (hi bfloat16, remainder int16) that hold it exactly, same shape (numerics §3).

    hi is rounded to nearest, ties away from zero, on the bit pattern; the remainder is what 32-bit
    wrap-around addition needs to come back. NaN becomes the quiet NaN of its sign with remainder 0. Raises
    TypeError for another dtype.
    """
    if w32.dtype != torch.float32:
        raise TypeError(f"split_master takes float32, got {w32.dtype}")
    bits = w32.contiguous().view(torch.int32)
    hi_bits = ((bits.to(torch.int64) + _HALF) >> 16) & 0xFFFF
    remainder = bits.to(torch.int64) - (hi_bits << 16)
    nan = w32.isnan()
    sign = torch.where(bits < 0, 0x8000, 0)
    hi_bits = torch.where(nan, sign | _QUIET_NAN, hi_bits)
    remainder = torch.where(nan, 0, remainder)
    return _as_int16(hi_bits).view(torch.bfloat16), _as_int16(remainder)


def join_master(hi: Tensor, remainder: Tensor) -> Tensor:
    """The float32 values that `split_master` split.

    A remainder that does not belong to its word, which was changed since, moves it by half a unit at most:
    where the two together would be NaN and the word is not (zeros, infinities), the word alone counts. A NaN
    word stands for NaN whatever its remainder. Raises TypeError unless hi is bfloat16 and remainder int16.
    """
    if hi.dtype != torch.bfloat16 or remainder.dtype != torch.int16:
        raise TypeError(
            f"join_master takes bfloat16 and an int16 remainder, got {hi.dtype} and {remainder.dtype}; "
            "a remainder that went through a float dtype is damaged"
        )
    high = hi.contiguous().view(torch.int16).to(torch.int64) << 16
    joined = _as_int32(high + remainder.to(torch.int64)).view(torch.float32)
    return torch.where(joined.isnan(), hi.to(torch.float32), joined)


def _as_int16(values: Tensor) -> Tensor:
    """int64 reduced modulo 2^16 into int16."""
    return (((values & 0xFFFF) ^ _HALF) - _HALF).to(torch.int16)


def _as_int32(values: Tensor) -> Tensor:
    """int64 reduced modulo 2^32 into int32."""
    return (((values & 0xFFFFFFFF) ^ (1 << 31)) - (1 << 31)).to(torch.int32)
