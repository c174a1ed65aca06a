"""Rules 7 to 10 of numerics §3: what is kept comes back, does not fight the user, has an end, and has a start."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rules import (
    BF16,
    F16,
    FLOAT32,
    KEEPERS,
    ONE_WORD,
    PAIRS,
    STRATEGIES,
    Weights,
    backends,
    by,
    nothing_said,
    ones,
    plans,
    run,
)
from torch import Tensor, nn

from roundoff.metrics import Totals, cure, judge, lost_fraction
from roundoff.numerics import FORMATS
from roundoff.optim import CollageAdamW, full_precision_state_dict, to_low_precision
from roundoff.watch.statistics import Meter
from roundoff.watch.words import sampled_words


def bits(words: Tensor) -> Tensor:
    return words.view({2: torch.int16, 4: torch.int32}[words.element_size()])


def stepped(
    strategy: str, dtype: torch.dtype, amsgrad: bool, steps: int = 5
) -> tuple[nn.Parameter, CollageAdamW]:
    generator = torch.Generator().manual_seed(2)
    w = nn.Parameter(torch.randn(300, generator=generator).to(dtype))
    optimizer = CollageAdamW([w], lr=1e-3, strategy=strategy, amsgrad=amsgrad)
    for _ in range(steps):
        w.grad = (torch.randn(300, generator=generator) * 0.0012345).to(dtype)
        optimizer.step()
    return w, optimizer


@pytest.mark.parametrize("amsgrad", [False, True], ids=["", "amsgrad"])
@plans()
def test_rule_7_every_tensor_comes_back_bit_for_bit(strategy: str, dtype: torch.dtype, amsgrad: bool) -> None:
    w, optimizer = stepped(strategy, dtype, amsgrad)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    fresh = CollageAdamW([w], lr=1.0, strategy=strategy, amsgrad=amsgrad)
    with nothing_said():
        fresh.load_state_dict(torch.load(file, weights_only=True))
    before, after = optimizer.state[w], fresh.state[w]
    plan = STRATEGIES[strategy]
    assert set(after) == {"step", *(tensor.name for tensor in plan.tensors(amsgrad=amsgrad))}
    for tensor in plan.tensors(amsgrad=amsgrad):
        kept = after[tensor.name]
        assert kept.dtype == tensor.dtype_for(dtype), tensor.name
        assert torch.equal(bits(kept), bits(before[tensor.name])), tensor.name
        if kept.dtype in (torch.float32, torch.int16):
            assert not torch.equal(kept.to(dtype).to(kept.dtype), kept), "a trip through the dtype would show"
    assert after["step"].item() == 5.0


@plans(KEEPERS)
def test_rule_7_a_checkpoint_without_the_second_word_warns_and_keeps_the_moments(
    strategy: str, dtype: torch.dtype
) -> None:
    w, optimizer = stepped(strategy, dtype, amsgrad=False)
    saved = copy.deepcopy(optimizer.state_dict())
    word = next(name for name in ("lo", "remainder", "master") if name in saved["state"][0])
    del saved["state"][0][word]
    fresh = CollageAdamW([w], strategy=strategy)
    with pytest.warns(UserWarning, match=f"the checkpoint holds no {word}"):
        fresh.load_state_dict(saved)
    assert torch.equal(fresh.stored_value(w), w.detach().float())
    for name, kept in optimizer.state[w].items():
        if name != word:
            assert torch.equal(fresh.state[w][name], kept), name


@pytest.mark.parametrize(
    ("strategy", "word", "buffer"),
    [
        ("exact", "remainder", torch.float32),
        ("exact", "exp_avg_sq_remainder", BF16),
        ("plus", "lo", torch.int16),
    ],
)
def test_rule_7_a_word_that_went_through_another_kind_of_number_is_refused(
    strategy: str, word: str, buffer: torch.dtype
) -> None:
    w, optimizer = stepped(strategy, BF16, amsgrad=False)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0][word] = saved["state"][0][word].to(buffer)
    with pytest.raises(TypeError, match=f"'{word}' was saved as {buffer} where"):
        CollageAdamW([w], strategy=strategy).load_state_dict(saved)


def by_copy(w: nn.Parameter, new: Tensor) -> None:
    with torch.no_grad():
        w.copy_(new)


def by_data(w: nn.Parameter, new: Tensor) -> None:
    w.data = new


@backends
@pytest.mark.parametrize("change", [by_copy, by_data])
@plans(KEEPERS)
def test_rule_8_a_weight_changed_from_outside_is_not_moved_back(
    strategy: str, dtype: torch.dtype, backend: str, change: Callable[[nn.Parameter, Tensor], None]
) -> None:
    w = ones(dtype)
    optimizer = CollageAdamW([w], lr=1e-3, weight_decay=0.0, strategy=strategy, backend=backend)
    run(optimizer, w, 1.0, 3)
    change(w, torch.full((64,), 2.0, dtype=dtype))
    optimizer.param_groups[0]["lr"] = 0.0
    with pytest.warns(UserWarning, match="changed outside the optimizer"):
        run(optimizer, w, 1.0, 1)
    assert torch.equal(optimizer.stored_value(w), torch.full((64,), 2.0))
    change(w, torch.full((64,), 3.0, dtype=dtype))
    with nothing_said():  # once is enough
        run(optimizer, w, 1.0, 2)
    assert torch.equal(optimizer.stored_value(w), torch.full((64,), 3.0))


@plans(ONE_WORD)
def test_rule_8_where_nothing_can_be_stale_nothing_is_said(strategy: str, dtype: torch.dtype) -> None:
    w = ones(dtype)
    optimizer = CollageAdamW([w], lr=0.0, strategy=strategy)
    run(optimizer, w, 1.0, 2)
    by_copy(w, torch.full((64,), 2.0, dtype=dtype))
    with nothing_said():
        run(optimizer, w, 1.0, 1)
    assert torch.equal(optimizer.stored_value(w), torch.full((64,), 2.0))


@plans(KEEPERS)
def test_rule_8_loading_weights_and_state_is_no_change_from_outside(
    strategy: str, dtype: torch.dtype
) -> None:
    w, optimizer = stepped(strategy, dtype, amsgrad=False)
    saved, weight = copy.deepcopy(optimizer.state_dict()), w.detach().clone()
    exact = optimizer.stored_value(w)
    for _ in range(3):
        w.grad = torch.ones_like(w)
        optimizer.step()
    with nothing_said():
        optimizer.load_state_dict(saved)
        by_copy(w, weight)
        optimizer.param_groups[0].update(lr=0.0, weight_decay=0.0)
        optimizer.step()
    assert torch.equal(optimizer.stored_value(w), exact)


@plans(KEEPERS)
def test_rule_8_resync_says_it_explicitly(strategy: str, dtype: torch.dtype) -> None:
    w, optimizer = stepped(strategy, dtype, amsgrad=False)
    assert not torch.equal(optimizer.stored_value(w), w.detach().float())
    optimizer.resync()
    assert torch.equal(optimizer.stored_value(w), w.detach().float())
    optimizer.param_groups[0].update(lr=0.0, weight_decay=0.0)
    optimizer.step()
    assert torch.equal(optimizer.stored_value(w), w.detach().float())


@plans(KEEPERS)
def test_rule_8_weights_loaded_after_seeding_are_kept(strategy: str, dtype: torch.dtype) -> None:
    model = nn.Linear(8, 8).float()
    optimizer = CollageAdamW(model.parameters(), lr=0.0, strategy=strategy)
    to_low_precision(model, dtype, optimizer=optimizer)
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


@backends
def test_rule_8_rows_set_to_zero_unnoticed_stay_near_zero(backend: str) -> None:
    # What 32 sampled words may miss: a padding row that is cleared after every step.
    w = nn.Parameter(torch.randn(100, 16, generator=torch.Generator().manual_seed(0)).to(BF16))
    optimizer = CollageAdamW([w], lr=1e-3, strategy="exact", backend=backend)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        w.grad = torch.randn(100, 16, generator=generator).to(BF16)
        w.grad[41] = 0.0
        optimizer.step()
        with torch.no_grad():
            w[41, 1:9] = 0.0
    assert w.isfinite().all()
    assert w[41, 1:9].abs().max().item() < 1e-3


def stored_steps(
    strategy: str, dtype: torch.dtype, u: float, backend: str, limit: int
) -> tuple[Weights, int, Meter]:
    """Weights at 1.0 stepped by u until they stand still; how many steps that took, and the sums over them."""
    w, meter = Weights(strategy, torch.ones(2, dtype=dtype), backend=backend), Meter(torch.device("cpu"))
    for count in range(limit):
        before = w.stored
        w.step(*by(u), meter=meter)
        if torch.equal(before, w.stored):
            return w, count, meter
    return w, limit, meter


@backends
@pytest.mark.parametrize("strategy", PAIRS)
def test_rule_9_two_words_are_not_float32(strategy: str, backend: str) -> None:
    w, steps, meter = stored_steps(strategy, BF16, -1e-6, backend, 1000)
    assert steps == 383
    assert (w.param == 1.0).all()
    # Equal words step alike for ever, so the last step stands for the rest of twenty thousand.
    sums = meter.sums()
    assert (sums.attempted, sums.lost) == (2 * 384, 2)
    assert (20_000 - steps) / 20_000 == pytest.approx(0.98, abs=0.002)


@backends
@pytest.mark.parametrize("strategy", PAIRS)
@pytest.mark.parametrize(("sign", "below"), [(1.0, 2.0**-17), (-1.0, 2.0**-18)], ids=["growing", "shrinking"])
def test_rule_9_where_a_pair_begins_to_lose(strategy: str, backend: str, sign: float, below: float) -> None:
    _, steps, meter = stored_steps(strategy, BF16, sign * below, backend, 1300)
    assert 0 < steps < 1300, "at the bound it is stored for a while only"
    assert meter.sums().lost > 0
    w, steps, meter = stored_steps(strategy, BF16, sign * below * 1.01, backend, 1300)
    assert (steps, meter.sums().lost) == (1300, 0), "above it never ends"
    assert w.stored[0].item() - 1.0 == pytest.approx(1300 * sign * below, rel=0.5)


@backends
@pytest.mark.parametrize("strategy", FLOAT32)
def test_rule_9_float32_goes_on_where_a_pair_has_stopped(strategy: str, backend: str) -> None:
    w, steps, meter = stored_steps(strategy, BF16, -1e-6, backend, 1000)
    assert (steps, meter.sums().lost) == (1000, 0)
    assert w.stored[0].item() == pytest.approx(1.0 - 1e-3, abs=3e-5)


def test_rule_9_the_meter_calls_it_lost_and_the_advice_names_exact() -> None:
    w, _, _ = stored_steps("plus", BF16, -1e-6, "reference", 1000)
    meter = Meter(torch.device("cpu"))
    for _ in range(20):
        w.step(*by(-1e-6), meter=meter)
    sums = meter.sums()
    assert lost_fraction(sums) == 1.0
    window = Totals(20, sums.numel, 0, sums.attempted, sums.lost, 0, sums.sum_uu, sums.sum_ua, 100.0)
    assert judge(window) == "stalling"
    for strategy in PAIRS:
        advice = cure([strategy])
        assert advice is not None
        assert 'strategy="exact"' in advice.code
        assert "12 bytes per parameter" in advice.price
    for strategy in FLOAT32:
        assert cure([strategy]) is None


def seeded(
    strategy: str, dtype: torch.dtype, backend: str = "auto"
) -> tuple[nn.Module, CollageAdamW, dict[str, Tensor], dict[str, float]]:
    """A model cast with its optimizer, what its parameters were, and what the cast says it dropped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.LayerNorm(30))
    with torch.no_grad():
        model[1].weight.fill_(1.001)
        model[1].bias.copy_(torch.linspace(-1, 1, 30))
        model[1].bias[3] = torch.tensor([0x3F808000], dtype=torch.int32).view(torch.float32)
    exact = {name: p.detach().clone() for name, p in model.named_parameters()}
    options = {"lr": 1e-3, "weight_decay": 0.0, "strategy": strategy, "backend": backend}
    optimizer = CollageAdamW(model.named_parameters(), **options)
    return model, optimizer, exact, to_low_precision(model, dtype, optimizer=optimizer)


