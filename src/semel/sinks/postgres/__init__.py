"""PostgreSQL as a destination: the effect and its progress row are one transaction."""

from semel.sinks.postgres.manifest_loader import PostgresLoad
from semel.sinks.postgres.sink import Postgres

__all__ = ["Postgres", "PostgresLoad"]
