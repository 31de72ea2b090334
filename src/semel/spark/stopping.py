"""Stops a query where nothing is in doubt: between two micro-batches, or at the border of a window.

The steps of a stop: 1. the ledger says that the run is to stop, which its tasks see at their next
write; 2. no further micro-batch begins; 3. the one that runs ends, complete or with its windows
settled; 4. Spark stops the query; 5. parked events that are being sent get their outcome.

Always true: the micro-batch that runs is not interrupted unless the caller says so.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Protocol

from semel.errors import ConfigurationError, Fenced, SemelError
from semel.runtime import user_at_host
from semel.spark.failures import Stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 0.05
RUN = "_semel_run"
"""The attribute of a query that has its run."""

log = logging.getLogger("semel")


class StoppableRun(Protocol):
    """The run of a query, as far as stopping it needs it."""

    border: MicroBatchBorder | None

    @property
    def fenced(self) -> Fenced | None:
        """The error of a run that was replaced while it had nothing to deliver."""

    def ask_to_stop(self, by: str) -> None:
        """Record in the ledger that the run is to stop."""

    def is_recorded(self) -> bool:
        """Whether the end of the run is recorded, and no parked event is being sent."""


class MicroBatchBorder:
    """The border between two micro-batches of one query. The micro-batches enter and leave on a
    thread of Spark's, another thread closes.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._released = False
        self.closed = self.inside = self.reached = False

    def __enter__(self) -> None:
        """Let a micro-batch begin. At a closed border it waits for the stop, then raises."""
        with self._changed:
            if not self.closed:
                self.inside = True
                return
        self.wait_for_stop()

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self.inside = False
            self._changed.notify_all()

    def wait_for_stop(self) -> None:
        """Wait, on the thread of a micro-batch, until the query is being stopped; then raise what
        Spark takes for the end of a stopped query.
        """
        with self._changed:
            self.closed = self.reached = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._released)
        raise Stopped("the query was stopped in order")

    def close(self) -> None:
        """Let no further micro-batch begin."""
        with self._changed:
            self.closed = True

    def release(self) -> None:
        """Let a micro-batch that waits at the border end: the query is being stopped."""
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait until a micro-batch leaves or reaches the border, for this time at most."""
        with self._changed:
            self._changed.wait(seconds)


def why_fenced(query: Any) -> Fenced | None:
    """Return why a query was stopped that another run replaced; None for another one."""
    run: StoppableRun | None = getattr(query, RUN, None)
    return None if run is None or query.isActive else run.fenced


def stop(query: StreamingQuery) -> None:
    """Stop a query of `semel.deliver` so that nothing is in doubt because of it, and wait until it
    has ended. `query.stop()` of Spark interrupts calls, whose outcome is unknown then.

    The micro-batch that runs is finished, or ends at the border of a window: the next start
    delivers the rest. Runs on the driver, or on a client of Spark Connect that reaches the ledger.
    Raises `ConfigurationError` for another query, `LedgerUnavailable` if the ledger cannot be
    reached from a client of Spark Connect.
    """
    if not hasattr(query, RUN):
        raise ConfigurationError(
            f"query must be a query that semel.deliver(...).start() returned, got {query!r}"
        )
    stop_in_order(query, threading.Event())


def stop_in_order(query: StreamingQuery, at_once: threading.Event) -> None:
    """Stop a query of `semel.deliver` as `stop` does, or as Spark does as soon as `at_once` is set.

    If the ledger cannot be reached, the micro-batch that runs is finished.
    """
    run: StoppableRun = getattr(query, RUN)
    if run.border is None:
        _stop_from_client(query, run, at_once)
        return
    # 1. The tasks learn it from the ledger. It may be away, and the caller may not want to wait.
    run.border.close()
    threading.Thread(target=_ask, args=[run], daemon=True).start()
    stop_at_border(query, run.border, at_once)
    while not (run.is_recorded() or at_once.is_set()):
        at_once.wait(POLL_S)


def _ask(run: StoppableRun) -> None:
    try:
        run.ask_to_stop(user_at_host())
    except SemelError as error:
        log.warning("the query ends after its micro-batch, because the ledger is away: %s", error)


def stop_at_border(
    query: Any,
    border: MicroBatchBorder,
    at_once: threading.Event,
    record: Callable[[], object] = lambda: None,
) -> None:
    """Stop a query once its micro-batch has ended, or as soon as `at_once` is set. The end of the
    run is recorded before, by `record`, where its process ends with the query.
    """
    # 2. and 3. No micro-batch begins, and the one that runs ends.
    border.close()
    while query.isActive and not at_once.is_set() and not border.reached:
        if not border.inside and not query.status["isTriggerActive"]:
            break
        border.wait(POLL_S)
    # 4. Spark stops the query.
    record()
    stopping = threading.Thread(target=query.stop, daemon=True)
    stopping.start()
    while stopping.is_alive() and query.isActive:
        stopping.join(POLL_S)
    border.release()  # Spark takes what is raised now for the end of a stopped query
    stopping.join()


def _stop_from_client(query: Any, run: StoppableRun, at_once: threading.Event) -> None:
    """Ask the run, which is beside a Spark Connect server, and wait: it stops the query itself."""
    run.ask_to_stop(user_at_host())
    while query.isActive and not run.is_recorded() and not at_once.is_set():
        at_once.wait(POLL_S)
    query.stop()
