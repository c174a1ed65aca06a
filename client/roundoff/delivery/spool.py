"""The spool of one writer: a folder of files that one thread appends to and another reads.

run              whose records these are
0000….spool      records, oldest first; each file begins with the same, and with the layers so far
cursor           how far the server has them
lock             held by the process that writes, or by one that sends what it has left
refused.spool    what the server refused for good; refused.txt says why
forked           one byte for each call that a forked child made
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from roundoff.wire import Layer

from .codec import DECLARED, DROPPED, OPENING, Opening, decode, encode
from .cursor import Cursor
from .disk import room
from .frames import Frame, pack, unpack
from .lock import FolderLock
from .records import Declared, Dropped, Record, points_of
from .segments import SEGMENT_BYTES, Segment, SegmentReader, SegmentWriter, segment_at, segments_in

SPOOL_BYTES = 2**30
"""What one process keeps on disk at most, unless told otherwise."""

REFUSED_BYTES = 64 * 2**20
"""What is kept of what the server refused."""

READ_BYTES = 2**20

FORKED_CALLS = "calls (in a forked process)"
"""Under this reason the calls are counted that a forked child made on its parent's run."""

RUN, LOCK, CURSOR, FORKED = "run", "lock", "cursor", "forked"
REFUSED, REASONS = "refused.spool", "refused.txt"


