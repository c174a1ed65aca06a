"""CollageAdamW as an optimizer: conventions of torch.optim, options, bad input, checkpoints."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roundoff.metrics import BYTES_PER_PARAMETER, ROW
from roundoff.optim import STRATEGIES, CollageAdamW, full_precision_state_dict, to_low_precision

BF16 = torch.bfloat16


def model_of(dtype: torch.dtype = BF16, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8)).to(dtype)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        x = torch.randn(8, 16, generator=generator).to(dtype)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def bits(value: Any) -> Any:
    return value.view(torch.int16) if isinstance(value, Tensor) and value.dtype == BF16 else value


def assert_same_state(a: torch.optim.Optimizer, b: torch.optim.Optimizer) -> None:
    for p, q in zip(a.state, b.state, strict=True):
        assert a.state[p].keys() == b.state[q].keys()
        for name, value in a.state[p].items():
            assert value.dtype == b.state[q][name].dtype, name
            assert torch.equal(bits(value), bits(b.state[q][name])), name


def test_float32_follows_torch_adamw() -> None:
    ours, theirs = model_of(torch.float32), model_of(torch.float32)
    options = {"lr": 3e-3, "betas": (0.9, 0.99), "eps": 1e-7, "weight_decay": 0.1}
    train(ours, CollageAdamW(ours.parameters(), **options), 50)
    train(theirs, torch.optim.AdamW(theirs.parameters(), **options), 50)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=2e-5, atol=2e-6)


def test_a_float32_master_follows_torch_adamw_on_the_same_gradients() -> None:
    start = torch.randn(500, generator=torch.Generator().manual_seed(0)).to(BF16)
    ours = nn.Parameter(start.clone())
    theirs = nn.Parameter(start.to(torch.float32))
    mine = CollageAdamW([ours], lr=1e-3, weight_decay=0.1, strategy="fp32-master")
    reference = torch.optim.AdamW([theirs], lr=1e-3, weight_decay=0.1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(100):
        ours.grad = torch.randn(500, generator=generator).to(BF16)
        theirs.grad = ours.grad.to(torch.float32)
        mine.step()
        reference.step()
    torch.testing.assert_close(mine.state[ours]["master"], theirs.detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(ours, mine.state[ours]["master"].to(BF16))


def test_maximize_is_minimize_of_the_negated_gradient() -> None:
    w, x = (nn.Parameter(torch.linspace(-1, 1, 64).to(BF16)) for _ in range(2))
    up, down = CollageAdamW([w], maximize=True), CollageAdamW([x])
    for _ in range(5):
        w.grad = torch.linspace(-2, 1, 64).to(BF16)
        x.grad = -w.grad
        up.step()
        down.step()
    assert torch.equal(w, x)


def test_gradients_are_only_read() -> None:
    w = nn.Parameter(torch.randn(64).to(BF16))
    for options in ({"maximize": True}, {"weight_decay": 0.5}, {"arithmetic": "storage"}):
        grad = torch.randn(64).to(BF16)
        w.grad = grad.clone()
        CollageAdamW([w], **options).step()
        assert torch.equal(w.grad, grad)


def test_a_scheduler_and_a_tensor_lr_work() -> None:
    def final(lr: Any) -> Tensor:
        model = model_of()
        optimizer = CollageAdamW(model.named_parameters(), lr=lr)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 10)
        for seed in range(10):
            train(model, optimizer, 1, seed)
            scheduler.step()
        assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(1e-2)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(final(1e-2), final(torch.tensor(1e-2)))


def test_groups_may_differ_and_frozen_or_unused_parameters_stay() -> None:
    model = model_of()
    groups = [
        {"params": [model[0].weight], "strategy": "light", "lr": 1e-2},
        {"params": [model[1].weight, model[3].weight], "strategy": "fp32-master", "weight_decay": 0.0},
    ]
    optimizer = CollageAdamW(groups, lr=1e-3)
    model[3].weight.requires_grad_(False)
    frozen = model[3].weight.clone()
    train(model, optimizer, 3)
    assert set(optimizer.state[model[0].weight]) == {"step", "exp_avg", "exp_avg_sq", "lo"}
    assert set(optimizer.state[model[1].weight]) == {"step", "exp_avg", "exp_avg_sq", "master"}
    assert torch.equal(model[3].weight, frozen)
    assert model[3].weight not in optimizer.state


def test_a_closure_is_evaluated_with_gradients() -> None:
    model = model_of()
    optimizer = CollageAdamW(model.parameters())
    before = model[0].weight.detach().clone()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 16, dtype=BF16)).square().mean()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    assert not torch.equal(optimizer.stored_value(model[0].weight), before.to(torch.float32))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5, 7), (300, 301)], ids=str)
def test_any_shape_and_layout(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    start, grad = torch.randn(shape).to(BF16), torch.randn(shape).to(BF16)
    flat = nn.Parameter(start.clone())
    flat.grad = grad.clone()
    turned = nn.Parameter(start.clone().t() if len(shape) == 2 else start.clone())
    turned.grad = grad.clone().t() if len(shape) == 2 else grad.clone()
    one, two = CollageAdamW([flat], weight_decay=0.1), CollageAdamW([turned], weight_decay=0.1)
    for _ in range(3):
        one.step()
        two.step()
    for a, b in ((flat, turned), *zip(one.state[flat].values(), two.state[turned].values(), strict=True)):
        assert torch.equal(b.t() if len(shape) == 2 and b.dim() == 2 else b, a)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"strategy": "colage"},
            ValueError,
            r"unknown strategy 'colage'; choose one of 'none', 'light', 'plus'",
        ),
        ({"lr": -0.1}, ValueError, r"lr must be 0 or larger, got -0\.1"),
        ({"eps": float("nan")}, ValueError, "eps must be 0 or larger, got nan"),
        ({"weight_decay": -1.0}, ValueError, "weight_decay must be 0 or larger"),
        ({"betas": (0.9, 1.0)}, ValueError, r"betas\[1\] must be in \[0, 1\), got 1\.0"),
        ({"betas": (0.9,)}, ValueError, "betas must be two numbers"),
        ({"lr": torch.ones(2)}, ValueError, r"0-dim tensor, got shape \(2,\)"),
        ({"arithmetic": "fp64"}, ValueError, "unknown arithmetic 'fp64'"),
        ({"backend": "cuda"}, ValueError, "unknown backend 'cuda'"),
        (
            {"arithmetic": "storage", "strategy": "fp32-master"},
            ValueError,
            "no meaning for strategy 'fp32-master'",
        ),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        CollageAdamW([nn.Parameter(torch.ones(2, dtype=BF16))], **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.float8_e5m2fnuz], ids=str)
def test_a_dtype_that_no_strategy_supports_is_named(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"no strategy supports {dtype} parameters; use bfloat16"):
        CollageAdamW([nn.Parameter(torch.ones(2).to(dtype))])


def test_a_refused_group_leaves_the_optimizer_as_it_was() -> None:
    optimizer = CollageAdamW([nn.Parameter(torch.ones(2, dtype=BF16))])
    with pytest.raises(TypeError):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, dtype=torch.float64))]})
    assert len(optimizer.param_groups) == 1


def test_sparse_gradients_are_refused() -> None:
    embedding = nn.Embedding(4, 2, sparse=True, dtype=BF16)
    optimizer = CollageAdamW(embedding.parameters())
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse=False"):
        optimizer.step()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_save_load_and_ten_more_steps_equal_uninterrupted_ones(strategy: str) -> None:
    straight, resumed = model_of(), model_of()
    options = {"lr": 1e-3, "weight_decay": 0.1, "strategy": strategy}
    one, two = (CollageAdamW(m.named_parameters(), **options) for m in (straight, resumed))
    train(straight, one, 10)
    train(resumed, two, 10)
    file = io.BytesIO()
    torch.save({"model": resumed.state_dict(), "optimizer": two.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    fresh = model_of(seed=5)
    three = CollageAdamW(fresh.named_parameters(), **options)
    fresh.load_state_dict(saved["model"])
    three.load_state_dict(saved["optimizer"])
    assert_same_state(two, three)
    train(straight, one, 10, seed=2)
    train(fresh, three, 10, seed=2)
    assert_same_state(one, three)
    for p, q in zip(straight.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(bits(p.detach()), bits(q.detach()))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["copy", "pickle"]
)
def test_a_copy_goes_on_alike(strategy: str, clone: Any) -> None:
    model = model_of()
    optimizer = CollageAdamW(model.parameters(), strategy=strategy)
    train(model, optimizer, 3)
    other_model, other = clone((model, optimizer))
    train(model, optimizer, 3, seed=2)
    train(other_model, other, 3, seed=2)
    assert_same_state(optimizer, other)


def test_a_checkpoint_without_lo_warns_and_keeps_the_moments() -> None:
    model = model_of()
    optimizer = CollageAdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, 10)
    saved = optimizer.state_dict()
    for state in saved["state"].values():
        del state["lo"], state["exp_avg_sq_lo"]
    fresh = CollageAdamW(model.parameters(), lr=1e-3)
    with pytest.warns(UserWarning, match="the checkpoint holds no lo"):
        fresh.load_state_dict(saved)
    for param in model.parameters():
        assert not fresh.state[param]["lo"].any()
        for name in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(fresh.state[param][name], optimizer.state[param][name])
    train(model, fresh, 1)


def test_the_state_of_torch_adamw_loads_and_nothing_of_it_is_rounded_away() -> None:
    model = model_of(torch.float32)
    theirs = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train(model, theirs, 10)
    saved = theirs.state_dict()
    low = model_of().to(BF16)
    master = CollageAdamW(low.parameters(), strategy="fp32-master")
    with pytest.warns(UserWarning, match="holds no master"):
        master.load_state_dict(saved)
    plus = CollageAdamW(low.parameters(), strategy="plus")
    with pytest.warns(UserWarning, match="holds no lo"):
        plus.load_state_dict(saved)
    for p, q in zip(low.parameters(), model.parameters(), strict=True):
        v = theirs.state[q]["exp_avg_sq"]
        assert torch.equal(master.state[p]["exp_avg_sq"], v)
        pair = plus.state[p]["exp_avg_sq"].float() + plus.state[p]["exp_avg_sq_lo"].float()
        torch.testing.assert_close(pair, v, rtol=2.0**-16, atol=0)
        assert plus.state[p]["step"] == 10
    assert plus.param_groups[0]["strategy"] == "plus"
    assert plus.param_groups[0]["lr"] == 1e-3


def test_changing_the_strategy_at_a_resume_keeps_the_weight() -> None:
    model = model_of()
    exact = CollageAdamW(model.parameters(), strategy="fp32-master")
    train(model, exact, 20)
    plus = CollageAdamW(model.parameters(), strategy="plus")
    plus.load_state_dict(exact.state_dict())
    back = CollageAdamW(model.parameters(), strategy="fp32-master")
    back.load_state_dict(plus.state_dict())
    for param in model.parameters():
        pair = plus.stored_value(param)
        torch.testing.assert_close(pair, exact.stored_value(param), rtol=2.0**-16, atol=1e-38)
        assert torch.equal(back.stored_value(param), pair)


def test_an_integer_where_floats_belong_is_refused() -> None:
    model = model_of()
    optimizer = CollageAdamW(model.parameters())
    train(model, optimizer, 1)
    saved = optimizer.state_dict()
    saved["state"][0]["lo"] = saved["state"][0]["lo"].view(torch.int16)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(TypeError, match=r"'lo' was saved as torch.int16 where torch.bfloat16 belongs"):
        optimizer.load_state_dict(saved)
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            assert torch.equal(bits(value), bits(before["state"][index][name])), name
    with torch.no_grad():
        model[0].weight.fill_(2.0)
    with pytest.warns(UserWarning, match="changed outside"):  # what it watches for is kept as well
        train(model, optimizer, 1)


def test_what_a_pre_hook_makes_of_a_checkpoint_is_what_is_loaded() -> None:
    model = model_of()
    optimizer = CollageAdamW(model.parameters())
    train(model, optimizer, 1)

    def sevens(_: Any, saved: dict[str, Any]) -> dict[str, Any]:
        states = {
            index: {**state, "exp_avg": torch.full_like(state["exp_avg"], 7.0)}
            for index, state in saved["state"].items()
        }
        return {**saved, "state": states}

    optimizer.register_load_state_dict_pre_hook(sevens)
    optimizer.load_state_dict(optimizer.state_dict())
    assert all((state["exp_avg"] == 7.0).all() for state in optimizer.state.values())


def test_a_second_word_that_has_no_place_is_said_to_be_dropped() -> None:
    model = model_of()
    plus = CollageAdamW(model.parameters())
    train(model, plus, 1)
    none = CollageAdamW(model.parameters(), strategy="none")
    with pytest.warns(UserWarning, match="the checkpoint's lo has no place in this strategy"):
        none.load_state_dict(plus.state_dict())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_measured_bytes_per_parameter_are_the_tables(strategy: str) -> None:
    w = nn.Parameter(torch.ones(1000, dtype=BF16))
    w.grad = torch.ones(1000, dtype=BF16)
    optimizer = CollageAdamW([w], strategy=strategy)
    optimizer.step()
    kept = [t for name, t in optimizer.state[w].items() if name != "step"]
    measured = sum(t.untyped_storage().nbytes() for t in (w, w.grad, *kept)) / w.numel()
    assert measured == STRATEGIES[strategy].bytes_per_parameter
    assert measured == BYTES_PER_PARAMETER[strategy]


@pytest.mark.parametrize("arithmetic", ["fp32", "storage"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_measuring_changes_no_bit(strategy: str, arithmetic: str) -> None:
    if arithmetic == "storage" and not STRATEGIES[strategy].storage_arithmetic:
        return
    models, optimizers = [model_of(), model_of()], []
    for model, meters in zip(models, (None, {}), strict=True):
        optimizer = CollageAdamW(model.parameters(), strategy=strategy, arithmetic=arithmetic)
        optimizer.meters = meters
        train(model, optimizer, 3)
        optimizers.append(optimizer)
    assert_same_state(*optimizers)
    for p, q in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(bits(p.detach()), bits(q.detach()))
    assert {meter.row().numel() for meter in optimizers[1].meters.values()} == {len(ROW)}


def test_casting_seeds_lo_with_what_the_cast_drops() -> None:
    model = model_of(torch.float32)
    with torch.no_grad():
        model[1].weight.fill_(1.001)
    exact = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = CollageAdamW(model.named_parameters())
    dropped = to_low_precision(model, BF16, optimizer=optimizer, keep=["3.*"])
    assert model[1].weight.dtype == BF16
    assert model[3].weight.dtype == torch.float32
    assert optimizer.state[model[1].weight]["lo"][0].item() == torch.tensor(1.001 - 1.0).to(BF16).item()
    assert dropped["1.weight"] == pytest.approx(0.001 / 1.001, rel=1e-3)
    assert "3.weight" not in dropped
    for name, value in full_precision_state_dict(model, optimizer).items():
        torch.testing.assert_close(value, exact[name], rtol=2.0**-16, atol=0)


def test_casting_leaves_other_parameters_and_overflow_sane() -> None:
    model = model_of(torch.float32)
    model[0].requires_grad_(False)
    with torch.no_grad():
        model[3].bias[0] = 1e6
    optimizer = CollageAdamW([p for p in model.parameters() if p.requires_grad])
    to_low_precision(model, torch.float16, optimizer=optimizer)
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    assert optimizer.state[model[3].bias]["lo"].isfinite().all()
    with pytest.raises(ValueError, match="holds none of the model's parameters"):
        to_low_precision(model_of(torch.float32), BF16, optimizer=CollageAdamW(model.parameters()))


def test_exported_weights_do_not_follow_the_training() -> None:
    model = model_of(torch.float32)
    optimizer = CollageAdamW(model.parameters(), lr=1e-2)
    exported = full_precision_state_dict(model, optimizer)
    before = exported["0.weight"].clone()
    train(model, optimizer, 1)
    assert torch.equal(exported["0.weight"], before)


def test_casting_late_or_to_a_dtype_that_is_none_is_refused() -> None:
    model = model_of(torch.float32)
    optimizer = CollageAdamW(model.parameters())
    with pytest.raises(TypeError, match="bfloat16 or float16"):
        to_low_precision(model, torch.float64)
    train(model, optimizer, 1)
    with pytest.raises(ValueError, match="before the first step"):
        to_low_precision(model, BF16, optimizer=optimizer)
