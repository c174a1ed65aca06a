"""CollageAdamW where `torch.optim.AdamW` was: groups, closures, schedules, hooks, frozen and tied parameters."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from simple import BF16, F16, F32, advance, assert_equal, bits, everything, give_gradients, model_of
from torch import Tensor, nn
from torch.optim import lr_scheduler

from roundoff.optim import STRATEGIES, CollageAdamW

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def test_groups_of_every_strategy_and_dtype_step_as_they_do_alone() -> None:
    kinds = [(plan.name, dtype) for plan in STRATEGIES.values() for dtype in (*plan.dtypes, F32)]

    def params() -> list[nn.Parameter]:
        return [
            nn.Parameter(torch.linspace(-2, 2, 70).to(dtype) * (number + 1))
            for number, (_, dtype) in enumerate(kinds)
        ]

    together, alone = params(), params()
    groups = [
        {"params": [p], "strategy": strategy, "lr": 1e-3 * (number + 1), "weight_decay": 0.01 * number}
        for number, (p, (strategy, _)) in enumerate(zip(together, kinds, strict=True))
    ]
    one = CollageAdamW(groups)
    # Stochastic rounding draws by a parameter's number, so each has as many before it as in the large one.
    many = [
        CollageAdamW(
            [
                *({"params": [nn.Parameter(torch.ones(1))]} for _ in range(number)),
                {**groups[number], "params": [q]},
            ]
        )
        for number, q in enumerate(alone)
    ]
    for step in range(4):
        for number, (p, q) in enumerate(zip(together, alone, strict=True)):
            p.grad = torch.randn(70, generator=torch.Generator().manual_seed(100 * step + number)).to(p.dtype)
            q.grad = p.grad.clone()
            many[number].step()
        one.step()
    for number, (p, q) in enumerate(zip(together, alone, strict=True)):
        assert torch.equal(bits(p), bits(q)), kinds[number]
        for name, word in one.state[p].items():
            assert torch.equal(bits(word), bits(many[number].state[q][name])), (kinds[number], name)


@every_strategy
def test_named_parameters_step_alike_and_keep_their_names(strategy: str) -> None:
    one, two = model_of(), model_of()
    named = CollageAdamW(one.named_parameters(), strategy=strategy)
    plain = CollageAdamW(two.parameters(), strategy=strategy)
    advance(one, named, 1, 3)
    advance(two, plain, 1, 3)
    assert_equal(everything(one, named), everything(two, plain))
    assert named.param_groups[0]["param_names"] == [name for name, _ in one.named_parameters()]


def test_a_closure_runs_with_gradients_and_its_loss_comes_back() -> None:
    model = model_of()
    optimizer = CollageAdamW(model.parameters())
    modes: list[bool] = []

    def closure() -> Tensor:
        modes.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = model(torch.ones(2, 6, dtype=BF16)).square().mean()
        loss.backward()
        return loss

    with torch.no_grad():
        loss = optimizer.step(closure)
        assert not torch.is_grad_enabled()
    assert modes == [True]
    assert loss.item() > 0
    assert {float(state["step"]) for state in optimizer.state.values()} == {1.0}


SCHEDULES = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "step": lambda o: lr_scheduler.StepLR(o, 3),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 1e-2, total_steps=12),  # moves β1 as well
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 1e-4, 1e-2, step_size_up=3, cycle_momentum=True),
    "warmup, then decay": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.ExponentialLR(o, 0.8)], [4]
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_move_numbers_and_tensors_alike_and_as_in_adamw(schedule: str) -> None:
    results, rates = [], []
    for made, lr in (
        (CollageAdamW, 1e-2),
        (CollageAdamW, torch.tensor(1e-2, dtype=torch.float64)),
        (torch.optim.AdamW, 1e-2),
    ):
        model = model_of(F32 if made is torch.optim.AdamW else BF16)
        optimizer = made(model.parameters(), lr=lr)
        scheduler = SCHEDULES[schedule](optimizer)
        rate = []
        for step in range(10):
            give_gradients(model, step)
            optimizer.step()
            scheduler.step()
            rate.append((float(optimizer.param_groups[0]["lr"]), optimizer.param_groups[0]["betas"]))
        rates.append(rate)
        results.append([p.detach().to(F32) for p in model.parameters()])
    for one, two in zip(results[0], results[1], strict=True):
        assert torch.equal(one, two)
    assert rates[0] == rates[1] == rates[2]
    assert len({rate for rate, _ in rates[0]}) > 1


@pytest.mark.parametrize("arithmetic", ["fp32", "storage"])
@every_strategy
def test_maximize_mirrors_minimize(strategy: str, arithmetic: str) -> None:
    if arithmetic == "storage" and not STRATEGIES[strategy].storage_arithmetic:
        pytest.skip("keeps float32")
    options = {"strategy": strategy, "arithmetic": arithmetic, "amsgrad": True}
    one, two = model_of(), model_of()
    up = CollageAdamW(one.parameters(), maximize=True, **options)
    down = CollageAdamW(two.parameters(), **options)
    for step in range(3):
        give_gradients(one, step)
        give_gradients(two, step, -1.0)
        up.step()
        down.step()
    assert_equal(everything(one, up), everything(two, down))


@every_strategy
def test_amsgrad_divides_by_the_largest_second_moment_kept_as_the_second_moment_is(strategy: str) -> None:
    plan = STRATEGIES[strategy]
    w = nn.Parameter(torch.ones(8, dtype=BF16))
    optimizer = CollageAdamW([w], lr=1e-3, betas=(0.0, 0.5), strategy=strategy, amsgrad=True)
    for grad in (4.0, 1.0, 1.0, 1.0):
        w.grad = torch.full((8,), grad, dtype=BF16)
        optimizer.step()
    state = optimizer.state[w]
    for tensor in plan.tensors():
        if tensor.name.startswith("exp_avg_sq"):
            assert state[f"max_{tensor.name}"].dtype == state[tensor.name].dtype
    assert state["max_exp_avg_sq"][0].item() == 8.0, "half of 4², the first step's"
    assert state["exp_avg_sq"][0].item() < 2.0


def test_sparse_gradients_are_refused_before_anything_has_changed() -> None:
    dense, sparse = nn.Parameter(torch.ones(4, dtype=BF16)), nn.Parameter(torch.ones(4, dtype=BF16))
    optimizer = CollageAdamW([dense, sparse])
    dense.grad, sparse.grad = torch.ones(4, dtype=BF16), torch.ones(4, dtype=BF16).to_sparse()
    with pytest.raises(RuntimeError, match=r"does not take sparse gradients.*sparse=False"):
        optimizer.step()
    assert not optimizer.state
    assert torch.equal(dense, torch.ones(4, dtype=BF16))
    sparse.grad = None
    optimizer.step()
    before = {name: bits(word) for name, word in optimizer.state[dense].items()}
    sparse.grad = torch.ones(4, dtype=BF16).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    assert_equal({name: bits(word) for name, word in optimizer.state[dense].items()}, before)
    assert sparse not in optimizer.state


@every_strategy
def test_frozen_and_unused_parameters_stay_and_have_no_state(strategy: str) -> None:
    model = model_of()
    model[1].requires_grad_(False)
    optimizer = CollageAdamW(model.parameters(), strategy=strategy, weight_decay=0.5)
    before = everything(model, optimizer)
    for _ in range(2):
        model[0](torch.ones(2, 6, dtype=BF16)).sum().backward()  # the last layer takes no part
        optimizer.step()
        optimizer.zero_grad()
    after = everything(model, optimizer)
    for name in ("1.weight", "1.bias", "2.weight", "2.bias"):
        assert torch.equal(after[name], before[name]), name
    assert not torch.equal(after["0.weight/exp_avg"], torch.zeros_like(after["0.weight/exp_avg"]))
    assert len(optimizer.state) == 2


@pytest.mark.parametrize("late", ["0.weight", "2.bias"], ids=["first", "last"])
def test_a_parameter_unfrozen_late_starts_its_own_count(late: str) -> None:
    """Each bias correction is that of the parameter's own count, whatever the others have counted."""
    model, apart = model_of(), model_of()
    optimizer = CollageAdamW(model.parameters(), lr=1e-2, strategy="exact")
    alone = {name: CollageAdamW([p], lr=1e-2, strategy="exact") for name, p in apart.named_parameters()}
    for step in range(9):
        give_gradients(model, step)
        give_gradients(apart, step)
        for name, own in alone.items():
            if step < 6 and name == late:
                dict(model.named_parameters())[name].grad = None
            else:
                own.step()
        optimizer.step()
    counts = {name: int(optimizer.state[p]["step"]) for name, p in model.named_parameters()}
    assert counts == {name: 3 if name == late else 9 for name in counts}
    for (name, p), q in zip(model.named_parameters(), apart.parameters(), strict=True):
        assert torch.equal(optimizer.stored_value(p), alone[name].stored_value(q)), name


