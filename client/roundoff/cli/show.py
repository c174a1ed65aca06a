"""`roundoff show`."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.text import Text

from roundoff.metrics import percent
from roundoff.wire import Alert, Answer, LayerHealth, RunSummary

from .alerts import print_alerts
from .source import Database, Json, Server, Token, open_source
from .terminal import age, health, number, output, print_json, table

MOST_ALERTS = 20


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, as in the address of its page.")],
    layers: Annotated[int, typer.Option(min=0, help="At most this many layers, the worst first.")] = 10,
    as_json: Json = False,
    server: Server = None,
    token: Token = None,
    database: Database = None,
) -> None:
    """Show one run: the verdict, its figures, the worst layers, its alerts, and what delivery dropped."""
    with open_source(server, token, database) as source:
        found = source.run(run)
        worst = _worst(source.layers(run))[:layers]
        alerts = source.alerts(run_id=run, limit=MOST_ALERTS).alerts
    if as_json:
        print_json(
            {
                "run": _document(found),
                "layers": [_document(layer) for layer in worst],
                "alerts": [_document(alert) for alert in alerts],
            }
        )
    else:
        _print(found, worst, alerts)


def _document(answer: Answer) -> object:
    return json.loads(answer.model_dump_json())  # non-finite numbers as in the REST answers


def _worst(layers: list[LayerHealth]) -> list[LayerHealth]:
    rank = {"broken": 0, "stalling": 1}

    def place(layer: LayerHealth) -> tuple[int, float]:
        known = layer.descent_efficiency
        return rank.get(layer.health or "", 2), known if known is not None and known == known else float(
            "inf"
        )

    return sorted(layers, key=place)


def _print(run: RunSummary, layers: list[LayerHealth], alerts: list[Alert]) -> None:
    output.print(Text.assemble((f"{run.project}/{run.name}", "bold"), f"  {run.id}"))
    output.print(
        Text.assemble(
            f"{run.state}, seen {age(run.last_seen)} ago, ",
            health(run.health),
            f"; strategy {run.strategy or '–'}",
        )
    )
    output.print()
    output.print(Text(run.headline, style="bold"))
    output.print(Text(run.explanation))
    output.print()
    for name, value in _figures(run):
        output.print(Text(f"{name:<22}{value}"))
    if layers:
        output.print()
        shown = table(
            "layer",
            "verdict",
            "lost",
            "efficiency",
            "strategy",
            "elements",
            right=("lost", "efficiency", "elements"),
        )
        for layer in layers:
            shown.add_row(
                Text(layer.name),
                health(layer.health),
                _share(layer.lost_fraction),
                number(layer.descent_efficiency, 2),
                layer.strategy,
                f"{layer.numel:,}",
            )
        output.print(shown)
    if alerts:
        output.print()
        print_alerts(alerts)


def _figures(run: RunSummary) -> list[tuple[str, str]]:
    found = [
        ("step", "–" if run.step is None else f"{run.step:,}"),
        ("lost updates", _share(run.lost_fraction)),
        ("descent efficiency", number(run.descent_efficiency, 2)),
        ("learning rate", f"{number(run.lr)}, effective {number(run.effective_lr)}"),
        ("loss", number(run.loss)),
        ("layers", f"{run.layers:,}, {run.layers_stalling:,} stalling"),
        ("attempts", str(run.attempts)),
    ]
    dropped = ", ".join(f"{number:,} {reason}" for reason, number in run.dropped.items())
    return [*found, ("dropped by delivery", dropped or "nothing")]


def _share(value: float | None) -> str:
    return "–" if value is None else percent(value)
