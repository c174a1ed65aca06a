"""Runs: one row per training job, with what a list of runs shows kept up to date at ingest."""

from __future__ import annotations

from pydantic import JsonValue
from sqlalchemy import JSON, BigInteger, Double, String
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, Seconds


class Run(Base):
    """`id` is the run's public name, `run` its key in every other table.

    `state` is what was last declared (`stale` is derived when read). `loss_bits` is the 64-bit pattern of the
    last value of the scalar `loss`; `spark` holds a few `[step, bits]` of it, every `spark_stride`-th one.
    `findings` are those of the newest attempt's preflights, each once. `version` is counted up by all that changes
    what is read of the run.
    """

    __tablename__ = "runs"
    __table_args__ = ({"sqlite_autoincrement": True},)

    run: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(128), unique=True)
    project: Mapped[str]
    name: Mapped[str]
    config: Mapped[dict[str, JsonValue]] = mapped_column(JSON, default=dict)
    tags: Mapped[list[str]] = mapped_column(JSON, default=list)
    client: Mapped[str] = mapped_column(default="")
    state: Mapped[str] = mapped_column(String(16), default="running")
    created_at: Mapped[Seconds]
    heard_at: Mapped[Seconds]
    promise_s: Mapped[float] = mapped_column(Double)
    step: Mapped[int | None] = mapped_column(BigInteger)
    lr: Mapped[float | None] = mapped_column(Double)
    lr_step: Mapped[int | None] = mapped_column(BigInteger)
    loss_bits: Mapped[int | None] = mapped_column(BigInteger)
    loss_step: Mapped[int | None] = mapped_column(BigInteger)
    spark: Mapped[list[list[int]]] = mapped_column(JSON, default=list)
    spark_stride: Mapped[int] = mapped_column(default=1)
    spark_seen: Mapped[int] = mapped_column(BigInteger, default=0)
    findings: Mapped[list[dict[str, JsonValue]]] = mapped_column(JSON, default=list, server_default="[]")
    version: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
