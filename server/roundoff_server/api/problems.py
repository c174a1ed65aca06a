"""RFC 9457 problem documents: one shape for every error, never a stack trace."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from asgi_correlation_id import correlation_id
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from sqlalchemy.exc import DataError, OperationalError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from roundoff.wire import Problem

from ..services.intake import TooBusyError
from ..services.problems import FieldError, TakenError

PROBLEM_JSON = "application/problem+json"
RETRY_AFTER_S = "5"

log = logging.getLogger(__name__)


class BodyError(ValueError):
    """A body that does not fit its schema; holds pydantic's errors."""

    def __init__(self, errors: Sequence[Any]) -> None:
        super().__init__("the body does not fit its schema")
        self.errors = errors


def problem(
    status: int,
    detail: str,
    *,
    errors: list[dict[str, Any]] | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """A problem document as an answer."""
    title = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Error"
    body = Problem(title=title, status=status, detail=detail, errors=errors or [])
    return Response(body.model_dump_json(), status, headers=headers, media_type=PROBLEM_JSON)


def _field_errors(errors: Sequence[Any], skip: int) -> list[dict[str, Any]]:
    """Pydantic's errors as field and message; values are left out, they may be large or secret."""
    found = []
    for error in errors[:20]:
        path = ".".join(str(part) for part in error["loc"][skip:])
        found.append({"field": path or "body", "message": error["msg"].removeprefix("Value error, ")})
    return found


def _fields_problem(
    errors: list[dict[str, Any]], status: HTTPStatus = HTTPStatus.UNPROCESSABLE_ENTITY
) -> Response:
    detail = "; ".join(f"{error['field']}: {error['message']}" for error in errors[:3])
    return problem(status, detail[:1000], errors=errors)


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    return problem(error.status_code, str(error.detail), headers=headers)


async def _query(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _fields_problem(_field_errors(error.errors(), skip=1))


async def _body(_: Request, error: Exception) -> Response:
    assert isinstance(error, BodyError)
    return _fields_problem(_field_errors(error.errors, skip=0))


async def _field(_: Request, error: Exception) -> Response:
    assert isinstance(error, FieldError)
    status = HTTPStatus.CONFLICT if isinstance(error, TakenError) else HTTPStatus.UNPROCESSABLE_ENTITY
    return _fields_problem([{"field": error.field, "message": error.message}], status)


async def _missing(_: Request, error: Exception) -> Response:
    return problem(HTTPStatus.NOT_FOUND, str(error.args[0]) if error.args else "not found")


async def _forbidden(_: Request, error: Exception) -> Response:
    return problem(HTTPStatus.FORBIDDEN, str(error))


async def _database(_: Request, error: Exception) -> Response:
    log.error("the database did not answer: %s", error)
    detail = "the database is not available now; nothing of this request was stored, send it again"
    return problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers={"Retry-After": RETRY_AFTER_S})


async def _busy(_: Request, error: Exception) -> Response:
    assert isinstance(error, TooBusyError)
    headers = {"Retry-After": str(error.retry_after_s)}
    return problem(HTTPStatus.TOO_MANY_REQUESTS, str(error), headers=headers)


async def _number(_: Request, __: Exception) -> Response:
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "a number or text is outside what can be stored")


async def _fault(_: Request, __: Exception) -> Response:
    request = correlation_id.get()
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, f"the server made a mistake; its log has it as request {request}"
    )


def handle_problems(app: FastAPI, missing_page: Callable[[Request], Response]) -> None:
    """Answer every error with a problem document; a browser that asks for no page there is gets `missing_page`."""

    async def http(request: Request, error: Exception) -> Response:
        wants_page = "text/html" in request.headers.get("accept", "")
        if isinstance(error, HTTPException) and error.status_code == HTTPStatus.NOT_FOUND and wants_page:
            return await run_in_threadpool(missing_page, request)
        return await _http(request, error)

    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, _query)
    app.add_exception_handler(BodyError, _body)
    app.add_exception_handler(FieldError, _field)
    app.add_exception_handler(LookupError, _missing)
    app.add_exception_handler(PermissionError, _forbidden)
    app.add_exception_handler(TooBusyError, _busy)
    app.add_exception_handler(OperationalError, _database)
    app.add_exception_handler(DataError, _number)
    app.add_exception_handler(OverflowError, _number)
    app.add_exception_handler(Exception, _fault)


def parse(kind: Any, body: bytes) -> Any:
    """The body as `kind`, types as JSON has them: `true` is no number. Raises `BodyError`."""
    try:
        return kind.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise BodyError(error.errors(include_url=False, include_context=False, include_input=False)) from None
