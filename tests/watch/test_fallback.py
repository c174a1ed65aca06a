"""Where a step cannot be replayed, what is seen is measured, and nothing else is claimed."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import LBFGS, SGD, AdamW, Optimizer, SparseAdam
from trainings import BF16, Collected, model_of, train

import roundoff
from roundoff import metrics
from roundoff.metrics import HEADROOM_BINS, HEADROOM_LOW, ROW
from roundoff.watch.fallback import Turns, measure_visible
from roundoff.watch.shadow import Shadow
from roundoff.watch.statistics import Meter


def rows_of(sink: Collected, sample: int = -1) -> list[dict[str, float]]:
    return [dict(zip(ROW, row, strict=True)) for row in sink.samples[sample].sums.tolist()]


class AtRandom(Optimizer):
    """SGD that rounds at random, all tensors at once, so that one tensor alone draws other numbers."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            noise = torch.rand(sum(p.numel() for p in group["params"]), dtype=torch.float64)
            if sum(p.numel() for p in group["params"]) > 4096:
                noise = noise.flip(0)
            for p in group["params"]:
                mine, noise = noise[: p.numel()].reshape(p.shape), noise[p.numel() :]
                whole = p.double() - group["lr"] * p.grad.double()
                if p.dtype != BF16:
                    p.copy_(whole)
                    continue
                step = roundoff.numerics.ulp(p)
                p.copy_((torch.floor(whole / step + mine) * step).to(BF16))


def test_rounding_at_random_is_measured_by_its_outcome() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)).to(BF16)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1.5)
    optimizer, sink = AtRandom(model.parameters(), lr=2.0**-10), Collected()
    watch = roundoff.watch(model, optimizer, every=1, sink=sink)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
    assert isinstance(watch._shadow, Shadow)
    assert {watch._shadow.mode(p) for p in model.parameters()} == {"compare"}
    assert [sample.step for sample in sink.samples] == [1, 2]
    for row, old, p in zip(rows_of(sink), before, model.parameters(), strict=True):
        moved = int((p != old).sum())
        assert row["attempted"] == 4096
        assert row["attempted"] - row["lost"] == moved
        assert row["sum_uu"] == pytest.approx(4096 * 2.0**-20)
        assert row["sum_ua"] == pytest.approx(moved * 2.0**-7 * 2.0**-10)
        assert 400 < moved < 630  # an eighth of them, on average


def test_what_cannot_be_kept_this_time_has_its_turn_next_time() -> None:
    turns = Turns(budget=100)
    seen = []
    for _ in range(4):
        turns.begin()
        seen.append([who for who in "abcd" if turns.takes(who, 40)])
    assert seen == [["a", "b"], ["c", "d"], ["a", "b"], ["c", "d"]]
    turns.begin()
    assert turns.takes("as large as it is", 1000)
    assert not turns.takes("a", 40)


def test_layers_take_turns_within_the_budget() -> None:
    model = nn.ParameterDict({name: nn.Parameter(torch.ones(100, dtype=BF16)) for name in "abcd"})
    optimizer = SGD(model.parameters(), lr=0.5)
    shadow = Shadow(optimizer, {p: name for name, p in model.items()}, lambda said: None, keep=400)
    served = []
    for _ in range(3):
        for p in model.values():
            p.grad = torch.ones_like(p)
        shadow.before((optimizer, lambda: 0.0), {})
        assert shadow.stepping == set(model.values())
        optimizer.step()
        meters = shadow.after()
        served.append([name for name, p in model.items() if p in meters])
    assert served == [["a", "b"], ["c", "d"], ["a", "b"]]


