"""Operations rounded to the storage format: each against the rational numbers, once rounded."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch import Tensor

from rationals import BF16, F16, PAIR_DTYPES, every_word, exact, nearest, partners, patterns, words
from roundoff import numerics
from roundoff.numerics import FORMATS
from roundoff.numerics.transforms import add, multiply_add, product, subtract

EIGHT_BIT = (torch.float8_e4m3fn, torch.float8_e5m2)
some_partners = {dtype: st.lists(partners(dtype), min_size=1, max_size=16) for dtype in PAIR_DTYPES}


def drawn(data: st.DataObject, dtype: torch.dtype, below: float = torch.inf) -> tuple[Tensor, Tensor]:
    """A few pairs of words, 0 in place of those that are not below `below` in magnitude."""
    rows = data.draw(some_partners[dtype])
    a, b = (words([row[side] for row in rows], dtype) for side in (0, 1))
    good = (a.abs() < below) & (b.abs() < below)
    return torch.where(good, a, 0.0), torch.where(good, b, 0.0)


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
@given(st.data())
@settings(max_examples=100, deadline=None)
def test_every_operation_rounds_the_exact_result_once(dtype: torch.dtype, data: st.DataObject) -> None:
    a, b = drawn(data, dtype)
    c = a.flip(0)
    results = {
        "add": (add(a, b), lambda x, y, z: x + y),
        "subtract": (subtract(a, b), lambda x, y, z: x - y),
        "product": (product(a, b), lambda x, y, z: x * y),
        "multiply_add": (multiply_add(a, b, c), lambda x, y, z: x * y + z),
    }
    for name, (got, formula) in results.items():
        for n in range(a.numel()):
            expected = nearest(formula(exact(a[n]), exact(b[n]), exact(c[n])), dtype)
            assert got[n].isinf() if expected is None else exact(got[n]) == expected, name


@pytest.mark.parametrize(("c", "expected"), [(0.0, 260.0), (2.0**-60, 260.0), (-(2.0**-60), 258.0)])
def test_a_tie_is_decided_by_what_float64_cannot_hold(c: float, expected: float) -> None:
    # 7 · 37 = 259 lies in the middle of two words, and float64 rounds 259 − 2⁻⁶⁰ to that middle.
    seven, more, rest = (torch.tensor([x], dtype=BF16) for x in (7.0, 37.0, c))
    assert multiply_add(seven, more, rest).item() == expected


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
@given(st.data())
@settings(max_examples=100, deadline=None)
def test_two_sum_is_exact_in_any_order_of_magnitude(dtype: torch.dtype, data: st.DataObject) -> None:
    a, b = drawn(data, dtype)
    s, e = numerics.two_sum(a, b)
    for n in range(a.numel()):
        if not s[n].isfinite():
            assert not e[n].isfinite()
            continue
        assert exact(s[n]) == nearest(exact(a[n]) + exact(b[n]), dtype)
        if e[n].isfinite():
            assert exact(s[n]) + exact(e[n]) == exact(a[n]) + exact(b[n])
        else:
            assert FORMATS[dtype].largest in (a[n].abs().item(), b[n].abs().item())


@pytest.mark.parametrize("dtype", EIGHT_BIT, ids=str)
def test_two_sum_is_exact_for_all_pairs_of_eight_bit_words(dtype: torch.dtype) -> None:
    known = every_word(dtype)
    known = known[known.to(torch.float32).isfinite()]
    a, b = (grid.contiguous() for grid in torch.meshgrid(known.float(), known.float(), indexing="ij"))
    s, e = numerics.two_sum(a.to(dtype), b.to(dtype))
    total = a.double() + b.double()
    fits, exact_ones = s.to(torch.float32).isfinite(), e.to(torch.float32).isfinite()
    assert torch.equal(s.float()[fits], numerics.round_to(total, dtype).float()[fits])
    assert torch.equal((s.double() + e.double())[exact_ones], total[exact_ones])
    # Boldo, Graillat and Muller, "On the robustness of the 2Sum and Fast2Sum algorithms", 2017.
    failed = fits & ~exact_ones
    assert (torch.maximum(a.abs(), b.abs())[failed] == FORMATS[dtype].largest).all()
    assert (total[~fits].abs() > FORMATS[dtype].largest).all()


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_fast_two_sum_is_exact_in_order_only(dtype: torch.dtype, data: st.DataObject) -> None:
    a, b = drawn(data, dtype)
    swapped = a.abs() < b.abs()
    a, b = torch.where(swapped, b, a), torch.where(swapped, a, b)
    s, e = numerics.fast_two_sum(a, b)
    for n in s.isfinite().nonzero().flatten().tolist():
        assert exact(s[n]) + exact(e[n]) == exact(a[n]) + exact(b[n])


def test_fast_two_sum_out_of_order_loses_what_two_sum_keeps() -> None:
    a = torch.tensor([1.0078125], dtype=BF16)
    b = torch.tensor([2.0**8 + 2.0**1], dtype=BF16)
    exact_sum = a.double() + b.double()
    s, e = numerics.fast_two_sum(a, b)
    t, f = numerics.two_sum(a, b)
    assert t.double() + f.double() == exact_sum
    assert s.double() + e.double() != exact_sum


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
@given(st.data())
@settings(max_examples=100, deadline=None)
def test_two_product_is_exact_where_the_error_is_in_range(dtype: torch.dtype, data: st.DataObject) -> None:
    a, b = drawn(data, dtype)
    p, e = numerics.two_product(a, b)
    smallest = Fraction(FORMATS[dtype].smallest)
    for n in p.isfinite().nonzero().flatten().tolist():
        whole = exact(a[n]) * exact(b[n])
        left = whole - exact(p[n]) - exact(e[n])
        assert abs(left) <= smallest / 2
        if (whole / smallest).denominator == 1:
            assert left == 0


def two_sum_by_hand(a: Fraction, b: Fraction, dtype: torch.dtype) -> tuple[Fraction, Fraction] | None:
    s = nearest(a + b, dtype)
    return None if s is None else (s, a + b - s)


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
@given(st.data(), st.floats(-1.0, 1.0))
@settings(max_examples=100, deadline=None)
def test_grow_is_its_definition(dtype: torch.dtype, data: st.DataObject, share: float) -> None:
    hi, x = drawn(data, dtype, FORMATS[dtype].largest)
    lo = numerics.round_to(numerics.ulp(hi) / 2 * share, dtype)
    new_hi, new_lo = numerics.grow(hi, lo, x)
    for n in range(hi.numel()):
        first = two_sum_by_hand(exact(hi[n]), exact(x[n]), dtype)
        rest = None if first is None else nearest(exact(lo[n]) + first[1], dtype)
        expected = None if first is None or rest is None else two_sum_by_hand(first[0], rest, dtype)
        if expected is not None:
            assert (exact(new_hi[n]), exact(new_lo[n])) == expected


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
@given(st.data(), st.floats(-1.0, 1.0), st.floats(0.5, 1.0))
@example(None, 0.5, 0.999).via("β2")
@settings(max_examples=100, deadline=None)
def test_multiply_is_its_definition(
    dtype: torch.dtype, data: st.DataObject | None, share: float, factor: float
) -> None:
    hi = torch.ones(1, dtype=dtype) if data is None else drawn(data, dtype, FORMATS[dtype].largest)[0]
    lo = numerics.round_to(numerics.ulp(hi) / 2 * share, dtype)
    c_hi, c_lo = numerics.expand(factor, dtype)
    new_hi, new_lo = numerics.multiply(hi, lo, c_hi, c_lo)
    for n in range(hi.numel()):
        big, small = exact(c_hi), exact(c_lo)
        p = nearest(exact(hi[n]) * big, dtype)
        t = nearest(exact(lo[n]) * big, dtype)
        if p is None or t is None:
            continue
        e = nearest(exact(hi[n]) * big - p, dtype)
        t = nearest(exact(hi[n]) * small + t, dtype)
        assert e is not None
        assert t is not None
        rest = nearest(t + e, dtype)
        expected = None if rest is None else two_sum_by_hand(p, rest, dtype)
        if expected is not None:
            assert (exact(new_hi[n]), exact(new_lo[n])) == expected


@pytest.mark.parametrize(("dtype", "within"), [(BF16, 2.0**-14), (F16, 2.0**-20)], ids=str)
def test_multiply_keeps_twice_the_digits(dtype: torch.dtype, within: float) -> None:
    generator = torch.Generator().manual_seed(1)
    hi, lo = numerics.expand(1 + torch.rand(10_000, generator=generator, dtype=torch.float64), dtype)
    beta2 = numerics.expand(0.999, dtype)
    new_hi, new_lo = numerics.multiply(hi, lo, *beta2)
    wanted = (hi.double() + lo.double()) * 0.999
    assert (((new_hi.double() + new_lo.double()) - wanted).abs() / wanted).max().item() <= within
    assert (new_lo != lo).any(), "the residual is reduced, not handed on"


@given(st.floats(width=64, allow_nan=False, allow_infinity=False), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_expand_rounds_what_the_words_before_left(dtype: torch.dtype, value: float, components: int) -> None:
    left = Fraction(value)
    for word in numerics.expand(value, dtype, components):
        expected = nearest(left, dtype)
        if expected is None:
            assert not word.to(torch.float32).isfinite()
            left = Fraction(0)  # nothing is left beside what overflowed
        else:
            assert exact(word) == expected
            left -= expected


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
@given(st.lists(st.tuples(patterns(F16), patterns(F16)), min_size=1, max_size=32))
@settings(max_examples=60, deadline=None)
def test_what_is_not_finite_shows_in_the_result(dtype: torch.dtype, rows: list[tuple[int, int]]) -> None:
    a, b = (words([row[side] for row in rows], dtype) for side in (0, 1))
    for result in (numerics.two_sum(a, b)[0], numerics.grow(a, torch.zeros_like(a), b)[0]):
        bad = ~(a.isfinite() & b.isfinite())
        assert not result[bad].isfinite().any()
    assert not numerics.two_product(a, b)[0][~(a.isfinite() & b.isfinite())].isfinite().any()


def test_operands_of_two_dtypes_are_refused() -> None:
    with pytest.raises(TypeError, match="one storage dtype"):
        numerics.two_sum(torch.ones(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.float16))
    with pytest.raises(ValueError, match="components must be at least 1, got 0"):
        numerics.expand(1.0, BF16, 0)
