"""Connecting to PostgreSQL: how long that may take, and what is said where it lets nobody in.

A refused connection has words, and no code. The ledger and the sink read them alike, and show no
secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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
        text = line(error)
        for secret in ("password", "sslpassword"):
            if settings.get(secret):
                text = text.replace(settings[secret], "***")
        unreachable = "server on socket" in text and "No such file" in text
        return cls(text, not unreachable and any(words in text for words in _MISCONFIGURED))


def line(error: BaseException) -> str:
    """Give an error's text in one line."""
    return " ".join(str(error).split())