@every_strategy
def test_tied_weights_step_once(strategy: str) -> None:
    model = nn.ModuleDict({"in": nn.Linear(4, 4, bias=False), "out": nn.Linear(4, 4, bias=False)}).to(BF16)
    model["out"].weight = model["in"].weight
    optimizer = CollageAdamW(model.parameters(), strategy=strategy)
    assert len(optimizer.param_groups[0]["params"]) == 1
    alone = nn.Parameter(model["in"].weight.detach().clone())
    other = CollageAdamW([alone], strategy=strategy)
    for step in range(3):
        give_gradients(model, step)
        alone.grad = model["in"].weight.grad.clone()
        optimizer.step()
        other.step()
    assert torch.equal(bits(model["out"].weight), bits(alone))
    assert optimizer.state[model["in"].weight]["step"] == 3
    with pytest.warns(UserWarning, match="duplicate parameters"):
        CollageAdamW([alone, alone])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(set_to_none: bool) -> None:
    model = model_of()
    optimizer = CollageAdamW(model.parameters())
    advance(model, optimizer, 1, 1)
    optimizer.zero_grad(set_to_none=set_to_none)
    for param in model.parameters():
        assert (param.grad is None) if set_to_none else not param.grad.any()


@every_strategy
@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["copy", "pickle"]
)
def test_copies_go_on_alike_and_apart(strategy: str, clone: Any) -> None:
    model = model_of()
    optimizer = CollageAdamW(model.parameters(), strategy=strategy, amsgrad=True, seed=3)
    advance(model, optimizer, 1, 3)
    other_model, other = clone((model, optimizer))
    assert_equal(everything(model, optimizer), everything(other_model, other))
    advance(model, optimizer, 4, 6)
    assert other.state[next(other_model.parameters())]["step"] == 3
    advance(other_model, other, 4, 6)
    assert_equal(everything(model, optimizer), everything(other_model, other))


