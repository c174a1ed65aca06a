"""What the server says on standard error: text, or one JSON object a line. Each line names the request it is of."""

from __future__ import annotations

import logging
import re
import sys
from typing import Literal

from asgi_correlation_id import CorrelationIdFilter
from pythonjsonlogger.json import JsonFormatter

AUDIT = "roundoff.audit"
"""Logger of what needs an admin token; always on."""

REQUESTS = "roundoff.requests"
"""Logger with a line for each request, at the level *info*."""

REQUEST_ID = "X-Request-ID"
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["text", "json"]


def is_request_id(text: str) -> bool:
    """Whether a client's id of a request is kept: letters, digits, `.`, `_` and `-`, 128 at most."""
    return _ID.fullmatch(text) is not None


def set_up(level: Level, form: Format) -> None:
    """Send all logs of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(CorrelationIdFilter(default_value="-"))
    if form == "json":
        names = {"asctime": "time", "levelname": "level", "name": "logger", "correlation_id": "request"}
        fields = "%(asctime)s %(levelname)s %(name)s %(correlation_id)s %(message)s"
        handler.setFormatter(JsonFormatter(fields, rename_fields=names))
    else:
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s [%(correlation_id)s] %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger(AUDIT).setLevel(logging.INFO)
