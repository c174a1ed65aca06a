"""Move runs between servers: an archive out, an archive in."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from http import HTTPStatus
from typing import IO, Any

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from roundoff.wire import Event, Problem, RunImported

from ..services.archive import MEDIA_TYPE, read_archive, write_archive
from ..services.archive_parts import ArchiveError
from .answers import answer
from .context import Service
from .ingest import REFUSALS, known_id

MAX_ARCHIVE = 64 * 2**30
"""Bytes of an archive as it travels."""

IN_MEMORY = 16 * 2**20
PIECE = 2**16

CONTENT: dict[str, Any] = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}


def add_archives(router: APIRouter, service: Service) -> None:
    """`GET /runs/{run_id}/archive` and `POST /archives`."""

    @router.get(
        "/runs/{run_id}/archive",
        response_class=StreamingResponse,
        responses={200: {"content": CONTENT}, 404: REFUSALS[404]},
        tags=["runs"],
    )
    def archive(run_id: str) -> Response:
        """Everything that is kept of a run, to be put into another database of the same schema."""
        parts = read_archive(service.database, known_id(run_id))
        headers = {
            "Content-Disposition": f'attachment; filename="{run_id}.roundoff"',
            "Cache-Control": "no-store",
        }
        return StreamingResponse(parts, media_type=MEDIA_TYPE, headers=headers)

    def restored(file: IO[bytes]) -> RunImported:
        try:
            found = write_archive(service.database, _pieces(file))
        except ArchiveError as error:
            raise HTTPException(HTTPStatus.CONFLICT, str(error)) from None
        service.publish([Event(run_id=found.run_id, kind="run")])
        return RunImported(run_id=found.run_id, rows=found.rows)

    @router.post(
        "/archives",
        response_model=RunImported,
        responses={
            409: {"model": Problem, "description": "The archive does not fit here; nothing was stored."},
            413: REFUSALS[413],
            503: REFUSALS[503],
        },
        openapi_extra={"requestBody": {"required": True, "content": CONTENT}},
        tags=["runs"],
    )
    async def put_archive(request: Request) -> Response:
        """Put a run in, all of it or nothing."""
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as file:
            size = 0
            async for piece in request.stream():
                size += len(piece)
                if size > MAX_ARCHIVE:
                    raise HTTPException(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an archive has at most {MAX_ARCHIVE} bytes"
                    )
                await run_in_threadpool(file.write, piece)
            file.seek(0)
            return answer(await run_in_threadpool(restored, file))


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(PIECE):
        yield piece
