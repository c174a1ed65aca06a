"""Storage formats in rational arithmetic: the other opinion that the numerics are tested against."""

from __future__ import annotations

from fractions import Fraction

import torch
from hypothesis import strategies as st
from torch import Tensor

from roundoff.numerics import FORMATS

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
PAIR_DTYPES = (BF16, F16)
"""Dtypes of the words of a pair."""

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def every_word(dtype: torch.dtype) -> Tensor:
    """All words of a dtype of at most 16 bits, in the order of their bit patterns read as signed integers."""
    half = 1 << (8 * dtype.itemsize - 1)
    return torch.arange(-half, half, dtype=torch.int32).to(BITS[dtype.itemsize]).view(dtype)


def bits_of(words: Tensor) -> Tensor:
    """The words as integers of their width."""
    return words.contiguous().view(BITS[words.element_size()])


def words(patterns: list[int], dtype: torch.dtype) -> Tensor:
    """A tensor of `dtype` from signed integers of its width."""
    return torch.tensor(patterns, dtype=BITS[dtype.itemsize]).view(dtype)


def exact(word: Tensor) -> Fraction:
    """The value of one finite word."""
    return Fraction(word.to(torch.float64).item())


def floor_log2(q: Fraction) -> int:
    """floor(log2(q)) of a positive rational."""
    k = q.numerator.bit_length() - q.denominator.bit_length()
    return k if Fraction(2) ** k <= q else k - 1


def spacing(q: Fraction, dtype: torch.dtype) -> Fraction:
    """The distance between neighbouring words of a format at |q|: 2^(max(e, emin) − p + 1)."""
    form = FORMATS[dtype]
    e = max(floor_log2(abs(q)), form.emin) if q else form.emin
    return Fraction(2) ** (e - form.precision + 1)


def nearest(q: Fraction, dtype: torch.dtype) -> Fraction | None:
    """RN(q): to nearest, ties to even, once; None where it overflows."""
    step = spacing(q, dtype)
    rounded = round(q / step) * step  # Python rounds ties to even as well
    return None if abs(rounded) > Fraction(FORMATS[dtype].largest) else rounded


def patterns(dtype: torch.dtype) -> st.SearchStrategy[int]:
    """Bit patterns of 16-bit words as signed integers: any, and more often the ends of the range and 1."""
    special = [
        0,
        torch.inf,
        -torch.inf,
        torch.nan,
        1.0,
        -1.0,
        FORMATS[dtype].smallest,
        FORMATS[dtype].largest,
    ]
    known = [int(bits_of(torch.tensor(value).to(dtype))) for value in special]
    near = st.builds(lambda pattern, off: _wrapped(pattern + off), st.sampled_from(known), st.integers(-3, 3))
    return st.one_of(st.integers(-(1 << 15), (1 << 15) - 1), near)


def partners(dtype: torch.dtype) -> st.SearchStrategy[tuple[int, int]]:
    """Two bit patterns, more often than not at most thirty binades apart, where sums round and cancel."""
    mantissa_bits = FORMATS[dtype].precision - 1

    def shifted(pattern: int, binades: int, mantissa: int, sign: int) -> tuple[int, int]:
        other = (pattern & 0x7FFF) + (binades << mantissa_bits) ^ mantissa
        return pattern, _wrapped(min(max(other, 0), 0x7FFF) | sign << 15)

    close = st.builds(
        shifted,
        patterns(dtype),
        st.integers(-30, 30),
        st.integers(0, (1 << mantissa_bits) - 1),
        st.integers(0, 1),
    )
    return st.one_of(close, st.tuples(patterns(dtype), patterns(dtype)))


def _wrapped(pattern: int) -> int:
    return ((pattern & 0xFFFF) ^ 0x8000) - 0x8000


def float32s() -> st.SearchStrategy[float]:
    """Finite float32 numbers over the whole range, subnormals and both zeros among them."""
    return st.floats(width=32, allow_nan=False, allow_infinity=False)
