"""JSON that semel writes for itself: canonical, which the ledger compares, and other forms.

- Canonical text is equal for equal values: names are sorted, separators are compact, and only
  characters that no store accepts are escaped.
- A `PreEncoded` value is encoded once and deflated once, however many rows it goes into; a dense
  value is never deflated.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import zlib
from typing import Any

_MARK = secrets.token_hex(16)
"""Stands for an encoded part while the rest is encoded; random, so that no value equals it."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")
DEFLATED_BYTES_MIN = 4 * 1024
_LEVEL = 1
"""Sets of ids are digits: a higher level takes three times as long and saves next to nothing."""


class PreEncoded:
    """A JSON text that goes into a payload unchanged."""

    __slots__ = ("_deflated", "content", "dense")

    def __init__(self, content: bytes, *, dense: bool = False) -> None:
        """Assumes canonical JSON in UTF-8, already compressed if it is dense."""
        self.content = content
        self.dense = dense
        self._deflated: bytes | None = None

    def __len__(self) -> int:
        return len(self.content)

    def __eq__(self, other: object) -> bool:
        return self.content == other.content if isinstance(other, PreEncoded) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.content)

    def __repr__(self) -> str:
        return f"PreEncoded({self.content!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.dense:
            return _dense, (self.content,)
        # Pickled in deflated form: the receiver needs that form, and it is a third of the size.
        return _inflated, (self.deflated(),)

    def deflated(self) -> bytes:
        """Return the content as a part of a raw deflate stream that needs no earlier part."""
        if self._deflated is None:
            self._deflated = _deflated(self.content)
        return self._deflated


def _dense(content: bytes) -> PreEncoded:
    return PreEncoded(content, dense=True)


def _inflated(deflated: bytes) -> PreEncoded:
    made = PreEncoded(zlib.decompressobj(-zlib.MAX_WBITS).decompress(deflated))
    made._deflated = deflated  # noqa: SLF001 - the class is in this module
    return made


class _Ready(threading.local):
    """The encoded parts of the value that this thread is writing; None if it may have none."""

    parts: list[PreEncoded] | None = None


_ready = _Ready()


def _mark(value: object) -> str:
    if _ready.parts is None or not isinstance(value, PreEncoded):
        raise TypeError(f"a value of type {type(value).__name__} has no form in JSON")
    _ready.parts.append(value)
    return _MARK


_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_mark
)


def canonical(value: Any) -> str:
    """Return the canonical text of a value. Raises ValueError or TypeError if JSON has none."""
    text = _CANONICAL.encode(value)
    return text if text.isascii() else _SURROGATE.sub(_escaped, text)


def canonical_parts(value: dict[str, Any]) -> list[str | PreEncoded]:
    """Return the canonical text of an object in parts: new ones, and between them ready ones."""
    ready = _ready.parts = []
    try:
        text = canonical(value)
    finally:
        _ready.parts = None
    if not ready:
        return [text]
    first, *others = text.split(f'"{_MARK}"')
    parts: list[str | PreEncoded] = [first]
    for each, rest in zip(ready, others, strict=True):
        parts += [each, rest]
    return parts


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def compressed(parts: list[str | PreEncoded]) -> bytes:
    """Return the parts, concatenated, as one zlib stream.

    A large ready part is deflated once for all rows; all others between are deflated together.
    """
    runs: list[bytes | PreEncoded] = []
    loose = b""
    for part in parts:
        if isinstance(part, PreEncoded) and len(part) >= DEFLATED_BYTES_MIN:
            runs += [loose, part]
            loose = b""
        else:
            loose += part.content if isinstance(part, PreEncoded) else part.encode()
    made, check = [b"\x78\x01"], 1
    for run in [*runs, loose]:
        content = run.content if isinstance(run, PreEncoded) else run
        check = zlib.adler32(content, check)
        made.append(run.deflated() if isinstance(run, PreEncoded) else _deflated(run))
    made += [b"\x03\x00", check.to_bytes(4)]
    return b"".join(made)


def _deflated(content: bytes) -> bytes:
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, 9)
    return stream.compress(content) + stream.flush(zlib.Z_FULL_FLUSH)


def json_text(value: Any) -> str:
    """Return JSON with every character as it is, and a space after each comma and colon. Raises
    ValueError for NaN and the infinities.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def ascii_json(value: Any) -> str:
    """Return JSON in ASCII with a space after each comma and colon.

    Progress rows at destinations and digests of schemas are made of it and compared as bytes, also
    with those of older versions: its form must not change.
    """
    return json.dumps(value)


def readable_json(value: Any, indent: int = 2, *, sort_keys: bool = False) -> str:
    """Return JSON on several lines, for people."""
    return json.dumps(value, indent=indent, sort_keys=sort_keys)
