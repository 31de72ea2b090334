"""Rows that cannot be read: one error that names table and key, and fields that are checked.

Always true:
- a row is read as a whole or not at all: no field of it is guessed;
- the error says what is wrong and shows nothing of the row's content, which may be secret.
"""

from __future__ import annotations

import math
import zlib
from enum import StrEnum
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa

from semel.errors import LedgerError
from semel.ledger import payloads
from semel.runtime import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from semel.events import EventID
    from semel.ledger.store.commit import Key

T = TypeVar("T")
S = TypeVar("S", bound=StrEnum)

UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    OSError,  # raised by Arrow for a broken stream
    zlib.error,
    pa.ArrowException,
)
"""The exceptions of reading a payload that semel did not write."""


class DamagedRow(LedgerError):
    """A row of the ledger is not as semel writes it; every reader that needs it stops."""

    def __init__(self, table: str, key: str | None, what: str) -> None:
        super().__init__(table, key, what)
        self.table = table
        self.key = key
        self.what = what

    def __str__(self) -> str:
        row = "a row" if self.key is None else f"the row {self.key}"
        return (
            f"{row} of table {self.table!r} is damaged: {self.what}. semel guesses nothing from "
            "it: `semel ledger check` names every damaged row, and docs/failures.md says what to do"
        )


class Unfit(ValueError):
    """Says what is wrong with a payload, without its content."""


def decode_row(
    table: str, at: Key | str | None, text: str, decode: Callable[[dict[str, Any]], T]
) -> T:
    """Read a payload and return `decode` of it. Raises `DamagedRow` if that fails."""
    return read_row(table, at, lambda: decode(payloads.load(text)))


def read_row(table: str, at: Key | str | None, decode: Callable[[], T]) -> T:
    """Return what `decode` returns for a row. Raises `DamagedRow` if it fails."""
    try:
        return decode()
    except UNREADABLE as error:
        # Without its cause: a traceback would show the content of the row.
        raise DamagedRow(table, _key(at), _description(error)) from None


def sift_rows(
    rows: Iterable[tuple[Key, str]], load: Callable[[str, Key], T]
) -> tuple[list[tuple[Key, T]], list[DamagedRow]]:
    """Return the rows that can be read, and the errors of the others; for listings."""
    good: list[tuple[Key, T]] = []
    damaged: list[DamagedRow] = []
    for at, text in rows:
        try:
            good.append((at, load(text, at)))
        except DamagedRow as error:
            damaged.append(error)
    return good, damaged


def _key(at: Key | str | None) -> str | None:
    return at if at is None or isinstance(at, str) else at.key


def _description(error: Exception) -> str:
    """Return what is wrong, without the text of the exception."""
    if isinstance(error, Unfit):
        return str(error)
    if isinstance(error, JSONDecodeError):
        return "its payload is not JSON"
    if isinstance(error, zlib.error):
        return "its compressed payload cannot be expanded"
    return f"its payload cannot be read ({type(error).__name__})"


class Fields:
    """The fields of one payload; each is checked when it is taken. Raises `Unfit`."""

    __slots__ = ("_row",)

    def __init__(self, row: Any, what: str = "its payload") -> None:
        if not isinstance(row, dict):
            raise Unfit(f"{what} must be an object, got {_kind(row)}")
        self._row: dict[str, Any] = row

    def __contains__(self, name: str) -> bool:
        return name in self._row

    def take(self, name: str) -> Any:
        """Return a field of any type."""
        try:
            return self._row[name]
        except KeyError:
            raise Unfit(f"the field {name!r} is missing") from None

    def text(self, name: str) -> str:
        """Return a text."""
        value = self.take(name)
        if not isinstance(value, str):
            raise _unfit(name, "text", value)
        return value

    def integer(self, name: str, least: int = 0) -> int:
        """Return an integer that is at least `least`."""
        return integer(self.take(name), name, least)

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self.take(name)
        if not isinstance(value, bool):
            raise _unfit(name, "true or false", value)
        return value

    def number(self, name: str) -> float:
        """Return a time or a duration: a finite number. An integer stays an integer."""
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _unfit(name, "a number", value)
        if not math.isfinite(value):
            raise Unfit(f"the field {name!r} must be a finite number")
        return value

    def choice(self, name: str, states: type[S]) -> S:
        """Return a member of an enumeration."""
        value = self.take(name)
        try:
            return states(value)
        except ValueError:
            words = ", ".join(states)
            raise Unfit(f"the field {name!r} must be one of {words}") from None

    def items(self, name: str) -> list[Any]:
        """Return a list."""
        value = self.take(name)
        if not isinstance(value, list):
            raise _unfit(name, "a list", value)
        return value

    def object(self, name: str) -> dict[str, Any]:
        """Return a JSON object."""
        value = self.take(name)
        if not isinstance(value, dict):
            raise _unfit(name, "an object", value)
        return value

    def object_or_empty(self, name: str) -> dict[str, Any]:
        """Return a JSON object, an empty one if the row has none."""
        return {} if self._row.get(name) is None else self.object(name)

    def pair(self, name: str, least: int = 0) -> tuple[int, int]:
        """Return two integers."""
        return pair(self.take(name), name, least)

    def event(self, name: str) -> EventID:
        """Return an event id."""
        return event_id(self.take(name), name)

    def process(self, name: str) -> Process:
        """Return a process."""
        row = Fields(self.object(name))
        pid = row.integer("pid")
        return Process(row.text("host"), row.text("boot"), pid, row.text("start"))

    def maybe(self, name: str, take: Callable[[str], T]) -> T | None:
        """Return a field read by `take`, or None if it is null."""
        return None if self.take(name) is None else take(name)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts."""
        found = self.items(name)
        if not all(isinstance(each, str) for each in found):
            raise Unfit(f"the field {name!r} must be a list of texts")
        return tuple(found)

    def text_pairs(self, name: str) -> dict[str, str]:
        """Return a list of pairs of texts, as a dict."""
        found = [each for each in self.items(name) if isinstance(each, list) and len(each) == 2]
        texts = [each for each in found if all(isinstance(text, str) for text in each)]
        if len(texts) < len(self.items(name)):
            raise Unfit(f"the field {name!r} must be a list of pairs of texts")
        return dict(texts)

    def later(self, name: str, take: Callable[[str], T], default: T) -> T:
        """Return a field that rows of older versions do not have."""
        return take(name) if name in self._row else default


def integer(value: Any, name: str, least: int = 0) -> int:
    """Return an integer that is at least `least`. Raises `Unfit`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unfit(name, "an integer", value)
    if value < least:
        raise Unfit(f"the field {name!r} must be at least {least}")
    return value


def pair(value: Any, name: str, least: int = 0) -> tuple[int, int]:
    """Return two integers. Raises `Unfit`."""
    if not isinstance(value, list) or len(value) != 2:
        raise Unfit(f"the field {name!r} must be a list of two integers")
    return integer(value[0], name, least), integer(value[1], name, least)


def event_id(value: Any, name: str) -> EventID:
    """Return an event id: an integer, a text, or a tuple of those. Raises `Unfit`."""
    parts = value if isinstance(value, list) else [value]
    if not parts or not all(_is_part(each) for each in parts):
        raise _unfit(name, "an event id", value)
    return tuple(parts) if isinstance(value, list) else cast("EventID", value)


def _is_part(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))


def _unfit(name: str, wanted: str, value: Any) -> Unfit:
    return Unfit(f"the field {name!r} must be {wanted}, got {_kind(value)}")


def _kind(value: Any) -> str:
    """Return the type of a JSON value, never the value."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return "null" if value is None else kinds.get(type(value), "a number")
