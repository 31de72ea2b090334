"""What PostgreSQL's errors mean for a chunk: not delivered, rejected, unknown, or misconfigured.

Always true:
- before COMMIT is sent nothing can have arrived: the server rolls back a transaction whose client
  is gone, and semel's statements cannot commit by themselves;
- after it is sent, only an ERROR in answer to it means that it did not happen; a FATAL error may
  come after the commit;
- an event is at fault only if the effect itself failed, never if semel's own rows failed.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError, NotDelivered, OutcomeUnknown, Rejected, SemelError
from semel.ledger.store.libpq import Refused, line

if TYPE_CHECKING:
    import psycopg


class Phase(Enum):
    """How far a transaction came."""

    ROW = "its progress row"
    EFFECT = "the effect"
    COMMIT = "commit"


REJECTS = ("21", "22", "23", "44", "P0", "54000", "54001")
"""Classes and codes that blame the data: cardinality, values, constraints, a view's check, an
exception that a function raised, and what is too large for an index or too deep to parse."""

STOPS = ("0A", "0B", "22P04", "25001", "26", "28", "2B", "2D", "34", "3D", "3F", "42", "55000")
"""Classes and codes that blame the pipeline as written: a person has to change something."""

AWAY = {
    "25006": "is read-only, as a standby is (try target_session_attrs=read-write)",
    "25P03": "ended the transaction because it was idle for deadline_s",
    "40001": "could not serialize this transaction with others, and rolled it back",
    "40P01": "found a deadlock, and rolled the transaction back",
    "53100": "has a full disk; free some space",
    "53300": "has no connection left; raise max_connections, or use fewer partitions",
    "55P03": "did not get a lock within deadline_s",
    "57014": "cancelled a statement that took longer than deadline_s; raise it, or lower "
    "chunk_rows",
    "57P01": "is shutting down, or an administrator ended the connection",
    "57P02": "crashed and is restarting",
    "57P03": "is starting up or shutting down",
}


def classify(error: psycopg.Error, phase: Phase, where: str) -> SemelError:
    """Return the outcome of a chunk in whose transaction this error was raised."""
    state = error.sqlstate or ""
    severity = error.diag.severity_nonlocalized
    if phase is Phase.COMMIT and (not state or severity != "ERROR"):
        return OutcomeUnknown(f"{where}: the answer to COMMIT was lost ({line(error)})")
    if phase is not Phase.ROW and is_data(error):
        return Rejected(f"PostgreSQL rejected it: {reason(error)}")
    if state.startswith(STOPS) or is_misuse(error):
        return ConfigurationError(
            f"{where}: PostgreSQL reports {reason(error)}. Nothing was delivered and nothing "
            "parked; fix the table, the statement or the grant, then restart the query"
        )
    why = AWAY.get(state, "did not complete it" if state else "went away")
    return NotDelivered(f"{where}: the server {why} ({reason(error)})")


def is_data(error: psycopg.Error) -> bool:
    """Whether the error blames the values of the events."""
    import psycopg

    state = error.sqlstate or ""
    if not state:  # the client refused the value before it was sent
        return isinstance(error, psycopg.DataError)
    return state.startswith(REJECTS) and not state.startswith(STOPS)


def is_misuse(error: psycopg.Error) -> bool:
    """Whether the client refused the statement itself, such as a parameter without a column."""
    import psycopg

    misuse = (psycopg.ProgrammingError, psycopg.NotSupportedError)
    return not error.sqlstate and isinstance(error, misuse)


def refused(error: psycopg.Error, settings: dict[str, str], where: str) -> SemelError:
    """Return why there is no connection: a setting to change, or a failure that may pass."""
    why = Refused.of(error, settings)
    if why.misconfigured:
        return ConfigurationError(f"{where}: PostgreSQL refuses the connection: {why.text}")
    return NotDelivered(f"{where}: PostgreSQL cannot be reached: {why.text}")


def reason(error: psycopg.Error) -> str:
    """The server's message, on one line, with its code."""
    if error.sqlstate is None:
        return line(error)
    message = error.diag.message_primary or line(error)
    detail = error.diag.message_detail
    more = f" - {detail}" if detail else ""
    return " ".join(f"{message}{more} ({error.sqlstate})".replace("\0", "").split())