class Spool:
    """Records on disk. One thread calls `append`; one `take`, `seal`, `acknowledge` and `refuse`."""

    def __init__(self, folder: Path, opening: Opening, lock: FolderLock, limit: int = SPOOL_BYTES) -> None:
        self.folder, self.opening, self.limit = folder, opening, limit
        self._lock = lock
        self._cursor = Cursor(folder / CURSOR)
        self._unread = deque(segments_in(folder))
        self._opened: deque[Segment] = deque()
        self._writer: SegmentWriter | None = None
        self._reader: SegmentReader | None = None
        self._ahead: deque[Frame] = deque()
        self._expected = self._cursor.position.start
        self._next = 0
        self._layers: list[Layer] = []
        self._dropped: dict[str, int] = {}
        self._bytes_written = self._bytes_freed = 0
        self.declared: dict[int, Layer] = {}
        """Layers by index, as far as records were taken."""
        self.dropped: dict[str, int] = {}
        """What its writer had dropped by then, by reason."""
        self.damaged = 0
        """Records that were there and cannot be read."""
        self.points_written = self.points_acknowledged = 0
        """Logged values and sampled steps that this process wrote, and that it brought to an end."""

    @classmethod
    def create(cls, root: Path, opening: Opening, limit: int = SPOOL_BYTES) -> Spool:
        """A new folder below `root`, held by this process. Raises OSError."""
        folder = root / opening.run_id / opening.writer
        folder.mkdir(mode=0o700, parents=True)
        lock = None
        try:
            # First whose it is: a folder counts once it has a lock, so none is found that does not say.
            (folder / RUN).write_bytes(pack(OPENING, 0, opening.model_dump_json().encode()))
            lock = FolderLock(folder / LOCK)
            return cls(folder, opening, lock, limit)
        except BaseException:
            _discard(folder)
            if lock is not None:
                lock.release()
            raise

    @classmethod
    def reopen(cls, folder: Path) -> Spool:
        """What an earlier process has left. Raises BlockingIOError while it is in use, else OSError or ValueError."""
        lock = FolderLock(folder / LOCK)
        try:
            return cls(folder, read_opening(folder), lock)
        except BaseException:
            lock.release()
            raise

    @property
    def points(self) -> int:
        """Points that this process wrote and the server has not acknowledged."""
        return self.points_written - self.points_acknowledged

    @property
    def start(self) -> int:
        """Number of the first record that the server lacks."""
        return self._cursor.position.start

    @property
    def next(self) -> int:
        """Number of the next record to be written."""
        return self._next

    @property
    def unread(self) -> int:
        """How many of the records that this process wrote were not taken yet."""
        return max(0, self._next - self._expected)

    @property
    def used(self) -> int:
        """Bytes that this process has on disk."""
        return self._bytes_written - self._bytes_freed

    def append(self, records: Sequence[Record]) -> None:
        """Write records; all of them are in the kernel's hands when this returns. Raises OSError, and then none is."""
        frames = b"".join(self._frame(number, record) for number, record in enumerate(records, self._next))
        if self.used + len(frames) > self.limit:
            raise OSError(errno.ENOSPC, f"the limit of {self.limit / 2**20:.0f} MiB is reached")
        writer = self._writer
        if writer is None or writer.size + len(frames) > SEGMENT_BYTES:
            writer = self._begin_segment()
        writer.write(frames)
        self._bytes_written += len(frames)
        self._next += len(records)
        self.points_written += points_of(records)
        for record in records:
            if isinstance(record, Declared):
                self._layers += record.layers
            elif isinstance(record, Dropped):
                self._dropped = record.counts

    def has_more(self) -> bool:
        """Whether there is anything that the server lacks; as `take`, for the thread that reads."""
        frame = self._next_frame()
        if frame is not None:
            self._ahead.appendleft(frame)
        return frame is not None or not self._cursor.position.start

    def take(self, records: int, size: int) -> list[Record]:
        """The next records that the server lacks: at most so many, about so many bytes; empty if there are none.

        A batch that was sealed by an earlier process and not acknowledged comes back as it was.
        """
        taken: list[Record] = []
        while (frame := self._next_frame()) is not None:
            until = self._cursor.left
            if until is not None and frame.number >= until and not taken:
                self._cursor.acknowledge()  # nothing of that batch can be read any more
                until = None
            full = (
                len(taken) >= records or size < len(frame.payload) if until is None else frame.number >= until
            )
            if full and taken:
                self._ahead.appendleft(frame)
                break
            size -= len(frame.payload)
            self.damaged += frame.number - self._expected
            self._expected = frame.number + 1
            record = self._decoded(frame)
            if record is not None:
                taken.append(record)
        return taken

    def seal(self, records: Sequence[Record], *, part: bool = False) -> int:
        """Make these records, taken and not acknowledged, the batch on its way; returns the batch's number.

        Of the last one only a `part` may be in it; then that record is not behind us yet.
        """
        return self._cursor.seal(records[-1].number + (not part) if records else 0)

    def acknowledge(self, records: Sequence[Record]) -> None:
        """The sealed batch of these records has come to its end: the server has it, or will never take it."""
        self._cursor.acknowledge()
        self.points_acknowledged += points_of(records)
        while len(self._opened) > 1 and self._opened[1].first <= self._cursor.position.start:
            path = self._opened.popleft().path
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                path.unlink()
                self._bytes_freed += size

    def refuse(self, records: Sequence[Record], why: str) -> Path | None:
        """Keep records that the server will never take, with its reason; returns where, None if there is no room."""
        path = self.folder / REFUSED
        frames = [self._opening_frame(0), *(self._frame(max(0, record.number), record) for record in records)]
        line = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, {len(records)} records: {why}\n"
        try:
            with path.open("ab") as file:
                if file.tell() > REFUSED_BYTES:
                    return None
                file.write(b"".join(frames))
            with (self.folder / REASONS).open("a", encoding="utf-8") as text:
                text.write(line)
        except OSError:
            return None
        return path

    def note_forked(self) -> None:
        """In a forked child: count a call that it made. Only appends, so that any number of children may."""
        with contextlib.suppress(OSError), (self.folder / FORKED).open("ab", buffering=0) as file:
            file.write(b"\1")

    def forked(self) -> int:
        """How many calls forked children made."""
        try:
            return (self.folder / FORKED).stat().st_size
        except OSError:
            return 0

    def close(self) -> None:
        """Let go of the folder. It is removed if the server has everything of it and has refused nothing."""
        with contextlib.suppress(OSError):
            position = self._cursor.position
            if position.end == position.start >= self._expected and self._next_frame() is None:
                self._remove()
        self.release()

    def release(self) -> None:
        """Let go of the folder as it is."""
        for file in (self._writer, self._reader, self._cursor):
            if file is not None:
                file.close()
        self._lock.release()

    def disown(self) -> None:
        """In a forked child: the folder stays the parent's, also where the child lives longer."""
        self._lock.release()

    def _remove(self) -> None:
        if not (self.folder / REFUSED).exists():
            _discard(self.folder)

    def _begin_segment(self) -> SegmentWriter:
        if room(self.folder) < SEGMENT_BYTES:
            raise OSError(errno.ENOSPC, "the last of the disk is left to others")
        segment = segment_at(self.folder, self._next)
        writer = SegmentWriter(segment.path)
        try:
            writer.write(self._opening_frame(self._next))
        except OSError:
            writer.close()
            segment.path.unlink(missing_ok=True)
            raise
        if self._writer is not None:
            self._writer.close()
        self._writer = writer
        self._bytes_written += writer.size
        self._unread.append(segment)
        return writer

    def _opening_frame(self, number: int) -> bytes:
        now = self.opening.model_copy(update={"layers": self._layers, "dropped": self._dropped})
        return pack(OPENING, number, now.model_dump_json().encode())

    @staticmethod
    def _frame(number: int, record: Record) -> bytes:
        kind, payload = encode(record)
        return pack(kind, number, payload)

    def _decoded(self, frame: Frame) -> Record | None:
        try:
            record = decode(frame.kind, frame.payload)
        except ValueError:
            self.damaged += 1
            return None
        record.number = frame.number
        if isinstance(record, Declared):
            self._learn(record.layers)
        elif isinstance(record, Dropped):
            self.dropped = record.counts
        return record

    def _learn(self, layers: Sequence[Layer]) -> None:
        self.declared.update((layer.index, layer) for layer in layers)

    def _next_frame(self) -> Frame | None:
        """The next record's frame, past those that the server has."""
        while self._ahead or self._fill():
            if not self._ahead:
                continue
            frame = self._ahead.popleft()
            if frame.kind == OPENING:
                opening = Opening.model_validate_json(frame.payload)
                self._learn(opening.layers)
                self.dropped = opening.dropped
            elif frame.number >= self._expected:
                return frame
            elif frame.kind in (DECLARED, DROPPED):
                self._decoded(frame)
        return None

    def _fill(self) -> bool:
        """Read on, or open the next file; False if there is nothing more at present."""
        more = bool(self._unread)  # asked before reading: a file is begun once the one before it is whole
        if self._reader is not None:
            self._ahead.extend(self._reader.frames(READ_BYTES))
            if self._ahead or not more:
                return bool(self._ahead)
            self._reader.close()
            self._reader = None
        if not more:
            return False
        segment = self._unread.popleft()
        with contextlib.suppress(FileNotFoundError):
            self._reader = SegmentReader(segment.path)
            self._opened.append(segment)
        return True


def read_opening(folder: Path) -> Opening:
    """Whose records a folder holds, from the first file that still says so. Raises OSError, ValueError."""
    for path in (folder / RUN, *(segment.path for segment in segments_in(folder))):
        with contextlib.suppress(FileNotFoundError):
            for frame in unpack(path.read_bytes()):
                if frame.kind == OPENING:
                    return Opening.model_validate_json(frame.payload)
    raise ValueError(f"{folder} does not say which run it belongs to, or not in a form known to this version")


def _discard(folder: Path) -> None:
    """Remove a writer's folder, and that of its run if it was the last."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def writers(folder: Path) -> list[Path]:
    """The folders of writers in a spool, in a run's folder, or this one itself, in the order in which they began."""
    return sorted((path.parent for path in folder.rglob(LOCK)), key=lambda path: path.name)
