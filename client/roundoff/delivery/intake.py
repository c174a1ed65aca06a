"""What a run is handed, looked at before it goes into the pipeline. Nothing here blocks or raises."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from roundoff.wire import Layer

from .collector import BAD_VALUE
from .notices import Notices
from .pipeline import Pipeline
from .records import Scalar
from .sample import Sample
from .values import flat, number as as_number, short

STEP_BACK = "values (step went back)"
SAMPLE_BACK = "points (step went back)"
MANY_NAMES = "values (too many names)"
MAX_NAMES = 10_000
MAX_STEP = 2**53


class Intake:
    """Takes logged values and, as the sink of a watch, samples.

    `next_step` is what a log call without a step gets, and where a restart would go on.
    """

    def __init__(self, pipeline: Pipeline, notices: Notices, first_step: int) -> None:
        self._pipeline, self._notices = pipeline, notices
        self._counts = pipeline.ledger.callers
        self._steps: dict[str, int] = {}
        self._sampled = -1
        self.next_step = first_step

    def log(self, values: Mapping[str, Any], step: int | None) -> None:
        """Numbers at `step`; what is none is dropped, counted and warned of once."""
        if not self._pipeline.open:
            self._pipeline.refuse_forked()
            return
        kept: dict[str, float | Scalar] = {}
        try:
            at = self.next_step if step is None else operator.index(step)
            if not 0 <= at < MAX_STEP:
                raise ValueError(f"a step is 0 or more, not {at}")
            for name, value in flat(values):
                self._keep(kept, name, value, at)
        except Exception as error:  # noqa: BLE001 - whatever a caller's object raises
            self._counts.take(len(kept) + 1)
            self._counts.drop(BAD_VALUE, len(kept) + 1)
            self._notices.warn_once("log", f"log({short(values)}, step={short(step)}) is dropped: {error}")
            return
        self.next_step = max(self.next_step, at + 1)
        if kept:
            self._pipeline.log(at, kept)

    def declare(self, layers: Sequence[Layer]) -> None:
        """New layers of the watch."""
        self._pipeline.declare(layers)

    def sample(self, sample: Sample) -> None:
        """One sampled step, steps ascending."""
        if not self._pipeline.open:
            self._pipeline.refuse_forked()
        elif sample.step <= self._sampled:
            self._drop(SAMPLE_BACK)
            self._notices.warn_once("sample", _went_back("the optimizer's step", self._sampled, sample.step))
        else:
            self._sampled = sample.step
            self._pipeline.sample(sample)

    def _keep(self, kept: dict[str, float | Scalar], name: str, value: object, step: int) -> None:
        """Put one value into `kept`, or count why it is not."""
        last = self._steps.get(name, -1)
        if step < last:
            self._drop(STEP_BACK)
            self._notices.warn_once("step", _went_back(f"the step of {name!r}", last, step))
            return
        number = as_number(value)
        if number is None or (last < 0 and not _can_be_sent(name)):
            self._drop(BAD_VALUE)
            text = f"{name[:100]!r} is {short(value)} ({type(value).__name__}), not a number; it is dropped"
            self._notices.warn_once("value", f"log: {text}")
        elif last < 0 and len(self._steps) >= MAX_NAMES:
            self._drop(MANY_NAMES)
            self._notices.warn_once(
                "names",
                f"more than {MAX_NAMES:,} names are logged; {name[:100]!r} and other new ones are dropped",
            )
        else:
            self._steps[name] = step
            kept[name] = number

    def _drop(self, reason: str) -> None:
        self._counts.take(1)
        self._counts.drop(reason)


def _can_be_sent(name: str) -> bool:
    """Whether a name is 1 to 1,024 characters that both UTF-8 and PostgreSQL can hold."""
    return 0 < len(name) <= 1024 and "\0" not in name and not any("\ud800" <= c <= "\udfff" for c in name)


def _went_back(what: str, last: int, step: int) -> str:
    return (
        f"{what} went back from {last} to {step}; what is older than {last} is dropped. After loading a "
        f"checkpoint begin a new attempt: roundoff.init(run_id=..., first_step={step})"
    )