def test_lbfgs_is_watched_by_what_is_seen_and_trains_the_same() -> None:
    weights = []
    for watched in (False, True):
        model = model_of(torch.float32)
        optimizer, sink = LBFGS(model.parameters(), lr=0.1, max_iter=3), Collected()
        if watched:
            watch = roundoff.watch(model, optimizer, every=1, sink=sink)
        x = torch.randn(8, 16)

        def closure(model: nn.Module = model, optimizer: Optimizer = optimizer, x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = model.eval()(x).square().mean()
            loss.backward()
            return loss

        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(3):
                old = [p.detach().clone() for p in model.parameters()]
                optimizer.step(closure)
        weights.append([p.detach().clone() for p in model.parameters()])
    assert [str(one.message) for one in said] == [
        "roundoff: only the visible change of all layers is measured: a step with a closure computes its gradients "
        "inside, so it cannot be replayed"
    ]
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    assert {watch._shadow.mode(p) for p in model.parameters()} == {
        "replay"
    }  # another step may be without one
    for row, before, p in zip(rows_of(sink), old, model.parameters(), strict=True):
        s = p.detach().double() - before.double()
        assert row["sum_ss"] == pytest.approx(float(s.square().sum()))
        assert row["unchanged"] == int((s == 0).sum())
        assert row["attempted"] == row["lost"] == row["sum_uu"] == 0


def test_sparse_gradients_are_seen_only() -> None:
    model = nn.Embedding(10, 4, sparse=True)
    optimizer, sink = SparseAdam(model.parameters(), lr=0.1), Collected()
    roundoff.watch(model, optimizer, every=1, sink=sink)
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.warns(UserWarning, match=r"only dense gradients are replayed"):
        optimizer.step()
    row = rows_of(sink)[0]
    assert (row["numel"], row["unchanged"], row["attempted"]) == (40, 32, 0)


def test_float64_weights_are_seen_only_and_complex_ones_left_out() -> None:
    model = nn.ParameterDict(
        {"wide": nn.Parameter(torch.ones(4).double()), "complex": nn.Parameter(torch.ones(4) + 1j)}
    )
    optimizer, sink = SGD(model.parameters(), lr=0.5), Collected()
    roundoff.watch(model, optimizer, every=1, sink=sink)
    for p in model.values():
        p.grad = torch.ones_like(p)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        optimizer.step()
    texts = " ".join(str(one.message) for one in said)
    assert "complex is left out" in texts
    assert "wide is measured: only float32 and narrower weights" in texts
    assert len(sink.samples[0].layers) == 1
    assert rows_of(sink)[0]["sum_ss"] == 1.0


class Stubborn(SGD):
    """Computes in float32 whatever it is given."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(p.float() - group["lr"] * p.grad.float())


def test_float32_weights_whose_optimizer_knows_nothing_wider_are_seen_only() -> None:
    for dtype, attempted in ((torch.float32, 0), (BF16, 64)):
        model = nn.Linear(8, 8, bias=False).to(dtype)
        optimizer, sink = Stubborn(model.parameters(), lr=1e-3), Collected()
        roundoff.watch(model, optimizer, every=1, sink=sink)
        model.weight.grad = torch.randn(8, 8).to(dtype)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            optimizer.step()
        assert [("float32 whatever" in str(one.message)) for one in said] == [True] * (attempted == 0)
        assert rows_of(sink)[0]["attempted"] == attempted


class Refusing(SGD):
    """Takes no float64, and says so."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.dtype == torch.float64:
                    raise TypeError("no float64 here")
                p.add_(p.grad, alpha=-group["lr"])


class Misreading(SGD):
    """Does nothing to float64, and does not say so, as compiled code may."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.dtype != torch.float64:
                    p.add_(p.grad, alpha=-group["lr"])


class Pretending(SGD):
    """Does ten times as much to wide numbers."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"] * (10.0 if p.dtype == torch.float64 else 1.0))


@pytest.mark.parametrize("make", [Refusing, Misreading, Pretending])
def test_float32_does_where_float64_does_not(make: type[SGD]) -> None:
    model = nn.Linear(16, 16, bias=False).to(BF16)
    with torch.no_grad():
        model.weight.uniform_(-0.1, 0.1)
    optimizer, sink = make(model.parameters(), lr=2.0**-6), Collected()
    watch = roundoff.watch(model, optimizer, every=1, sink=sink)
    for _ in range(2):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.step()
    assert watch._shadow is not None
    because = "TypeError: no float64 here" if make is Refusing else "in float64 it does something else"
    assert watch._shadow.float32_because == because
    for sample in range(2):
        assert rows_of(sink, sample)[0]["sum_uu"] == pytest.approx(256 * 2.0**-12, rel=1e-5)


