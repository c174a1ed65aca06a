"""What a load makes of an optimizer's state is noticed where it is another dtype."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from trainings import BF16, Collected, model_of, train

import roundoff
from roundoff.optim import CollageAdamW
from roundoff.watch.loading import notice_loads
from roundoff.watch.preflight_checks import Warned


def with_float32_state() -> tuple[nn.Module, AdamW, dict]:  # type: ignore[type-arg]
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-3, foreach=False)
    train(model, optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.full_like(state[name], 0.0012345, dtype=torch.float32)
    return model, optimizer, saved


def told_by(model: nn.Module, optimizer: AdamW, saved: dict) -> list[Warned]:  # type: ignore[type-arg]
    told: list[Warned] = []
    handles = notice_loads(optimizer, {p: n for n, p in model.named_parameters()}, told.append)
    optimizer.load_state_dict(saved)
    for handle in handles:
        handle.remove()
    return told


def test_a_finding_with_both_dtypes_and_a_value() -> None:
    model, optimizer, saved = with_float32_state()
    (found,) = told_by(model, optimizer, saved)
    assert found.kind == "loaded-state"
    assert found.what == "float32 state is bfloat16 since the load"
    assert "0.0012345 in 0.weight (exp_avg) has become 0.0012360" in found.why.replace(
        "0.001236", "0.0012360"
    )
    assert found.layers[:2] == ("0.weight (exp_avg)", "0.weight (exp_avg_sq)")
    assert len(found.layers) == 12


def test_what_comes_back_as_it_was_is_no_finding() -> None:
    model, optimizer, _ = with_float32_state()
    assert told_by(model, optimizer, copy.deepcopy(optimizer.state_dict())) == []
    wide = model_of(torch.float32)
    of_float32 = AdamW(wide.parameters())
    train(wide, of_float32, 1)
    assert told_by(wide, of_float32, copy.deepcopy(of_float32.state_dict())) == []


def test_values_that_the_narrow_dtype_holds_say_so() -> None:
    model, optimizer, saved = with_float32_state()
    for state in saved["state"].values():
        state["exp_avg"], state["exp_avg_sq"] = (torch.full_like(state["exp_avg"], 0.5) for _ in range(2))
    (found,) = told_by(model, optimizer, saved)
    assert "no value of" in found.why


def test_a_watch_says_it_once_and_not_after_it_ended() -> None:
    model, optimizer, saved = with_float32_state()
    watch = roundoff.watch(model, optimizer, sink=Collected())
    with pytest.warns(UserWarning, match="float32 state is bfloat16 since the load"):
        optimizer.load_state_dict(saved)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        optimizer.load_state_dict(saved)
        watch.detach()
        optimizer.load_state_dict(saved)
    assert not said
    assert not optimizer._optimizer_load_state_dict_pre_hooks
    assert not optimizer._optimizer_load_state_dict_post_hooks


def test_a_load_that_fails_keeps_nothing_and_fails_as_ever() -> None:
    _, optimizer, saved = with_float32_state()
    told: list[Warned] = []
    notice_loads(optimizer, {}, told.append)
    broken = {"state": saved["state"], "param_groups": []}
    with pytest.raises(ValueError, match="parameter groups"):
        optimizer.load_state_dict(broken)
    optimizer.load_state_dict(saved)
    kept = weakref.ref(saved["state"][0]["exp_avg"])
    assert len(told) == 1
    del saved, broken
    gc.collect()
    assert kept() is None


def test_ours_gives_back_every_tensor() -> None:
    model = model_of()
    optimizer = CollageAdamW(model.parameters(), strategy="fp32-state")
    train(model, optimizer, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    with roundoff.watch(model, optimizer, sink=Collected()), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        optimizer.load_state_dict(saved)
    assert not said
    assert BF16 not in {state["exp_avg"].dtype for state in optimizer.state.values()}
