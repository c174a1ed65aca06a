"""Numbers on a GPU: copied in the order of the caller's stream, read by nobody who waits in the training thread."""

from __future__ import annotations

import time

import pytest
import torch

from roundoff.delivery.sample import Sample
from roundoff.delivery.transfer import Arriving, departed
from roundoff.delivery.values import number
from roundoff.metrics import ROW

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

BUSY = 400_000_000
"""Cycles that keep a GPU busy for some tenths of a second."""


def test_a_logged_value_is_right_though_it_comes_late_from_another_stream() -> None:
    value = torch.zeros((), device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        torch.cuda._sleep(BUSY)  # type: ignore[no-untyped-call]
        value.fill_(3.0)
        began = time.perf_counter()
        kept = number(value)
        took = time.perf_counter() - began
        value.fill_(4.0)
    assert took < 0.05
    assert isinstance(kept, Arriving)
    assert kept.item() == 3.0


def test_a_sample_is_right_though_it_comes_late_from_another_stream() -> None:
    sums = torch.zeros(2, len(ROW), dtype=torch.float64, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        torch.cuda._sleep(BUSY)  # type: ignore[no-untyped-call]
        sums.fill_(3.0)
        began = time.perf_counter()
        sample = departed(Sample(0, range(2), sums, sums, []))
        took = time.perf_counter() - began
        sums.fill_(4.0)
    assert took < 0.05
    assert sample.headroom is not None
    assert sample.sums.tolist() == sample.headroom.tolist() == [[3.0] * len(ROW)] * 2
