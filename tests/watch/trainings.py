"""Small trainings with many optimizers, and a sink that keeps what a watch measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adadelta, Adafactor, Adagrad, Adam, AdamW, NAdam, Optimizer, RAdam, RMSprop

from roundoff.delivery.sample import Sample
from roundoff.optim import CollageAdamW
from roundoff.wire import Layer

BF16 = torch.bfloat16
Make = Callable[[Any], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "AdamW loop": lambda p: AdamW(p, lr=1e-3, foreach=False),
    "AdamW foreach": lambda p: AdamW(p, lr=1e-3, foreach=True),
    "AdamW fused": lambda p: AdamW(p, lr=1e-3, fused=True),
    "AdamW amsgrad": lambda p: AdamW(p, lr=1e-3, amsgrad=True),
    "AdamW capturable lr": lambda p: AdamW(p, lr=torch.tensor(1e-3), foreach=False),
    "Adam": lambda p: Adam(p, lr=1e-3, weight_decay=0.1),
    "NAdam": lambda p: NAdam(p, lr=1e-3),
    "RAdam": lambda p: RAdam(p, lr=1e-3),
    "SGD": lambda p: SGD(p, lr=1e-2),
    "SGD momentum": lambda p: SGD(p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "Adafactor": lambda p: Adafactor(p, lr=1e-3),
    "RMSprop": lambda p: RMSprop(p, lr=1e-3),
    "Adagrad": lambda p: Adagrad(p, lr=1e-2),
    "Adadelta": lambda p: Adadelta(p, lr=1.0),
    "CollageAdamW none": lambda p: CollageAdamW(p, strategy="none"),
    "CollageAdamW plus": lambda p: CollageAdamW(p, strategy="plus"),
    "CollageAdamW master": lambda p: CollageAdamW(p, strategy="fp32-master"),
}


class Collected:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.samples: list[Sample] = []

    def declare(self, layers: Sequence[Layer]) -> None:
        self.layers.extend(layers)

    def sample(self, sample: Sample) -> None:
        self.samples.append(sample)


def model_of(dtype: torch.dtype = BF16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 16)).to(dtype)


def train(model: nn.Module, optimizer: Optimizer, steps: int) -> list[float]:
    losses = []
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        x = torch.randn(8, 16).to(dtype)
        loss = (model(x) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
