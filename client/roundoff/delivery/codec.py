"""Records as the payloads of frames, and back: little-endian, without a loss of a bit."""

from __future__ import annotations

import json
import struct
import sys
from array import array
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter

from roundoff.metrics import ROW
from roundoff.wire import Finding, Layer, RunStart

from .records import HISTOGRAM, Declared, Dropped, Ended, Found, Logged, Record, Rows
from .sample import GroupSetting

OPENING, DECLARED, LOGGED, ROWS, DROPPED, ENDED, FOUND = range(7)
"""Kinds of frames."""

_T = TypeVar("_T", int, float)
_LAYERS = TypeAdapter(list[Layer])
_FINDINGS = TypeAdapter(list[Finding])
_LOGGED = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_ROWS = struct.Struct("<qIIBB")
_GROUP = struct.Struct("<Iddd")


class Opening(BaseModel):
    """What each file of a spool begins with: whose records these are, and what was said before them."""

    run_id: str
    writer: str
    server: str | None
    start: RunStart
    layers: list[Layer] = []
    dropped: dict[str, int] = {}


def encode(record: Record) -> tuple[int, bytes]:
    """Kind and payload."""
    if isinstance(record, Logged):
        return LOGGED, _encode_logged(record)
    if isinstance(record, Rows):
        return ROWS, _encode_rows(record)
    if isinstance(record, Declared):
        return DECLARED, _LAYERS.dump_json(list(record.layers))
    if isinstance(record, Found):
        return FOUND, _FINDINGS.dump_json(list(record.findings))
    if isinstance(record, Dropped):
        return DROPPED, json.dumps(record.counts).encode()
    return ENDED, json.dumps(record.how).encode()


def decode(kind: int, payload: bytes) -> Record:
    """The record of a payload. Raises ValueError for one that this version does not know."""
    try:
        if kind == LOGGED:
            return _decode_logged(payload)
        if kind == ROWS:
            return _decode_rows(payload)
        if kind == DECLARED:
            return Declared(_LAYERS.validate_json(payload))
        if kind == FOUND:
            return Found(_FINDINGS.validate_json(payload))
        if kind == DROPPED:
            return Dropped(json.loads(payload))
        if kind == ENDED:
            return Ended(json.loads(payload))
    except (struct.error, IndexError) as error:
        raise ValueError(f"a record of kind {kind} ends early: {error}") from None
    raise ValueError(f"records of kind {kind} are not known to this version")


def _encode_logged(record: Logged) -> bytes:
    names = [name.encode() for name in record.names]
    parts = [_LOGGED.pack(len(record.steps), len(names)), _bytes(record.steps), _bytes(record.values)]
    for name in names:
        parts += (_LENGTH.pack(len(name)), name)
    return b"".join(parts)


def _decode_logged(payload: bytes) -> Logged:
    calls, count = _LOGGED.unpack_from(payload)
    steps, at = _ints(payload, _LOGGED.size, calls)
    values, at = _floats(payload, at, calls * count)
    names = []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(payload, at)
        at += _LENGTH.size
        names.append(payload[at : at + length].decode())
        at += length
    return Logged(steps, tuple(names), values, 0.0)


def _encode_rows(record: Rows) -> bytes:
    sums, headroom = record.sums is not None, record.headroom is not None
    head = _ROWS.pack(record.step, len(record.layers), len(record.groups), sums, headroom)
    parts = [head, _bytes(record.model), _bytes(record.layers)]
    parts += [_bytes(numbers) for numbers in (record.sums, record.headroom) if numbers is not None]
    parts += [_GROUP.pack(one.group, one.lr, one.weight_decay, one.beta2) for one in record.groups]
    return b"".join(parts)


def _decode_rows(payload: bytes) -> Rows:
    step, rows, groups, has_sums, has_headroom = _ROWS.unpack_from(payload)
    model, at = _floats(payload, _ROWS.size, len(ROW))
    layers, at = _ints(payload, at, rows)
    sums, at = _floats(payload, at, rows * len(ROW) * has_sums)
    headroom, at = _floats(payload, at, rows * HISTOGRAM * has_headroom)
    settings = [GroupSetting(*_GROUP.unpack_from(payload, at + i * _GROUP.size)) for i in range(groups)]
    return Rows(
        step, model, layers, sums if has_sums else None, headroom if has_headroom else None, settings, 0.0
    )


def _bytes(numbers: array[float] | array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _floats(payload: bytes, at: int, count: int) -> tuple[array[float], int]:
    """`count` numbers from `at` on, and where they end."""
    return _numbers(array("d"), payload, at, count)


def _ints(payload: bytes, at: int, count: int) -> tuple[array[int], int]:
    """As `_floats`, of integers."""
    return _numbers(array("q"), payload, at, count)


def _numbers(numbers: array[_T], payload: bytes, at: int, count: int) -> tuple[array[_T], int]:
    end = at + 8 * count
    if end > len(payload):
        raise ValueError(f"{count} numbers are announced, {max(0, len(payload) - at) // 8} are there")
    numbers.frombytes(payload[at:end])
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers, end
