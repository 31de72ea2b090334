"""Payloads of rows: one codec between the fields of a row and its text, canonical JSON.

A row is a frozen dataclass below `Row`. The annotation of a field declares how it is written: its
type alone, or with `Annotated` another name, a `Form`, `LATER`, `ADDED` or `INLINE`.

Always true:
- equal values make equal text (keys are sorted, separators compact), which a person can read and
  every store takes: NUL and lone surrogates are escaped, all other characters are as they are;
- `load` returns what `dump` was given: above `EXPANDED_BYTES_MAX`, without packed sets of ids, it
  is compressed, and `load` expands it; packed sets stay packed until `EntityIds.from_json`;
- a row is read as a whole or not at all, and no field is guessed: `DamagedRow` names its table and
  key, says what is wrong, and shows nothing of its content, which may be secret.

Compressors differ between machines: let `Equals` require the text that was read, not a new one.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum, StrEnum
from functools import reduce
from operator import attrgetter, or_
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from semel.errors import LedgerError
from semel.events import EntityIds, EventID, IdSet
from semel.events.encoding import PreEncoded, canonical_parts, compressed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from semel.ledger.store.commit import Key

T = TypeVar("T")

EXPANDED_BYTES_MAX = 64 * 1024

_COMPRESSED = "z"

UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    OSError,  # raised by Arrow for a broken stream
    zlib.error,
)
"""The exceptions of reading a payload that semel did not write."""


def dump_payload(value: dict[str, Any]) -> str:
    """Write a payload. Raises ValueError or TypeError for values without a JSON form."""
    made = canonical_parts(value)
    # A value that looks like a compressed one is compressed too, so that `load` never has to guess.
    plain = _COMPRESSED not in value or len(value) > 1
    if plain and len(made) == 1 and len(made[0]) * 4 <= EXPANDED_BYTES_MAX:
        return cast("str", made[0])  # nearly every row
    texts = [each.encode() if isinstance(each, str) else each.content for each in made]
    dense = sum(len(each) for each in made if isinstance(each, PreEncoded) and each.dense)
    if plain and sum(map(len, texts)) - dense <= EXPANDED_BYTES_MAX:
        return b"".join(texts).decode()
    deflated = base64.b64encode(compressed(made)).decode("ascii")
    return f'{{"{_COMPRESSED}":"{deflated}"}}'


def load_payload(text: str) -> dict[str, Any]:
    """Read a payload that `dump` wrote, expanded. Raises ValueError, TypeError or `zlib.error` for
    anything else; `decode_row` turns those into an error that names the row.
    """
    value = _loaded(text)
    if value.keys() == {_COMPRESSED}:
        packed = base64.b64decode(value[_COMPRESSED], validate=True)
        value = _loaded(zlib.decompress(packed).decode())
    return value


def _loaded(text: str) -> dict[str, Any]:
    if not text.isascii():
        text.encode()  # a store returns bytes that are not UTF-8 as lone surrogates
    value = _DECODER.decode(text)
    if not isinstance(value, dict):
        raise TypeError("a payload is a JSON object")
    return cast("dict[str, Any]", value)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


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
    return read_row(table, at, lambda: decode(load_payload(text)))


def read_row(table: str, at: Key | str | None, decode: Callable[[], T]) -> T:
    """Return what `decode` returns for a row. Raises `DamagedRow` if it fails."""
    try:
        return decode()
    except UNREADABLE as error:
        key = at if at is None or isinstance(at, str) else at.key
        # Without its cause: a traceback would show the content of the row.
        raise DamagedRow(table, key, _description(error)) from None


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


def _description(error: Exception) -> str:
    """Return what is wrong, without the text of the exception."""
    if isinstance(error, Unfit):
        return str(error)
    if isinstance(error, json.JSONDecodeError):
        return "its payload is not JSON"
    if isinstance(error, zlib.error):
        return "its compressed payload cannot be expanded"
    return f"its payload cannot be read ({type(error).__name__})"


def _unfit(name: str, wanted: str, value: Any) -> Unfit:
    """Return the error for a value of another type; it names the type and never the value."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    kind = "null" if value is None else kinds.get(type(value), "a number")
    return Unfit(f"{name} must be {wanted}, got {kind}")


class Form(NamedTuple):
    """How a value is read from JSON, and written: None if it is written as it is.

    `read` gets the name of the field for its error, and raises `Unfit`.
    """

    read: Callable[[Any, str], Any]
    write: Callable[[Any], Any] | None = None


class Presence(Enum):
    """When a field is there; without one of these, always."""

    LATER = 1
    """Rows of older versions do not have it, and it is not written while it has its default."""
    ADDED = 2
    """Rows of older versions do not have it; now it is always written."""
    INLINE = 3
    """It is a dataclass of plain values whose own fields are there instead."""


LATER, ADDED, INLINE = Presence


def read_text(value: Any, name: str) -> str:
    """Return a text."""
    if type(value) is not str:
        raise _unfit(f"the field {name!r}", "text", value)
    return value


