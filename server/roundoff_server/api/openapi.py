"""The OpenAPI page: what FastAPI knows, and what it cannot know of bodies, refusals and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from roundoff import wire
from roundoff.wire import Problem, TokenScope

from ..gate import COOKIE
from .problems import PROBLEM_JSON

REFERENCE = "#/components/schemas/{model}"
JSON = "application/json"

ANYWHERE = {
    421: "This server is open to its own machine only, and was not asked by a name of it.",
    429: "Too much at once; `Retry-After` says when to come back.",
    503: "The database does not answer; `Retry-After` says when to come back.",
}
"""Refusals that every route may answer with."""

OF_TOKENS = {
    401: "A token is needed.",
    403: "The token is not for this, the page is of another site, or the database is open for reading only.",
}
OF_BODIES = {
    400: "The body is compressed, and damaged.",
    413: "The body is too large.",
    415: "The body is compressed in another way than gzip or zstd.",
}

SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token of `roundoff token create`."},
    "session": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "A browser's."},
}


def describe(app: FastAPI, scope_of: Callable[[str, str], TokenScope | None]) -> None:
    """Complete the OpenAPI page of an application; `scope_of` is what a method and path need a token for."""
    known = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(known(), scope_of)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(page: dict[str, Any], scope_of: Callable[[str, str], TokenScope | None]) -> None:
    schemas = page["components"]["schemas"]
    kinds: list[type[BaseModel]] = [*_bodies(page), Problem]
    _, found = models_json_schema([(kind, "validation") for kind in kinds], ref_template=REFERENCE)
    schemas.update({name: schema for name, schema in found["$defs"].items() if name not in schemas})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    page["components"]["securitySchemes"] = SCHEMES
    for method, path, operation in _operations(page):
        scope = scope_of(method, path)
        refusals = ANYWHERE | (OF_BODIES if "requestBody" in operation else {})
        if scope is not None:
            refusals |= OF_TOKENS
            # An open server asks for none.
            operation["security"] = [{"token": [scope]}, {"session": [scope]}, {}]
        answers = operation["responses"]
        for status, text in refusals.items():
            answers.setdefault(str(status), {"description": text, "content": _problem()})
        for status, answer in answers.items():
            if int(status) >= 400:
                answer["content"] = _problem()


def _operations(page: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in page["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def _bodies(page: dict[str, Any]) -> list[type[BaseModel]]:
    """What routes read by hand, told by `schema_of`."""
    contents = [
        operation["requestBody"]["content"]
        for _, _, operation in _operations(page)
        if "requestBody" in operation
    ]
    references: list[str] = [content[JSON]["schema"]["$ref"] for content in contents if JSON in content]
    found = [getattr(wire, reference.rpartition("/")[2]) for reference in references]
    return [kind for kind in found if issubclass(kind, BaseModel)]


def _problem() -> dict[str, Any]:
    return {PROBLEM_JSON: {"schema": {"$ref": REFERENCE.format(model="Problem")}}}
