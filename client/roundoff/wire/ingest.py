"""What a client sends: the start of a run's attempt, and batches of columns."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    model_validator,
)

from roundoff.metrics import COUNTS, HEADROOM_BINS, ROW

from .columns import Column

WIRE_VERSION = 1
"""Counted up when the meaning of a field changes; a server reads its own version and the one before."""

NO_NUL = r"^[^\x00]*$"
"""PostgreSQL's text cannot hold the character NUL, so no name may."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=NO_NUL)]
Word = Annotated[str, StringConstraints(max_length=64, pattern=NO_NUL)]
Text = Annotated[str, StringConstraints(max_length=2000, pattern=NO_NUL)]


def _whole(value: object) -> object:
    """In JSON 2.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
Step = Annotated[int, Field(ge=0, le=2**53), WHOLE]
"""Steps and counts stay whole in a JSON number and in a 64-bit column."""

Small = Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE]
Number = Annotated[int, Field(ge=1, le=2**31 - 1), WHOLE]
"""Ranks, groups, attempts: what a 32-bit column holds."""

RunId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._~-]{0,127}$")]
RunState = Literal["running", "finished", "crashed", "preempted", "stale"]
Placement = Literal["replicated", "sharded"]


class Wire(BaseModel):
    """Base of what travels: unknown fields are refused, non-finite floats are NaN, Infinity, -Infinity."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


MOST_NAMED = 100
"""Layers that a finding names."""


class RunStart(Wire):
    """`PUT /runs/{run_id}`: create or resume, idempotent by `token`.

    `token` names this process life; the same token gets the same attempt number. `first_step` is the first
    optimizer step that this attempt will take. `promise_s` is when the client will next be heard, in seconds.
    """

    version: Annotated[int, WHOLE] = Field(
        WIRE_VERSION, json_schema_extra={"minimum": 1, "maximum": WIRE_VERSION}
    )
    project: Name
    name: Name
    config: dict[str, JsonValue] = Field(default_factory=dict)
    tags: list[Name] = Field(default_factory=list, max_length=64)
    token: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=NO_NUL)]
    first_step: Step = 0
    rank: Small = 0
    world_size: Number = 1
    client: str = Field("", max_length=256, pattern=NO_NUL)
    promise_s: float = Field(60.0, gt=0, allow_inf_nan=False)


class RunChange(Wire):
    """`PATCH /runs/{run_id}`: what people call a run; what is absent stays."""

    project: Name | None = None
    name: Name | None = None
    tags: list[Name] | None = Field(None, max_length=64)


class Layer(Wire):
    """Declaration of one parameter tensor. `index` is its number within the run and attempt's writer."""

    index: Step
    name: Name
    shape: list[Step] = Field(max_length=16)
    numel: Step
    dtype: Word
    group: Small = 0
    strategy: Word = ""
    placement: Placement = "replicated"


class Finding(Wire):
    """What a look at dtypes, settings and weights tells before the first step; `layers` empty: of the whole model."""

    kind: Word
    what: Text
    why: Text
    cure: Text
    layers: list[Name] = Field(default_factory=list, max_length=MOST_NAMED)


class Table(Wire):
    """Columns of one length. `step` (i8) is the optimizer step, counted from 0."""

    step: Column

    def lengths(self) -> dict[str, int]:
        """Length of every column by name, over what each row needs."""
        return {"step": len(self.step)}

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        wrong = {name: n for name, n in self.lengths().items() if n != len(self.step)}
        if wrong:
            raise ValueError(f"columns differ in length from step ({len(self.step)}): {wrong}")
        return self

    def __len__(self) -> int:
        return len(self.step)


class ModelSamples(Table):
    """One row per sampled step: the sums over all watched layers, columns by the names in `metrics.ROW`."""

    sums: dict[str, Column]

    def lengths(self) -> dict[str, int]:
        return super().lengths() | {name: len(column) for name, column in self.sums.items()}

    @model_validator(mode="after")
    def _known_columns(self) -> Self:
        if set(self.sums) != set(ROW):
            missing, unknown = sorted(set(ROW) - set(self.sums)), sorted(set(self.sums) - set(ROW))
            raise ValueError(f"sums need exactly the known columns: missing {missing}, unknown {unknown}")
        for name, column in self.sums.items():
            if column.type != ("i8" if name in COUNTS else "f8"):
                raise ValueError(f"column {name} has type {column.type}")
        return self


class LayerSamples(ModelSamples):
    """One row per layer and sampled step; `layer` (i8) holds declared indices."""

    layer: Column

    def lengths(self) -> dict[str, int]:
        return super().lengths() | {"layer": len(self.layer)}


class Headroom(Table):
    """Histograms, `HEADROOM_BINS` numbers a row, flat: element counts (i8) and energies Σu² (f8)."""

    layer: Column
    counts: Column
    energy: Column

    def lengths(self) -> dict[str, int]:
        flat = {name: len(column) for name, column in (("counts", self.counts), ("energy", self.energy))}
        wrong = {name: n for name, n in flat.items() if n != HEADROOM_BINS * len(self.step)}
        if wrong:
            raise ValueError(f"{HEADROOM_BINS} numbers a row are needed: {wrong}")
        return super().lengths() | {"layer": len(self.layer)}


class GroupSamples(Table):
    """Per parameter group and sampled step: its number, lr and weight decay."""

    group: Column
    lr: Column
    weight_decay: Column

    def lengths(self) -> dict[str, int]:
        columns = (("group", self.group), ("lr", self.lr), ("weight_decay", self.weight_decay))
        return super().lengths() | {name: len(column) for name, column in columns}


class Scalars(Table):
    """What the user logs: `name` (i8) indexes `names`; `value` (f8) keeps its 64-bit pattern."""

    names: list[Name]
    name: Column
    value: Column

    def lengths(self) -> dict[str, int]:
        return super().lengths() | {"name": len(self.name), "value": len(self.value)}


class Batch(Wire):
    """`POST /runs/{run_id}/batches`. `(writer, seq)` makes it idempotent: sending it again is a no-op.

    `layers` declares layers not declared before by this writer, `findings` are those of the preflight. `dropped`
    counts, by reason, what this client has dropped so far in this attempt. `end` closes the attempt after the rows.
    """

    version: Annotated[int, WHOLE] = Field(
        WIRE_VERSION, json_schema_extra={"minimum": 1, "maximum": WIRE_VERSION}
    )
    writer: Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=NO_NUL)]
    seq: Step
    attempt: Number
    rank: Small = 0
    promise_s: float = Field(60.0, gt=0, allow_inf_nan=False)
    layers: list[Layer] = Field(default_factory=list)
    findings: list[Finding] = Field(default_factory=list, max_length=200)
    model: ModelSamples | None = None
    samples: LayerSamples | None = None
    headroom: Headroom | None = None
    groups: GroupSamples | None = None
    scalars: Scalars | None = None
    dropped: dict[Name, Step] = Field(default_factory=dict)
    end: Literal["finished", "crashed", "preempted"] | None = None
