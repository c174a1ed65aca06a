"""What the cases step: a handful of equal weights, and a second moment alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from roundoff.kernels import KERNELS, Step, Update
from roundoff.metrics import Sums
from roundoff.numerics import join_master
from roundoff.optim import STRATEGIES, CollageAdamW

BF16, F32 = torch.bfloat16, torch.float32


def one_parameter(value: float, n: int, dtype: torch.dtype = BF16) -> tuple[nn.Module, nn.Parameter]:
    model = nn.Module()
    model.weight = nn.Parameter(torch.full((n,), value, dtype=dtype))
    return model, model.weight


def by(model: nn.Module, u: float, strategy: str) -> CollageAdamW:
    """An optimizer whose every step is exactly −u for a gradient of 1."""
    options = {"betas": (0.0, 0.9), "eps": 0.0, "weight_decay": 0.0}
    return CollageAdamW(model.named_parameters(), lr=u, strategy=strategy, **options)


def step(optimizer: CollageAdamW, w: nn.Parameter, gradient: float | Tensor = 1.0) -> Sums:
    w.grad = torch.as_tensor(gradient).to(w.dtype).expand_as(w).clone()
    optimizer.meters = {}
    optimizer.step()
    return optimizer.meters[w].sums()


def state_of(name: str, n: int, **filled: float) -> dict[str, Tensor]:
    """The state of `n` bfloat16 weights under a strategy."""
    state = {tensor.name: torch.zeros(n, dtype=tensor.dtype_for(BF16)) for tensor in STRATEGIES[name].state}
    for key, value in filled.items():
        state[key].fill_(value)
    return state


def moved(
    name: str, state: dict[str, Tensor], gradient: float, arithmetic: str = "fp32", count: int = 1000
) -> None:
    """One step of the second moment at β2 = 0.999, with a learning rate of 0."""
    n = len(state["exp_avg"])
    g = torch.full((n,), gradient, dtype=BF16)
    update = Update(
        torch.zeros(n, dtype=BF16), g, state, STRATEGIES[name], Step(count, 0.0, 0.9, 0.999, 1e-8, 0.0)
    )
    KERNELS["reference", arithmetic]([update])


def second_moment(state: dict[str, Tensor]) -> float:
    if "exp_avg_sq_remainder" in state:
        return join_master(state["exp_avg_sq"], state["exp_avg_sq_remainder"])[0].item()
    return state["exp_avg_sq"][0].item() + state["exp_avg_sq_lo"][0].item()
