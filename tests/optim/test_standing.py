"""Parameters that stand are stepped in one call: whatever happens to them, the bits are those of the reference."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable

import pytest
import torch
from simple import BF16, F16, F32, advance, assert_equal, everything, give_gradients, model_of
from torch import Tensor, nn

from roundoff.kernels.cpu import layout
from roundoff.optim import STRATEGIES, CollageAdamW

Change = Callable[[nn.Sequential, CollageAdamW], None]


def state_of(model: nn.Sequential, optimizer: CollageAdamW) -> dict[str, Tensor]:
    state: dict[str, Tensor] = optimizer.state[model[0].weight]
    return state


def turned(tensor: Tensor) -> Tensor:
    """The same values, the other way round in memory."""
    return tensor.detach().t().contiguous().t()


@pytest.fixture(params=["guards", "plain"], autouse=True)
def guards(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With PyTorch's guards, and as where it has none."""
    assert layout.guards_see_all()
    if request.param == "plain":
        monkeypatch.setattr(layout, "guards_see_all", lambda: False)


def alone(optimizer: CollageAdamW) -> list[Tensor]:
    """Filled with the parameters that are not stepped in the one call."""
    found: list[Tensor] = []
    begin = optimizer._begin

    def noted(turn: object) -> None:
        found.append(turn.param)  # type: ignore[attr-defined]
        begin(turn)  # type: ignore[arg-type]

    optimizer._begin = noted  # type: ignore[method-assign]
    return found


def pair(
    strategy: str = "plus", dtype: torch.dtype = BF16
) -> tuple[tuple[nn.Sequential, CollageAdamW], tuple[nn.Sequential, CollageAdamW]]:
    """Twice the same after three steps: stepped by C, and by the reference."""
    both = []
    for backend in ("auto", "reference"):
        model = model_of(dtype)
        optimizer = CollageAdamW(model.parameters(), lr=1e-2, strategy=strategy, backend=backend)
        advance(model, optimizer, 1, 3)
        both.append((model, optimizer))
    return both[0], both[1]


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_from_the_second_step_on_all_stand(strategy: str, dtype: torch.dtype) -> None:
    if dtype not in (*STRATEGIES[strategy].dtypes, F32):
        pytest.skip("does not store it")
    mine, theirs = pair(strategy, dtype)
    found = alone(mine[1])
    for model, optimizer in (mine, theirs):
        advance(model, optimizer, 4, 6)
        optimizer.param_groups[0].update(
            lr=1e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.3, maximize=True
        )
        advance(model, optimizer, 7, 9)
    assert_equal(everything(*mine), everything(*theirs))
    takes = (strategy, dtype) != ("stochastic", F16)
    assert (found == []) == takes


