"""Ask a database as one asks a server: requests are answered in this process, read-only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
from fastapi import FastAPI

from .app import create_app
from .database import Database, require_current
from .settings import load


def open_database(url: str | None = None) -> httpx.BaseTransport:
    """A transport that answers from a database: a SQLAlchemy URL or a file's path, else the configured one.

    Never creates, migrates or changes it. Raises `DatabaseUnusableError`, an OSError, with what to do.
    """
    database = Database(url or load().database_url, read_only=True)
    try:
        require_current(database)
    except OSError:
        database.dispose()
        raise
    return InProcess(create_app(database, local_only=False), database.dispose)


class InProcess(httpx.BaseTransport):
    """Runs an application for each request, on a thread of its own so that it also works where a loop runs."""

    def __init__(self, app: FastAPI, closing: Callable[[], None] | None = None) -> None:
        self._inner = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        self._thread = ThreadPoolExecutor(1, "roundoff-database")
        self._closing = closing

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._thread.submit(lambda: asyncio.run(self._answer(request))).result()

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        body = request.read()
        inner = httpx.Request(request.method, request.url, headers=request.headers, content=body)
        response = await self._inner.handle_async_request(inner)
        content = await response.aread()
        return httpx.Response(
            response.status_code, headers=response.headers, content=content, request=request
        )

    def close(self) -> None:
        self._thread.shutdown()
        if self._closing is not None:
            self._closing()