class Hoarding(SGD):
    """Keeps copies of everything in a list of its own."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.copies = [torch.zeros(1 << 20) for _ in range(4)]


def test_what_would_have_to_be_copied_for_each_tensor_is_refused() -> None:
    model = model_of()
    optimizer = Hoarding(model.parameters())
    roundoff.watch(model, optimizer, every=1, sink=Collected())
    with pytest.warns(UserWarning, match="keeps 16,777,216 bytes of tensors outside of its state"):
        train(model, optimizer, 1)


@pytest.mark.skipif(find_spec("pytorch_optimizer") is None, reason="pytorch-optimizer is not installed")
def test_prodigy_steps_all_together_and_this_is_said() -> None:
    from pytorch_optimizer import Prodigy

    model = model_of()
    optimizer, sink = Prodigy(model.parameters()), Collected()
    roundoff.watch(model, optimizer, every=1, sink=sink)
    with pytest.warns(
        UserWarning, match=r"all layers is measured: all of its parameters are stepped together \(by d"
    ):
        train(model, optimizer, 3)
    assert {row["attempted"] for sample in range(len(sink.samples)) for row in rows_of(sink, sample)} == {0}


@pytest.mark.parametrize("infinite", [False, True])
def test_a_loss_scaler_inside_the_step(infinite: bool) -> None:
    """pytorch 127176: a skipped step is counted as skipped, with nothing lost; another is measured unscaled."""
    torch.manual_seed(0)
    model = nn.Linear(16, 16, bias=False).to(BF16)
    optimizer, sink = AdamW(model.parameters(), lr=1e-4, fused=True), Collected()
    roundoff.watch(model, optimizer, every=1, sink=sink)
    scaler = GradScaler("cpu", init_scale=1024.0)
    grad = torch.randn(16, 16).to(BF16)
    for step in range(2):
        model.weight.grad = grad * 1024
        if infinite and step == 1:
            model.weight.grad[0, 0] = torch.inf
        before = model.weight.detach().clone()
        scaler.scale(torch.zeros(()))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    row = rows_of(sink)[0]
    if infinite:
        assert torch.equal(before, model.weight)
        assert {name: value for name, value in row.items() if value} == {
            "numel": 256, "skipped": 1, "frozen": row["frozen"], "frozen_of": 32,
        }  # fmt: skip
        return
    assert row["skipped"] == 0
    assert row["attempted"] == 256
    assert row["sum_uu"] == pytest.approx(256 * 1e-8, rel=0.05)
    assert row["v_attempted"] > 200
    assert row["lost"] < 256


def test_a_plain_scaler_skips_without_a_step_and_nothing_is_recorded() -> None:
    model = nn.Linear(4, 4, bias=False).to(BF16)
    optimizer, sink = SGD(model.parameters(), lr=1e-3), Collected()
    watch = roundoff.watch(model, optimizer, every=1, sink=sink)
    scaler = GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.zeros(()))
    model.weight.grad = torch.full_like(model.weight, torch.inf)
    scaler.step(optimizer)
    scaler.update()
    assert watch.step == 0
    assert not sink.samples


def test_the_visible_change_says_where_steps_of_that_size_would_fall() -> None:
    before = torch.tensor([1.0, 1.0, 4.0, 0.25, torch.nan]).to(BF16)
    after = torch.tensor([1.0078125, 1.0, 4.0, 0.25, torch.nan]).to(BF16)
    meter = Meter(before.device)
    measure_visible(meter, before, after)
    sums = meter.sums()
    assert (sums.numel, sums.nonfinite, sums.unchanged, sums.attempted) == (5, 1, 3, 0)
    assert (sums.sum_ss, sums.sum_ww) == (2.0**-14, 1 + 1 + 16 + 2.0**-4)
    # √(2⁻¹⁴/4) = 2⁻⁸ beside spacings of 2⁻⁷, 2⁻⁷, 2⁻⁵ and 2⁻⁹
    assert {k + HEADROOM_LOW: n for k, n in enumerate(sums.headroom) if n} == {-1: 2, -3: 1, 1: 1}
    assert sums.headroom_energy == (0.0,) * HEADROOM_BINS
    assert float(meter.row()[ROW.index("expected_roundings")]) == 0.0
    assert metrics.lost_fraction(sums) is None
    assert metrics.descent_efficiency(sums) is None


def test_nothing_is_left_after_a_step_that_failed() -> None:
    class Failing(SGD):
        def step(self, closure: Any = None) -> None:
            raise RuntimeError("out of memory")

    model = model_of()
    optimizer = Failing(model.parameters(), lr=0.1)
    sink = Collected()
    watch = roundoff.watch(model, optimizer, every=1, sink=sink)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.warns(UserWarning, match="cannot be taken on a copy"), pytest.raises(RuntimeError):
        optimizer.step()
    watch.detach()
    assert watch._shadow is None
