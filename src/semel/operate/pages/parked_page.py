"""A page of parked events, one of them by its key, and a decision about it.

Always true: a page reads at most `LOOKED_MAX` rows and at most some megabytes, says where the next
one begins, and never says that nothing is parked while there are rows that it did not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError
from semel.ledger import (
    PARKED_TABLE,
    DamagedRow,
    HeadRow,
    LedgerClient,
    ParkedRow,
    head_key,
    make_prefix,
    resolve_parked,
    sift_rows,
)
from semel.ledger.store import Key
from semel.operate.event_names import name_of, short_name
from semel.operate.ledgers import choose_pipeline, choose_sinks
from semel.operate.parked import ParkedEvent, ParkedEvents, read_parked_events, text_in
from semel.operate.resolve import DECISIONS, ResolvedEvent, require_decision, what_follows
from semel.protocol import ParkedState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from semel.ledger import Ledger
    from semel.operate.status import PipelineStatus

EVENTS_MAX = 50
"""How many events are on one page."""

LOOKED_MAX = 2_000
"""How many rows are looked at for one page."""

LISTED_MAX = 1_000
"""How many events of a ledger with very many a list has."""

SORTED_MAX = 5_000
"""How many rows are read at once to list them in the order of their input."""

SCANNED_MAX = 50_000
"""How many rows are looked at for one list."""

LOOKED_BYTES_MAX = 16 * 2**20
_STEP_ROWS = 100

PERSON = "person"
OPEN = "open"
ALL = "all"
STATES = (PERSON, OPEN, ALL, *(each.value for each in ParkedState))
"""Which states a page shows: those that wait for a person, all that are not settled, all, or one
state.
"""


@dataclass(frozen=True, slots=True)
class ParkedChoice:
    """Which parked events are meant; what is empty does not filter.

    Attributes:
        states: one of `STATES`.
        why: a part of the reason, in any case of letters.
    """

    pipeline: str = ""
    sink: str = ""
    states: str = PERSON
    entity: str = ""
    why: str = ""

    def __post_init__(self) -> None:
        if self.states not in STATES:
            raise ConfigurationError(
                f"unknown state {self.states!r}; use one of {', '.join(STATES)}"
            )
        if self.sink and not self.pipeline:
            raise ConfigurationError(
                f"a sink belongs to a pipeline; name the pipeline of sink {self.sink!r}"
            )

    def takes(self, row: ParkedRow) -> bool:
        """Whether an event is one of those that are meant, by its row."""
        state = row.state
        if self.states == PERSON:
            right = state in (ParkedState.HELD, ParkedState.REJECTED)
        else:
            right = self.states == ALL or (
                not state.final if self.states == OPEN else state.value == self.states
            )
        named = not self.entity or self.entity in (row.entity, row.shown)
        return right and named and self.why.casefold() in row.why.casefold()


@dataclass(frozen=True, slots=True)
class ParkedPage:
    """Parked events in the order of their keys.

    Attributes:
        looked: how many rows were read.
        next_after: the key after which the next page begins; None if there are no more rows.
    """

    events: tuple[ParkedEvent, ...]
    damaged: tuple[DamagedRow, ...]
    looked: int
    next_after: str | None


def read_parked_page(
    ledger: Ledger, where: ParkedChoice, after: str = "", events_max: int = EVENTS_MAX
) -> ParkedPage:
    """Return the first events above the key `after` that are meant.

    Raises `ConfigurationError` if the pipeline or the sink does not exist.
    """
    events_max = max(1, min(events_max, EVENTS_MAX))
    found: list[tuple[Key, ParkedRow]] = []
    damaged: list[DamagedRow] = []
    looked = size = 0
    last: str | None = None
    for at, text in _rows(ledger, where, after):
        if (
            looked >= LOOKED_MAX
            or size > LOOKED_BYTES_MAX
            or len(found) + len(damaged) >= events_max
        ):
            return ParkedPage(_named(ledger, found), tuple(damaged), looked, last)
        good, unread = sift_rows([(at, text)], ParkedRow.load)
        damaged += unread
        found += [(at, row) for _, row in good if _is_named(at) and where.takes(row)]
        looked, size, last = looked + 1, size + len(text), at.key
    return ParkedPage(_named(ledger, found), tuple(damaged), looked, None)


def list_parked(
    ledger: Ledger,
    pipeline: str | None = None,
    *,
    also_final: bool = False,
    limit: int = LISTED_MAX,
    after: str = "",
) -> ParkedEvents:
    """Return the parked events of a ledger or of one pipeline that are not in a final state; with
    `also_final`, all of them.

    Up to `SORTED_MAX` rows in the whole ledger, they are in the order of their input. Of more, at
    most `limit` are returned in the order of their keys, those above the key `after`, and at most
    `SCANNED_MAX` rows are looked at; `next_after` says where the next list begins.
    """
    name = None if pipeline is None else choose_pipeline(ledger, pipeline)
    rows = ledger.store.scan(PARKED_TABLE, "", limit=SORTED_MAX + 1)
    if not after and sum(1 for _ in rows) <= SORTED_MAX:
        known = read_parked_events(ledger)
        start = "" if name is None else make_prefix(name)
        return ParkedEvents(
            [
                each
                for each in known.events
                if name in (None, each.pipeline) and (also_final or not each.row.state.final)
            ],
            [each for each in known.damaged if (each.key or "").startswith(start)],
        )
    found = ParkedEvents()
    where = ParkedChoice(name or "", states=ALL if also_final else OPEN)
    looked = 0
    begin: str | None = after
    while begin is not None and looked < SCANNED_MAX and len(found.events) < limit:
        page = read_parked_page(ledger, where, begin, limit - len(found.events))
        found.events.extend(page.events)
        found.damaged.extend(page.damaged)
        begin, looked = page.next_after, looked + page.looked
    return ParkedEvents(found.events, found.damaged, begin)


def read_parked_at(ledger: Ledger, key: str) -> ParkedEvent:
    """Return the parked event with this key. Raises `ConfigurationError` if there is none, and
    `LedgerError` if its row cannot be read.
    """
    at = Key(PARKED_TABLE, key)
    text = None if "\0" in key else ledger.store.read([at]).get(at)
    if text is None or not _is_named(at):
        raise ConfigurationError(
            f"nothing is parked at {key!r}; it may be resolved and removed since. "
            "`semel parked ls --all` lists parked events"
        )
    [event] = _named(ledger, [(at, ParkedRow.load(text, at))])
    return event


def resolve_parked_at(
    ledger: Ledger, key: str, decision: str, *, by: str, reason: str, status: PipelineStatus
) -> ResolvedEvent:
    """Record a decision about the parked event with this key; `status` is that of its pipeline. May
    be repeated: the same decision again changes nothing.

    Raises `ConfigurationError` if there is no such event, or if it cannot be decided so.
    """
    require_decision(decision, reason)
    if decision not in DECISIONS:
        raise ConfigurationError(f"{decision!r} is for a minibatch: use {', '.join(DECISIONS)}")
    found = read_parked_at(ledger, key)
    client = LedgerClient(ledger.store, found.pipeline)
    state = DECISIONS[decision]
    row = resolve_parked(client, found.sink, found.key, state, by, reason)
    return ResolvedEvent(
        found.handle, row.state, row.by, row.reason, what_follows(found, state, status)
    )


def _rows(ledger: Ledger, where: ParkedChoice, after: str) -> Iterator[tuple[Key, str]]:
    """Read rows in the order of their keys, some at a time, from the places that are meant."""
    for prefix in _places(ledger, where):
        begin = after
        while True:
            rows = list(ledger.store.scan(PARKED_TABLE, prefix, after=begin, limit=_STEP_ROWS))
            yield from rows
            if len(rows) < _STEP_ROWS:
                break
            begin = rows[-1][0].key


def _places(ledger: Ledger, where: ParkedChoice) -> Sequence[str]:
    """Return the prefixes of the keys that are meant, in their order."""
    if not where.pipeline:
        return [""]
    pipeline = choose_pipeline(ledger, where.pipeline)
    if not where.entity and not where.sink:
        return [make_prefix(pipeline)]
    sinks = choose_sinks(ledger, pipeline, where.sink or None)
    entity = (where.entity,) if where.entity else ()
    return sorted(make_prefix(pipeline, sink, *entity) for sink in sinks)


def _is_named(at: Key) -> bool:
    """Whether a key is that of a parked event."""
    try:
        name_of(at)
    except (ValueError, IndexError):
        return False
    return True


def _named(ledger: Ledger, rows: Sequence[tuple[Key, ParkedRow]]) -> tuple[ParkedEvent, ...]:
    """Return events with their names, and how many wait behind each, from the heads of their
    entities.
    """
    pipelines = {at: (text_in(at, 0), text_in(at, 1)) for at, _ in rows}
    heads = {at: head_key(*pipelines[at], (row.entity, row.scope)) for at, row in rows}
    texts = ledger.store.read(list({*heads.values()})) if heads else {}
    known, _ = sift_rows(texts.items(), HeadRow.load)
    waiting = {at: head.waiting for at, head in known}
    return tuple(
        ParkedEvent(
            *pipelines[at],
            at,
            row,
            f"{name_of(at)}@{row.minibatch}",
            short_name(at),
            waiting.get(heads[at], 0) if row.blocks and not row.state.final else 0,
        )
        for at, row in rows
    )
