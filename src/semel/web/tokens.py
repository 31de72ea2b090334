"""Bearer tokens from a file, one on each line; the file is read again when it changes.

Always true:
- a token is compared in constant time, and only digests are kept in memory;
- a file that cannot be read, or has no token, admits no client;
- no token is in an error, a log or a metric.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import partial
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from semel.runtime import Clock

TOKEN_LENGTH_MIN = 16
_LOOK_EVERY_S = 1.0


class Tokens:
    """The tokens of a file."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Read the file. Raises `ConfigurationError` if it cannot be used."""
        self._path = path
        self._clock = clock
        self._digests = _read(path)
        self._version = _version(path)
        self._looked = clock.monotonic()

    def name_of(self, header: bytes | None) -> bytes | None:
        """Return the digest of the token of an `Authorization` header if the file has it."""
        scheme, _, token = (header or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        digest = hashlib.sha256(token.strip()).digest()
        return digest if self.has(digest) else None

    def has(self, digest: bytes) -> bool:
        """Return whether the file still has the token with this digest."""
        self._look()
        return any(list(map(partial(hmac.compare_digest, digest), self._digests)))

    def _look(self) -> None:
        """Read the file again if it changed, at most once a second."""
        now = self._clock.monotonic()
        if now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        version = _version(self._path)
        if version == self._version:
            return
        self._version = version
        try:
            self._digests = _read(self._path)
        except ConfigurationError:
            self._digests = []


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> list[bytes]:
    """Return the digest of each token."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigurationError(
            f"the token file {path} cannot be read: {error.strerror}"
        ) from None
    digests = []
    for number, line in enumerate(lines, 1):
        token = line.strip()
        if not token or token.startswith(b"#"):
            continue
        if len(token) < TOKEN_LENGTH_MIN or not all(0x21 <= each <= 0x7E for each in token):
            raise ConfigurationError(
                f"{path}, line {number}: a token must have at least {TOKEN_LENGTH_MIN} visible "
                "ASCII characters and no blanks; `openssl rand -hex 32` makes one"
            )
        digests.append(hashlib.sha256(token).digest())
    if not digests:
        raise ConfigurationError(
            f"the token file {path} has no token; write one on each line, for example with "
            "`openssl rand -hex 32`"
        )
    return digests
