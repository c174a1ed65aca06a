"""Bits that flip and files that are cut: every record that is whole is saved, before and behind the damage."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

import roundoff
from roundoff.delivery.codec import encode
from roundoff.delivery.frames import unpack
from roundoff.delivery.records import Record
from roundoff.delivery.segments import segments_in
from roundoff.delivery.spool import Spool, writers

EVERYTHING = 10**9


def written(spool: Path) -> Path:
    """The folder of a writer whose process was not asked to end it."""
    run = roundoff.init("chaos", mode="offline", spool=spool)
    for step in range(60):
        run.log({"loss": step / 3, f"größe/{step}": float(step)}, step=step)
    run.finish()
    return writers(spool)[0]


def read(folder: Path, data: bytes) -> list[Record]:
    """What is read where the writer's only file holds `data`."""
    segments_in(folder)[0].path.write_bytes(data)
    spool = Spool.reopen(folder)
    taken = spool.take(1000, EVERYTHING)
    spool.release()
    return taken


def places(data: bytes) -> list[tuple[int, int]]:
    """Where each record's frame begins and ends."""
    return list(pairwise(frame.end for frame in unpack(data)))


def same(found: list[Record], intact: list[Record]) -> bool:
    return [encode(record) for record in found] == [encode(record) for record in intact]


@pytest.mark.parametrize("positions", [100, pytest.param(1000, marks=pytest.mark.chaos)])
def test_a_flipped_bit_costs_the_record_that_it_hits(tmp_path: Path, positions: int) -> None:
    folder = written(tmp_path)
    data = segments_in(folder)[0].path.read_bytes()
    where, records = places(data), read(folder, data)
    assert len(where) == len(records) == 61
    for at in random.Random(0).sample(range(len(data)), positions):
        torn = bytearray(data)
        torn[at] ^= 1 << at % 8
        intact = [r for (begin, end), r in zip(where, records, strict=True) if not begin <= at < end]
        assert same(read(folder, bytes(torn)), intact), at


@pytest.mark.parametrize("lengths", [100, pytest.param(1000, marks=pytest.mark.chaos)])
def test_a_cut_costs_what_is_cut(tmp_path: Path, lengths: int) -> None:
    folder = written(tmp_path)
    data = segments_in(folder)[0].path.read_bytes()
    where, records = places(data), read(folder, data)
    for length in random.Random(1).sample(range(len(data)), lengths):
        intact = [record for (_, end), record in zip(where, records, strict=True) if end <= length]
        assert same(read(folder, data[:length]), intact), length
