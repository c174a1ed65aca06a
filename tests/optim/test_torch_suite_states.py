"""PyTorch's own optimizer tests, the part about state, checkpoints and hooks; see `test_torch_suite`."""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.testing import assert_close
from torch.testing._internal.common_optimizers import OptimizerInput
from torch_suite import INPUTS, advance, closure_of, ingredients, layouts

from roundoff.optim import CollageAdamW

every_input = pytest.mark.parametrize("given", INPUTS, ids=lambda given: given.desc)


def assert_same(one: Any, two: Any) -> None:
    assert_close(one, two, rtol=0, atol=0)


def saved_without_strings(optimizer: CollageAdamW) -> dict[str, Any]:
    """A state dict as far as tensors and numbers go, which is what can be compared at once."""
    saved = deepcopy(optimizer.state_dict())
    for group in saved["param_groups"]:
        for key in [key for key, value in group.items() if isinstance(value, str)]:
            group[key] = hash(group[key])
    return saved


def stepped(**options: Any) -> tuple[CollageAdamW, Parameter]:
    """An optimizer whose one parameter has taken a step."""
    param = Parameter(torch.ones(2))
    optimizer = CollageAdamW([param], **options)
    param.grad = torch.ones(2)
    optimizer.step()
    return optimizer, param


@pytest.mark.parametrize("layout", range(3))
@every_input
def test_state_dict_deterministic(given: OptimizerInput, layout: int) -> None:
    weight, bias, x = ingredients()
    one = CollageAdamW(list(layouts(weight, bias))[layout], **deepcopy(given.kwargs))
    advance(one, [], closure_of(one, weight, bias, x), 3)
    other_weight, other_bias = deepcopy(weight), deepcopy(bias)
    two = CollageAdamW(list(layouts(other_weight, other_bias))[layout], **deepcopy(given.kwargs))
    saved = one.state_dict()
    two.load_state_dict(saved)
    assert_same(saved_without_strings(one), saved_without_strings(two))
    advance(one, [], closure_of(one, weight, bias, x), 5)
    assert two.state_dict()["state"][0]["step"] == 3, "what was loaded is a copy"
    advance(two, [], closure_of(two, other_weight, other_bias, x), 5)
    assert_same((weight, bias), (other_weight, other_bias))
    assert_same(saved_without_strings(one), saved_without_strings(two))


@every_input
def test_can_load_older_state_dict(given: OptimizerInput) -> None:
    weight, bias, x = ingredients()
    optimizer = CollageAdamW([weight, bias], **deepcopy(given.kwargs))
    closure = closure_of(optimizer, weight, bias, x)
    advance(optimizer, [], closure, 3)
    older = deepcopy(optimizer.state_dict())
    for group in older["param_groups"]:
        for flag in ("maximize", "amsgrad", "strategy", "arithmetic"):
            del group[flag]
    for state in older["state"].values():
        state["step"] = state["step"].item()
    optimizer.load_state_dict(older)
    advance(optimizer, [], closure, 3)
    assert isinstance(optimizer.state[weight]["step"], torch.Tensor)
    assert optimizer.state[weight]["step"] == 6
    assert optimizer.param_groups[0]["amsgrad"] is given.kwargs.get("amsgrad", False)


@pytest.mark.parametrize("saved_with", [False, True])
@pytest.mark.parametrize("loaded_with", [False, True])
def test_can_load_from_to_named_state_dict(saved_with: bool, loaded_with: bool) -> None:
    weight, bias, x = ingredients()
    named = [("w", weight), ("b", bias)]
    one = CollageAdamW(named if saved_with else [weight, bias])
    advance(one, [], closure_of(one, weight, bias, x), 2)
    renamed = [("other w", weight), ("other b", bias)]
    two = CollageAdamW(renamed if loaded_with else [weight, bias])
    two.load_state_dict(one.state_dict())
    assert_same(one.state_dict()["state"], two.state_dict()["state"])
    expected = ["w", "b"] if saved_with else ["other w", "other b"] if loaded_with else None
    assert two.param_groups[0].get("param_names") == expected


