"""float8 weights in use: gradients, checkpoints, bytes, seeds, a watch, and a clear word on what does not hold."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from float8_weights import E4M3, E5M2, PLANS, every_plan, needs_grad_dtype, weights
from simple import assert_equal, bits
from torch import Tensor, nn

import roundoff
from roundoff.kernels import BACKENDS, unavailable
from roundoff.metrics import cure
from roundoff.optim import (
    EXPERIMENTAL,
    STRATEGIES,
    CollageAdamW,
    full_precision_state_dict,
    to_low_precision,
    widened,
)
from roundoff.optim.strategies import FLOAT8_DTYPES

BF16, F32 = torch.bfloat16, torch.float32
pytestmark = needs_grad_dtype


class Float8Model(nn.Module):
    """Two layers whose weights are stored in 8 bit and read as float32, and a norm in bfloat16."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first = weights(torch.randn(24, 16, generator=generator) / 4, dtype)
        self.second = weights(torch.randn(8, 24, generator=generator) / 4, dtype)
        self.norm = nn.Parameter(torch.ones(24, dtype=BF16))

    def forward(self, x: Tensor) -> Tensor:
        first, second = widened(self.first, F32), widened(self.second, F32)
        return torch.tanh(x @ first.T * widened(self.norm, F32)) @ second.T


