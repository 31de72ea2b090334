"""Connecting to PostgreSQL: timeouts, and the errors of a refused connection.

A refused connection has a text, and no error code. The ledger and the sink read it alike, and show
no secret.
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
"""Timeouts of connecting and of noticing a dead connection, unless the URL sets them."""

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
    """Why a connection was refused, and whether the configuration must change or waiting may
    help.
    """

    text: str
    misconfigured: bool

    @classmethod
    def of(cls, error: BaseException, settings: Mapping[str, str]) -> Refused:
        """Read an error of libpq, for a client with these settings."""
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
    """Return the secrets in the settings of a connection."""
    return [str(settings[name]) for name in _SECRETS if settings.get(name)]


def read_url(url: str, what: str, form: str = FORM) -> dict[str, str]:
    """Return the settings in a URL, as PostgreSQL's own client reads them.

    Raises `ConfigurationError`, which shows nothing of it, if the URL cannot be read reliably.
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
    """Return an error's text in one line."""
    return " ".join(str(error).split())
