"""The stream of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header
from starlette.responses import StreamingResponse

from ..services.events import Sent
from .context import Service

RECONNECT_MS = 2000

STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Messages whose data is an `Event`, as JSON.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


def _message(sent: Sent | None) -> str:
    if sent is None:
        return ": still here\n\n"
    return f"id: {sent.id}\ndata: {sent.event.model_dump_json()}\n\n"


def add_events(router: APIRouter, service: Service) -> None:
    """`GET /events`."""

    @router.get("/events", responses=STREAM, response_class=StreamingResponse, tags=["live"])
    async def events(last_event_id: Annotated[str | None, Header()] = None) -> StreamingResponse:
        """Server-sent events: something about a run is new. `Last-Event-ID` catches up after a break."""

        async def stream() -> AsyncIterator[str]:
            yield f"retry: {RECONNECT_MS}\n\n"
            async for sent in service.bus.listen(last_event_id, service.heartbeat_s):
                yield _message(sent)

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)
