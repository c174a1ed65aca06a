"""The numerics against exact rational arithmetic, over the whole exponent range and every word."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from roundoff import numerics
from roundoff.numerics import FORMATS

PAIR_DTYPES = (torch.bfloat16, torch.float16)


def every_word(dtype: torch.dtype) -> Tensor:
    if dtype.itemsize == 1:
        return torch.arange(-128, 128, dtype=torch.int16).to(torch.int8).view(dtype)
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


@pytest.mark.parametrize("dtype", [d for d in FORMATS if d.itemsize < 4], ids=str)
def test_round_to_gives_back_every_word(dtype: torch.dtype) -> None:
    words = every_word(dtype)
    wide = words.to(torch.float64)
    back = numerics.round_to(wide, dtype)
    finite = wide.isfinite()
    bits = torch.int8 if dtype.itemsize == 1 else torch.int16
    assert torch.equal(back.view(bits)[finite], words.view(bits)[finite])
    assert torch.equal(back.to(torch.float64).isnan(), wide.isnan())
    assert torch.equal(back.to(torch.float64).isinf(), wide.isinf())


@pytest.mark.parametrize("dtype", [d for d in FORMATS if d.itemsize < 4], ids=str)
def test_round_to_is_nearest_even_between_every_two_neighbours(dtype: torch.dtype) -> None:
    wide = every_word(dtype).to(torch.float64)
    values = wide[wide.isfinite()].unique()
    low, high = values[:-1], values[1:]
    middle = low / 2 + high / 2
    assert torch.equal(middle - low, high - middle)
    nudge = (high - low) * 2.0**-20
    assert torch.equal(numerics.round_to(middle - nudge, dtype).to(torch.float64), low)
    assert torch.equal(numerics.round_to(middle + nudge, dtype).to(torch.float64), high)
    tied = numerics.round_to(middle, dtype).to(torch.float64)
    step = high - low
    even = torch.where(torch.remainder((low / step).round(), 2) == 0, low, high)
    assert torch.equal(tied, even)


def test_round_to_overflows_as_the_format_does() -> None:
    largest = torch.finfo(torch.bfloat16).max
    edge = torch.tensor(
        [largest + 2.0**119 * 0.99, largest + 2.0**119, -1e300, torch.inf], dtype=torch.float64
    )
    rounded = numerics.round_to(edge, torch.bfloat16).to(torch.float64)
    assert rounded.tolist() == [largest, torch.inf, -torch.inf, torch.inf]
    e4m3 = numerics.round_to(
        torch.tensor([464.0, 464.1, -torch.inf], dtype=torch.float64), torch.float8_e4m3fn
    )
    assert e4m3.to(torch.float64)[0].item() == 448.0
    assert e4m3.to(torch.float64)[1:].isnan().all()


def test_a_plain_cast_rounds_twice_where_round_to_does_not() -> None:
    x = torch.tensor(1.0 + 2.0**-8 + 2.0**-40, dtype=torch.float64)
    assert x.to(torch.bfloat16).item() == 1.0
    assert numerics.round_to(x, torch.bfloat16).item() == 1.0 + 2.0**-7


def test_ulp_and_gap_refuse_what_is_no_storage_format() -> None:
    with pytest.raises(TypeError, match="float64 is not a storage format"):
        numerics.ulp(torch.ones(1, dtype=torch.float64))
    assert numerics.ulp(torch.tensor([torch.inf, torch.nan])).isnan().all()
    assert numerics.gap(torch.tensor([1.0]), torch.tensor([0.0])).item() == 2.0**-23


words16 = st.integers(-(2**15), 2**15 - 1)


def word(bits: int, dtype: torch.dtype) -> Tensor:
    return torch.tensor([bits], dtype=torch.int16).view(dtype)


def fraction(tensor: Tensor) -> Fraction:
    return Fraction(tensor.to(torch.float64).item())


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
@given(words16, words16)
@settings(max_examples=400, deadline=None)
def test_two_sum_is_exact(dtype: torch.dtype, a_bits: int, b_bits: int) -> None:
    a, b = word(a_bits, dtype), word(b_bits, dtype)
    s, e = numerics.two_sum(a, b)
    if not (a.isfinite() and b.isfinite() and s.isfinite()):
        return
    assert fraction(s) + fraction(e) == fraction(a) + fraction(b)


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
@given(words16, words16)
@settings(max_examples=400, deadline=None)
def test_two_product_is_exact_where_the_error_is_in_range(
    dtype: torch.dtype, a_bits: int, b_bits: int
) -> None:
    a, b = word(a_bits, dtype), word(b_bits, dtype)
    p, e = numerics.two_product(a, b)
    if not (a.isfinite() and b.isfinite() and p.isfinite()):
        return
    left = fraction(a) * fraction(b) - fraction(p) - fraction(e)
    assert abs(left) <= Fraction(FORMATS[dtype].smallest) / 2


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
@given(words16, st.floats(-1.0, 1.0), st.floats(width=32, allow_nan=False, allow_infinity=False))
@settings(max_examples=600, deadline=None)
def test_add_to_pair_keeps_its_promises(
    dtype: torch.dtype, hi_bits: int, share: float, u_value: float
) -> None:
    hi = word(hi_bits, dtype)
    if not hi.isfinite():
        return
    lo = numerics.round_to(numerics.ulp(hi) / 2 * share, dtype)
    u = torch.tensor([u_value], dtype=torch.float32)
    new_hi, new_lo = numerics.add_to_pair(hi, lo, u)
    if not new_hi.isfinite():
        assert new_lo.item() == 0.0
        return
    assert abs(fraction(new_lo)) <= fraction(numerics.ulp(new_hi)) / 2
    if dtype == torch.bfloat16:
        error = fraction(new_hi) + fraction(new_lo) - fraction(hi) - fraction(lo) - fraction(u)
        largest = max(abs(fraction(hi)), abs(fraction(u)), abs(fraction(new_hi)))
        assert abs(error) <= largest / 2**16 + Fraction(FORMATS[dtype].smallest)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=64))
@settings(max_examples=200, deadline=None)
def test_split_and_join_are_inverse_on_every_float32(patterns: list[int]) -> None:
    w = torch.tensor(patterns, dtype=torch.int32).view(torch.float32)
    hi, remainder = numerics.split_master(w)
    back = numerics.join_master(hi, remainder)
    assert torch.equal(back.view(torch.int32)[~w.isnan()], w.view(torch.int32)[~w.isnan()])
    assert back[w.isnan()].isnan().all()


def test_join_refuses_a_remainder_that_went_through_floats() -> None:
    with pytest.raises(TypeError, match=r"int16 remainder, got torch\.bfloat16 and torch\.float32"):
        numerics.join_master(torch.ones(1, dtype=torch.bfloat16), torch.ones(1))


def test_operands_of_two_dtypes_are_refused() -> None:
    with pytest.raises(TypeError, match="one storage dtype"):
        numerics.two_sum(torch.ones(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.float16))
