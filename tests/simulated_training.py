"""A bfloat16 training without a model: Adam-like updates on random weights, rounded as the hardware would.

It gives the statistics that a watch would measure, so pages and services can be tested on data with the real
shape: losses grow as the learning rate falls, norm weights at 1.0 stall from the start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundoff.metrics import COUNTS, ROW, Totals, Track
from roundoff.wire import Batch, Column, GroupSamples, Layer, LayerSamples, ModelSamples, Scalars

Row = dict[str, float]


def to_bfloat16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round to nearest, ties to even, on the bit pattern."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + even) & np.uint32(0xFFFF0000)).view(np.float32)


def layer_names(blocks: int) -> list[str]:
    """Names as of a small GPT."""
    names = ["embed.weight", "position.weight"]
    for block in range(blocks):
        for part in ("norm1", "attn.qkv", "attn.out", "norm2", "mlp.up", "mlp.down"):
            names += [f"blocks.{block}.{part}.weight", f"blocks.{block}.{part}.bias"]
    return [*names, "norm.weight", "norm.bias", "head.weight"]


def _start(name: str, size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    if "norm" in name and name.endswith("weight"):
        return np.ones(size, np.float32)
    if name.endswith("bias"):
        return np.zeros(size, np.float32)
    return to_bfloat16(rng.normal(0, 0.3 if "e" in name[:2] else 0.06, size).astype(np.float32))


def learning_rate(step: int, steps: int, peak: float = 1e-3) -> float:
    """Linear warm-up over a tenth, then cosine to a tenth."""
    warm = max(1, steps // 10)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))))


def _measure(w: NDArray[np.float32], u: NDArray[np.float32], pair: bool) -> tuple[Row, NDArray[np.float32]]:
    after = to_bfloat16(w + u)
    seen = (after - w).astype(np.float64)
    exact = u.astype(np.float64)
    applied = exact if pair else seen
    _, exponent = np.frexp(np.where(w == 0, 1e-30, w))
    gap = np.ldexp(1.0, exponent - (16 if pair else 8))
    attempted = u != 0
    row: Row = dict.fromkeys(ROW, 0)
    row |= {
        "numel": w.size,
        "attempted": int(attempted.sum()),
        "lost": int((attempted & (applied == 0)).sum()),
        "invisible": int((attempted & (seen == 0)).sum()),
        "unchanged": int((seen == 0).sum()),
        "v_attempted": w.size,
        "v_stuck": int(w.size * 0.2),
        "sum_uu": float((exact * exact).sum()),
        "sum_ua": float((exact * applied).sum()),
        "sum_aa": float((applied * applied).sum()),
        "sum_us": float((exact * seen).sum()),
        "sum_ss": float((seen * seen).sum()),
        "sum_ww": float((w.astype(np.float64) ** 2).sum()),
        "expected_roundings": float(np.minimum(1.0, np.abs(exact) / gap).sum()),
    }
    return row, after


@dataclass
class Training:
    """`rows[i][j]` is the row of layer i at `steps[j]`; `model[j]` the sums over layers."""

    names: list[str]
    size: int
    steps: list[int]
    lrs: list[float]
    losses: list[float]
    rows: list[list[Row]]
    model: list[Row]
    strategy: str

    def track(self, layer: int | None = None) -> Track:
        """The verdict's window over the whole training, of one layer or of the model."""
        track = Track()
        for step, row in zip(self.steps, self.model if layer is None else self.rows[layer], strict=True):
            if step >= 10:
                track.add(SimpleNamespace(**row))
        return track

    def window(self, layer: int | None = None) -> Totals:
        """The sums that the verdict reads."""
        return self.track(layer).window

    def layers(self) -> list[Layer]:
        """The layers as a client declares them."""
        return [
            Layer(
                index=i,
                name=name,
                shape=[self.size],
                numel=self.size,
                dtype="bfloat16",
                strategy=self.strategy,
            )
            for i, name in enumerate(self.names)
        ]

    def batch(self, first: int, last: int, *, writer: str, seq: int, attempt: int) -> Batch:
        """Samples `first` to `last` (exclusive, by position) as one batch; the first declares layers."""
        chosen = range(first, last)
        steps = [self.steps[j] for j in chosen]
        flat = [(self.steps[j], i, self.rows[i][j]) for j in chosen for i in range(len(self.names))]
        return Batch(
            writer=writer,
            seq=seq,
            attempt=attempt,
            layers=self.layers() if seq == 0 else [],
            model=ModelSamples(step=Column.ints(steps), sums=_columns([self.model[j] for j in chosen])),
            samples=LayerSamples(
                step=Column.ints(step for step, _, _ in flat),
                layer=Column.ints(index for _, index, _ in flat),
                sums=_columns([row for _, _, row in flat]),
            ),
            groups=GroupSamples(
                step=Column.ints(steps),
                group=Column.ints(0 for _ in steps),
                lr=Column.floats(self.lrs[j] for j in chosen),
                weight_decay=Column.floats(0.1 for _ in steps),
            ),
            scalars=Scalars(
                step=Column.ints(steps),
                names=["loss"],
                name=Column.ints(0 for _ in steps),
                value=Column.floats(self.losses[j] for j in chosen),
            ),
        )


def _columns(rows: list[Row]) -> dict[str, Column]:
    return {
        name: Column.ints(int(row[name]) for row in rows)
        if name in COUNTS
        else Column.floats(float(row[name]) for row in rows)
        for name in ROW
    }


def simulate(
    *,
    blocks: int = 4,
    steps: int = 600,
    every: int = 5,
    size: int = 512,
    strategy: str = "none",
    names: list[str] | None = None,
    seed: int = 0,
) -> Training:
    """Train for `steps` steps and sample every `every`. `strategy`: `none`, or `plus` for a lossless pair."""
    rng = np.random.default_rng(seed)
    names = layer_names(blocks) if names is None else names
    weights = [_start(name, size, rng) for name in names]
    sampled = list(range(0, steps, every))
    rows: list[list[Row]] = [[] for _ in names]
    model: list[Row] = []
    lrs, losses = [learning_rate(step, steps) for step in sampled], []
    loss, noise = 5.2, 0.0
    for j, step in enumerate(sampled):
        total: dict[str, Any] = dict.fromkeys(ROW, 0)
        for i, name in enumerate(names):
            spread = np.exp(rng.normal(-1.6, 1.0, size)) * (0.35 + 0.65 * math.exp(-2.2 * step / steps))
            u = (lrs[j] * spread * rng.choice([-1.0, 1.0], size)).astype(np.float32)
            row, weights[i] = _measure(weights[i], u, strategy != "none")
            del name
            rows[i].append(row)
            for key in ROW:
                total[key] += row[key]
        model.append(total)
        arrived = total["sum_ua"] / total["sum_uu"]
        noise = 0.7 * noise + 0.3 * float(rng.normal(0, 0.05))
        loss += (1.75 - loss) * 0.055 * every / 5 * (0.25 + 0.75 * arrived) * (lrs[j] / 1e-3) ** 0.5
        losses.append(loss + noise)
    return Training(names, size, sampled, lrs, losses, rows, model, strategy)
