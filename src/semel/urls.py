"""Redaction of URLs for display, and refusal of URLs that cannot be read without doubt.

Always true:
- displayed text holds no password, key or token: only parts known not to be secret are shown, and
  of a malformed URL only its scheme;
- a special character in a password that is not written as %XX ends the password early: the rest is
  parsed as a host, a port or a path. Such a URL is refused, and no part of it is printed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

HIDDEN = "***"
ESCAPES = "write special characters in it as %XX: @ is %40, / is %2F, : is %3A, ? is %3F, # is %23"

_SCHEME = r"(?P<scheme>[a-z][a-z0-9+.-]*)://"
_USER = r"(?:(?P<user>[A-Za-z0-9_.~%+-]*)(?P<password>:[^@/?#\s\x00-\x1f\x7f]*)?@)?"
_HOST = r"(?:\[[0-9A-Fa-f:.%]*\]|[A-Za-z0-9_.~%-]*)(?::[0-9]*)?"
_URL = re.compile(
    rf"{_SCHEME}{_USER}(?P<hosts>{_HOST}(?:,{_HOST})*)"
    r"(?P<path>/[^@?#&=\s\x00-\x1f\x7f]*)?(?P<query>\?[^@#\s\x00-\x1f\x7f]*)?"
)
_PLACE = re.compile(
    rf"{_SCHEME}(?P<user>[^@/?#]*@)?(?P<host>[^@/?#:\x00-\x1f\x7f]*(?::[0-9]+)?)"
    r"(?P<path>/[^?#\x00-\x1f\x7f]*)?(?:[?#].*)?",
    re.DOTALL,
)
_MISPLACED = re.compile(":.*@", re.DOTALL)
"""What looks like the end of a user and a password, where there cannot be one."""
_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*")
_NAMED_SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,15})://")
_PLAIN = re.compile(r"[A-Za-z0-9_./~-]*")

_NAMES_USER = ("postgresql", "postgres")
"""Where a user without a password is a name and not a token."""
_SHOWN = frozenset({"application_name", "connect_timeout", "db", "sslmode", "target_session_attrs"})
"""Options whose values are shown; all others may be secrets."""


def redact(url: str) -> str:
    """Return the URL without its secrets, for display."""
    if url.startswith("sqlite:///"):
        return url
    if "://" not in url:
        return url if _PLAIN.fullmatch(url) else HIDDEN
    found = _URL.fullmatch(url)
    if found is None:
        return _scheme_only(url)
    user = ""
    if found["user"] is not None:
        known = found["password"] is not None or found["scheme"] in _NAMES_USER
        user = found["user"] if known else HIDDEN
        user += "@" if found["password"] is None else f":{HIDDEN}@"
    shown = f"{found['scheme']}://{user}{found['hosts']}{found['path'] or ''}"
    return shown if found["query"] is None else f"{shown}?{_options(found['query'][1:])}"


def place(url: str) -> str:
    """Return the URL without user, password and query: the place that it names."""
    if "://" not in url:
        return url
    found = _PLACE.fullmatch(url)
    if found is None:
        return _scheme_only(url)
    host, after = found["host"], url[found.end("host") :]
    of_http = found["scheme"] in ("http", "https")
    if "@" in after and (found["user"] or (of_http and (":" in host or _MISPLACED.search(after)))):
        return _scheme_only(url)  # the apparent host may be a part of the password
    return f"{found['scheme']}://{host}{found['path'] or ''}"


def scheme_of(url: str) -> str:
    """Return the scheme with its `://`, or an empty string if there is none; it is safe to show."""
    found = _NAMED_SCHEME.match(url)
    return "" if found is None else found[0]


def conceal(text: str, secrets: Iterable[str]) -> str:
    """Return external text with these secrets hidden, the longest first."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def require_one_line(url: object, what: str, form: str) -> str:
    """Refuse a value that is not a string, or has a line end, a blank or a control character."""
    if not isinstance(url, str):
        raise ConfigurationError(f"{what} is not a URL, but {type(url).__name__}; use {form}")
    if any(each.isspace() or not each.isprintable() for each in url):
        raise unreadable(what, form)
    return url


def require_parts(
    what: str, form: str, *, hosts: Iterable[str], ports: Iterable[str], database: str
) -> None:
    """Refuse a URL whose parts, as its own parser reads them, cannot be what was meant."""
    if "@" in database or any("@" in host for host in hosts):
        raise unreadable(what, form)
    for port in ports:
        if port and not (port.isascii() and port.isdecimal() and 0 < int(port) < 65_536):
            raise unreadable(what, form)


def require_authority(url: str, what: str, form: str) -> None:
    """Refuse a URL whose user, password, host and port, as written, are not where they belong, or
    whose database or options contain @.
    """
    require_one_line(url, what, form)
    scheme, _, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    after = rest[len(authority) :]
    if not _HOSTS.fullmatch(authority.rpartition("@")[2]):
        raise unreadable(what, form)
    is_socket = scheme == "unix" and (not authority or authority.endswith("@"))
    if is_misplaced(after) or "@" in (after.partition("?")[2] if is_socket else after):
        raise unreadable(what, form)


def is_misplaced(after: str) -> bool:
    """Return whether the text after host and port looks like part of a user and a password."""
    return _MISPLACED.search(after) is not None


def unreadable(what: str, form: str) -> ConfigurationError:
    """Return the error for a URL that cannot be read without doubt; no part of it is shown."""
    return ConfigurationError(
        f"{what} is not a URL that can be read: its host, port or path holds what does not belong "
        f"there, and nothing of it is shown, because it may be a part of the password. {ESCAPES}. "
        f"The form is {form}"
    )


def _scheme_only(url: str) -> str:
    return f"{scheme_of(url)}{HIDDEN}"


def _options(query: str) -> str:
    pairs = [pair.partition("=") for pair in query.split("&")]
    kept = [
        f"{name}={value}" for name, _, value in pairs if name in _SHOWN and _PLAIN.fullmatch(value)
    ]
    return "&".join(kept if len(kept) == len(pairs) else [*kept, HIDDEN])
