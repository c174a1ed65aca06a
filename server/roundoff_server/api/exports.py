"""`GET /runs/{run_id}/export`: a file that is made while it is sent."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from ..services.exporting import TABLES, read_table
from ..services.formats import FORMATS
from .context import Service
from .ingest import known_id
from .reads import REFUSALS

Format = Annotated[Literal["csv", "ndjson", "parquet"], Query()]
Table = Annotated[Literal["samples", "model", "scalars", "groups", "headroom"], Query()]


def add_exports(router: APIRouter, service: Service) -> None:
    """The route."""

    @router.get(
        "/runs/{run_id}/export",
        responses={200: {"content": {kind: {} for _, kind in FORMATS.values()}}, **REFUSALS},
        response_class=StreamingResponse,
        tags=["history"],
    )
    def export(run_id: str, format: Format = "csv", table: Table = "samples") -> Response:  # noqa: A002
        """All rows of one table of a run, as one file."""
        rows = read_table(service.database, known_id(run_id), table)
        make, media_type = FORMATS[format]
        parts = make(TABLES[table], rows)
        name = f"{run_id}-{table}.{format}"
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        return StreamingResponse(parts, media_type=media_type, headers=headers)
