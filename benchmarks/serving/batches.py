"""Batches as a training run sends them, made fast: 1,000 layers between 1,000 and 10 million elements."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roundoff.metrics import COUNTS, ROW
from roundoff.wire import Batch, Column, GroupSamples, Layer, LayerSamples, ModelSamples, Scalars

EVERY = 10
"""Optimizer steps from one sample to the next."""

Table = dict[str, NDArray[np.int64] | NDArray[np.float64]]


def column(values: NDArray[np.int64] | NDArray[np.float64]) -> Column:
    """A column of the wire from an array."""
    kind = "f8" if values.dtype.kind == "f" else "i8"
    words = values.astype(f"<{kind}", copy=False).tobytes()
    return Column(type=kind, data=base64.b64encode(words).decode("ascii"))


@dataclass(frozen=True, slots=True)
class Training:
    """A run of bfloat16 weights that loses more and more; the same `seed` sends the same."""

    layers: int
    seed: int = 0
    writer: str = "w"

    def declared(self) -> list[Layer]:
        """Its layers: blocks of ten tensors."""
        return [
            Layer(
                index=index,
                name=f"blocks.{index // 10}.{index % 10}.weight",
                shape=[int(count)],
                numel=int(count),
                dtype="bfloat16",
                strategy="none",
            )
            for index, count in enumerate(self._numel())
        ]

    def batches(self, samples: int, per_batch: int, first: int = 0) -> Iterator[Batch]:
        """`samples` sampled steps from sample `first` on, `per_batch` of them in each batch."""
        draw = np.random.default_rng([self.seed, first])
        for begin in range(first, first + samples, per_batch):
            steps = np.arange(begin, min(begin + per_batch, first + samples), dtype="i8") * EVERY
            yield Batch(
                writer=self.writer,
                seq=begin,
                attempt=1,
                layers=self.declared() if begin == 0 else [],
                promise_s=3600,
                **self._tables(draw, steps),
            )

    def _numel(self) -> NDArray[np.int64]:
        return np.logspace(3, 7, self.layers).astype("i8")

    def _tables(
        self, draw: np.random.Generator, steps: NDArray[np.int64]
    ) -> dict[str, ModelSamples | LayerSamples | GroupSamples | Scalars]:
        sums = self._sums(draw, steps)
        totals = {name: values.reshape(len(steps), -1).sum(axis=1) for name, values in sums.items()}
        layer = np.tile(np.arange(self.layers, dtype="i8"), len(steps))
        ones = np.zeros(len(steps), dtype="i8")
        return {
            "model": ModelSamples(step=column(steps), sums={name: column(totals[name]) for name in ROW}),
            "samples": LayerSamples(
                step=column(np.repeat(steps, self.layers)),
                layer=column(layer),
                sums={name: column(sums[name]) for name in ROW},
            ),
            "groups": GroupSamples(
                step=column(steps),
                group=column(ones),
                lr=column(np.full(len(steps), 3e-4)),
                weight_decay=column(np.full(len(steps), 0.1)),
            ),
            "scalars": Scalars(
                step=column(steps),
                names=["loss"],
                name=column(ones),
                value=column(draw.normal(3, 0.1, len(steps))),
            ),
        }

    def _sums(self, draw: np.random.Generator, steps: NDArray[np.int64]) -> Table:
        numel = np.tile(self._numel(), len(steps))
        size = len(numel)
        zeros = np.zeros(size, dtype="i8")
        attempted = (numel * draw.uniform(0.95, 1.0, size)).astype("i8")
        lost = (attempted * draw.uniform(0.05, 0.35, size)).astype("i8")
        uu = numel * draw.lognormal(-14, 0.3, size)
        stored = draw.uniform(0.85, 1.0, size)
        table: Table = dict.fromkeys(COUNTS, zeros) | {
            "numel": numel,
            "attempted": attempted,
            "lost": lost,
            "invisible": lost,
            "unchanged": numel - attempted + lost,
            "decay_attempted": numel,
            "decay_lost": (numel * draw.uniform(0.9, 1.0, size)).astype("i8"),
            "v_attempted": attempted,
            "v_stuck": (attempted * draw.uniform(0.0, 0.5, size)).astype("i8"),
            "v_stuck_high": (attempted * draw.uniform(0.0, 0.1, size)).astype("i8"),
            "zero_grad": numel - attempted,
        }
        return table | {
            "sum_uu": uu,
            "sum_ua": uu * stored,
            "sum_aa": uu * stored**1.5,
            "sum_us": uu * stored,
            "sum_ss": uu * stored**1.5,
            "sum_ww": numel * draw.lognormal(-8, 0.01, size),
            "expected_roundings": attempted * draw.uniform(0.2, 0.9, size),
        }
