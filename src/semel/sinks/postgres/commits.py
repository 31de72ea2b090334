"""COMMIT with an end on the client's side.

No timeout of the server ends a COMMIT that waits for a synchronous standby, and a cancelled one is
committed all the same, though not on the standby. So when time is up nothing is cancelled: nobody
knows, and whoever takes over asks in a transaction whose own COMMIT waits for the standby as well.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any

from psycopg import errors
from psycopg.pq import ExecStatus

from semel.errors import OutcomeUnknown
from semel.ledger.clock import SystemClock

if TYPE_CHECKING:
    import psycopg
    from psycopg.pq.abc import PGconn

_CLOCK = SystemClock()

GRACE_S = 3.0
"""So much longer than the server's own timeouts a COMMIT has: those say what was waited for."""


def commit(connection: psycopg.Connection[tuple[Any, ...]], deadline_s: float, where: str) -> str:
    """Commit and give the server's word for it, which is ROLLBACK for a transaction that failed.

    Raises `OutcomeUnknown` where no answer comes in time. The connection cannot be used then.
    """
    within_s = deadline_s + GRACE_S
    ends = _CLOCK.monotonic() + within_s
    line = connection.pgconn
    line.send_query(b"commit")
    word, failed = "", None
    while True:
        while line.flush() or line.is_busy():
            if not _readable(line, ends - _CLOCK.monotonic()):
                raise OutcomeUnknown(
                    f"{where}: COMMIT was not answered within {within_s:g} s. Does it wait for a "
                    "standby that is away (synchronous_standby_names)?"
                )
            line.consume_input()
        result = line.get_result()
        if result is None:
            break
        if result.status == ExecStatus.FATAL_ERROR:
            failed = errors.error_from_result(result)
        word = (result.command_status or b"").decode()
    if failed is not None:
        raise failed
    return word


def _readable(line: PGconn, seconds: float) -> bool:
    """Wait until something can be read, or what is left can be written; False when time is up."""
    poll = select.poll()
    poll.register(line.socket, select.POLLIN | (select.POLLOUT if line.flush() else 0))
    return seconds > 0 and bool(poll.poll(seconds * 1000))
