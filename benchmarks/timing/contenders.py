"""Who is timed: one small entry each. Packages that are not installed are reported as absent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from roundoff import CollageAdamW
from roundoff.kernels import BACKENDS, kernel_for
from roundoff.optim import STRATEGIES

from .machine import version_of
from .results import Statistics

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16

Build = Callable[[list[Parameter]], Optimizer]

RUNS_ON = {"cpu": "cpu", "triton": "cuda"}
"""Backends for one kind of device; the others run on any."""


@dataclass(frozen=True, slots=True)
class Contender:
    """An optimizer, and the dtype of the parameters that it is given.

    `package` is the distribution of a third party. `compiles` says that it goes through `torch.compile`, which
    takes many seconds for every shape. `statistics` are the choices that it can be timed with.
    """

    name: str
    dtype: torch.dtype
    build: Build
    package: str | None = None
    strategy: str | None = None
    backend: str | None = None
    compiles: bool = False
    statistics: tuple[Statistics, ...] = ("off",)

    def absent(self, device: torch.device) -> str | None:
        """Why it cannot run here, None if it can."""
        if self.package is not None and version_of(self.package) is None:
            return f"{self.package} is not installed"
        if self.backend is None:
            return None
        wanted = RUNS_ON.get(self.backend, device.type)
        if wanted != device.type:
            return f"the backend {self.backend} needs a {wanted} device"
        try:
            kernel_for(self.backend, "fp32")
        except RuntimeError as error:
            return str(error)
        return None


def _from(module: str, name: str, **options: object) -> Build:
    """`module.name` with everybody's hyperparameters and its own options."""

    def build(params: list[Parameter]) -> Optimizer:
        made = getattr(import_module(module), name)(
            params, lr=3e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, **options
        )
        if not isinstance(made, Optimizer):
            raise TypeError(f"{module}.{name} is no optimizer")
        return made

    return build


def _torch(label: str, dtype: torch.dtype, **options: object) -> Contender:
    return Contender(f"torch AdamW {label}", dtype, _from("torch.optim", "AdamW", **options))


BASELINE = _torch("fused, float32", FLOAT32, fused=True)
"""All others are compared with it, and it with itself: that shows the noise."""

OTHERS = (
    BASELINE,
    _torch("foreach, float32", FLOAT32, foreach=True),
    _torch("fused, bfloat16", BFLOAT16, fused=True),
    _torch("foreach, bfloat16", BFLOAT16, foreach=True),
    Contender(
        "optimi AdamW, Kahan",
        BFLOAT16,
        _from("optimi", "AdamW", kahan_sum=True),
        package="torch-optimi",
    ),
    Contender(
        "torchao AdamW, stochastic",
        BFLOAT16,
        _from("torchao.optim", "_AdamW", bf16_stochastic_round=True),
        package="torchao",
        compiles=True,
    ),
    Contender(
        "torchao AdamW8bit, stochastic",
        BFLOAT16,
        _from("torchao.optim", "AdamW8bit", bf16_stochastic_round=True),
        package="torchao",
        compiles=True,
    ),
    Contender(
        "heavyball AdamW, float32 state",
        BFLOAT16,
        _from("heavyball", "AdamW", consume_grad=False),  # it would drop the gradients of the next step
        package="heavyball",
        compiles=True,
    ),
    Contender(
        "heavyball AdamW, bf16+16",
        BFLOAT16,
        _from("heavyball", "AdamW", consume_grad=False, ecc="bf16+16", param_ecc="bf16+16"),
        package="heavyball",
        compiles=True,
    ),
    Contender(
        "pytorch-optimizer StableAdamW, Kahan",
        BFLOAT16,
        _from("pytorch_optimizer", "StableAdamW", kahan_sum=True),
        package="pytorch-optimizer",
    ),
    Contender(
        "pytorch-optimizer FlashAdamW, 32-bit master",
        BFLOAT16,
        _from("pytorch_optimizer", "FlashAdamW", quantize=False, master_weight_bits=32),
        package="pytorch-optimizer",
    ),
    Contender(
        "pytorch-optimizer FlashAdamW, 8-bit state",
        BFLOAT16,
        _from("pytorch_optimizer", "FlashAdamW", quantize=True),
        package="pytorch-optimizer",
    ),
)


def ours(dtype: torch.dtype) -> tuple[Contender, ...]:
    """Every strategy that stores this dtype with every backend."""
    return tuple(
        Contender(
            f"{strategy.name} ({backend})",
            dtype,
            _from("roundoff", "CollageAdamW", strategy=strategy.name, backend=backend),
            strategy=strategy.name,
            backend=backend,
            statistics=measurable(backend),
        )
        for backend in sorted(BACKENDS, key="reference".__eq__)
        for strategy in STRATEGIES.values()
        if dtype in strategy.dtypes
    )


CHOICE = "headroom"
"""The attribute of an optimizer of ours that leaves the histograms out of what it measures, where it is False."""


def measurable(backend: str) -> tuple[Statistics, ...]:
    """The choices that a backend has; the reference always makes the histograms."""
    chooses = backend != "reference" and hasattr(CollageAdamW([torch.zeros(1)]), CHOICE)
    return ("off", "sums", "histograms") if chooses else ("off", "histograms")


def choose(optimizer: Optimizer, statistics: Statistics) -> None:
    """Have the next steps of an optimizer of ours measure that much; nothing is to be done for others."""
    if not isinstance(optimizer, CollageAdamW):
        return
    optimizer.meters = None if statistics == "off" else {}
    if hasattr(optimizer, CHOICE):
        setattr(optimizer, CHOICE, statistics == "histograms")
