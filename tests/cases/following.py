"""What the cases share: a watch whose samples go through the server's rule for alerts, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from torch import nn
from torch.optim import Optimizer

import roundoff
from roundoff.delivery.sample import Sample
from roundoff.metrics import ROW, WARMUP_STEPS, Sums, Totals
from roundoff.watch import Watch
from roundoff.wire import Layer
from roundoff_server.services.stagnation import Watched, headline


class Following:
    """A sink that reads every sample as the server's rule does, and keeps the rows of each layer."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.rows: list[dict[str, dict[str, float]]] = []
        self.model = Watched(0)
        self.scopes: dict[int, Watched] = {}

    def declare(self, layers: Sequence[Layer]) -> None:
        self.layers.extend(layers)

    def sample(self, sample: Sample) -> None:
        rows = sample.sums.tolist()
        names = {layer.index: layer.name for layer in self.layers}
        self.rows.append(
            {names[n]: dict(zip(ROW, row, strict=True)) for n, row in zip(sample.layers, rows, strict=True)}
        )
        if sample.step < WARMUP_STEPS:
            return
        lr = max(setting.lr for setting in sample.groups)
        for index, row in zip(sample.layers, rows, strict=True):
            scope = self.scopes.setdefault(index, Watched(index))
            scope.advance(sample.step, SimpleNamespace(**dict(zip(ROW, row, strict=True))), lr)
        whole = [sum(column) for column in zip(*rows, strict=True)]
        self.model.advance(sample.step, SimpleNamespace(**dict(zip(ROW, whole, strict=True))), lr)

    @property
    def firing(self) -> list[str]:
        """Layers that the rule fires for, worst first."""
        names = {layer.index: layer.name for layer in self.layers}
        return [
            names[scope.layer]
            for scope in sorted(self.scopes.values(), key=lambda one: one.badness)
            if scope.firing
        ]

    @property
    def alert(self) -> str:
        """The alert's words; empty where there is none."""
        scopes = [scope for scope in self.scopes.values() if scope.firing]
        if not scopes and not self.model.firing:
            return ""
        since = min(scope.since_step or 0 for scope in [*scopes, self.model] if scope.firing)
        return headline(self.model, self.model.firing, scopes, self.firing[:3], len(self.layers), since)

    def total(self, layer: str) -> SimpleNamespace:
        """One layer's columns added up over all samples, as figures take them."""
        return SimpleNamespace(**{name: sum(rows[layer][name] for rows in self.rows) for name in ROW})


def follow(model: nn.Module, optimizer: Optimizer) -> tuple[Watch, Following]:
    """A watch of every step, and what it has told the rule."""
    sink = Following()
    return roundoff.watch(model, optimizer, every=1, sink=sink), sink


def window(sums: Sums, samples: int) -> Totals:
    """The verdict's sums over that many samples alike."""
    return sum([Totals.of_sums(sums)] * samples, Totals())
