"""Who may ask what."""

from __future__ import annotations

import re
from http.cookies import SimpleCookie

import httpx
import pytest
import sending as s
from fastapi import FastAPI
from fastapi.routing import APIRoute

from roundoff_server import access
from roundoff_server.app import create_app
from roundoff_server.database import Database
from roundoff_server.gate import COOKIE
from roundoff_server.transport import InProcess

TOKEN = "correct horse battery staple"


@pytest.fixture
def closed(local: Database) -> FastAPI:
    return create_app(local, token=TOKEN, local_only=False)


def client(app: FastAPI, **headers: str) -> httpx.Client:
    return httpx.Client(transport=InProcess(app), base_url="http://127.0.0.1:8765", headers=headers)


def routes(app: FastAPI) -> list[tuple[str, str]]:
    """Method and path of everything that can be asked, those of the OpenAPI page and the pages."""
    schema = app.openapi()["paths"]
    found = {(method.upper(), path) for path, methods in schema.items() for method in methods}
    pages = [route for route in app.routes if isinstance(route, APIRoute)]
    found |= {(method, route.path) for route in pages for method in route.methods or ()}
    found |= {
        ("GET", path) for path in ("/", "/runs/{run_id}", "/alerts", "/api/v1/openapi.json", "/no/such/page")
    }
    return sorted((method, re.sub(r"\{[^}]*\}", "x", path)) for method, path in found)


def is_exempt(path: str) -> bool:
    """What needs no token. Said here once more, so that a route that is opened there is noticed."""
    return path in ("/healthz", "/readyz", "/login") or path.startswith("/static/")


def unguarded(app: FastAPI, **headers: str) -> list[tuple[str, str, int]]:
    """What answers these headers other than by a refusal, of all that can be asked."""
    found = []
    with client(app, **headers) as http:
        for method, path in routes(app):
            if is_exempt(path):
                continue
            answer = http.request(method, path)
            # After many wrong tokens there is a pause.
            if answer.status_code not in (401, 429) or answer.json()["status"] != answer.status_code:
                found.append((method, path, answer.status_code))
    return found


def test_nothing_answers_without_the_token(closed: FastAPI) -> None:
    walked = routes(closed)
    assert {("PUT", "/api/v1/runs/x"), ("GET", "/api/v1/events"), ("GET", "/runs/x"), ("GET", "/")} <= set(
        walked
    )
    assert len(walked) > 15
    assert unguarded(closed) == []
    assert unguarded(closed, Cookie=f"{COOKIE}=forged") == []
    assert unguarded(closed, Authorization=TOKEN) == []
    assert unguarded(closed, Authorization="Bearer wrong") == []


def test_a_browser_is_sent_to_sign_in(closed: FastAPI) -> None:
    with client(closed, Accept="text/html") as http:
        for method, path in routes(closed):
            if method == "GET" and not is_exempt(path):
                page = http.get(path)
                assert (page.status_code, page.headers["location"][:12]) == (303, "/login?next="), path


def test_a_route_that_is_opened_is_noticed(local: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(local, token=TOKEN, local_only=False)

    @app.get("/api/v1/secret")
    def secret() -> str:
        return "secret"

    assert unguarded(app) == []
    monkeypatch.setattr(access, "OPEN_PATHS", (*access.OPEN_PATHS, "/api/v1/secret"))
    assert unguarded(app) == [("GET", "/api/v1/secret", 200)]


def test_the_token_opens(closed: FastAPI) -> None:
    with client(closed, Authorization=f"Bearer {TOKEN}") as http:
        assert http.get("/api/v1/runs").json()["runs"] == []
        assert http.put("/api/v1/runs/r1", content=s.start().model_dump_json()).status_code == 200
    with client(closed) as http:
        assert http.get("/healthz").json()["name"] == "roundoff"
        assert http.get("/readyz").status_code == 200
        assert http.get("/static/app.css").status_code == 200


def test_a_browser_signs_in(closed: FastAPI) -> None:
    with client(closed) as http:
        assert http.get("/", headers={"Accept": "text/html"}).headers["location"] == "/login?next=%2F"
        page = http.get("/login", params={"next": '/runs/r1?a="><script>'})
        assert "<script>" not in page.text
        assert http.post("/login", data={"token": "wrong", "next": "/"}).status_code == 401
        answer = http.post("/login", data={"token": TOKEN, "next": "/runs/r1?metric=lost"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs/r1?metric=lost")
        cookie = SimpleCookie(answer.headers["set-cookie"])[COOKIE]
        assert (cookie["httponly"], cookie["samesite"], cookie["secure"]) == (True, "strict", "")
        assert http.get("/api/v1/runs").status_code == 200
        http.post("/logout")
        assert http.get("/api/v1/runs").status_code == 401
    with httpx.Client(transport=InProcess(closed), base_url="https://roundoff.example") as http:
        answer = http.post("/login", data={"token": TOKEN})
        assert SimpleCookie(answer.headers["set-cookie"])[COOKIE]["secure"]


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", "/a\nb", ""])
def test_signing_in_leads_nowhere_else(target: str) -> None:
    from roundoff_server.login import _own_path

    assert _own_path(target) == "/"


def test_pages_of_other_sites_may_not_write(local: Database) -> None:
    app = create_app(local)
    with client(app) as http:
        content = s.start().model_dump_json()
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            assert http.put("/api/v1/runs/r1", content=content, headers=headers).status_code == 403
        own = {"Origin": "http://127.0.0.1:8765", "Sec-Fetch-Site": "same-origin"}
        assert http.put("/api/v1/runs/r1", content=content, headers=own).status_code == 200


def test_an_open_server_answers_to_local_names_only(local: Database) -> None:
    with client(create_app(local)) as http:
        for host in ("127.0.0.1:8765", "localhost", "[::1]:1", "roundoff.localhost:8765"):
            assert http.get("/api/v1/runs", headers={"Host": host}).status_code == 200, host
        for host in (
            "evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "",
            "[::1",
            "localhost.evil.example:80",
        ):
            answer = http.get("/api/v1/runs", headers={"Host": host})
            assert (answer.status_code, answer.json()["status"]) == (421, 421), host


def test_every_answer_tells_browsers_what_to_allow(local: Database) -> None:
    with client(create_app(local)) as http:
        for path in ("/", "/api/v1/runs", "/no/such", "/static/app.css", "/healthz"):
            headers = http.get(path).headers
            policy = headers["content-security-policy"]
            assert "script-src 'self';" in policy
            assert "default-src 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"


def test_static_files_are_kept_where_their_address_has_a_version(local: Database) -> None:
    with client(create_app(local)) as http:
        script = http.get("/static/plotly.min.js?v=1")
        assert len(script.content) > 10**6
        assert script.headers["content-type"].startswith("text/javascript")
        assert "immutable" in script.headers["cache-control"]
        assert "immutable" in http.get("/static/app.css?v=1").headers["cache-control"]
        assert "immutable" not in http.get("/static/app.css").headers["cache-control"]
        assert http.get("/static/../app.py").status_code == 404


def test_a_browser_gets_a_page_for_what_is_not_there_and_a_program_a_problem(local: Database) -> None:
    with client(create_app(local)) as http:
        page = http.get("/no/such", headers={"Accept": "text/html,*/*"})
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "There is nothing at this address." in page.text
        problem = http.get("/no/such")
        assert (problem.status_code, problem.headers["content-type"]) == (404, "application/problem+json")
