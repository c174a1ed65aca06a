"""Alembic's entry: runs on the connection that `migrate.upgrade` holds, or on `sqlalchemy.url` by hand."""

from __future__ import annotations

from alembic import context

from roundoff_server.models import Base

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Base.metadata, compare_type=True)
with context.begin_transaction():
    context.run_migrations()
