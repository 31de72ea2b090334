"""One attempt's hold on one partition: claim, begin and settle.

Always true:
- the row in `streams` is durable before the first effect, and a span in `events` before its first
  chunk is sent;
- an attempt that claims a partition which is not complete takes it over, and no earlier attempt can
  write any more;
- each commit requires the rows that it changes, so a late copy of it meets a `Conflict`;
- if the run is asked to stop, nothing more is begun, and what was sent is still recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from semel.errors import ConfigurationError, Diverged, Fenced
from semel.events import EntityIds
from semel.ledger.keys import EVENTS_TABLE, STREAMS_TABLE, make_key, written_part
from semel.ledger.rows import PartitionRow, SpanRow
from semel.ledger.store.commit import Absent, Conflict, Delete, Equals, Key, Put
from semel.ledger.verbs.parked import NO_PARKS, HeadMoved
from semel.ledger.verbs.runs import require_known
from semel.protocol import Found, PartitionState, SpanState

if TYPE_CHECKING:
    from semel.events import Attempt
    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Requirement, Update
    from semel.ledger.verbs.open import OpenMinibatch
    from semel.ledger.verbs.parked import Parks
    from semel.runtime import Process

MERGE_EVERY = 16
"""This many settled spans are merged into one row."""
MERGED_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Claimant:
    """The attempt that claims, its process, and Spark's partitionId of its task."""

    attempt: Attempt
    process: Process
    task: int
    lease_s: float
    deadline_s: float


class _Recorded(NamedTuple):
    """A span as its row has it."""

    key: Key
    span: SpanRow
    text: str


