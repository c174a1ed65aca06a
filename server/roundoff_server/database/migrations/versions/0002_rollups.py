"""Roll-ups: blocks of one layer's buckets, and strips of all layers. A count of 0 may be kept as NULL."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COUNTS = (
    "numel",
    "attempted",
    "lost",
    "invisible",
    "unchanged",
    "decay_attempted",
    "decay_lost",
    "v_attempted",
    "v_stuck",
    "v_stuck_high",
    "underflowed",
    "v_underflowed",
    "nonfinite",
    "zero_grad",
    "skipped",
    "frozen",
    "frozen_of",
)


def _key(name: str) -> sa.Column[int]:
    kind = sa.BigInteger() if name == "step" else sa.Integer()
    return sa.Column(name, kind, autoincrement=False, nullable=False)


def _owner(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["run"], ["runs.run"], name=f"fk_{table}_run", ondelete="CASCADE")


def upgrade() -> None:
    _resolutions()
    _payloads()
    _nullable_counts()
    version = sa.Column("version", sa.BigInteger(), nullable=False, server_default="0")
    op.add_column("runs", version)


def _resolutions() -> None:
    op.create_table(
        "resolutions",
        _key("run"),
        sa.Column("strip_width", sa.BigInteger(), nullable=False),
        sa.Column("unit", sa.BigInteger(), nullable=True),
        sa.Column("thinned", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("run", name="pk_resolutions"),
        _owner("resolutions"),
    )
    op.create_table("removals", _key("run"), sa.PrimaryKeyConstraint("run", name="pk_removals"))
    op.create_table(
        "block_marks",
        _key("run"),
        _key("attempt"),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("layer", sa.Integer(), nullable=False),
        sa.Column("previous", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run", "attempt", name="pk_block_marks"),
        _owner("block_marks"),
    )


def _payloads() -> None:
    keys = ("run", "layer", "attempt", "level", "step")
    op.create_table(
        "blocks",
        *map(_key, keys),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint(*keys, name="pk_blocks"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "strips",
        _key("run"),
        sa.Column("name", sa.String(32), nullable=False),
        _key("step"),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run", "name", "step", name="pk_strips"),
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name == "postgresql":
        # They are dense already: trying to compress them costs more than reading them.
        for table in ("blocks", "strips"):
            op.execute(f"ALTER TABLE {table} ALTER COLUMN payload SET STORAGE EXTERNAL")


def _nullable_counts() -> None:
    for table in ("layer_samples", "model_samples"):
        # SQLite cannot change a column: the table is written anew.
        with op.batch_alter_table(table, table_kwargs={"sqlite_with_rowid": False}) as batch:
            for name in COUNTS:
                batch.alter_column(name, existing_type=sa.BigInteger(), nullable=True)
