"""How a service is reached: its credentials, its limits, and the calls that are made with them."""

from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from semel.errors import ConfigurationError
from semel.sinks.http.auth import (
    Auth,
    Masks,
    authorization,
    names_column,
    names_secret,
    revealed,
    revealed_alone,
    tls,
)
from semel.sinks.http.calls import Calls, CallSettings, Limits
from semel.sinks.http.templates import Template, UrlTemplate
from semel.sinks.http.tunnels import proxy_for

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILES_BESIDE = 256

USUAL = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "semel"}
"""Headers that every request has, unless the sink names others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service as one sink reaches it: picklable, without a connection."""

    name: str
    method: str
    headers: Mapping[str, str] = field(repr=False)
    auth: tuple[Auth, ...]
    ca: str | None
    limits: Limits
    proxy: str | None = field(default=None, repr=False)

    def calls(self, url: str, *, keyed: bool = False) -> Calls:
        """Make ready to call, on this machine and with its secrets. Raises `ConfigurationError` for
        secrets and files that it does not have.
        """
        what = f"sink {self.name!r}"
        credentials, secrets = authorization(self.auth, what)
        named = {name.lower() for name in self.headers}
        headers = {name: value for name, value in USUAL.items() if name.lower() not in named}
        for name, value in self.headers.items():
            if names_secret(value):
                headers[name] = revealed(value, f"{what}, header {name}")
            elif not Template.of(value, name).names:
                headers[name] = Template.of(value, name).texts[0]
            else:
                continue
            secrets += [headers[name], *revealed_alone(value)]
        if credentials is not None:
            headers["Authorization"] = credentials
        template = UrlTemplate.of(url, what)
        secure = template.origin.startswith("https:")
        proxy = proxy_for(self.proxy, template.origin, what)
        secrets += () if proxy is None else proxy.secrets
        _allow_files(self.limits.concurrency + _FILES_BESIDE)
        return Calls(
            CallSettings(
                where=f"{self.method} {template.shown}",
                origin=template.origin,
                method=self.method,
                headers=headers,
                tls=tls(self.auth, self.ca, what) if secure else None,
                masks=Masks.of([*secrets, *template.literals, *_in_query(url)]),
                keyed=keyed,
                proxy=proxy,
            ),
            self.limits,
        )


def header(value: str, what: str) -> Template | None:
    """Read a header's value: a template, or None where the executor's environment has it."""
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise ConfigurationError(f"{what} must be one line of ASCII")
    if names_secret(value):
        if names_column(value):
            raise ConfigurationError(
                f"{what} has both a variable of the environment (${{NAME}}) and a value of a "
                "column, but a header can have only one of them: use two headers, or compute the "
                "value as a column"
            )
        return None
    return Template.of(value, what)


def _in_query(url: str) -> list[str]:
    """Return the constant parts of a query: one may be an API key."""
    found = [value for _, value in parse_qsl(urlsplit(url).query) if "{" not in value]
    return [*found, *map(unquote, found)]


def _allow_files(count: int) -> None:
    """Let this process have as many connections as it was asked for, as far as the system lets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        most = count if hard == resource.RLIM_INFINITY else min(count, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
