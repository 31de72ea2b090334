"""One attempt's hold on one partition: claim, begin and settle.

Always true:
- the row in `streams` is durable before the first effect, and a span in `events` before its first
  chunk is sent;
- whoever claims a partition that is not complete takes it over, and no earlier attempt can write
  any more;
- each commit requires what it changes, so a twin of it that arrives late meets a `Conflict`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from semel.errors import ConfigurationError, Diverged, Fenced
from semel.events import EntityIds
from semel.ledger.keys import EVENTS, OPEN, STREAMS, key, prefix
from semel.ledger.rows import PartitionRow, SpanRow
from semel.ledger.store.commit import Absent, Conflict, Delete, Equals, Put
from semel.ledger.verbs.parked import NOTHING, HeadMoved
from semel.ledger.verbs.runs import require_known
from semel.protocol import Found, PartitionState, SpanState

if TYPE_CHECKING:
    from semel.events.event import Attempt
    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Key, Requirement, Update
    from semel.ledger.verbs.open import OpenMinibatch
    from semel.ledger.verbs.parked import Parks
    from semel.runtime import Process

MERGE_EVERY = 16
"""Settled spans stand as rows of their own until so many can be told as one."""
MERGED_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims: the attempt, its process, and Spark's partitionId of its task."""

    attempt: Attempt
    process: Process
    task: int
    lease_s: float
    deadline_s: float


