"""Which process a spool folder belongs to: a lock that ends with the process, however it ends."""

from __future__ import annotations

import errno
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: a folder is taken to be free
    fcntl = None  # type: ignore[assignment]


class FolderLock:
    """Holds `path` for this process. Raises BlockingIOError if another one, or another place in this one, does.

    Where the file system has no locks it holds nothing, and says so by `certain`.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.certain = fcntl is not None
        try:
            if fcntl is not None:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                self.release()
                raise BlockingIOError(error.errno, "in use", str(path)) from None
            self.certain = False

    def release(self) -> None:
        """Let go; in a forked child this closes the child's copy only, and the parent keeps the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
