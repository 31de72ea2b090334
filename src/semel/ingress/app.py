"""The web application of an ingress: one hot path in plain ASGI, all other paths in Starlette.

Always true:
- events are acknowledged after they are durable, as a whole request or not at all;
- every refusal is a problem document; nothing of a refused request is stored.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from semel.errors import (
    ConfigurationError,
    EventRefused,
    EventTooLarge,
    LedgerError,
    LedgerUnavailable,
    RepeatDiffers,
    plain_text,
)
from semel.events.encoding import ascii_json
from semel.ingress.bodies import Body, ClientGone
from semel.ingress.openapi import DESCRIPTION
from semel.ingress.requests import read_events, read_headers
from semel.ingress.responses import WAIT_S_MAX
from semel.web import PROBLEM_TYPE, HttpProblem, shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request

    from semel.ingress.admission import Admission
    from semel.ingress.group_commit import GroupCommit
    from semel.ingress.metrics import Metrics
    from semel.ingress.requests import Headers
    from semel.ingress.responses import Responses
    from semel.ingress.settings import IngressSettings
    from semel.operate import Outcome
    from semel.streams import Inbox, NewEvent, Stored

    Send = Callable[[Any], Awaitable[None]]
    Receive = Callable[[], Awaitable[Any]]

EVENTS_PATH = "/v1/events"
_JSON = b"application/json"
_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,9})\"?\s*(?=$|[,;])", re.IGNORECASE)


class IngressApp:
    """Takes events for one stream."""

    def __init__(
        self,
        settings: IngressSettings,
        inbox: Inbox,
        writer: GroupCommit,
        admission: Admission,
        responses: Responses,
        counted: Metrics,
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._writer = writer
        self._admission = admission
        self._responses = responses
        self._metrics = counted
        self._others = Starlette(
            routes=[
                Route(EVENTS_PATH + "/{entity:path}/{event}", self._outcome, methods=["GET"]),
                Route(EVENTS_PATH, _never, methods=["POST"]),  # named here for 405
                Route("/healthz", self._health, methods=["GET"]),
                Route("/metrics", self._figures, methods=["GET"]),
                Route("/openapi.json", _describe, methods=["GET"]),
            ],
            exception_handlers={
                HttpProblem: _answer_problem,
                HTTPException: _answer_status,
                LedgerError: _answer_error,
                ConfigurationError: _answer_error,
            },
        )
        # A redirect would be made from the `Host` of the request, whatever that is.
        self._others.router.redirect_slashes = False

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["path"] == EVENTS_PATH and scope["method"] == "POST":
            await self._post(scope, receive, send)
        else:
            await self._others(scope, receive, self._counting(send))

    # -- the hot path

    async def _post(self, scope: Any, receive: Receive, send: Send) -> None:
        """Store the events of a request and answer with their ids."""
        body = Body(receive, self._admission)
        try:
            headers = read_headers(scope["headers"])
            client = self._admission.client(scope, headers)
            with self._admission.held(client):
                status, more, content = await self._store(headers, body)
        except ClientGone:
            return
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                raise
            status, content = problem.status.value, problem.body()
            more = [(b"content-type", PROBLEM_TYPE), *problem.headers()]
            if not body.complete:
                more.append((b"connection", b"close"))
        finally:
            body.release()
        self._metrics.requests[status] += 1
        length = (b"content-length", str(len(content)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [*more, length]})
        if body.complete:
            await send({"type": "http.response.body", "body": content})
        else:
            await send({"type": "http.response.body", "body": content, "more_body": True})
            await body.drain()
            await send({"type": "http.response.body", "body": b""})

    async def _store(
        self, headers: Headers, body: Body
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Store events; return status, headers and content of the answer. Raises as `append`."""
        settings = self._settings
        content = await body.read(headers, settings.request_bytes_max)
        self._admission.require_open()
        events = read_events(headers, content, settings.entity)
        _require_small(events, settings.event_bytes_max)
        stored = await self._writer.submit(events, len(content))
        self._metrics.stored(len(stored), sum(each.repeat for each in stored))
        answer = [
            {"entity": each.entity, "event": each.event, "repeat": each.repeat} for each in stored
        ]
        more = [(b"content-type", _JSON)]
        prefer = headers.get(b"prefer")
        if prefer is not None and (seconds := _wait_of(prefer)) is not None:
            await self._wait(answer, stored, seconds, more)
        return HTTPStatus.CREATED, more, ascii_json({"events": answer}).encode()

    async def _wait(
        self,
        answer: list[dict[str, Any]],
        stored: Sequence[Stored],
        seconds: int,
        more: list[tuple[bytes, bytes]],
    ) -> None:
        """Wait for the outcome of events and put it into the answer."""
        if not self._responses.may_wait(len(stored)):
            return
        seconds = min(seconds, WAIT_S_MAX)
        known_of_each = await self._responses.wait(stored, seconds)
        for each, known in zip(answer, known_of_each, strict=True):
            each["outcomes"] = [outcome.to_json() for outcome in known]
        more.append((b"preference-applied", f"wait={seconds}".encode()))

    # -- the other paths

    def _counting(self, send: Send) -> Send:
        async def count_and_send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests[message["status"]] += 1
            await send(message)

        return count_and_send

    def _admit(self, request: Request) -> None:
        self._admission.client(request.scope, read_headers(request.scope["headers"]))

    async def _outcome(self, request: Request) -> Response:
        self._admit(request)
        entity, typed = request.path_params["entity"], request.path_params["event"]
        if not re.fullmatch("[1-9][0-9]{0,18}", typed):
            raise HttpProblem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "the id of an event is an integer from 1 on",
                field="event",
                value=shown(typed),
            )
        number = int(typed)
        stream = self._settings.stream
        last = await self._responses.last_event(entity)
        if number > last:
            had = f"its newest event is {last}" if last else "it has no event"
            raise HttpProblem(
                HTTPStatus.NOT_FOUND,
                f"stream {stream!r} has no event {number} of entity {shown(entity)!r}: {had}",
                field="event" if last else "entity",
                value=shown(number if last else entity),
            )
        found = await self._responses.outcomes(entity, number)
        return _json_response(_outcome_json(entity, number, found))

    async def _health(self, request: Request) -> Response:
        del request
        self._admission.require_open()
        await self._responses.require_answer(self._inbox.layout)
        return _json_response({"status": "ok", "stream": self._settings.stream})

    async def _figures(self, request: Request) -> Response:
        self._admit(request)
        text, kind = self._metrics.text(len(self._writer), self._admission.bytes)
        return Response(text, headers={"Content-Type": kind})


