"""Checkpoints into another layout: from every strategy to every other, and what is refused."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roundoff.numerics import join_master
from roundoff.optim import (
    STRATEGIES,
    CollageAdamW,
    Strategy,
    full_precision_state_dict,
    to_low_precision,
)
from roundoff.optim.strategies import EXPERIMENTAL, WEIGHT_WORDS

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SHAPE = (40, 50)


def trained(strategy: str, dtype: torch.dtype = BF16, *, steps: int = 30, **options: Any) -> CollageAdamW:
    """An optimizer with one parameter that has taken some steps."""
    generator = torch.Generator().manual_seed(0)
    w = nn.Parameter(torch.randn(SHAPE, generator=generator).to(dtype))
    optimizer = CollageAdamW([w], lr=1e-3, weight_decay=0.1, strategy=strategy, **options)
    for _ in range(steps):
        w.grad = torch.randn(SHAPE, generator=generator).to(dtype)
        optimizer.step()
    return optimizer


def weight_of(optimizer: CollageAdamW) -> nn.Parameter:
    param: nn.Parameter = optimizer.param_groups[0]["params"][0]
    return param


def state_of(optimizer: CollageAdamW) -> dict[str, Tensor]:
    return optimizer.state[weight_of(optimizer)]


def moment_of(optimizer: CollageAdamW, prefix: str = "") -> Tensor:
    """Everything stored of the second moment, float64."""
    state = state_of(optimizer)
    hi, name = state[f"{prefix}exp_avg_sq"], f"{prefix}exp_avg_sq_"
    if f"{name}remainder" in state:
        return join_master(hi, state[f"{name}remainder"]).double()
    return hi.double() + state[f"{name}lo"].double() if f"{name}lo" in state else hi.double()


def converted(source: CollageAdamW, target: str, **options: Any) -> CollageAdamW:
    """A new optimizer over a copy of the weight, with the state of another."""
    w = nn.Parameter(weight_of(source).detach().clone())
    optimizer = CollageAdamW([w], strategy=target, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is said about words without a place has its own test
        optimizer.load_state_dict(source.state_dict())
    return optimizer


def weight_tolerance(plan: Strategy, dtype: torch.dtype) -> tuple[float, float]:
    """rtol and atol with which a strategy can hold a float32 weight beside its visible word."""
    if not plan.keeps_more_than_the_word:
        return 0.0, 0.0  # of the visible word
    if not plan.keeps("lo"):
        return 2.0**-23, 0.0  # on an exact tie the other remainder reaches one unit short
    # RN(w) leaves at most ulp/2, of which lo keeps its own p digits.
    return (2.0**-16, 0.0) if dtype == BF16 else (2.0**-22, 2.0**-25)


def moment_tolerance(plan: Strategy, dtype: torch.dtype) -> tuple[float, float]:
    if plan.keeps("exp_avg_sq_remainder") or plan.tensors()[1].dtype == F32:
        return 0.0, 0.0
    one, two = ((2.0**-8, 2.0**-16), (2.0**-11, 2.0**-22))[dtype == F16]
    return (two if plan.keeps("exp_avg_sq_lo") else one), (2.0**-25 if dtype == F16 else 0.0)


PAIRS = [
    (source.name, target.name, dtype)
    for source in STRATEGIES.values()
    for target in STRATEGIES.values()
    for dtype in (BF16, F16)
    if dtype in source.dtypes and dtype in target.dtypes
]


@pytest.mark.parametrize(("source", "target", "dtype"), PAIRS, ids=str)
def test_every_strategy_takes_over_what_every_other_keeps(
    source: str, target: str, dtype: torch.dtype
) -> None:
    before, plan = trained(source, dtype, amsgrad=True), STRATEGIES[target]
    after = converted(before, target, amsgrad=True)
    assert torch.equal(weight_of(after), weight_of(before)), "a load never moves the visible word"
    kept = before.stored_value(weight_of(before))
    if not plan.keeps_more_than_the_word:
        kept = weight_of(before).detach().to(F32)
    rtol, atol = weight_tolerance(plan, dtype)
    torch.testing.assert_close(after.stored_value(weight_of(after)), kept, rtol=rtol, atol=atol)
    rtol, atol = moment_tolerance(plan, dtype)
    for prefix in ("", "max_"):
        wanted = moment_of(before, prefix)
        torch.testing.assert_close(moment_of(after, prefix), wanted, rtol=rtol, atol=atol)
    m, wanted = state_of(after)["exp_avg"], state_of(before)["exp_avg"]
    assert torch.equal(m, wanted.to(m.dtype))
    assert state_of(after)["step"] == 30
    assert set(state_of(after)) == {"step", *(tensor.name for tensor in plan.tensors(amsgrad=True))}


@pytest.mark.parametrize("target", STRATEGIES)
def test_through_a_wider_layout_and_back_nothing_is_lost(target: str) -> None:
    plan = STRATEGIES[target]
    before = trained(target)
    for wider in ("fp32-master", "exact"):
        back = converted(converted(before, wider), target)
        kept = before.stored_value(weight_of(before))
        # hi + lo needs up to 8 + 8 + 1 digits and a gap between them: a float32 may be one unit off.
        torch.testing.assert_close(back.stored_value(weight_of(back)), kept, rtol=2.0**-16, atol=0)
        if plan.keeps("exp_avg_sq_lo") or not plan.keeps_more_than_the_word:
            torch.testing.assert_close(moment_of(back), moment_of(before), rtol=2.0**-16, atol=0)


@pytest.mark.parametrize("target", ["light", "plus", "fp32-master", "exact"])
@pytest.mark.parametrize("source", ["light", "plus", "fp32-master", "exact"])
@pytest.mark.parametrize("asked", ["step", "stored_value", "state_dict"])
def test_weights_loaded_after_the_optimizers_state_convert_alike(
    source: str, target: str, asked: str
) -> None:
    """The second word is converted beside the weight, so a weight that comes later makes it wait."""
    before = trained(source)
    wanted = converted(before, target)
    w = nn.Parameter(torch.full(SHAPE, 17.0, dtype=BF16))
    late = CollageAdamW([w], strategy=target)
    late.load_state_dict(before.state_dict())
    with torch.no_grad():
        w.copy_(weight_of(before))
    if asked == "stored_value":
        late.stored_value(w)
    if asked == "state_dict":
        late.state_dict()
    if asked == "step":
        for optimizer in (late, wanted):
            weight_of(optimizer).grad = torch.ones(SHAPE, dtype=BF16)
            optimizer.step()
    for name, word in state_of(wanted).items():
        assert torch.equal(late.state[w][name], word), name
    assert torch.equal(w, weight_of(wanted))


def test_a_master_that_the_checkpoint_lacks_is_the_weight_loaded_after_it() -> None:
    before = trained("none")
    w = nn.Parameter(torch.full(SHAPE, 17.0, dtype=BF16))
    late = CollageAdamW([w], lr=0.0, strategy="fp32-master")
    with pytest.warns(UserWarning, match="the checkpoint holds no master"):
        late.load_state_dict(before.state_dict())
    late.param_groups[0]["lr"] = 0.0
    with torch.no_grad():
        w.copy_(weight_of(before))
    w.grad = torch.zeros(SHAPE, dtype=BF16)
    late.step()
    assert torch.equal(w, weight_of(before))
    assert torch.equal(late.state[w]["master"], w.to(F32))


@pytest.mark.parametrize("strategy", [s.name for s in STRATEGIES.values() if s.keeps_more_than_the_word])
def test_resync_after_a_converted_load_takes_the_weight_as_it_is(strategy: str) -> None:
    w = nn.Parameter(torch.full(SHAPE, 17.0, dtype=BF16))
    late = CollageAdamW([w], strategy=strategy)
    late.load_state_dict(trained("exact" if strategy != "exact" else "plus").state_dict())
    late.resync()
    with torch.no_grad():
        w.fill_(3.0)
    late.resync()
    assert torch.equal(late.stored_value(w), torch.full(SHAPE, 3.0))


def test_a_pair_resumed_without_its_second_word_warns_and_keeps_the_moments() -> None:
    """A hundred steps of −1e-4 from 1.0 leave hi 0.98828125 and lo about 0.0018; then lo is gone from the file."""
    w = nn.Parameter(torch.ones(4, dtype=BF16))
    optimizer = CollageAdamW([w], lr=1e-4, betas=(0.0, 0.9), eps=0.0, weight_decay=0.0, strategy="plus")
    for _ in range(100):
        w.grad = torch.ones(4, dtype=BF16)
        optimizer.step()
    assert w[0].item() == 0.98828125
    assert optimizer.state[w]["lo"][0].item() == pytest.approx(0.0018, abs=1e-4)
    saved = copy.deepcopy(optimizer.state_dict())
    resumed = CollageAdamW([nn.Parameter(w.detach().clone())], strategy="plus")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed.load_state_dict(saved)
    assert torch.equal(state_of(resumed)["lo"], optimizer.state[w]["lo"])
    del saved["state"][0]["lo"]
    poorer = CollageAdamW([nn.Parameter(w.detach().clone())], strategy="plus")
    with pytest.warns(UserWarning, match="the checkpoint holds no lo"):
        poorer.load_state_dict(saved)
    assert not state_of(poorer)["lo"].any()
    for name in ("exp_avg", "exp_avg_sq", "exp_avg_sq_lo", "step"):
        assert torch.equal(state_of(poorer)[name], optimizer.state[w][name])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_float32_weight_of_1_001_cast_before_the_first_step_keeps_what_fits(strategy: str) -> None:
    """Its rest is 0.001: `lo` holds the leading eight bits, a remainder or a master every one; all say how much."""
    model = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.001)
    optimizer = CollageAdamW(model.parameters(), strategy=strategy)
    dropped = to_low_precision(model, BF16, optimizer=optimizer)
    assert dropped == {"weight": pytest.approx(0.001 / 1.001, rel=1e-3)}
    assert torch.equal(model.weight, torch.ones(3, 3, dtype=BF16))
    plan, state = STRATEGIES[strategy], optimizer.state[model.weight]
    value = full_precision_state_dict(model, optimizer)["weight"][0, 0]
    if plan.keeps("lo"):
        assert state["lo"][0, 0] == (torch.tensor(1.001) - 1.0).to(BF16)
        assert value == 1.0 + state["lo"][0, 0].to(F32)
    else:
        assert value == (torch.tensor(1.001) if plan.keeps_more_than_the_word else 1.0)


@pytest.mark.parametrize("strategy", ["fp32-state", "fp32-master"])
def test_float32_state_beside_a_16_bit_parameter_stays_float32(strategy: str) -> None:
    """m = 0.0012345 came back from other loaders as bfloat16, 0.001236."""
    optimizer = trained(strategy, steps=1)
    state_of(optimizer)["exp_avg"].fill_(0.0012345)
    resumed = converted(optimizer, strategy)
    m = state_of(resumed)["exp_avg"]
    assert m.dtype == F32
    assert torch.equal(m, torch.full(SHAPE, 0.0012345))


@pytest.mark.parametrize("through", [F32, BF16])
@pytest.mark.parametrize("name", ["remainder", "exp_avg_sq_remainder"])
def test_a_remainder_that_went_through_a_float_buffer_is_refused(name: str, through: torch.dtype) -> None:
    optimizer = trained("exact", steps=3)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0][name] = saved["state"][0][name].to(through)
    other = trained("exact", steps=1)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(TypeError, match=rf"'{name}' was saved as {through} where torch.int16 belongs"):
        other.load_state_dict(saved)
    for word, value in state_of(other).items():
        assert torch.equal(value, before["state"][0][word]), word


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_a_remainder_of_another_width_is_refused(dtype: torch.dtype) -> None:
    saved = copy.deepcopy(trained("exact", steps=3).state_dict())
    saved["state"][0]["remainder"] = saved["state"][0]["remainder"].to(dtype)
    with pytest.raises(TypeError, match=f"'remainder' was saved as {dtype} where torch.int16 belongs"):
        trained("exact", steps=1).load_state_dict(saved)


def test_a_second_moment_keeps_its_value_in_another_storage_format() -> None:
    before = trained("plus", F16)
    w = nn.Parameter(weight_of(before).detach().to(BF16))
    after = CollageAdamW([w], strategy="plus")
    after.load_state_dict(before.state_dict())
    torch.testing.assert_close(moment_of(after), moment_of(before), rtol=2.0**-16, atol=0)


def test_another_shape_and_a_missing_moment_are_named() -> None:
    optimizer = trained("plus", steps=1)
    for spoil, error, message in (
        (lambda s: s.update(exp_avg=s["exp_avg"][:3]), ValueError, r"'exp_avg'.*shape \(3, 50\)"),
        (lambda s: s.pop("exp_avg_sq"), KeyError, "no 'exp_avg_sq'"),
    ):
        saved = copy.deepcopy(optimizer.state_dict())
        spoil(saved["state"][0])
        with pytest.raises(error, match=message):
            optimizer.load_state_dict(saved)


def test_an_empty_entry_is_a_parameter_that_has_not_stepped() -> None:
    optimizer = trained("plus", steps=2)
    saved = optimizer.state_dict()
    saved["state"][0] = {}
    other = trained("plus", steps=0)
    other.load_state_dict(saved)
    assert not other.state.get(weight_of(other))


def test_the_words_that_belong_to_a_weight_are_those_of_the_table() -> None:
    known = {"exp_avg", "exp_avg_sq", "exp_avg_sq_lo", "exp_avg_sq_remainder"}
    table = (STRATEGIES | EXPERIMENTAL).values()
    assert {tensor.name for plan in table for tensor in plan.state} - known == set(WEIGHT_WORDS)
