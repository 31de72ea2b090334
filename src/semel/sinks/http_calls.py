"""Many calls at once, in order per entity: one event loop and one pool of connections.

Always true:
- at most one event of an entity is in flight, and after one that failed the later ones of its
  entity are not tried;
- a call starts only while it can end before the chunk's deadline;
- nothing is sent twice unless the destination absorbs it, or nothing of it was written: aiohttp's
  own repeat of a request on another connection is refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from semel.errors import DeliveryError, MissingExtra, NotDelivered, OutcomeUnknown, Rejected
from semel.ledger.clock import SystemClock
from semel.sinks.http_answers import SHOWN_BYTES, Answer, judged

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    import aiohttp

    from semel.ledger.clock import Clock
    from semel.sinks.http_secrets import Masks
    from semel.sinks.retry import Retry

    Line = Sequence[int]
    """The places of one entity's events in the chunk, in their order."""

UNTRIED = NotDelivered("not tried: an event of its entity before it failed")
LATE = NotDelivered("not tried: the chunk's time (deadline_s) was over")
BROKEN = NotDelivered("not tried: the circuit breaker opened after calls that failed in a row")

KEEPALIVE_S = 4.0
"""Shorter than common servers keep an idle connection, so that seldom one closes as we write."""


class Request(NamedTuple):
    """One call, filled in."""

    url: str
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
    rate_limit: float | None = None
    breaker: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What every call of a session has in common.

    Attributes:
        where: the destination as messages name it.
        keyed: whether the destination absorbs a repeat by its Idempotency-Key.
    """

    where: str
    method: str
    headers: Mapping[str, str] = field(repr=False)
    tls: ssl.SSLContext | None
    masks: Masks
    keyed: bool


class NeverWritten(Exception):
    """The connection was gone before the first byte of the request."""


class Mark:
    """Whether the request of a call began to be written."""

    __slots__ = ("began",)

    def __init__(self) -> None:
        self.began = False


_mark: ContextVar[Mark] = ContextVar("semel_http_mark")


def libraries() -> tuple[Any, Any, Any]:
    """Give aiohttp, uvloop and yarl. Raises `MissingExtra`, which names what to install."""
    try:
        import aiohttp
        import uvloop
        import yarl
    except ImportError:
        raise MissingExtra("pip install 'semel[http]'") from None
    return aiohttp, uvloop, yarl


def _request_class(library: Any) -> type[aiohttp.ClientRequest]:
    """Make the request that marks its call before its first byte is written, and goes out once."""

    class MarkedRequest(library.ClientRequest):  # type: ignore[misc]
        async def send(self, conn: Any) -> Any:
            mark = _mark.get()
            if mark.began:
                raise OutcomeUnknown("the connection broke after the request was written")
            transport = conn.transport
            if transport is None or transport.is_closing():
                raise NeverWritten
            mark.began = True
            return await super().send(conn)

    return MarkedRequest


class Calls:
    """The calls of one session. Used by one thread; the loop runs while a chunk is delivered."""

    def __init__(self, door: Door, limits: Limits, clock: Clock | None = None) -> None:
        self._aiohttp, uvloop, self._yarl = libraries()
        self._door, self._limits = door, limits
        self._clock: Clock = clock or SystemClock()
        self._random = Random(uuid4().int)
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._client: aiohttp.ClientSession = self.run(self._opened())
        self._never = (
            self._aiohttp.ClientConnectorError,
            self._aiohttp.ConnectionTimeoutError,
            NeverWritten,
        )
        self._url = partial(self._yarl.URL, encoded=True)  # as it is: values are encoded already
        self._interval = 1.0 / limits.rate_limit if limits.rate_limit else 0.0
        self._next_at = 0.0
        self._not_before = 0.0
        self._latest = 0.0
        self._failed_in_a_row = 0
        self._sleepers: set[asyncio.Future[None]] = set()

    async def _opened(self) -> aiohttp.ClientSession:
        library, limits = self._aiohttp, self._limits
        connector = library.TCPConnector(
            limit=limits.concurrency,
            ssl=True if self._door.tls is None else self._door.tls,
            keepalive_timeout=KEEPALIVE_S,
        )
        client: aiohttp.ClientSession = library.ClientSession(
            connector=connector,
            headers=self._door.headers,
            request_class=_request_class(library),
            cookie_jar=library.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            timeout=library.ClientTimeout(
                total=limits.timeout_s, connect=limits.connect_s, ceil_threshold=float("inf")
            ),
        )
        client._retry_connection = False  # noqa: SLF001 - `MarkedRequest` sees to it as well
        return client

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Let the loop run until the work is done."""
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        """Close every connection; a loop that is closed already is left alone."""
        if self._loop.is_closed():
            return
        self.run(self._close())
        self._loop.close()

    async def _close(self) -> None:
        await self._client.close()
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
        self._latest = self._loop.time() + limits.deadline_s - limits.timeout_s
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
                failures.update(dict.fromkeys(line[at + 1 :], UNTRIED))
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
            return Rejected(f"its request cannot be made ({type(error).__name__}: {error})")
        return await self._send(filled)

    async def _send(self, request: Request) -> DeliveryError | None:
        """Call until the outcome is known, while there is patience and time."""
        doubt: OutcomeUnknown | None = None
        last: DeliveryError | None = None
        pauses = None
        while True:
            if (refused := await self._turn()) is not None:
                return doubt or last or refused
            last = await self._call(request)
            if last is None or isinstance(last, Rejected):
                return last
            if isinstance(last, OutcomeUnknown):
                if not self._door.keyed:
                    return last
                doubt = last
            if pauses is None:
                pauses = self._limits.retry.pauses(self._random)
            pause = next(pauses, None)
            if pause is None or self._loop.time() + pause > self._latest:
                return doubt or last
            await self._pause(pause)

    async def _turn(self) -> NotDelivered | None:
        """Wait until a call may start; say why when none may any more."""
        now = self._loop.time()
        start = now
        if self._interval:
            start = max(now, self._next_at)
            self._next_at = start + self._interval
        while True:
            if self._broken:
                return BROKEN
            start = max(start, self._not_before)
            if start > self._latest:
                return LATE
            if start <= now:
                return None
            await self._pause(start - now)
            now = self._loop.time()

    async def _call(self, request: Request) -> DeliveryError | None:
        """Make one call and say what came of it; an error nobody classified is unknown."""
        mark = Mark()
        _mark.set(mark)
        try:
            answer = await self._answer(self._door.method, request)
        except Exception as error:  # noqa: BLE001 - an error nobody classified is unknown
            self._note_failure(failed=True)
            return self._unanswered(error, mark)
        self._note_failure(failed=answer.status >= 500)
        outcome = judged(answer, self._door.where, self._clock, keyed=self._door.keyed)
        if isinstance(outcome, NotDelivered) and outcome.retry_after_s is not None:
            wait_s = min(outcome.retry_after_s, self._limits.retry.for_s)
            outcome.retry_after_s = wait_s
            self._not_before = max(self._not_before, self._loop.time() + wait_s)
        return outcome

    async def _answer(self, method: str, request: Request) -> Answer:
        reply = await self._client.request(
            method,
            self._url(request.url),
            headers=request.headers,
            data=request.body,
            allow_redirects=False,
        )
        text = b""
        try:
            text = await _beginning(reply)
        except Exception:  # noqa: BLE001 - the status is the answer, the rest only explains it
            reply.close()
        shown = "" if reply.status < 300 else self._shown(text)
        return Answer(reply.status, shown, reply.headers.get("Retry-After"))

    def _shown(self, text: bytes) -> str:
        return self._door.masks(text.decode(errors="replace"))[:SHOWN_BYTES]

    def _unanswered(self, error: Exception, mark: Mark) -> DeliveryError:
        """Say what a call without an answer means: what may have been written is unknown."""
        where = self._door.where
        told = self._door.masks(f"{type(error).__name__}: {error}".rstrip(": "))
        if not mark.began and isinstance(error, self._never):
            return NotDelivered(f"{where} could not be reached, nothing was sent ({told})")
        return OutcomeUnknown(f"{where} did not answer, it may have arrived ({told})")

    def ask(self, request: Request) -> int:
        """Make one GET, which has no effect, and give its status."""

        async def asking() -> Answer:
            await self._tick()
            _mark.set(Mark())
            return await self._answer("GET", request)

        status: int = self.run(asking()).status
        return status

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


async def _beginning(reply: aiohttp.ClientResponse) -> bytes:
    """Read a response to its end, so that its connection can be used again; a long one not."""
    text = b""
    content = reply.content
    while len(text) <= SHOWN_BYTES * 4:
        part = await content.readany()
        if not part:
            reply.release()
            return text
        text += part
    reply.close()
    return text
