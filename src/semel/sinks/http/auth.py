"""Credentials: bearer tokens, basic authentication, certificates, and how secrets stay secret.

- A secret is a string, or `${NAME}`: a variable in the environment of the executor only.
- A secret is in no repr, and `Masks` removes it from whatever a service echoes.
- TLS is always verified: by the CAs of the machine, or by a given CA only.
"""

from __future__ import annotations

import base64
import html
import os
import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

from semel.errors import ConfigurationError
from semel.events.encoding import ascii_json
from semel.urls import HIDDEN, conceal

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAMED = re.compile(r"\$\{(\w+)\}")
_COLUMN = re.compile(r"\{[^{}\":,]+\}")
_SHORT = 4


@dataclass(frozen=True, slots=True)
class Bearer:
    """`Authorization: Bearer ...`."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Basic:
    """`Authorization: Basic ...`."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate of the client's (mTLS): PEM files on every executor."""

    certificate: str
    private_key: str | None = None
    password: str | None = field(default=None, repr=False)


Auth = Bearer | Basic | Certificate


def revealed(text: str, what: str) -> str:
    """Return a secret: the text with each `${NAME}` replaced from this machine's environment.

    Runs on the executor. Raises `ConfigurationError`, which names the missing variable.
    """

    def found(name: re.Match[str]) -> str:
        value = os.environ.get(name[1])
        if not value:
            raise ConfigurationError(
                f"{what}: the environment of the executor has no variable {name[1]}; set it for "
                "Python workers (spark.executorEnv.NAME)"
            )
        return value

    made = _NAMED.sub(found, text)
    if not (made.isascii() and made.isprintable()):
        raise ConfigurationError(f"{what} contains a line end or a non-ASCII character")
    return made


def revealed_alone(text: str) -> list[str]:
    """Return the secret parts of a header's value: the value of each `${NAME}`, and the
    last word.
    """
    named = [os.environ.get(name, "") for name in _NAMED.findall(text)]
    return [*named, *text.split()[1:][-1:]]


def names_secret(text: str) -> bool:
    """Whether a text takes something from the environment."""
    return _NAMED.search(text) is not None


def names_column(text: str) -> bool:
    """Whether a text with secrets names a column too; the braces of JSON do not."""
    return _COLUMN.search(_NAMED.sub("", text)) is not None


@dataclass(frozen=True, slots=True)
class Masks:
    """Secrets of one session, to be taken out of texts."""

    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(cls, secrets: Iterable[str]) -> Masks:
        """Each in every notation of services, longest first, so that none is left in part; a text
        that is too short is not treated as a secret.
        """
        kept = {form for each in secrets if len(each) >= _SHORT for form in _forms(each)}
        return cls(tuple(sorted(kept, key=len, reverse=True)))

    def __call__(self, text: str) -> str:
        """Return the text with each secret replaced by ***, also one that is cut off at its end."""
        text = conceal(text, self.secrets)
        for secret in self.secrets:
            for length in range(len(secret) - 1, _SHORT - 1, -1):
                if text.endswith(secret[:length]):
                    return text[:-length] + HIDDEN
        return text


def _forms(secret: str) -> set[str]:
    """Return a secret as it is, and as JSON, URLs and HTML write it."""
    quoted = ascii_json(secret)[1:-1]
    urls = {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    return {secret, quoted, quoted.replace("/", "\\/"), html.escape(secret), *urls}


def authorization(auth: tuple[Auth, ...], what: str) -> tuple[str | None, list[str]]:
    """Return the Authorization header, if there is one, and its secret parts."""
    for each in auth:
        if isinstance(each, Bearer):
            token = revealed(each.token, f"{what}: the bearer token")
            return f"Bearer {token}", [token]
        if isinstance(each, Basic):
            user = revealed(each.user, f"{what}: the user")
            password = revealed(each.password, f"{what}: the password")
            if ":" in user:
                raise ConfigurationError(f"{what}: the user of Basic must not contain a colon")
            pair = base64.b64encode(f"{user}:{password}".encode()).decode()
            return f"Basic {pair}", [password, pair]
    return None, []


def tls(auth: tuple[Auth, ...], ca: str | None, what: str) -> ssl.SSLContext:
    """Make the TLS side of a session. Raises `ConfigurationError` for files that cannot be read."""
    try:
        context = ssl.create_default_context(cafile=ca)
        for each in auth:
            if isinstance(each, Certificate):
                password = each.password
                if password is not None:
                    password = revealed(password, f"{what}: the password of the private key")
                context.load_cert_chain(each.certificate, each.private_key, password or "")
    except OSError as error:
        raise ConfigurationError(
            f"{what}: a certificate file cannot be used on this machine ({error})"
        ) from None
    return context
