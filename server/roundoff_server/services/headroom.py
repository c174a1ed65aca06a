"""Headroom histograms as they are kept, and what they say: of other learning rates, and of other strategies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from roundoff.metrics import HEADROOM_BINS, HEADROOM_LOW, ROW, Observed, Sums, Totals, advise
from roundoff.metrics.counsel import counsel
from roundoff.metrics.forecast import Crossing, Part, crossings, storage_of
from roundoff.wire import Advised, Crossed, Forecast, HeadroomHistory, LayerForecast, StrategyOption

from ..models import GroupSample, HeadroomSample, LayerRow, LayerSample, Run
from .buckets import Window
from .samples import ranks_of

ROWS = 20_000
"""Histograms that one answer adds up at most."""

ADVICE_SAMPLES = 4
"""Sampled steps with histograms that advice looks at, the newest ones."""

OCTAVES, PER_OCTAVE = 40, 8
"""How far below the present learning rate a forecast looks, and how finely."""

Histogram = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Element counts and energies by bin."""

Moment = tuple[int, int]
"""An attempt and a step of it."""


def read_headroom(
    session: Session, run: Run, window: Window, layers: Sequence[int], asked: str | None, max_steps: int
) -> HeadroomHistory:
    """The histograms of layers, added up, at `max_steps` of the steps in a window that have some, the last included."""
    most = max(1, min(max_steps, ROWS // max(1, len(layers))))
    moments = _spread(_moments(session, window, layers), most)
    found = _added(session, run.run, layers, moments)
    rates = _rates(session, run.run, layers, moments)
    return HeadroomHistory(
        run_id=run.id,
        layer=asked,
        low=HEADROOM_LOW,
        steps=[step for _, step in moments],
        counts=[found[moment][0].tolist() for moment in moments],
        energy=[found[moment][1].tolist() for moment in moments],
        lr=[rates.get(moment) for moment in moments],
    )


def read_forecast(session: Session, run: Run, window: Window) -> Forecast:
    """At which lower learning rates layers, and the model, would have lost so much, by the newest histograms.

    Raises LookupError before there are any.
    """
    layers = _layers(session, run.run)
    moment = _newest(session, window, layers, 1)[-1]
    rates = _group_rates(session, run.run, [moment])
    parts: dict[str, Part] = {}
    for number, (counts, energy) in _by_layer(session, run.run, [moment]).items():
        layer = layers[number]
        rate, storage = rates.get((moment, layer.group_index)), storage_of(layer.strategy)
        if storage is not None and rate is not None and rate > 0:
            sums = Sums(headroom=tuple(counts.tolist()), headroom_energy=tuple(energy.tolist()))
            parts[layer.name] = Part(sums, rate, _falling(rate), storage)
    found = [LayerForecast(name=name, crossed=_crossed(crossings([part]))) for name, part in parts.items()]
    return Forecast(
        run_id=run.id,
        step=moment[1],
        lr=max((rate for rate in rates.values() if rate is not None), default=None),
        model=_crossed(crossings(list(parts.values()))) if _alike(list(parts.values())) else [],
        layers=sorted(found, key=lambda one: -max((crossed.lr for crossed in one.crossed), default=0.0)),
    )


def read_advice(session: Session, run: Run, window: Window) -> Advised:
    """What every strategy would have lost of the newest updates with histograms.

    Raises LookupError before there are any, or where no layer with 16-bit words has attempted anything.
    """
    layers = _layers(session, run.run)
    moments = _newest(session, window, layers, ADVICE_SAMPLES)
    rates = _group_rates(session, run.run, moments[-1:])
    totals = _totals(session, run.run, moments)
    observed = [
        Observed(
            layers[number].name,
            layers[number].strategy,
            layers[number].dtype,
            totals[number],
            counts.tolist(),
            energy.tolist(),
            rates.get((moments[-1], layers[number].group_index)),
        )
        for number, (counts, energy) in _by_layer(session, run.run, moments).items()
        if number in totals
    ]
    try:
        found = advise(observed, moments[-1][1])
    except ValueError as error:
        raise LookupError(str(error)) from None
    return Advised(
        run_id=run.id,
        step=moments[-1][1],
        samples=len(moments),
        recommended=found.recommended,
        used=list(found.used),
        bytes_now=found.now,
        options=[
            StrategyOption(
                strategy=one.strategy,
                bytes=one.bytes,
                lost_fraction=one.lost_fraction,
                descent_efficiency=one.descent_efficiency,
                noise=one.noise,
                against=one.against,
                holds=one.holds,
                measured=one.measured,
            )
            for one in found.options
        ],
        needing=list(found.needing),
        left_out=list(found.left_out),
        text=counsel(found),
    )


def _layers(session: Session, run: int) -> dict[int, LayerRow]:
    return {row.layer: row for row in session.scalars(select(LayerRow).where(LayerRow.run == run))}


def _moments(session: Session, window: Window, layers: Sequence[int]) -> list[Moment]:
    """Attempts and steps of which the first of the layers that has any has histograms, in order of steps."""
    for layer in layers:
        query = select(HeadroomSample.attempt, HeadroomSample.step).where(
            HeadroomSample.run == window.run, HeadroomSample.layer == layer
        )
        known = session.execute(query.distinct()).all()
        spans = window.spans()
        inside = [
            (attempt, step)
            for attempt, step in known
            if any(attempt == number and first <= step < end for number, first, end in spans)
        ]
        if inside:
            return sorted(inside, key=lambda moment: (moment[1], moment[0]))
    return []


def _newest(session: Session, window: Window, layers: dict[int, LayerRow], count: int) -> list[Moment]:
    moments = _moments(session, window, list(layers))[-count:]
    if not moments:
        raise LookupError(
            "this run has no histograms of headroom yet; a watch takes some with its first samples"
        )
    return moments


def _spread(moments: list[Moment], most: int) -> list[Moment]:
    if len(moments) <= most:
        return moments
    chosen = np.unique(np.linspace(len(moments) - 1, 0, most).round().astype("i8"))
    return [moments[index] for index in chosen.tolist()]


def _added(
    session: Session, run: int, layers: Sequence[int], moments: Sequence[Moment]
) -> dict[Moment, Histogram]:
    """Counts and energies of layers and ranks added up, by moment."""
    found = {moment: _empty() for moment in moments}
    for _, moment, counts, energy in _rows(session, run, layers, moments):
        _add(found[moment], counts, energy)
    return found


def _by_layer(session: Session, run: int, moments: Sequence[Moment]) -> dict[int, Histogram]:
    """Counts and energies of moments and ranks added up, by layer."""
    found: dict[int, Histogram] = {}
    layers = session.scalars(select(LayerRow.layer).where(LayerRow.run == run)).all()
    for layer, _, counts, energy in _rows(session, run, layers, moments):
        total = found.setdefault(layer, _empty())
        _add(total, counts, energy)
    return found


def _empty() -> Histogram:
    return np.zeros(HEADROOM_BINS, "i8"), np.zeros(HEADROOM_BINS, "f8")


def _add(total: Histogram, counts: NDArray[np.int64], energy: NDArray[np.float64]) -> None:
    total[0][:] += counts
    with np.errstate(all="ignore"):
        total[1][:] += energy


def _rows(session: Session, run: int, layers: Sequence[int], moments: Sequence[Moment]) -> Any:
    """Layer, moment, counts and energies of single histograms."""
    table = HeadroomSample
    for attempt, where in _keys(session, run, table, moments):
        query = select(table.layer, table.step, table.counts, table.energy)
        for layer, step, counts, energy in session.execute(query.where(table.layer.in_(layers), *where)):
            yield layer, (attempt, step), np.frombuffer(counts, "<i8"), np.frombuffer(energy, "<f8")


def _keys(
    session: Session, run: int, table: Any, moments: Sequence[Moment]
) -> Iterator[tuple[int, list[ColumnElement[bool]]]]:
    """Attempt by attempt the conditions on the whole key, but for its second column, so that rows are found by it."""
    for attempt, ranks in ranks_of(session, run).items():
        steps = [step for number, step in moments if number == attempt]
        if steps:
            yield (
                attempt,
                [table.run == run, table.attempt == attempt, table.rank.in_(ranks), table.step.in_(steps)],
            )


def _totals(session: Session, run: int, moments: Sequence[Moment]) -> dict[int, Totals]:
    """The sums of each layer at some moments, ranks added up."""
    names = [getattr(LayerSample, name) for name in ROW]
    layers = session.scalars(select(LayerRow.layer).where(LayerRow.run == run)).all()
    found: dict[int, Totals] = {}
    for _, where in _keys(session, run, LayerSample, moments):
        query = select(LayerSample.layer, *names).where(LayerSample.layer.in_(layers), *where)
        for layer, *values in session.execute(query):
            row = {name: 0 if value is None else value for name, value in zip(ROW, values, strict=True)}
            found[layer] = found.get(layer, Totals()) + Totals.of(SimpleNamespace(**row))
    return found


def _group_rates(
    session: Session, run: int, moments: Sequence[Moment]
) -> dict[tuple[Moment, int], float | None]:
    """Learning rates by moment and parameter group."""
    groups = session.scalars(select(LayerRow.group_index).where(LayerRow.run == run).distinct()).all()
    found: dict[tuple[Moment, int], float | None] = {}
    for attempt, where in _keys(session, run, GroupSample, moments):
        query = select(GroupSample.step, GroupSample.group_index, GroupSample.lr)
        for step, group, rate in session.execute(query.where(GroupSample.group_index.in_(groups), *where)):
            found[(attempt, step), group] = rate
    return found


def _rates(
    session: Session, run: int, layers: Sequence[int], moments: Sequence[Moment]
) -> dict[Moment, float | None]:
    """The learning rate that layers share at a moment."""
    groups = set(
        session.scalars(
            select(LayerRow.group_index)
            .where(LayerRow.run == run, LayerRow.layer.in_(list(layers)))
            .distinct()
        )
    )
    found = _group_rates(session, run, moments)
    shared = {}
    for moment in moments:
        rates = {found.get((moment, group)) for group in groups}
        shared[moment] = rates.pop() if len(rates) == 1 else None
    return shared


def _falling(rate: float) -> dict[int, float]:
    """Learning rates from the present one down, as the schedule of a forecast."""
    return {number: rate * 2 ** (-number / PER_OCTAVE) for number in range(OCTAVES * PER_OCTAVE)}


def _alike(parts: Sequence[Part]) -> bool:
    """Whether all are at one learning rate, so that a lower one is one number."""
    return len({part.lr for part in parts}) == 1


def _crossed(found: Sequence[Crossing]) -> list[Crossed]:
    return [Crossed(figure=one.figure, level=one.level, lr=one.lr) for one in found]
