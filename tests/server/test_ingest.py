"""A batch is stored whole, once, or not at all."""

from __future__ import annotations

import gzip
import math
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
import sending as s
from calling import Api
from sqlalchemy import func, select

from roundoff.metrics import HEADROOM_BINS, ROW
from roundoff_server.api import body, ingest
from roundoff_server.models import Attempt, HeadroomSample, LayerSample, ModelSample, Run, ScalarValue

HOSTILE = [
    "a/b",
    "user@host",
    "w[0]",
    "f(x)",
    "k=v",
    "100%",
    "#1",
    "why?",
    "a:b",
    "two words",
    "🦜 emoji",
    "עברית",
    "x" * 1024,
    "🦜" * 1024,
    "<script>alert(1)</script>",
    "'; DROP TABLE runs; --",
    "=cmd()",
    "new\nline",
    "%2F..%2F",
]


def count(api: Api, table: type) -> int:
    with api.database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_again_is_a_no_op(api: Api) -> None:
    api.put(s.start())
    sent = s.batch(
        0,
        layers=s.layers("a", "b"),
        headroom=s.headroom([(0, 1)]),
        scalars=s.scalars([("loss", 1, 2.0)]),
        **s.steps_of([1, 2], s.HEALTHY, s.HEALTHY, s.STALLED),
    )
    assert api.post(sent) == {"status": "accepted", "rows": 10}
    before = api.get("runs/r1")
    api.clock.now += 5
    assert api.post(sent) == {"status": "duplicate", "rows": 0}
    assert api.get("runs/r1") == before
    assert [count(api, table) for table in (LayerSample, ModelSample, ScalarValue)] == [4, 2, 1]
    assert api.post(s.batch(0, writer="w2"))["status"] == "accepted", "another writer counts for itself"


def test_every_column_comes_back(api: Api) -> None:
    api.put(s.start())
    row = {name: index + 1 for index, name in enumerate(ROW)}
    api.post(
        s.batch(layers=s.layers("a"), samples=s.layer_samples({(0, 7): row}), headroom=s.headroom([(0, 7)]))
    )
    with api.database.read() as session:
        stored = session.get(LayerSample, (1, 1, 1, 0, 7))
        assert stored is not None
        assert {name: getattr(stored, name) for name in ROW} == row
        histogram = session.get(HeadroomSample, (1, 1, 1, 0, 7))
        assert histogram is not None
        assert list(struct.unpack(f"<{HEADROOM_BINS}q", histogram.counts)) == list(range(HEADROOM_BINS))
        assert list(struct.unpack(f"<{HEADROOM_BINS}d", histogram.energy)) == list(range(HEADROOM_BINS))


def test_of_rows_with_one_key_the_last_wins(api: Api) -> None:
    api.put(s.start())
    twice = s.scalars([("loss", 1, 1.0), ("loss", 1, 2.0), ("loss", 0, 5.0)])
    api.post(s.batch(0, scalars=twice))
    assert api.get("runs/r1/series", metric="scalar:loss")["values"] == [5.0, 2.0]
    api.post(s.batch(1, scalars=s.scalars([("loss", 1, 3.0), ("loss", 2, 4.0)])))
    assert api.get("runs/r1/series", metric="scalar:loss")["values"] == [5.0, 3.0, 4.0]
    tables = {"layers": s.layers("a"), **s.steps_of([1], s.HEALTHY, s.HEALTHY)}
    api.post(s.batch(2, **tables))
    api.post(s.batch(3, **(tables | s.steps_of([1, 2], s.STALLED, s.STALLED))))
    assert api.get("runs/r1/series", metric="lost_fraction", layer="a")["values"] == [0.99, 0.99]


VALUES = [
    math.nan,
    math.inf,
    -math.inf,
    -0.0,
    0.0,
    5e-324,
    -5e-324,
    2.2250738585072014e-308,
    1e308,
    -1.7976931348623157e308,
    0.1,
    struct.unpack("<d", bytes.fromhex("0100000000000df8"[:16]))[0],
]


