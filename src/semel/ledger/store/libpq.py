"""Connecting to PostgreSQL: how long that may take, and what is said where it lets nobody in.

A refused connection has words, and no code. The ledger and the sink read them alike, and show no
secret.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from semel.urls import conceal, require_one_line, require_parts, unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""How a connection is made, and how soon a dead one is noticed, unless the URL says otherwise."""

_MISCONFIGURED = (
    "authentication failed",
    "no password supplied",
    "pg_hba.conf",
    "does not exist",
    "is not permitted to log in",
    "permission denied",
    "invalid ",
)


class Refused(NamedTuple):
    """Why there is no connection, and whether a person must change something or it may pass."""

    text: str
    misconfigured: bool

    @classmethod
    def of(cls, error: BaseException, settings: Mapping[str, str]) -> Refused:
        """Read what libpq said to a client with these settings."""
        text = conceal(line(error), secrets_of(settings))
        unreachable = "server on socket" in text and "No such file" in text
        return cls(text, not unreachable and any(words in text for words in _MISCONFIGURED))


FORM = "postgresql://user:password@host:port/database"

_OPTION_BEFORE_HOST = re.compile(r"[a-z]+://[^@/]*\?[^@/]*=[^@/]*@")

_SECRETS = (
    "password",
    "sslpassword",
    "oauth_client_secret",
    "scram_client_key",
    "scram_server_key",
)


def secrets_of(settings: Mapping[str, object]) -> list[str]:
    """Give what nobody may read of the settings of a connection."""
    return [str(settings[name]) for name in _SECRETS if settings.get(name)]


def read_url(url: str, what: str, form: str = FORM) -> dict[str, str]:
    """Give the settings that a URL says, as PostgreSQL's own client reads them.

    Raises `ConfigurationError`, which shows nothing of it, where that cannot be what was meant.
    """
    import psycopg
    from psycopg import conninfo

    require_one_line(url, what, form)
    if _OPTION_BEFORE_HOST.match(url):
        raise unreadable(what, form)
    try:
        given = {name: str(value) for name, value in conninfo.conninfo_to_dict(url).items()}
    except (psycopg.Error, ValueError):
        raise unreadable(what, form) from None
    require_parts(
        what,
        form,
        hosts=[given.get("host", ""), given.get("hostaddr", "")],
        ports=given.get("port", "").split(","),
        database=given.get("dbname", ""),
    )
    return given


def line(error: BaseException) -> str:
    """Give an error's text in one line."""
    return " ".join(str(error).split())
