"""Routes for access tokens."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from starlette.concurrency import run_in_threadpool

from roundoff.wire import MadeToken, NewToken, Problem, Token

from ..models import TokenRow
from ..services import tokens
from .answers import answer
from .body import MAX_START, read_body, schema_of
from .context import Service
from .ingest import REFUSALS
from .problems import parse

NAME_TAKEN = {"model": Problem, "description": "A token that opens has this name."}


def shown(row: TokenRow) -> Token:
    """A token as it is shown, without what opens."""
    return Token(
        id=row.token,
        name=row.name,
        scopes=[scope for scope in tokens.SCOPES if scope in row.scopes.split(",")],
        created=_moment(row.created_at),
        expires=None if row.expires_at is None else _moment(row.expires_at),
        used=None if row.used_at is None else _moment(row.used_at),
        revoked=None if row.revoked_at is None else _moment(row.revoked_at),
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def add_tokens(router: APIRouter, service: Service) -> None:
    """`/tokens`, for those who may everything."""

    def made(body: bytes) -> MadeToken:
        asked: NewToken = parse(NewToken, body)
        with service.database.write() as session:
            row, text = tokens.create(session, asked.name, asked.scopes, service.clock(), asked.days)
            return MadeToken(**shown(row).model_dump(), text=text)

    @router.get("/tokens", response_model=list[Token], tags=["tokens"])
    def list_tokens() -> Response:
        """All tokens, also those that do not open any more; never what opens."""
        with service.database.read() as session:
            return answer([shown(row) for row in tokens.listed(session)])

    @router.post(
        "/tokens",
        response_model=MadeToken,
        status_code=201,
        responses={409: NAME_TAKEN, 422: REFUSALS[422]},
        openapi_extra=schema_of(NewToken),
        tags=["tokens"],
    )
    async def create_token(request: Request) -> Response:
        """Make a token. Its text is in this answer only."""
        found = await run_in_threadpool(made, await read_body(request, MAX_START))
        return answer(found, status=201)

    @router.delete(
        "/tokens/{token}",
        response_model=Token,
        responses={status: REFUSALS[status] for status in (404, 422)},
        tags=["tokens"],
    )
    def revoke_token(token: Annotated[int, Path(ge=1, le=2**31 - 1)]) -> Response:
        """Revoke a token: within seconds it opens nothing any more, nor do sessions begun with it."""
        with service.database.write() as session:
            return answer(shown(tokens.revoke(session, token, service.clock())))
