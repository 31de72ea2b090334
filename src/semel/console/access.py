"""Who may see the console, and which requests may change something.

Always true:
- a request that changes something has the origin of the console and a token of its own form
  (CSRF); a token of the file in `Authorization` stands for both, because no page of another site
  can send it;
- a page of another site can link to the console, and nothing else: it cannot load a page of it to
  learn from the time or the size of the answer whether an event is there;
- without a token file only requests to this machine by its own name are taken (DNS rebinding);
- no token of the file is kept, shown or put into a cookie: a cookie names a session of this
  process, which ends with its time, with the process and with the token.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict, deque
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from semel.web import HttpProblem, require_own_name, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from semel.runtime import Clock
    from semel.web import Tokens

SESSION_S = 12 * 3600.0
SESSIONS_MAX = 256
FAILURES_MAX = 20
FAILURES_S = 60.0
ADDRESSES_MAX = 1_024

_OWN_SITES = ("same-origin", "none")
"""What `Sec-Fetch-Site` says of requests of the console itself, and of the person."""

_LOGIN = b"login"
_LOOPBACK = b"loopback"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who sends a request.

    Attributes:
        id: what the tokens of its forms belong to.
        bearer: whether it is known by the header `Authorization`, and not by a cookie.
    """

    id: bytes
    bearer: bool = False


NEW_VISITOR = Visitor(_LOGIN)
"""A visitor who has not logged in: the form to log in is all there is."""


@dataclass(frozen=True, slots=True)
class _LoggedIn:
    token: bytes
    ends: float


class Access:
    """Knows visitors; used by the thread of the event loop."""

    def __init__(self, tokens: Tokens | None, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._sessions: OrderedDict[bytes, _LoggedIn] = OrderedDict()
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    @property
    def has_tokens(self) -> bool:
        """Whether a visitor has to log in."""
        return self._tokens is not None

    def require_place(self, request: Request) -> None:
        """Raise `HttpProblem` for a request to a foreign name, or from a foreign origin."""
        host = request.headers.get("host", "")
        if self._tokens is None:
            require_own_name(host.encode("latin-1"), "console")
        origin = request.headers.get("origin")
        if origin is not None and not _is_of(origin, host):
            raise _foreign(origin)
        site = request.headers.get("sec-fetch-site", "same-origin")
        linked = request.method != "POST" and (
            request.headers.get("sec-fetch-mode") == "navigate"
            and request.headers.get("sec-fetch-dest") == "document"
        )
        if not (site in _OWN_SITES or linked):
            raise _foreign(site)
        if request.method != "POST":
            return
        if origin is None and not request.headers.get("authorization"):
            raise _foreign("none")

    def visitor(self, request: Request) -> Visitor | None:
        """Return who sends a request; None if it has to log in."""
        if self._tokens is None:
            return Visitor(_LOOPBACK)
        header = request.headers.get("authorization")
        if header is not None:
            digest = self._tokens.name_of(header.encode("latin-1"))
            return None if digest is None else Visitor(digest, bearer=True)
        session = _digest(request.cookies.get(cookie_name(request), ""))
        known = self._sessions.get(session)
        if known is None:
            return None
        if known.ends <= self._clock.monotonic() or not self._tokens.has(known.token):
            del self._sessions[session]
            return None
        return Visitor(session)

    def form_token(self, visitor: Visitor) -> str:
        """Return the token that each form of a visitor carries."""
        return hmac.digest(self._secret, b"form:" + visitor.id, "sha256").hex()

    def require_form(self, visitor: Visitor, form: Mapping[str, str]) -> None:
        """Raise `HttpProblem` if a form was not made by this console for this visitor."""
        if visitor.bearer:
            return
        given = form.get("form_token", "").encode()
        if not hmac.compare_digest(given, self.form_token(visitor).encode()):
            raise HttpProblem(
                HTTPStatus.FORBIDDEN,
                "the form is not one of this console, or is older than its last start; open the "
                "page again and repeat what you did",
                field="form_token",
            )

    def log_in(self, token: str, address: str) -> str | None:
        """Return the cookie of a new session; None if the token is not one of the file.

        Raises `HttpProblem` after too many wrong tokens from this address; others are let in.
        """
        assert self._tokens is not None
        now = self._clock.monotonic()
        failures = self._failures.get(address, deque())
        if len(failures) == FAILURES_MAX and now - failures[0] < FAILURES_S:
            raise HttpProblem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{FAILURES_MAX} wrong tokens within a minute from your address; wait a minute",
                retry_after_s=int(FAILURES_S),
            )
        digest = self._tokens.name_of(b"Bearer " + token.encode())
        if digest is None:
            self._failures.setdefault(address, deque(maxlen=FAILURES_MAX)).append(now)
            self._failures.move_to_end(address)
            while len(self._failures) > ADDRESSES_MAX:
                self._failures.popitem(last=False)
            return None
        cookie = secrets.token_urlsafe(32)
        self._sessions[_digest(cookie)] = _LoggedIn(digest, now + SESSION_S)
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return cookie

    def log_out(self, visitor: Visitor) -> None:
        """End the session of a visitor."""
        self._sessions.pop(visitor.id, None)


def cookie_name(request: Request) -> str:
    """Return the name of the cookie, of this port: browsers send a cookie to every port of a host,
    and there may be a console of another ledger at another one.
    """
    return f"semel_console_{request.scope['server'][1]}"


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "backslashreplace")).digest()


def _is_of(origin: str, host: str) -> bool:
    """Whether an origin is the place that the request was sent to; `null` is not."""
    try:
        place = urlsplit(origin)
    except ValueError:
        return False
    return place.scheme in ("http", "https") and place.netloc.lower() == host.lower() != ""


def _foreign(origin: str) -> HttpProblem:
    return HttpProblem(
        HTTPStatus.FORBIDDEN,
        f"the request comes from another site (origin {shown(origin)}); open the console itself",
        field="origin",
        value=shown(origin),
    )
