"""Group commit: requests that arrive while a commit runs go together into the next one.

Always true:
- one thread appends to the inbox, so the event loop never waits for the ledger;
- a request is answered after its events are durable, or with the error that its append raised;
- what was accepted is committed before `close` returns.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.errors import SemelError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from semel.ingress.metrics import Metrics
    from semel.runtime import Clock
    from semel.streams import Inbox, NewEvent, Stored

_EVENTS_MAX = 2_000
_BYTES_MAX = 8 * 2**20
"""What one commit takes at most, if it is more than one request."""


@dataclass(frozen=True, slots=True)
class _WaitingRequest:
    """A request that waits for its commit."""

    events: Sequence[NewEvent]
    size: int
    answered: asyncio.Future[list[Stored]]


class GroupCommit:
    """Appends requests to an inbox, many in one commit."""

    def __init__(
        self, inbox: Inbox, loop: asyncio.AbstractEventLoop, metrics: Metrics, clock: Clock
    ) -> None:
        self._inbox = inbox
        self._loop = loop
        self._metrics = metrics
        self._clock = clock
        self._queue: deque[_WaitingRequest] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="group-commit", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, events: Sequence[NewEvent], size: int) -> asyncio.Future[list[Stored]]:
        """Put a request into the queue; called by the event loop. The future has where its events
        are stored, or raises the `SemelError` that refused them.
        """
        waiting = _WaitingRequest(events, size, self._loop.create_future())
        with self._changed:
            self._queue.append(waiting)
            self._changed.notify()
        return waiting.answered

    def close(self) -> None:
        """Commit what is in the queue, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while taken := self._take():
            began = self._clock.monotonic()
            answers = self._append(taken)
            seconds = self._clock.monotonic() - began
            self._loop.call_soon_threadsafe(self._answer, taken, answers, seconds)

    def _take(self) -> list[_WaitingRequest]:
        """Wait for requests and return what goes into one commit; nothing at the end."""
        taken: list[_WaitingRequest] = []
        events = size = 0
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            while self._queue:
                first = self._queue[0]
                events += len(first.events)
                size += first.size
                if taken and (events > _EVENTS_MAX or size > _BYTES_MAX):
                    break
                taken.append(self._queue.popleft())
        return taken

    def _append(self, taken: list[_WaitingRequest]) -> Sequence[list[Stored] | Exception]:
        try:
            return self._inbox.append_groups([each.events for each in taken])
        except Exception as error:  # noqa: BLE001 - the thread goes on; each request gets the error
            return [error] * len(taken)

    def _answer(
        self,
        taken: list[_WaitingRequest],
        answers: Sequence[list[Stored] | Exception],
        seconds: float,
    ) -> None:
        """Answer each request; run by the event loop."""
        failed = any(
            isinstance(each, Exception) and not isinstance(each, SemelError) for each in answers
        )
        self._metrics.committed(seconds, failed=failed)
        for waiting, answer in zip(taken, answers, strict=True):
            if waiting.answered.done():  # the client is gone
                continue
            if isinstance(answer, Exception):
                waiting.answered.set_exception(answer)
            else:
                waiting.answered.set_result(answer)
