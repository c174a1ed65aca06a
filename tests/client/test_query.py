"""Reading: a server over HTTP, and a database without one, give the same answers and the same errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from samples import layers, sample

import roundoff
from roundoff.query import Client
from roundoff_dashboards.source import Source

STALLING = {
    "attempted": 100.0,
    "lost": 99.0,
    "nonfinite": 0.0,
    "zero_grad": 0.0,
    "sum_uu": 1.0,
    "sum_ua": 0.1,
    "expected_roundings": 50.0,
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, start_server: Any) -> Iterator[tuple[str, Path, str]]:
    """A server's address, its database file, and a run in it."""
    path = tmp_path_factory.mktemp("query") / "filled.db"
    with start_server(f"sqlite:///{path}") as running:
        run = roundoff.init("p", "n [x] 🙂", {"lr": math.nan}, server=running.url, run_id="the-run")
        assert run._pipeline is not None
        run._pipeline.declare(layers(3))
        for step in range(30):
            run._pipeline.sample(
                sample(
                    step,
                    3,
                    attempted=100.0,
                    lost=99.0,
                    sum_uu=1.0,
                    sum_ua=0.1,
                    expected_roundings=50.0,
                    nonfinite=0.0,
                    zero_grad=0.0,
                )
            )
            run.log({"loss": math.inf if step == 7 else float(step)}, step=step)
        run.finish()
        yield running.url, path, run.id


@pytest.fixture(params=["server", "database"])
def client(request: pytest.FixtureRequest, filled: tuple[str, Path, str]) -> Iterator[Client]:
    url, path, _ = filled
    with Client(url) if request.param == "server" else Client(database=str(path)) as client:
        yield client


def test_it_is_a_source_of_pages(client: Client) -> None:
    source: Source = client
    assert source.runs(project="p").runs[0].id == "the-run"
    assert source.runs(project="other").runs == []
    assert source.runs(q="🙂").runs[0].name == "n [x] 🙂"
    assert (source.run("the-run").state, source.run("the-run").health) == ("finished", "stalling")
    assert [layer.name for layer in source.layers("the-run")] == ["layer.0", "layer.1", "layer.2"]
    lost = source.series("the-run", "lost_fraction", layer="layer.1", from_step=10, to_step=12)
    assert (lost.steps, lost.values) == ([10, 11, 12], [0.99] * 3)
    assert source.series("the-run", "scalar:loss").values[7] == math.inf
    heatmap = source.heatmap("the-run", "lost_fraction", max_layers=2)
    assert len(heatmap.layers) == 2
    (alert,) = source.alerts(run_id="the-run").alerts
    assert (alert.project, alert.run_name, alert.layer_count) == ("p", "n [x] 🙂", 3)


def test_what_does_not_exist_is_a_lookup_error(client: Client) -> None:
    for ask in (
        lambda: client.run("nothing"),
        lambda: client.run("a/../b"),
        lambda: client.layers("nothing"),
        lambda: client.series("the-run", "no_such_figure"),
        lambda: client.series("the-run", "lost_fraction", layer="no.such.layer"),
    ):
        with pytest.raises(LookupError):
            ask()


def test_a_refused_argument_is_a_value_error(client: Client) -> None:
    with pytest.raises(ValueError, match="limit"):
        client.runs(limit=0)


def test_a_missing_token_is_a_permission_error(start_server: Any, tmp_path: Path) -> None:
    with start_server(
        f"sqlite:///{tmp_path / 't.db'}", ROUNDOFF_ADMIN_TOKEN="a-long-enough-token"
    ) as running:
        with Client(running.url) as client, pytest.raises(PermissionError):
            client.runs()
        with Client(running.url, "a-long-enough-token") as client:
            assert client.runs().runs == []


def test_nobody_there_is_a_connection_error(nobody: str, black_hole: str) -> None:
    with Client(nobody) as client, pytest.raises(ConnectionError, match="no roundoff server answers"):
        client.runs()
    with (
        Client(black_hole, timeout=0.2) as client,
        pytest.raises(ConnectionError, match="no roundoff server"),
    ):
        client.runs()


@pytest.mark.parametrize("status", [200, 404, 500])
def test_another_kind_of_server_is_a_connection_error(scripted: Any, status: int) -> None:
    scripted.script = lambda method, body: (status, {}, b"<html>hello</html>")
    with Client(scripted.url) as client, pytest.raises(ConnectionError, match="not as a roundoff server"):
        client.runs()


def test_a_database_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"nothing\.db does not exist"):
        Client(database=str(tmp_path / "nothing.db"))
    assert not (tmp_path / "nothing.db").exists()


def test_server_and_database_at_once_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="not both"):
        Client("http://x", database="x.db")
