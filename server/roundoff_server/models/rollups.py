"""Roll-ups: what a chart of many steps reads instead of the samples."""

from __future__ import annotations

from sqlalchemy import BigInteger, LargeBinary, String, false
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, Key, OwnedByRun, SampledRun, Step


class Resolution(Base):
    """How finely a run's roll-ups are cut, in steps, powers of two.

    `strip_width` is that of its strips. `unit` is the width of a bucket of the finest rolled-up level, None until
    there are enough samples to tell. `thinned` says that the samples of layers are gone, and these are what is left.
    """

    __tablename__ = "resolutions"

    run: Mapped[OwnedByRun]
    strip_width: Mapped[int] = mapped_column(BigInteger)
    unit: Mapped[int | None] = mapped_column(BigInteger)
    thinned: Mapped[bool] = mapped_column(default=False, server_default=false())


class Block(Base):
    """Summed sums of one layer (0: the whole model) of one attempt, all ranks added up: 64 buckets at most.

    `step` is the first step of the block; `rollups.BLOCK` says what `payload` holds.
    """

    __tablename__ = "blocks"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run: Mapped[SampledRun]
    layer: Mapped[Key]
    attempt: Mapped[Key]
    level: Mapped[Key]
    step: Mapped[Step]
    payload: Mapped[bytes] = mapped_column(LargeBinary)


class BlockMark(Base):
    """How far the blocks of an attempt go: up to `step` for every layer, one block further for those below `layer`.

    `previous` is the block before the one at `step`; there may be empty ones between them.
    """

    __tablename__ = "block_marks"

    run: Mapped[OwnedByRun]
    attempt: Mapped[Key]
    step: Mapped[int] = mapped_column(BigInteger)
    layer: Mapped[int]
    previous: Mapped[int] = mapped_column(BigInteger)


class Strip(Base):
    """One column of the sums for every layer of a run in one bucket of steps, merged over attempts and ranks.

    `payload` packs one number a layer, in the order of their ids; the column `samples` counts the samples.
    """

    __tablename__ = "strips"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run: Mapped[SampledRun]
    name: Mapped[str] = mapped_column(String(32), primary_key=True)
    step: Mapped[Step]
    payload: Mapped[bytes] = mapped_column(LargeBinary)
