"""Parked events as JSON lines: a person exports them, edits payloads, and imports them again.

Always true:
- a column that was not edited is kept as the ledger has it, bit for bit, whatever its type;
- only the payload can be edited: entity, event id and every other name of the event stay;
- an event that may have arrived is not edited unless a person released it to be sent again;
- a file with a mistake is refused as a whole, with the number of each wrong line;
- an import can be repeated: a payload that is as the file has it is not touched.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.events.encoding import canonical, encode_value, json_value
from semel.ledger import (
    PARKED_TABLE,
    STAGE_OF,
    DamagedRow,
    Edited,
    LedgerClient,
    Owners,
    ParkedChange,
    ParkedRow,
    change_parked,
    decided,
    refuse_reason,
)
from semel.ledger.store import Key
from semel.operate.bulk.payloads import columns_of, edited_value
from semel.operate.bulk.scanning import EXAMPLES_MAX, ParkedScan
from semel.operate.event_names import name_of, write_id
from semel.operate.parked import text_in
from semel.operate.resolve import require_reason
from semel.operate.times import utc_text
from semel.protocol import ParkedState
from semel.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from semel.ledger import Ledger
    from semel.operate.bulk.parked_filter import ParkedFilter
    from semel.operate.bulk.scanning import ChosenEvent
    from semel.runtime import Clock

LINES_AT_ONCE = 200
MISTAKES_MAX = 10
SAFE_INTEGER = 2**53
"""Integers beyond it are written with a tag: many programs read numbers as floats."""


# -- export


def export_parked(
    ledger: Ledger,
    pipeline: str | None = None,
    where: ParkedFilter | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[str]:
    """Return a line of JSON for each parked event that fits and is not in a final state; with a
    filter, of each that fits. Raises `LedgerError` at the end if rows could not be read.
    """
    from semel.operate.ledgers import refuse_damaged

    scan = ParkedScan(ledger, where, pipeline, progress=progress)
    for page in scan.pages():
        for each in page:
            if where is not None or not each.row.state.final:
                yield _line_of(each)
    refuse_damaged(scan.damaged)


def _line_of(event: ChosenEvent) -> str:
    row = event.row
    line = {
        "event": event.handle,
        "key": event.key.key,
        "pipeline": event.pipeline,
        "sink": event.sink,
        "entity": row.shown or row.entity,
        "id": write_id(row.event),
        "minibatch": str(row.minibatch),
        "partition": row.partition,
        "state": row.state.value,
        "why": row.why,
        "since": utc_text(row.at),
        "may_have_arrived": row.doubted,
        "by": row.by,
        "reason": row.reason,
        "edited_by": None if row.edited is None else row.edited.by,
        "columns": columns_of(row),
        "version": payload_version(row.value),
        "payload": None if row.value is None else _shown(_encoded(row.value)),
    }
    return json_value(line)


def _encoded(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: encode_value(each) for name, each in value.items()}


def _shown(value: Any) -> Any:
    """Return an encoded value with a tag at each integer that a reader might round."""
    if isinstance(value, dict):
        return {name: _shown(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_shown(each) for each in value]
    if type(value) is int and abs(value) > SAFE_INTEGER:
        return {"$int": str(value)}
    return value


def payload_version(value: Mapping[str, Any] | None) -> str | None:
    """Return a short name of a payload as it is now; None if there is none."""
    if value is None:
        return None
    return hashlib.blake2b(canonical(_encoded(value)).encode(), digest_size=8).hexdigest()


# -- import


@dataclass
class ParkedImport:
    """What an import of edited events did, or would do.

    Attributes:
        done: whether it was written; otherwise this was a dry run.
        lines: how many events the file has.
        edited: how many payloads were changed.
        released: how many of those were dead letters, which are sent again now.
        unchanged: how many are as the ledger has them.
        changed: how many the query or another person changed while they were imported.
    """

    by: str
    reason: str
    done: bool
    lines: int = 0
    edited: int = 0
    released: int = 0
    unchanged: int = 0
    changed: int = 0
    examples: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "by": self.by,
            "reason": self.reason,
            "dry_run": not self.done,
            "lines": self.lines,
            "edited": self.edited,
            "released": self.released,
            "unchanged": self.unchanged,
            "changed_meanwhile": self.changed,
            "examples": self.examples,
        }


class WrongLines(ConfigurationError):
    """A file with lines that cannot be imported; nothing of it was."""

    def __init__(self, path: Path, mistakes: list[str], more: int) -> None:
        many = len(mistakes) + more
        text = "1 line cannot" if many == 1 else f"{many} lines cannot"
        head = f"{path}: {text} be imported, so nothing was"
        self.lines = [head, *mistakes, *([f"... and {more} more lines"] if more else [])]
        super().__init__("; ".join(self.lines))


class _WrongLine(ValueError):
    """What is wrong with one line."""


def import_parked(
    ledger: Ledger,
    path: Path,
    *,
    by: str,
    reason: str,
    dry_run: bool,
    progress: Callable[[int], None] | None = None,
    clock: Clock | None = None,
) -> ParkedImport:
    """Record the payloads of a file that differ from those of the ledger, and release the dead
    letters among these events, so that they are sent again under their old identity.

    The file is checked as a whole first. Raises `WrongLines`, a `ConfigurationError`, if a line
    cannot be imported: nothing was then. May be repeated.
    """
    require_reason(reason)
    refuse_reason(reason)
    reader = _Importer(ledger, by, reason, clock or SystemClock(), progress)
    checked = reader.walk(path, write=False)
    return checked if dry_run else reader.walk(path, write=True)


@dataclass
class _Importer:
    ledger: Ledger
    by: str
    reason: str
    clock: Clock
    progress: Callable[[int], None] | None
    _kept: dict[str, tuple[frozenset[str], frozenset[str]]] = field(default_factory=dict)

    def walk(self, path: Path, *, write: bool) -> ParkedImport:
        """Read the file once: to check every line, or to write what differs."""
        found = ParkedImport(self.by, self.reason, done=write)
        mistakes: list[str] = []
        more, seen = 0, dict[bytes, int]()
        with path.open("rb") as file:
            numbered = enumerate(file, 1)
            while some := list(islice(numbered, LINES_AT_ONCE)):
                changes: list[ParkedChange] = []
                for number, result in self._checked(some, seen):
                    found.lines += 1
                    if isinstance(result, ParkedChange):
                        changes.append(result)
                    elif result is None:
                        found.unchanged += 1
                    elif write:  # it was right when the file was checked
                        found.changed += 1
                    elif len(mistakes) < MISTAKES_MAX:
                        mistakes.append(f"line {number}: {result}")
                    else:
                        more += 1
                made = self._write(changes) if write else {each.key for each in changes}
                self._count(found, changes, made)
                if self.progress is not None:
                    self.progress(found.lines)
        if mistakes:
            raise WrongLines(path, mistakes, more)
        return found

    def _count(self, found: ParkedImport, changes: list[ParkedChange], made: set[Key]) -> None:
        for each in changes:
            if each.key not in made:
                found.changed += 1
                continue
            found.edited += 1
            found.released += each.after.state is not each.before.state
            if len(found.examples) < EXAMPLES_MAX:
                found.examples.append(name_of(each.key))

    def _write(self, changes: list[ParkedChange]) -> set[Key]:
        made: set[Key] = set()
        places: dict[tuple[str, str], list[ParkedChange]] = {}
        for each in changes:
            at = (text_in(each.key, 0), text_in(each.key, 1))
            places.setdefault(at, []).append(each)
        for (pipeline, sink), some in places.items():
            client = LedgerClient(self.ledger.store, pipeline, self.clock)
            made |= change_parked(client, sink, some)
        return made

    def _checked(
        self, lines: Iterable[tuple[int, bytes]], seen: dict[bytes, int]
    ) -> Iterator[tuple[int, ParkedChange | str | None]]:
        """Return for each line the change that it asks for, None, or what is wrong with it."""
        read: list[tuple[int, dict[str, Any] | str]] = []
        for number, line in lines:
            if not line.strip():
                continue
            try:
                read.append((number, _read_line(line, number)))
            except _WrongLine as error:
                read.append((number, str(error)))
        at = {Key(PARKED_TABLE, each["key"]) for _, each in read if isinstance(each, dict)}
        client = LedgerClient(self.ledger.store, "", self.clock)
        rows = client.read(*at) if at else {}
        for number, each in read:
            if isinstance(each, str):
                yield number, each
                continue
            name = hashlib.blake2b(each["key"].encode(), digest_size=16).digest()
            first = seen.setdefault(name, number)
            if first != number:
                yield number, f"event {_named(each)} is in line {first} already"
                continue
            try:
                yield number, self._change(each, rows)
            except (_WrongLine, DamagedRow) as error:
                yield number, str(error)

    def _change(self, line: dict[str, Any], rows: Mapping[Key, str]) -> ParkedChange | None:
        """Return the change that a line asks for, None if it asks for none."""
        at = Key(PARKED_TABLE, line["key"])
        text = rows.get(at)
        if text is None:
            raise _WrongLine(
                f"event {_named(line)} is not parked in this ledger (any more): remove the line"
            )
        row = ParkedRow.load(text, at)
        payload = line["payload"]
        if payload is None or row.value is None:
            if payload is not None or line["version"] is not None:
                raise _WrongLine(f"event {_named(line)} has no payload in the ledger; remove it")
            return None
        try:
            value = edited_value(row, payload)
        except ValueError as error:
            raise _WrongLine(f"event {_named(line)}: {error}") from None
        if value is None:
            return None
        self._require_editable(at, row, line, value)
        before = row.value if row.edited is None else row.edited.before
        edited = Edited(self.by, self.reason, self.clock.wall(), before)
        after = replace(row, value=value, edited=edited)
        if row.state is ParkedState.REJECTED:
            after = decided(after, ParkedState.RESEND, self.by, self.reason)
        return ParkedChange(at, text, row, after)

    def _require_editable(
        self, at: Key, row: ParkedRow, line: dict[str, Any], value: dict[str, Any]
    ) -> None:
        """Refuse an edit of an event that may have arrived, and of what names it."""
        name = f"event {_named(line)}"
        if line["version"] != payload_version(row.value):
            raise _WrongLine(
                f"{name} was changed in the ledger since it was exported; export it again"
            )
        if row.state is ParkedState.HELD:
            raise _WrongLine(
                f"{name} is in doubt: it may have arrived with the payload that it has. Check the "
                "destination; if it did not arrive, run `semel resolve EVENT resend --reason ...` "
                "and export it again"
            )
        waits = row.state in (ParkedState.REJECTED, ParkedState.WAITING) and not row.doubted
        released = row.by is not None and not row.unsure
        free = row.state is ParkedState.RESEND and (released or not row.doubted)
        if not waits and not free:
            doubt = ", and it may have arrived" if row.doubted else ""
            raise _WrongLine(
                f"{name} is {row.state.value}{doubt}: only dead letters, events that wait behind "
                "another one, and events that were released with `semel resolve EVENT resend` can "
                "be edited"
            )
        columns, stages = self._known(text_in(at, 0))
        if text_in(at, 1) in stages:
            raise _WrongLine(f"{name} is a manifest for a second stage, which cannot be edited")
        for path in sorted(columns):
            if _value_at(value, path) != _value_at(row.value or {}, path):
                raise _WrongLine(
                    f"{name}: column {path!r} is part of the event's identity and must stay "
                    f"{_value_at(row.value or {}, path)!r}"
                )

    def _known(self, pipeline: str) -> tuple[frozenset[str], frozenset[str]]:
        """Return the columns of a pipeline that name an event, and its second stages."""
        if pipeline not in self._kept:
            client = LedgerClient(self.ledger.store, pipeline, self.clock)
            described = Owners(client).described() or {}
            identity = described.get("identity") or {}
            names = [
                identity.get("entity"),
                *identity.get("event", ()),
                *identity.get("ordinals", ()),
            ]
            stages = [name for name, sink in described.get("sinks", {}).items() if STAGE_OF in sink]
            self._kept[pipeline] = frozenset(filter(None, names)), frozenset(stages)
        return self._kept[pipeline]


def _named(line: Mapping[str, Any]) -> str:
    """Return the name of the event of a line, for an error."""
    return str(name_of(Key(PARKED_TABLE, line["key"])))


def _value_at(value: Mapping[str, Any], path: str) -> Any:
    """Return the value of a dotted path; a name with dots in it is one column first."""
    if path in value:
        return encode_value(value[path])
    found: Any = value
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return encode_value(found)


def _refuse_constant(constant: str) -> float:
    raise _WrongLine(f'{constant} is not JSON; write {{"$float": "{constant.lower()}"}}')


_REQUIRED = ("key", "version", "payload")


def _read_line(line: bytes, number: int) -> dict[str, Any]:
    """Read one line. Raises `_WrongLine`."""
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        found = json.loads(text, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise _WrongLine(f"it is not UTF-8 (byte {error.start + 1})") from None
    except json.JSONDecodeError as error:
        raise _WrongLine(f"it is not JSON: {error.msg} (character {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise _WrongLine(str(error)[:200] or "it is nested too deeply") from None
    if not isinstance(found, dict):
        raise _WrongLine("it is not a JSON object; a line is one event of `semel parked export`")
    missing = [name for name in _REQUIRED if name not in found]
    if missing:
        raise _WrongLine(f"the field {missing[0]!r} is missing; export the event again")
    if not isinstance(found["key"], str) or not _is_key(found["key"]):
        raise _WrongLine("the field 'key' is not the key of a parked event; export it again")
    payload = found["payload"]
    if payload is not None and not isinstance(payload, dict):
        raise _WrongLine("the field 'payload' must be an object of columns")
    return found


def _is_key(text: str) -> bool:
    try:
        name_of(Key(PARKED_TABLE, text))
        text.encode()
    except (ValueError, IndexError):
        return False
    return "\x00" not in text