def read_integer(value: Any, name: str, least: int = 0) -> int:
    """Return an integer that is at least `least`."""
    if type(value) is not int:
        raise _unfit(f"the field {name!r}", "an integer", value)
    if value < least:
        raise Unfit(f"the field {name!r} must be at least {least}")
    return value


def _read_flag(value: Any, name: str) -> bool:
    if type(value) is not bool:
        raise _unfit(f"the field {name!r}", "true or false", value)
    return value


def _read_number(value: Any, name: str) -> float:
    """Return a time or a duration: a finite number. An integer stays an integer."""
    if type(value) is not float and type(value) is not int:
        raise _unfit(f"the field {name!r}", "a number", value)
    if not math.isfinite(value):
        raise Unfit(f"the field {name!r} must be a finite number")
    return value


def read_list(value: Any, name: str) -> list[Any]:
    """Return a list."""
    if type(value) is not list:
        raise _unfit(f"the field {name!r}", "a list", value)
    return value


def read_object(value: Any, name: str) -> dict[str, Any]:
    """Return a JSON object."""
    if type(value) is not dict:
        raise _unfit(f"the field {name!r}", "an object", value)
    return value


def read_texts(value: Any, name: str) -> tuple[str, ...]:
    """Return a list of texts."""
    found = read_list(value, name)
    if not all(isinstance(each, str) for each in found):
        raise Unfit(f"the field {name!r} must be a list of texts")
    return tuple(found)


def _read_pair(value: Any, name: str, least: int = 0) -> tuple[int, int]:
    """Return two integers."""
    if type(value) is not list or len(value) != 2:
        raise Unfit(f"the field {name!r} must be a list of two integers")
    return read_integer(value[0], name, least), read_integer(value[1], name, least)


def _read_pairs(value: Any, name: str) -> tuple[tuple[int, int], ...]:
    return tuple(_read_pair(each, name) for each in read_list(value, name))


def _read_event(value: Any, name: str) -> EventID:
    """Return an event id: an integer, a text, or a tuple of those."""
    parts = value if type(value) is list else [value]
    if not parts or not all(type(each) is str or type(each) is int for each in parts):
        raise _unfit(f"the field {name!r}", "an event id", value)
    return tuple(parts) if type(value) is list else cast("EventID", value)


_FORMS: dict[Any, Form] = {
    str: Form(read_text),
    int: Form(read_integer),
    bool: Form(_read_flag),
    float: Form(_read_number),
    list[Any]: Form(read_list),
    dict[str, Any]: Form(read_object),
    tuple[str, ...]: Form(read_texts),
    tuple[int, int]: Form(_read_pair),
    tuple[tuple[int, int], ...]: Form(_read_pairs),
    EventID: Form(_read_event),
    IdSet: Form(lambda value, _: IdSet.from_json(value), IdSet.to_json),
    EntityIds: Form(
        lambda value, name: EntityIds.from_json(read_object(value, name)), EntityIds.written
    ),
    tuple[EntityIds, ...]: Form(
        lambda value, name: tuple(map(EntityIds.from_json, read_list(value, name))),
        lambda sets: [each.written() for each in sets],
    ),
}


def _form_of(hint: Any) -> Form:
    """Return the form of a type. Raises TypeError for a type that has none."""
    if hint in _FORMS:
        return _FORMS[hint]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _choice(hint)
    if is_dataclass(hint):
        codec = codec_of(hint)
        return Form(lambda value, name: codec.read(read_object(value, name)), codec.write)
    raise TypeError(f"the codec has no form for {hint!r}; annotate the field with one")


def pair_of(made: type[Any], least: int = 0) -> Form:
    """Return the form of a dataclass of two integers, each at least `least`."""
    return Form(
        lambda value, name: made(*_read_pair(value, name, least)),
        attrgetter(*(each.name for each in fields(made))),
    )


def each_of(made: type[Any], what: str) -> Form:
    """Return the form of an object whose values are all of one dataclass, to be read only; an error
    calls a value `what`.
    """

    def read(value: Any, name: str) -> dict[str, Any]:
        found = read_object(value, name)
        return {at: codec_of(made).read_as(each, what) for at, each in found.items()}

    return Form(read)


def _without_none(hint: Any) -> Any:
    kinds = [each for each in get_args(hint) if each is not type(None)]
    return reduce(or_, kinds) if type(None) in get_args(hint) else hint


def _optional(form: Form) -> Form:
    read, write = form

    def read_or_none(value: Any, name: str) -> Any:
        return None if value is None else read(value, name)

    if write is None:
        return Form(read_or_none)
    return Form(read_or_none, lambda value: None if value is None else write(value))


def _choice(states: type[StrEnum]) -> Form:
    members = {each.value: each for each in states}

    def read(value: Any, name: str) -> StrEnum:
        if type(value) is not str or value not in members:
            raise Unfit(f"the field {name!r} must be one of {', '.join(states)}")
        return members[value]

    return Form(read, lambda state: state.value)