@every_input
def test_save_load_equality_with_weights_only(given: OptimizerInput) -> None:
    weight, bias, x = ingredients()
    optimizer = CollageAdamW([weight, bias], **deepcopy(given.kwargs))
    advance(optimizer, [], closure_of(optimizer, weight, bias, x), 3)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    assert_same(torch.load(file, weights_only=True)["state"], optimizer.state_dict()["state"])


def test_step_hooks() -> None:
    """Pre- and post-hooks, global and its own, in their order; a pre-hook may change the arguments."""
    said: list[str] = []
    optimizer = CollageAdamW([Parameter(torch.ones(2))])

    def note(word: str) -> Callable[..., None]:
        return lambda *_: said.append(word)

    def give_a_closure(*_: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (optimizer, lambda: 7.0), {}

    handles = [
        register_optimizer_step_pre_hook(note("global pre")),
        register_optimizer_step_post_hook(note("global post")),
        optimizer.register_step_pre_hook(note("pre")),
        optimizer.register_step_pre_hook(give_a_closure),
        optimizer.register_step_post_hook(note("post")),
    ]
    try:
        assert optimizer.step() == 7.0
    finally:
        for handle in handles:
            handle.remove()
    assert said == ["global pre", "pre", "post", "global post"]
    assert optimizer.step() is None
    assert len(said) == 4


def test_state_dict_hooks() -> None:
    optimizer, _ = stepped()
    optimizer.register_state_dict_pre_hook(lambda o: o.param_groups[0].update(lr=0.5))
    optimizer.register_state_dict_post_hook(lambda _, saved: {**saved, "note": "kept"})
    saved = optimizer.state_dict()
    assert saved["note"] == "kept"
    assert saved["param_groups"][0]["lr"] == 0.5


def test_load_state_dict_hooks() -> None:
    optimizer, param = stepped(lr=1e-3)
    saved = deepcopy(optimizer.state_dict())
    said: list[str] = []

    def faster(_: Optimizer, loading: dict[str, Any]) -> dict[str, Any]:
        said.append("pre")
        groups = [{**group, "lr": 2 * group["lr"]} for group in loading["param_groups"]]
        return {**loading, "param_groups": groups}

    def sevens(loaded: Optimizer) -> None:
        said.append("post")
        loaded.state[param]["exp_avg"].fill_(7.0)

    optimizer.register_load_state_dict_pre_hook(faster)
    optimizer.register_load_state_dict_pre_hook(lambda *_: said.append("first"), prepend=True)
    optimizer.register_load_state_dict_post_hook(sevens)
    optimizer.register_load_state_dict_post_hook(
        lambda o: said.append(f"complete: {sorted(o.state[param])}"), prepend=True
    )
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 2e-3
    assert torch.equal(optimizer.state[param]["exp_avg"], torch.full((2,), 7.0))
    assert said == ["first", "pre", "complete: ['exp_avg', 'exp_avg_sq', 'step']", "post"]


@every_input
def test_deepcopy_copies_all_public_attrs(given: OptimizerInput) -> None:
    optimizer = CollageAdamW([Parameter(torch.randn(2))], **given.kwargs)
    public = {name for name in optimizer.__dict__ if not name.startswith("_")}
    assert public == {name for name in deepcopy(optimizer).__dict__ if not name.startswith("_")}


def test_state_that_belongs_to_no_parameter_goes_through_a_checkpoint() -> None:
    optimizer, _ = stepped()
    optimizer.state["how far"] = torch.tensor([3, 4])
    other = CollageAdamW([Parameter(torch.ones(2))])
    other.load_state_dict(optimizer.state_dict())
    assert torch.equal(other.state["how far"], torch.tensor([3, 4]))


@pytest.mark.parametrize("groups", [[], [{"params": [0]}, {"params": [1]}], [{"params": [0, 1]}]])
def test_another_number_of_groups_or_parameters_is_refused(groups: list[dict[str, Any]]) -> None:
    optimizer, param = stepped()
    before = deepcopy(optimizer.state_dict()["state"])
    with pytest.raises(ValueError, match="parameter group"):
        optimizer.load_state_dict({"state": {}, "param_groups": groups})
    assert_same(optimizer.state_dict()["state"], before)
    assert optimizer.param_groups[0]["params"][0] is param