@plans()
def test_rule_10_casting_keeps_what_the_strategy_can_hold(strategy: str, dtype: torch.dtype) -> None:
    model, optimizer, exact, dropped = seeded(strategy, dtype)
    for name, value in full_precision_state_dict(model, optimizer).items():
        whole = exact[name].double()
        assert value.dtype == torch.float32
        error = (value.double() - whole).abs()
        if strategy in FLOAT32:
            assert torch.equal(value, exact[name]), "all sixteen of the dropped bits"
        elif strategy in PAIRS:
            smallest = FORMATS[dtype].smallest / 2
            assert (error <= whole.abs() * 2.0 ** -(2 * FORMATS[dtype].precision) + smallest).all()
        else:
            assert torch.equal(value, exact[name].to(dtype).float())
    norm = exact["1.weight"]
    share = float((norm - norm.to(dtype)).norm() / norm.norm())
    assert dropped["1.weight"] == pytest.approx(share, rel=1e-5)
    assert set(dropped) == set(exact)


@backends
@plans(KEEPERS)
def test_rule_10_the_seed_is_what_training_starts_from(
    strategy: str, dtype: torch.dtype, backend: str
) -> None:
    model, optimizer, exact, _ = seeded(strategy, dtype, backend)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with nothing_said():
        optimizer.step()
    for name, value in full_precision_state_dict(model, optimizer).items():
        torch.testing.assert_close(value, exact[name] - 1e-3, rtol=2.0**-15, atol=1e-6)


def test_rule_10_lo_is_the_leading_part_of_what_was_dropped() -> None:
    model, optimizer, _, _ = seeded("plus", BF16)
    norm = model[1].weight
    assert optimizer.state[norm]["lo"][0].item() == (torch.tensor(1.001) - 1.0).to(BF16).item()
    model, optimizer, _, _ = seeded("exact", BF16)
    assert optimizer.state[model[1].bias]["remainder"][3].item() == -(1 << 15), "ties go away from zero"


@plans()
def test_rule_10_the_export_is_a_copy(strategy: str, dtype: torch.dtype) -> None:
    model, optimizer, _, _ = seeded(strategy, dtype)
    exported: dict[str, Any] = full_precision_state_dict(model, optimizer)
    before = {name: value.clone() for name, value in exported.items()}
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert all(torch.equal(exported[name], value) for name, value in before.items())


def test_every_kind_of_word_is_in_these_tests() -> None:
    assert {BF16, F16} == {dtype for name in KEEPERS for dtype in STRATEGIES[name].dtypes}