class Training:
    """A model, its optimizer; the data of a step follow from its number."""

    def __init__(self, strategy: str, dtype: torch.dtype, **options: Any) -> None:
        self.model = Float8Model(dtype)
        groups = [
            {"params": [self.model.first, self.model.second]},
            {"params": [self.model.norm], "strategy": "plus"},
        ]
        options = {"lr": 3e-3, "weight_decay": 0.1, "strategy": strategy, **options}
        self.optimizer = CollageAdamW(groups, **options)

    def advance(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
            self.optimizer.zero_grad()
            for half in x.chunk(2):  # gradients add up over two backward passes
                (self.model(half) - 1).square().mean().backward()
            self.optimizer.step()

    def everything(self) -> dict[str, Tensor]:
        kept: dict[str, Tensor] = {}
        for name, param in self.model.named_parameters():
            kept[name] = bits(param)
            kept |= {f"{name}/{key}": bits(value) for key, value in self.optimizer.state[param].items()}
        return kept


@every_plan
@pytest.mark.parametrize("amsgrad", [False, True])
def test_a_resumed_run_goes_on_bit_for_bit(strategy: str, dtype: torch.dtype, amsgrad: bool) -> None:
    one = Training(strategy, dtype, amsgrad=amsgrad)
    one.advance(1, 12)
    file = io.BytesIO()
    torch.save({"model": one.model.state_dict(), "optimizer": one.optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    two = Training(strategy, dtype, amsgrad=amsgrad)
    two.model.load_state_dict(saved["model"])
    two.optimizer.load_state_dict(saved["optimizer"])
    assert_equal(one.everything(), two.everything())
    for training in (one, two):
        training.advance(13, 22)
    assert_equal(one.everything(), two.everything())
    assert not torch.equal(bits(one.model.first), bits(Training(strategy, dtype).model.first))


@every_plan
def test_what_is_kept_and_its_bytes_are_those_of_the_table(strategy: str, dtype: torch.dtype) -> None:
    plan, n = PLANS[strategy], 1000
    w = weights(torch.ones(n), dtype)
    optimizer = CollageAdamW([w], strategy=strategy)
    w.grad = torch.ones(n, dtype=BF16)
    optimizer.step()
    state = {name: value for name, value in optimizer.state[w].items() if name != "step"}
    assert {name: value.dtype for name, value in state.items()} == {
        tensor.name: tensor.dtype_for(dtype) for tensor in plan.state
    }
    kept = sum(one.untyped_storage().nbytes() for one in (w, w.grad, *state.values()))
    assert kept == n * plan.bytes_for(dtype)
    assert plan.bytes_for(dtype) == {"none": 7, "light": 8, "plus": 10, "light-3": 9, "plus-3": 11}[strategy]


def test_the_bytes_of_sixteen_bits_are_what_they_were() -> None:
    for plan in STRATEGIES.values():
        assert {plan.bytes_for(dtype) for dtype in plan.dtypes} == {plan.bytes_per_parameter}
    assert {name: plan.bytes_per_parameter for name, plan in EXPERIMENTAL.items()} == {
        "light-3": 9,
        "plus-3": 11,
    }


@pytest.mark.parametrize("dtype", FLOAT8_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("source", "target"), [("light", "plus-3"), ("plus-3", "light"), ("light-3", "none")]
)
def test_a_checkpoint_of_another_number_of_words(source: str, target: str, dtype: torch.dtype) -> None:
    before, after = Training(source, dtype), Training(target, dtype)
    before.advance(1, 9)
    after.model.load_state_dict(before.model.state_dict())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        after.optimizer.load_state_dict(before.optimizer.state_dict())
    assert bool(said) == (target == "none"), "what has no place is named"
    state, words = before.optimizer.state[before.model.first], after.optimizer.state[after.model.first]
    if target == "none":
        assert "lo" not in words
        return
    lower = state["lo"].double() + (state["lo2"].double() if "lo2" in state else 0.0)
    kept = words["lo"].double() + (words["lo2"].double() if "lo2" in words else 0.0)
    if "lo2" in words:
        assert torch.equal(kept, lower)
    else:
        assert torch.equal(kept, roundoff.numerics.round_to(lower, dtype).double())
    after.advance(10, 11)


def test_a_checkpoint_of_a_master_in_bfloat16_fills_three_words() -> None:
    w = nn.Parameter(torch.linspace(-2, 2, 50).to(BF16))
    master = CollageAdamW([w], lr=1e-3, strategy="fp32-master")
    for _ in range(5):
        w.grad = torch.ones(50, dtype=BF16)
        master.step()
    v = weights(w.detach().float(), E5M2)
    three = CollageAdamW([v], lr=1e-3, strategy="light-3")
    three.load_state_dict(master.state_dict())
    left = (three.stored_value(v).detach() - master.stored_value(w).detach()).abs()
    assert left.max() <= 2.0**-11  # 11 bits at 1
    assert three.state[v]["lo2"].dtype == E5M2


@every_plan
def test_seeds_and_exports_hold_what_the_words_can(strategy: str, dtype: torch.dtype) -> None:
    exact = torch.linspace(1.0, 2.0, 100)[:-1]
    w = weights(exact, dtype)
    optimizer = CollageAdamW([w], strategy=strategy)
    optimizer.seed(w, exact)
    words = roundoff.numerics.expand(exact, dtype, 1 + len({"lo", "lo2"} & set(optimizer.state[w])))
    expected = sum((word.double() for word in words), torch.zeros(()))
    assert torch.equal(optimizer.stored_value(w).detach().double(), expected)
    model = nn.Module()
    model.w = w
    assert torch.equal(full_precision_state_dict(model, optimizer)["w"].detach().double(), expected)
    optimizer.resync()
    assert torch.equal(optimizer.stored_value(w).detach(), w.detach().float())


def test_a_weight_changed_from_outside_drops_its_lower_words() -> None:
    training = Training("light-3", E5M2)
    training.advance(1, 5)
    w = training.model.first
    assert training.optimizer.state[w]["lo2"].float().any()
    with torch.no_grad():
        w.copy_(torch.zeros(w.shape))
    with pytest.warns(UserWarning, match="changed outside the optimizer"):
        training.advance(6, 6)
    assert training.optimizer.stored_value(w).abs().max() < 2 * 3e-3


def test_steps_that_a_loss_scaler_skips_change_nothing() -> None:
    w = weights(torch.ones(10), E5M2)
    optimizer = CollageAdamW([w], strategy="plus-3")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    kept: dict[str, Tensor] = {}
    for size in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((widened(w, F32) * size).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        now = {"w": bits(w), **{name: bits(value) for name, value in optimizer.state[w].items()}}
        assert all(torch.equal(now[name], kept[name]) for name in kept) == (size != 1.0 or not kept)
        kept = now
    found = torch.ones(())
    for value, same in ((1.0, True), (0.0, False)):
        optimizer.found_inf = found * value  # as a GPU leaves it
        optimizer.step()
        assert torch.equal(bits(w), kept["w"]) or not same
    assert optimizer.state[w]["step"] == 3


def test_autograd_adds_up_in_the_dtype_asked_for() -> None:
    for gradient in (BF16, F32):
        w = weights(torch.ones(4), E4M3, gradient)
        for _ in range(3):
            (widened(w) * 2.0**-12).sum().backward()
        assert w.grad is not None
        assert w.grad.dtype == gradient
        assert w.grad.tolist() == [3 * 2.0**-12] * 4
        assert widened(w).dtype == widened(nn.Parameter(torch.ones(1))).dtype == BF16


def test_autograd_alone_casts_gradients_to_eight_bits() -> None:
    w = weights(torch.ones(4), E4M3)
    (w.to(BF16) * 2.0**-12).sum().backward()
    assert w.grad is not None
    assert w.grad.dtype == BF16
    assert not w.grad.any(), "on the way it was float8"
    plain = nn.Parameter(torch.ones(4).to(E4M3))
    (plain.to(BF16) * 2.0).sum().backward()
    assert plain.grad is not None
    assert plain.grad.dtype == E4M3
    with pytest.raises(NotImplementedError):
        (plain.to(BF16) * 2.0).sum().backward()
    with pytest.raises(RuntimeError, match="grad_dtype"):
        plain.grad = torch.ones(4, dtype=BF16)
    with pytest.raises(TypeError, match=r"rounded to 8 bit; set param\.grad_dtype = torch\.bfloat16"):
        widened(plain)


def test_without_grad_dtype_the_error_says_so() -> None:
    class Older:
        dtype, is_leaf = E4M3, True

    with pytest.raises(TypeError, match=r"takes a PyTorch that has Tensor\.grad_dtype"):
        widened(Older())  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", FLOAT8_DTYPES, ids=str)
def test_a_gradient_of_eight_bits_is_refused(dtype: torch.dtype) -> None:
    w, v = nn.Parameter(torch.ones(4).to(dtype)), weights(torch.ones(4), dtype)
    optimizer = CollageAdamW([v, w])
    v.grad = torch.ones(4, dtype=BF16)
    w.grad = torch.ones(4).to(dtype)
    with pytest.raises(TypeError, match=rf"gradient .* is {dtype}.*set param\.grad_dtype = torch\.bfloat16"):
        optimizer.step()
    assert not optimizer.state, "nothing has changed"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"strategy": "exact"}, TypeError, "stores torch.bfloat16, not torch.float8_e4m3fn.*'light-3'"),
        ({"strategy": "kahan"}, TypeError, "choose one of 'none', 'light', 'plus', 'light-3', 'plus-3'"),
        ({"strategy": "stochastic"}, TypeError, "not torch.float8_e4m3fn"),
        ({"strategy": "fp32-master"}, TypeError, "not torch.float8_e4m3fn"),
        ({"arithmetic": "storage"}, ValueError, "'storage' has no meaning for torch.float8_e4m3fn .*'fp32'"),
        ({"strategy": "light-4"}, ValueError, "unknown strategy 'light-4'.*'plus-3'"),
    ],
)
def test_what_does_not_hold_in_eight_bits_is_named(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        CollageAdamW([weights(torch.ones(2), E4M3)], **options)


def test_three_words_are_for_eight_bits() -> None:
    with pytest.raises(TypeError, match=r"'light-3' stores torch\.float8_e4m3fn, .*, not torch\.bfl"):
        CollageAdamW([nn.Parameter(torch.ones(2, dtype=BF16))], strategy="light-3")
    CollageAdamW([nn.Parameter(torch.ones(2))], strategy="light-3")


@pytest.mark.parametrize("backend", [name for name in BACKENDS if unavailable(name) is None])
def test_the_reference_alone_steps_them(backend: str) -> None:
    if backend == "reference":
        CollageAdamW([weights(torch.ones(2), E4M3)], backend=backend)
        return
    with pytest.raises(TypeError, match=f"backend '{backend}' does not step .*backend='auto' or 'reference'"):
        CollageAdamW([weights(torch.ones(2), E4M3)], backend=backend)
    both = [Training("plus-3", E5M2, backend=name) for name in ("auto", "reference")]
    for training in both:
        training.advance(1, 3)
    assert_equal(both[0].everything(), both[1].everything())


@every_plan
def test_the_canary_sees_words_that_were_dropped(
    strategy: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    CollageAdamW([weights(torch.ones(2), dtype)], strategy=strategy)
    real = roundoff.numerics.add_to_expansion

    def without_the_last(words: tuple[Tensor, ...], u: Tensor) -> tuple[Tensor, ...]:
        *kept, last = real(words, u)
        return (*kept, torch.zeros_like(last))

    monkeypatch.setattr("roundoff.kernels.reference.add_to_expansion", without_the_last)
    monkeypatch.setattr(
        "roundoff.kernels.reference.add_to_pair", lambda hi, lo, u: without_the_last((hi, lo), u)
    )
    if strategy == "none":
        CollageAdamW([weights(torch.ones(2), dtype)], strategy=strategy)
        return
    with pytest.raises(RuntimeError, match=f"second word of w in {dtype}"):
        CollageAdamW([weights(torch.ones(2), dtype)], strategy=strategy)


def test_a_cast_of_a_whole_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"to_low_precision casts to bfloat16.*seed \(docs/float8\.md\)"):
        to_low_precision(nn.Linear(2, 2), E4M3)


def test_a_watch_measures_them_and_names_a_cure() -> None:
    training = Training("light", E4M3, lr=1e-4)
    watch = roundoff.watch(training.model, training.optimizer, every=1)
    training.advance(1, 12)
    strategies = {layer.name: layer.strategy for layer in watch.layers}
    assert strategies == {"first": "float8-light", "second": "float8-light", "norm": "plus"}
    advice = cure([*strategies.values(), "float32"])
    assert advice is not None
    assert "torch.bfloat16" in advice.code
    assert "12 bytes per parameter" in advice.price
    watch.detach()
