"""Many calls at once, in order per entity: one event loop and one pool of connections.

Always true:
- at most one event of an entity is in flight, and after a failure the later events of its entity
  are not tried;
- a request is written only if its call can end before the chunk's deadline, on a clock that
  continues while the machine is suspended;
- nothing is sent twice unless the service absorbs it, or nothing of it was written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from semel.errors import (
    DeliveryError,
    MissingExtra,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
    plain_text,
)
from semel.runtime import SystemClock
from semel.sinks.http.classify import SHOWN_BYTES, Answer, judged
from semel.sinks.http.http1 import ConnectionBroken, Connections, NeverSent

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from semel.runtime import Clock
    from semel.sinks.callables import Retry
    from semel.sinks.http.auth import Masks
    from semel.sinks.http.responses import Response
    from semel.sinks.http.tunnels import Proxy

    Line = Sequence[int]
    """The places of one entity's events in the chunk, in their order."""

UNTRIED = "not tried: an earlier event of its entity failed"
LATE = "not tried: the time of the chunk (deadline_s) was over"
BROKEN = "not tried: the circuit breaker opened after several calls in a row failed"


class Request(NamedTuple):
    """One call, filled in."""

    target: str
    headers: Mapping[str, str]
    body: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many calls at once, how fast, how long, and when to give up."""

    concurrency: int
    timeout_s: float
    connect_s: float
    deadline_s: float
    retry: Retry
    rate_limit: float | None
    breaker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """The settings that all calls of a session share.

    Attributes:
        where: the service as messages name it.
        origin: scheme, host and port.
        keyed: whether the service absorbs a repeat by its Idempotency-Key.
        proxy: the proxy to tunnel through, if any.
    """

    where: str
    origin: str
    method: str
    headers: Mapping[str, str] = field(repr=False)
    tls: ssl.SSLContext | None
    masks: Masks
    keyed: bool
    proxy: Proxy | None = None


class Calls:
    """The calls of one session. Used by one thread; the loop runs while a chunk is delivered."""

    def __init__(self, settings: CallSettings, limits: Limits, clock: Clock | None = None) -> None:
        self._settings, self._limits = settings, limits
        self._clock: Clock = clock or SystemClock()
        self._random = Random(uuid4().int)
        self._loop, reader = _library()
        self._connections = Connections(
            self._loop,
            settings.origin,
            settings.tls,
            reader=reader,
            connect_s=limits.connect_s,
            timeout_s=limits.timeout_s,
            now=self._clock.monotonic,
            proxy=settings.proxy,
        )
        self._head = _head(settings)
        self._interval = 1.0 / limits.rate_limit if limits.rate_limit else 0.0
        self._next_at = 0.0
        self._not_before = 0.0
        self._latest = 0.0
        self._failed_in_a_row = 0
        self._sleepers: set[asyncio.Future[None]] = set()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run the loop until the work is done; in a thread if a loop is running here, as in a
        notebook.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._loop.run_until_complete(work)
        with ThreadPoolExecutor(1) as aside:
            return aside.submit(self._loop.run_until_complete, work).result()

    def close(self) -> None:
        """Close every connection. Calls that an interrupt left in flight do not go on here."""
        if self._loop.is_closed():
            return
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self.run(self._close(left))
        self._loop.close()

    async def _close(self, left: set[asyncio.Task[Any]]) -> None:
        await asyncio.gather(*left, return_exceptions=True)
        self._connections.close()
        await self._tick()

    # -- many events

    def deliver(
        self, lines: Sequence[Line], request: Callable[[int], Request]
    ) -> dict[int, DeliveryError]:
        """Send every event, the events of a line one after the other; give what failed."""
        failures: dict[int, DeliveryError] = {}
        self.run(self._deliver(lines, request, failures))
        return failures

    async def _deliver(
        self,
        lines: Sequence[Line],
        request: Callable[[int], Request],
        failures: dict[int, DeliveryError],
    ) -> None:
        await self._tick()  # connections that the server closed meanwhile are noticed here
        limits = self._limits
        self._latest = self._clock.monotonic() + limits.deadline_s - limits.timeout_s
        self._failed_in_a_row = 0
        waiting = deque(sorted(lines, key=len, reverse=True))  # the longest would end last

        async def work() -> None:
            while waiting:
                await self._send_line(waiting.popleft(), request, failures)

        count = min(limits.concurrency, len(waiting))
        tasks = [self._loop.create_task(work()) for _ in range(count)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_line(
        self,
        line: Line,
        request: Callable[[int], Request],
        failures: dict[int, DeliveryError],
    ) -> None:
        """Send the events of one entity, up to the first that fails."""
        for at, place in enumerate(line):
            failure = await self._send_one(request, place)
            if failure is not None:
                failures[place] = failure
                failures.update(dict.fromkeys(line[at + 1 :], NotDelivered(UNTRIED)))
                return

    # -- one event

    async def _send_one(
        self, request: Callable[[int], Request], place: int
    ) -> DeliveryError | None:
        try:
            filled = request(place)
        except (NotDelivered, Rejected) as error:
            return error
        except Exception as error:  # noqa: BLE001 - nothing was sent yet
            why = plain_text(f"{type(error).__name__}: {error}")
            return Rejected(f"its request cannot be built ({why})")
        return await self._send(filled)

    async def _send(self, request: Request) -> DeliveryError | None:
        """Call until the outcome is known, while there is patience and time."""
        doubt: OutcomeUnknown | None = None
        last: DeliveryError | None = None
        pauses = self._limits.retry.pauses(self._random, self._loop.time)
        while True:
            if (refused := await self._turn()) is not None:
                return doubt or last or refused
            last = await self._call(request)
            if isinstance(last, Rejected) and doubt is not None:
                return OutcomeUnknown(
                    f"{last} An earlier call of this event may have arrived: {doubt}"
                )
            if last is None or isinstance(last, Rejected):
                return last
            if isinstance(last, OutcomeUnknown):
                if not self._settings.keyed:
                    return last
                doubt = last
            pause = next(pauses, None)
            if pause is None or self._clock.monotonic() + pause > self._latest:
                return doubt or last
            await self._pause(pause)

    async def _turn(self) -> NotDelivered | None:
        """Wait until a call may start; return the reason if none may start any more."""
        now = self._clock.monotonic()
        start = now
        if self._interval:
            start = max(now, self._next_at)
            self._next_at = start + self._interval
        while True:
            if self._broken:
                return NotDelivered(BROKEN)
            start = max(start, self._not_before)
            if start > self._latest:
                return NotDelivered(LATE, max(0.0, self._not_before - now) or None)
            if start <= now:
                return None
            await self._pause(start - now)
            now = self._clock.monotonic()

    async def _call(self, request: Request) -> DeliveryError | None:
        """Make one call and return its outcome; an unclassified error means unknown."""
        where = self._settings.where
        try:
            answer = await self._answer(self._settings.method, request, self._latest)
            outcome = judged(answer, where, self._clock, keyed=self._settings.keyed)
        except NeverSent as error:
            self._note_failure(failed=True)
            return NotDelivered(
                f"{where} could not be reached, nothing was sent ({self._shown(error)})"
            )
        except Exception as error:  # noqa: BLE001 - an unclassified error means unknown
            self._note_failure(failed=True)
            cause = self._shown(f"{type(error).__name__}: {error}")
            return OutcomeUnknown(f"{where} did not answer, it may have arrived ({cause})")
        self._note_failure(failed=answer.status >= 500)
        if isinstance(outcome, NotDelivered) and outcome.retry_after_s is not None:
            wait_s = min(outcome.retry_after_s, self._limits.retry.for_s)
            outcome.retry_after_s = wait_s
            self._not_before = max(self._not_before, self._clock.monotonic() + wait_s)
        return outcome

    def _shown(self, foreign: object) -> str:
        """Return text from outside as it may be in a message: without secrets, on one line."""
        return plain_text(self._settings.masks(str(foreign)), SHOWN_BYTES)

    async def _answer(self, method: str, request: Request, latest: float) -> Answer:
        body = request.body or b""
        head = f"{method} {request.target} HTTP/1.1\r\n{self._head}"
        for name, value in request.headers.items():
            head += f"{name}: {value}\r\n"
        if request.body is not None or method != "GET":
            head += f"Content-Length: {len(body)}\r\n"
        reply = await self._connections.call(f"{head}\r\n".encode("ascii") + body, latest)
        if 200 <= reply.status < 300:
            return Answer(reply.status, whole=reply.whole)
        shown = self._shown(reply.text.decode(errors="replace"))
        return Answer(reply.status, shown, reply.retry_after, reply.whole)

    def ask(self, request: Request) -> int:
        """Make one GET, which has no effect, and return its status. Raises
        `ConnectionBroken` if the response is incomplete: a part may belong to another request.
        """

        async def asking() -> Answer:
            await self._tick()
            return await self._answer("GET", request, inf)

        try:
            answer: Answer = self.run(asking())
        except (NeverSent, ConnectionBroken) as error:
            raise type(error)(self._shown(error)) from None
        if not answer.whole:
            raise ConnectionBroken(f"the response, {answer.status}, is incomplete")
        return answer.status

    # -- time

    @property
    def _broken(self) -> bool:
        return self._failed_in_a_row >= self._limits.breaker

    def _note_failure(self, *, failed: bool) -> None:
        self._failed_in_a_row = self._failed_in_a_row + 1 if failed else 0
        if self._broken:
            for sleeper in self._sleepers:
                _wake(sleeper)

    async def _pause(self, seconds: float) -> None:
        """Let the time pass; the circuit breaker ends every pause."""
        sleeper = self._loop.create_future()
        timer = self._loop.call_later(seconds, _wake, sleeper)
        self._sleepers.add(sleeper)
        try:
            await sleeper
        finally:
            self._sleepers.discard(sleeper)
            timer.cancel()

    async def _tick(self) -> None:
        """Let the loop look at its connections."""
        for _ in range(2):
            await self._pause(0)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def _head(settings: CallSettings) -> str:
    """Write the header lines that every request has; nothing in them ends a line."""
    host = settings.origin.partition("://")[2]
    lines = {"Host": host, **settings.headers}
    assert all(value.isascii() and value.isprintable() for value in lines.values())
    return "".join(f"{name}: {value}\r\n" for name, value in lines.items())


def _library() -> tuple[asyncio.AbstractEventLoop, type[Response]]:
    """Make a loop, and give the reader of responses. Raises `MissingExtra`, which names what to
    install.
    """
    try:
        import uvloop

        from semel.sinks.http.responses import Response
    except ImportError as error:
        name = error.name or "uvloop"
        raise MissingExtra(f"{name} is not installed: pip install 'semel[http]'") from None
    return uvloop.new_event_loop(), Response
