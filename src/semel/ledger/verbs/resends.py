"""Sending parked events again: one at a time for each sink, and its outcome.

A resend is not fenced by `open` but by its parked row, its head and a slot. Always true:
- one event of a slot is being sent at a time, and tokens of a slot only grow: a later one fences an
  earlier one;
- an event leaves the parked state only in the commit that records its outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from semel.errors import Fenced
from semel.ledger.keys import PARKED_TABLE, make_key
from semel.ledger.payloads import LATER, Row
from semel.ledger.rows import HeadRow, ParkedRow
from semel.ledger.store.commit import Absent, Conflict, Delete, Equals, Key, Put
from semel.ledger.verbs.parked import Entity, head_key
from semel.ledger.verbs.runs import OWNERS_TABLE
from semel.protocol import ParkedState
from semel.runtime import Process

if TYPE_CHECKING:
    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Requirement, Update

WHOLE_SINK = "~"
"""The slot of a sink as a whole; for SEQUENCED every partition has one of its own."""


SENT_AGAIN = "sent"
"""The reason that is recorded for an event that was delivered by a resend."""


@dataclass(frozen=True, slots=True)
class SlotRow(Row):
    """The process that sends a parked event of a sink right now, and the event.

    `current` is None if none is being sent. `first` is the token under which it was first taken, at
    `began`: any sender from there on may have sent it. `at` is when it was last taken.
    `absorbed_by` is what the destination recognised a repeat by then (REPEATABLE).
    """

    TABLE = OWNERS_TABLE

    token: int
    first: int
    current: str | None
    process: Process
    at: float
    began: float
    absorbed_by: Annotated[str | None, LATER] = None


@dataclass(frozen=True, slots=True)
class Claimed:
    """A parked event that one sender has claimed.

    Attributes:
        was: the row before; SENDING if the previous sender died without recording an outcome.
        first: the first token under which it may have been sent; the own one if there was no
            earlier sender.
        began: when that was, or since when it may have been sent if it waited in doubt.
        absorbed_by: what a repeat was recognised by when it was first sent; None if not known.
    """

    key: Key
    was: ParkedRow
    row: ParkedRow
    token: int
    first: int
    slot_text: str
    row_text: str
    asked_at: float
    began: float
    absorbed_by: str | None = None

    @property
    def waited_in_doubt(self) -> bool:
        """Whether it waited behind another event, and may have arrived before it was parked."""
        return _waits_in_doubt(self.was)


def _waits_in_doubt(row: ParkedRow) -> bool:
    return row.state is ParkedState.WAITING and row.doubted


class Resends:
    """Claims and settles parked events of one sink."""

    def __init__(
        self,
        client: LedgerClient,
        sink: str,
        process: Process,
        slot: str = WHOLE_SINK,
        absorbed_by: str | None = None,
    ) -> None:
        self._client = client
        self._absorbed_by = absorbed_by
        self._sink = sink
        self._process = process
        self._slot = make_key(OWNERS_TABLE, client.pipeline, "resend", sink, slot)

    def slot(self) -> SlotRow | None:
        """Return the row of the slot, or None."""
        text = self._client.read_one(self._slot)
        return None if text is None else SlotRow.load(text, self._slot)

    def claim(self, row_key: Key, row: ParkedRow, text: str) -> Claimed | None:
        """Claim a parked event to send it; None if another sender has it or the slot."""
        # 1. Look at the slot: it may be free, or name this very event because its sender died.
        asked_at = self._client.clock.monotonic()
        slot_text = self._client.read_one(self._slot)
        slot = None if slot_text is None else SlotRow.load(slot_text, self._slot)
        current = None if slot is None else slot.current
        if current not in (None, row_key.key) and self.at(str(current)) is not None:
            return None  # an event that is not there any more, as 0.4.0 renames it, holds nothing
        # 2. Take the next token, and keep the first one under which the event may have been sent:
        #    a destination that knows tokens is asked for all of them.
        token = 1 if slot is None else slot.token + 1
        first = token if slot is None or slot.current is None else slot.first
        now = self._client.clock.wall()
        since = row.at if _waits_in_doubt(row) else now
        began = since if slot is None or slot.current is None else slot.began
        way = self._absorbed_by if slot is None or slot.current is None else slot.absorbed_by
        mine = SlotRow(token, first, row_key.key, self._process, now, began, way).dump()
        sending = replace(row, state=ParkedState.SENDING, attempts=row.attempts + 1)
        sending_text = sending.dump()
        # 3. One commit before the event is sent: slot and row change together, so a crash from here
        #    on leaves an event that is known to be sending, and a slot that names it.
        requirements: list[Requirement] = [
            Equals(row_key, text),
            Absent(self._slot) if slot_text is None else Equals(self._slot, slot_text),
        ]
        try:
            self._client.commit(requirements, [Put(self._slot, mine), Put(row_key, sending_text)])
        except Conflict:
            return None
        return Claimed(
            row_key, row, sending, token, first, mine, sending_text, asked_at, began, way
        )

    def still_mine(self, claimed: Claimed) -> bool:
        """Whether no later sender has taken the slot."""
        return self._client.read_one(self._slot) == claimed.slot_text

    def settle(
        self,
        claimed: Claimed,
        state: ParkedState,
        why: str,
        *,
        blocks: bool,
        doubted: bool = False,
    ) -> None:
        """Record the outcome and free the slot; `doubted` if the event may have arrived twice.

        Raises `Fenced` if a later sender has it.
        """
        # 1. The row with its outcome, and the slot without the event: written together, so that a
        #    crash never frees the slot of an event whose outcome is not recorded.
        in_doubt = doubted or state in (ParkedState.HELD, ParkedState.SKIPPED)
        row = replace(
            claimed.row,
            state=state,
            why=why,
            blocks=blocks,
            doubted=claimed.row.doubted or in_doubt,
            unsure=doubted and state is ParkedState.RESEND,
            # an event that still waits may have been sent as early as before
            at=claimed.was.at if state is ParkedState.WAITING else self._client.clock.wall(),
        )
        free = replace(SlotRow.load(claimed.slot_text, self._slot), current=None).dump()
        entity = (row.entity, row.scope)
        done: list[Update] = [Put(claimed.key, row.dump()), Put(self._slot, free)]
        while True:
            # 2. The head counts the events that wait behind it: a partition that parks another one
            #    meanwhile changes it, and this is tried again.
            at = head_key(self._client.pipeline, self._sink, entity)
            head_text = self._client.read_one(at)
            requirements: list[Requirement] = [
                Equals(claimed.key, claimed.row_text),
                Equals(self._slot, claimed.slot_text),
            ]
            updates = list(done)
            if head_text is not None:
                head = HeadRow.load(head_text, at)
                left = head.waiting - (state.final and head.waiting > 0)
                requirements.append(Equals(at, head_text))
                bumped = replace(head, version=head.version + 1, waiting=left)
                updates.append(Put(at, bumped.dump()))
            # 3. One commit; after a lost reply the row and the slot show whether it passed.
            try:
                self._client.commit(requirements, updates, landed=lambda: self._client.stands(done))
            except Conflict:
                if self.still_mine(claimed):
                    continue
                raise Fenced(
                    f"pipeline {self._client.pipeline!r}, sink {self._sink!r}: event {row.event} "
                    f"of {row.entity!r} was taken over by a later sender, which records its "
                    "outcome"
                ) from None
            return

    def unblock(self, entity: Entity, head_text: str) -> bool:
        """Remove a head behind which nothing waits; False if an event was parked behind it."""
        at = head_key(self._client.pipeline, self._sink, entity)
        try:
            self._client.commit([Equals(at, head_text)], [Delete(at)])
        except Conflict:
            return self._client.read_one(at) is None
        return True

    def at(self, key_text: str) -> tuple[Key, ParkedRow, str] | None:
        """Return the parked row with this key."""
        row_key = Key(PARKED_TABLE, key_text)
        text = self._client.read_one(row_key)
        return None if text is None else (row_key, ParkedRow.load(text, row_key), text)
