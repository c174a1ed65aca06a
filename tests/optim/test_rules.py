"""The rules of numerics §3, each of which some public implementation breaks, for the strategies that exist."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from torch import Tensor, nn

from roundoff.kernels import Step, Update, run_canary
from roundoff.kernels.reference import step_fp32
from roundoff.kernels.storage import step_storage
from roundoff.metrics import Sums
from roundoff.numerics import add_to_pair
from roundoff.optim import STRATEGIES, CollageAdamW, to_low_precision
from roundoff.watch.words import sampled_words

BF16, F16 = torch.bfloat16, torch.float16
ARITHMETICS = {"fp32": step_fp32, "storage": step_storage}


def ones(dtype: torch.dtype = BF16, n: int = 64) -> nn.Parameter:
    return nn.Parameter(torch.ones(n, dtype=dtype))


def run(optimizer: CollageAdamW, w: nn.Parameter, grad: float, steps: int) -> Sums:
    total = Sums()
    for _ in range(steps):
        w.grad = torch.full_like(w, grad)
        optimizer.meters = {}
        optimizer.step()
        total += optimizer.meters[w].sums()
    return total


@pytest.mark.parametrize(("dtype", "lr"), [(BF16, 2.0**-9), (F16, 2.0**-12)], ids=str)
def test_rule_1_decay_is_part_of_the_update_and_acts_on_hi_plus_lo(dtype: torch.dtype, lr: float) -> None:
    shrunk = torch.ones(1, dtype=dtype) * (1 - lr)
    assert shrunk.item() == 1.0, "the separate multiply does nothing here"
    for strategy in ("light", "plus", "fp32-master"):
        w = ones(dtype)
        optimizer = CollageAdamW([w], lr=lr, weight_decay=1.0, strategy=strategy)
        run(optimizer, w, 0.0, 100)
        assert optimizer.stored_value(w)[0].item() == pytest.approx((1 - lr) ** 100, rel=1e-3)


def test_rule_2_the_denominator_uses_both_words_of_v() -> None:
    results = []
    for v_lo in (0.0, 2.0**-9):
        state = {
            "exp_avg": torch.ones(1, dtype=BF16),
            "exp_avg_sq": torch.ones(1, dtype=BF16),
            "exp_avg_sq_lo": torch.full((1,), v_lo, dtype=BF16),
            "lo": torch.zeros(1, dtype=BF16),
        }
        w = torch.zeros(1, dtype=BF16)
        step = Step(10**6, 1.0, 0.9, 0.999, 0.0, 0.0)
        step_fp32([Update(w, torch.ones(1, dtype=BF16), state, STRATEGIES["plus"], step)])
        results.append((w.double() + state["lo"].double()).item())
    assert results[0] / results[1] == pytest.approx(math.sqrt(1 + 2.0**-9 * 0.999), rel=1e-4)


def test_rule_2_bias_correction_and_the_counter_go_on() -> None:
    w = ones()
    optimizer = CollageAdamW([w], lr=0.0)
    run(optimizer, w, 1.0, 1)
    optimizer.state[w]["step"].fill_(256.0)
    run(optimizer, w, 1.0, 3)
    assert optimizer.state[w]["step"].item() == 259.0
    assert Step(1000, 0.0, 0.9, 0.999, 0.0, 0.0).correction2 == pytest.approx(1 - 0.999**1000, rel=1e-12)


def half_life(strategy: str, beta2: float, arithmetic: str) -> float:
    """Steps with zero gradients until v has halved, counted at the first step below, minus the overshoot."""
    v = torch.full((1,), 1.0, dtype=BF16)
    state = {name: torch.zeros(1, dtype=BF16) for name in ("exp_avg", "lo", "exp_avg_sq_lo")}
    state["exp_avg_sq"] = v
    w, zero, plan = torch.zeros(1, dtype=BF16), torch.zeros(1, dtype=BF16), STRATEGIES[strategy]
    last = 1.0
    for count in range(1, 8000):
        ARITHMETICS[arithmetic]([Update(w, zero, state, plan, Step(10**6, 0.0, 0.9, beta2, 1e-8, 0.0))])
        now = v.double().item() + (state["exp_avg_sq_lo"].double().item() if strategy == "plus" else 0.0)
        if now == last and count > 1:
            return math.inf  # the same words give the same words for ever
        if now <= 0.5:
            return count - math.log(0.5 / now) / math.log(last / now)
        last = now
    return math.inf


@pytest.mark.parametrize(
    ("beta2", "steps", "within"), [(0.95, 13.5, 1), (0.99, 69, 1), (0.999, 692.8, 2), (0.9999, 6931, 15)]
)
def test_rule_3_half_life_of_v_under_plus(beta2: float, steps: float, within: float) -> None:
    assert half_life("plus", beta2, "fp32") == pytest.approx(steps, abs=within)


def test_rule_3_half_life_of_v_in_storage_arithmetic_with_beta2_as_a_pair() -> None:
    assert half_life("plus", 0.999, "storage") == pytest.approx(692.8, abs=2)


def test_rule_3_v_in_one_word_never_decays_at_0_999() -> None:
    assert half_life("light", 0.999, "fp32") == math.inf
    assert half_life("light", 0.999, "storage") == math.inf


@pytest.mark.parametrize(("beta2", "low", "high"), [(0.999, 0.995, 0.9975), (0.9999, 0.94, 0.965)])
def test_rule_3_plus_levels_off_below_g_squared(beta2: float, low: float, high: float) -> None:
    state = {name: torch.zeros(1, dtype=BF16) for name in ("exp_avg", "lo", "exp_avg_sq", "exp_avg_sq_lo")}
    w, g = torch.zeros(1, dtype=BF16), torch.ones(1, dtype=BF16)
    last = None
    while last != (last := (state["exp_avg_sq"].item(), state["exp_avg_sq_lo"].item())):
        step_fp32([Update(w, g, state, STRATEGIES["plus"], Step(10**6, 0.0, 0.9, beta2, 1e-8, 0.0))])
    assert low <= (state["exp_avg_sq"].double() + state["exp_avg_sq_lo"].double()).item() <= high


def test_rule_4_an_update_larger_than_the_weight_loses_nothing() -> None:
    hi, lo = torch.full((1,), 2.0**-12, dtype=BF16), torch.full((1,), 2.0**-22, dtype=BF16)
    u = torch.full((1,), 1.0 + 2.0**-10)
    new_hi, new_lo = add_to_pair(hi, lo, u)
    exact = 2.0**-12 + 2.0**-22 + 1.0 + 2.0**-10
    assert (new_hi.double() + new_lo.double()).item() == pytest.approx(exact, rel=2.0**-16)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rule_6_non_finite_gradients_propagate_and_are_counted(strategy: str, bad: float) -> None:
    ours, theirs = ones(), nn.Parameter(torch.ones(64))
    mine, reference = CollageAdamW([ours], strategy=strategy), torch.optim.AdamW([theirs])
    ours.grad = torch.ones(64, dtype=BF16)
    ours.grad[3] = bad
    theirs.grad = ours.grad.float()
    mine.meters = {}
    mine.step()
    reference.step()
    assert torch.equal(ours.isnan(), theirs.isnan())
    sums = mine.meters[ours].sums()
    assert (sums.numel, sums.nonfinite, sums.attempted) == (64, 1, 63)
    assert all(math.isfinite(value) for value in (sums.sum_uu, sums.sum_ua, sums.sum_ww))
    if strategy in ("light", "plus"):
        assert mine.state[ours]["lo"].isfinite().all()


@pytest.mark.parametrize("strategy", ["light", "plus", "fp32-master"])
@pytest.mark.parametrize("how", ["copy", "data"])
def test_rule_8_a_weight_changed_from_outside_is_not_moved_back(strategy: str, how: str) -> None:
    w = ones()
    optimizer = CollageAdamW([w], lr=1e-3, weight_decay=0.0, strategy=strategy)
    run(optimizer, w, 1.0, 3)
    new = torch.full((64,), 2.0, dtype=BF16)
    with torch.no_grad():
        if how == "copy":
            w.copy_(new)
        else:
            w.data = new
    optimizer.param_groups[0]["lr"] = 0.0
    with pytest.warns(UserWarning, match="changed outside the optimizer"):
        run(optimizer, w, 1.0, 1)
    assert torch.equal(optimizer.stored_value(w), torch.full((64,), 2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(optimizer, w, 1.0, 2)


def test_rule_8_loading_weights_and_state_is_no_change_from_outside() -> None:
    w = ones()
    optimizer = CollageAdamW([w], lr=1e-3)
    run(optimizer, w, 1.0, 3)
    saved, weight = copy.deepcopy(optimizer.state_dict()), w.detach().clone()
    lo = saved["state"][0]["lo"].clone()
    run(optimizer, w, 1.0, 3)
    optimizer.load_state_dict(saved)
    optimizer.param_groups[0]["lr"] = 0.0
    with torch.no_grad():
        w.copy_(weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(optimizer, w, 1.0, 1)
    assert torch.equal(optimizer.state[w]["lo"], lo)


def test_rule_8_resync_says_it_explicitly() -> None:
    w = ones()
    optimizer = CollageAdamW([w], lr=1e-3)
    run(optimizer, w, 1.0, 3)
    assert optimizer.state[w]["lo"].any()
    optimizer.resync()
    assert not optimizer.state[w]["lo"].any()


def displaced(u: float, steps: int) -> tuple[Tensor, Tensor, int, int]:
    """hi, lo after adding u to 1.0 again and again; how many steps stored something, and the last that did."""
    hi, lo = torch.ones(1, dtype=BF16), torch.zeros(1, dtype=BF16)
    update, stored, last = torch.full((1,), u), 0, 0
    for step in range(1, steps + 1):
        new = add_to_pair(hi, lo, update)
        if not (torch.equal(new[0], hi) and torch.equal(new[1], lo)):
            stored, last = stored + 1, step
        hi, lo = new
    return hi, lo, stored, last


def test_rule_9_two_words_are_not_float32() -> None:
    hi, _, stored, last = displaced(-1e-6, 20_000)
    assert hi.item() == 1.0
    assert stored == last == 383
    assert 1 - stored / 20_000 == pytest.approx(0.98, abs=0.002)


def test_a_hundred_steps_that_bf16_alone_cannot_take() -> None:
    hi, lo, stored, _ = displaced(-1e-4, 100)
    assert stored == 100
    assert hi.item() == 0.98828125
    assert lo.item() == pytest.approx(0.0018, abs=1e-4)


def test_the_canary_sees_a_rounding_that_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lossy(hi: Tensor, lo: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        new_hi = (hi.float() + (lo.float() + u)).to(hi.dtype)
        return new_hi, torch.zeros_like(lo)

    with monkeypatch.context() as patched:
        patched.setattr("roundoff.kernels.reference.add_to_pair", lossy)
        with pytest.raises(
            RuntimeError, match=r"second word of w in torch\.bfloat16 on cpu.*emulate_precision_casts"
        ):
            CollageAdamW([ones()], backend="reference")
    CollageAdamW([ones()], backend="reference")

    def one_word(chunk: dict[str, Tensor], m: Tensor, v: Tensor, step: Step) -> None:
        chunk["exp_avg"].copy_(m)
        chunk["exp_avg_sq"].copy_(v)

    monkeypatch.setattr("roundoff.kernels.reference.store_moments", one_word)
    with pytest.raises(RuntimeError, match="second word of v"):
        CollageAdamW([ones()], backend="reference")
    CollageAdamW([ones()], strategy="light", backend="reference")


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("strategy", ["light", "plus"])
def test_the_canary_passes_where_nothing_is_removed(
    strategy: str, dtype: torch.dtype, arithmetic: str
) -> None:
    run_canary(ARITHMETICS[arithmetic], STRATEGIES[strategy], torch.device("cpu"), dtype, arithmetic)


@pytest.mark.parametrize("strategy", ["plus", "fp32-master"])
def test_rule_8_weights_loaded_after_seeding_are_kept(strategy: str) -> None:
    model = nn.Linear(8, 8).float()
    optimizer = CollageAdamW(model.parameters(), lr=0.0, strategy=strategy)
    to_low_precision(model, BF16, optimizer=optimizer)
    pretrained = {name: torch.full_like(p, 3.0) for name, p in model.state_dict().items()}
    model.load_state_dict(pretrained)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.warns(UserWarning, match="changed outside"):
        optimizer.step()
    for p in model.parameters():
        assert torch.equal(optimizer.stored_value(p), torch.full_like(p, 3.0, dtype=torch.float32))


@pytest.mark.parametrize("n", [31, 32, 33, 63, 95, 1000])
def test_rule_8_the_sampled_words_reach_both_ends(n: int) -> None:
    for place in (0, n // 2, n - 1):
        w = torch.zeros(n, dtype=BF16)
        before = sampled_words(w)
        w[place - min(place, n // 20) : place + n // 20 + 1] = 1.0
        assert not torch.equal(sampled_words(w), before), place
