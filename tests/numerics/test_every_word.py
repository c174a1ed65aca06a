"""Rounding, spacing and splitting, exhaustively: all words of a format and what lies between them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rationals import BF16, BITS, F16, F32, bits_of, every_word
from roundoff import numerics
from roundoff.numerics import FORMATS

NARROW = [dtype for dtype in FORMATS if dtype.itemsize < 4]
SIXTEEN = (BF16, F16)


def finite_values(dtype: torch.dtype) -> Tensor:
    """All finite values in ascending order, as float64, zero once."""
    wide = every_word(dtype).to(torch.float64)
    return wide[wide.isfinite()].unique()


def successor(x: Tensor) -> Tensor:
    """The next float64 above."""
    return torch.nextafter(x, torch.full_like(x, torch.inf))


def predecessor(x: Tensor) -> Tensor:
    return torch.nextafter(x, torch.full_like(x, -torch.inf))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_round_to_gives_back_every_word(dtype: torch.dtype) -> None:
    words = every_word(dtype)
    wide = words.to(torch.float64)
    back = numerics.round_to(wide, dtype)
    finite = wide.isfinite()
    assert torch.equal(bits_of(back)[finite], bits_of(words)[finite]), "−0 among them"
    assert torch.equal(back.to(torch.float64).isnan(), wide.isnan())
    assert torch.equal(back.to(torch.float64)[wide.isinf()], wide[wide.isinf()])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_round_to_is_nearest_even_between_every_two_neighbours(dtype: torch.dtype) -> None:
    values = finite_values(dtype)
    low, high = values[:-1], values[1:]
    middle = low / 2 + high / 2
    assert torch.equal(middle - low, high - middle)
    for x, expected in (
        (successor(low), low),
        (predecessor(middle), low),
        (successor(middle), high),
        (predecessor(high), high),
    ):
        assert torch.equal(numerics.round_to(x, dtype).to(torch.float64), expected)
    # Neighbours differ by one in the bit pattern, so exactly one of them is even.
    even = bits_of(numerics.round_to(low, dtype)).to(torch.int32) & 1 == 0
    assert torch.equal(numerics.round_to(middle, dtype).to(torch.float64), torch.where(even, low, high))


@pytest.mark.parametrize("dtype", [*NARROW, F32], ids=str)
def test_round_to_overflows_from_half_a_unit_beyond_the_largest(dtype: torch.dtype) -> None:
    form = FORMATS[dtype]
    largest = torch.tensor([form.largest], dtype=torch.float64)
    edge = largest + numerics.ulp(largest.to(F32).to(dtype)) / 2
    for sign in (1.0, -1.0):
        assert numerics.round_to(sign * predecessor(edge), dtype).double().item() == sign * form.largest
        for beyond in (successor(edge), torch.tensor([1e300], dtype=torch.float64), edge * torch.inf):
            result = numerics.round_to(sign * beyond, dtype).to(torch.float32).item()
            assert result == sign * torch.inf if form.has_infinity else result != result
    # The tie goes to the even one: in e4m3fn, whose NaN has the odd pattern above, that is the largest.
    at_edge = numerics.round_to(edge, dtype).to(torch.float32)
    assert at_edge.isinf().item() if form.has_infinity else at_edge.item() == form.largest


def test_round_to_flushes_only_what_is_at_most_half_of_the_smallest() -> None:
    for form in FORMATS.values():
        half = torch.tensor([form.smallest / 2], dtype=torch.float64)
        assert numerics.round_to(half, form.dtype).double().item() == 0.0
        assert numerics.round_to(successor(half), form.dtype).double().item() == form.smallest
        assert bits_of(numerics.round_to(-half, form.dtype)).item() < 0, "−0 keeps its sign"


def test_a_plain_cast_rounds_twice_where_round_to_does_not() -> None:
    x = torch.tensor(1.0 + 2.0**-8 + 2.0**-40, dtype=torch.float64)
    assert x.to(torch.bfloat16).item() == 1.0
    assert numerics.round_to(x, torch.bfloat16).item() == 1.0 + 2.0**-7


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_gap_is_the_distance_to_the_neighbour(dtype: torch.dtype) -> None:
    form = FORMATS[dtype]
    values = finite_values(dtype)
    inner = values[1:-1]
    words = numerics.round_to(inner, dtype)
    up, down = values[2:] - inner, inner - values[:-2]
    assert torch.equal(numerics.gap(words, torch.ones(1)), up)
    assert torch.equal(numerics.gap(words, -torch.ones(1)), down)
    assert torch.equal(numerics.gap(words, torch.zeros(1)), torch.maximum(up, down))
    assert torch.equal(numerics.ulp(words), torch.maximum(up, down))
    assert numerics.ulp(torch.zeros(1, dtype=dtype)).item() == form.smallest


def test_gap_of_float32_is_the_distance_to_the_neighbour_at_both_ends_of_every_binade() -> None:
    exponents = torch.arange(1, 255, dtype=torch.int32) << 23
    patterns = (exponents[:, None] + torch.arange(-2, 3, dtype=torch.int32)).reshape(-1)
    words = patterns.view(F32)
    up, down = ((patterns + step).view(F32).double() for step in (1, -1))
    assert torch.equal(numerics.gap(words, torch.ones(1)), up - words.double())
    assert torch.equal(numerics.gap(words, -torch.ones(1)), words.double() - down)
    assert torch.equal(numerics.gap(-words, torch.ones(1)), words.double() - down)


@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
def test_expanding_a_word_leaves_nothing(dtype: torch.dtype) -> None:
    words = every_word(dtype)
    hi, lo, rest = numerics.expand(words.to(torch.float64), dtype, components=3)
    nan = words.isnan()
    assert torch.equal(bits_of(hi)[~nan], bits_of(words)[~nan])
    assert hi[nan].isnan().all()
    assert not lo.any()
    assert not rest.any()


@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
def test_expanding_what_lies_between_all_neighbours_gives_back_both_words(dtype: torch.dtype) -> None:
    values = finite_values(dtype)
    low, high = values[:-1], values[1:]
    for eighths in range(1, 8):
        x = low + (high - low) * (eighths / 8)
        hi, lo = numerics.expand(x, dtype)
        nearer = low if eighths < 4 else high
        if eighths != 4:
            assert torch.equal(hi.double(), nearer)
        assert (lo.double().abs() <= (high - low) / 2).all()
        inside = (x - hi.double()).abs() >= 8 * FORMATS[dtype].smallest
        assert torch.equal((hi.double() + lo.double())[inside], x[inside])


REMAINDERS = (-(1 << 15), -(1 << 15) + 1, -12345, -2, -1, 0, 1, 2, 12345, (1 << 15) - 2, (1 << 15) - 1)


def nan_together(hi: Tensor, remainder: Tensor) -> Tensor:
    """Where a word and a remainder that does not belong to it would be NaN though the word is not."""
    bits = (bits_of(hi).to(torch.int64) << 16) + remainder.to(torch.int64)
    return ((bits & 0x7FFFFFFF) > 0x7F800000) & ~hi.isnan()


@pytest.mark.parametrize("remainder", REMAINDERS)
def test_every_word_joined_and_split_again(remainder: int) -> None:
    hi = every_word(BF16)
    rest = torch.full(hi.shape, remainder, dtype=torch.int16)
    joined = numerics.join_master(hi, rest)
    back, again = numerics.split_master(joined)
    stray, nan = nan_together(hi, rest), hi.isnan()
    good = ~stray & ~nan
    assert torch.equal(bits_of(back)[good], bits_of(hi)[good])
    assert torch.equal(again[good], rest[good])
    assert joined[nan].isnan().all()
    assert torch.equal(bits_of(joined)[stray], bits_of(hi.to(F32))[stray]), "the word alone counts"
    near = good & hi.isfinite() & joined.isfinite()
    unit = numerics.ulp(hi)[near]
    assert ((joined.double() - hi.double()).abs()[near] <= unit / 2).all()


WORDS = (
    0,
    1,
    0x7F,
    0x80,
    0x3F7F,
    0x3F80,
    0x3F81,
    0x4049,
    0x7F7F,
    0x7F80,
    -0x8000,
    -0x7FFF,
    -0x4080,
    -0x81,
    -0x80,
)


@pytest.mark.parametrize("word", WORDS)
def test_every_remainder_of_chosen_words(word: int) -> None:
    rest = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    hi = torch.full(rest.shape, word, dtype=torch.int16).view(BF16)
    joined = numerics.join_master(hi, rest)
    expected = ((bits_of(hi).to(torch.int64) << 16) + rest.to(torch.int64)).to(torch.int32)
    stray = nan_together(hi, rest)
    assert torch.equal(bits_of(joined)[~stray], expected[~stray])
    assert torch.equal(bits_of(joined)[stray], bits_of(hi.to(F32))[stray])
    back, again = numerics.split_master(joined)
    assert torch.equal(bits_of(back)[~stray], bits_of(hi)[~stray])
    assert torch.equal(again[~stray], rest[~stray])


@pytest.mark.parametrize("first", [0, 0x3F80_0000, 0x7F7F_0000, -0x8000_0000, -0x80_0000 - 0x8000])
def test_all_float32_of_a_stretch_split_to_the_nearest_word_ties_away(first: int) -> None:
    bits = torch.arange(first, first + (1 << 17), dtype=torch.int64).to(torch.int32)
    w32 = bits.view(F32)
    hi, rest = numerics.split_master(w32)
    nan = w32.isnan()
    assert torch.equal(bits_of(numerics.join_master(hi, rest))[~nan], bits[~nan])
    assert torch.equal(bits_of(hi)[nan], torch.where(bits < 0, 0xFFC0 - 0x10000, 0x7FC0).to(torch.int16)[nan])
    assert not rest[nan].any()
    tie = (bits & 0xFFFF) == 0x8000
    nearest = numerics.round_to(w32, BF16)
    assert torch.equal(bits_of(hi)[~tie & ~nan], bits_of(nearest)[~tie & ~nan])
    away = ((bits.to(torch.int64) + 0x8000) >> 16).to(torch.int16)
    assert torch.equal(bits_of(hi)[tie & ~nan], away[tie & ~nan])


def test_apex_1842_a_tie_goes_away_from_zero_and_comes_back() -> None:
    w32 = torch.tensor([0x3F808000], dtype=torch.int32).view(F32)
    hi, rest = numerics.split_master(w32)
    assert (hi.item(), rest.item()) == (1.0078125, -(1 << 15))
    assert w32.to(BF16).item() == 1.0, "ties to even would be the other neighbour"
    assert torch.equal(bits_of(numerics.join_master(hi, rest)), bits_of(w32))


def test_a_zero_written_over_a_weight_stays_zero_beside_a_stale_remainder() -> None:
    hi, rest = numerics.split_master(torch.linspace(-1, 1, 999))
    assert (rest < 0).any()
    joined = numerics.join_master(torch.zeros_like(hi), rest)
    assert not joined.isnan().any()
    assert joined.abs().max().item() < 2.0**-130


def test_what_is_no_storage_format_or_no_master_is_refused() -> None:
    with pytest.raises(TypeError, match="float64 is not a storage format"):
        numerics.ulp(torch.ones(1, dtype=torch.float64))
    with pytest.raises(TypeError, match="int32 is not a storage format"):
        numerics.round_to(torch.ones(1), torch.int32)
    with pytest.raises(TypeError, match=r"split_master takes float32, got torch\.bfloat16"):
        numerics.split_master(torch.ones(1, dtype=BF16))
    with pytest.raises(TypeError, match=r"int16 remainder, got torch\.bfloat16 and torch\.float32"):
        numerics.join_master(torch.ones(1, dtype=BF16), torch.ones(1))
    assert numerics.ulp(torch.tensor([torch.inf, torch.nan])).isnan().all()
    assert numerics.gap(torch.tensor([torch.inf, torch.nan]), torch.ones(2)).isnan().all()


def test_the_widths_cover_every_format() -> None:
    assert {dtype.itemsize for dtype in FORMATS} <= set(BITS)
