"""Names of parked events as a person types them: `charges/charge/c42/7`, or in short `@3f9a2c`.

Always true:
- a name is PIPELINE/SINK/ENTITY/EVENT in the escaping of the ledger's keys, and every printed name
  finds its own event again, whatever characters are in it;
- a printed name needs no quotes in a shell: characters that a shell interprets are escaped too;
- bare digits are an integer; the text `7` is printed as `%37`. Several id columns are separated by
  commas.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import TYPE_CHECKING

from semel.ledger import key_event, key_text, split_key, written_event, written_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.events import EventID, Minibatch
    from semel.ledger.store import Key

_SHELL = re.compile(r"(?<!%)~|^-|[ !\"#$&'()*;<>?\[\\\]^`{|}]")
_IN_EVENT = re.compile(r"[,@]")
_DIGITS = re.compile(r"-?(?:0|[1-9][0-9]*)")
_MINIBATCH = re.compile(r"(.*)@([0-9]+\.[0-9]+)", re.DOTALL)
_SHORT = re.compile(r"@([0-9a-f]{4,})")
_CUT = "%~"
_SHORT_LENGTH = 6
_ALONE_LENGTH = 12
_DAY_US = 86_400_000_000
_DIGITS_MAX = 100
"""More digits than any id has; Python itself refuses to read some thousands."""


def write_text(text: str) -> str:
    """Write the name of a pipeline, sink or entity for a printed name."""
    return _for_shells(written_part(text))


def write_id(event: EventID) -> str:
    """Write an event id for a printed name."""
    if isinstance(event, tuple):
        return ",".join(map(_element, event)) + ("," if len(event) == 1 else "")
    return _element(event)


def read_ids(typed: str) -> list[EventID]:
    """Return the ids that a typed text may mean, the likeliest first."""
    written = typed.split(",")
    ids: list[EventID] = []
    if len(written) > 1:
        elements = written[:-1] if written[-1] == "" else written
        ids += product(*map(_meanings, elements))
        ids.append(_text(typed))  # a comma that was typed without escaping
    else:
        ids += _meanings(typed)
    return ids


def read_value(typed: str) -> list[int | str]:
    """Return what an unescaped value may mean, the likeliest first. More digits than a number of
    any column can have are a text.
    """
    if len(typed) > _DIGITS_MAX or not _DIGITS.fullmatch(typed):
        return [typed]
    return [int(typed), typed]


def read_moment(typed: str, form: str | None) -> list[int]:
    """Return the number that the ledger keeps for a date or a timestamp, if the id column has that
    form and the text is ISO 8601; without a zone it is UTC. Otherwise return an empty list.
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


def fits_damaged(at: Key, typed: str) -> bool:
    """Whether a typed name may mean an event whose row cannot be read; only its key is known."""
    short = _SHORT.fullmatch(typed)
    if short is not None:
        return _digest(at).startswith(short[1])
    try:
        name = name_of(at)
    except (ValueError, IndexError):
        return False
    return name == typed or name.endswith("/" + typed)


def fits(at: Key, minibatch: Minibatch, typed: str) -> bool:
    """Whether a typed name means a parked event: its full name, the end of it, or a short name."""
    short = _SHORT.fullmatch(typed)
    if short is not None:
        return _digest(at).startswith(short[1])
    if "/" not in typed:
        return False
    with_minibatch = _MINIBATCH.fullmatch(typed)
    if with_minibatch is not None and with_minibatch[2] == str(minibatch):
        return _fits_parts(at, with_minibatch[1])
    return _fits_parts(at, typed)


def _fits_parts(at: Key, typed: str) -> bool:
    """Compare parts from the end; parts that were not typed may be anything."""
    *places, last = typed.split("/")
    own = split_key(at.key)
    printed = name_of(at).split("/")
    if len(places) > 3:
        return False
    if last != printed[3] and own[3] not in {
        written_part(written_event(id_)) for id_ in read_ids(last)
    }:
        return False
    start = 3 - len(places)
    return all(
        place in (shown, key) or (_CUT not in place and written_part(key_text(place)) == key)
        for place, shown, key in zip(places, printed[start:3], own[start:3], strict=True)
    )


def name_of(at: Key) -> str:
    """Return the full name of a parked event. Raises ValueError or IndexError for another key."""
    pipeline, sink, entity, event, *_ = split_key(at.key)
    written = _for_shells(event) if _CUT in event else write_id(key_event(event))
    return "/".join([_for_shells(pipeline), _for_shells(sink), _for_shells(entity), written])


def _element(value: int | str) -> str:
    if isinstance(value, int):
        return str(value)
    written = _IN_EVENT.sub(_percent_code_of, write_text(value))
    if _DIGITS.fullmatch(written):
        return _escape_first(written)
    return written


def _meanings(written: str) -> list[int | str]:
    return read_value(written) if _DIGITS.fullmatch(written) else [_text(written)]


def _text(written: str) -> str:
    return written if _CUT in written else key_text(written)


def _for_shells(part: str) -> str:
    """Escape characters that a shell interprets, and characters that are not visible."""
    shown = "".join(
        each if each.isprintable() or ord(each) > 0xFFFF else f"%u{ord(each):04X}" for each in part
    )
    return _SHELL.sub(_percent_code_of, shown)


def _percent_code_of(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


def _escape_first(written: str) -> str:
    return f"%{ord(written[0]):02X}{written[1:]}"


def _digest(at: Key) -> str:
    return hashlib.blake2b(at.key.encode(), digest_size=16).hexdigest()


def short_name(at: Key) -> str:
    """Return a short name of one parked event that fits no other, without reading the others."""
    return f"@{_digest(at)[:_ALONE_LENGTH]}"


def short_names(places: Sequence[Key]) -> dict[Key, str]:
    """Return the short names of parked events, long enough that no two are equal."""
    digests = {at: _digest(at) for at in places}
    length = _SHORT_LENGTH
    while len({each[:length] for each in digests.values()}) < len(set(digests.values())):
        length += 1
    return {at: f"@{digest[:length]}" for at, digest in digests.items()}
