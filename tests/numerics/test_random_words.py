"""The random bits of stochastic rounding: even, independent of their neighbours, and a function of counters alone."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from roundoff.numerics import mix_key, random_words

N = 1 << 20
INDEX = torch.arange(N)
KEYS = [
    mix_key(seed, step, number) for seed, step, number in ((0, 1, 0), (1, 1, 0), (0, 7, 3), (12345, 99, 150))
]


def words(key: int, index: Tensor = INDEX) -> Tensor:
    return random_words(key, index)


def correlation(a: Tensor, b: Tensor) -> float:
    """Of two samples, in standard deviations of what chance allows."""
    x, y = a.double() - 32767.5, b.double() - 32767.5
    return float((x * y).mean() / (65536**2 / 12)) * math.sqrt(a.numel())


def excess(counts: Tensor) -> float:
    """χ² of counts that should be even, in standard deviations from what chance allows."""
    expected = counts.double().mean()
    chi = float(((counts.double() - expected) ** 2 / expected).sum())
    freedom = counts.numel() - 1
    return (chi - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("key", KEYS)
def test_words_fill_their_range_evenly(key: int) -> None:
    drawn = words(key)
    assert drawn.dtype == torch.int32
    assert (drawn.min().item(), drawn.max().item()) == (0, 65535)
    assert abs(excess(torch.bincount(drawn, minlength=1 << 16))) < 5
    assert abs(excess(torch.bincount(drawn >> 8, minlength=256))) < 5
    assert abs(excess(torch.bincount(drawn & 255, minlength=256))) < 5
    assert float(drawn.double().mean()) == pytest.approx(32767.5, abs=4 * 65536 / math.sqrt(12 * N))


@pytest.mark.parametrize("key", KEYS)
def test_every_bit_is_even_and_no_two_go_together(key: int) -> None:
    drawn = words(key)
    bits = torch.stack([(drawn >> bit & 1).double() * 2 - 1 for bit in range(16)])
    assert bits.mean(1).abs().max().item() < 4.5 / math.sqrt(N)
    pairs = bits @ bits.t() / N - torch.eye(16, dtype=torch.float64)
    assert pairs.abs().max().item() < 5 / math.sqrt(N)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 7, 16, 64, 256, 1024, 4096, 65536])
def test_neighbouring_elements_are_independent(lag: int) -> None:
    for key in KEYS:
        drawn = words(key)
        assert abs(correlation(drawn[:-lag], drawn[lag:])) < 4.5
        joint = (drawn[:-lag] >> 12) * 16 + (drawn[lag:] >> 12)
        assert abs(excess(torch.bincount(joint, minlength=256))) < 5
        low = (drawn[:-lag] & 15) * 16 + (drawn[lag:] & 15)
        assert abs(excess(torch.bincount(low, minlength=256))) < 5


COUNTERS = {
    "step": lambda n: (0, n, 0),
    "parameter": lambda n: (0, 1, n),
    "seed": lambda n: (n, 1, 0),
    "seed and step": lambda n: (n, -n % 2**31, 0),
}


@pytest.mark.parametrize("which", COUNTERS)
def test_steps_parameters_and_seeds_are_independent(which: str) -> None:
    keys = [mix_key(*COUNTERS[which](n)) for n in range(1, 40)]
    assert len(set(keys)) == len(keys)
    drawn = [words(key, INDEX[: 1 << 16]) for key in keys]
    for one, other in pairwise(drawn):
        assert abs(correlation(one, other)) < 4.5
        joint = (one >> 12) * 16 + (other >> 12)
        assert abs(excess(torch.bincount(joint, minlength=256))) < 5
        assert int((one == other).sum()) < 20  # about one is expected by chance


def test_keys_that_share_their_lower_half_are_independent() -> None:
    low = KEYS[0] & 0xFFFFFFFF
    drawn = [words((mix_key(n) >> 32 << 32) | low) for n in range(8)]
    for one, other in pairwise(drawn):
        assert abs(correlation(one, other)) < 4.5
        assert int((one == other).sum()) < 60  # sixteen are expected by chance


def test_one_element_over_many_steps_is_even() -> None:
    for element in (0, 12_345, 2**33):
        index = torch.tensor([element])
        drawn = torch.cat([words(mix_key(0, step, 0), index) for step in range(1, 4097)])
        assert abs(excess(torch.bincount(drawn >> 8, minlength=256))) < 5
        assert abs(correlation(drawn[:-1], drawn[1:])) < 4.5


def test_the_key_keeps_its_counters_apart() -> None:
    counters = [(a, b, c) for a in range(8) for b in range(8) for c in range(8)]
    assert len({mix_key(*row) for row in counters}) == len(counters)
    assert mix_key(0, 1) != mix_key(1, 0) != mix_key(1)
    assert all(0 <= mix_key(*row) < 2**64 for row in [(-1, 2**70, 3), (0,), (2**64 - 1,)])


@pytest.mark.parametrize("start", [2**31 - 512, 2**32 - 512, 2**33, 2**40 + 12_345])
def test_indices_beyond_32_bits_go_on_as_well_as_before(start: int) -> None:
    key = KEYS[0]
    drawn = words(key, torch.arange(N) + start)
    assert abs(excess(torch.bincount(drawn >> 4, minlength=4096))) < 5
    assert abs(correlation(drawn[:-1], drawn[1:])) < 4.5
    folded = words(key, (torch.arange(N) + start) % 2**32)
    if start >= 2**32:
        assert abs(correlation(drawn, folded)) < 4.5
        assert int((drawn == folded).sum()) < 60  # sixteen are expected by chance


def test_a_part_has_the_words_that_it_has_in_the_whole() -> None:
    key, whole = KEYS[1], words(KEYS[1])
    for first, last in ((0, 1), (1000, 1017), (N - 5, N)):
        assert torch.equal(words(key, torch.arange(first, last)), whole[first:last])
    columns = (torch.arange(1024)[:, None] * 1024 + torch.arange(512, 768)).reshape(-1)
    assert torch.equal(words(key, columns), whole.reshape(1024, 1024)[:, 512:768].reshape(-1))


def test_the_words_of_one_key_are_what_they_have_always_been() -> None:
    """A resumed run continues bit for bit only if these never change."""
    assert mix_key(0, 1, 0) == EXPECTED_KEY
    assert words(EXPECTED_KEY, torch.tensor([0, 1, 2, 2**32, 2**40 + 7])).tolist() == EXPECTED_WORDS


EXPECTED_KEY = 0x94926C2E801CB6F9
EXPECTED_WORDS = [39975, 48240, 38934, 33717, 58780]
