"""What a forked child must let go of, in one place."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Owner(Protocol):
    """Something with threads, locks or files that belong to the process that made it."""

    def disown(self) -> None:
        """In a forked child: let go, without a word to the parent's threads, files or server. Must not raise."""


_owners: weakref.WeakSet[Owner] = weakref.WeakSet()


def belongs_here(owner: Owner) -> None:
    """From now on a forked child begins by calling `owner.disown()`."""
    _owners.add(owner)


def _disown_all() -> None:
    for owner in list(_owners):
        owner.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
