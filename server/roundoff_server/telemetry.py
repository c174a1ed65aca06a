"""The server's own figures, for Prometheus: requests, batches, what waits, who listens, connections in use."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .api.context import Service
from .logs import REQUESTS

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

log = logging.getLogger(REQUESTS)


class Gauges:
    """What is read off the service when somebody asks."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges now."""
        intake, database = self._service.intake, self._service.database
        for name, text, value in (
            ("waiting_batches", "Batches in line that are not committed yet.", intake.waiting),
            ("waiting_bytes", "Bytes of them; beyond a limit clients get 429.", intake.waiting_bytes),
            ("lag_seconds", "For how long the oldest of them has waited.", intake.lag_s),
            ("event_listeners", "Open event streams.", self._service.bus.listeners),
            ("database_connections", "Connections to the database in use.", database.connections),
        ):
            yield GaugeMetricFamily(f"roundoff_{name}", text, value=value)


class Telemetry:
    """The figures of one application. Counters of several processes are added up by whoever collects them."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(Gauges(service))
        self._requests = Histogram(
            "roundoff_request_seconds",
            "Time from a request to the end of its answer, but for event streams.",
            ("method", "route", "status"),
            registry=self.registry,
            buckets=SECONDS,
        )
        self._batches = Counter(
            "roundoff_batches", "Batches by what became of them.", ("outcome",), registry=self.registry
        )
        self._rows = Counter("roundoff_rows", "Rows that were stored.", registry=self.registry)
        service.intake.on_taken = self.taken

    def taken(self, outcome: str, rows: int) -> None:
        """A batch was accepted, a duplicate, refused for what it holds, too much, or met a fault of the database."""
        self._batches.labels(outcome).inc()
        self._rows.inc(rows)

    def answered(self, scope: Scope, status: int, seconds: float) -> None:
        """A request has got its whole answer."""
        route = getattr(scope.get("route"), "path", "")
        self._requests.labels(scope["method"], route, str(status)).observe(seconds)
        log.info(
            "%s %s %s %.1f ms",
            scope["method"],
            scope["path"],
            status,
            1e3 * seconds,
            extra={"method": scope["method"], "path": scope["path"], "status": status, "seconds": seconds},
        )


class Timed:
    """ASGI middleware that tells a `Telemetry` of every answer."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app, self._telemetry = app, telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, stream = time.perf_counter(), 500, False

        async def send_noted(message: Message) -> None:
            nonlocal status, stream
            if message["type"] == "http.response.start":
                status = message["status"]
                stream = any(
                    name == b"content-type" and value.startswith(b"text/event-stream")
                    for name, value in message["headers"]
                )
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        finally:
            if not stream:
                self._telemetry.answered(scope, status, time.perf_counter() - began)
