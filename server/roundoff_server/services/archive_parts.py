"""What an archive of a run is made of: parts, each a kind and a payload, and rows packed column by column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import zstandard
from sqlalchemy import JSON, Boolean, Double, Integer, LargeBinary
from sqlalchemy.types import TypeEngine

from ..database.packing import pack, unpack

MAGIC = b"roundoff archive 1\n"

PART_BYTES = 2**30
"""No part is as large as that."""

NOT_WHOLE = "the archive is not whole; nothing was stored. Export it again"

Kinds = Mapping[str, TypeEngine[Any]]
"""Columns with their types, in order."""


class ArchiveError(ValueError):
    """An archive that cannot be read; the message says why and what to do."""


def packed(kinds: Kinds, rows: Sequence[Any]) -> bytes:
    """Rows column by column."""
    found = [len(rows).to_bytes(4, "little")]
    for kind, values in zip(kinds.values(), zip(*rows, strict=True), strict=True):
        missing = np.array([value is None for value in values])
        found.append(_sized(pack([missing.astype("i8")])))
        found += _values(kind, values)
    return b"".join(found)


def _values(kind: Any, values: Sequence[Any]) -> list[bytes]:
    if isinstance(kind, (Integer, Boolean)):
        return [_sized(pack([np.array([0 if value is None else int(value) for value in values], "i8")]))]
    if isinstance(kind, Double):
        return [_sized(pack([np.array([0.0 if value is None else value for value in values], "f8")]))]
    texts = [b"" if value is None else _bytes(kind, value) for value in values]
    lengths = np.array([len(text) for text in texts], "i8")
    return [_sized(pack([lengths])), _sized(b"".join(texts))]


def _bytes(kind: Any, value: Any) -> bytes:
    if isinstance(kind, JSON):
        return json.dumps(value).encode()
    return bytes(value) if isinstance(kind, LargeBinary) else str(value).encode()


def unpacked(kinds: Kinds, payload: bytes) -> dict[str, list[Any]]:
    """The inverse of `packed`."""
    at = 4

    def part() -> bytes:
        nonlocal at
        length = int.from_bytes(payload[at : at + 4], "little")
        at += 4 + length
        return payload[at - length : at]

    def numbers() -> list[Any]:
        found: list[Any] = unpack(part(), 1, [0])[0].tolist()
        return found

    columns: dict[str, list[Any]] = {}
    for name, kind in kinds.items():
        missing = numbers()
        values: list[Any]
        if isinstance(kind, Boolean):
            values = [bool(value) for value in numbers()]
        elif isinstance(kind, Double):
            values = [float(value) for value in numbers()]
        elif isinstance(kind, Integer):
            values = numbers()
        else:
            values = _texts(kind, numbers(), part())
        columns[name] = [None if gone else value for gone, value in zip(missing, values, strict=True)]
    return columns


def _texts(kind: Any, lengths: Sequence[int], joined: bytes) -> list[Any]:
    values: list[Any] = []
    at = 0
    for length in lengths:
        text = joined[at : at + length]
        at += length
        if isinstance(kind, LargeBinary):
            values.append(text)
        elif isinstance(kind, JSON):
            values.append(json.loads(text) if text else None)
        else:
            values.append(text.decode())
    return values


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def frame(kind: bytes, payload: bytes) -> bytes:
    """One part; `kind` is one byte."""
    return kind + _sized(payload)


def compressed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Parts as an archive, piece by piece."""
    packer = zstandard.ZstdCompressor(level=3, write_checksum=True).compressobj()
    yield MAGIC
    for part in parts:
        if smaller := packer.compress(part):
            yield smaller
    yield packer.flush()


def decompressed(archive: Iterable[bytes]) -> Iterator[bytes]:
    """The parts' bytes as they come. Raises `ArchiveError`."""
    unpacker = zstandard.ZstdDecompressor(max_window_size=2**27).decompressobj()
    head = b""
    for piece in archive:
        if len(head) < len(MAGIC):
            head += piece
            piece = head[len(MAGIC) :]
            if not head.startswith(MAGIC[: len(head)]):
                raise ArchiveError(
                    "this is no archive of a run; `roundoff export RUN --format archive` makes one"
                )
        try:
            if piece and unpacker.eof:
                raise ArchiveError(NOT_WHOLE)
            if piece:
                yield unpacker.decompress(piece)
        except zstandard.ZstdError as error:
            raise ArchiveError(
                f"the archive is damaged ({error}); nothing was stored. Export it again"
            ) from None
    if not unpacker.eof or unpacker.unused_data:
        raise ArchiveError(NOT_WHOLE)


def unframed(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Kind and payload of each part. Raises `ArchiveError` for one that is too large to be one."""
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        at = 0
        while len(waiting) - at >= 5:
            length = int.from_bytes(waiting[at + 1 : at + 5], "little")
            if length > PART_BYTES:
                raise ArchiveError("the archive is damaged: a part of it has no end; nothing was stored")
            if len(waiting) - at - 5 < length:
                break
            yield bytes(waiting[at : at + 1]), bytes(waiting[at + 5 : at + 5 + length])
            at += 5 + length
        del waiting[:at]
