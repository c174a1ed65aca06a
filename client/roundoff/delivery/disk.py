"""What a folder lies on: a network, or this machine, and how much of it must stay free."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

NETWORK = frozenset(
    {
        *(
            "9p",
            "afs",
            "beegfs",
            "ceph",
            "cifs",
            "coda",
            "davfs",
            "gpfs",
            "lustre",
            "ncpfs",
            "nfs",
            "nfs4",
            "ocfs2",
        ),
        *("orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs"),
        *("fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
    }
)
"""Types of file systems that are somewhere else, as Linux names them."""

KEPT_FREE = 256 * 2**20
KEPT_FREE_SHARE = 0.02

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


def network_type(folder: Path, mounts: str | None = None) -> str | None:
    """The type of the network file system that `folder` is on; None if it is local, or not known.

    `mounts` is in the form of /proc/self/mountinfo, which is read if it is not given.
    """
    try:
        text = _MOUNTS.read_text(encoding="utf-8", errors="replace") if mounts is None else mounts
    except OSError:
        return None
    path = folder.absolute()
    found: dict[Path, str] = {}
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if separator and len(fields) > 4:
            found[Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]))] = after.split()[0]
    kind = next((found[above] for above in (path, *path.parents) if above in found), "")
    return kind if kind in NETWORK else None


def room(folder: Path) -> int:
    """Bytes that may be written where `folder` is: a checkpoint needs the last of them more. Raises OSError."""
    usage = shutil.disk_usage(folder)
    return usage.free - int(min(KEPT_FREE, KEPT_FREE_SHARE * usage.total))
