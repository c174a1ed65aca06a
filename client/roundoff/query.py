"""Ask for what a server holds: runs, figures over steps, alerts. Needs no torch and no server package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import entry_points
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote

import httpx
from httpx import USE_CLIENT_DEFAULT
from pydantic import BaseModel, TypeAdapter, ValidationError

from ._version import __version__
from .delivery.transmitter import is_loopback
from .settings import DEFAULT_SERVER, load
from .wire import (
    Advised,
    AlertPage,
    Comparison,
    Finding,
    Forecast,
    HeadroomHistory,
    Heatmap,
    LayerHealth,
    Problem,
    RunChange,
    RunImported,
    RunPage,
    RunSummary,
    Series,
)

_Answer = TypeVar("_Answer", bound=BaseModel)
_LAYERS = TypeAdapter(list[LayerHealth])
_FINDINGS = TypeAdapter(list[Finding])

TRANSPORTS = "roundoff.transports"
"""Entry points `(url: str | None) -> httpx.BaseTransport` that answer without a server process."""


class Client:
    """Calls of one server, at `url`, or of a database file without one.

    `url` and `token` come from `ROUNDOFF_SERVER` and `ROUNDOFF_TOKEN` or the settings file if not given;
    then the default address. `database` (an SQLAlchemy URL or a path; "" for the default one) opens a
    database for reading instead, which needs `roundoff[server]`. Close it, or use it in a `with` block.

    Every method raises LookupError for what does not exist, ValueError for an argument the server refuses,
    PermissionError for a missing or wrong token, and ConnectionError if no roundoff server answers.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        database: str | None = None,
        transport: httpx.BaseTransport | None = None,
        timeout: float = 30.0,
    ) -> None:
        if url is not None and database is not None:
            raise ValueError("give either a server's url or a database, not both")
        if database is not None:
            self.url, token, transport = "http://database", None, open_database(database)
        else:
            settings = load(server=url, token=token)
            self.url, token = settings.server or DEFAULT_SERVER, settings.token
        headers = {"User-Agent": f"roundoff/{__version__}", "Accept": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._place = "the database" if database is not None else self.url
        self._http = httpx.Client(
            base_url=f"{self.url}/api/v1/",
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=min(timeout, 5.0)),
            transport=transport,
            trust_env=not is_loopback(self.url),
        )

    def runs(
        self,
        *,
        project: str | None = None,
        state: str | None = None,
        q: str | None = None,
        tag: str | None = None,
        sort: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> RunPage:
        """Runs; `q` searches project, name and id.

        `sort` is `newest` (if not given), `oldest`, `seen`, `name`, or `efficiency`: what stalls or is broken first.
        """
        return self._get(
            "runs", RunPage, project=project, state=state, q=q, tag=tag, sort=sort, limit=limit, cursor=cursor
        )

    def run(self, run_id: str) -> RunSummary:
        """One run as it stands."""
        return self._get(f"runs/{_quoted(run_id)}", RunSummary)

    def layers(self, run_id: str) -> list[LayerHealth]:
        """The layers of a run in model order."""
        return _LAYERS.validate_json(self._fetch(f"runs/{_quoted(run_id)}/layers", {}))

    def series(
        self,
        run_id: str,
        metric: str,
        *,
        layer: str | None = None,
        from_step: int | None = None,
        to_step: int | None = None,
        max_points: int = 2000,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> Series:
        """A figure over steps: `metric` of `metrics.METRICS`, `effective_lr`, `lr`, or `scalar:NAME`.

        `layer` is a layer's id or name, a module prefix of names (summed), or None for the whole model.
        Attempts are merged and ranks added up unless one is named.
        """
        return self._get(
            f"runs/{_quoted(run_id)}/series",
            Series,
            metric=metric,
            layer=layer,
            from_step=from_step,
            to_step=to_step,
            max_points=max_points,
            attempt=attempt,
            rank=rank,
        )

    def heatmap(self, run_id: str, metric: str, *, max_steps: int = 400, max_layers: int = 200) -> Heatmap:
        """A figure for layers × step buckets, worst layers first."""
        path = f"runs/{_quoted(run_id)}/heatmap"
        return self._get(path, Heatmap, metric=metric, max_steps=max_steps, max_layers=max_layers)

    def compare(
        self, run_ids: Sequence[str], metric: str, *, layer: str | None = None, max_points: int = 1000
    ) -> Comparison:
        """One figure of two to ten runs."""
        joined = ",".join(run_ids)
        return self._get(
            "compare", Comparison, runs=joined, metric=metric, layer=layer, max_points=max_points
        )

    def headroom(
        self, run_id: str, *, layer: str | None = None, step: int | None = None, max_steps: int = 100
    ) -> HeadroomHistory:
        """Headroom histograms over steps; with `step` the last one up to there alone."""
        path = f"runs/{_quoted(run_id)}/headroom"
        return self._get(path, HeadroomHistory, layer=layer, step=step, max_steps=max_steps)

    def forecast(self, run_id: str) -> Forecast:
        """What lower learning rates would lose, by the newest histograms."""
        return self._get(f"runs/{_quoted(run_id)}/forecast", Forecast)

    def findings(self, run_id: str) -> list[Finding]:
        """What a look at dtypes, settings and weights has told before the first step."""
        return _FINDINGS.validate_json(self._call("GET", f"runs/{_quoted(run_id)}/findings"))

    def advice(self, run_id: str) -> Advised:
        """What every strategy would have lost of the newest updates with histograms."""
        return self._get(f"runs/{_quoted(run_id)}/advice", Advised)

    def change(
        self,
        run_id: str,
        *,
        project: str | None = None,
        name: str | None = None,
        tags: Sequence[str] | None = None,
    ) -> RunSummary:
        """Call a run something else; what is not given stays."""
        asked = RunChange(project=project, name=name, tags=None if tags is None else list(tags))
        body = asked.model_dump_json(exclude_none=True).encode()
        return RunSummary.model_validate_json(self._call("PATCH", f"runs/{_quoted(run_id)}", content=[body]))

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
        return self._get(
            "alerts", AlertPage, run_id=run_id, project=project, state=state, limit=limit, cursor=cursor
        )

    def export(self, run_id: str, format: str = "csv", *, table: str = "samples") -> Iterator[bytes]:  # noqa: A002
        """A file with all rows of a run, part by part: `csv`, `ndjson` or `parquet`.

        `table` is `samples` (of layers), `model`, `scalars`, `groups` or `headroom`.
        """
        yield from self._download(f"runs/{_quoted(run_id)}/export", {"format": format, "table": table})

    def archive(self, run_id: str) -> Iterator[bytes]:
        """Everything that is kept of a run, part by part, for `restore` on another server of the same schema."""
        yield from self._download(f"runs/{_quoted(run_id)}/archive", {})

    def restore(self, archive: Iterable[bytes]) -> RunImported:
        """Put a run in from its archive, all of it or nothing; ValueError for one that does not fit there."""
        return RunImported.model_validate_json(self._call("POST", "archives", content=archive))

    def _download(self, path: str, asked: dict[str, str]) -> Iterator[bytes]:
        try:
            with self._http.stream("GET", path, params=asked) as response:
                if not response.is_success:
                    response.read()
                    raise _error(response, self._place)
                yield from response.iter_bytes()
        except httpx.HTTPError as error:
            raise ConnectionError(
                f"{self._place} stopped answering: {error or type(error).__name__}"
            ) from None

    def delete(self, run_id: str) -> None:
        """Delete a run with all that it has. There is no way back."""
        self._call("DELETE", f"runs/{_quoted(run_id)}")

    def close(self) -> None:
        """Give the connection back."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _get(self, path: str, kind: type[_Answer], **parameters: str | int | None) -> _Answer:
        body = self._fetch(path, {name: value for name, value in parameters.items() if value is not None})
        try:
            return kind.model_validate_json(body)
        except ValidationError:
            raise ConnectionError(f"{self._place} answers, but not as a roundoff server") from None

    def _fetch(self, path: str, parameters: dict[str, str | int]) -> bytes:
        return self._call("GET", path, parameters)

    def _call(
        self,
        method: str,
        path: str,
        parameters: dict[str, str | int] | None = None,
        content: Iterable[bytes] | None = None,
    ) -> bytes:
        try:
            response = self._http.request(
                method,
                path,
                params=parameters,
                content=content,
                timeout=USE_CLIENT_DEFAULT if content is None else None,
            )
        except httpx.HTTPError as error:
            text = str(error) or type(error).__name__
            raise ConnectionError(f"no roundoff server answers at {self._place}: {text}") from None
        if response.is_success:
            return response.content
        raise _error(response, self._place)


def open_database(database: str) -> httpx.BaseTransport:
    """A transport that answers from a database. Raises ImportError without `roundoff[server]`."""
    message = "reading a database without a server needs: pip install 'roundoff[server]'"
    found = entry_points(group=TRANSPORTS, name="database")
    if not found:
        raise ImportError(message)
    try:
        opener = next(iter(found)).load()
    except ModuleNotFoundError as error:
        raise ImportError(f"{message} ({error.name} is missing)", name=error.name) from None
    transport: httpx.BaseTransport = opener(database or None)
    return transport


def _quoted(run_id: str) -> str:
    return quote(run_id, safe="")


def _error(response: httpx.Response, place: str) -> Exception:
    try:
        detail = Problem.model_validate_json(response.content).detail
    except ValidationError:
        return ConnectionError(f"{place} answers {response.status_code}, but not as a roundoff server")
    match response.status_code:
        case 404:
            return LookupError(detail)
        case 401 | 403:
            return PermissionError(f"{place}: {detail}")
        case status if status < 500:
            return ValueError(detail)
        case status:
            return ConnectionError(f"{place} answered {status}: {detail}")
