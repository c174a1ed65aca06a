"""Routes that write: start a run, take a batch, delete a run."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import Future
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool

from roundoff.wire import Batch, BatchTaken, Event, Problem, RunChange, RunStart, RunStarted, RunSummary

from ..services.removal import remove, sweep
from ..services.runs import change, start
from .answers import answer
from .body import MAX_BODY, MAX_DECOMPRESSED, MAX_START, read_body, schema_of
from .context import Service
from .problems import parse

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}")

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        404: "No such run.",
        413: "The body is too large.",
        422: "Bad input; `errors` names the field.",
        429: "Too much waits already; `Retry-After` says when to send it again.",
        503: "The database is not available; send it again.",
    }.items()
}


def known_id(run_id: str) -> str:
    """A run id that can exist. Raises LookupError."""
    if not RUN_ID.fullmatch(run_id):
        raise LookupError(f"there is no run {run_id[:140]!r}")
    return run_id


def add_ingest(router: APIRouter, service: Service) -> None:
    """`PUT` and `DELETE /runs/{run_id}`, and `POST /runs/{run_id}/batches`."""

    def started(run_id: str, body: bytes) -> RunStarted:
        request: RunStart = parse(RunStart, body)
        if not RUN_ID.fullmatch(run_id):
            raise LookupError(
                f"{run_id[:140]!r} cannot be the id of a run: 1 to 128 letters, digits, '.', '_', '~' or '-', "
                f"the first one a letter or digit"
            )
        with service.database.write() as session:
            done = start(session, run_id, request, service.clock())
        service.publish(done.events)
        return done.answer

    def submitted(run_id: str, body: bytes) -> Future[BatchTaken]:
        batch: Batch = parse(Batch, body)
        return service.intake.submit(known_id(run_id), batch, len(body))

    @router.put(
        "/runs/{run_id}",
        response_model=RunStarted,
        responses=REFUSALS,
        openapi_extra=schema_of(RunStart),
        tags=["runs"],
    )
    async def put_run(run_id: str, request: Request) -> Response:
        """Create or resume a run. The same token gets the same attempt."""
        return answer(await run_in_threadpool(started, run_id, await read_body(request, MAX_START)))

    def changed(run_id: str, body: bytes) -> RunSummary:
        request: RunChange = parse(RunChange, body)
        with service.database.write() as session:
            change(session, known_id(run_id), request)
        service.publish([Event(run_id=run_id, kind="run")])
        return service.query.run(run_id)

    @router.patch(
        "/runs/{run_id}",
        response_model=RunSummary,
        responses=REFUSALS,
        openapi_extra=schema_of(RunChange),
        tags=["runs"],
    )
    async def patch_run(run_id: str, request: Request) -> Response:
        """Change what a run is called: its project, name or tags. What is absent stays."""
        return answer(await run_in_threadpool(changed, run_id, await read_body(request, MAX_START)))

    def removed(run_id: str) -> None:
        with service.database.write() as session:
            remove(session, known_id(run_id))
        service.publish([Event(run_id=run_id, kind="run")])

    @router.delete("/runs/{run_id}", status_code=204, responses=REFUSALS, tags=["runs"])
    async def delete_run(run_id: str) -> Response:
        """Delete a run with all that it has. It is gone at once; its space is given back in the background."""
        await run_in_threadpool(removed, run_id)
        return Response(status_code=204, background=BackgroundTask(sweep, service.database))

    @router.post(
        "/runs/{run_id}/batches",
        response_model=BatchTaken,
        responses=REFUSALS,
        openapi_extra=schema_of(Batch),
        tags=["runs"],
    )
    async def post_batch(run_id: str, request: Request) -> Response:
        """Store a batch, plain or compressed by gzip or zstd. Answered means committed; sent again is a no-op."""
        body = await read_body(request, MAX_BODY, MAX_DECOMPRESSED)
        waiting: Future[BatchTaken] = await run_in_threadpool(submitted, run_id, body)
        taken = await asyncio.wrap_future(waiting)
        return answer(taken)
