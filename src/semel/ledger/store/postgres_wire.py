"""A connection to PostgreSQL with a timeout of the client for every answer.

No timeout of the server ends a COMMIT that waits for a synchronous standby, nor a backend that is
stopped. Nothing is cancelled after the timeout, because a cancelled COMMIT is committed all the
same: it is not known whether it happened, and the connection is not used again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from semel.runtime import Clock, SystemClock

if TYPE_CHECKING:
    from collections.abc import Generator

    from semel.ledger.store.postgres_table import Place

T = TypeVar("T")

POLL_S = 0.1
LOG_EVERY_S = 5.0
"""How often the log reports that an answer is still missing."""

log = logging.getLogger("semel")


class Unanswered(psycopg.OperationalError):
    """The server has not answered in time."""


class Wire(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits `answer_s` for an answer at most. Used by one thread at a time.

    Attributes:
        place: where the ledger is in its database, once that was found.
    """

    place: Place | None = None
    _name: str = ""
    _answer_s: float = 0.0
    _clock: Clock = SystemClock()

    def bound(self, name: str, answer_s: float, clock: Clock) -> None:
        """Set how long an answer may take, and the name of the ledger in the log."""
        self._name, self._answer_s, self._clock = name, answer_s, clock

    def is_pooled(self) -> bool:
        """Whether it goes through a connection pool, which has another process id than the
        backend.
        """
        [(backend,)] = self.execute("select pg_backend_pid()").fetchall()
        return bool(backend != self.info.backend_pid)

    def wait(self, gen: Generator[Any, Any, T], *_: Any, **__: Any) -> T:
        """Wait for one answer. Raises `Unanswered` after `answer_s`; the connection is closed."""
        return super().wait(self._watched(gen), interval=POLL_S)

    def _watched(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Pass on what psycopg waits for, and check the clock while nothing is ready."""
        began = self._clock.monotonic() if self._answer_s else 0.0
        log_at = LOG_EVERY_S
        try:
            wants = next(gen)
            while True:
                ready = yield wants
                if not ready and self._answer_s:
                    waited = self._clock.monotonic() - began
                    if waited > self._answer_s:
                        self.pgconn.finish()
                        raise Unanswered(f"no answer within {self._answer_s:g} s")
                    if waited > log_at:
                        log.warning(
                            "the ledger %s has not answered for %.0f s; waiting for up to %g s",
                            self._name,
                            waited,
                            self._answer_s,
                        )
                        log_at += LOG_EVERY_S
                wants = gen.send(ready)
        except StopIteration as end:
            value: T = end.value
            return value
