"""First light: runs, attempts, layers, batches, samples, scalars, alerts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
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
SUMS = ("sum_uu", "sum_ua", "sum_aa", "sum_us", "sum_ss", "sum_ww", "expected_roundings")


def _key(name: str) -> sa.Column[int]:
    wide = name in ("step", "seq", "layer_index")
    return sa.Column(name, sa.BigInteger() if wide else sa.Integer(), autoincrement=False, nullable=False)


def _sums() -> list[sa.Column[int] | sa.Column[float]]:
    counts = [sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTS]
    return [*counts, *(sa.Column(name, sa.Double(), nullable=True) for name in SUMS)]


def _sampled(table: str, *parts: str) -> list[sa.Column[int] | sa.PrimaryKeyConstraint]:
    keys = ("run", *parts, "attempt", "rank", "step")
    return [*map(_key, keys), sa.PrimaryKeyConstraint(*keys, name=f"pk_{table}")]


def _owned(table: str, *keys: str) -> list[sa.PrimaryKeyConstraint | sa.ForeignKeyConstraint]:
    return [
        sa.PrimaryKeyConstraint("run", *keys, name=f"pk_{table}"),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=f"fk_{table}_run", ondelete="CASCADE"),
    ]


def upgrade() -> None:
    _runs()
    _attempts()
    _names()
    _samples()
    _alerts()


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("run", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("project", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("client", sa.String(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("heard_at", sa.Double(), nullable=False),
        sa.Column("promise_s", sa.Double(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("lr", sa.Double(), nullable=True),
        sa.Column("lr_step", sa.BigInteger(), nullable=True),
        sa.Column("loss_bits", sa.BigInteger(), nullable=True),
        sa.Column("loss_step", sa.BigInteger(), nullable=True),
        sa.Column("spark", sa.JSON(), nullable=False),
        sa.Column("spark_stride", sa.Integer(), nullable=False),
        sa.Column("spark_seen", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run", name="pk_runs"),
        sa.UniqueConstraint("id", name="uq_runs_id"),
        sqlite_autoincrement=True,
    )


def _attempts() -> None:
    op.create_table(
        "attempts",
        _key("run"),
        _key("number"),
        sa.Column("token", sa.String(128), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("end_step", sa.BigInteger(), nullable=True),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        *_owned("attempts", "number"),
        sa.UniqueConstraint("run", "token", name="uq_attempts_run_token"),
    )
    op.create_table(
        "writers",
        _key("run"),
        sa.Column("writer", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("sampled_step", sa.BigInteger(), nullable=True),
        sa.Column("dropped", sa.JSON(), nullable=False),
        sa.Column("ended", sa.String(16), nullable=True),
        *_owned("writers", "writer"),
    )
    op.create_table(
        "batches",
        _key("run"),
        sa.Column("writer", sa.String(64), nullable=False),
        _key("seq"),
        sa.Column("taken_at", sa.Double(), nullable=False),
        *_owned("batches", "writer", "seq"),
        sqlite_with_rowid=False,
    )


def _names() -> None:
    op.create_table(
        "layers",
        _key("run"),
        _key("layer"),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("shape", sa.JSON(), nullable=False),
        sa.Column("numel", sa.BigInteger(), nullable=False),
        sa.Column("dtype", sa.String(64), nullable=False),
        sa.Column("group_index", sa.Integer(), nullable=False),
        sa.Column("strategy", sa.String(64), nullable=False),
        sa.Column("placement", sa.String(16), nullable=False),
        *_owned("layers", "layer"),
        sa.UniqueConstraint("run", "digest", name="uq_layers_run_digest"),
    )
    op.create_table(
        "declarations",
        _key("run"),
        sa.Column("writer", sa.String(64), nullable=False),
        _key("layer_index"),
        sa.Column("layer", sa.Integer(), nullable=False),
        *_owned("declarations", "writer", "layer_index"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "scalar_names",
        _key("run"),
        _key("scalar"),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        *_owned("scalar_names", "scalar"),
        sa.UniqueConstraint("run", "digest", name="uq_scalar_names_run_digest"),
    )


def _samples() -> None:
    op.create_table("layer_samples", *_sampled("layer_samples", "layer"), *_sums(), sqlite_with_rowid=False)
    op.create_table("model_samples", *_sampled("model_samples"), *_sums(), sqlite_with_rowid=False)
    op.create_table(
        "headroom",
        *_sampled("headroom", "layer"),
        sa.Column("counts", sa.LargeBinary(), nullable=False),
        sa.Column("energy", sa.LargeBinary(), nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "group_samples",
        *_sampled("group_samples", "group_index"),
        sa.Column("lr", sa.Double(), nullable=True),
        sa.Column("weight_decay", sa.Double(), nullable=True),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "scalars",
        *_sampled("scalars", "scalar"),
        sa.Column("bits", sa.BigInteger(), nullable=False),
        sqlite_with_rowid=False,
    )


def _alerts() -> None:
    op.create_table(
        "scopes",
        _key("run"),
        _key("layer"),
        sa.Column("track", sa.JSON(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("health", sa.String(16), nullable=True),
        sa.Column("lost_fraction", sa.Double(), nullable=True),
        sa.Column("efficiency", sa.Double(), nullable=True),
        sa.Column("streak", sa.Integer(), nullable=False),
        sa.Column("since_step", sa.BigInteger(), nullable=True),
        sa.Column("firing", sa.Boolean(), nullable=False),
        *_owned("scopes", "layer"),
    )
    op.create_table(
        "alerts",
        _key("run"),
        _key("number"),
        sa.Column("rule", sa.String(64), nullable=False),
        sa.Column("severity", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("model", sa.Boolean(), nullable=False),
        sa.Column("layers", sa.JSON(), nullable=False),
        sa.Column("layer_count", sa.Integer(), nullable=False),
        sa.Column("headline", sa.String(), nullable=False),
        sa.Column("cure", sa.String(), nullable=False),
        sa.Column("since_step", sa.BigInteger(), nullable=False),
        sa.Column("fired_step", sa.BigInteger(), nullable=True),
        sa.Column("resolved_step", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("fired_at", sa.Double(), nullable=True),
        sa.Column("resolved_at", sa.Double(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        *_owned("alerts", "number"),
    )
    op.create_index("ix_alerts_created_at", "alerts", ["created_at"])
