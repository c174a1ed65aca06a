"""One watch, several places for what it measures."""

from __future__ import annotations

from collections.abc import Sequence

from roundoff.wire import Layer

from .sample import Sample, Sink


class Tee:
    """A sink that hands everything to each of several sinks, in their order. As they, it neither blocks nor raises."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def declare(self, layers: Sequence[Layer]) -> None:
        """New layers, to each of them."""
        for sink in self._sinks:
            sink.declare(layers)

    def sample(self, sample: Sample) -> None:
        """One sampled step, to each of them."""
        for sink in self._sinks:
            sink.sample(sample)
