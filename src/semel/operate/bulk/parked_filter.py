"""The filter of `--where`: `sink=charge and (why~"timeout" or age>2h)`, read and applied.

    filter     = and-filter {"or" and-filter}
    and-filter = part {"and" part}
    part       = "not" part | "(" filter ")" | FIELD OPERATOR VALUE

Always true:
- a filter that cannot be read is refused with the place of the mistake, before anything is read;
- it looks at one event at a time and keeps nothing, so any number of events can be filtered.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

from semel.errors import ConfigurationError
from semel.operate.event_names import read_ids, write_id
from semel.protocol import ParkedState

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.ledger import ParkedRow

LENGTH_MAX = 10_000
_DEPTH_MAX = 50
_TOKEN = re.compile(
    r"""\s*(?:(?P<sign>!=|!~|<=|>=|[=~<>()])
    |(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<word>[^\s()=!~<>"']+))""",
    re.VERBOSE | re.DOTALL,
)
_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|min|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_MINIBATCH = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")
_INTEGER = re.compile(r"-?[0-9]{1,40}")
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_EQUAL = ("=", "!=")
_TEXT = ("=", "!=", "~", "!~")
_ORDER = ("<", ">", "<=", ">=")


@dataclass(frozen=True, slots=True)
class FilteredEvent:
    """What a filter sees of a parked event; `now` is the time of this machine."""

    pipeline: str
    sink: str
    row: ParkedRow
    now: float


if TYPE_CHECKING:
    Test = Callable[[FilteredEvent], bool]


@dataclass(frozen=True, slots=True)
class ParkedFilter:
    """A filter that was read.

    Attributes:
        pipeline: the only pipeline that can fit, if the filter says so; narrows what is read.
        names_resend: whether it has `state=resend`: events that were released are meant too.
    """

    text: str
    fits: Test
    pipeline: str | None = None
    names_resend: bool = False


def read_filter(text: str) -> ParkedFilter:
    """Read a filter. Raises `ConfigurationError` that shows the place of a mistake."""
    if len(text) > LENGTH_MAX:
        raise ConfigurationError(
            f"the filter has {len(text)} characters, at most {LENGTH_MAX} are read"
        )
    return _FilterReader(text).read()


@dataclass(frozen=True, slots=True)
class _Token:
    at: int
    kind: str
    text: str

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these words, without quotes."""
        return self.kind == "word" and self.text.lower() in words


class _FilterReader:
    """Reads one filter, token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._next = 0
        self._depth = 0
        self._names_resend = False
        self._pipelines: set[str] = set()
        self._only_and = True

    def read(self) -> ParkedFilter:
        """Read it to its end."""
        if self._peek().kind == "end":
            raise ConfigurationError("the filter is empty; write one such as 'sink=charge'")
        fits = self._any_of()
        left = self._peek()
        if left.kind != "end":
            self._refuse(left, f"expected `and` or `or`, got {left.text!r}")
        narrow = self._only_and and len(self._pipelines) == 1
        pipeline = next(iter(self._pipelines)) if narrow else None
        return ParkedFilter(self._text, fits, pipeline, self._names_resend)

    def _split(self) -> list[_Token]:
        found, at = [], 0
        while self._text[at:].strip():
            match = _TOKEN.match(self._text, at)
            if match is None:
                place = at + len(self._text[at:]) - len(self._text[at:].lstrip())
                wrong = self._text[place]
                what = "a quote that is not closed" if wrong in "\"'" else "an unknown operator"
                self._refuse(_Token(place, "", wrong), what)
            kind = str(match.lastgroup)
            found.append(_Token(match.start(kind), kind, match[kind]))
            at = match.end()
        return [*found, _Token(len(self._text), "end", "")]

    def _refuse(self, token: _Token, what: str) -> NoReturn:
        before, after = self._text[: token.at], self._text[token.at :]
        raise ConfigurationError(
            f"the filter is wrong at character {token.at + 1}: {what}. The place is marked: "
            f"{before}>>>{after}"
        )

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._peek()
        self._next += token.kind != "end"
        return token

    def _any_of(self) -> Test:
        tests = [self._all_of()]
        while self._peek().is_word("or"):
            self._take()
            self._only_and = False
            tests.append(self._all_of())
        return tests[0] if len(tests) == 1 else lambda event: any(test(event) for test in tests)

    def _all_of(self) -> Test:
        tests = [self._part()]
        while self._peek().is_word("and"):
            self._take()
            tests.append(self._part())
        return tests[0] if len(tests) == 1 else lambda event: all(test(event) for test in tests)

    def _part(self) -> Test:
        token = self._take()
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            self._refuse(token, f"more than {_DEPTH_MAX} parentheses within each other")
        try:
            if token.is_word("not"):
                self._only_and = False
                test = self._part()
                return lambda event: not test(event)
            if token.text == "(" and token.kind == "sign":
                test = self._any_of()
                closing = self._take()
                if (closing.kind, closing.text) != ("sign", ")"):
                    self._refuse(closing, "expected `)`")
                return test
            return self._comparison(token)
        finally:
            self._depth -= 1

    def _comparison(self, field: _Token) -> Test:
        name = field.text.lower()
        if field.kind != "word" or name not in _FIELDS:
            got = "the end" if field.kind == "end" else repr(field.text)
            self._refuse(field, f"expected a field, got {got}; use {', '.join(_FIELDS)}")
        make, operators = _FIELDS[name]
        sign = self._take()
        if sign.kind != "sign" or sign.text not in operators:
            got = "the end" if sign.kind == "end" else repr(sign.text)
            self._refuse(sign, f"expected one of {' '.join(operators)} after {name}, got {got}")
        value = self._take()
        if value.kind not in ("word", "quoted"):
            got = "the end" if value.kind == "end" else repr(value.text)
            self._refuse(value, f"expected a value, got {got}; quote a value with signs or spaces")
        text = value.text
        if value.kind == "quoted":
            text = re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
        try:
            test = make(sign.text, text)
        except _Unreadable as error:
            self._refuse(value, str(error))
        if name == "pipeline" and sign.text == "=":
            self._pipelines.add(text)
        if name == "state" and sign.text == "=" and text == ParkedState.RESEND:
            self._names_resend = True
        return test


class _Unreadable(ValueError):
    """A value that its field cannot have."""


def _text_of(get: Callable[[FilteredEvent], str]) -> Callable[[str, str], Test]:
    """Compare a text; `~` is "contains", and takes upper and lower case for the same."""

    def make(sign: str, value: str) -> Test:
        if sign in _EQUAL:
            compare = _COMPARED[sign]
            return lambda event: compare(get(event), value)
        wanted, part = sign == "~", value.casefold()
        return lambda event: (part in get(event).casefold()) is wanted

    return make


def _entity(sign: str, value: str) -> Test:
    """Compare the entity, by the name that sinks see or by the one that the ledger has."""
    wanted = sign in ("=", "~")
    sign = {"!=": "=", "!~": "~"}.get(sign, sign)
    tests = [
        _text_of(lambda event: event.row.entity)(sign, value),
        _text_of(lambda event: event.row.shown or event.row.entity)(sign, value),
    ]
    return lambda event: any(test(event) for test in tests) is wanted


def _event(sign: str, value: str) -> Test:
    if sign in _EQUAL:
        ids, wanted = set(read_ids(value)), sign == "="
        return lambda event: (event.row.event in ids) is wanted
    if sign in _ORDER:
        if not _INTEGER.fullmatch(value):
            raise _Unreadable(f"{value!r} is not an integer; {sign} compares ids that are integers")
        compare, number = _COMPARED[sign], int(value)

        def fits(event: FilteredEvent) -> bool:
            id_ = event.row.event
            return isinstance(id_, int) and compare(id_, number)

        return fits
    return _text_of(lambda event: write_id(event.row.event))(sign, value)


def _state(sign: str, value: str) -> Test:
    known = [each.value for each in ParkedState]
    if value not in known:
        raise _Unreadable(f"unknown state {value!r}; use {', '.join(known)}")
    compare = _COMPARED[sign]
    return lambda event: compare(event.row.state.value, value)


def _since(sign: str, value: str) -> Test:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise _Unreadable(
            f"{value!r} is not a time; write 2026-11-18 or 2026-11-18T10:00:00 (UTC)"
        ) from None
    at = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    compare = _COMPARED[sign]
    return lambda event: compare(event.row.at, at)


def _age(sign: str, value: str) -> Test:
    written = _AGE.fullmatch(value)
    if written is None:
        raise _Unreadable(f"{value!r} is not an age; write 90s, 15min, 2h, 3d or 1w")
    seconds, compare = float(written[1]) * _SECONDS[written[2]], _COMPARED[sign]
    return lambda event: compare(event.now - event.row.at, seconds)


def _minibatch(sign: str, value: str) -> Test:
    written = _MINIBATCH.fullmatch(value)
    if written is None:
        raise _Unreadable(f"{value!r} is not a minibatch; write GENERATION.BATCH, as in 1.57")
    number, compare = (int(written[1]), int(written[2])), _COMPARED[sign]
    return lambda event: compare(
        (event.row.minibatch.generation, event.row.minibatch.batch), number
    )


_FIELDS: dict[str, tuple[Callable[[str, str], Test], tuple[str, ...]]] = {
    "pipeline": (_text_of(lambda event: event.pipeline), _TEXT),
    "sink": (_text_of(lambda event: event.sink), _TEXT),
    "entity": (_entity, _TEXT),
    "event": (_event, (*_TEXT, *_ORDER)),
    "state": (_state, _EQUAL),
    "why": (_text_of(lambda event: event.row.why), _TEXT),
    "since": (_since, _ORDER),
    "age": (_age, _ORDER),
    "minibatch": (_minibatch, (*_EQUAL, *_ORDER)),
    "partition": (_text_of(lambda event: event.row.partition), _TEXT),
}
