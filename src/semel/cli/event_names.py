"""The names of parked events as a person types them: `charges/charge/c42/7`, or in short `@3f9a2c`.

Always true:
- a handle is PIPELINE/SINK/ENTITY/EVENT in the escaping of the ledger's keys, and every handle that
  is printed finds its own event again, whatever texts are in it;
- a printed handle needs no quotes in a shell: what a shell would read is escaped too;
- bare digits are an integer; the text `7` is printed as `%37`. Several id columns have commas
  between;
- what fits several events finds none of them, but lists them.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product

from semel.errors import ConfigurationError
from semel.events.event import EventID
from semel.ledger import DamagedRow, Ledger, ParkedRow, keys
from semel.ledger.store import Key

_SHELL = re.compile(r"(?<!%)~|^-|[ !\"#$&'()*;<>?\[\\\]^`{|}]")
_IN_EVENT = re.compile(r"[,@]")
_DIGITS = re.compile(r"-?(?:0|[1-9][0-9]*)")
_MINIBATCH = re.compile(r"(.*)@([0-9]+\.[0-9]+)", re.DOTALL)
_SHORT = re.compile(r"@([0-9a-f]{4,})")
_CUT = "%~"
_SHORT_LENGTH = 6
_SHOWN = 5
_DAY_US = 86_400_000_000
_NUMBER_MAX = 100
"""More digits than any id has; Python itself refuses to read some thousands."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A parked event with the names that it goes by."""

    pipeline: str
    sink: str
    key: Key
    row: ParkedRow
    handle: str
    short: str


def read_events(ledger: Ledger) -> list[Parked]:
    """Give every parked event of a ledger. Raises `LedgerError` where one cannot be read."""
    found, damaged = sift_events(ledger)
    if damaged:
        raise damaged[0]
    return found


def sift_events(ledger: Ledger) -> tuple[list[Parked], list[DamagedRow]]:
    """Give every parked event of a ledger, by pipeline and sink, in the order they came, and those
    that cannot be read.
    """
    rows, damaged = ledger.every_parked()
    found: list[tuple[Key, ParkedRow, str]] = []
    for at, row in rows:
        try:
            found.append((at, row, _name(at)))
        except (ValueError, IndexError):  # a handle is made of the key
            damaged.append(DamagedRow(at.table, at.key, "its key is not that of a parked event"))
    often = Counter(name for _, _, name in found)
    digests = [_digest(at) for at, _, _ in found]
    length = _unique_length(digests)
    return [
        Parked(
            _text_in(at, 0),
            _text_in(at, 1),
            at,
            row,
            name if often[name] == 1 else f"{name}@{row.minibatch}",
            "@" + digest[:length],
        )
        for (at, row, name), digest in zip(found, digests, strict=True)
    ], damaged


def _text_in(at: Key, place: int) -> str:
    """Give pipeline or sink as it is called; of a very long name what the key has of it."""
    written = keys.split_key(at.key)[place]
    return keys.key_text(written) if keys.is_text(written) else written


