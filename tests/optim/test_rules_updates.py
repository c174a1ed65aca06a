"""Rules 1, 4, 5 and 6 of numerics §3: what goes into an update, and what it may not touch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from rules import (
    BF16,
    F16,
    F32,
    FLOAT32,
    KEEPERS,
    PAIRS,
    STRATEGIES,
    Weights,
    backends,
    by,
    ones,
    plans,
    run,
    unchanged,
)
from torch import Tensor, nn

from roundoff.kernels import BACKENDS, Step
from roundoff.metrics import Totals, judge
from roundoff.numerics import FORMATS, split_master
from roundoff.optim import CollageAdamW


@backends
@plans(KEEPERS)
def test_rule_1_decay_that_a_multiply_on_the_word_loses_arrives(
    strategy: str, dtype: torch.dtype, backend: str
) -> None:
    rate = 2.0 ** -(FORMATS[dtype].precision + 1)
    assert (torch.ones(1, dtype=dtype) * (1 - rate)).item() == 1.0, "the separate multiply does nothing here"
    w = ones(dtype)
    optimizer = CollageAdamW([w], lr=rate, weight_decay=1.0, strategy=strategy, backend=backend)
    sums = run(optimizer, w, 0.0, 100)
    assert optimizer.stored_value(w)[0].item() == pytest.approx((1 - rate) ** 100, rel=1e-3)
    assert (sums.lost, sums.decay_lost) == (0, 0)
    assert sums.attempted == sums.decay_attempted == sums.numel


@backends
@plans(["none", "fp32-state"])
def test_rule_1_one_word_loses_such_a_decay_and_says_so(
    strategy: str, dtype: torch.dtype, backend: str
) -> None:
    rate = 2.0 ** -(FORMATS[dtype].precision + 1)
    w = ones(dtype)
    optimizer = CollageAdamW([w], lr=rate, weight_decay=1.0, strategy=strategy, backend=backend)
    sums = run(optimizer, w, 0.0, 3)
    assert torch.equal(w, torch.ones_like(w))
    assert sums.lost == sums.decay_lost == sums.decay_attempted == sums.numel


@backends
@plans(["stochastic"])
def test_rule_1_stochastic_rounding_decays_on_average(
    strategy: str, dtype: torch.dtype, backend: str
) -> None:
    rate = 2.0 ** -(FORMATS[dtype].precision + 1)
    w = ones(dtype, 20_000)
    optimizer = CollageAdamW([w], lr=rate, weight_decay=1.0, strategy=strategy, backend=backend)
    run(optimizer, w, 0.0, 50)
    assert w.double().mean().item() == pytest.approx((1 - rate) ** 50, rel=50 * rate / 20)


@backends
@plans()
def test_rule_1_decay_and_gradient_are_rounded_together_once(
    strategy: str, dtype: torch.dtype, backend: str
) -> None:
    # Each part alone is three eighths of the gap below 1 and would round away; the two together do not.
    part = 2.0 ** -FORMATS[dtype].precision * 0.375
    w = Weights(strategy, torch.ones(4096, dtype=dtype), backend=backend)
    w.step(1.0, Step(1, part, 0.0, 0.0, 0.0, 1.0))
    if strategy == "stochastic":
        assert w.param.double().mean().item() == pytest.approx(1 - 2 * part, abs=part / 5)
        return
    assert (w.param == 1.0 - part / 0.375).all()
    if strategy in KEEPERS:
        assert (w.stored == 1.0 - 2 * part).all()


@backends
@plans(KEEPERS)
def test_rule_1_decay_acts_on_everything_stored(strategy: str, dtype: torch.dtype, backend: str) -> None:
    exact = torch.full((8,), 1.0 + 2.0 ** -(FORMATS[dtype].precision + 2))
    w = Weights(strategy, exact.to(dtype), backend=backend)
    if strategy in PAIRS:
        w.state["lo"].copy_(exact - w.param.float())
    elif strategy == "fp32-master":
        w.state["master"].copy_(exact)
    else:
        w.state["remainder"].copy_(split_master(exact)[1])
    assert torch.equal(w.stored, exact.double())
    assert (w.param == 1.0).all()
    w.step(0.0, Step(1, 0.5, 0.9, 0.999, 1e-8, 1.0))
    assert torch.equal(w.stored, exact.double() / 2)


@backends
@plans(KEEPERS)
@pytest.mark.parametrize("start", [2.0**-12, -(2.0**-9), 2.0**-7])
@pytest.mark.parametrize("u", [1.0 + 2.0**-10, -1.5, 0.25 + 2.0**-9])
def test_rule_4_an_update_larger_than_the_weight_loses_nothing(
    strategy: str, dtype: torch.dtype, backend: str, start: float, u: float
) -> None:
    w = Weights(strategy, torch.full((5,), start, dtype=dtype), backend=backend)
    w.step(*by(u))
    digits = 24 if strategy in FLOAT32 else 2 * FORMATS[dtype].precision
    assert w.stored[0].item() == pytest.approx(start + u, rel=2.0**-digits)


@pytest.mark.parametrize("strategy", ["light", "plus"])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_rule_4_holds_in_storage_arithmetic(strategy: str, dtype: torch.dtype) -> None:
    # 1 + 2^-7 is far below the update, and FastTwoSum would drop its last bit.
    start, u = 1.0 + 2.0**-7, 258.0
    w = Weights(strategy, torch.full((5,), start, dtype=dtype), arithmetic="storage")
    w.step(*by(u))
    assert (w.stored == start + u).all()


@backends
@plans()
@pytest.mark.parametrize(
    "options",
    [{}, {"maximize": True}, {"amsgrad": True}, {"gradient_scale": 0.5}, {"found_inf": torch.zeros(())}],
    ids=str,
)
def test_rule_5_gradients_are_only_read(
    strategy: str, dtype: torch.dtype, backend: str, options: dict[str, Any]
) -> None:
    grad = torch.randn(100, generator=torch.Generator().manual_seed(1)).to(dtype)
    start = torch.ones(100, dtype=dtype)
    w = Weights(strategy, start, backend=backend, amsgrad="amsgrad" in options)
    kept, version = grad.clone(), grad._version
    for count in (1, 2):
        w.step(grad, Step(count, 0.1, 0.9, 0.99, 1e-8, 0.1, **options))
    assert torch.equal(grad, kept)
    assert grad._version == version
    assert not torch.equal(w.param, start)


def trained(
    strategy: str, backend: str, *, scheduled: bool = True, **options: Any
) -> tuple[Tensor, dict[str, Any]]:
    """What is stored after a few steps, under a scheduler that ends at 0 or not, and the group's options."""
    steps = 12
    w = nn.Parameter(torch.linspace(-1, 1, 256).to(BF16))
    optimizer = CollageAdamW([w], strategy=strategy, backend=backend, weight_decay=0.1, **options)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        w.grad = torch.randn(256, generator=generator).to(BF16)
        optimizer.step()
        if scheduled:
            scheduler.step()
    return optimizer.stored_value(w), optimizer.param_groups[0]


