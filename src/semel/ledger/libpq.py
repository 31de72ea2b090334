"""What PostgreSQL says when it lets nobody in: a refused connection has words, and no code.

The ledger and the sink read them alike. No secret is in what they show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

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