def find_event(events: list[Parked], typed: str, damaged: Sequence[DamagedRow] = ()) -> Parked:
    """Give the parked event that was typed.

    Raises `ConfigurationError` when nothing that is parked is called so, and when several are;
    `LedgerError` when it is one that cannot be read.
    """
    for row in damaged:
        if row.key is not None and _is_damaged(Key(row.table, row.key), typed):
            raise row
    exactly = [each for each in events if each.handle == typed]
    found = exactly or [each for each in events if _fits(each, typed)]
    waiting = [each for each in found if not each.row.state.final]
    if len(found) > 1 and len(waiting) == 1:
        found = waiting
    if not found:
        raise ConfigurationError(
            f"nothing that is parked is called {typed!r}; `semel parked ls --all` shows what is"
        )
    if len(found) > 1:
        these = ", ".join(f"{each.handle} ({each.short})" for each in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise ConfigurationError(f"{typed!r} fits {len(found)} events, name one: {these}{more}")
    return found[0]


def write_text(text: str) -> str:
    """Write a name as it stands in a handle."""
    return _for_shells(keys.part(text))


def write_id(event: EventID) -> str:
    """Write an event id as it stands in a handle."""
    if isinstance(event, tuple):
        return ",".join(map(_element, event)) + ("," if len(event) == 1 else "")
    return _element(event)


def read_ids(typed: str) -> list[EventID]:
    """Give the ids that a typed text may mean, the likeliest first: digits are a number or text."""
    written = typed.split(",")
    ids: list[EventID] = []
    if len(written) > 1:
        elements = written[:-1] if written[-1] == "" else written
        ids += product(*map(_meanings, elements))
        ids.append(_text(typed))  # a comma that nobody escaped
    else:
        ids += _meanings(typed)
    return ids


def read_value(typed: str) -> list[int | str]:
    """Give what a value that nobody escaped may mean, the likeliest first. Digits that are too many
    for a number of any column are a text.
    """
    if len(typed) > _NUMBER_MAX or not _DIGITS.fullmatch(typed):
        return [typed]
    return [int(typed), typed]


def read_moment(typed: str, form: str | None) -> list[int]:
    """Give the number that the ledger keeps of a date or timestamp, where the id has that form and
    the text can be read so: in any form of ISO 8601; without a zone it is UTC.
    """
    if form not in ("date", "timestamp", "timestamp without zone"):
        return []
    text = re.sub(r"\s*(?:UTC|GMT|Z)$", "+00:00", typed.strip(), flags=re.IGNORECASE)
    text = re.sub(r"\s+([+-]\d\d:?\d\d)$", r"\1", text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return []
    if form == "timestamp without zone":
        moment = moment.replace(tzinfo=None)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    micros = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    if form != "date":
        return [micros]
    return [] if micros % _DAY_US else [micros // _DAY_US]


def _is_damaged(at: Key, typed: str) -> bool:
    """Whether what was typed may be an event whose row cannot be read: only its key tells."""
    short = _SHORT.fullmatch(typed)
    if short is not None:
        return _digest(at).startswith(short[1])
    try:
        name = _name(at)
    except (ValueError, IndexError):
        return False
    return name == typed or name.endswith("/" + typed)


def _fits(event: Parked, typed: str) -> bool:
    """Whether a handle, its end or the short form is what was typed."""
    short = _SHORT.fullmatch(typed)
    if short is not None:
        return _digest(event.key).startswith(short[1])
    if "/" not in typed:
        return False
    with_minibatch = _MINIBATCH.fullmatch(typed)
    if with_minibatch is not None and with_minibatch[2] == str(event.row.minibatch):
        return _fits_parts(event, with_minibatch[1])
    return _fits_parts(event, typed)


def _fits_parts(event: Parked, typed: str) -> bool:
    """Compare from the end: what is left out before may be anything."""
    *places, last = typed.split("/")
    own = keys.split_key(event.key.key)
    printed = _name(event.key).split("/")
    if len(places) > 3:
        return False
    if last != printed[3] and own[3] not in {keys.part(keys.event(id_)) for id_ in read_ids(last)}:
        return False
    start = 3 - len(places)
    return all(
        place in (shown, key) or (_CUT not in place and keys.part(keys.key_text(place)) == key)
        for place, shown, key in zip(places, printed[start:3], own[start:3], strict=True)
    )


def _name(at: Key) -> str:
    pipeline, sink, entity, event, *_ = keys.split_key(at.key)
    written = _for_shells(event) if _CUT in event else write_id(keys.key_event(event))
    return "/".join([_for_shells(pipeline), _for_shells(sink), _for_shells(entity), written])


def _element(value: int | str) -> str:
    if isinstance(value, int):
        return str(value)
    written = _IN_EVENT.sub(_escape, write_text(value))
    if _DIGITS.fullmatch(written):
        return _escape_first(written)
    return written


def _meanings(written: str) -> list[int | str]:
    return read_value(written) if _DIGITS.fullmatch(written) else [_text(written)]


def _text(written: str) -> str:
    return written if _CUT in written else keys.key_text(written)


def _for_shells(part: str) -> str:
    """Escape what a shell would read, and what nobody would see."""
    shown = "".join(
        each if each.isprintable() or ord(each) > 0xFFFF else f"%u{ord(each):04X}" for each in part
    )
    return _SHELL.sub(_escape, shown)


def _escape(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


def _escape_first(written: str) -> str:
    return f"%{ord(written[0]):02X}{written[1:]}"


def _digest(at: Key) -> str:
    return hashlib.blake2b(at.key.encode(), digest_size=16).hexdigest()


def _unique_length(digests: list[str]) -> int:
    """Give how many characters tell all of them apart, at least a few."""
    length = _SHORT_LENGTH
    while len({each[:length] for each in digests}) < len(set(digests)):
        length += 1
    return length
