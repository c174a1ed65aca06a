"""Values in two and three words of 8 bit: every pair of words, and how many bits they add up to."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from rationals import F16, F32, bits_of, every_word, exact, nearest, spacing
from roundoff import numerics
from roundoff.numerics import FORMATS

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
formats = pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=str)


def every_pair(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """All pairs of finite words, flat."""
    known = every_word(dtype)
    known = known[known.to(F32).isfinite()]
    first, second = torch.meshgrid(*(torch.arange(known.numel()),) * 2, indexing="ij")
    return known[first.reshape(-1)], known[second.reshape(-1)]


def value(*words: Tensor) -> Tensor:
    return sum((word.double() for word in words), torch.zeros(()))


@formats
def test_any_two_words_become_a_pair_of_the_same_value(dtype: torch.dtype) -> None:
    a, b = every_pair(dtype)
    hi, lo = numerics.add_to_pair(a, b, torch.zeros(a.shape))
    fits = hi.to(F32).isfinite()
    # binary64 holds every sum exactly, binary32 does not span the range of e5m2; rational numbers look at some.
    assert torch.equal(value(hi, lo)[fits], value(a, b)[fits].float().double())
    assert torch.equal(value(a, b).float().double(), value(a, b)) == (dtype == E4M3)
    for n in range(0, a.numel(), 13):
        total = nearest(exact(a[n]) + exact(b[n]), F32)
        assert total is not None
        word = nearest(total, dtype)
        assert bool(fits[n]) == (word is not None)
        assert (word, total) == (exact(hi[n]), exact(hi[n]) + exact(lo[n])) if fits[n] else not lo[n].float()
    assert (lo.double()[fits].abs() * 2 <= numerics.ulp(hi)[fits]).all()
    # What is a pair already stays one: the second word below half of the gap that it points to.
    pair = b.double().abs() * 2 < numerics.gap(a, b)
    assert torch.equal(bits_of(hi)[pair & (b.float() != 0)], bits_of(a)[pair & (b.float() != 0)])
    assert (a.numel(), int((~fits).sum())) == {E4M3: (64516, 436), E5M2: (61504, 120)}[dtype]


def binades(dtype: torch.dtype, steps: int = 1 << 15) -> list[tuple[int, Tensor]]:
    """(e, values evenly spread over [2^e, 2^(e+1))) for all e in the range of the format."""
    lowest, highest = (torch.tensor(x).log2().floor().int().item() for x in _ends(dtype))
    offsets = 1 + torch.arange(steps, dtype=torch.float64) / steps
    return [(e, offsets * 2.0**e) for e in range(int(lowest), int(highest))]


def _ends(dtype: torch.dtype) -> tuple[float, float]:
    return FORMATS[dtype].smallest, FORMATS[dtype].largest


@formats
@pytest.mark.parametrize("components", [1, 2, 3])
def test_every_word_adds_its_digits_and_a_sign_until_the_range_ends(
    dtype: torch.dtype, components: int
) -> None:
    form = FORMATS[dtype]
    digits = components * (form.precision + 1) - 1
    for e, x in binades(dtype):
        words = numerics.expand(x, dtype, components)
        error = (x - value(*words)).abs().max().item()
        bound = max(2.0 ** (e - digits), form.smallest / 2)
        assert bound / 2 < error <= bound, f"2^{e}: {error} of {bound}"
    for n in range(0, x.numel(), 997):  # the highest binade, where all words count
        left = Fraction(x[n].item())
        for word in words:
            assert exact(word[n]) == nearest(left, dtype)
            left -= exact(word[n])
        assert abs(left) <= Fraction(2) ** (e - digits)


@formats
def test_what_words_at_one_can_tell_apart(dtype: torch.dtype) -> None:
    smallest = FORMATS[dtype].smallest
    x = torch.arange(1.0, 2.0, smallest, dtype=torch.float64)
    held = [int((value(*numerics.expand(x, dtype, n)) == x).sum()) for n in (1, 2, 3)]
    assert (x.numel(), held) == {E4M3: (512, [8, 384, 512]), E5M2: (65536, [4, 384, 9472])}[dtype]


@formats
@pytest.mark.parametrize("components", [2, 3])
def test_adding_is_its_definition(dtype: torch.dtype, components: int) -> None:
    generator = torch.Generator().manual_seed(components)
    known = every_word(dtype)
    hi = known[torch.randint(0, 256, (3000,), generator=generator)]
    hi = torch.where(hi.to(F32).isfinite(), hi, torch.zeros(()).to(dtype))
    share = torch.rand(2, 3000, generator=generator, dtype=torch.float64) - 0.5
    lower = [numerics.round_to(numerics.ulp(hi) * share[0], dtype)]
    lower.append(numerics.round_to(numerics.ulp(lower[0]) * share[1], dtype))
    words = (hi, *lower)[:components]
    u = torch.randn(3000, generator=generator) * 2.0 ** torch.randint(-18, 9, (3000,), generator=generator)
    got = numerics.add_to_expansion(words, u)
    for n in range(u.numel()):
        total: Fraction | None = Fraction(u[n].item())
        for word in reversed(words):
            total = nearest(exact(word[n]) + total, F32)
        for word in got:
            expected = nearest(total, dtype)
            if expected is None:
                assert not word[n].to(F32).isfinite()
                total = Fraction(0)
            else:
                assert exact(word[n]) == expected
                total -= expected
    for above, below in pairwise(got):
        known = above.to(F32).isfinite()
        assert (below.double()[known].abs() * 2 <= numerics.ulp(above)[known]).all()
    inside = got[0].to(F32).isfinite()
    joined, whole = numerics.join_words(got)[inside].double(), value(*got)[inside]
    assert ((joined - whole).abs() <= whole.abs() * (0.0 if dtype == E4M3 else 2.0**-23)).all()


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_one_cast_from_float32_rounds_as_it_must(dtype: torch.dtype) -> None:
    known = every_word(F16).to(F32)
    edge = torch.tensor([FORMATS[dtype].overflow], dtype=torch.float64).to(F32)
    ends = torch.cat([torch.nextafter(edge, edge * 0), edge, torch.nextafter(edge, edge * 4)])
    x = torch.cat((known, torch.nextafter(known, known * 2), torch.nextafter(known, known * 0), ends, -ends))
    got, expected = numerics.narrow(x, dtype), numerics.round_to(x, dtype)
    nan = expected.to(F32).isnan()
    assert torch.equal(got.to(F32).isnan(), nan)
    assert torch.equal(bits_of(got)[~nan], bits_of(expected)[~nan])


@formats
def test_overflow_shows_and_leaves_nothing_behind(dtype: torch.dtype) -> None:
    largest = torch.tensor([FORMATS[dtype].largest]).to(dtype)
    zero = torch.zeros(1).to(dtype)
    hi, *lower = numerics.add_to_expansion((largest, zero, zero), largest.to(F32))
    assert hi.to(F32).isnan().item() if dtype == E4M3 else hi.to(F32).item() == torch.inf
    assert [word.to(F32).item() for word in lower] == [0.0, 0.0]
    assert spacing(exact(largest), dtype) == {E4M3: 32, E5M2: 8192}[dtype]
