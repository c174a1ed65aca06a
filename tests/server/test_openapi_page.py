"""The OpenAPI page is true: requests made from it, right and wrong ones, meet a real server on each database.

`schemathesis` makes the requests and checks the answers: no 5xx, nothing that the page does not tell of, every right
request taken, every wrong one refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import sending as s
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from roundoff_server.services.archive import MEDIA_TYPE

with warnings.catch_warnings():  # of its dependencies
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis.checks import CHECKS, load_all_checks

load_all_checks()
schemathesis.serializer.alias(MEDIA_TYPE, "application/octet-stream")

ENDLESS = "/api/v1/events"
"""Its answer never ends; tests of its own read it."""

BATCHES = "POST /api/v1/runs/{run_id}/batches"

NO_LUCK = {BATCHES, "POST /api/v1/archives", "DELETE /api/v1/tokens/{token}"}
"""Of these no request is right by chance."""

TOKEN = "long enough for a test"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}

RUNS = ("r1", "r1", None)
METRICS = ("edq", "scalar:loss", None)
LAYERS = ("a", "a.b", None)
COMPARED = "r1,r2"
"""What is there, so that more than 404 is seen."""

UNTOLD = ("positive_data_acceptance",)
"""Checks left out for batches: that columns have the same length and layers were declared, no schema can tell."""


@pytest.fixture
def served(start_server: Any, database_url: str) -> Iterator[Any]:
    """A server that asks for tokens and holds a run with an alert."""
    with start_server(database_url, ROUNDOFF_ADMIN_TOKEN=TOKEN) as running:
        with httpx.Client(base_url=f"{running.url}/api/v1", headers=HEADERS) as http:
            for run_id in COMPARED.split(","):
                http.put(f"runs/{run_id}", content=s.start().model_dump_json()).raise_for_status()
            batch = s.batch(
                layers=s.layers("a.b", "a.c"),
                **s.steps_of(range(30), s.STALLED, s.STALLED, s.HEALTHY),
                scalars=s.scalars([("loss", step, float(step)) for step in range(30)]),
                headroom=s.headroom([(0, 29), (1, 29)]),
            )
            gzip = {"Content-Encoding": "gzip"}
            http.post("runs/r1/batches", content=s.packed(batch), headers=gzip).raise_for_status()
        yield running


def cases(operation: Any) -> Any:
    """Requests to a route, right and wrong ones, most of them for a run, figures and layers that are there."""
    right, wrong = (
        operation.as_strategy(generation_mode=mode)
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    )
    run_id, metric, layer = (st.sampled_from(there) for there in (RUNS, METRICS, LAYERS))
    return st.builds(placed, right, run_id, metric, layer) | st.builds(aimed, wrong, run_id)


def aimed(case: Any, run_id: str | None) -> Any:
    """The same request for a run that is there, or for any."""
    if run_id is not None and "run_id" in (case.path_parameters or {}):
        case.path_parameters["run_id"] = run_id
    return case


def placed(case: Any, run_id: str | None, metric: str | None, layer: str | None) -> Any:
    """The same right request for what is there; None leaves what it asks for as it is."""
    query = case.query or {}
    for name, there in (("metric", metric), ("layer", layer), ("runs", COMPARED)):
        if there is not None and name in query:
            query[name] = there
    query.pop("cursor", None)  # only the server makes those
    return aimed(case, run_id)


def try_operation(operation: Any, number: int) -> dict[int, int]:
    """Send `number` requests; how many were answered with which status. Raises what schemathesis finds."""
    left_out = [CHECKS.get_one(name) for name in UNTOLD] if operation.label == BATCHES else []
    seen: dict[int, int] = {}

    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=cases(operation))
    def send(case: Any) -> None:
        answer = case.call_and_validate(headers=HEADERS, excluded_checks=left_out)
        seen[answer.status_code] = seen.get(answer.status_code, 0) + 1

    send()
    return seen


@pytest.mark.parametrize(
    "number", [25, pytest.param(500, marks=[pytest.mark.scale, pytest.mark.timeout(3600)])]
)
def test_answers_are_as_the_page_says(served: Any, number: int) -> None:
    page = schemathesis.openapi.from_url(f"{served.url}/api/v1/openapi.json", headers=HEADERS)
    operations = [result.ok() for result in page.exclude(path=ENDLESS).get_all_operations()]
    reads = [operation for operation in operations if operation.method == "get"]
    deletes = [operation for operation in operations if operation.method == "delete"]
    writes = [operation for operation in operations if operation not in (*reads, *deletes)]
    found = {operation.label: try_operation(operation, number) for operation in reads}
    found |= {operation.label: try_operation(operation, number) for operation in writes}
    for operation in reads:  # again, of what was written
        try_operation(operation, number // 2)
    found |= {operation.label: try_operation(operation, number) for operation in deletes}
    assert len(found) > 12
    taken = {label for label, seen in found.items() if any(status < 300 for status in seen)}
    assert set(found) - taken <= NO_LUCK, found
    served.stop()
    assert "Traceback" not in served.process.stderr.read()
