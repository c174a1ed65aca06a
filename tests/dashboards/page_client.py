"""Asks the pages directly, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx
from fastapi import FastAPI

from roundoff_dashboards.pages import create_pages
from roundoff_dashboards.source import Source


class PageClient:
    """One GET at a time against the pages over `source`."""

    def __init__(self, source: Source) -> None:
        self.app = FastAPI()
        self.app.include_router(create_pages(source))

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """The answer to `GET path`."""

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://pages") as client:
                return await client.get(path, headers=headers)

        return asyncio.run(ask())
