"""Unusual gradients and parameters: released early, wider than the weight, without storage, swapped, changed."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from simple import BF16, F16, F32, KEEPING, advance, assert_equal, bits, everything, give_gradients, model_of
from torch import Tensor, nn

from roundoff.optim import STRATEGIES, CollageAdamW

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
keeping = pytest.mark.parametrize("strategy", KEEPING)


def loss_of(model: nn.Module, step: int) -> Tensor:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step)).to(BF16)
    loss: Tensor = model(x).square().mean()
    return loss


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "stochastic"])
def test_gradients_released_as_they_come_give_the_same_result(strategy: str) -> None:
    """One optimizer per parameter steps in the backward pass, and no two gradients are ever there at once."""
    model, at_once = model_of(), model_of()
    optimizers = {p: CollageAdamW([p], lr=1e-2, strategy=strategy) for p in model.parameters()}
    alive: list[int] = []

    def release(param: Tensor) -> None:
        alive.append(sum(p.grad is not None for p in model.parameters()))
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(release)
    optimizer = CollageAdamW(at_once.parameters(), lr=1e-2, strategy=strategy)
    for step in range(5):
        loss_of(model, step).backward()
        loss_of(at_once, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert max(alive) == 1
    for p, q in zip(model.parameters(), at_once.parameters(), strict=True):
        assert torch.equal(bits(p), bits(q))
        for name, word in optimizers[p].state[p].items():
            assert torch.equal(bits(word), bits(optimizer.state[q][name])), name


def test_stochastic_rounding_draws_by_seed_where_every_parameter_has_its_own_optimizer() -> None:
    """Each is number 0 of its own, so seeds tell them apart; the same seed draws the same again."""

    def moved(seed: int) -> Tensor:
        w = nn.Parameter(torch.ones(4000, dtype=BF16))
        optimizer = CollageAdamW([w], lr=1e-3, strategy="stochastic", seed=seed)
        w.grad = torch.ones_like(w)
        optimizer.step()
        return w.detach()

    assert torch.equal(moved(1), moved(1))
    assert not torch.equal(moved(1), moved(2))


def test_stochastic_rounding_draws_anew_for_every_parameter_and_step() -> None:
    one, two = (nn.Parameter(torch.ones(4000, dtype=BF16)) for _ in range(2))
    optimizer = CollageAdamW([{"params": [one]}, {"params": [two]}], lr=1e-3, strategy="stochastic")
    moved: list[Tensor] = []
    for _ in range(2):
        before = one.detach().clone(), two.detach().clone()
        one.grad, two.grad = torch.ones_like(one), torch.ones_like(two)
        optimizer.step()
        moved += [one.detach() != before[0], two.detach() != before[1]]
    for number, first in enumerate(moved):
        assert first.any()
        assert all(not torch.equal(first, second) for second in moved[:number])


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@every_strategy
def test_a_gradient_wider_than_the_weight_is_read_as_it_is(strategy: str, dtype: torch.dtype) -> None:
    if dtype not in STRATEGIES[strategy].dtypes:
        pytest.skip("does not store it")
    wide, narrow = (nn.Parameter(torch.ones(40, dtype=dtype)) for _ in range(2))
    wide.grad_dtype = F32
    grad = torch.linspace(1, 2, 40)  # most of them no values of the 16-bit formats
    wide.grad = grad.clone()
    narrow.grad = grad.to(dtype)
    one = CollageAdamW([wide], strategy=strategy, betas=(0.0, 0.5))
    two = CollageAdamW([narrow], strategy=strategy, betas=(0.0, 0.5))
    one.step()
    two.step()
    assert torch.equal(wide.grad, grad)
    assert one.state[wide]["exp_avg"].dtype == two.state[narrow]["exp_avg"].dtype
    torch.testing.assert_close(one.state[wide]["exp_avg"].to(F32), grad, rtol=2.0**-8, atol=0)
    if STRATEGIES[strategy].tensors()[0].dtype == F32:
        assert torch.equal(one.state[wide]["exp_avg"], grad)
        assert not torch.equal(two.state[narrow]["exp_avg"], grad)


@every_strategy
def test_parameters_without_storage_step_and_their_state_can_be_counted(strategy: str) -> None:
    """On "meta" nothing is computed; what the state will take is known."""
    w = nn.Parameter(torch.ones(100, 10, dtype=BF16, device="meta"))
    optimizer = CollageAdamW([w], strategy=strategy)
    for _ in range(3):
        w.grad = torch.empty_like(w)
        optimizer.step()
    kept = [word for name, word in optimizer.state[w].items() if name != "step"]
    assert {word.device.type for word in kept} == {"meta"}
    needed = sum(word.element_size() for word in (w, w.grad, *kept))
    assert needed == STRATEGIES[strategy].bytes_per_parameter
    assert optimizer.state[w]["step"] == 3


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@every_strategy
def test_zero_gradients_at_a_learning_rate_of_zero_leave_every_word(
    strategy: str, dtype: torch.dtype
) -> None:
    """PyTorch takes such a step to make the state that a checkpoint is loaded into. Only −0.0 becomes 0.0."""
    if dtype not in STRATEGIES[strategy].dtypes:
        pytest.skip("does not store it")
    words = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    words = words[words.isfinite()]
    w = nn.Parameter(words.clone())
    w.grad = torch.zeros_like(w)
    optimizer = CollageAdamW([w], lr=0.0, strategy=strategy)
    optimizer.step()
    assert torch.equal(w, words)
    assert torch.equal(optimizer.stored_value(w), words.to(F32))
    changed = words[bits(w) != bits(words)]
    assert changed.numel() <= 1
    assert not changed.any()


def swap(w: nn.Parameter, new: Tensor) -> None:
    w.data = new


def overwrite(w: nn.Parameter, new: Tensor) -> None:
    with torch.no_grad():
        w.copy_(new)


def overwrite_through_data(w: nn.Parameter, new: Tensor) -> None:
    w.data.copy_(new)


def move_towards(w: nn.Parameter, new: Tensor) -> None:
    with torch.no_grad():
        w.lerp_(new, 0.5).lerp_(new, 1.0)


def scale(w: nn.Parameter, new: Tensor) -> None:
    with torch.no_grad():
        w.mul_(0).add_(new)


@pytest.mark.parametrize("how", [swap, overwrite, overwrite_through_data, move_towards, scale])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@keeping
def test_rule_8_a_weight_written_from_outside_stays_where_it_was_put(
    strategy: str, dtype: torch.dtype, how: Callable[[nn.Parameter, Tensor], None]
) -> None:
    """An EMA swap: a stale second word or master would move the weights back."""
    if dtype not in STRATEGIES[strategy].dtypes:
        pytest.skip("does not store it")
    model = model_of(dtype)
    optimizer = CollageAdamW(model.parameters(), lr=1e-2, weight_decay=0.0, strategy=strategy)
    advance(model, optimizer, 1, 5)
    new = [torch.linspace(-2, 2, p.numel()).reshape(p.shape).to(dtype) for p in model.parameters()]
    for param, value in zip(model.parameters(), new, strict=True):
        how(param, value.clone())
    optimizer.param_groups[0]["lr"] = 0.0
    give_gradients(model, 6)
    with pytest.warns(UserWarning, match="changed outside the optimizer") as said:
        optimizer.step()
    assert len(said) == 1, "once, not once for each parameter"
    for param, value in zip(model.parameters(), new, strict=True):
        assert torch.equal(param, value)
        assert torch.equal(optimizer.stored_value(param), value.to(F32))
    optimizer.param_groups[0]["lr"] = 1e-2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        advance(model, optimizer, 7, 9)


@keeping
def test_rule_8_only_the_changed_parameter_starts_again(strategy: str) -> None:
    model = model_of()
    optimizer = CollageAdamW(model.parameters(), lr=1e-2, strategy=strategy)
    advance(model, optimizer, 1, 5)
    kept = {p: optimizer.stored_value(p) for p in model.parameters()}
    overwrite(model[2].weight, torch.zeros_like(model[2].weight))
    optimizer.param_groups[0]["lr"] = 0.0
    give_gradients(model, 6)
    with pytest.warns(UserWarning, match="changed outside"):
        optimizer.step()
    for param, value in kept.items():
        wanted = torch.zeros_like(value) if param is model[2].weight else value
        torch.testing.assert_close(optimizer.stored_value(param), wanted, rtol=2.0**-15, atol=0)


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name not in KEEPING])
def test_where_the_word_is_all_there_is_a_change_is_no_news(strategy: str) -> None:
    model = model_of()
    optimizer = CollageAdamW(model.parameters(), strategy=strategy)
    advance(model, optimizer, 1, 2)
    overwrite(model[0].weight, torch.ones_like(model[0].weight))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        advance(model, optimizer, 3, 3)


@keeping
def test_swapping_to_averages_and_back_costs_the_second_words_and_nothing_else(strategy: str) -> None:
    """Evaluation with averaged weights between two steps: the words are those of before, so nothing is stale."""
    model = model_of()
    optimizer = CollageAdamW(model.parameters(), lr=1e-2, strategy=strategy)
    other = model_of()
    undisturbed = CollageAdamW(other.parameters(), lr=1e-2, strategy=strategy)
    for step in range(1, 6):
        own = [p.detach().clone() for p in model.parameters()]
        for p in model.parameters():
            overwrite(p, torch.zeros_like(p))
        for p, word in zip(model.parameters(), own, strict=True):
            overwrite(p, word)
        advance(model, optimizer, step, step)
        advance(other, undisturbed, step, step)
    assert_equal(everything(model, optimizer), everything(other, undisturbed))


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_rule_8_averages_put_in_after_a_load_are_not_taken_back_by_the_master(dtype: torch.dtype) -> None:
    model = model_of(dtype)
    optimizer = CollageAdamW(model.parameters(), lr=1e-2, strategy="fp32-master")
    advance(model, optimizer, 1, 5)
    saved, weights = optimizer.state_dict(), [p.detach().clone() for p in model.parameters()]
    optimizer.load_state_dict(saved)
    for param, weight in zip(model.parameters(), weights, strict=True):
        overwrite(param, weight * 1.05)
    optimizer.param_groups[0]["lr"] = 0.0
    give_gradients(model, 6)
    with pytest.warns(UserWarning, match="changed outside"):
        optimizer.step()
    for param, weight in zip(model.parameters(), weights, strict=True):
        assert torch.equal(param, weight * 1.05)


def test_a_master_goes_on_beside_weights_of_another_storage_format() -> None:
    """Resumed in float16, the weights are a bfloat16's digits at first; the master still knows the rest."""
    model = model_of(BF16)
    optimizer = CollageAdamW(model.parameters(), lr=1e-2, strategy="fp32-master")
    advance(model, optimizer, 1, 5)
    other = model_of(F16)
    other.load_state_dict(model.state_dict())
    resumed = CollageAdamW(other.parameters(), strategy="fp32-master")
    resumed.load_state_dict(optimizer.state_dict())
    resumed.param_groups[0]["lr"] = 0.0
    give_gradients(other, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(q, optimizer.state[p]["master"].to(F16))


@keeping
def test_a_view_of_another_layout_put_in_its_place_is_stepped_in_its_place(strategy: str) -> None:
    """As `model.to(memory_format=…)` does it: the same values in another order, so nothing is stale."""
    w, turned = (nn.Parameter(torch.linspace(-1, 1, 600).reshape(20, 30).to(BF16)) for _ in range(2))
    one, two = CollageAdamW([w], strategy=strategy), CollageAdamW([turned], strategy=strategy)
    for step in range(4):
        if step == 2:
            turned.data = turned.detach().t().contiguous().t()
        grad = torch.randn(20, 30, generator=torch.Generator().manual_seed(step)).to(BF16)
        w.grad, turned.grad = grad, grad.clone()
        one.step()
        two.step()
    assert not turned.is_contiguous()
    assert torch.equal(w, turned)
    assert torch.equal(one.stored_value(w), two.stored_value(turned))


@every_strategy
def test_a_backward_pass_through_weights_of_before_the_step_is_noticed(strategy: str) -> None:
    """As after `torch.optim.AdamW`: silently it would mix the gradients of two weights."""
    model = model_of()
    optimizer = CollageAdamW(model.parameters(), strategy=strategy)
    loss = loss_of(model, 0)
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
