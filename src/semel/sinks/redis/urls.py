"""The URL of a Redis as settings of a connection; unknown parts of it are refused.

No message shows a password, or the value of an option.
"""

from __future__ import annotations

import inspect
import re
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from semel.errors import ConfigurationError, MissingExtra
from semel.urls import HIDDEN, redact

_WORD = re.compile("[A-Za-z_]{1,40}")
_COMMON = "db, username, password, client_name, socket_keepalive"
_TLS = "ssl_ca_certs, ssl_certfile, ssl_keyfile, ssl_cert_reqs, ssl_check_hostname"


def settings_of(url: str, deadline_s: float) -> tuple[Any, dict[str, Any]]:
    """Return the class of a connection to this Redis, and its settings; it connects to nothing.

    Raises `ConfigurationError` for a URL that cannot be used, `MissingExtra` without redis-py.
    """
    try:
        import redis.connection as connections
        from redis.exceptions import RedisError
    except ModuleNotFoundError:
        raise MissingExtra("redis-py is not installed: pip install 'semel[redis]'") from None
    shown = redact(url)
    try:
        parsed: dict[str, Any] = dict(connections.parse_url(url))  # type: ignore[no-untyped-call]
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError(
            f"{shown} is not the URL of a Redis: write redis://[user]:password@host:port/0 "
            "(rediss:// for TLS, unix:///path for a socket), special characters as %XX"
        ) from None
    kind: Any = parsed.pop("connection_class", connections.Connection)
    _require_options(kind, list(parse_qs(parts.query)), shown)
    database = unquote(parts.path).strip("/")
    if parts.scheme != "unix" and database and not (database.isascii() and database.isdecimal()):
        raise ConfigurationError(
            f"{shown}: {database!r} is not the number of a database; write .../0 for the first one"
        )
    settings = {
        **parsed,
        "socket_timeout": deadline_s,
        "socket_connect_timeout": min(deadline_s, 5.0),
        "protocol": 2,
        "retry": None,
        "retry_on_timeout": False,
        "retry_on_error": [],
        "health_check_interval": 0,
        "decode_responses": False,
    }
    try:
        kind(**settings)
    except (TypeError, ValueError, AttributeError, RedisError) as error:
        raise ConfigurationError(
            f"{shown}: redis-py does not accept an option in it ({type(error).__name__}); correct "
            "its value, or remove it"
        ) from None
    return kind, settings


def _require_options(kind: Any, names: list[str], shown: str) -> None:
    """Raise `ConfigurationError` for options that this kind of connection does not have."""
    unknown = [name for name in names if name not in _taken(kind)]
    if not unknown:
        return
    more = (
        _TLS
        if "ssl_ca_certs" in _taken(kind)
        else "options that begin with ssl_ are for TLS and need rediss://"
    )
    # A name that is not a plain word may be a part of a password.
    named = ", ".join(repr(name) if _WORD.fullmatch(name) else HIDDEN for name in unknown)
    raise ConfigurationError(
        f"{shown}: unknown option{'s' if len(unknown) > 1 else ''} {named}; use {_COMMON}, {more}"
    )


def _taken(kind: Any) -> set[str]:
    """The names that the classes of a connection take."""
    names: set[str] = set()
    for each in kind.__mro__:
        if "__init__" in vars(each):
            found = inspect.signature(each.__init__).parameters.values()
            names |= {one.name for one in found if one.kind is not one.VAR_KEYWORD}
    return names - {"self", "args", "host", "port", "path"}
