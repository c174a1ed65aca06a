"""Which steps are measured, by number, by table, and by themselves."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from roundoff.watch.cadence import Automatic, Cadence, cadence


def measured(how: Cadence, until: int, *, first: int = 0, changing: range = range(0)) -> list[int]:
    steps, step = [], how.first(first)
    while step < until:
        steps.append(step)
        step = how.after(step, changed=step in changing)
    return steps


def test_a_number_measures_its_multiples() -> None:
    assert measured(cadence(5), 21) == [0, 5, 10, 15, 20]
    assert measured(cadence(5), 21, first=7) == [10, 15, 20]
    assert measured(cadence(1), 3) == [0, 1, 2]


def test_a_table_holds_from_its_steps_on() -> None:
    assert measured(cadence({0: 1, 3: 10, 35: 100}), 320) == [0, 1, 2, 10, 20, 30, 100, 200, 300]
    assert measured(cadence({50: 25}), 130) == [50, 75, 100, 125]
    assert measured(cadence({0: 10, 5: 2}), 11) == [0, 6, 8, 10]
    assert measured(cadence({0: 7, 3: 1, 4: 7}), 15) == [0, 3, 7, 14]


@pytest.mark.parametrize(
    ("every", "kind", "words"),
    [
        (0, ValueError, "every must be 1 or larger, got 0"),
        (-3, ValueError, "every must be 1 or larger, got -3"),
        ("often", ValueError, "a number of steps, a table or \"auto\", got 'often'"),
        (2.5, TypeError, 'whole number of steps, a table or "auto", got 2.5'),
        ({0: 0}, ValueError, "first steps .0 or more. to intervals .1 or larger., got {0: 0}"),
        ({-1: 5}, ValueError, "got {-1: 5}"),
        ({}, ValueError, "got {}"),
        ({0: 0.5}, TypeError, "whole numbers of steps, got 0: 0.5"),
    ],
)
def test_what_is_no_cadence_is_refused(every: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        cadence(every)


def test_by_itself_dense_at_first_then_sparser() -> None:
    steps = measured(cadence("auto"), 100_000)
    assert steps[:33] == [*range(32), 32]
    assert steps[33:36] == [40, 50, 60]
    pairs = list(itertools.pairwise(steps[33:]))
    assert all(0 < after - before <= max(10, before // 400) for before, after in pairs)
    assert pairs[-1][1] - pairs[-1][0] == 240


@pytest.mark.parametrize(
    ("length", "samples"), [(100, 39), (1_000, 129), (100_000, 1_949), (1_000_000, 2_981)]
)
def test_a_run_of_any_length_makes_a_few_thousand(length: int, samples: int) -> None:
    assert len(measured(Automatic(), length)) == samples
    always = measured(Automatic(), length, changing=range(length))
    assert samples <= len(always) <= 2 * samples


def test_a_verdict_that_changes_is_followed() -> None:
    calm = measured(Automatic(), 60_000)
    turn = next(step for step in calm if step > 50_000)
    steps = measured(Automatic(), 60_000, changing=range(turn, turn + 1))
    at = steps.index(turn)
    assert [step - turn for step in steps[at : at + 11]] == list(range(0, 101, 10))
    assert set(steps[at + 11 :]) <= set(calm)
    steady = Automatic(steady=True)
    assert measured(steady, 60_000, changing=range(60_000)) == calm


def test_by_itself_it_begins_where_a_run_goes_on() -> None:
    assert measured(Automatic(), 500_000 + 3_000, first=500_000)[:35] == [
        *range(500_000, 500_032),
        500_032,
        501_250,
        502_500,
    ]
