"""What a server holds of a run, asked for as a user would."""

from __future__ import annotations

from collections.abc import Sequence

import roundoff
from roundoff.delivery import Sample
from roundoff.wire import Layer, RunSummary


class Stored:
    """A server, read."""

    def __init__(self, server: str) -> None:
        self.server = server

    def run(self, run_id: str) -> RunSummary:
        with roundoff.Client(self.server) as client:
            return client.run(run_id)

    def runs(self, project: str) -> list[RunSummary]:
        """Newest first."""
        with roundoff.Client(self.server) as client:
            return client.runs(project=project).runs

    def series(self, run_id: str, metric: str) -> dict[int, float | None]:
        with roundoff.Client(self.server) as client:
            found = client.series(run_id, metric)
        return dict(zip(found.steps, found.values, strict=True))

    def layers(self, run_id: str) -> dict[str, str]:
        """Name → dtype."""
        with roundoff.Client(self.server) as client:
            return {layer.name: layer.dtype for layer in client.layers(run_id)}


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.samples: list[Sample] = []

    def declare(self, layers: Sequence[Layer]) -> None:
        self.layers.extend(layers)

    def sample(self, sample: Sample) -> None:
        self.samples.append(sample)
