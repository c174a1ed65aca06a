"""Room for the next state of a scope beside the present one: PostgreSQL then writes it there, batch after batch."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE scopes SET (fillfactor = 40)")
