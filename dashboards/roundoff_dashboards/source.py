"""Where pages get their data: the server's query service, or `roundoff.Client` against any server."""

from __future__ import annotations

from typing import Protocol

from roundoff.wire import AlertPage, Heatmap, LayerHealth, RunPage, RunSummary, Series


class Source(Protocol):
    """Reads of one server. Every method raises LookupError for a run, layer or metric that does not exist."""

    def runs(
        self,
        *,
        project: str | None = None,
        state: str | None = None,
        q: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> RunPage:
        """Runs, newest first; `q` searches project, name and id."""

    def run(self, run_id: str) -> RunSummary:
        """One run as it stands."""

    def layers(self, run_id: str) -> list[LayerHealth]:
        """The layers of a run in model order."""

    def series(
        self,
        run_id: str,
        metric: str,
        *,
        layer: str | None = None,
        from_step: int | None = None,
        to_step: int | None = None,
        max_points: int = 2000,
    ) -> Series:
        """A figure over steps: `metric` of `metrics.METRICS`, `effective_lr`, `lr`, or `scalar:NAME`.

        `layer` is a layer's id or name, a module prefix of names (summed), or None for the whole model.
        """

    def heatmap(self, run_id: str, metric: str, *, max_steps: int = 400, max_layers: int = 200) -> Heatmap:
        """A figure for layers × step buckets, worst layers first."""

    def alerts(
        self,
        *,
        run_id: str | None = None,
        project: str | None = None,
        state: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> AlertPage:
        """Alerts, newest first."""
