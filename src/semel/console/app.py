"""The web application of a console: routes, logging in, live figures, files of its own, errors.

Always true:
- every answer has the headers against foreign content, frames and sniffing, errors too;
- an error is a page that says what is wrong and what to do, without a traceback.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from semel.console.access import NEW_VISITOR, SESSION_S, Visitor, cookie_name
from semel.console.fields import own_path, read_form, read_query
from semel.console.live import LivePage
from semel.console.pages import Pages
from semel.errors import ConfigurationError, LedgerUnavailable, SemelError
from semel.web import HttpProblem, Lookups

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from semel.console.access import Access
    from semel.console.live import LiveFigures
    from semel.console.render import Renderer
    from semel.ledger import Ledger

    Send = Callable[[Any], Awaitable[None]]
    Receive = Callable[[], Awaitable[Any]]
    Answer = Callable[[Request, Visitor], Awaitable[Response]]

log = logging.getLogger("semel.console")

_HEADERS = (
    (
        b"content-security-policy",
        (
            b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
            b"object-src 'none'"
        ),
    ),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    # Not no-referrer: with it browsers send forms with `Origin: null`, and the origin of a form
    # could not be checked. Other sites get nothing with either.
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)

_FILES = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class ConsoleApp:
    """Shows one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        renderer: Renderer,
        access: Access,
        live: LiveFigures,
        lookups: Lookups,
    ) -> None:
        self._ledger = ledger
        self._renderer = renderer
        self._access = access
        self._live = live
        self._lookups = lookups
        folder = Path(__file__).with_name("static")
        self._files = {name: (folder / name).read_bytes() for name in _FILES}
        pages = Pages(ledger, renderer, access, live, lookups)
        self._app = Starlette(
            routes=[
                Route("/", self._known(pages.pipelines)),
                Route("/pipeline", self._known(pages.pipeline)),
                Route("/parked", self._known(pages.parked)),
                Route("/parked/event", self._known(pages.event)),
                Route("/parked/event", self._known(pages.resolve), methods=["POST"]),
                Route("/find", self._known(pages.find)),
                Route("/live", self._known(self._stream)),
                Route("/login", self._log_in, methods=["POST"]),
                Route("/logout", self._known(self._log_out), methods=["POST"]),
                Route("/static/{name}", self._file),
                Route("/healthz", self._health),
            ],
            exception_handlers={
                HttpProblem: self._problem,
                HTTPException: self._problem,
                SemelError: self._problem,
                Exception: self._problem,
            },
        )

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                named = {name.lower() for name, _ in message["headers"]}
                headers = [each for each in _HEADERS if each[0] not in named]
                if b"cache-control" not in named:
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message["headers"], *headers]}
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _known(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of requests of visitors who are logged in."""

        async def handle(request: Request) -> Response:
            self._access.require_place(request)
            visitor = self._access.visitor(request)
            if visitor is None:
                return self._log_in_first(request)
            return await answer(request, visitor)

        return handle

    # -- logging in and out

    async def _log_in(self, request: Request) -> Response:
        self._access.require_place(request)
        form = await read_form(request)
        self._access.require_form(NEW_VISITOR, form)
        target = own_path(form.get("next", "/"))
        if not self._access.has_tokens:
            return RedirectResponse(target, HTTPStatus.SEE_OTHER)
        address = "" if request.client is None else request.client.host
        cookie = self._access.log_in(form.get("token", "").strip(), address)
        if cookie is None:
            return self._login_page(target, "this is not a token of the console's token file")
        response = RedirectResponse(target, HTTPStatus.SEE_OTHER)
        secure = request.headers.get("origin", "").startswith("https://")
        response.set_cookie(
            cookie_name(request),
            cookie,
            int(SESSION_S),
            secure=secure,
            httponly=True,
            samesite="strict",
        )
        return response

    async def _log_out(self, request: Request, visitor: Visitor) -> Response:
        self._access.require_form(visitor, await read_form(request))
        self._access.log_out(visitor)
        response = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        response.delete_cookie(cookie_name(request), httponly=True, samesite="strict")
        return response

    def _log_in_first(self, request: Request) -> Response:
        """Answer a visitor who is not known: with the form to log in, or where no page was asked
        for, with a problem.
        """
        if request.method != "GET" or request.url.path == "/live":
            raise HttpProblem(
                HTTPStatus.UNAUTHORIZED,
                "the request has no token of this console; log in, or send `Authorization: Bearer "
                "TOKEN`",
                headers=((b"www-authenticate", b"Bearer"),),
            )
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A link from another site: the browser keeps the cookie back, and sends it when this
            # page itself asks for the same address again.
            text = self._renderer.page("again.html")
            return Response(text, HTTPStatus.UNAUTHORIZED, media_type="text/html")
        query = f"?{request.url.query}" if request.url.query else ""
        return self._login_page(own_path(request.url.path + query), "")

    def _login_page(self, target: str, trouble: str) -> Response:
        token = self._access.form_token(NEW_VISITOR)
        values = {"visitor": None, "form_token": token, "target": target, "trouble": trouble}
        text = self._renderer.page("login.html", **values)
        return Response(text, HTTPStatus.UNAUTHORIZED, media_type="text/html")

    # -- figures, files, errors

    async def _stream(self, request: Request, visitor: Visitor) -> Response:
        fields = read_query(request)
        self._live.require_room()
        page = LivePage(fields.get("pipeline"), fields.get("after", ""))
        events = self._live.stream(page, lambda: self._access.visitor(request) == visitor)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _file(self, request: Request) -> Response:
        self._access.require_place(request)
        name = request.path_params["name"]
        if name not in self._files:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        headers = {"cache-control": "no-cache"}
        return Response(self._files[name], headers=headers, media_type=_FILES[name])

    async def _health(self, request: Request) -> Response:
        self._access.require_place(request)
        await self._lookups.run(lambda: list(self._ledger.store.scan("pipelines", "", limit=1)))
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def _problem(self, request: Request, error: Exception) -> Response:
        status, detail, headers = _said(error)
        if status is HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        values = {"visitor": None, "form_token": "", "status": status, "detail": detail}
        text = self._renderer.page("problem.html", **values)
        return Response(text, status, headers, media_type="text/html")


def _said(error: Exception) -> tuple[HTTPStatus, str, dict[str, str]]:
    """Return the status of an error, what a person reads, and headers."""
    match error:
        case HttpProblem():
            headers = {name.decode(): value.decode() for name, value in error.headers()}
            return error.status, str(error.members["detail"]), headers
        case HTTPException():
            status = HTTPStatus(error.status_code)
            missing = status is HTTPStatus.NOT_FOUND
            detail = "there is no such page" if missing else status.phrase
            return status, detail, dict(error.headers or {})
        case LedgerUnavailable():
            detail = f"the ledger does not answer: {error}; try again"
            return HTTPStatus.SERVICE_UNAVAILABLE, detail, {"retry-after": "2"}
        case ConfigurationError():
            return HTTPStatus.UNPROCESSABLE_ENTITY, str(error), {}
        case SemelError():
            return HTTPStatus.INTERNAL_SERVER_ERROR, str(error), {}
        case _:
            detail = "the console failed; its log on standard error says how"
            return HTTPStatus.INTERNAL_SERVER_ERROR, detail, {}
