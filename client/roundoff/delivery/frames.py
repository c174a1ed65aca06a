"""The frames of a spool file: found again after any damage, each with its number and two checksums.

A frame is a header of 28 bytes and its payload, all integers little-endian:

    magic 4 · kind 1 · zero 3 · payload's length 4 · number 8 · payload's CRC-32 4 · CRC-32 of the 24 bytes before 4

The last byte of the magic is the version of the format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

FORMAT = 2
"""Counted up when frames or payloads change; a reader finds frames of its own format only."""

MAGIC = b"\xabRO" + bytes([FORMAT])
_HEADER = struct.Struct("<4sBxxxIQI")
_CHECKSUM = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size


class Frame(NamedTuple):
    """One intact frame, and where the next one begins."""

    kind: int
    number: int
    payload: bytes
    end: int


def pack(kind: int, number: int, payload: bytes) -> bytes:
    """The bytes of one frame; `kind` fits 8 bits, `number` 64."""
    head = _HEADER.pack(MAGIC, kind, len(payload), number, crc32(payload))
    return head + _CHECKSUM.pack(crc32(head)) + payload


def unpack(data: bytes, at: int = 0) -> Iterator[Frame]:
    """Every intact frame of `data` from `at` on.

    After damage the search goes on one byte behind the magic, also inside what a header claims as its payload: a file
    that was cut and written on may hold whole frames there.
    """
    while (at := data.find(MAGIC, at)) >= 0:
        frame = _intact(data, at)
        if frame is None:
            at += 1
        else:
            yield frame
            at = frame.end


def _intact(data: bytes, at: int) -> Frame | None:
    start = at + HEADER_BYTES
    if start > len(data):
        return None
    head = data[at : at + _HEADER.size]
    if _CHECKSUM.unpack_from(data, at + _HEADER.size)[0] != crc32(head):
        return None
    _, kind, length, number, checksum = _HEADER.unpack(head)
    payload = data[start : start + length]
    if len(payload) != length or crc32(payload) != checksum:
        return None
    return Frame(kind, number, payload, start + length)
