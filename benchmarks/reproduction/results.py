"""Finished runs on disk: one JSON file each, written whole or not at all, so that a study can be resumed."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from .recipe import Case, Recipe


class Curve(BaseModel):
    """Figures of the whole model at the measured steps, one entry each; None where a figure is undefined.

    `norm_efficiency` is the descent efficiency of the norms' weights alone, which start at 1.
    """

    model_config = ConfigDict(ser_json_inf_nan="constants")

    step: list[int] = Field(default_factory=list)
    train_loss: list[float] = Field(default_factory=list)
    edq: list[float | None] = Field(default_factory=list)
    update_norm: list[float] = Field(default_factory=list)
    descent_efficiency: list[float | None] = Field(default_factory=list)
    lost_fraction: list[float | None] = Field(default_factory=list)
    invisible_fraction: list[float | None] = Field(default_factory=list)
    norm_efficiency: list[float | None] = Field(default_factory=list)


class Result(BaseModel):
    """One finished run: validation loss in nats per character, curves, and the CPU seconds that it took."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    strategy: str
    arithmetic: str
    beta2: float
    seed: int
    recipe: str
    parameters: int
    loss: float
    curve: Curve
    seconds: float

    @property
    def case(self) -> Case:
        """Which run of the grid it is."""
        return Case(self.strategy, self.arithmetic, self.beta2, self.seed)


def save(result: Result, folder: Path) -> None:
    """Write one finished run; a process that is killed half-way leaves the file as it was, or none."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.case.name}.json"
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(result.model_dump_json(), encoding="utf-8")
    part.replace(path)


def load(folder: Path, recipe: Recipe) -> dict[Case, Result]:
    """The finished runs of a recipe. Raises ValueError where the folder holds runs of another one."""
    found = [Result.model_validate_json(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    foreign = sorted(result.case.name for result in found if result.recipe != recipe.fingerprint)
    if foreign:
        raise ValueError(
            f"{folder} holds runs of another recipe, such as {foreign[0]}; choose another folder"
        )
    return {result.case: result for result in found}
