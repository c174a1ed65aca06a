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
"""What is there, so that more than 404 is seen."""

UNTOLD = ("positive_data_acceptance",)
"""Checks left out for batches: that columns have the same length and layers were declared, no schema can tell."""


@pytest.fixture
def served(start_server: Any, database_url: str) -> Iterator[Any]:
    """A server that asks for tokens and holds a run with an alert."""
    with start_server(database_url, ROUNDOFF_ADMIN_TOKEN=TOKEN) as running:
        with httpx.Client(base_url=f"{running.url}/api/v1", headers=HEADERS) as http:
            http.put("runs/r1", content=s.start().model_dump_json()).raise_for_status()
            batch = s.batch(
                layers=s.layers("a.b", "a.c"),
                **s.steps_of(range(30), s.STALLED, s.STALLED, s.HEALTHY),
                scalars=s.scalars([("loss", step, float(step)) for step in range(30)]),
                headroom=s.headroom([(0, 1)]),
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
    return st.builds(placed, right, run_id, metric, layer) | st.builds(placed, wrong, run_id)


def placed(case: Any, run_id: str | None, metric: str | None = None, layer: str | None = None) -> Any:
    """The same request for what is there; None leaves what it asks for as it is."""
    for values, name, there in (
        (case.path_parameters, "run_id", run_id),
        (case.query, "metric", metric),
        (case.query, "layer", layer),
    ):
        if there is not None and name in (values or {}):
            values[name] = there
    return case


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
    # What is deleted is deleted last.
    operations.sort(key=lambda operation: operation.method.lower() == "delete")
    found = {operation.label: try_operation(operation, number) for operation in operations}
    assert len(found) > 12
    taken = {label for label, seen in found.items() if any(status < 300 for status in seen)}
    assert set(found) - taken <= NO_LUCK, found
    served.stop()
    assert "Traceback" not in served.process.stderr.read()
