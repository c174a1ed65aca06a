"""Read a body within limits, whether it comes plain or compressed."""

from __future__ import annotations

import zlib
from http import HTTPStatus
from typing import Any

import zstandard
from fastapi import HTTPException, Request
from pydantic import BaseModel

MAX_BODY = 32 * 2**20
"""Bytes of a body as it travels."""

MAX_DECOMPRESSED = 128 * 2**20
"""Bytes of a body after decompression."""

ZSTD_WINDOW = 8 * 2**20
"""Bytes that a zstd body may look back; what level 19 needs."""

MAX_START = 2**20
"""Bytes of a run's start: names and config."""


def _too_large(limit: int) -> HTTPException:
    return HTTPException(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"the body is larger than {limit} bytes; send it in smaller pieces",
    )


def schema_of(kind: type[BaseModel]) -> dict[str, Any]:
    """The request body for OpenAPI: it is read by hand, to limit it and to spare a copy."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
    return {"requestBody": {"required": True, "content": content}}


async def read_body(request: Request, limit: int, decompressed: int | None = None) -> bytes:
    """The body, decompressed. Raises 413 beyond the limits, 415 for an unknown encoding, 400 for a torn one."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "zstd", ""):
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"content encoding {encoding[:40]!r} is not supported; use zstd or gzip",
            {"Accept-Encoding": "zstd, gzip"},
        )
    if int(request.headers.get("content-length") or 0) > limit:
        raise _too_large(limit)
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > limit:
            raise _too_large(limit)
    if encoding == "gzip":
        return _gunzip(bytes(raw), decompressed or limit)
    return _unzstd(bytes(raw), decompressed or limit) if encoding == "zstd" else bytes(raw)


def _gunzip(raw: bytes, limit: int) -> bytes:
    """Never makes more than `limit` bytes, whatever the body says of itself."""
    gzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        body = gzip.decompress(raw, limit + 1)
    except zlib.error as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the gzip body is damaged: {error}") from None
    if len(body) > limit:
        raise _too_large(limit)
    if not gzip.eof:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the gzip body ends early")
    return body


def _unzstd(raw: bytes, limit: int) -> bytes:
    """Never makes more than `limit` bytes, and needs no more memory beside them than `ZSTD_WINDOW`."""
    zstd = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    try:
        with zstd.stream_reader(raw, closefd=False) as reader:
            body: bytes = reader.read(limit + 1)
        whole = zstandard.frame_content_size(raw)
    except zstandard.ZstdError as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the zstd body is damaged: {error}") from None
    if len(body) > limit:
        raise _too_large(limit)
    if whole not in (-1, len(body)):
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the zstd body ends early")
    return body
