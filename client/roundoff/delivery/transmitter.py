"""HTTP to the server: two calls, and what their answers mean for the sender."""

from __future__ import annotations

import email.utils
import ipaddress
import time
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from roundoff._version import __version__
from roundoff.wire import BatchTaken, Problem, RunStart, RunStarted

CONNECT_S = 3.0
ANSWER_S = 15.0
"""How long any piece of an answer may take."""

WHOLE_ANSWER_S, ANSWER_BYTES = 60.0, 2**20
"""How long all of an answer may take, and how large it may be: what is beyond that is not from a roundoff server."""

_Answer = TypeVar("_Answer", bound=BaseModel)
_TRANSIENT = {
    HTTPStatus.UNAUTHORIZED,  # a token can be mended on the server while the data waits
    HTTPStatus.FORBIDDEN,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.LOCKED,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
}


class NotTakenError(Exception):
    """Base of what can happen to a request; the text is for the user."""


class UnavailableError(NotTakenError):
    """Worth trying again, after `retry_after_s` seconds if the server said so."""

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class RefusedError(NotTakenError):
    """The server will never take this."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class TooLargeError(NotTakenError):
    """The server takes it in smaller pieces."""


class UnknownRunError(NotTakenError):
    """The server does not hold this run (any more)."""


class Transmitter:
    """One connection to one server; used by one thread."""

    def __init__(self, server: str, token: str | None) -> None:
        headers = {"User-Agent": f"roundoff/{__version__}"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            base_url=f"{server}/api/v1/",
            headers=headers,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            trust_env=not is_loopback(server),
        )

    def start(self, run_id: str, start: RunStart) -> RunStarted:
        """Create or resume the run. Raises NotTakenError."""
        body = self._call("PUT", f"runs/{quote(run_id, safe='')}", start.model_dump_json().encode(), {})
        return _read(body, RunStarted)

    def post(self, run_id: str, body: bytes) -> BatchTaken:
        """Send one compressed batch. Raises NotTakenError."""
        path = f"runs/{quote(run_id, safe='')}/batches"
        return _read(self._call("POST", path, body, {"Content-Encoding": "gzip"}), BatchTaken)

    def close(self) -> None:
        """Give the connection back."""
        self._http.close()

    def _call(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        """The body of the answer."""
        headers = {"Content-Type": "application/json", **headers}
        try:
            with self._http.stream(method, path, content=body, headers=headers) as response:
                answer = _whole(response)
        except httpx.HTTPError as error:
            raise UnavailableError(_reason(error)) from None
        if response.is_success:
            return answer
        raise _failure(response, answer)


def _whole(response: httpx.Response) -> bytes:
    """The body. Raises UnavailableError for one without an end."""
    deadline, body = time.monotonic() + WHOLE_ANSWER_S, bytearray()
    for piece in response.iter_bytes():
        body += piece
        if len(body) > ANSWER_BYTES or time.monotonic() > deadline:
            raise UnavailableError("the answer does not end")
    return bytes(body)


def is_loopback(server: str) -> bool:
    """Whether an address is on this machine, where no proxy belongs in between."""
    host = urlsplit(server).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _failure(response: httpx.Response, answer: bytes) -> NotTakenError:
    status = response.status_code
    text = f"the server answered {status}: {_detail(response, answer)}"
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return TooLargeError(text)
    if status == HTTPStatus.NOT_FOUND:
        return UnknownRunError(text)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _TRANSIENT or response.is_redirect:
        return UnavailableError(text, _retry_after(response))
    return RefusedError(text, status)


def _detail(response: httpx.Response, answer: bytes) -> str:
    try:
        problem = Problem.model_validate_json(answer)
    except ValidationError:
        return response.reason_phrase or "no reason given"
    return (problem.detail or problem.title)[:500]


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds, from either form of the header (RFC 9110 §10.2.3)."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        until = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (until - datetime.now(UTC)).total_seconds()) if until.tzinfo else None


def _read(answer: bytes, kind: type[_Answer]) -> _Answer:
    try:
        return kind.model_validate_json(answer)
    except ValidationError:
        raise UnavailableError("the answer is not that of a roundoff server") from None


def _reason(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.ConnectTimeout):
        return "no connection within the time limit"
    if isinstance(error, httpx.TimeoutException):
        return "no answer within the time limit"
    if "refused" in str(error).lower():
        return "connection refused"
    return str(error) or type(error).__name__
