"""Layers of a run, and which index each writer declared for them."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from .base import Base, Key, OwnedByRun

MODEL = 0
"""The scope that stands for the whole model; layers count from 1."""


class LayerRow(Base):
    """One parameter tensor. Names may be longer than an index can hold, so `digest` (SHA-256) is unique."""

    __tablename__ = "layers"
    __table_args__ = (UniqueConstraint("run", "digest"),)

    run: Mapped[OwnedByRun]
    layer: Mapped[Key]
    name: Mapped[str]
    digest: Mapped[bytes] = mapped_column(LargeBinary(32))
    shape: Mapped[list[int]] = mapped_column(JSON)
    numel: Mapped[int] = mapped_column(BigInteger)
    dtype: Mapped[str] = mapped_column(String(64))
    group_index: Mapped[int]
    strategy: Mapped[str] = mapped_column(String(64))
    placement: Mapped[str] = mapped_column(String(16))


class Declaration(Base):
    """A writer's index for a layer."""

    __tablename__ = "declarations"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run: Mapped[OwnedByRun]
    writer: Mapped[str] = mapped_column(String(64), primary_key=True)
    layer_index: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    layer: Mapped[int]
