"""Access tokens: made once, scoped, ended; what serve does with them; who may ask what."""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from http.cookies import SimpleCookie
from typing import Any

import httpx
import pytest
import sending as s
from calling import Clock
from fastapi import FastAPI
from sqlalchemy import text
from test_access import is_exempt, routes

from roundoff.cli import main
from roundoff_server.app import create_app
from roundoff_server.closing import first_token, is_closed
from roundoff_server.database import Database
from roundoff_server.gate import COOKIE, KEPT_S, SESSION_S, WRONG_TOKENS
from roundoff_server.services import tokens
from roundoff_server.settings import SettingsError, load
from roundoff_server.transport import InProcess


@pytest.fixture
def app(database: Database, clock: Clock) -> FastAPI:
    return create_app(database, closed=True, local_only=False, clock=clock)


def made(database: Database, clock: Clock, *scopes: Any, name: str = "t", days: float | None = None) -> str:
    with database.write() as session:
        return tokens.create(session, name, scopes, clock(), days)[1]


def client(app: FastAPI, token: str | None = None) -> httpx.Client:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.Client(transport=InProcess(app), base_url="http://127.0.0.1:8765", headers=headers)


def test_only_the_hash_is_kept(database: Database, clock: Clock) -> None:
    token = made(database, clock, "read")
    assert re.fullmatch(r"roundoff_[\w-]{43}", token)
    with database.read() as session:
        kept = session.execute(text("SELECT * FROM tokens")).one()
    assert token not in repr(kept)
    assert token.removeprefix("roundoff_") not in repr(kept)


@pytest.mark.parametrize(
    ("scopes", "refused"),
    [
        (["ingest"], {"read", "admin"}),
        (["read"], {"ingest", "admin"}),
        (["ingest", "read"], {"admin"}),
        (["admin"], set()),
    ],
)
def test_every_route_refuses_what_a_token_is_not_for(
    app: FastAPI, database: Database, clock: Clock, scopes: list[Any], refused: set[str]
) -> None:
    """Walks the OpenAPI page and the pages; what a route needs is told by its kind, not by its name."""
    walked = [(method, path) for method, path in routes(app) if not is_exempt(path)]
    assert len(walked) > 15
    with client(app, made(database, clock, *scopes)) as http:
        for method, path in walked:
            if path in ("/logout", "/api/v1/events"):
                continue
            needs = "read" if method in ("GET", "HEAD") else "admin"
            if (method, path) in {("PUT", "/api/v1/runs/x"), ("POST", "/api/v1/runs/x/batches")}:
                needs = "ingest"
            if "/tokens" in path:
                needs = "admin"
            status = http.request(method, path).status_code
            assert (status == 403) is (needs in refused), (method, path, status)
            assert status != 401


def test_a_route_that_is_added_is_closed_as_well(app: FastAPI, database: Database, clock: Clock) -> None:
    @app.get("/api/v1/new")
    @app.post("/api/v1/new")
    def new() -> str:
        return "secret"

    assert {("GET", "/api/v1/new"), ("POST", "/api/v1/new")} <= set(routes(app))
    with client(app) as nobody, client(app, made(database, clock, "read", "ingest")) as http:
        assert (nobody.get("/api/v1/new").status_code, nobody.post("/api/v1/new").status_code) == (401, 401)
        assert (http.get("/api/v1/new").status_code, http.post("/api/v1/new").status_code) == (200, 403)


def test_a_training_may_send_and_a_reader_may_look(app: FastAPI, database: Database, clock: Clock) -> None:
    with client(app, made(database, clock, "ingest", name="training")) as training:
        assert training.put("/api/v1/runs/r1", content=s.start().model_dump_json()).status_code == 200
        answer = training.get("/api/v1/runs")
        assert answer.status_code == 403
        assert "for ingest; this needs one for read" in answer.json()["detail"]
    with client(app, made(database, clock, "read", name="reader")) as reader:
        assert [run["id"] for run in reader.get("/api/v1/runs").json()["runs"]] == ["r1"]
        assert reader.delete("/api/v1/runs/r1").status_code == 403


