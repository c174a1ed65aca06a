"""What `roundoff.Client` answers as tables of pandas or polars, where they are installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from .wire import AlertPage, Answer, Heatmap, RunPage, Series

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

Answers = Answer | Sequence[Answer]

NESTED = ("spark", "worst_layers", "config", "dropped")
"""Fields of a run that are no cell of a table."""


def columns_of(answer: Answers) -> dict[str, list[Any]]:
    """A table's columns by name.

    A `Series` gives `step`, `value` and, where it is down-sampled, `low` and `high`; a `Heatmap` one row for each
    layer and step: `layer`, `step`, `value`; pages and lists one row for each run, layer or alert, with its plain
    fields. What is undefined is None. Raises TypeError for anything else.
    """
    if isinstance(answer, Series):
        found: dict[str, list[Any]] = {"step": list(answer.steps), "value": list(answer.values)}
        return found | ({"low": list(answer.low), "high": list(answer.high)} if answer.low else {})
    if isinstance(answer, Heatmap):
        return {
            "layer": [layer for layer in answer.layers for _ in answer.steps],
            "step": [*answer.steps] * len(answer.layers),
            "value": list(chain.from_iterable(answer.values)),
        }
    if isinstance(answer, RunPage | AlertPage):
        return _rows(answer.runs if isinstance(answer, RunPage) else answer.alerts)
    if isinstance(answer, Answer):
        return _rows([answer])
    if isinstance(answer, Sequence) and all(isinstance(one, Answer) for one in answer):
        return _rows(answer)
    raise TypeError(f"a table is made of what roundoff.Client answers, not of {type(answer).__name__}")


def to_pandas(answer: Answers) -> pd.DataFrame:
    """A pandas DataFrame of an answer, with the columns of `columns_of`; undefined numbers are NaN.

    Raises ImportError without pandas.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ImportError("this needs pandas: pip install pandas", name=error.name) from None
    return pd.DataFrame(columns_of(answer))


def to_polars(answer: Answers) -> pl.DataFrame:
    """A polars DataFrame of an answer, with the columns of `columns_of`; undefined numbers are null, NaN stays NaN.

    Raises ImportError without polars.
    """
    try:
        import polars as pl
    except ModuleNotFoundError as error:
        raise ImportError("this needs polars: pip install polars", name=error.name) from None
    return pl.DataFrame(columns_of(answer), strict=False)


def _rows(answers: Sequence[Answer]) -> dict[str, list[Any]]:
    if not answers:
        return {}
    names = [name for name in type(answers[0]).model_fields if name not in NESTED]
    rows: list[Mapping[str, Any]] = [{name: getattr(one, name) for name in names} for one in answers]
    return {name: [row[name] for row in rows] for name in names}
