"""What is said before the first step, against what then happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import roundoff
from roundoff.cli import application
from roundoff.optim import STRATEGIES
from roundoff.watch.preflight_checks import (
    PASS,
    Settings,
    Warned,
    predicted_lost,
    preflight,
    preflight_settings,
)

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)


def kinds(found: list[Warned]) -> set[str]:
    return {one.kind for one in found}


def says(settings: Settings) -> dict[str, Warned]:
    return {one.kind: one for one in preflight_settings(settings)}


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("lr", [1.3e-5, 1e-4, 3e-4, 1e-3, 0.011])
def test_predicted_lost_is_what_a_step_of_lr_loses(dtype: torch.dtype, lr: float) -> None:
    weights = (torch.randn(20_000, generator=torch.Generator().manual_seed(1)) * 0.05).to(dtype)
    weights[:100] = 1.0
    lost, numel = predicted_lost([weights], Settings(dtype, lr))
    stepped = (weights.float() + weights.float().sign() * lr).to(dtype)
    assert (lost, numel) == (int((stepped == weights).sum()), 20_000)
    assert lost > 0 or lr > 0.01 or (dtype == F16 and lr > 5e-4)


def test_predicted_lost_adds_tensors_and_pieces_up(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.randn(1000)
    whole = predicted_lost([weights], Settings(BF16, 1e-3))
    monkeypatch.setattr("roundoff.watch.preflight_checks.PASS", 7)
    assert predicted_lost([weights[:300].reshape(3, 100), weights[300:]], Settings(BF16, 1e-3)) == whole
    assert PASS > 7


def test_what_keeps_more_loses_less() -> None:
    weights = [torch.ones(10), torch.full((10,), 0.02)]
    lost = {name: predicted_lost(weights, Settings(BF16, 1e-6, strategy=name))[0] for name in STRATEGIES}
    assert (
        lost
        == {
            "none": 20,
            "stochastic": 0,
            "light": 10,  # two words are not float32: at 1 such steps are lost once lo has grown (numerics §3, rule 9)
            "plus": 10,
            "kahan": 10,
            "exact": 0,
            "fp32-state": 20,
            "fp32-master": 0,
        }
    )


def test_everything_is_lost_below_the_smallest_number() -> None:
    assert predicted_lost([torch.zeros(5)], Settings(F16, 2.0**-26)) == (5, 5)
    assert predicted_lost([torch.zeros(5)], Settings(F16, 2.0**-24)) == (0, 5)


def test_beta2_that_rounds_to_one() -> None:
    """Optimisers.jl 215, keras 21238: the finding names the rounded value."""
    found = says(Settings(BF16, 1e-3, betas=(0.9, 0.999)))["second-moment"]
    assert "β2 = 0.999 is 1 in bfloat16" in found.why
    assert torch.tensor(0.999, dtype=BF16) == 1
    v = torch.ones((), dtype=BF16)
    assert v * 0.999 == v


@pytest.mark.parametrize(
    ("dtype", "beta2", "strategy", "state", "expected"),
    [
        (BF16, 0.95, "AdamW", None, False),
        (BF16, 0.99, "AdamW", None, False),
        (BF16, 0.997, "AdamW", None, False),  # sticks for some v, not for all
        (BF16, 0.999, "AdamW", F32, False),
        (BF16, 0.999, "light", None, True),
        (BF16, 0.999, "plus", None, False),
        (BF16, 0.999, "exact", None, False),
        (BF16, 0.999, "fp32-state", None, False),
        (F16, 0.999, "AdamW", None, False),
        (F16, 0.9999, "AdamW", None, True),
        (F32, 0.999, "AdamW", None, False),
    ],
)
def test_a_second_moment_that_sticks(
    dtype: torch.dtype, beta2: float, strategy: str, state: torch.dtype | None, expected: bool
) -> None:
    found = says(Settings(dtype, 1e-3, (0.9, beta2), strategy=strategy, state=state))
    assert ("second-moment" in found) is expected
    if expected:
        grid = torch.linspace(1, 2, 2000).to(dtype)
        assert (grid * beta2 == grid).all()


@pytest.mark.parametrize(("dtype", "limit"), [(BF16, 2.0**-9), (F16, 2.0**-12)])
def test_decay_that_does_nothing(dtype: torch.dtype, limit: float) -> None:
    for rate, nothing in ((limit, True), (limit * 1.01, False)):
        found = says(Settings(dtype, rate / 0.1, weight_decay=0.1))
        assert ("decay" in found) is nothing
        assert ((torch.tensor(1 - rate, dtype=torch.float64).to(dtype) == 1).item()) is nothing
    assert "decay" not in says(Settings(dtype, 1e-3, weight_decay=0.0))
    assert "decay" not in says(Settings(dtype, 1e-3, weight_decay=0.1, strategy="light"))


def test_eps_that_is_zero() -> None:
    assert "eps = 1e-08 is 0 in float16" in says(Settings(F16, 1e-3))["eps"].what
    assert torch.tensor(1e-8, dtype=F16) == 0
    assert "eps" not in says(Settings(BF16, 1e-3))
    assert "eps" not in says(Settings(F16, 1e-3, eps=1e-4))
    assert "eps" not in says(Settings(F16, 1e-3, state=F32))
    assert "eps" not in says(Settings(F16, 1e-3, strategy="none"))  # ours adds it in float32
    param = nn.Parameter(torch.ones(3, dtype=F16))
    param.grad = torch.zeros_like(param)
    torch.optim.AdamW([param], lr=1e-3, foreach=False).step()
    assert param.isnan().all()


def test_a_model_in_plain_bfloat16() -> None:
    model = Small().to(BF16)
    found = preflight(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    assert kinds(found) == {"uncompensated", "second-moment", "decay", "at-one", "small-steps"}
    (at_one,) = [one for one in found if one.kind == "at-one"]
    assert at_one.layers == ("norm.weight",)
    assert at_one.text.startswith("norm.weight: every entry is 1")


@pytest.mark.parametrize("strategy", ["exact", "fp32-master"])
def test_nothing_to_say_where_float32_is_kept(strategy: str) -> None:
    model = Small().to(BF16)
    assert preflight(model, roundoff.CollageAdamW(model.parameters(), lr=1e-4, strategy=strategy)) == []


def test_nothing_to_say_of_float32_and_of_optimizers_without_moments() -> None:
    model = Small()
    assert preflight(model, torch.optim.AdamW(model.parameters(), lr=1e-4)) == []
    model = model.to(BF16)
    assert kinds(preflight(model, torch.optim.SGD(model.parameters(), lr=1e-4))) == {"uncompensated"}


def test_groups_are_told_apart() -> None:
    model = Small().to(BF16)
    model.norm.to(F32)
    groups: list[dict[str, Any]] = [
        {"params": model.linear.parameters(), "lr": 1e-3},
        {"params": model.norm.parameters(), "lr": 1e-2},
    ]
    (found, *_) = preflight(model, torch.optim.AdamW(groups))
    assert found.layers == ("linear.weight", "linear.bias")


def stepped() -> tuple[Small, torch.optim.Optimizer]:
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.norm(model.linear(torch.randn(4, 16))).square().sum().backward()
    optimizer.step()
    return model, optimizer


def test_state_that_was_loaded_through_bfloat16() -> None:
    """OpenTau 184/185 and others: fp32 m = 0.0012345 is bf16 0.001236 after a load."""
    model, optimizer = stepped()
    assert preflight(model, optimizer) == []
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].to(BF16).float()
    (found,) = preflight(model, optimizer)
    assert found.kind == "narrow-state"
    assert found.layers[0] == "linear.weight (exp_avg)"


def test_a_step_counter_in_bfloat16() -> None:
    """torchao 4915."""
    model, optimizer = stepped()
    for state in optimizer.state.values():
        state["step"] = state["step"].to(BF16)
    (found,) = preflight(model, optimizer)
    assert found.kind == "counter"
    assert "cannot count past 256" in found.why


def test_it_changes_nothing() -> None:
    model = Small().to(BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    before: list[Tensor] = [param.clone() for param in model.parameters()]
    versions = [param._version for param in model.parameters()]
    preflight(model, optimizer)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert versions == [param._version for param in model.parameters()]
    assert not optimizer.state


def out(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        application.main(["check", *words])
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out, shown.err


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, shown, _ = out(capsys)
    assert code == 1
    assert "the second moment in bfloat16 never decays" in shown
    assert out(capsys, "--strategy", "exact")[:2] == (0, "Nothing stands out.\n")
    path = tmp_path / "model.pt"
    torch.save({"norm": torch.ones(32, dtype=BF16), "w": torch.full((32,), 1e-4, dtype=BF16)}, path)
    code, shown, _ = out(capsys, "--checkpoint", str(path), "--lr", "1e-4", "--json")
    found = {one["kind"]: one for one in json.loads(shown)["findings"]}
    assert found["at-one"]["layers"] == ["norm"]
    assert found["small-steps"]["what"] == "50 % of 64 weights would not move"
    assert out(capsys, "--dtype", "int8")[0] == 1
    assert "--strategy is AdamW or one of" in " ".join(out(capsys, "--strategy", "best")[2].split())