class _Column(NamedTuple):
    """One field of a dataclass: its attribute, its name in JSON (None: inline), and its form."""

    attribute: str
    name: str | None
    form: Form
    default: Callable[[], Any] | None
    """Makes what a row without the field has; None if the row must have it."""
    unwritten: Any
    """The value that is not written; `MISSING` if every value is."""
    inline: list[tuple[str, str]]
    """The attributes below it that are there instead, and their names."""

    def plain(self) -> list[tuple[str, str]]:
        """Return the attributes that are always written as they are, and their names."""
        if self.name is None:
            return self.inline
        always = self.form.write is None and self.unwritten is MISSING
        return [(self.attribute, self.name)] if always else []


class Codec:
    """Reads and writes one dataclass as a JSON object; made once for each class."""

    def __init__(self, made: Any) -> None:
        hints = get_type_hints(made, include_extras=True)
        self._class = made
        columns = [_column(each, hints[each.name]) for each in fields(made)]
        self._reads = [(each.name, each.form.read, each.default) for each in columns]
        # Most fields are always written, and as they are: all of those at once.
        plain = [each for column in columns for each in column.plain()]
        others = [each for each in columns if not each.plain()]
        self._plain_names = [name for _, name in plain]
        self._plain_values = _getter([attribute for attribute, _ in plain])
        self._others = [(each.name, each.form.write, each.unwritten) for each in others]
        self._other_values = _getter([each.attribute for each in others])
        self._check = getattr(made, "check", None)

    def read(self, payload: dict[str, Any]) -> Any:
        """Return the dataclass of a JSON object. Raises `Unfit` if it is not one."""
        values = []
        for name, read, default in self._reads:
            if name is None:
                values.append(read(payload, ""))
            elif name in payload:
                values.append(read(payload[name], name))
            elif default is not None:
                values.append(default())
            else:
                raise Unfit(f"the field {name!r} is missing")
        made = self._class(*values)
        if self._check is not None:
            self._check(made)
        return made

    def checked(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON object itself, if it is one of the dataclass. Raises `Unfit`."""
        self.read(payload)
        return payload

    def read_as(self, value: Any, what: str) -> Any:
        """Return the dataclass of any JSON value; an error calls the value `what`."""
        if type(value) is not dict:
            raise _unfit(what, "an object", value)
        return self.read(value)

    def write(self, row: Any) -> dict[str, Any]:
        """Return the JSON object of a dataclass."""
        made: dict[Any, Any] = dict(zip(self._plain_names, self._plain_values(row), strict=True))
        if not self._others:
            return made
        others = zip(self._others, self._other_values(row), strict=True)
        for (name, write, unwritten), value in others:
            if unwritten is MISSING or value != unwritten:
                made[name] = value if write is None else write(value)
        return made


def _getter(attributes: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns these attributes of an object."""
    if len(attributes) > 1:
        return attrgetter(*attributes)
    return lambda row: tuple([getattr(row, each) for each in attributes])


_codecs: dict[Any, Codec] = {}


def codec_of(made: Any) -> Codec:
    """Return the codec of a dataclass."""
    found = _codecs.get(made)
    if found is None:
        found = _codecs[made] = Codec(made)
    return found


def _column(declared: Any, hint: Any) -> _Column:
    """Return the column of a field, from its annotation and its default."""
    extras: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)  # type: ignore[assignment]
    name = next((each for each in extras if isinstance(each, str)), declared.name)
    inner = _without_none(hint)
    form = next((each for each in extras if isinstance(each, Form)), None) or _form_of(inner)
    if inner is not hint and LATER not in extras:  # LATER: null is never written, and not read
        form = _optional(form)
    make, unwritten = None, MISSING
    if LATER in extras or ADDED in extras:
        make = declared.default_factory
        if make is MISSING:
            make = lambda: declared.default  # noqa: E731
        unwritten = make() if LATER in extras else MISSING
    if INLINE not in extras:
        return _Column(declared.name, name, form, make, unwritten, [])
    inline = [(f"{name}.{each.name}", each.name) for each in fields(hint)]
    return _Column(declared.name, None, form, None, MISSING, inline)


class Row:
    """A row of one table: a frozen dataclass that the codec writes and reads.

    A row is compared by its text, so `dump` of a loaded row returns the text it was loaded from. A
    subclass may have a method `check`, which raises `Unfit` if its fields do not agree.
    """

    __slots__ = ()
    TABLE: ClassVar[str]

    def dump(self) -> str:
        """Return the payload."""
        return dump_payload(codec_of(type(self)).write(self))

    @classmethod
    def load(cls, text: str, at: Key | None = None) -> Self:
        """Read it back. Raises `DamagedRow` if a field is missing or has a wrong value."""
        return cast("Self", decode_row(cls.TABLE, at, text, codec_of(cls).read))