@backends
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rule_5_numbers_and_tensors_do_the_same_under_a_scheduler(strategy: str, backend: str) -> None:
    numbers, _ = trained(strategy, backend, lr=1e-2, eps=1e-6, betas=(0.9, 0.99))
    tensors, group = trained(
        strategy,
        backend,
        lr=torch.tensor(1e-2, dtype=torch.float64),
        eps=torch.tensor(1e-6, dtype=torch.float64),
        betas=(torch.tensor(0.9, dtype=torch.float64), torch.tensor(0.99, dtype=torch.float64)),
    )
    assert torch.equal(numbers, tensors)
    assert isinstance(group["lr"], Tensor)
    assert float(group["lr"]) == pytest.approx(0.0, abs=1e-9), "the schedule went to its end"
    constant, _ = trained(strategy, backend, scheduled=False, lr=1e-2, eps=1e-6, betas=(0.9, 0.99))
    assert (constant - numbers).norm() > 0.1 * (numbers - torch.linspace(-1, 1, 256)).norm()


@backends
@plans()
@pytest.mark.parametrize("amsgrad", [False, True], ids=["", "amsgrad"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rule_6_non_finite_gradients_behave_as_in_adamw_and_are_counted(
    strategy: str, dtype: torch.dtype, backend: str, amsgrad: bool, bad: float
) -> None:
    ours, theirs = ones(dtype), nn.Parameter(torch.ones(64))
    mine = CollageAdamW([ours], strategy=strategy, backend=backend, amsgrad=amsgrad)
    reference = torch.optim.AdamW([theirs], amsgrad=amsgrad)
    for step in range(2):
        ours.grad = torch.ones(64, dtype=dtype)
        if step == 0:
            ours.grad[3] = bad
        theirs.grad = ours.grad.float()
        mine.meters = {}
        mine.step()
        reference.step()
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours.isinf(), theirs.isinf())
        for name in ("exp_avg", "exp_avg_sq"):
            stored, wanted = mine.state[ours][name], reference.state[theirs][name]
            # Not NaN for NaN: an infinite moment becomes NaN in torch's interpolation, not in the formula.
            assert torch.equal(stored.isfinite(), wanted.isfinite()), name
        sums = mine.meters[ours].sums()
        assert (sums.numel, sums.nonfinite, sums.attempted) == (64, 1, 63)
        assert all(math.isfinite(value) for value in (sums.sum_uu, sums.sum_ua, sums.sum_ww))
        assert judge(Totals(1, sums.numel, 0, sums.attempted, sums.lost, sums.nonfinite)) == "broken"
    for name in ("lo", "exp_avg_sq_lo"):
        if name in mine.state[ours]:
            assert mine.state[ours][name].isfinite().all()


@backends
@plans()
def test_rule_6_what_a_loss_scaler_skips_changes_nothing_and_is_not_lost(
    strategy: str, dtype: torch.dtype, backend: str
) -> None:
    w = ones(dtype)
    optimizer = CollageAdamW([w], strategy=strategy, backend=backend)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before: dict[str, Tensor] = {}
    for step, size in enumerate((1.0, math.inf, 1.0)):
        optimizer.zero_grad()
        scaler.scale((w * size).sum().float()).backward()
        optimizer.meters = {}
        scaler.step(optimizer)
        scaler.update()
        sums = optimizer.meters[w].sums()
        words = {"param": w.detach().clone(), **{k: v.clone() for k, v in optimizer.state[w].items()}}
        skipped = step == 1
        assert unchanged(before, words) if skipped else not before or not unchanged(before, words)
        assert (sums.skipped, sums.lost, sums.nonfinite) == (int(skipped), 0 if skipped else sums.lost, 0)
        assert sums.attempted == (0 if skipped else sums.numel)
        before = words
    assert optimizer.state[w]["step"].item() == 2.0


@backends
@plans()
def test_rule_6_found_inf_on_the_device_is_read_there(
    strategy: str, dtype: torch.dtype, backend: str
) -> None:
    w = Weights(strategy, torch.ones(70, dtype=dtype), backend=backend)
    w.step(1.0, Step(1, 0.1, 0.9, 0.99, 1e-8, 0.1))
    before = w.words()
    w.step(math.inf, Step(2, 0.1, 0.9, 0.99, 1e-8, 0.1, found_inf=torch.ones(())))
    assert unchanged(before, w.words())
    w.step(1.0, Step(2, 0.1, 0.9, 0.99, 1e-8, 0.1, found_inf=torch.zeros(())))
    assert not unchanged(before, w.words())


def test_every_backend_that_exists_is_tested() -> None:
    assert "reference" in BACKENDS
    assert F32 not in STRATEGIES["plus"].dtypes
