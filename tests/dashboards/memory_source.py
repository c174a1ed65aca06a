"""A `Source` in memory, not the server: pages depend on answers alone, and odd ones are easy to make here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from roundoff.metrics import METRICS, State, descent_efficiency, lost_fraction, run_state, run_verdict
from roundoff.wire import Alert, AlertPage, Heatmap, LayerHealth, RunPage, RunSummary, Series
from simulated_training import Training

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def _figure(metric: str, row: dict[str, float]) -> float | None:
    if metric not in METRICS:
        raise LookupError(f"no metric {metric}")
    value = METRICS[metric].figure(SimpleNamespace(**row))
    return None if value is None else float(value)


def _state(training: Training, layer: int | None = None) -> State | None:
    return training.track(layer).state()


class MemorySource:
    """Runs made from trainings; an answer can be replaced before it is read."""

    def __init__(self) -> None:
        self.summaries: dict[str, RunSummary] = {}
        self.trainings: dict[str, Training] = {}
        self.raised: list[Alert] = []

    def add(self, run_id: str, training: Training, **changes: Any) -> RunSummary:
        """A run as the server would sum it up, with `changes` to its fields."""
        layers = self._health(training)
        window = training.window()
        stalling = [layer.name for layer in layers if layer.health == "stalling"]
        model = _state(training)
        verdict = run_verdict(model, window, stalling, [], len(layers), 300 if stalling else None)
        efficiency = descent_efficiency(window)
        values: dict[str, Any] = {
            "id": run_id,
            "project": "demo",
            "name": run_id,
            "state": "running",
            "health": run_state(model, [layer.health for layer in layers]),
            "headline": verdict.headline,
            "explanation": verdict.explanation,
            "strategy": training.strategy,
            "step": training.steps[-1],
            "first_seen": datetime.now(UTC) - timedelta(minutes=4),
            "last_seen": datetime.now(UTC) - timedelta(seconds=2),
            "attempts": 1,
            "config": {"lr": 1e-3, "width": 192, "text": "<b>bold</b>"},
            "lr": training.lrs[-1],
            "loss": training.losses[-1],
            "spark": training.losses[:: max(1, len(training.losses) // 40)],
            "lost_fraction": lost_fraction(window),
            "descent_efficiency": efficiency,
            "effective_lr": None if efficiency is None else training.lrs[-1] * efficiency,
            "layers": len(layers),
            "layers_stalling": len(stalling),
            "worst_layers": layers[:8],
            "alerts_firing": 0,
            "page": f"/runs/{run_id}",
        }
        self.trainings[run_id] = training
        self.summaries[run_id] = RunSummary(**(values | changes))
        return self.summaries[run_id]

    def _health(self, training: Training) -> list[LayerHealth]:
        layers = []
        for i, name in enumerate(training.names):
            window = training.window(i)
            layers.append(
                LayerHealth(
                    id=i,
                    name=name,
                    shape=[training.size],
                    numel=training.size,
                    dtype="bfloat16",
                    strategy=training.strategy,
                    health=_state(training, i),
                    lost_fraction=lost_fraction(window),
                    descent_efficiency=descent_efficiency(window),
                )
            )
        return sorted(layers, key=lambda layer: layer.descent_efficiency or 0.0)

    def alert(self, run_id: str, **changes: Any) -> Alert:
        """Raise an alert on a run."""
        run = self.summaries[run_id]
        values: dict[str, Any] = {
            "id": f"alert-{len(self.raised)}",
            "project": run.project,
            "run_id": run_id,
            "run_name": run.name,
            "rule": "precision stagnation",
            "severity": "critical",
            "state": "firing",
            "model": True,
            "layers": [layer.name for layer in run.worst_layers],
            "layer_count": run.layers_stalling,
            "headline": run.headline,
            "cure": "",
            "since_step": 300,
            "fired_step": 325,
            "resolved_step": None,
            "fired_at": run.last_seen,
            "resolved_at": None,
            "page": f"/runs/{run_id}",
        }
        self.raised.append(Alert(**(values | changes)))
        return self.raised[-1]

    def runs(
        self,
        *,
        project: str | None = None,
        state: str | None = None,
        q: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> RunPage:
        found = [
            run
            for run in self.summaries.values()
            if (project is None or run.project == project)
            and (state is None or run.state == state)
            and (q is None or q.lower() in f"{run.project} {run.name} {run.id}".lower())
        ]
        start = int(cursor or 0)
        more = str(start + limit) if len(found) > start + limit else None
        return RunPage(runs=found[start : start + limit], next_cursor=more)

    def run(self, run_id: str) -> RunSummary:
        return self.summaries[run_id]

    def layers(self, run_id: str) -> list[LayerHealth]:
        return self._health(self.trainings[run_id])

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
        training = self.trainings[run_id]
        if metric.startswith("scalar:"):
            if metric != "scalar:loss" or not training.losses:
                raise LookupError(metric)
            values: list[float | None] = list(training.losses)
        else:
            values = [_figure(metric, row) for row in training.model]
        return Series(run_id=run_id, metric=metric, layer=layer, steps=training.steps, values=values)

    def heatmap(self, run_id: str, metric: str, *, max_steps: int = 400, max_layers: int = 200) -> Heatmap:
        training = self.trainings[run_id]
        order = [layer.id for layer in self._health(training)][:max_layers]
        return Heatmap(
            run_id=run_id,
            metric=metric,
            layers=[training.names[i] for i in order],
            steps=training.steps,
            values=[[_figure(metric, row) for row in training.rows[i]] for i in order],
        )

    def alerts(
        self,
        *,
        run_id: str | None = None,
        project: str | None = None,
        state: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> AlertPage:
        found = [
            alert
            for alert in self.raised
            if (run_id is None or alert.run_id == run_id) and (state is None or alert.state == state)
        ]
        return AlertPage(alerts=found[:limit])