def swap_state(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    state = state_of(model, optimizer)
    state.update({name: value.clone() * 2 for name, value in state.items()})


def swap_all_state(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    state = state_of(model, optimizer)
    optimizer.state[model[0].weight] = {name: value.clone() * 2 for name, value in state.items()}


def swap_data_of_state(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    for value in state_of(model, optimizer).values():
        value.data = value.clone() * 2


def swap_weight(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    model[0].weight.data = model[0].weight.detach().clone()


def jump(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    state_of(model, optimizer)["step"].fill_(70.0)


def nothing_kept(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    optimizer.state[model[0].weight] = {}


def turn_state(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    state = state_of(model, optimizer)
    state["lo"] = turned(state["lo"])


def reread_state(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    """The same object on the same memory, in another order."""
    lo = state_of(model, optimizer)["lo"]
    lo.data = lo.detach().view(6, 9).t()


def turn_weight(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    model[0].weight.data = turned(model[0].weight)


def widen_state(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    state = state_of(model, optimizer)
    state["exp_avg"] = state["exp_avg"].to(F32)


def widen_count(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    state = state_of(model, optimizer)
    state["step"] = state["step"].to(torch.float64)


def freeze(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    model[0].weight.requires_grad_(False)


def another_arithmetic(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    optimizer.param_groups[0]["arithmetic"] = "storage"


def another_strategy(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    optimizer.param_groups[0]["strategy"] = "light"


def resync(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    optimizer.resync()


def reload(model: nn.Sequential, optimizer: CollageAdamW) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@pytest.mark.parametrize("change", [swap_state, swap_all_state, swap_data_of_state, swap_weight, jump])
def test_what_is_only_elsewhere_goes_on_standing(change: Change) -> None:
    mine, theirs = pair()
    found = alone(mine[1])
    for model, optimizer in (mine, theirs):
        change(model, optimizer)
        advance(model, optimizer, 4, 6)
    assert_equal(everything(*mine), everything(*theirs))
    assert found == []


@pytest.mark.parametrize(
    ("change", "times"),
    [
        (nothing_kept, 1),
        (turn_state, 3),
        (reread_state, 3),
        (turn_weight, 3),
        (widen_state, 3),
        (widen_count, 3),
        (freeze, 1),
        (another_arithmetic, 18),
        (another_strategy, 6),
        (resync, 6),
        (reload, 6),
    ],
)
def test_what_is_no_longer_as_it_was_is_looked_at_again(change: Change, times: int) -> None:
    mine, theirs = pair()
    found = alone(mine[1])
    for model, optimizer in (mine, theirs):
        change(model, optimizer)
        advance(model, optimizer, 4, 6)
    assert_equal(everything(*mine), everything(*theirs))
    assert len(found) == times


@pytest.mark.parametrize("through_data", [False, True])
@pytest.mark.parametrize("strategy", ["plus", "kahan", "exact", "fp32-master"])
@pytest.mark.parametrize("place", [0, 53])
def test_a_word_changed_from_outside_is_noticed(strategy: str, through_data: bool, place: int) -> None:
    mine, theirs = pair(strategy)
    found = alone(mine[1])
    for model, optimizer in (mine, theirs):
        weight = model[0].weight.data if through_data else model[0].weight.detach()
        weight.view(-1)[place] = 2.0
        with pytest.warns(UserWarning, match="changed outside"):
            advance(model, optimizer, 4, 4)
        advance(model, optimizer, 5, 6)
    assert_equal(everything(*mine), everything(*theirs))
    assert found == [mine[0][0].weight]


def test_words_of_weights_in_another_order_of_memory_are_the_same_words() -> None:
    for strategy in ("plus", "fp32-master"):
        w = nn.Parameter(turned(torch.randn(20, 30).to(BF16)))
        optimizer = CollageAdamW([w], lr=1e-2, strategy=strategy, backend="cpu")
        found = alone(optimizer)
        for step in range(6):
            w.grad = turned(torch.randn(20, 30).to(BF16))
            if step == 3:
                for value in (w, *(kept for name, kept in optimizer.state[w].items() if name != "step")):
                    value.data = value.detach().contiguous()
            before = optimizer.stored_value(w) if step else w.detach().float()
            optimizer.param_groups[0]["lr"] = 0.0 if step == 3 else 1e-2
            optimizer.step()
            if step == 3:
                torch.testing.assert_close(optimizer.stored_value(w), before, rtol=2.0**-14, atol=0)
        assert len(found) == 2


def test_gradients_come_and_go_and_lie_as_they_like() -> None:
    mine, theirs = pair()
    found = alone(mine[1])
    for model, optimizer in (mine, theirs):
        for step in range(4, 10):
            give_gradients(model, step)
            weight, bias = model[0].weight, model[0].bias
            if step == 5:
                weight.grad = None
            if step == 6:
                weight.grad = turned(weight.grad)
            if step == 7:
                bias.grad = torch.full((), 0.5, dtype=BF16).expand(9)
            if step == 8:
                weight.grad.requires_grad_()
            optimizer.step()
    assert_equal(everything(*mine), everything(*theirs))
    assert found == []


def test_a_wider_gradient_is_not_taken_for_one_of_the_format() -> None:
    mine, theirs = pair()
    for model, optimizer in (mine, theirs):
        model[0].weight.grad = None
        model[0].weight.grad_dtype = F32
        for param in model.parameters():
            param.grad = torch.zeros_like(param, dtype=F32 if param is model[0].weight else BF16)
        model[0].weight.grad = torch.randn(9, 6, generator=torch.Generator().manual_seed(0))
        optimizer.step()
    assert_equal(everything(*mine), everything(*theirs))


def test_a_counter_that_two_share_counts_both() -> None:
    mine, theirs = pair()
    for model, optimizer in (mine, theirs):
        optimizer.state[model[0].bias]["step"] = state_of(model, optimizer)["step"]
        advance(model, optimizer, 4, 6)
        assert float(state_of(model, optimizer)["step"]) == 9.0
    assert_equal(everything(*mine), everything(*theirs))


def test_steps_that_stand_are_measured_alike() -> None:
    rows = []
    for model, optimizer in pair():
        found = alone(optimizer)
        optimizer.meters = {}
        advance(model, optimizer, 4, 4)
        assert (found == []) == (optimizer._backend == "auto")
        rows.append(
            [(meter.row(), meter.bins) for meter in map(optimizer.meters.get, model.parameters()) if meter]
        )
    assert len(rows[0]) == 6
    for (row, bins), (other, others) in zip(*rows, strict=True):
        torch.testing.assert_close(row, other)
        torch.testing.assert_close(bins, others)


def test_nothing_is_kept_alive() -> None:
    (model, optimizer), _ = pair()
    lo = weakref.ref(state_of(model, optimizer)["lo"])
    state_of(model, optimizer)["lo"] = torch.zeros_like(model[0].weight)
    assert lo() is None
    gradient = weakref.ref(model[0].weight.grad)
    optimizer.zero_grad()
    assert gradient() is None
    weight = weakref.ref(model[0].weight)
    optimizer.state.pop(model[0].weight)
    del optimizer.param_groups[0]["params"][0], model[0].weight
    gc.collect()
    assert weight() is None
    assert len(optimizer._routine._places) == 5


def test_copies_stand_on_their_own() -> None:
    (model, optimizer), (theirs, reference) = pair()
    together = copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))
    advance(model, optimizer, 4, 6)
    advance(theirs, reference, 4, 6)
    for other, its in together:
        advance(other, its, 4, 6)
        assert_equal(everything(other, its), everything(theirs, reference))
    assert_equal(everything(model, optimizer), everything(theirs, reference))


def test_guards_that_miss_something_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind:
        def check(self, *tensors: object) -> bool:
            return True

    # PyTorch has no such guards; a later version might.
    monkeypatch.undo()
    layout.guards_see_all.cache_clear()
    monkeypatch.setattr(layout, "_guards", lambda *_: Blind())
    assert not layout.guards_see_all()
    layout.guards_see_all.cache_clear()


def test_after_a_refused_load_a_change_is_still_noticed() -> None:
    (model, optimizer), _ = pair()
    refused = copy.deepcopy(optimizer.state_dict())
    del refused["state"][0]["exp_avg"]
    with pytest.raises(KeyError, match="holds no 'exp_avg'"):
        optimizer.load_state_dict(refused)
    model[0].weight.data.fill_(2.0)
    with pytest.warns(UserWarning, match="changed outside"):
        advance(model, optimizer, 4, 4)
