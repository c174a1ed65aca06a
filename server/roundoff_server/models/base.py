"""What all tables share: the declarative base, the run's integer key, and how time is kept."""

from __future__ import annotations

from typing import Annotated

from sqlalchemy import BigInteger, Double, ForeignKey, Integer, MetaData
from sqlalchemy.orm import DeclarativeBase, mapped_column

NAMING = {
    "ix": "ix_%(column_0_N_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Every primary key of what a run has begins with `run`, so that rows can be spread by run."""

    metadata = MetaData(naming_convention=NAMING)


OwnedByRun = Annotated[
    int, mapped_column(Integer, ForeignKey("runs.run", ondelete="CASCADE"), primary_key=True)
]
"""First key column of a small table that belongs to a run."""

SampledRun = Annotated[int, mapped_column(Integer, primary_key=True, autoincrement=False)]
"""First key column of a large table: no foreign key, because checking it costs a look-up per row."""

Key = Annotated[int, mapped_column(Integer, primary_key=True, autoincrement=False)]
Step = Annotated[int, mapped_column(BigInteger, primary_key=True, autoincrement=False)]
Count = Annotated[int | None, mapped_column(BigInteger)]
"""A count in which NULL reads as 0: most counts are, and PostgreSQL then spends a bit on it, not eight bytes."""

Seconds = Annotated[float, mapped_column(Double)]
"""A moment by the server's clock, in seconds since 1970 UTC: arithmetic on it is the same in both databases."""

Real = Annotated[float | None, mapped_column(Double)]
"""A float that may be NaN; SQLite keeps NaN as NULL, so NULL reads as NaN."""