def test_a_token_ends_when_it_is_revoked_or_expires(app: FastAPI, database: Database, clock: Clock) -> None:
    token, short = made(database, clock, "read"), made(database, clock, "read", name="short", days=1)
    with client(app, token) as http, client(app, short) as other:
        assert (http.get("/api/v1/runs").status_code, other.get("/api/v1/runs").status_code) == (200, 200)
        with database.write() as session:
            tokens.revoke(session, tokens.numbered(session, "t", clock()), clock())
        clock.now += KEPT_S
        assert (http.get("/api/v1/runs").status_code, other.get("/api/v1/runs").status_code) == (401, 200)
        clock.now += tokens.DAY_S - KEPT_S - 1
        assert other.get("/api/v1/runs").status_code == 200
        clock.now += 1  # not a moment longer, also where it is remembered
        assert other.get("/api/v1/runs").status_code == 401
    assert made(database, clock, "read"), "the name is free again"


def test_when_a_token_was_used_is_kept_to_a_minute(app: FastAPI, database: Database, clock: Clock) -> None:
    token, began = made(database, clock, "admin"), clock.now
    with client(app, token) as http:

        def used() -> Any:
            (one,) = http.get("/api/v1/tokens").json()
            return datetime.fromisoformat(one["used"])

        assert used() == datetime.fromtimestamp(began, UTC)
        clock.now += 59
        assert used() == datetime.fromtimestamp(began, UTC)
        clock.now += 1 + KEPT_S
        assert used() == datetime.fromtimestamp(clock.now, UTC)


def test_tokens_over_rest(app: FastAPI, database: Database, clock: Clock) -> None:
    with client(app, made(database, clock, "admin", name="boss")) as http:
        answer = http.post("/api/v1/tokens", json={"name": "ci", "scopes": ["ingest"], "days": 7})
        assert answer.status_code == 201
        new = answer.json()
        with client(app, new["text"]) as ci:
            assert ci.put("/api/v1/runs/r1", content=s.start().model_dump_json()).status_code == 200
        listed = http.get("/api/v1/tokens")
        assert [one["name"] for one in listed.json()] == ["boss", "ci"]
        assert new["text"] not in listed.text
        again = http.post("/api/v1/tokens", json={"name": "ci", "scopes": ["read"]})
        assert (again.status_code, again.json()["errors"][0]["field"]) == (409, "name")
        for bad in (
            {"name": "", "scopes": ["read"]},
            {"name": "x", "scopes": []},
            {"name": "x", "scopes": ["all"]},
        ):
            assert http.post("/api/v1/tokens", json=bad).status_code == 422
        assert http.delete(f"/api/v1/tokens/{new['id']}").json()["revoked"] is not None
        assert http.delete("/api/v1/tokens/999").status_code == 404
        clock.now += KEPT_S
        with client(app, new["text"]) as ci:
            assert ci.put("/api/v1/runs/r1", content=s.start().model_dump_json()).status_code == 401


def test_a_session_is_of_one_token_and_ends_with_it(app: FastAPI, database: Database, clock: Clock) -> None:
    token = made(database, clock, "read")
    with client(app) as http:
        answer = http.post("/login", data={"token": token, "next": "/"})
        cookie = SimpleCookie(answer.headers["set-cookie"])[COOKIE].value
        assert http.get("/api/v1/runs").status_code == 200
        assert http.get("/api/v1/tokens").status_code == 403
    other = made(database, clock, "admin", name="other")
    number, _, signed = cookie.partition(".")
    with database.read() as session:
        admin = tokens.numbered(session, "other", clock())
    for forged in (
        f"{admin}.{signed}",
        f"0.{signed}",
        f"{number}.{signed[:-2]}",
        number,
        "",
        "x.y",
        f"9{cookie}",
    ):
        with client(app) as http:
            http.cookies.set(COOKIE, forged)
            assert http.get("/api/v1/runs").status_code == 401, forged
    with database.write() as session:
        tokens.revoke(session, int(number), clock())
    clock.now += KEPT_S
    with client(app) as http:
        http.cookies.set(COOKIE, cookie)
        assert http.get("/api/v1/runs").status_code == 401
    with client(app, other) as http:
        assert http.get("/api/v1/runs").status_code == 200