def test_scalars_keep_every_bit(api: Api) -> None:
    api.put(s.start())
    api.post(s.batch(scalars=s.scalars([("x", step, value) for step, value in enumerate(VALUES)])))
    with api.database.read() as session:
        bits = session.scalars(select(ScalarValue.bits).order_by(ScalarValue.step)).all()
    assert [struct.pack("<q", pattern) for pattern in bits] == [struct.pack("<d", value) for value in VALUES]
    answered = api.get("runs/r1/series", metric="scalar:x")["values"]
    assert answered[:3] == ["NaN", "Infinity", "-Infinity"]
    for value, text in zip(VALUES, answered, strict=True):
        if not math.isnan(value):
            assert struct.pack("<d", float(text)) == struct.pack("<d", value)


def test_names_may_hold_anything(api: Api) -> None:
    api.put(
        s.start(name=HOSTILE[13], project=HOSTILE[14], config={name: name for name in HOSTILE}, tags=HOSTILE)
    )
    tables = {"layers": s.layers(*HOSTILE), **s.steps_of([1], s.HEALTHY, *[s.HEALTHY] * len(HOSTILE))}
    api.post(s.batch(scalars=s.scalars([(name, 1, 1.5) for name in HOSTILE]), **tables))
    assert [layer["name"] for layer in api.get("runs/r1/layers")] == HOSTILE
    assert set(api.get("runs/r1/heatmap", metric="lost_fraction")["layers"]) == set(HOSTILE)
    for name in HOSTILE:
        assert api.get("runs/r1/series", metric="lost_fraction", layer=name)["values"] == [0.01]
        assert api.get("runs/r1/series", metric=f"scalar:{name}")["values"] == [1.5]
    assert [run["tags"] for run in api.get("runs", project=HOSTILE[14])["runs"]] == [HOSTILE]
    assert len(api.get("runs", q="<SCRIPT>")["runs"]) == 1
    assert api.get("runs", q="%")["runs"] == [], "a search is for text, not for a pattern"


def test_a_layer_keeps_its_id_over_writers(api: Api) -> None:
    api.put(s.start())
    api.post(s.batch(0, "w1", layers=s.layers("a", "b"), samples=s.layer_samples({(0, 1): s.HEALTHY})))
    other = s.layers("b", "c")
    api.post(
        s.batch(
            0, "w2", layers=other, rank=1, samples=s.layer_samples({(0, 1): s.STALLED, (1, 1): s.HEALTHY})
        )
    )
    assert [layer["name"] for layer in api.get("runs/r1/layers")] == ["a", "b", "c"]
    assert api.get("runs/r1/series", metric="lost_fraction", layer="b")["values"] == [0.99]


def refusal(api: Api, sent: object, run_id: str = "r1") -> tuple[int, list[str]]:
    answer = api.send(sent, run_id)  # type: ignore[arg-type]
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, [error["field"] for error in answer.json()["errors"]]


def test_what_does_not_fit_is_refused_by_name_and_leaves_nothing(api: Api) -> None:
    api.put(s.start())
    known = {"layers": s.layers("a")}
    negative = s.layer_samples({(0, 1): {**s.HEALTHY, "lost": -1}})
    beyond = s.model_samples({1: {**s.HEALTHY, "numel": 2**60}})
    cases = {
        "attempt": s.batch(attempt=2),
        "version": s.batch(version=99),
        "samples.layer": s.batch(**known, samples=s.layer_samples({(3, 1): s.HEALTHY})),
        "headroom.layer": s.batch(**known, headroom=s.headroom([(1, 1)])),
        "samples.sums.lost": s.batch(**known, samples=negative),
        "model.sums.numel": s.batch(model=beyond),
        "model.step": s.batch(model=s.model_samples({-1: s.HEALTHY})),
    }
    for field, sent in cases.items():
        assert refusal(api, sent) == (422, [field])
    scalars = s.scalars([("a", 1, 1.0)])
    scalars.names.clear()
    assert refusal(api, s.batch(scalars=scalars)) == (422, ["scalars.name"])
    assert refusal(api, s.batch(), "nobody")[0] == 404
    assert api.get("runs/r1/layers") == []
    assert api.post(s.batch())["status"] == "accepted", "a refused batch has not used up its number"


