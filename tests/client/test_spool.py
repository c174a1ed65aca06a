"""The spool on disk: what was written comes back bit for bit, whatever happens to the files, within its limit."""

from __future__ import annotations

import errno
import math
import os
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from samples import layers, sample

from roundoff.delivery.codec import Opening, decode, encode
from roundoff.delivery.counters import Counts
from roundoff.delivery.cursor import LIFE, SLOT_BYTES, Cursor
from roundoff.delivery.frames import HEADER_BYTES, pack, unpack
from roundoff.delivery.notices import Notices
from roundoff.delivery.queue import Backlog
from roundoff.delivery.records import Declared, Dropped, Ended, Found, Logged, Record, Rows, array, rows_of
from roundoff.delivery.segments import segments_in
from roundoff.delivery.spool import Spool
from roundoff.delivery.store import HISTOGRAMS, LAYER_ROWS, Store
from roundoff.wire import Finding, RunStart

EVERYTHING = 10**9


def opening(writer: str = "w") -> Opening:
    start = RunStart(project="p", name="n", token="t")
    return Opening(run_id="r", writer=writer, server="http://127.0.0.1:9", start=start)


class Spools:
    """Makes spools below one folder, and lets go of them in the end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "r" / "w"
        self._made: list[Spool] = []

    def create(self, writer: str = "w", **options: int) -> Spool:
        self._made.append(Spool.create(self.root, opening(writer), **options))
        return self._made[-1]

    def reopen(self) -> Spool:
        self._made.append(Spool.reopen(self.folder))
        return self._made[-1]

    def release(self) -> None:
        for spool in self._made:
            spool.release()

    def recovered(self, data: bytes) -> list[Record]:
        """What is read of a spool whose only file holds `data`."""
        segments_in(self.folder)[0].path.write_bytes(data)
        (self.folder / "cursor").unlink(missing_ok=True)
        spool = self.reopen()
        taken = spool.take(1000, EVERYTHING)
        spool.release()
        self._made.remove(spool)
        return taken


@pytest.fixture
def spools(tmp_path: Path) -> Iterator[Spools]:
    made = Spools(tmp_path)
    yield made
    made.release()


def logged(step: int, value: float = 1.0) -> Logged:
    return Logged(array("q", [step]), ("loss", "größe"), array("d", [value, -value]), 0.0)


def mixed(count: int) -> list[Record]:
    """Records of every kind, the sampled steps with and without their detail."""
    records: list[Record] = [
        Declared(layers(3)),
        Found([Finding(kind="eps", what="eps is 0", why="0 / 0", cure="set eps", layers=["größe"])]),
        Dropped({"values (not a number)": 3}),
    ]
    for step in range(count):
        records.append(logged(step, step / 3))
        if step % 3 == 0:
            records.append(rows_of(sample(step, 3, headroom=step % 2 == 0), 0.0))
    return [*records, Ended("finished")]


def same(one: Record, other: Record) -> bool:
    return encode(one) == encode(other)


def steps(records: list[Record]) -> list[int]:
    return [step for record in records if isinstance(record, Logged) for step in record.steps]


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e308, struct.unpack("<d", b"\1\0\0\0\0\0\xf8\xff")[0]],
)
def test_every_value_keeps_its_bits(value: float) -> None:
    back = decode(*encode(logged(2**53, value)))
    assert isinstance(back, Logged)
    assert (list(back.steps), back.names) == ([2**53], ("loss", "größe"))
    assert back.values.tobytes() == array("d", [value, -value]).tobytes()


def test_every_record_comes_back(spools: Spools) -> None:
    records = mixed(10)
    rows = next(record for record in records if isinstance(record, Rows))
    assert isinstance(back := decode(*encode(rows)), Rows)
    assert (back.model, back.layers, back.sums, back.headroom) == (
        rows.model, rows.layers, rows.sums, rows.headroom,
    )  # fmt: skip
    assert back.groups[0].lr == 1e-3
    spool = spools.create()
    spool.append(records[:4])
    spool.append(records[4:])
    taken = spool.take(1000, EVERYTHING)
    assert all(same(a, b) for a, b in zip(records, taken, strict=True))
    assert [record.number for record in taken] == list(range(len(records)))
    assert (spool.damaged, spool.points) == (0, 20 + 4)
    spool.seal(taken)
    spool.acknowledge(taken)
    spool.close()
    assert list(spools.root.iterdir()) == []


def test_what_a_newer_version_writes_is_not_misread(spools: Spools) -> None:
    spool = spools.create()
    spool.append([logged(0)])
    path = segments_in(spool.folder)[0].path
    path.write_bytes(path.read_bytes() + pack(77, 1, b"{}"))
    assert steps(spool.take(10, EVERYTHING)) == [0]
    assert spool.damaged == 1


def test_batches_end_at_records_and_bytes_but_have_one(spools: Spools) -> None:
    spool = spools.create()
    spool.append([logged(step) for step in range(10)])
    assert steps(spool.take(2, EVERYTHING)) == [0, 1]
    assert steps(spool.take(10, 1)) == [2]
    assert steps(spool.take(100, EVERYTHING)) == list(range(3, 10))
    assert spool.take(100, EVERYTHING) == []
    spool.append([logged(10)])
    assert steps(spool.take(100, EVERYTHING)) == [10]


def test_files_go_once_they_are_acknowledged(spools: Spools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundoff.delivery.spool.SEGMENT_BYTES", 2000)
    spool = spools.create()
    spool.append([Declared(layers(2))])
    for step in range(200):
        spool.append([logged(step)])
    many = len(segments_in(spool.folder))
    assert many > 5
    seen = []
    while records := spool.take(7, EVERYTHING):
        seen += steps(records)
        spool.seal(records)
        spool.acknowledge(records)
        on_disk = sum(segment.path.stat().st_size for segment in segments_in(spool.folder))
        assert spool.used == on_disk
    assert seen == list(range(200))
    assert len(segments_in(spool.folder)) == 1
    assert spool.points == 0


def damage(spools: Spools) -> tuple[bytes, list[tuple[int, int]], list[Record]]:
    """A spool's only file, where each record's frame lies in it, and the records."""
    records = mixed(60)
    spool = spools.create()
    spool.append(records)
    data = segments_in(spool.folder)[0].path.read_bytes()
    spool.release()
    ends = [frame.end for frame in unpack(data)]
    return data, list(pairwise(ends)), records


def test_a_file_that_was_cut_and_written_on_loses_the_torn_record_only(spools: Spools) -> None:
    data, places, records = damage(spools)
    begin, end = places[10]
    found = spools.recovered(data[: end - 5] + data[end:])
    assert len(found) == len(records) - 1
    found = spools.recovered(data[: begin + 20] + data[begin:])
    assert len(found) == len(records)


def test_what_is_lost_is_counted(spools: Spools) -> None:
    data, places, _ = damage(spools)
    torn = bytearray(data)
    for begin, _ in places[5:9]:
        torn[begin + HEADER_BYTES + 3] ^= 1
    segments_in(spools.folder)[0].path.write_bytes(torn)
    spool = spools.reopen()
    spool.take(1000, EVERYTHING)
    assert spool.damaged == 4


def test_whose_it_is_is_known_from_any_of_its_files(spools: Spools) -> None:
    spool = spools.create()
    spool.append([logged(0)])
    spool.release()
    (spool.folder / "run").write_bytes(b"")
    again = spools.reopen()
    assert again.opening.run_id == "r"
    again.release()
    (spool.folder / "run").unlink()
    segments_in(spool.folder)[0].path.write_bytes(b"nothing of ours")
    with pytest.raises(ValueError, match="does not say which run"):
        spools.reopen()
    (spool.folder / "run").unlink(missing_ok=True)


def test_a_folder_belongs_to_one_at_a_time(spools: Spools) -> None:
    spool = spools.create()
    spool.append([logged(0)])
    with pytest.raises(BlockingIOError):
        spools.reopen()
    other = spools.create("v")
    other.append([logged(1)])
    assert steps(spool.take(10, EVERYTHING)) == [0]
    assert steps(other.take(10, EVERYTHING)) == [1]
    spool.close()
    spools.reopen().close()


def test_a_batch_that_was_on_its_way_is_sent_as_it_was(spools: Spools) -> None:
    spool = spools.create()
    spool.append([logged(step) for step in range(30)])
    for number in range(2):
        records = spool.take(5, EVERYTHING)
        assert spool.seal(records) == number
        spool.acknowledge(records)
    assert spool.seal(spool.take(5, EVERYTHING)) == 2
    spool.release()  # killed before the answer

    spool = spools.reopen()
    records = spool.take(1000, EVERYTHING)
    assert steps(records) == [10, 11, 12, 13, 14]
    assert spool.seal(records) == 2
    spool.acknowledge(records)
    records = spool.take(1000, EVERYTHING)
    assert steps(records) == list(range(15, 30))
    assert spool.seal(records) == LIFE
    spool.acknowledge(records)
    spool.close()
    assert list(spools.root.iterdir()) == []


def test_a_torn_cursor_is_at_most_one_step_behind(tmp_path: Path) -> None:
    cursor = Cursor(tmp_path / "cursor")
    for end in (5, 9):
        cursor.seal(end)
        cursor.acknowledge()
    whole = cursor.position
    before = whole._replace(start=5)
    cursor.close()
    data = (tmp_path / "cursor").read_bytes()
    for at in range(2 * SLOT_BYTES):
        torn = bytearray(data)
        torn[at] ^= 1
        (tmp_path / "cursor").write_bytes(torn)
        cursor = Cursor(tmp_path / "cursor")
        assert cursor.position in (whole, before), at
        cursor.close()


def store_on(spool: Spool, counts: Counts) -> Store:
    return Store(spool, Backlog(counts), counts, Notices())


def test_a_spool_near_its_limit_keeps_what_alerts_read(spools: Spools) -> None:
    spool = spools.create(limit=2**20)
    store = store_on(spool, counts := Counts())
    for step in range(300):
        store.put([rows_of(sample(step, 10, nonfinite=0.0), 0.0), logged(step)])
    dropped = counts.dropped()
    assert dropped[HISTOGRAMS] > 100
    assert dropped[LAYER_ROWS] > 100
    assert spool.used <= 2**20
    found = []
    while records := store.take(100, EVERYTHING):
        found += records
    rows = [record for record in found if isinstance(record, Rows)]
    assert [record.step for record in rows] == steps(found) == list(range(300))
    kept = [(record.headroom is not None, record.sums is not None) for record in rows]
    assert kept == sorted(kept, reverse=True)
    assert {(True, True), (False, True), (False, False)} == set(kept)


def test_beyond_its_limit_it_takes_nothing_and_the_memory_does(
    spools: Spools, caplog: pytest.LogCaptureFixture
) -> None:
    spool = spools.create(limit=10_000)
    store = store_on(spool, counts := Counts())
    for step in range(1000):
        store.put([logged(step)])
    assert 0 < spool.next < 200
    assert caplog.text.count("takes nothing more") == 1
    found = []
    while records := store.take(100, EVERYTHING):
        found += steps(records)
        store.seal(records)
        store.acknowledge(records)
    assert found == list(range(1000))
    assert counts.dropped() == {}


class FullDisk:
    """A file that takes `room` bytes and then none; real full disks are in tests/chaos."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = min(self.room, len(data))
        self.room -= taken
        written: int = self.file.write(data[:taken])
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_a_disk_that_fills_in_the_middle_of_a_record_leaves_no_torn_one(
    spools: Spools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roundoff.delivery.store.AGAIN_S", 0.0)
    spool = spools.create()
    store = store_on(spool, counts := Counts())
    store.put([logged(0)])
    assert spool._writer is not None
    real = spool._writer._file
    spool._writer._file = FullDisk(real, 100)  # type: ignore[assignment]
    store.put([logged(1), logged(2)])
    store.put([logged(3)])
    assert segments_in(spool.folder)[0].path.stat().st_size == spool._writer.size
    spool._writer._file = real
    store.put([logged(4)])  # and what waited in memory goes before it
    assert steps(store.take(100, EVERYTHING)) == [0, 1, 2, 3, 4]
    assert (spool.next, spool.damaged, counts.dropped()) == (5, 0, {})


def test_refused_records_are_kept_with_the_reason(spools: Spools) -> None:
    spool = spools.create()
    spool.append([logged(0), logged(1)])
    records = spool.take(10, EVERYTHING)
    spool.seal(records)
    kept = spool.refuse(records, "no such field")
    spool.acknowledge(records)
    spool.close()
    assert kept is not None
    found = [decode(frame.kind, frame.payload) for frame in unpack(kept.read_bytes()) if frame.kind]
    assert steps(found) == [0, 1]
    assert "2 records: no such field" in (kept.parent / "refused.txt").read_text()