def problem_of(error: Exception) -> HttpProblem | None:
    """Return the problem that an error is to the client; None for a mistake of semel."""
    if isinstance(error, HttpProblem):
        return error
    if isinstance(error, LedgerUnavailable):
        return HttpProblem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "the ledger does not answer, and it is not known whether the events were stored; send "
            "the request again with the same ids",
            retry_after_s=2,
        )
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            return HttpProblem(status, plain_text(error))
    return None


_STATUS: dict[type[Exception], HTTPStatus] = {
    RepeatDiffers: HTTPStatus.CONFLICT,
    EventTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    EventRefused: HTTPStatus.UNPROCESSABLE_ENTITY,
    LedgerError: HTTPStatus.INTERNAL_SERVER_ERROR,
    ConfigurationError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""The status of each error, the more special errors first."""


def _require_small(events: Sequence[NewEvent], bytes_max: int) -> None:
    for number, event in enumerate(events):
        if len(event.value) > bytes_max:
            raise HttpProblem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the data of an event may have at most {bytes_max} bytes, and this one has "
                f"{len(event.value)}; store its content elsewhere and send a reference",
                event=number,
            )


def _wait_of(prefer: bytes) -> int | None:
    """Return the seconds of `Prefer: wait=10` (RFC 7240); None without it."""
    found = _WAIT.search(prefer.decode("latin-1"))
    return None if found is None else int(found[1])


def _outcome_json(entity: str, event: int, found: Sequence[Outcome]) -> dict[str, Any]:
    return {"entity": entity, "event": event, "outcomes": [each.to_json() for each in found]}


def _json_response(content: dict[str, Any]) -> Response:
    return Response(ascii_json(content), media_type=_JSON.decode())


async def _describe(request: Request) -> Response:
    del request
    return _json_response(DESCRIPTION)


async def _never(request: Request) -> Response:
    raise AssertionError(f"{request.url.path} is answered before Starlette")


def _response_of(problem: HttpProblem) -> Response:
    headers = {name.decode(): value.decode() for name, value in problem.headers()}
    return Response(problem.body(), problem.status.value, headers, media_type=PROBLEM_TYPE.decode())


async def _answer_problem(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HttpProblem)
    return _response_of(error)


async def _answer_error(request: Request, error: Exception) -> Response:
    """Answer an error of a path that stores nothing."""
    del request
    problem = problem_of(error)
    assert problem is not None
    if isinstance(error, LedgerUnavailable):
        detail = "the ledger does not answer; send the request again"
        problem = HttpProblem(problem.status, detail, retry_after_s=problem.retry_after_s)
    return _response_of(problem)


async def _answer_status(request: Request, error: Exception) -> Response:
    """Answer a path or a method that is not there."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    detail = {
        HTTPStatus.NOT_FOUND: "there is nothing at this path; see /openapi.json",
        HTTPStatus.METHOD_NOT_ALLOWED: "this path does not take this method",
    }.get(status, status.phrase)
    headers = tuple(
        (name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()
    )
    problem = HttpProblem(status, detail, headers=headers, value=shown(request.url.path))
    return _response_of(problem)
