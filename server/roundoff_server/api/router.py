"""All routes of version 1 under one router."""

from __future__ import annotations

from fastapi import APIRouter

from .archives import add_archives
from .context import Service
from .events import add_events
from .exports import add_exports
from .ingest import add_ingest
from .reads import add_reads
from .tokens import add_tokens

PREFIX = "/api/v1"


def create_api(service: Service) -> APIRouter:
    """The router for `/api/v1`."""
    router = APIRouter(prefix=PREFIX)
    add_ingest(router, service)
    add_reads(router, service)
    add_exports(router, service)
    add_archives(router, service)
    add_events(router, service)
    add_tokens(router, service)
    return router
