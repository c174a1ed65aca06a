"""Adding to a pair in float32 arithmetic: numerics §2 against rational arithmetic, over the whole range."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from torch import Tensor

from rationals import BF16, F16, F32, PAIR_DTYPES, bits_of, exact, float32s, nearest, patterns, spacing, words
from roundoff.numerics import FORMATS, add_compensated, add_to_pair, round_to, ulp

Add = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
RELATIVE = {
    (add_to_pair, BF16): Fraction(1, 2**16),
    (add_compensated, BF16): Fraction(1, 2**16),
    (add_to_pair, F16): Fraction(1, 2**22),
    (add_compensated, F16): Fraction(1, 2**21),
}
"""The largest error of one update, relative to the largest of |hi|, |u| and |hi'|."""

ADDITIONS = [pytest.param(add, dtype, id=f"{add.__name__}-{str(dtype)[6:]}") for add, dtype in RELATIVE]
triples = st.tuples(
    st.floats(-1.0, 1.0),
    st.one_of(float32s(), st.tuples(st.floats(-2.0, 2.0, width=32), st.integers(-40, 20))),
)
"""lo in halves of hi's unit, and u: a number, or a mantissa and how many binades above hi it lies."""


def drawn(data: st.DataObject, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """A few pairs with updates: hi any word, lo within half a unit, 0 beside what is not finite."""
    rows = data.draw(st.lists(st.tuples(patterns(dtype), triples), min_size=1, max_size=16))
    hi = words([pattern for pattern, _ in rows], dtype)
    share = torch.tensor([share for _, (share, _) in rows], dtype=torch.float64)
    lo = round_to(torch.where(hi.isfinite(), ulp(hi) / 2 * share, 0.0), dtype)
    binade = torch.frexp(torch.where(hi.isfinite(), hi, 1.0).double()).exponent.double()
    sizes = [
        u if isinstance(u, float) else u[0] * 2.0 ** (float(binade[n]) + u[1])
        for n, (_, (_, u)) in enumerate(rows)
    ]
    return hi, lo, torch.tensor(sizes, dtype=torch.float64).clamp(-3.4e38, 3.4e38).to(F32)


@pytest.mark.parametrize(("add", "dtype"), ADDITIONS)
@given(st.data())
@settings(max_examples=80, deadline=None)
def test_the_promises_of_one_update(add: Add, dtype: torch.dtype, data: st.DataObject) -> None:
    hi, lo, u = drawn(data, dtype)
    new_hi, new_lo = add(hi, lo, u)
    assert new_hi.dtype == new_lo.dtype == dtype
    assert new_lo.isfinite().all()
    for n in range(hi.numel()):
        if not new_hi[n].isfinite():
            assert new_lo[n].item() == 0.0
            continue
        assert hi[n].isfinite(), "what is not finite stays so"
        assert abs(exact(new_lo[n])) <= spacing(exact(new_hi[n]), dtype) / 2
        if not (new_hi[n].float() - hi[n].float()).isfinite():
            continue  # from one end of the range to the other Kahan's own subtraction overflows, see below
        error = abs(exact(new_hi[n]) + exact(new_lo[n]) - exact(hi[n]) - exact(lo[n]) - exact(u[n]))
        largest = max(abs(exact(word)) for word in (hi[n], u[n], new_hi[n]))
        # Below the normal numbers nothing is relative: there lo is off by half of the smallest word.
        assert error <= largest * RELATIVE[add, dtype] + Fraction(FORMATS[dtype].smallest) / 2


def rounded(q: Fraction | None, dtype: torch.dtype) -> Fraction | None:
    return None if q is None else nearest(q, dtype)


def pair_by_hand(
    hi: Fraction, lo: Fraction, u: Fraction, dtype: torch.dtype
) -> tuple[Fraction, Fraction] | None:
    """t = hi + (lo + u) in binary32, hi' = RN(t), lo' = RN(t − hi'); None where it overflows."""
    inner = nearest(lo + u, F32)
    total = None if inner is None else nearest(hi + inner, F32)
    new = rounded(total, dtype)
    if total is None or new is None:
        return None
    rest = nearest(total - new, dtype)
    assert rest is not None
    return new, rest


def kahan_by_hand(
    w: Fraction, c: Fraction, u: Fraction, dtype: torch.dtype
) -> tuple[Fraction, Fraction] | None:
    """y = u + c, w' = RN(w + y), c' = RN(y − (w' − w)), every operation in binary32; None where w' overflows."""
    y = nearest(u + c, F32)
    new = None if y is None else rounded(nearest(w + y, F32), dtype)
    if y is None or new is None:
        return None
    change = nearest(new - w, F32)
    rest = None if change is None else nearest(y - change, F32)
    return new, rounded(rest, dtype) or Fraction(0)


@pytest.mark.parametrize(
    ("add", "by_hand", "dtype"),
    [
        pytest.param(add, by_hand, dtype, id=f"{add.__name__}-{str(dtype)[6:]}")
        for add, by_hand in ((add_to_pair, pair_by_hand), (add_compensated, kahan_by_hand))
        for dtype in PAIR_DTYPES
    ],
)
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_operation_is_the_one_of_the_definition(
    add: Add,
    by_hand: Callable[..., tuple[Fraction, Fraction] | None],
    dtype: torch.dtype,
    data: st.DataObject,
) -> None:
    hi, lo, u = drawn(data, dtype)
    new_hi, new_lo = add(hi, lo, u)
    for n in range(hi.numel()):
        if not hi[n].isfinite():
            continue
        expected = by_hand(exact(hi[n]), exact(lo[n]), exact(u[n]), dtype)
        if expected is None:
            assert new_hi[n].isinf()
        else:
            assert (exact(new_hi[n]), exact(new_lo[n])) == expected


@pytest.mark.parametrize(("add", "dtype"), ADDITIONS)
def test_nothing_is_left_beside_what_is_not_finite(add: Add, dtype: torch.dtype) -> None:
    largest, nan = FORMATS[dtype].largest, torch.nan
    hi = torch.tensor([torch.inf, -torch.inf, nan, 1.0, 1.0, 1.0, largest, -largest], dtype=dtype)
    lo = torch.zeros_like(hi)
    u = torch.tensor([1.0, 1.0, 1.0, torch.inf, -torch.inf, nan, 3e38, -3e38])
    new_hi, new_lo = add(hi, lo, u)
    assert bits_of(new_lo).tolist() == [0] * 8
    expected = [torch.inf, -torch.inf, nan, torch.inf, -torch.inf, nan, torch.inf, -torch.inf]
    assert torch.equal(new_hi.nan_to_num(7.0), torch.tensor(expected, dtype=dtype).nan_to_num(7.0))


def test_a_step_across_the_whole_range_leaves_kahans_word_finite() -> None:
    w, u = torch.tensor([FORMATS[BF16].largest], dtype=BF16), torch.tensor([-torch.finfo(F32).max])
    new, c = add_compensated(w, torch.zeros_like(w), u)
    assert new.isfinite()
    assert not (new.float() - w.float()).isfinite(), "the change overflows here"
    assert c.item() == 0.0


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_kahan_and_the_pair_see_the_same_word(dtype: torch.dtype, data: st.DataObject) -> None:
    hi, lo, u = drawn(data, dtype)
    pair, kahan = add_to_pair(hi, lo, u), add_compensated(hi, lo, u)
    assert torch.equal(
        bits_of(pair[0]).where(~pair[0].isnan(), 0), bits_of(kahan[0]).where(~pair[0].isnan(), 0)
    )
    # t keeps 24 bits of the sum and y as many of the update: alike to what both have left of one another.
    near = pair[0].isfinite() & (u.abs() <= hi.abs().to(F32))
    for n in near.nonzero().flatten().tolist():
        unit = max(spacing(exact(lo_of[n]), dtype) for lo_of in (pair[1], kahan[1]))
        blur = 4 * spacing(exact(hi[n]), F32)
        assert abs(exact(pair[1][n]) - exact(kahan[1][n])) <= unit + blur


def test_the_two_differ_where_the_update_is_far_larger_than_the_weight() -> None:
    w, zero, u = torch.tensor([1.25 * 2.0**-24], dtype=BF16), torch.zeros(1, dtype=BF16), torch.ones(1)
    assert add_to_pair(w, zero, u)[1].item() == 2.0**-23
    assert add_compensated(w, zero, u)[1].item() == 2.0**-24


def random_pairs(dtype: torch.dtype, n: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    hi = (1 + torch.rand(n, generator=generator)).to(dtype)
    lo = (ulp(hi) * (torch.rand(n, generator=generator, dtype=torch.float64) - 0.5)).to(F32).to(dtype)
    return hi, lo, torch.randn(n, generator=generator) * 0.01


def odd_at_equality(hi: Tensor, lo: Tensor) -> Tensor:
    """Where hi is the odd one of two words that are equally near to hi + lo."""
    return (lo.double().abs() == ulp(hi) / 2) & (bits_of(hi) & 1 == 1)


def test_the_odd_neighbour_at_equality_is_one_case_in_a_thousand() -> None:
    hi, lo = add_to_pair(*random_pairs(BF16, 1_000_000))
    assert odd_at_equality(hi, lo).double().mean().item() == pytest.approx(1 / 1024, rel=0.1)


@pytest.mark.parametrize("u", [0.0, 1e-9, -1e-9])
def test_the_next_step_heals_it_and_applies_nothing(u: float) -> None:
    hi, lo = add_to_pair(*random_pairs(BF16, 100_000))
    odd = odd_at_equality(hi, lo)
    hi, lo = hi[odd], lo[odd]
    healed_hi, healed_lo = add_to_pair(hi, lo, torch.full(hi.shape, u))
    seen = healed_hi.double() - hi.double()
    applied = seen + (healed_lo.double() - lo.double())
    assert hi.numel() > 50
    assert (bits_of(healed_hi) & 1 == 0).all()
    assert (seen != 0).all()
    assert (applied == 0).all()
    again = add_to_pair(healed_hi, healed_lo, torch.full(hi.shape, u))
    assert torch.equal(again[0], healed_hi)
    assert torch.equal(again[1], healed_lo)


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
@given(st.lists(patterns(F16), min_size=1, max_size=64))
@example([0x0400, -0x7C00])
@settings(max_examples=60, deadline=None)
def test_adding_nothing_to_a_fresh_word_changes_nothing(dtype: torch.dtype, some: list[int]) -> None:
    hi = words(some, dtype)
    zero = torch.zeros_like(hi)
    for add in (add_to_pair, add_compensated):
        new_hi, new_lo = add(hi, zero, torch.zeros(hi.shape))
        assert torch.equal(new_hi[~hi.isnan()], hi[~hi.isnan()])
        assert new_hi[hi.isnan()].isnan().all()
        assert not bits_of(new_lo).any()


def test_a_float16_pair_is_not_relative_for_small_weights() -> None:
    hi, u = torch.tensor([2.0**-10], dtype=F16), torch.tensor([2.0**-26])
    new_hi, new_lo = add_to_pair(hi, torch.zeros_like(hi), u)
    assert (new_hi.item(), new_lo.item()) == (2.0**-10, 0.0), "the smallest lo is 2^-24"
    new_hi, new_lo = add_to_pair(hi.to(BF16), torch.zeros_like(hi).to(BF16), u)
    assert new_hi.double().item() + new_lo.double().item() == 2.0**-10 + 2.0**-26
