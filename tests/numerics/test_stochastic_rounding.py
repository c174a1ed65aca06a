"""Stochastic rounding: the odds are exact, what needs no rounding stays, and nothing leaves its two neighbours."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from rationals import BF16, F16, F32, PAIR_DTYPES, bits_of, every_word, float32s
from roundoff.numerics import FORMATS, mix_key, random_words, round_stochastic, round_to, ulp

ALL_WORDS = torch.arange(1 << 16, dtype=torch.int32)
SCALES = {BF16: (2.0**-133, 2.0**-127, 1e-20, 1.0, 3e38), F16: (2.0**-24, 2.0**-15, 1.0, 60_000.0)}
"""From the subnormals to the largest numbers."""


def outer_share(x: float, dtype: torch.dtype) -> Tensor:
    """Results for all 65536 random words."""
    return round_stochastic(torch.full(ALL_WORDS.shape, x, dtype=F32), dtype, ALL_WORDS)


def neighbours(x: float, dtype: torch.dtype) -> tuple[float, float]:
    """The word nearer to zero and the next one away from it, for x that is no word."""
    words = every_word(dtype).double()
    size = words[words >= 0].unique()
    size = size[size.isfinite()]
    below = size[size <= abs(x)].max().item()
    above = size[size > abs(x)]
    sign = -1.0 if x < 0 else 1.0
    return sign * below, sign * (above.min().item() if above.numel() else torch.inf)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("sixteenths", [0.5, 1, 5, 8, 11, 15, 15.75])
@pytest.mark.parametrize(
    ("dtype", "scale"), [(dtype, scale) for dtype in PAIR_DTYPES for scale in SCALES[dtype]], ids=str
)
def test_the_odds_are_the_distance_exactly(
    dtype: torch.dtype, scale: float, sixteenths: float, sign: float
) -> None:
    word = round_to(torch.tensor([scale], dtype=torch.float64), dtype)
    wide = word.double() + ulp(word) * (sixteenths / 16)
    x = sign * wide.to(F32).item()
    assert abs(x) == wide.item(), "float32 holds this value"
    results = outer_share(x, dtype).double()
    inner, outer = neighbours(x, dtype)
    assert set(results.unique().tolist()) == {inner, outer}
    assert int((results == outer).sum()) == int(65536 * sixteenths / 16)


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
@given(float32s())
@settings(max_examples=60, deadline=None)
def test_the_odds_of_any_number_are_its_distance_in_65536ths(dtype: torch.dtype, x: float) -> None:
    results = outer_share(x, dtype).double()
    inner, outer = neighbours(x, dtype)
    if abs(x) > FORMATS[dtype].largest and dtype == F16:
        expected = round_to(torch.tensor([x], dtype=torch.float64), F16).double()
        assert torch.equal(results, expected.expand_as(results)), "beyond the largest it rounds to nearest"
        return
    # Beyond bfloat16's largest the next step of the same width is infinity.
    width = ulp(torch.tensor([inner]).to(dtype)).item()
    share = int((abs(x) - abs(inner)) / width * 65536)
    assert int((results == outer).sum()) == share
    assert int((results == inner).sum()) == 65536 - share


@pytest.mark.parametrize("random", [0, 1, 255, 32768, 65535])
@pytest.mark.parametrize("dtype", [BF16, F16, torch.float8_e5m2, torch.float8_e4m3fn], ids=str)
def test_words_of_the_format_never_move(dtype: torch.dtype, random: int) -> None:
    words = every_word(dtype)
    drawn = torch.full(words.shape, random, dtype=torch.int32)
    back = round_stochastic(words.to(F32), dtype, drawn)
    nan = words.to(F32).isnan()
    assert torch.equal(bits_of(back)[~nan], bits_of(words)[~nan]), "zeros keep their sign, infinities stay"
    assert back.to(F32)[nan].isnan().all()


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
def test_gorse_1240_and_tilelang_2481_nan_stays_nan_and_infinity_stays_infinity(dtype: torch.dtype) -> None:
    patterns = [0x7FFFFFFF, -1, 0x7FC00000, 0x7F800001, -0x7FFFFF, 0x7F800000, -0x800000]
    x = torch.tensor(patterns, dtype=torch.int32).view(F32)
    added = (torch.tensor([0x7FFFFFFF], dtype=torch.int32) + 65535) & ~0xFFFF
    assert added.view(F32).item() == 0.0, "what adding and masking alone makes of this NaN"
    for random in (0, 1, 65535):
        result = round_stochastic(x, dtype, torch.full(x.shape, random, dtype=torch.int32))
        assert result[:5].isnan().all()
        assert result[5:].tolist() == [torch.inf, -torch.inf]


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
@given(st.lists(float32s(), min_size=1, max_size=64), st.integers(0, 65535))
@settings(max_examples=60, deadline=None)
def test_negative_numbers_are_the_mirror_of_positive_ones(
    dtype: torch.dtype, some: list[float], word: int
) -> None:
    x = torch.tensor(some, dtype=F32)
    words = torch.full(x.shape, word, dtype=torch.int32)
    assert torch.equal(
        bits_of(round_stochastic(-x, dtype, words)), bits_of(-round_stochastic(x, dtype, words))
    )


def test_the_ends_of_the_range() -> None:
    beyond = torch.tensor([0x7F7FFFFF], dtype=torch.int32).view(F32)
    for random, expected in ((0, FORMATS[BF16].largest), (1, torch.inf)):
        drawn = torch.tensor([random], dtype=torch.int32)
        assert round_stochastic(beyond, BF16, drawn).item() == expected
    for x, expected in ((65504.0, 65504.0), (65519.0, 65504.0), (65520.0, torch.inf)):
        for random in (0, 65535):
            drawn = torch.tensor([random], dtype=torch.int32)
            assert round_stochastic(torch.tensor([x]), F16, drawn).item() == expected


def test_below_the_smallest_word_zero_or_the_smallest_come_out() -> None:
    for dtype in PAIR_DTYPES:
        smallest = FORMATS[dtype].smallest
        results = outer_share(smallest * 0.25, dtype).double()
        assert int((results == smallest).sum()) == 16384
        assert int((results == 0).sum()) == 49152


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(TypeError, match=r"takes float32, got torch\.float64"):
        round_stochastic(torch.ones(1, dtype=torch.float64), BF16, torch.zeros(1, dtype=torch.int32))
    with pytest.raises(TypeError, match="not a storage format"):
        round_stochastic(torch.ones(1), torch.int8, torch.zeros(1, dtype=torch.int32))


@pytest.mark.parametrize("dtype", PAIR_DTYPES, ids=str)
def test_the_mean_of_many_steps_is_the_exact_displacement(dtype: torch.dtype) -> None:
    n, steps, u = 20_000, 200, -1e-5
    index = torch.arange(n)
    w = torch.ones(n, dtype=dtype)
    for step in range(steps):
        w = round_stochastic(w.to(F32) + u, dtype, random_words(mix_key(3, step, 0), index))
    moved = w.double() - 1.0
    # Where it has moved it moves on: the variance of a sum of steps of one gap, seldom taken.
    gap = 2.0 ** -FORMATS[dtype].precision
    sigma = (gap * -u * steps / n) ** 0.5
    exact = torch.tensor(1.0 + u, dtype=F32).double().item() - 1.0
    assert moved.mean().item() == pytest.approx(steps * exact, abs=4 * sigma)
    assert moved.std().item() == pytest.approx((gap * -u * steps) ** 0.5, rel=0.05)
