"""Lines for the user, through the logger `roundoff`.

A program that has set up logging finds them in its own log. In one that has not they go to standard error,
each with `roundoff:` in front.
"""

from __future__ import annotations

import logging
import sys


class _Terminal(logging.Handler):
    """Writes to standard error as long as the program has no handler of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        try:
            sys.stderr.write(f"roundoff: {record.getMessage()}\n")
        except (OSError, ValueError, AttributeError, RuntimeError):
            return  # standard error is closed, was never there, or is just being written to below a signal's handler


logger = logging.getLogger("roundoff")
logger.setLevel(logging.INFO)
logger.addHandler(_Terminal())


class Notices:
    """What one run has told its user already; `quiet` keeps all ranks but the first silent."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._told: set[str] = set()

    def say(self, text: str) -> None:
        """A line of information."""
        if not self._quiet:
            logger.info("%s", text)

    def warn(self, text: str) -> None:
        """A warning."""
        logger.warning("%s", text)

    def warn_first(self, text: str) -> None:
        """A warning that is the same on all ranks: the first one gives it."""
        if not self._quiet:
            self.warn(text)

    def warn_once(self, kind: str, text: str) -> None:
        """A warning, the first time that one of this kind is due."""
        if kind not in self._told:
            self._told.add(kind)
            self.warn(text)