@dataclass(slots=True)
class PartitionClaim:
    """The hold of one attempt on one partition of one sink, from its claim to its report.

    Attributes:
        may_grow: whether a minibatch that was complete may have further events (position).
        asked_at: on the own monotonic clock, just before the ledger was last asked: a lease counts
            from there.
        predecessor: the row as it was before this attempt took it over.
    """

    client: LedgerClient
    opening: OpenMinibatch
    sink: str
    partition: str
    who: Claimant
    may_grow: bool = True
    asked_at: float = 0.0
    predecessor: PartitionRow | None = None
    row: PartitionRow | None = None
    columns: dict[str, str] | None = None
    _text: str = ""
    _last: tuple[SpanRow, str] | None = None
    _settled: list[tuple[SpanRow, str]] = field(default_factory=list)

    # -- claim

    def claim(
        self,
        first: SpanRow | None,
        parks: Parks = NOTHING,
        location: str | None = None,
        begins: list[Any] | None = None,
    ) -> Found:
        """Insert the row with the first span, or find what stands there and take it over; `begins`
        is the sort key of its first event, where no span tells it.

        NEW only if this very attempt inserted the row. Raises `Fenced` when a later attempt or run
        has it.
        """
        standing = self.opening.standing(self.sink, self.partition)
        fresh = PartitionRow(
            partition=self.partition,
            state=PartitionState.PENDING,
            attempt=self.who.attempt,
            process=self.who.process,
            task=self.who.task,
            osn=standing.osn,
            lease_s=self.who.lease_s,
            deadline_s=self.who.deadline_s,
            at=self.client.clock.wall(),
            location=location,
            first=(_begins(first) if begins is None else begins) if self.may_grow else None,
            columns=self.columns,
        )
        joined = self.sink in self.opening.joined
        if self.opening.row.again and not joined and not (self.may_grow and self._is_newest):
            self._refuse_growth()
        put = Put(self._row_key, fresh.dump())
        updates: list[Update] = [put, *parks.updates]
        text = "" if first is None else first.dump()
        if first is not None:
            updates.append(Put(self._span_key(first.number), text))
        self.asked_at = self.client.clock.monotonic()
        try:
            self.client.commit(
                [self._open_stands, Absent(self._row_key), *parks.requirements],
                updates,
                landed=lambda: self.client.stands([put]),
            )
        except Conflict:
            return self._take_over()
        self.row, self._text = fresh, put.payload
        if first is not None:
            self._last = (first, text)
        return Found.NEW

    def _take_over(self) -> Found:
        """Find what stands there: complete, or pending and from now on ours."""
        while True:
            self.asked_at = self.client.clock.monotonic()
            rows = self.client.read(self._open_key, self._row_key)
            if rows.get(self._open_key) != self.opening.text:
                raise self._gone_on()
            text = rows.get(self._row_key)
            if text is None:
                raise HeadMoved
            found = PartitionRow.load(text, self._row_key)
            if found.state is PartitionState.COMPLETE:
                self.row, self._text = found, text
                return Found.COMPLETE
            self._refuse_two_tasks(found)
            if found.attempt > self.who.attempt:
                raise self._fenced(f"attempt {found.attempt} has it")
            if self._seize(found, text):
                return Found.PENDING

    def _seize(self, found: PartitionRow, text: str) -> bool:
        """Write this attempt into a pending row; False when somebody else was faster. It may end
        before it has waited, so a lease and a deadline that were longer before stay.
        """
        taken = replace(
            found,
            attempt=self.who.attempt,
            process=self.who.process,
            task=self.who.task,
            lease_s=max(self.who.lease_s, found.lease_s),
            deadline_s=max(self.who.deadline_s, found.deadline_s),
            at=self.client.clock.wall(),
            taken=True,
            waited=False,
        )
        payload = taken.dump()
        if payload != text:
            try:
                self.client.commit(
                    [self._open_stands, Equals(self._row_key, text)], [Put(self._row_key, payload)]
                )
            except Conflict:
                return False
        self.predecessor, self.row, self._text = found, taken, payload
        return True

    def spans(self) -> list[SpanRow]:
        """Give the recorded spans of a partition that was found pending, in their order."""
        rows = self.client.scan(EVENTS, prefix(*self._parts))
        found = [(SpanRow.load(text, at), text) for at, text in rows]
        if found:
            self._last = found[-1]
            self._settled = [item for item in found if item[0].state is SpanState.SETTLED]
        return [span for span, _ in found]

    def reopen(self, done: int) -> None:
        """Put a complete row back to pending because events beyond its range came (position
        identity).
        """
        if self.row is None:
            raise AssertionError("reopen comes after claim")
        again = replace(
            self.row,
            state=PartitionState.PENDING,
            attempt=self.who.attempt,
            process=self.who.process,
            task=self.who.task,
            at=self.client.clock.wall(),
            taken=True,
            waited=True,
            done=done,
        )
        self.asked_at = self.client.clock.monotonic()
        put = Put(self._row_key, again.dump())
        try:
            self.client.commit([self._open_stands, Equals(self._row_key, self._text)], [put])
        except Conflict:
            raise self._fenced("another attempt put it back to pending first") from None
        self.row, self._text = again, put.payload

    # -- begin and settle

    def write(
        self,
        *,
        settled: SpanRow | None = None,
        intended: SpanRow | None = None,
        withdrawn: bool = False,
        parks: Parks = NOTHING,
    ) -> None:
        """Settle (or withdraw) the last span, record the next one, and park, in one commit.

        Raises `Fenced` when the partition changed hands, `HeadMoved` when only a head did: then
        nothing was written, and the caller looks at the heads again.
        """
        requirements: list[Requirement] = [self._open_stands, Equals(self._row_key, self._text)]
        updates: list[Update] = list(parks.updates)
        row, row_text = self.row, self._text
        if self._last is not None:
            requirements.append(Equals(self._span_key(self._last[0].number), self._last[1]))
        elif intended is not None and row is not None:
            row = replace(row, waited=True, at=self.client.clock.wall())
            row_text = row.dump()
            updates.append(Put(self._row_key, row_text))
        proof: list[Update] = []
        texts = [span.dump() if span is not None else "" for span in (settled, intended)]
        if settled is not None:
            proof.append(Put(self._span_key(settled.number), texts[0]))
        elif withdrawn and self._last is not None:
            gone = Delete(self._span_key(self._last[0].number))
            # Gone while the row is still ours: nobody else can have withdrawn it.
            proof += [gone, Put(self._row_key, row_text)]
        if intended is not None:
            requirements.append(Absent(self._span_key(intended.number)))
            proof.append(Put(self._span_key(intended.number), texts[1]))
        merged = self._merge()
        asked_at = self.client.clock.monotonic()
        try:
            self.client.commit(
                [*requirements, *parks.requirements],
                [*updates, *proof, *(merged[1] if merged else [])],
                landed=lambda: self.client.stands(proof) if proof else parks.stand(self.client),
            )
        except Conflict:
            raise self._why(parks) from None
        self.asked_at = asked_at
        self.row, self._text = row, row_text
        if merged:
            self._settled = [merged[0]]
        if settled is not None:
            self._last = (settled, texts[0])
            self._settled.append(self._last)
        elif withdrawn:
            self._last = self._settled[-1] if self._settled else None
        if intended is not None:
            self._last = (intended, texts[1])

    def keep(self, span: SpanRow, parks: Parks = NOTHING) -> None:
        """Let the last span stay intended under its number, with less to send, and park.

        Raises `Fenced` and `HeadMoved` as `write` does.
        """
        if self._last is None or self._last[0].number != span.number:
            raise AssertionError("what is kept is the last span")
        at, text = self._span_key(span.number), span.dump()
        asked_at = self.client.clock.monotonic()
        put = Put(at, text)
        requirements: list[Requirement] = [
            self._open_stands,
            Equals(self._row_key, self._text),
            Equals(at, self._last[1]),
            *parks.requirements,
        ]
        try:
            self.client.commit(
                requirements, [put, *parks.updates], landed=lambda: self.client.stands([put])
            )
        except Conflict:
            raise self._why(parks) from None
        self.asked_at, self._last = asked_at, (span, text)

    def check(self) -> None:
        """Ask the ledger whether this attempt still has the partition: a new lease, or `Fenced`."""
        asked_at = self.client.clock.monotonic()
        rows = self.client.read(self._open_key, self._row_key)
        if rows.get(self._open_key) != self.opening.text:
            raise self._fenced("the driver has gone on")
        if rows.get(self._row_key) != self._text:
            raise self._fenced("another attempt has it")
        self.asked_at = asked_at

    @property
    def next_span(self) -> int:
        """The number of the next span."""
        return 0 if self._last is None else self._last[0].number + 1

    def _merge(self) -> tuple[tuple[SpanRow, str], list[Update]] | None:
        """Tell settled neighbours as one row, as far as it stays small; give the last row and the
        updates.
        """
        if len(self._settled) < MERGE_EVERY:
            return None
        runs: list[list[tuple[SpanRow, str]]] = []
        size = MERGED_BYTES_MAX
        for item in self._settled:
            size += len(item[1].encode())
            if size > MERGED_BYTES_MAX:
                runs.append([])
                size = len(item[1].encode())
            runs[-1].append(item)
        updates: list[Update] = []
        last = self._settled[-1]
        for run in runs:
            last = _as_one(run)
            if len(run) > 1:
                updates.append(Put(self._span_key(last[0].number), last[1]))
                updates.extend(Delete(self._span_key(span.number)) for span, _ in run[1:])
        return last, updates

    # -- what went wrong

    def _why(self, parks: Parks) -> Fenced | HeadMoved:
        """Tell a lost partition from a moved head."""
        rows = self.client.read(self._open_key, self._row_key)
        if rows.get(self._open_key) != self.opening.text:
            return self._gone_on()
        if rows.get(self._row_key) != self._text:
            return self._fenced("another attempt has it")
        if parks.requirements:
            return HeadMoved()
        return self._fenced("its spans were written by somebody else")

    def _gone_on(self) -> Fenced:
        """Raises `ConfigurationError` where the ledger does not know the pipeline at all."""
        require_known(self.client)
        return self._fenced("the driver has gone on")

    def _fenced(self, why: str) -> Fenced:
        return Fenced(
            f"pipeline {self.client.pipeline!r}, sink {self.sink!r}, minibatch "
            f"{self.opening.row.minibatch}, partition {self.partition}: attempt {self.who.attempt} "
            f"stops, because {why}. Nothing is to be done: the other one delivers the rest"
        )

    def _refuse_growth(self) -> None:
        """A minibatch that was complete without this partition has no events in it."""
        if self.client.read_one(self._row_key) is None:
            raise Diverged(
                f"pipeline {self.client.pipeline!r}, sink {self.sink!r}, minibatch "
                f"{self.opening.row.minibatch}: it was complete without partition "
                f"{self.partition}, and a replay gives events in it. The query does not give the "
                "same rows for the same input; nothing was sent. Look at the query, then say "
                f"`semel resolve {self.client.pipeline}/{self.opening.row.minibatch} "
                "as-recorded|as-replayed --reason ...`"
            )

    @property
    def _is_newest(self) -> bool:
        """Whether no minibatch after this one had events of the partition: what a replay gives
        beyond the end of this one would be theirs.
        """
        known = self.opening.sequence(self.sink, self.partition)
        return all(serial <= self.opening.row.serial for serial, _ in known.before)

    def _refuse_two_tasks(self, found: PartitionRow) -> None:
        """A partition belongs to one task; two of one run would each deliver a part of it under one
        order.
        """
        if found.attempt.run == self.who.attempt.run and found.task != self.who.task:
            raise ConfigurationError(
                f"pipeline {self.client.pipeline!r}, sink {self.sink!r}, partition "
                f"{self.partition}: its rows are in two tasks of Spark ({found.task} and "
                f"{self.who.task}). Leave out `minPartitions`, `maxRecordsPerPartition` and "
                "`repartition` between the source and semel.deliver"
            )

    # -- keys

    @property
    def _parts(self) -> tuple[str | int, ...]:
        minibatch = self.opening.row.minibatch
        return (
            self.client.pipeline,
            self.sink,
            minibatch.generation,
            minibatch.batch,
            self.partition,
        )

    @property
    def _open_key(self) -> Key:
        return key(OPEN, self.client.pipeline)

    @property
    def _open_stands(self) -> Equals:
        return Equals(self._open_key, self.opening.text)

    @property
    def _row_key(self) -> Key:
        return key(STREAMS, *self._parts)

    def _span_key(self, number: int) -> Key:
        return key(EVENTS, *self._parts, number)


def _begins(span: SpanRow | None) -> list[Any] | None:
    """The sort key of the first event of a span, with position identity: its least id."""
    if span is None or not span.ids or not span.ids[0]:
        return None
    least: Any = min(cast("Any", ids).min() for _, ids in span.ids[0].items())
    return list(least) if isinstance(least, tuple) else [least]


def _as_one(run: list[tuple[SpanRow, str]]) -> tuple[SpanRow, str]:
    """Tell neighbours as one span under the number of the first; what it says is what they said."""
    head, last = run[0][0], run[-1][0]
    if head is last:
        return run[0]
    one = replace(
        head,
        chunks=((head.start, last.stop),),
        ids=(EntityIds.union(ids for span, _ in run for ids in span.ids),),
        handled=EntityIds.union(span.handled for span, _ in run),
        running=last.running,
        attempt=last.attempt,
        at=last.at,
        osn=(head.osn[0], last.osn[1]),
    )
    return one, one.dump()
