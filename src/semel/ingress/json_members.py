"""Reads JSON of requests without changing it: values are parsed, and their text stays as it came.

Always true: text that is not JSON (RFC 8259) in UTF-8 is an `HttpProblem` with its line and column;
this includes NaN, infinities, and values nested too deeply to read.
"""

from __future__ import annotations

import json
import re
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from semel.web import HttpProblem, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

_SPACE = re.compile(r"[ \t\n\r]*")
_MEMBER = re.compile(
    r'[ \t\n\r]*"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*'
    r'(?:"([^"\\\x00-\x1f]*)"[ \t\n\r]*([,}]))?'
)
"""A name, and if it is a text without escapes, its value and what comes behind it."""


Member = tuple[Any, int, int]
"""The value of one member of an object, and where its text begins and ends."""


class _NotRead(ValueError):
    """A constant that Python would read, and that is not JSON."""


def _refuse_constant(name: str) -> Any:
    raise _NotRead(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def read_text(body: bytes) -> str:
    """Return a body as text. Raises `HttpProblem` if it is not UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise HttpProblem(
            HTTPStatus.BAD_REQUEST,
            f"the body is not UTF-8: byte {error.start + 1} is 0x{body[error.start]:02x}",
            value=shown(body[error.start : error.start + 20]),
        ) from None


def read_json(text: str) -> Any:
    """Return the value of a text that is one JSON value. Raises `HttpProblem`."""
    value, end = read_value(text, _skip(text, 0))
    end = _skip(text, end)
    if end != len(text):
        raise _not_json(text, end, "more text after the JSON value")
    return value


def read_value(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value that begins at a place, and where it ends. Raises `HttpProblem`."""
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise _not_json(text, error.pos, error.msg) from None
    except RecursionError:
        raise _not_json(text, at, "it is nested too deeply") from None
    except _NotRead as error:
        raise _not_json(text, at, str(error)) from None
    except ValueError:  # more digits than Python reads
        digits = f"a number may have at most {sys.get_int_max_str_digits()} digits"
        raise _not_json(text, at, digits) from None


def read_object(text: str, at: int) -> tuple[dict[str, Member], int]:
    """Return the members of the object that begins at a place, and where the object ends.

    Raises `HttpProblem`, also for a member that is there twice: which one is meant is not known.
    """
    members: dict[str, Member] = {}
    match = _MEMBER.match
    if text[at : at + 1] != "{":
        raise _not_json(text, at, "an object was expected")
    at += 1
    while True:
        found = match(text, at)
        if found is None:
            if not members and text[(end := _skip(text, at)) : end + 1] == "}":
                return members, end + 1
            name, begin = _escaped_name(text, at)
            value, end = read_value(text, begin)
            after, at = _delimiter(text, end, "}")
        else:
            name = found[1]
            if found[2] is None:
                begin = found.end()
                value, end = read_value(text, begin)
                after, at = _delimiter(text, end, "}")
            else:
                value, after, at = found[2], found[3], found.end()
                begin, end = found.start(2) - 1, found.end(2) + 1
        if name in members:
            raise HttpProblem(
                HTTPStatus.BAD_REQUEST,
                f"the member {shown(name)!r} is there twice; send it once",
                field=shown(name),
            )
        members[name] = (value, begin, end)
        if after == "}":
            return members, at


def read_objects(text: str) -> Iterator[dict[str, Member]]:
    """Return the members of each object of a JSON array. Raises `HttpProblem`."""
    at = _skip(text, 0)
    if text[at : at + 1] != "[":
        raise _not_json(text, at, "an array of events was expected")
    at = _skip(text, at + 1)
    after = ","
    if text[at : at + 1] == "]":
        after, at = "]", at + 1
    while after == ",":
        members, end = read_object(text, _skip(text, at))
        yield members
        after, at = _delimiter(text, end, "]")
    require_end(text, at)


def require_end(text: str, at: int) -> None:
    """Raise `HttpProblem` if there is more text behind the value that ends here."""
    end = _skip(text, at)
    if end != len(text):
        raise _not_json(text, end, "more text after the JSON value")


def first_place(text: str) -> int:
    """Return where the first value of a text begins."""
    return _skip(text, 0)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _escaped_name(text: str, at: int) -> tuple[str, int]:
    """Return a name that has escapes, and where its value begins."""
    at = _skip(text, at)
    if text[at : at + 1] != '"':
        raise _not_json(text, at, "a name in double quotes was expected")
    name, end = read_value(text, at)
    end = _skip(text, end)
    if text[end : end + 1] != ":":
        raise _not_json(text, end, "a colon was expected")
    return name, _skip(text, end + 1)


def _delimiter(text: str, at: int, last: str) -> tuple[str, int]:
    """Return the comma or the last bracket behind a value, and where the next text begins."""
    at = _skip(text, at)
    after = text[at : at + 1]
    if after not in (",", last) or not after:
        raise _not_json(text, at, f"a comma or {last} was expected")
    return after, at + 1


def _not_json(text: str, at: int, why: str) -> HttpProblem:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    found = text[at : at + 40]
    return HttpProblem(
        HTTPStatus.BAD_REQUEST,
        f"the body is not JSON: line {line}, column {column}: {why}",
        line=line,
        column=column,
        value=shown(found) if found else "the end of the body",
    )
