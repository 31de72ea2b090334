"""Canonical JSON, which the ledger compares, and values that are already encoded.

- Equal values have equal text: names are sorted, separators are compact, and only characters that
  no store accepts are escaped.
- A `PreEncoded` value is encoded once and deflated once, however many rows it goes into; a dense
  value is never deflated.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_SURROGATE = re.compile(r"[\ud800-\udfff]")
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


def canonical(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return the canonical text of a value. Raises ValueError or TypeError if JSON has none."""
    text = json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
        default=default,
    )
    if text.isascii():
        return text
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def compressed(parts: list[bytes | PreEncoded]) -> bytes:
    """Return the parts, concatenated, as one zlib stream."""
    made, check = [b"\x78\x01"], 1
    for part in parts:
        content = part.content if isinstance(part, PreEncoded) else part
        check = zlib.adler32(content, check)
        made.append(part.deflated() if isinstance(part, PreEncoded) else _deflated(part))
    made += [b"\x03\x00", check.to_bytes(4)]
    return b"".join(made)


def _deflated(content: bytes) -> bytes:
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, 9)
    return stream.compress(content) + stream.flush(zlib.Z_FULL_FLUSH)
