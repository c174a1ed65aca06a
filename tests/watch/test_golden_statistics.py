"""The golden statistics: counts and histograms exact, sums within 1e-6 relative."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from roundoff import metrics
from roundoff.metrics import HEADROOM_LOW, Sums
from roundoff.watch import measure, measure_moment

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent.parent / "golden" / "numerics.json").read_text())
INPUTS = {"format", "param", "param_after", "intended", "lo", "lo_after", "decay"}
SAME_NAME = (
    "numel",
    "attempted",
    "lost",
    "invisible",
    "decay_attempted",
    "decay_lost",
    "underflowed",
    "unchanged",
)


def words(values: list[float] | None, case: dict[str, Any]) -> Tensor | None:
    if values is None:
        return None
    tensor = torch.tensor(values, dtype=torch.float64).to(torch.float32).to(getattr(torch, case["format"]))
    assert tensor.to(torch.float64).tolist() == values
    return tensor


def measured(case: dict[str, Any]) -> Sums:
    param, after = words(case["param"], case), words(case["param_after"], case)
    assert param is not None
    assert after is not None
    u, decay = (torch.tensor(case[name], dtype=torch.float32) for name in ("intended", "decay"))
    assert u.to(torch.float64).tolist() == case["intended"]
    return measure(param, after, u, words(case["lo"], case), words(case["lo_after"], case), decay)


@pytest.mark.parametrize("case", GOLDEN["statistics"], ids=lambda case: case["format"])
def test_statistics(case: dict[str, Any]) -> None:
    sums = measured(case)
    for name in SAME_NAME:
        assert getattr(sums, name) == case[name], name
    for name in metrics.SUMS:
        assert getattr(sums, name) == pytest.approx(case[name], rel=1e-6, abs=0), name
    for name in ("imprecision", "lost_fraction", "descent_efficiency", "edq"):
        assert getattr(metrics, name)(sums) == pytest.approx(case[name], rel=1e-6), name
    counts = {str(k + HEADROOM_LOW): n for k, n in enumerate(sums.headroom) if n}
    assert counts == case["headroom"]
    energy = {str(k + HEADROOM_LOW): e for k, e in enumerate(sums.headroom_energy) if sums.headroom[k]}
    assert energy == pytest.approx(case["headroom_energy"], rel=1e-6, abs=0)
    checked = {
        *INPUTS,
        *SAME_NAME,
        *metrics.SUMS,
        "imprecision",
        "lost_fraction",
        "descent_efficiency",
        "edq",
    }
    assert set(case) == checked | {"headroom", "headroom_energy"}, "the golden case holds something untested"
    assert sums.nonfinite == 0


@pytest.mark.parametrize("case", GOLDEN["moment"], ids=lambda case: str(case["beta2"]))
def test_moment(case: dict[str, Any]) -> None:
    v, v_after, grad = (words(case[name], case) for name in ("v", "v_after", "grad"))
    assert v is not None
    assert v_after is not None
    assert grad is not None
    sums = measure_moment(
        v, v_after, grad, case["beta2"], words(case["v_lo"], case), words(case["v_lo_after"], case)
    )
    for name in ("v_attempted", "v_stuck", "v_stuck_high", "v_underflowed", "zero_grad"):
        assert getattr(sums, name) == case[name], name
