"""The version of the ledger's table: one row of it, written when the table is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.errors import ConfigurationError
from semel.ledger.damage import Fields, decode_row
from semel.ledger.payloads import dump
from semel.ledger.store.commit import Key

if TYPE_CHECKING:
    from semel.ledger.store.commit import Payload

SCHEMA_VERSION = 1
SCHEMA_KEY = Key("semel", "schema")
SCHEMA = dump({"version": SCHEMA_VERSION})


def check_schema(payload: Payload | None, ledger: str) -> None:
    """Raise `ConfigurationError` if the row at `SCHEMA_KEY` is missing or of an unknown version,
    `DamagedRow` if it cannot be read.
    """
    if payload is None:
        raise ConfigurationError(
            f"the ledger {ledger} has lost the row of its schema version: its rows were removed by "
            "another program. Restore it; or drop the empty table, which forgets what was delivered"
        )
    version = decode_row(
        SCHEMA_KEY.table, SCHEMA_KEY, payload, lambda row: Fields(row).integer("version")
    )
    if version != SCHEMA_VERSION:
        raise ConfigurationError(
            f"the ledger {ledger} has schema version {version}, this semel knows {SCHEMA_VERSION}:"
            " upgrade semel"
        )
