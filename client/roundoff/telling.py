"""Say something to the user without ever raising, not even where warnings are errors."""

from __future__ import annotations

import logging
import warnings

_logger = logging.getLogger("roundoff")


def warn(text: str, stacklevel: int = 2) -> None:
    """A Python warning; where warnings are errors, a line in the log `roundoff` instead."""
    try:
        warnings.warn(f"roundoff: {text}", stacklevel=stacklevel + 1)
    except Warning:
        _logger.warning(text)
