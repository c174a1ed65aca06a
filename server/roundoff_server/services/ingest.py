"""Take a batch: everything in it in one transaction, once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import Table, func, select
from sqlalchemy.orm import Session

from roundoff.wire import Batch, BatchTaken, Event, LayerSamples, Scalars

from ..database.rows import put_rows
from ..database.upsert import insert_into, replacing
from ..models import (
    Attempt,
    Declaration,
    GroupSample,
    HeadroomSample,
    LayerRow,
    LayerSample,
    ModelSample,
    Run,
    ScalarName,
    ScalarValue,
    TakenBatch,
    Writer,
)
from . import alerts, decode
from .glance import Glance
from .problems import FieldError
from .runs import ENDED, check_version, find_run, latest_attempt
from .upkeep import Upkeep

MOST_FINDINGS = 200
"""Findings that are kept of a run."""


@dataclass(slots=True)
class Taken:
    """The answer, what listeners should hear once it is committed, and whether many rows were replaced."""

    answer: BatchTaken
    events: list[Event] = field(default_factory=list)
    replaced: bool = False


def digest(name: str) -> bytes:
    """What stands for a name in a unique index: names may be longer than an index entry can be."""
    return hashlib.sha256(name.encode()).digest()


def take(session: Session, run_id: str, batch: Batch, now: float) -> Taken:
    """Store a batch, or recognise it. Raises LookupError for the run, `FieldError` for what does not fit."""
    check_version(batch.version)
    run = find_run(session, run_id, lock=True)
    attempt = session.get(Attempt, (run.run, batch.attempt))
    if attempt is None:
        raise FieldError("attempt", f"run {run_id!r} has no attempt {batch.attempt}; start it with PUT first")
    mark = insert_into(session, TakenBatch.__table__).values(  # type: ignore[arg-type]
        run=run.run, writer=batch.writer, seq=batch.seq, taken_at=now
    )
    if session.execute(mark.on_conflict_do_nothing().returning(TakenBatch.seq)).first() is None:
        return Taken(BatchTaken(status="duplicate"))
    return _Intake(session, run, attempt, batch, now).take()


@dataclass(slots=True)
class _Intake:
    """One new batch on its way into the tables."""

    session: Session
    run: Run
    attempt: Attempt
    batch: Batch
    now: float
    rows: int = 0

    def take(self) -> Taken:
        run, batch = self.run, self.batch
        run.version += 1
        glance = Glance(run) if latest_attempt(self.session, run) == batch.attempt else None
        if glance is not None:  # what an earlier attempt left in its spool says nothing of the present one
            run.heard_at, run.promise_s = max(self.now, run.heard_at), batch.promise_s
        layers = self._declare()
        if glance is not None and batch.findings:
            self._find()
        upkeep = Upkeep(self.session, run, self.attempt, batch.rank)
        model, samples = self._model(upkeep), self._samples(layers, upkeep)
        self._headroom(layers)
        self._groups(glance)
        self._scalars(glance)
        steps = [int(end) for a in (model, samples) if a for end in (a["step"].min(), a["step"].max())]
        if glance is not None and steps:
            glance.reached(max(steps))
        span = self._writer(steps)
        upkeep.roll_up(model, samples, self._watermark())
        alone = span is not None and span.ranks == {batch.rank} and upkeep.all_new
        events = [Event(run_id=run.id, kind="samples", step=run.step)] if self.rows else []
        return Taken(
            BatchTaken(status="accepted", rows=self.rows),
            events + self._judge(span, glance, _joined(model, samples) if alone else None),
            upkeep.widened,
        )

    def _put(self, table: Any, **columns: Any) -> None:
        keys = {"run": self.run.run, "attempt": self.batch.attempt, "rank": self.batch.rank}
        known: Table = table.__table__
        self.rows += put_rows(self.session.connection(), known, {**keys, **columns})

    def _declare(self) -> dict[int, int]:
        """Keep new layers; returns this writer's index → layer id."""
        if self.batch.layers:
            self._keep_layers()
        rows = self.session.execute(
            select(Declaration.layer_index, Declaration.layer).where(
                Declaration.run == self.run.run, Declaration.writer == self.batch.writer
            )
        )
        return {index: layer for index, layer in rows}  # noqa: C416

    def _find(self) -> None:
        """Keep what the preflight has found, of every rank once."""
        new = [finding.model_dump() for finding in self.batch.findings]
        known = self.run.findings
        fresh = [one for place, one in enumerate(new) if one not in known and one not in new[:place]]
        self.run.findings = (known + fresh)[:MOST_FINDINGS]

    def _keep_layers(self) -> None:
        run = self.run.run
        known = {
            row.digest: row.layer
            for row in self.session.execute(
                select(LayerRow.digest, LayerRow.layer).where(LayerRow.run == run)
            )
        }
        layers: dict[int, dict[str, Any]] = {}
        declared: dict[int, dict[str, Any]] = {}
        for layer in sorted(self.batch.layers, key=lambda layer: layer.index):
            number = known.setdefault(digest(layer.name), len(known) + 1)
            kept = layer.model_dump(exclude={"index", "group"})
            layers[number] = kept | {
                "run": run,
                "layer": number,
                "digest": digest(layer.name),
                "group_index": layer.group,
            }
            declared[layer.index] = {
                "run": run,
                "writer": self.batch.writer,
                "layer_index": layer.index,
                "layer": number,
            }
        for table, rows in ((LayerRow, layers), (Declaration, declared)):
            self.session.execute(replacing(self.session, table.__table__), list(rows.values()))  # type: ignore[arg-type]

    def _model(self, upkeep: Upkeep) -> decode.Arrays | None:
        table = self.batch.model
        if table is None or not len(table):
            return None
        arrays = decode.sums(table, "model")
        upkeep.will_store(arrays)
        self._put(ModelSample, **arrays)
        return arrays

    def _samples(self, layers: dict[int, int], upkeep: Upkeep) -> decode.Arrays | None:
        table: LayerSamples | None = self.batch.samples
        if table is None or not len(table):
            return None
        numbers = decode.layer_numbers(table.layer, "samples", layers)
        arrays = decode.sums(table, "samples") | {"layer": numbers}
        upkeep.will_store(arrays)
        self._put(LayerSample, **arrays)
        return arrays

    def _headroom(self, layers: dict[int, int]) -> None:
        table = self.batch.headroom
        if table is None or not len(table):
            return
        counts, energy = decode.histograms(table)
        numbers = decode.layer_numbers(table.layer, "headroom", layers)
        step = decode.steps(table.step, "headroom")
        self._put(HeadroomSample, layer=numbers, step=step, counts=counts, energy=energy)

    def _groups(self, glance: Glance | None) -> None:
        if self.batch.groups is None or not len(self.batch.groups):
            return
        arrays = decode.settings(self.batch.groups)
        self._put(GroupSample, **arrays)
        first = arrays["group_index"] == 0
        if glance is not None and first.any():
            newest = int(np.argmax(np.where(first, arrays["step"], -1)))
            glance.rate(int(arrays["step"][newest]), float(arrays["lr"][newest]))

    def _scalars(self, glance: Glance | None) -> None:
        table = self.batch.scalars
        if table is None or not len(table):
            return
        arrays = decode.scalars(table)
        numbers = self._scalar_numbers(table)
        self._put(ScalarValue, scalar=numbers[arrays["name"]], step=arrays["step"], bits=arrays["bits"])
        if glance is not None and "loss" in table.names:
            chosen = arrays["name"] == table.names.index("loss")
            glance.losses(arrays["step"][chosen].tolist(), arrays["bits"][chosen].tolist())

    def _scalar_numbers(self, table: Scalars) -> Any:
        """The run's number of each of the batch's names; new names are kept."""
        run = self.run.run
        wanted = {digest(name): name for name in table.names}
        known = {
            row.digest: row.scalar
            for row in self.session.execute(
                select(ScalarName.digest, ScalarName.scalar).where(
                    ScalarName.run == run, ScalarName.digest.in_(list(wanted))
                )
            )
        }
        fresh = {key: name for key, name in wanted.items() if key not in known}
        if fresh:
            last = self.session.scalar(select(func.max(ScalarName.scalar)).where(ScalarName.run == run)) or 0
            for number, (key, name) in enumerate(fresh.items(), last + 1):
                self.session.add(ScalarName(run=run, scalar=number, name=name, digest=key))
                known[key] = number
            self.session.flush()
        return np.array([known[digest(name)] for name in table.names], dtype="i8")

    def _writer(self, steps: list[int]) -> alerts.Span | None:
        """Note how far this writer has come; returns the steps that every sampling rank has sent by now."""
        run, batch, session = self.run, self.batch, self.session
        writer = session.get(Writer, (run.run, batch.writer))
        if writer is None:
            writer = Writer(
                run=run.run, writer=batch.writer, attempt=batch.attempt, rank=batch.rank, dropped={}
            )
            session.add(writer)
        before = self._watermark()
        writer.attempt, writer.rank = batch.attempt, batch.rank
        writer.dropped = batch.dropped or writer.dropped
        writer.ended = batch.end or writer.ended
        if steps:
            writer.sampled_step = max(max(steps), writer.sampled_step or 0)
        session.flush()
        after = self._watermark()
        if not steps or not after:
            return None
        low = min([min(steps) - 1, *([min(before.values())] if before else [])])
        return alerts.Span(batch.attempt, frozenset(after), low, min(after.values()))

    def _watermark(self) -> dict[int, int]:
        """Rank → last step it has sent samples of, for ranks that send any."""
        rows = self.session.execute(
            select(Writer.rank, func.max(Writer.sampled_step))
            .where(
                Writer.run == self.run.run,
                Writer.attempt == self.batch.attempt,
                Writer.sampled_step.is_not(None),
            )
            .group_by(Writer.rank)
        )
        return {rank: step for rank, step in rows if step is not None}

    def _judge(
        self, span: alerts.Span | None, glance: Glance | None, samples: alerts.Samples | None
    ) -> list[Event]:
        """Alerts, then the end if there is one. Only the newest attempt is judged."""
        ended = self._end() if glance is not None else None
        if glance is None or (span is None and ended is None):
            return []
        evaluation = alerts.begin(self.session, self.run, self.now)
        if span is not None:
            alerts.evaluate(evaluation, span, samples)
        if ended in ("finished", "crashed"):
            evaluation.close(f"run {ended}")
        evaluation.save()
        events = [Event(run_id=self.run.id, kind="alert", step=self.run.step)] if evaluation.changed else []
        return events + ([Event(run_id=self.run.id, kind="run", step=self.run.step)] if ended else [])

    def _end(self) -> str | None:
        """How the attempt ends with this batch: at once if any writer failed, else when all have finished."""
        if self.batch.end is None:
            return None
        ends = self.session.scalars(
            select(Writer.ended).where(Writer.run == self.run.run, Writer.attempt == self.batch.attempt)
        ).all()
        if self.batch.end == "finished" and None in ends:
            return None
        state = max((end for end in ends if end is not None), key=ENDED.index)
        self.attempt.state = self.run.state = state
        return state


def _joined(model: decode.Arrays | None, samples: decode.Arrays | None) -> alerts.Samples:
    """The rows of a batch as alerts read them."""
    parts = [
        part for part in (model and {**model, "layer": np.zeros(len(model["step"]), "i8")}, samples) if part
    ]
    joined = {
        name: np.concatenate([part[name] for part in parts]) for name in ("layer", "step", *alerts.READ)
    }
    return alerts.Samples(joined.pop("layer"), joined.pop("step"), joined)