@dataclass(slots=True)
class PartitionClaim:
    """The hold of one attempt on one partition of one sink, from its claim to its report.

    Attributes:
        may_grow: whether a minibatch that was complete may have further events (position).
        absorbed_by: what the destination recognises a repeat by (REPEATABLE).
        osn: L, the last OSN before the partition's first event.
        asked_at: the own monotonic clock just before the ledger was last asked; the lease counts
            from there.
        predecessor: the row as it was before this attempt took it over.
        stopping: whether this attempt has seen that its run is asked to stop.
    """

    client: LedgerClient
    opening: OpenMinibatch
    sink: str
    partition: str
    who: Claimant
    may_grow: bool = True
    absorbed_by: str | None = None
    osn: int = field(init=False)
    asked_at: float = 0.0
    predecessor: PartitionRow | None = None
    row: PartitionRow | None = None
    stopping: bool = False
    _text: str = ""
    _last: _Recorded | None = None
    _settled: list[_Recorded] = field(default_factory=list)
    _open_key: Key = field(init=False)
    _row_key: Key = field(init=False)
    _open_text: str = field(init=False)

    def __post_init__(self) -> None:
        minibatch, name = self.opening.row.minibatch, self.client.pipeline
        place = (name, self.sink, minibatch.generation, minibatch.batch, self.partition)
        self._row_key = make_key(STREAMS_TABLE, *place)
        self._open_key = self.client.open_key
        self._open_text = self.opening.text
        self.osn = self.opening.standing(self.sink, self.partition).osn

    # -- claim

    def claim(
        self,
        first: SpanRow | None,
        parks: Parks = NO_PARKS,
        location: str | None = None,
        begins: list[Any] | None = None,
        columns: dict[str, str] | None = None,
    ) -> Found:
        """Insert the row with the first span, or take over the row that is there; `begins` is the
        sort key of its first event, if there is no first span, `columns` the type of each column.

        Returns NEW only if this very attempt inserted the row. Raises `Fenced` if a later attempt
        or run has it, `StopRequested` if the run is asked to stop; then nothing was written.
        """
        # 1. Make the row, with the number from which this minibatch counts: a replay after a crash
        #    counts from the same number.
        fresh = PartitionRow(
            partition=self.partition,
            state=PartitionState.PENDING,
            attempt=self.who.attempt,
            process=self.who.process,
            task=self.who.task,
            osn=self.osn,
            lease_s=self.who.lease_s,
            deadline_s=self.who.deadline_s,
            at=self.client.clock.wall(),
            location=location,
            first=(_begins(first) if begins is None else begins) if self.may_grow else None,
            columns=columns,
            absorbed_by=self.absorbed_by,
        )
        # 2. Refuse a partition that a complete minibatch did not have, before anything is written.
        joined = self.sink in self.opening.joined
        if self.opening.row.again and not joined and not (self.may_grow and self._is_newest):
            self._refuse_growth()
        # 3. One commit: the row, the first intent, and what is parked. After a crash from here on,
        #    the next attempt finds which events may have been sent. It requires the open minibatch
        #    as this run opened it, so an attempt of a replaced run fails here.
        put = Put(self._row_key, fresh.dump())
        begun = None if first is None else self._to_record(first)
        updates: list[Update] = [put, *parks.updates]
        if begun is not None:
            updates.append(Put(begun.key, begun.text))
        try:
            self.asked_at = self.client.commit(
                [self._open_stands, Absent(self._row_key), *parks.requirements],
                updates,
                landed=lambda: self.client.stands([put]),
            )
        except Conflict:
            # 4. The row is there, so an earlier attempt began: take it over.
            return self._take_over()
        self.row, self._text, self._last = fresh, put.payload, begun
        return Found.NEW

    def _take_over(self) -> Found:
        """Find the row complete, or take over a pending one."""
        while True:
            # 1. Read the open minibatch and the row together: a run that was replaced while its
            #    task started stops here.
            self.asked_at = self.client.clock.monotonic()
            rows = self.client.read(self._open_key, self._row_key)
            if rows.get(self._open_key) != self._open_text:
                if self._asked_to_stop(rows.get(self._open_key)):
                    raise self.opening.stop_requested
                raise self._gone_on()
            text = rows.get(self._row_key)
            if text is None:
                raise HeadMoved
            # 2. A complete partition is only counted and compared: the driver crashed after
            #    completing it and before Spark committed the batch.
            found = PartitionRow.load(text, self._row_key)
            if found.state is PartitionState.COMPLETE:
                self.row, self._text, self.osn = found, text, found.osn
                return Found.COMPLETE
            # 3. Refuse what this attempt may not take: half of a partition, one that it would
            #    repeat under other keys, or a later attempt's.
            self._refuse_two_tasks(found)
            where = f"pipeline {self.client.pipeline!r}, sink {self.sink!r}, minibatch "
            where += f"{self.opening.row.minibatch}, partition {self.partition}"
            found.refuse_other_keys(where, self.absorbed_by)
            if found.attempt > self.who.attempt:
                raise self._fenced(f"attempt {found.attempt} has it")
            # 4. Write this attempt into the row before its spans are read: the attempt before may
            #    still be alive, and from this commit on it can record nothing more.
            if self._seize(found, text):
                return Found.PENDING

    def _seize(self, found: PartitionRow, text: str) -> bool:
        """Write this attempt into a pending row; False if the row changed meanwhile. The attempt
        may end before it has waited, so a longer lease and deadline of the previous one stay.
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
        self.predecessor, self.row, self._text, self.osn = found, taken, payload, found.osn
        return True

    def spans(self) -> list[SpanRow]:
        """Return the recorded spans of a partition that was found pending, in their order."""
        rows = self.client.scan(EVENTS_TABLE, self._row_key.key + "/")
        found = [_Recorded(at, SpanRow.load(text, at), text) for at, text in rows]
        if found:
            self._last = found[-1]
            self._settled = [each for each in found if each.span.state is SpanState.SETTLED]
        return [each.span for each in found]

    def reopen(self, done: int) -> None:
        """Put a complete row back to pending because events beyond its range arrived (position
        identity).
        """
        if self.row is None:
            raise AssertionError("reopen before claim")
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
        put = Put(self._row_key, again.dump())
        required = [self._open_stands, Equals(self._row_key, self._text)]
        try:
            self.asked_at = self.client.commit(required, [put])
        except Conflict:
            raise self._fenced("another attempt put it back to pending first") from None
        self.row, self._text = again, put.payload

    # -- begin and settle

    def write(
        self,
        settled: SpanRow | None = None,
        intended: SpanRow | None = None,
        *,
        withdrawn: bool = False,
        parks: Parks = NO_PARKS,
        may_stop: bool = False,
    ) -> None:
        """Settle (or withdraw) the last span, record the next one, and park, in one commit.

        Raises `Fenced` if another attempt has the partition, `HeadMoved` if only a head changed:
        then nothing was written, and the caller reads the heads again. If the run is asked to stop,
        raises `StopRequested` with `may_stop`, and nothing was written; without it all is recorded.
        """
        self._end_here(may_stop=may_stop)
        # 1. Require the open minibatch, the row and the last span as they were last seen: an
        #    attempt that was replaced while it called its destination fails here.
        requirements: list[Requirement] = [self._open_stands, Equals(self._row_key, self._text)]
        updates: list[Update] = list(parks.updates)
        row, row_text, last = self.row, self._text, self._last
        if last is not None:
            requirements.append(Equals(last.key, last.text))
        elif intended is not None and row is not None:
            row = replace(row, waited=True, at=self.client.clock.wall())
            row_text = row.dump()
            updates.append(Put(self._row_key, row_text))
        # 2. Settle the last span and record the next one in the same commit. A crash before it
        #    leaves the last span intended: its events may have been sent. A crash after it finds
        #    the next span intended before any of it was sent, so nothing is ever sent unrecorded.
        proof: list[Update] = []
        done = None if settled is None else self._to_record(settled)
        begun = None if intended is None else self._to_record(intended)
        if done is not None:
            proof.append(Put(done.key, done.text))
        elif withdrawn and last is not None:
            # Gone while the row is still ours: no other attempt can have withdrawn it.
            proof += [Delete(last.key), Put(self._row_key, row_text)]
        if begun is not None:
            requirements.append(Absent(begun.key))
            proof.append(Put(begun.key, begun.text))
        # 3. Merge settled spans in that commit too, so that each event is named by one span always.
        merged = self._merge()
        try:
            asked_at = self.client.commit(
                [*requirements, *parks.requirements],
                [*updates, *proof, *(merged[1] if merged else [])],
                landed=lambda: self.client.stands(proof) if proof else parks.stand(self.client),
            )
        except Conflict:
            if (why := self._why(parks)) is not None:
                raise why from None
            self.write(settled, intended, withdrawn=withdrawn, parks=parks, may_stop=may_stop)
            return
        # 4. Only now remember it: after an error the rows are as they were last seen.
        self.asked_at = asked_at
        self.row, self._text = row, row_text
        if merged:
            self._settled = [merged[0]]
        if done is not None:
            self._last = done
            self._settled.append(done)
        elif withdrawn:
            self._last = self._settled[-1] if self._settled else None
        if begun is not None:
            self._last = begun

    def keep(self, span: SpanRow, parks: Parks = NO_PARKS) -> None:
        """Keep the last span intended under its number, with fewer events to send, and park.

        Raises `Fenced` and `HeadMoved` as `write` does; that the run is asked to stop prevents it
        as little as there.
        """
        last = self._last
        if last is None or last.span.number != span.number:
            raise AssertionError("only the last span can be kept")
        kept = self._to_record(span)
        put = Put(kept.key, kept.text)
        requirements: list[Requirement] = [
            self._open_stands,
            Equals(self._row_key, self._text),
            Equals(last.key, last.text),
            *parks.requirements,
        ]
        try:
            asked_at = self.client.commit(
                requirements, [put, *parks.updates], landed=lambda: self.client.stands([put])
            )
        except Conflict:
            if (why := self._why(parks)) is not None:
                raise why from None
            self.keep(span, parks)
            return
        self.asked_at, self._last = asked_at, kept

    def check(self) -> None:
        """Renew the lease. Raises `Fenced` if this attempt does not have the partition any more."""
        asked_at = self.client.clock.monotonic()
        rows = self.client.read(self._open_key, self._row_key)
        text = rows.get(self._open_key)
        if text != self._open_text and not self._asked_to_stop(text):
            raise self._fenced("the driver opened another minibatch")
        if rows.get(self._row_key) != self._text:
            raise self._fenced("another attempt has it")
        self.asked_at = asked_at

    @property
    def next_span(self) -> int:
        """The number of the next span."""
        return 0 if self._last is None else self._last.span.number + 1

    def _merge(self) -> tuple[_Recorded, list[Update]] | None:
        """Merge settled neighbours into one row, up to a size; return the last row and the
        updates.
        """
        if len(self._settled) < MERGE_EVERY:
            return None
        runs: list[list[_Recorded]] = []
        size = MERGED_BYTES_MAX
        for each in self._settled:
            size += len(each.text.encode())
            if size > MERGED_BYTES_MAX:
                runs.append([])
                size = len(each.text.encode())
            runs[-1].append(each)
        updates: list[Update] = []
        last = self._settled[-1]
        for run in runs:
            last = _as_one(run)
            if len(run) > 1:
                updates.append(Put(last.key, last.text))
                updates.extend(Delete(each.key) for each in run[1:])
        return last, updates

    # -- what went wrong

    def _why(self, parks: Parks) -> Fenced | HeadMoved | None:
        """Return `Fenced` if the partition was lost, `HeadMoved` if only a head changed, None if
        all that changed is that the run is asked to stop.
        """
        rows = self.client.read(self._open_key, self._row_key)
        text = rows.get(self._open_key)
        if text != self._open_text:
            return None if self._asked_to_stop(text) else self._gone_on()
        if rows.get(self._row_key) != self._text:
            return self._fenced("another attempt has it")
        if parks.requirements:
            return HeadMoved()
        return self._fenced("another attempt wrote its spans")

    def _gone_on(self) -> Fenced:
        """Raises `ConfigurationError` if the ledger does not know the pipeline at all."""
        require_known(self.client)
        return self._fenced("the driver opened another minibatch")

    def _fenced(self, why: str) -> Fenced:
        return Fenced(
            f"pipeline {self.client.pipeline!r}, sink {self.sink!r}, minibatch "
            f"{self.opening.row.minibatch}, partition {self.partition}: attempt {self.who.attempt} "
            f"stops, because {why}. No action needed: the newer attempt delivers the rest"
        )

    def _refuse_growth(self) -> None:
        """Refuse a partition that a complete minibatch did not have."""
        if self.client.read_one(self._row_key) is None:
            raise Diverged(
                f"pipeline {self.client.pipeline!r}, sink {self.sink!r}, minibatch "
                f"{self.opening.row.minibatch}: it was complete without partition "
                f"{self.partition}, and a replay has events in it. The query does not return the "
                "same rows for the same input; nothing was sent. Check the query, then run "
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
        """Refuse a partition whose rows are in two tasks of one run: each would deliver a part of
        it under one order.
        """
        if found.attempt.run == self.who.attempt.run and found.task != self.who.task:
            raise ConfigurationError(
                f"pipeline {self.client.pipeline!r}, sink {self.sink!r}, partition "
                f"{self.partition}: its rows are in two tasks of Spark ({found.task} and "
                f"{self.who.task}). Remove `minPartitions`, `maxRecordsPerPartition` and "
                "`repartition` between the source and semel.deliver"
            )

    @property
    def _open_stands(self) -> Equals:
        return Equals(self._open_key, self._open_text)

    def _end_here(self, *, may_stop: bool) -> None:
        if may_stop and self.stopping:
            raise self.opening.stop_requested

    def _asked_to_stop(self, text: str | None) -> bool:
        """Whether the row `open` says that this run is to stop, and nothing else changed in it. The
        writes of this attempt require that row from now on.
        """
        asked = self.opening.asked_to_stop(text, self._open_key)
        if asked is None:
            return False
        self._open_text, self.stopping = asked.text, True
        return True

    def _to_record(self, span: SpanRow) -> _Recorded:
        """Return a span as it is to be recorded, under the key of the partition and its number."""
        last = self._last
        if last is not None and last.span.number == span.number:
            key = last.key
        else:
            key = Key(EVENTS_TABLE, f"{self._row_key.key}/{written_part(span.number)}")
        return _Recorded(key, span, span.dump())


def _begins(span: SpanRow | None) -> list[Any] | None:
    """Return the sort key of the first event of a span, with position identity: its least id."""
    if span is None or not span.ids or not span.ids[0]:
        return None
    least: Any = min(cast("Any", ids).min() for _, ids in span.ids[0].items())
    return list(least) if isinstance(least, tuple) else [least]


def _as_one(run: list[_Recorded]) -> _Recorded:
    """Merge neighbours into one span under the number of the first; it names the same events."""
    head, last = run[0].span, run[-1].span
    if head is last:
        return run[0]
    one = replace(
        head,
        chunks=((head.start, last.stop),),
        ids=(EntityIds.union(ids for each in run for ids in each.span.ids),),
        handled=EntityIds.union(each.span.handled for each in run),
        running=last.running,
        attempt=last.attempt,
        at=last.at,
        osn=(head.osn[0], last.osn[1]),
    )
    return _Recorded(run[0].key, one, one.dump())
