"""Keys of rows: readable text whose bytes sort as the parts mean.

Always true of a key:
- different parts make different keys: `a/b` + `c` is not `a` + `b/c`, and an empty text is not a
  missing one;
- integers sort as integers: 9 before 10, negatives before both, of any size;
- no control character, no lone surrogate and no NUL is in it, so that every store can hold it;
- a text and a number may look alike (`a7` and 7), because each part of a key is always one of them.
  Event ids, which may be either, go through `event`.

A text of more than `TEXT_BYTES_MAX` bytes keeps its beginning and ends in a digest, because indexes
have limits.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from semel.ledger.store.commit import Key

if TYPE_CHECKING:
    from semel.events import EventID

TEXT_BYTES_MAX = 480

PIPELINES_TABLE = "pipelines"
OPEN_TABLE = "open"
STREAMS_TABLE = "streams"
EVENTS_TABLE = "events"
HEADS_TABLE = "heads"
PARKED_TABLE = "parked"

_UNSAFE = re.compile(r"[%/\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ESCAPE = re.compile(r"%(?:u([0-9A-F]{4})|([0-9A-F]{2}))")
_EMPTY = "%-"
_SHORTENED = "%~"
_ELEMENT = re.compile(r"(?:[^,]|,,)+")

# `a` to `y` stand for 1 to 25 digits, `z` is followed by the number of digits, itself so written.
# Negative numbers mirror it: `Z` to `B`, and `A` followed by the negative number of digits; every
# digit d becomes 9 - d.
_DIGITS_MAX = 25
_NINES = str.maketrans("0123456789", "9876543210")


def make_key(table: str, *parts: str | int) -> Key:
    """Return the key of one row of `table`."""
    if not parts:
        raise ValueError(f"a key in {table} has at least one part")
    return Key(table, "/".join(map(written_part, parts)))


def make_prefix(*parts: str | int) -> str:
    """Return the prefix of all keys below these parts, and of no other key; of all keys for
    none.
    """
    return "".join(written_part(each) + "/" for each in parts)


def key_below(table: str, prefix: str, value: str | int) -> Key:
    """Return the key of one more part below a prefix that `make_prefix` returned."""
    return Key(table, prefix + (_escape(value) if isinstance(value, str) else _number(value)))


def written_part(value: str | int) -> str:
    """Write one part: a text escaped, a number so that it sorts."""
    return _escape(value) if isinstance(value, str) else _number(value)


def split_key(text: str) -> tuple[str, ...]:
    """Split a key into its parts; `text_of`, `number_of` and `event_of` read them."""
    return tuple(text.split("/"))


def key_text(written: str) -> str:
    """Read a part that was a text. Raises ValueError for a shortened one."""
    if _SHORTENED in written:
        raise ValueError(f"the text {written!r} was too long for a key; see the row's payload")
    if written == _EMPTY:
        return ""
    return _ESCAPE.sub(lambda found: chr(int(found[1] or found[2], 16)), written)


def is_key_text(written: str) -> bool:
    """Whether a part that was a text can be read; a shortened one cannot."""
    return _SHORTENED not in written


def key_number(written: str) -> int:
    """Read a part that was a number."""
    length, rest = written[0], written[1:]
    if length in "zA":  # skip the number of digits: its own letter says how long it is
        digits = ord(rest[0]) - ord("a") if length == "z" else ord("Z") - ord(rest[0])
        rest = rest[digits + 2 :]
    return int(rest) if length.islower() else -int(rest.translate(_NINES))


def written_event(id_: EventID) -> str:
    """Write an event id as the text of one part: `a7`, `'seven`, `(a7,'seven)`. Numbers sort."""
    if isinstance(id_, tuple):
        return "(" + ",".join(_element(each).replace(",", ",,") for each in id_) + ")"
    return _element(id_)


def key_event(written: str) -> EventID:
    """Read a part that was an event id."""
    text = key_text(written)
    if text.startswith("("):
        return tuple(_read(each.replace(",,", ",")) for each in _ELEMENT.findall(text[1:-1]))
    return _read(text)


def _escape(text: str) -> str:
    if not text:
        return _EMPTY
    escaped = _UNSAFE.sub(_percent_code, text)
    if 4 * len(escaped) <= TEXT_BYTES_MAX:
        return escaped
    written = escaped.encode()
    if len(written) <= TEXT_BYTES_MAX:
        return escaped
    digest = hashlib.blake2b(written, digest_size=24).hexdigest()
    return written[: TEXT_BYTES_MAX // 2].decode(errors="ignore") + _SHORTENED + digest


def _percent_code(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"%{code:02X}" if code < 0x100 else f"%u{code:04X}"


def _number(number: int) -> str:
    digits = str(abs(number))
    count = len(digits)
    if number >= 0:
        length = chr(ord("a") + count - 1) if count <= _DIGITS_MAX else "z" + _number(count)
        return length + digits
    length = chr(ord("Z") - count + 1) if count <= _DIGITS_MAX else "A" + _number(-count)
    return length + digits.translate(_NINES)


def _element(id_: int | str) -> str:
    return "'" + id_ if isinstance(id_, str) else _number(id_)


def _read(element: str) -> int | str:
    return element[1:] if element.startswith("'") else key_number(element)
