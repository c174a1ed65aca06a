"""What a sampled step of an optimizer that is not ours takes in memory: copies of one tensor, not of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from trainings import BF16, Collected

import roundoff
from roundoff.watch.shadow import Shadow
from watched.memory import living, peak_of as peak_of_step

NUMEL, TENSORS = 1 << 16, 100


def peak_of(make: Callable[[Any], Optimizer], tensors: int, *, sampled: bool) -> int:
    """The most bytes that tensors made in one step take, beside what was there before."""
    model = nn.ParameterList([nn.Parameter(torch.full((NUMEL,), 1.0, dtype=BF16)) for _ in range(tensors)])
    optimizer = make(model.parameters())
    if sampled:
        roundoff.watch(model, optimizer, every=1, sink=Collected())
    for _ in range(2):
        for p in model.parameters():
            p.grad = torch.full_like(p, 1e-3)
        peak = peak_of_step(optimizer.step)
    return peak


MAKES: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: SGD(p, lr=1e-3, foreach=False),
    "AdamW loop": lambda p: AdamW(p, lr=1e-3, foreach=False),
    "AdamW fused": lambda p: AdamW(p, lr=1e-3, fused=True),
}


def test_storages_are_counted_while_they_live() -> None:
    with living() as counted:
        a = torch.zeros(1000)
        b = a.view(10, 100).t()
        del a
        c = b + 1
        del b
        d = c * 2
    assert counted.peak == 8000
    assert d.numel() == 1000


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_a_sampled_step_takes_copies_of_one_tensor_at_a_time(make: Callable[[Any], Optimizer]) -> None:
    one = peak_of(make, 1, sampled=True)
    many = peak_of(make, TENSORS, sampled=True)
    step = peak_of(make, TENSORS, sampled=False)
    assert many - step < 1.5 * one
    # A copy in float64 is four times the words; with its state, gradient and temporaries some dozens.
    assert one < 60 * NUMEL * BF16.itemsize
    assert many - step < 60 * NUMEL * BF16.itemsize < TENSORS * NUMEL * BF16.itemsize


def test_words_that_are_kept_stay_within_the_budget() -> None:
    params = [nn.Parameter(torch.ones(NUMEL, dtype=BF16)) for _ in range(TENSORS)]
    optimizer = SGD(params, lr=0.1)
    budget = 8 * NUMEL * BF16.itemsize
    shadow = Shadow(optimizer, {p: str(n) for n, p in enumerate(params)}, lambda said: None, keep=budget)
    for p in params:
        p.grad = torch.ones_like(p)
    with living() as counted:
        shadow.before((optimizer, lambda: 0.0), {})
        kept = counted.now
    assert budget / 2 < kept <= 1.1 * budget
    with living():
        assert len(shadow.after()) == 8
