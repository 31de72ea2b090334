"""Appending to an inbox: numbers, repeats and groups, in one commit for many requests.

Always true:
- an append requires the row of every partition that it adds to as it stood, and every id that is
  new to be absent. So two processes cannot give one number twice, and one id is stored once;
- as long as that row is as this process wrote or read it last, the counters that this process
  knows of the partition are true, and nothing is read. What it does not know any more it forgets;
- a row of an id never changes: what is known of an id stays true.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random
from typing import TYPE_CHECKING
from uuid import uuid4

from semel.errors import LedgerError, LedgerUnavailable, RepeatDiffers, SemelError, plain_text
from semel.ledger import (
    COUNTERS_TABLE,
    PRODUCERS_TABLE,
    CounterRow,
    InboxGroupRow,
    ProducerRow,
    counter_text,
    group_key,
    key_below,
    make_prefix,
    partition_key,
    producer_text,
)
from semel.ledger.store import Absent, Conflict, Equals, Put
from semel.streams.groups import GROUP_BYTES_MAX, GROUP_EVENTS_MAX, Numbered, pack
from semel.streams.new_event import Stored
from semel.streams.partitions import Partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from semel.ledger import InboxEndRow, LedgerClient
    from semel.ledger.store import Key, Requirement, Update
    from semel.streams.new_event import Prepared

COUNTERS_MAX = 200_000
IDS_MAX = 100_000
SOURCES_MAX = 10_000
"""How many counters of a partition, how many ids, and how many sources a process remembers."""

PAUSE_S = 0.002
"""How long a process waits at most after its first conflict with another one."""
OTHERS_S = 2.0
"""How long after a conflict a process expects others, and leaves them room after each commit. If it
committed again at once, what they have just read would be out of date each time.
"""

ROOM_S = 0.05
"""A look that took longer was slow for another reason: at most twice this much room is left."""

Source = tuple[str, str]
"""Source and id of an event."""


_Known = tuple[str, str, int, int, int]
"""What is known of an id that is stored, or is stored by this commit: the digest of its event,
entity, EventID, partition and offset. A plain tuple, because a process keeps many of them.
"""


@dataclass(slots=True)
class _Plan:
    """One commit, and what it answers."""

    partitions: Partitions
    counters: dict[int, dict[str, int]] = field(default_factory=dict)
    """The entities that get events, by partition: the last number of each."""
    ids: dict[Source, _Known] = field(default_factory=dict)
    added: dict[int, list[Numbered]] = field(default_factory=dict)
    answers: list[list[Stored] | SemelError] = field(default_factory=list)
    rows: dict[int, tuple[InboxEndRow, str]] = field(default_factory=dict)
    """The new row of each partition, and its text."""


class Appender:
    """Appends to one stream, for one thread at a time; remembers what it has read and written."""

    def __init__(self, client: LedgerClient, stream: str) -> None:
        self._client = client
        self._stream = stream
        self._partitions: Partitions | None = None
        self._counters: dict[int, dict[str, int]] = {}
        self._ids: dict[Source, _Known] = {}
        self._jitter = Random(uuid4().int)
        self._others_until = -math.inf
        self._room_until = -math.inf
        self._window_s = 0.0
        """How long it took last from a conflict to the next try."""
        self._counter_prefix = make_prefix(stream)
        self._source_prefixes: dict[str, str] = {}

    def append(
        self, requests: Sequence[list[Prepared] | SemelError], create: Callable[[], None]
    ) -> list[list[Stored] | SemelError]:
        """Store requests in one commit and answer each; `create` creates the stream if it is
        missing.
        """
        clock = self._client.clock
        began, tries = clock.monotonic(), 0
        looked: float | None = None
        if began < self._room_until:
            clock.sleep(self._room_until - began)
        while True:
            plan = self._planned(requests, create)
            if not plan.added:
                return plan.answers
            requirements, updates, landed = self._commit_of(plan)
            asked = clock.monotonic()
            if looked is not None:
                self._window_s = asked - looked
            try:
                self._client.commit(requirements, updates, landed)
            except Conflict as conflict:
                looked = clock.monotonic()
                self._look_again(conflict, requests)
            except BaseException:
                self.forget()  # it is not known what is stored now
                raise
            else:
                self._remember(plan)
                self._leave_room()
                return plan.answers
            tries += 1
            if tries > 1 and clock.monotonic() - began >= self._client.patience_s:
                raise LedgerUnavailable(
                    f"the inbox {self._stream!r}: other processes came first in {tries} tries; "
                    "nothing was stored. Use fewer processes, or larger requests"
                )
            clock.sleep(self._jitter.random() * PAUSE_S)

    def _leave_room(self) -> None:
        """Let other processes be first, for as long as one needs from a look to a commit."""
        now = self._client.clock.monotonic()
        if now < self._others_until:
            room_s = min(self._window_s, ROOM_S)
            self._room_until = now + room_s * (1 + self._jitter.random())

    def forget(self) -> None:
        """Forget what was read and written: the next append reads it again."""
        self._partitions = None
        self._counters.clear()

    def _planned(
        self, requests: Sequence[list[Prepared] | SemelError], create: Callable[[], None]
    ) -> _Plan:
        """Decide what each event is, and number the new ones."""
        if self._partitions is None:
            self._partitions = Partitions.read(self._client, self._stream)
            if self._partitions is None:
                create()
                self._partitions = Partitions.read(self._client, self._stream)
                if self._partitions is None:
                    raise LedgerError(
                        f"the inbox {self._stream!r} has lost its partitions: its rows were removed"
                        " while it was in use. Restore the ledger"
                    )
        plan = _Plan(self._partitions)
        accepted: list[tuple[list[Stored], list[Prepared]]] = []
        taken: dict[Source, str] = {}
        for request in requests:
            if isinstance(request, SemelError):
                plan.answers.append(request)
                continue
            try:
                taken.update(self._new_ids(request, taken))
            except RepeatDiffers as error:
                plan.answers.append(error)
            else:
                answer: list[Stored] = []
                plan.answers.append(answer)
                accepted.append((answer, request))
        self._read_counters(plan, [request for _, request in accepted])
        for answer, request in accepted:
            self._number(plan, request, answer)
        return plan

    def _new_ids(self, request: list[Prepared], taken: dict[Source, str]) -> dict[Source, str]:
        """Return the ids of a request that are not known, with digests. Raises `RepeatDiffers`."""
        new: dict[Source, str] = {}
        for number, event in enumerate(request):
            id_ = event.new.id
            if id_ is None:
                continue
            source = (event.new.source, id_)
            known = self._ids.get(source)
            digest = known[0] if known else taken.get(source) or new.get(source)
            if digest is None:
                new[source] = event.digest
            elif digest != event.digest:
                raise RepeatDiffers(
                    f"event {number}: source {plain_text(source[0], 60)!r} has used the id "
                    f"{plain_text(id_, 60)!r} for another event; a retry repeats an event "
                    "unchanged, a new event needs a new id"
                )
        return new

    def _read_counters(self, plan: _Plan, requests: list[list[Prepared]]) -> None:
        """Read the counters that are needed and not known."""
        missing: dict[Key, tuple[int, str]] = {}
        partition_of = plan.partitions.partition_of
        for partition in plan.partitions.numbers:
            self._counters.setdefault(partition, {})
        for request in requests:
            for event in request:
                partition = event.partition = partition_of(event.hash)
                if event.entity not in self._counters[partition]:
                    missing[self._counter_key(event.entity)] = (partition, event.entity)
        if not missing:
            return
        found = self._client.read(*missing)
        for at, (partition, entity) in missing.items():
            text = found.get(at)
            self._counters[partition][entity] = (
                0 if text is None else CounterRow.load(text, at).last
            )

    def _number(self, plan: _Plan, request: list[Prepared], answer: list[Stored]) -> None:
        """Number the new events of a request, and answer all of them."""
        for event in request:
            id_ = event.new.id
            source = None if id_ is None else (event.new.source, id_)
            if source is not None:
                known = self._ids.get(source) or plan.ids.get(source)
                if known is not None:
                    answer.append(Stored(*known[1:], repeat=True))
                    continue
            partition = event.partition
            counters = plan.counters.setdefault(partition, {})
            number = counters.get(event.entity)
            if number is None:
                number = self._counters[partition][event.entity]
            number += 1
            counters[event.entity] = number
            added = plan.added.setdefault(partition, [])
            offset = plan.partitions.rows[partition].end + len(added)
            added.append(Numbered(event, number))
            if source is not None:
                plan.ids[source] = (event.digest, event.entity, number, partition, offset)
            answer.append(Stored(event.entity, number, partition, offset, repeat=False))

    def _commit_of(self, plan: _Plan) -> tuple[list[Requirement], list[Update], Callable[[], bool]]:
        """Return requirements, updates, and the function that recognises that it passed."""
        requirements: list[Requirement] = []
        updates: list[Update] = []
        token = uuid4().hex
        now_us = int(self._client.clock.wall() * 1_000_000)
        group: Key | None = None
        for partition, added in plan.added.items():
            row = plan.partitions.rows[partition]
            time_us = max(now_us, row.time_us)
            at, end = partition_key(self._stream, partition), row.end
            for events in _groups(added):
                end += len(events)
                group = group_key(self._stream, partition, end)
                updates.append(Put(group, pack(events, time_us, token)))
            row = replace(row, end=end, time_us=time_us)
            plan.rows[partition] = row, row.dump()
            requirements.append(Equals(at, plan.partitions.texts[partition]))
            updates.append(Put(at, plan.rows[partition][1]))
        for counters in plan.counters.values():
            for entity, last in counters.items():
                updates.append(Put(self._counter_key(entity), counter_text(last)))
        for (source, id_), known in plan.ids.items():
            at = self._producer_key(source, id_)
            requirements.append(Absent(at))
            updates.append(Put(at, producer_text(*known)))
        assert group is not None
        written = group

        def landed() -> bool:
            text = self._client.read_one(written)
            # The token, because its events may have been read and pruned meanwhile.
            return text is not None and InboxGroupRow.load(text, written).token == token

        return requirements, updates, landed

    def _remember(self, plan: _Plan) -> None:
        """Keep what this commit has written."""
        for partition, (row, text) in plan.rows.items():
            plan.partitions.put(row, text)
            counters = self._counters[partition]
            if len(counters) > COUNTERS_MAX:
                counters.clear()
            counters.update(plan.counters[partition])
        self._learn(plan.ids)

    def _learn(self, ids: dict[Source, _Known]) -> None:
        if len(self._ids) > IDS_MAX:
            self._ids = dict(islice(self._ids.items(), IDS_MAX // 2, None))
        self._ids.update(ids)

    def _look_again(
        self, conflict: Conflict, requests: Sequence[list[Prepared] | SemelError]
    ) -> None:
        """Read what another process has written."""
        if conflict.key.table == PRODUCERS_TABLE:
            self._read_ids([each for each in requests if not isinstance(each, SemelError)])
            return
        self._others_until = self._client.clock.monotonic() + OTHERS_S
        before, self._partitions = self._partitions, Partitions.read(self._client, self._stream)
        texts = {} if self._partitions is None else self._partitions.texts
        for partition in list(self._counters):
            if before is None or texts.get(partition) != before.texts.get(partition):
                del self._counters[partition]

    def _read_ids(self, requests: Sequence[list[Prepared]]) -> None:
        """Read which of the ids are stored already."""
        wanted: dict[Key, Source] = {}
        for request in requests:
            for event in request:
                id_ = event.new.id
                if id_ is not None and (event.new.source, id_) not in self._ids:
                    source = (event.new.source, id_)
                    wanted[self._producer_key(*source)] = source
        found: dict[Source, _Known] = {}
        for at, text in self._client.read(*wanted).items():
            row = ProducerRow.load(text, at)
            found[wanted[at]] = (row.digest, row.entity, row.event, row.partition, row.offset)
        self._learn(found)

    def _counter_key(self, entity: str) -> Key:
        return key_below(COUNTERS_TABLE, self._counter_prefix, entity)

    def _producer_key(self, source: str, id_: str) -> Key:
        prefix = self._source_prefixes.get(source)
        if prefix is None:
            if len(self._source_prefixes) > SOURCES_MAX:
                self._source_prefixes.clear()
            prefix = self._source_prefixes[source] = make_prefix(self._stream, source)
        return key_below(PRODUCERS_TABLE, prefix, id_)


def _groups(added: list[Numbered]) -> Iterator[list[Numbered]]:
    """Cut the events of one commit into groups of bounded size."""
    group: list[Numbered] = []
    size = 0
    for each in added:
        bytes_ = len(each.event.new.value)
        if group and (len(group) >= GROUP_EVENTS_MAX or size + bytes_ > GROUP_BYTES_MAX):
            yield group
            group, size = [], 0
        group.append(each)
        size += bytes_
    if group:
        yield group