@every_strategy
def test_a_group_added_while_stepping_starts_its_own_count(strategy: str) -> None:
    model = model_of()
    late = nn.Parameter(torch.ones(5, dtype=F16))
    optimizer = CollageAdamW(model.parameters(), strategy=strategy)
    advance(model, optimizer, 1, 3)
    optimizer.add_param_group({"params": [late], "strategy": "light", "lr": 0.1})
    late.grad = torch.ones(5, dtype=F16)
    advance(model, optimizer, 4, 5)
    assert optimizer.state[late]["step"] == 2
    assert set(optimizer.state[late]) == {"step", "exp_avg", "exp_avg_sq", "lo"}
    without = model_of()
    other = CollageAdamW(without.parameters(), strategy=strategy)
    advance(without, other, 1, 5)
    assert_equal(everything(model, optimizer), everything(without, other))


def test_clipping_before_the_step_is_what_the_step_sees() -> None:
    model, by_hand = model_of(), model_of()
    one, two = CollageAdamW(model.parameters()), CollageAdamW(by_hand.parameters())
    for step in range(3):
        give_gradients(model, step, 50.0)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        for p, q in zip(model.parameters(), by_hand.parameters(), strict=True):
            q.grad = p.grad.clone()
        one.step()
        two.step()
    assert_equal(everything(model, one), everything(by_hand, two))
