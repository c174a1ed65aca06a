"""Answers as tables of pandas and polars, and what is said without them."""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime

import pandas as pd
import polars as pl
import pytest

from roundoff import to_pandas, to_polars
from roundoff.wire import AlertPage, Heatmap, LayerHealth, RunPage, Series

SERIES = Series(run_id="r", metric="edq", steps=[0, 10, 20], values=[1.0, None, math.nan])


def layer(name: str) -> LayerHealth:
    return LayerHealth(
        id=1,
        name=name,
        shape=[2, 3],
        numel=6,
        dtype="bfloat16",
        strategy="none",
        health=None,
        lost_fraction=0.5,
        descent_efficiency=None,
    )


def test_a_series_is_steps_and_values() -> None:
    frame = to_pandas(SERIES)
    assert list(frame.columns) == ["step", "value"]
    assert frame["step"].tolist() == [0, 10, 20]
    assert frame["value"].isna().tolist() == [False, True, True]
    polar = to_polars(SERIES)
    assert polar["value"].null_count() == 1
    assert polar["value"].is_nan().sum() == 1
    banded = SERIES.model_copy(update={"low": [0.0, 1.0, 2.0], "high": [1.0, 2.0, 3.0]})
    assert to_polars(banded).columns == ["step", "value", "low", "high"]


def test_a_heatmap_is_a_row_for_each_cell() -> None:
    heatmap = Heatmap(
        run_id="r", metric="edq", layers=["a", "b"], steps=[0, 8], values=[[1.0, 2.0], [3.0, None]]
    )
    frame = to_pandas(heatmap)
    assert frame.pivot(index="layer", columns="step", values="value").loc["b", 0] == 3.0
    assert to_polars(heatmap).row(1) == ("a", 8, 2.0)


def test_lists_and_pages_are_a_row_for_each_thing() -> None:
    layers = [layer("a"), layer("b")]
    for frame in (to_pandas(layers), to_polars(layers)):
        assert list(frame["name"]) == ["a", "b"]
        assert list(frame["lost_fraction"]) == [0.5, 0.5]
    assert to_pandas(RunPage(runs=[])).empty
    assert to_polars(AlertPage(alerts=[])).is_empty()


def test_what_is_no_answer_is_refused() -> None:
    with pytest.raises(TypeError, match="not of dict"):
        to_pandas({"a": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(("make", "name"), [(to_pandas, "pandas"), (to_polars, "polars")])
def test_what_is_missing_is_named(make: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"pip install {name}"):
        make(SERIES)  # type: ignore[operator]


def test_of_a_real_server(server: str) -> None:
    import roundoff

    run = roundoff.init("frames", server=server, tags=["x"])
    for step in range(20):
        run.log({"loss": step / 2}, step=step)
    run.finish()
    with roundoff.Client(server) as client:
        assert to_pandas(client.series(run.id, "scalar:loss"))["value"].sum() == sum(range(20)) / 2
        runs = to_polars(client.runs())
        assert runs["id"].to_list() == [run.id]
        assert runs["tags"].to_list() == [["x"]]
        seen = to_pandas(client.run(run.id))["last_seen"][0]
        assert abs((datetime.now(UTC) - seen).total_seconds()) < 60
    assert isinstance(runs, pl.DataFrame)
    assert isinstance(to_pandas(SERIES), pd.DataFrame)
