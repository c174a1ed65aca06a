"""What a client has found of a run before its first step."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("findings", sa.JSON(), nullable=False, server_default="[]"))
