"""`measure` against the definitions of numerics §4, one element at a time, in rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from roundoff.metrics import HEADROOM_BINS, HEADROOM_HIGH, HEADROOM_LOW
from roundoff.numerics import FORMATS, add_to_pair, gap, ulp
from roundoff.watch import measure

N = 64


def exact(x: Tensor) -> Fraction:
    return Fraction(x.to(torch.float64).item())


def floor_log2(q: Fraction) -> int:
    k = q.numerator.bit_length() - q.denominator.bit_length()
    return k if Fraction(2) ** k <= q else k - 1


def weights_and_updates(dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    """Weights over many binades with zeros and powers of two among them; in bfloat16 every third near its end."""
    generator = torch.Generator().manual_seed(seed)
    tiny = dtype == torch.bfloat16 and seed % 3 == 0
    exponents = torch.randint(*((-135, -100) if tiny else (-30, 3)), (N,), generator=generator).double()
    w = (torch.randn(N, generator=generator) * 2.0**exponents).to(dtype)
    w[::7] = 0
    w[1::9] = 2.0**-3
    u = (torch.randn(N, generator=generator) * 2.0 ** (exponents - seed % 14)).float()
    u[::5] = 0
    return w, u


@pytest.mark.parametrize("pair", [False, True], ids=["plain", "pair"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_every_figure_is_its_definition(dtype: torch.dtype, pair: bool, seed: int) -> None:
    w, u = weights_and_updates(dtype, seed)
    decay = u * 0.1
    decay[::4] = 0
    share = torch.rand(N, generator=torch.Generator().manual_seed(seed)).double() - 0.5
    lo = (share * ulp(w)).float().to(dtype) if pair else torch.zeros_like(w)
    after, lo_after = add_to_pair(w, lo, u) if pair else ((w.float() + u).to(dtype), lo)
    alone, lo_alone = add_to_pair(w, lo, decay) if pair else ((w.float() + decay).to(dtype), lo)
    form, spacing = FORMATS[dtype], gap(w, u)
    expected = dict.fromkeys(
        ("attempted", "lost", "invisible", "unchanged", "underflowed", "decay_attempted", "decay_lost"), 0
    )
    bins, energy = [0] * HEADROOM_BINS, [Fraction(0)] * HEADROOM_BINS
    sums = dict.fromkeys(("sum_uu", "sum_ua", "sum_aa", "sum_us", "sum_ss", "sum_ww"), Fraction(0))
    for i in range(N):
        intended, seen = exact(u[i]), exact(after[i]) - exact(w[i])
        applied = seen + exact(lo_after[i]) - exact(lo[i])
        stored = exact(w[i]) + exact(lo[i])
        expected["attempted"] += intended != 0
        expected["lost"] += intended != 0 and applied == 0
        expected["invisible"] += intended != 0 and seen == 0
        expected["unchanged"] += seen == 0
        expected["underflowed"] += intended != 0 and abs(intended) <= Fraction(form.smallest) / 2
        expected["decay_attempted"] += bool(decay[i] != 0)
        expected["decay_lost"] += bool(decay[i] != 0 and alone[i] == w[i] and lo_alone[i] == lo[i])
        products = (intended**2, intended * applied, applied**2, intended * seen, seen**2, stored**2)
        for name, product in zip(sums, products, strict=True):
            sums[name] += product
        if intended:
            r = exact(spacing[i]) / (2**form.precision if pair else 1)
            if pair and dtype == torch.float16:
                r = max(r, Fraction(1, 2**24))
            k = min(max(floor_log2(abs(intended) / r), HEADROOM_LOW), HEADROOM_HIGH) - HEADROOM_LOW
            bins[k] += 1
            energy[k] += intended**2
    words = {"lo": lo, "lo_after": lo_after} if pair else {}
    got = measure(w, after, u, decay=decay, **words)
    assert {name: getattr(got, name) for name in expected} == expected
    assert list(got.headroom) == bins
    for name, value in sums.items():
        assert getattr(got, name) == pytest.approx(float(value), rel=1e-6, abs=1e-300), name
    assert list(got.headroom_energy) == pytest.approx([float(e) for e in energy], rel=1e-12, abs=0)