def test_a_session_gets_old(
    app: FastAPI, database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = made(database, clock, "read")
    with client(app) as http:
        http.post("/login", data={"token": token})
        later = __import__("time").time() + SESSION_S + 5
        monkeypatch.setattr("itsdangerous.timed.time.time", lambda: later)
        assert http.get("/api/v1/runs").status_code == 401


def test_a_token_that_may_not_read_signs_nobody_in(app: FastAPI, database: Database, clock: Clock) -> None:
    with client(app) as http:
        answer = http.post("/login", data={"token": made(database, clock, "ingest")})
        assert (answer.status_code, "may not read" in answer.text) == (401, True)


def test_many_wrong_tokens_are_answered_with_a_pause(app: FastAPI, database: Database, clock: Clock) -> None:
    with client(app, "wrong") as http:
        found = [http.get("/api/v1/runs").status_code for _ in range(WRONG_TOKENS.amount + 5)]
    assert found == [401] * WRONG_TOKENS.amount + [429] * 5
    with client(app) as http:
        assert http.post("/login", data={"token": "wrong"}).status_code == 429
    with client(app, made(database, clock, "read")) as http:
        assert http.get("/api/v1/runs").status_code == 200, "a neighbour with a right one is not shut out"


def test_the_token_of_the_settings_cannot_be_guessed_at(database: Database, clock: Clock) -> None:
    app = create_app(database, token="correct horse", local_only=False, clock=clock)
    with client(app) as http:
        for _ in range(WRONG_TOKENS.amount):
            assert http.post("/login", data={"token": "wrong"}).status_code == 401
        assert http.post("/login", data={"token": "correct horse"}).status_code == 429
    with client(app, "correct horse") as http:
        assert http.get("/api/v1/runs").status_code == 429


def test_what_needs_admin_leaves_a_line(
    app: FastAPI, database: Database, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roundoff.audit")
    boss = made(database, clock, "admin", name="boss")
    with client(app, boss) as http, client(app, made(database, clock, "read", name="reader")) as reader:
        http.put("/api/v1/runs/r1", content=s.start().model_dump_json())
        reader.delete("/api/v1/runs/r1")
        http.delete("/api/v1/runs/r1")
        reader.get("/api/v1/runs")
    lines = [
        (record.token_name, record.getMessage())  # type: ignore[attr-defined]
        for record in caplog.records
        if record.name == "roundoff.audit"
    ]
    assert lines == [
        ("reader", "DELETE /api/v1/runs/r1 403"),
        ("boss", "DELETE /api/v1/runs/r1 204"),
    ]
    assert boss not in caplog.text


def test_serve_makes_the_first_token_where_others_can_come(local: Database) -> None:
    here, everywhere = load(host="127.0.0.1"), load(host="0.0.0.0")
    assert (first_token(local, here), is_closed(local, here)) == (None, False)
    first = first_token(local, everywhere)
    assert first is not None
    assert first_token(local, everywhere) is None, "there is one now"
    assert is_closed(local, everywhere)
    assert is_closed(local, here), "who has made a token wants it asked for"
    insecure = load(host="0.0.0.0", insecure=True)
    assert (first_token(local, insecure), is_closed(local, insecure)) == (None, False)
    assert first_token(local, load(host="0.0.0.0", admin_token="long enough")) is None
    with pytest.raises(SettingsError, match="both set"):
        is_closed(local, load(insecure=True, admin_token="long enough"))
    with client(create_app(local, closed=True, local_only=False), first) as http:
        assert http.get("/api/v1/tokens").json()[0]["scopes"] == ["admin"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_commands(database: Database, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    url = database.url.render_as_string(hide_password=False)
    code, out, _ = run(capsys, "token", "create", "ci", "--scope", "ingest", "--database", url)
    assert code == 0
    code, again, err = run(capsys, "token", "create", "ci", "--database", url)
    assert (code, again) == (1, "")
    assert "there is a token called 'ci' already" in err
    _, made_json, _ = run(capsys, "token", "create", "bob", "--days", "2", "--json", "--database", url)
    bob = json.loads(made_json)
    assert (bob["name"], bob["scopes"], bob["text"][:9]) == ("bob", "ingest,read", "roundoff_")
    app = create_app(database, closed=True, local_only=False)
    with client(app, out.strip()) as http:
        assert http.put("/api/v1/runs/r1", content=s.start().model_dump_json()).status_code == 200
    _, listed, _ = run(capsys, "token", "list", "--database", url)
    assert [line.split()[1] for line in listed.splitlines()] == ["ci", "bob"]
    assert out.strip() not in listed
    assert run(capsys, "token", "revoke", "ci", "--database", url)[1] == "ci is revoked\n"
    _, listed, _ = run(capsys, "token", "list", "--json", "--database", url)
    assert [bool(one["revoked"]) for one in json.loads(listed)] == [True, False]
    code, _, err = run(capsys, "token", "revoke", "nobody", "--database", url)
    assert (code, "there is no token 'nobody'" in err) == (1, True)
