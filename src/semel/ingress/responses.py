"""Answers what became of an event, now or after a wait, without blocking the event loop.

Always true:
- the ledger is read by one thread of its own, and what waits for it is bounded;
- a wait ends with its time, also when the ledger does not answer; so does the question whether it
  answers, which waits for no other one;
- a wait ends when the ingress stops, so that its request is answered.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

from semel.errors import LedgerError
from semel.web import HttpProblem, Lookups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from semel.operate import Outcome, Outcomes
    from semel.streams import Stored

WAIT_S_MAX = 60
WAIT_EVENTS_MAX = 100
WAITS_MAX = 1_024
ANSWERS_S = 2
"""How long the ledger may take to show that it answers; a probe of an orchestrator waits for it."""
_FIRST_S, _LONGEST_S = 0.05, 0.5


class Responses:
    """Looks up outcomes; used by the thread of the event loop."""

    def __init__(self, found: Outcomes) -> None:
        self._found = found
        self._reader = Lookups("responses")
        self._prober = Lookups("health")
        self._waits = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End all waits with what is known, and begin no other one."""
        self._stopping.set()

    def close(self) -> None:
        """Drop what was not looked up yet, and end the threads."""
        self._reader.close()
        self._prober.close()

    async def require_answer(self, call: Callable[[], object]) -> None:
        """Run a call that reads the ledger. Raises `HttpProblem` if it takes longer than a probe
        waits, and what the call raises.
        """
        try:
            async with asyncio.timeout(ANSWERS_S):
                await self._prober.run(call)
        except TimeoutError:
            raise HttpProblem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the ledger did not answer within {ANSWERS_S} seconds",
                retry_after_s=ANSWERS_S,
            ) from None

    async def outcomes(
        self, entity: str, event: int, place: tuple[int, int] | None = None
    ) -> list[Outcome]:
        """Return what became of an event at each sink. Raises `HttpProblem` if too many wait, and
        what the ledger raises.
        """
        return await self._reader.run(lambda: self._found.find(entity, event, place))

    async def last_event(self, entity: str) -> int:
        """Return the id of the newest event of an entity. Raises as `outcomes` does."""
        return await self._reader.run(lambda: self._found.last_event(entity))

    def may_wait(self, events: int) -> bool:
        """Whether a request with so many events may wait for their outcome."""
        return events <= WAIT_EVENTS_MAX and self._waits < WAITS_MAX and not self._stopping.is_set()

    async def wait(self, events: Sequence[Stored], seconds: float) -> list[list[Outcome]]:
        """Return what became of events, once each is settled at each sink, or what is known of them
        after this time or when the ingress stops.
        """
        known: list[list[Outcome]] = [[] for _ in events]
        self._waits += 1
        settled = asyncio.ensure_future(self._settle(events, known))
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            done, _ = await asyncio.wait(
                {settled, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            self._waits -= 1
            settled.cancel()
            stopped.cancel()
        if settled in done:
            settled.result()
        return known

    async def _settle(self, events: Sequence[Stored], known: list[list[Outcome]]) -> None:
        open_ = set(range(len(events)))
        pause = _FIRST_S
        while True:
            for each in sorted(open_):
                try:
                    event = events[each]
                    place = event.partition, event.offset
                    known[each] = await self.outcomes(event.entity, event.event, place)
                except (LedgerError, HttpProblem):
                    break  # what is known stays; the next look may be answered
                if known[each] and all(outcome.settled for outcome in known[each]):
                    open_.discard(each)
            if not open_:
                return
            await _pause(pause)
            pause = min(2 * pause, _LONGEST_S)


async def _pause(seconds: float) -> None:
    """Let other tasks run for this time."""
    ended = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, ended.set)
    await ended.wait()
