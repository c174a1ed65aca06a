"""Statistics from the definitions: what the golden file leaves out, and the rows of the case list."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from roundoff import metrics
from roundoff.metrics import Sums
from roundoff.numerics import add_to_pair, split_master
from roundoff.optim import CollageAdamW
from roundoff.watch import measure, measure_moment, statistics

BF16 = torch.bfloat16


def words(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=BF16)


def test_an_element_with_a_non_finite_number_counts_in_numel_and_nonfinite_only() -> None:
    inf, nan = math.inf, math.nan
    before = words(1.0, nan, 1.0, 1.0, 1.0)
    after = words(1.0, nan, inf, 1.0, 1.0078125)
    u = torch.tensor([1e-3, 1.0, inf, nan, 0.0078125])
    sums = measure(before, after, u, decay=torch.full((5,), 1e-3))
    assert (sums.numel, sums.nonfinite) == (5, 3)
    assert (sums.attempted, sums.lost, sums.invisible, sums.unchanged) == (2, 1, 1, 1)
    assert (sums.decay_attempted, sums.decay_lost) == (2, 2)
    assert sum(sums.headroom) == 2
    assert sums.sum_uu == pytest.approx(1e-6 + 0.0078125**2, rel=1e-6)
    assert sums.sum_ww == 2.0


def test_a_healing_step_is_seen_but_not_applied() -> None:
    """hi and lo trade half a spacing: the stored value stays, the visible word moves (numerics §2)."""
    hi, lo = words(1.0), words(2.0**-8)
    hi_after, lo_after = words(1.0 + 2.0**-7), words(-(2.0**-8))
    sums = measure(hi, hi_after, torch.tensor([1e-30]), lo, lo_after)
    assert (sums.attempted, sums.lost, sums.invisible, sums.unchanged) == (1, 1, 0, 0)
    assert sums.sum_aa == 0.0
    assert sums.sum_ss == 2.0**-14


def test_what_is_not_finite_does_not_count_in_the_second_moment_either() -> None:
    w = nn.Parameter(torch.tensor([1.0, math.nan, math.nan, 1.0], dtype=BF16))
    w.grad = torch.tensor([1.0, 0.0, 2.0, 0.0], dtype=BF16)
    optimizer = CollageAdamW([w], strategy="none")
    optimizer.meters = {}
    optimizer.step()
    sums = optimizer.meters[w].sums()
    assert (sums.numel, sums.nonfinite, sums.v_attempted, sums.zero_grad) == (4, 2, 1, 1)


def test_lost_deferred_and_applied_are_three_things() -> None:
    """fp32 master, lr 3e-6, w ≈ 0.019: bf16 words stay, nothing is lost (the PULSE note)."""
    master = torch.full((100,), 0.019)
    after = master - 3e-6
    sums = measure(master.to(BF16), after.to(BF16), after - master, master=master, master_after=after)
    assert metrics.invisible_fraction(sums) == 1.0
    assert metrics.lost_fraction(sums) == 0.0
    assert metrics.descent_efficiency(sums) == pytest.approx(1.0)
    assert metrics.seen_efficiency(sums) == 0.0


def test_an_exact_remainder_is_a_float32_master() -> None:
    master = torch.linspace(-2, 2, 101)
    after = master - 1e-6
    (hi, rest), (hi_after, rest_after) = split_master(master), split_master(after)
    u = torch.full_like(master, -1e-6)
    by_remainder = measure(hi, hi_after, u, rest, rest_after)
    by_master = measure(hi, hi_after, u, master=master, master_after=after)
    assert by_remainder == by_master
    assert by_remainder.lost < 101


def test_halo_30_a_second_moment_that_cannot_grow_or_shrink() -> None:
    def settled(start: float, g: float) -> Sums:
        v = words(start)
        for _ in range(3000):
            before = v
            v = (v.float() * 0.999 + (1 - 0.999) * g * g).to(BF16)
        return measure_moment(before, v, words(g), 0.999)

    growing = settled(0.0, 1.0)
    assert (growing.v_attempted, growing.v_stuck, growing.v_stuck_high) == (1, 1, 0)
    shrinking = settled(1.0, 0.0)
    assert (shrinking.v_attempted, shrinking.v_stuck, shrinking.v_stuck_high) == (1, 1, 1)


def test_a_second_moment_below_the_range_is_underflow_not_rounding() -> None:
    sums = measure_moment(words(0.0), words(0.0), words(1e-20), 0.999)
    assert (sums.v_underflowed, sums.v_stuck, sums.zero_grad) == (1, 1, 0)
    update = measure(words(0.0), words(0.0), torch.tensor([1e-42]))
    assert (update.underflowed, update.lost) == (1, 1)


def test_ml_by_hand_85_norm_weights_at_one_never_move() -> None:
    w = torch.ones(768, dtype=BF16)
    total = Sums()
    for step in range(100):
        u = torch.full((768,), 6e-4 if step % 2 else -6e-4)
        after = (w.float() + u).to(BF16)
        total += measure(w, after, u)
        w = after
    assert torch.equal(w, torch.ones(768, dtype=BF16))
    assert metrics.lost_fraction(total) == 1.0
    assert metrics.descent_efficiency(total) == 0.0


@pytest.mark.parametrize(("strategy", "lost"), [("none", 1.0), ("plus", 0.0), ("fp32-master", 0.0)])
def test_onetrainer_996_decay_is_reported_apart(strategy: str, lost: float) -> None:
    w = nn.Parameter(torch.ones(64, dtype=BF16))
    # lr · decay = 2⁻¹³: nothing to bfloat16, well inside a pair.
    optimizer = CollageAdamW([w], lr=2.0**-13, weight_decay=1.0, strategy=strategy)
    w.grad = torch.zeros_like(w)
    optimizer.meters = {}
    optimizer.step()
    sums = optimizer.meters[w].sums()
    assert sums.zero_grad == 64
    assert metrics.decay_lost_fraction(sums) == lost
    assert metrics.lost_fraction(sums) == lost


def test_chunks_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    hi, lo, u = torch.randn(1000).to(BF16), torch.randn(1000).to(BF16) * 2.0**-9, torch.randn(1000) * 1e-3
    after, lo_after = add_to_pair(hi, lo, u)
    whole = measure(hi, after, u, lo, lo_after, decay=u * 0.1)
    monkeypatch.setattr(statistics, "CHUNK", 77)
    parts = measure(hi, after, u, lo, lo_after, decay=u * 0.1)
    for name in metrics.COUNTS:
        assert getattr(parts, name) == getattr(whole, name)
    for name in metrics.SUMS:
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-13)
    assert parts.headroom == whole.headroom


def test_the_end_bins_are_open() -> None:
    w = words(1.0, 1.0, 1.0)
    u = torch.tensor([2.0**-60, 2.0**20, 0.0])
    sums = measure(w, w, u)
    assert (sums.headroom[0], sums.headroom[-1], sum(sums.headroom)) == (1, 1, 2)
    assert sums.headroom_energy[-1] == 2.0**40


@pytest.mark.parametrize("size", [1e-3, 1e-41], ids=["normal", "subnormal"])
@pytest.mark.parametrize("weight", [0.0, 1e-38, 1.0])
def test_no_update_is_in_no_bin_whatever_the_weight(weight: float, size: float) -> None:
    w = words(weight, weight)
    alone = measure(w[:1], w[:1], torch.tensor([size]))
    beside = measure(w, w, torch.tensor([size, 0.0]))
    assert beside.headroom == alone.headroom
    assert sum(alone.headroom) == 1
    assert beside.underflowed == alone.underflowed == int(size < 1e-40)


def test_evidence_counts_expected_roundings() -> None:
    w = torch.ones(1000, dtype=BF16)
    sums = measure(w, w, torch.full((1000,), 2.0**-7))
    assert metrics.expected_roundings(sums) == 1000
    tiny = measure(w, w, torch.full((1000,), 2.0**-17))
    assert metrics.expected_roundings(tiny) == pytest.approx(1000 * 2.0**-9.5)


def test_what_does_not_fit_together_is_refused() -> None:
    w, u = words(1.0, 2.0), torch.zeros(2)
    with pytest.raises(ValueError, match=r"intended has shape \(3,\), expected \(2,\)"):
        measure(w, w, torch.zeros(3))
    with pytest.raises(ValueError, match="both or neither"):
        measure(w, w, u, lo=w)
    with pytest.raises(TypeError, match="param is torch"):
        measure(w, w.float(), u)
    with pytest.raises(TypeError, match="int16 for a remainder"):
        measure(w, w, u, lo=u, lo_after=u)
    with pytest.raises(TypeError, match="float64 is not a storage format"):
        measure(w.double(), w.double(), u)