def test_a_body_that_is_no_batch_is_a_422(api: Api) -> None:
    api.put(s.start())
    for text in ("", "{", "[]", '{"writer": 1}', '{"a": "\\ud800"}', "\xff"):
        answer = api.http.post("/api/v1/runs/r1/batches", content=text.encode("latin-1"))
        assert (answer.status_code, answer.json()["status"]) == (422, 422), text


def test_a_bad_start_names_its_field(api: Api) -> None:
    bad: list[dict[str, object]] = [
        {"name": "a\x00b"},
        {"first_step": 2**63},
        {"token": ""},
        {"promise_s": "NaN"},
        {"name": "x" * 1025},
        {"extra": 1},
    ]
    for fields in bad:
        answer = api.http.put("/api/v1/runs/r1", json={"project": "p", "name": "n", "token": "t", **fields})
        assert answer.status_code == 422
        assert [error["field"] for error in answer.json()["errors"]] == list(fields)


def test_malformed_ids_are_not_found(api: Api) -> None:
    for run_id in ("a b", "-a", "a" * 129, "ü", "a\x00", "%2e%2e"):
        path = f"/api/v1/runs/{run_id}".replace("\x00", "%00")
        for answer in (
            api.http.put(path, content=s.start().model_dump_json()),
            api.http.get(f"{path}/layers"),
            api.http.get("/api/v1/alerts", params={"run_id": run_id}),
        ):
            assert answer.status_code == 404, answer.text
            assert answer.headers["content-type"] == "application/problem+json"


def test_bodies_are_limited(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.put(s.start())
    path, gz = "/api/v1/runs/r1/batches", {"Content-Encoding": "gzip"}
    monkeypatch.setattr(ingest, "MAX_DECOMPRESSED", 2**22)
    bomb = gzip.compress(b" " * (2**22 + 1))
    assert len(bomb) < 2**13
    assert api.http.post(path, content=bomb, headers=gz).status_code == 413
    assert api.http.put("/api/v1/runs/r1", content=b" " * (body.MAX_START + 1)).status_code == 413
    assert api.http.post(path, content=b"no gzip", headers=gz).status_code == 400
    assert api.http.post(path, content=s.packed(s.batch())[:-9], headers=gz).status_code == 400
    assert api.http.post(path, content=b"", headers={"Content-Encoding": "br"}).status_code == 415
    chunks = iter([b" " * 2**20] * 40)
    assert api.http.post(path, content=chunks).status_code == 413


def test_config_may_hold_what_json_cannot(api: Api) -> None:
    text = '{"project": "p", "name": "n", "token": "t", "config": {"a": NaN, "b": [-Infinity, "\\u0000"], "c": 1e400}}'
    assert api.http.put("/api/v1/runs/r1", content=text).status_code == 200
    assert api.get("runs/r1")["config"] == {"a": "NaN", "b": ["-Infinity", "\x00"], "c": "Infinity"}


def test_eight_ranks_start_one_run(api: Api) -> None:
    clients = [api.another_client() for _ in range(8)]

    def one(rank: int) -> int:
        started = clients[rank].put(s.start(rank=rank, world_size=8))
        tables = {"layers": s.layers("a"), **s.steps_of(range(20), s.HEALTHY, s.HEALTHY)}
        clients[rank].post(s.batch(0, f"w{rank}", rank=rank, **tables))
        return int(started["attempt"])

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(one, range(8))) == {1}
    with api.database.read() as session:
        runs, attempts = (session.scalar(select(func.count()).select_from(t)) for t in (Run, Attempt))
        rows = session.execute(select(LayerSample.rank, LayerSample.step)).all()
    assert (runs, attempts) == (1, 1)
    assert {(rank, step) for rank, step in rows} == {(rank, step) for rank in range(8) for step in range(20)}


def test_starting_again_is_starting_once(api: Api) -> None:
    answers = [api.put(s.start("t1")) for _ in range(3)]
    assert answers == [{"run_id": "r1", "attempt": 1, "page": "/runs/r1"}] * 3
    assert api.put(s.start("t2", first_step=5))["attempt"] == 2
    assert api.put(s.start("t1"))["attempt"] == 1, "a late repeat of the first start opens nothing new"
    assert api.get("runs/r1")["attempts"] == 2
