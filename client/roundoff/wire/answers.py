"""What the server answers. Figures draw from these, the query client returns them, the CLI prints them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from roundoff.metrics import State

from .ingest import RunState, Wire

AlertState = Literal["pending", "firing", "resolved"]


class Answer(Wire):
    """Base of the answers: a newer server may add fields, so unknown ones are ignored when read."""

    model_config = ConfigDict(extra="ignore", ser_json_inf_nan="strings")


class RunStarted(Answer):
    """Answer to `RunStart`: the attempt's number and the path of the run's page."""

    run_id: str
    attempt: int
    page: str


class BatchTaken(Answer):
    """Answer to a `Batch`: committed, or known already."""

    status: Literal["accepted", "duplicate"]
    rows: int = 0


class RunImported(Answer):
    """Answer to an archive: the run that was put in, and how many rows it has."""

    run_id: str
    rows: int


class LayerHealth(Answer):
    """One layer as it stands: its verdict and the figures over the present window, None where undefined."""

    id: int
    name: str
    shape: list[int]
    numel: int
    dtype: str
    strategy: str
    health: State | None
    lost_fraction: float | None
    descent_efficiency: float | None


class RunSummary(Answer):
    """One run as it stands. Figures are over the present window of the whole model, None before it has one.

    `strategy` is what the layers declare, joined by `+` where groups differ. `lr` is the first group's set
    learning rate. `loss` is the last value of the scalar called `loss`, `spark` a few of it for a small line.
    """

    id: str
    project: str
    name: str
    state: RunState
    health: State | None
    headline: str
    explanation: str
    strategy: str
    step: int | None
    first_seen: datetime
    last_seen: datetime
    attempts: int
    config: dict[str, JsonValue] = Field(default_factory=dict)
    tags: list[str] = Field(default_factory=list)
    lr: float | None
    loss: float | None
    spark: list[float | None] = Field(default_factory=list)
    lost_fraction: float | None
    descent_efficiency: float | None
    effective_lr: float | None
    layers: int
    layers_stalling: int
    worst_layers: list[LayerHealth] = Field(default_factory=list)
    alerts_firing: int
    dropped: dict[str, int] = Field(default_factory=dict)
    page: str


class RunPage(Answer):
    """Runs, newest first; `next_cursor` asks for the next page, None at the end."""

    runs: list[RunSummary]
    next_cursor: str | None = None


class Series(Answer):
    """One figure over steps. With `sampled`, each point is a bucket of `bucket` steps, from summed sums.

    `low` and `high` then are the lowest and highest finite value of any one sample in the bucket, None where there
    is none; they are empty without `sampled`, and for the sum of several layers.
    """

    run_id: str
    metric: str
    layer: str | None = None
    steps: list[int]
    values: list[float | None]
    low: list[float | None] = Field(default_factory=list)
    high: list[float | None] = Field(default_factory=list)
    bucket: int = 1
    sampled: bool = False


class Heatmap(Answer):
    """One figure for layers × steps, worst layer first: `values[i][j]` is `layers[i]` from `steps[j]` on."""

    run_id: str
    metric: str
    layers: list[str]
    steps: list[int]
    values: list[list[float | None]]
    bucket: int = 1
    sampled: bool = False


class Comparison(Answer):
    """One figure of several runs, in the order in which they were asked for."""

    metric: str
    layer: str | None = None
    runs: list[Series]


class HeadroomHistory(Answer):
    """Headroom histograms of a layer, a module (summed) or the model (None), one for each of `steps`.

    Bin j of `counts` (elements) and `energy` (their Σu²) is the headroom `low + j`. `lr` is the learning rate at that
    step, None where the layers have several.
    """

    run_id: str
    layer: str | None = None
    low: int
    steps: list[int]
    counts: list[list[int]]
    energy: list[list[float]]
    lr: list[float | None]


class Crossed(Answer):
    """The first learning rate, going down from the present one, at which a figure is past `level`."""

    figure: Literal["lost_fraction", "descent_efficiency"]
    level: float
    lr: float


class LayerForecast(Answer):
    """What one layer crosses, the highest learning rate first."""

    name: str
    crossed: list[Crossed]


class Forecast(Answer):
    """What lower learning rates would lose, by the histograms of `step`: an update shrinks as its learning rate does.

    `lr` is the highest of any group there. `model` is empty where groups have several. Layers that would lose first
    come first; a layer that crosses nothing has an empty list.
    """

    run_id: str
    step: int
    lr: float | None
    model: list[Crossed]
    layers: list[LayerForecast]


class StrategyOption(Answer):
    """One strategy as it would fare with the same updates; `bytes` per parameter. See docs/advice.md."""

    strategy: str
    bytes: int
    lost_fraction: float
    descent_efficiency: float
    noise: float
    against: str
    holds: bool
    measured: bool


class Advised(Answer):
    """What every strategy would have lost of the newest updates; `recommended` is the cheapest that holds, or None.

    `needing` names the layers for which nothing cheaper would, worst first; `left_out` those that 16-bit strategies
    are no question for. `text` says it all.
    """

    run_id: str
    step: int
    samples: int
    recommended: str | None
    used: list[str]
    bytes_now: int
    options: list[StrategyOption]
    needing: list[str]
    left_out: list[str]
    text: str


class Alert(Answer):
    """One alert of one rule on one run. `layers` names the worst first, `layer_count` counts them all.

    `model` says that the whole model is affected. `since_step` is where the condition began, `fired_step`
    where the alert fired, `resolved_step` where it cleared; `reason` says why it was resolved.
    """

    id: str
    project: str
    run_id: str
    run_name: str
    rule: str
    severity: Literal["warning", "critical"]
    state: AlertState
    model: bool
    layers: list[str]
    layer_count: int
    headline: str
    cure: str
    since_step: int
    fired_step: int | None
    resolved_step: int | None
    fired_at: datetime | None
    resolved_at: datetime | None
    reason: str | None = None
    page: str


class AlertPage(Answer):
    """Alerts, newest first."""

    alerts: list[Alert]
    next_cursor: str | None = None


class Event(Answer):
    """What `GET /events` sends: something about this run is new up to `step`."""

    run_id: str
    kind: Literal["run", "samples", "alert"]
    step: int | None = None


class Problem(Answer):
    """RFC 9457 problem document; `errors` names the fields of a bad body."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[dict[str, JsonValue]] = Field(default_factory=list)
