"""Ledgers that are generated row by row: many pipelines, a million parked events, any state."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pyarrow as pa

from semel.events import Attempt, Minibatch
from semel.ledger.figures import (
    MinibatchFigures,
    QueryFigures,
    RateFigures,
    RunFigures,
    StateFigures,
    StateKind,
)
from semel.ledger.keys import make_key
from semel.ledger.payloads import dump_payload
from semel.ledger.rows import HeadRow, OpenRow, ParkedRow, PartitionRow
from semel.ledger.store.commit import Put, Store, Update
from semel.ledger.stream_rows import MarkerHead, MarkerRow
from semel.ledger.verbs.complete import SequenceRow, Standing
from semel.ledger.verbs.parked import head_key, parked_key
from semel.ledger.verbs.runs import OwnerRow
from semel.protocol import ParkedState, PartitionState
from semel.runtime import Process
from semel.streams import stream_of_pipeline

NOW = 1_800_000_000.0
ELSEWHERE = Process("spark-driver-7", "another boot", 4211, "99")
SCHEMA = base64.b64encode(
    pa.schema([("customer", pa.string()), ("payment_id", pa.int64()), ("amount", pa.int64())])
    .serialize()
    .to_pybytes()
).decode()

_COMMIT_ROWS = 5_000


@dataclass
class GeneratedPipeline:
    """One pipeline; every method returns rows, `put` writes them."""

    store: Store
    name: str = "charges"
    sinks: dict[str, str] = field(default_factory=lambda: {"bank": "opaque"})
    batch: int = 412
    partitions: int = 8
    now: float = NOW
    process: Process = ELSEWHERE
    seed: int = 7

    def put(self, rows: Iterable[Update]) -> int:
        """Write rows, some thousand in each commit; return how many."""
        count = 0
        batch: list[Update] = []
        for row in rows:
            batch.append(row)
            count += 1
            if len(batch) == _COMMIT_ROWS:
                self.store.commit([], batch)
                batch = []
        if batch:
            self.store.commit([], batch)
        return count

    def register(self, *, complete: bool = False, **owner: Any) -> None:
        """Write what every pipeline has: description, run, open minibatch, standings."""
        described = {
            "identity": {"kind": "given", "entity": "customer", "event": ["payment_id"]},
            "partitions": self.partitions,
            "sinks": {sink: {"capability": kind} for sink, kind in self.sinks.items()},
        }
        opened = OpenRow(
            3, Minibatch(1, self.batch), self.batch, "q", self.partitions, complete=complete
        )
        rows: list[Update] = [
            Put(make_key("pipelines", self.name), dump_payload(described)),
            Put(make_key("open", self.name), opened.dump()),
            self.owner(**owner),
        ]
        for sink in self.sinks:
            for at in range(self.partitions):
                row = SequenceRow(
                    f"{at}of{self.partitions}", Standing(50_000 + at, 50_000 + at), ()
                )
                rows.append(Put(make_key("sequences", self.name, sink, row.partition), row.dump()))
        self.put([*rows, *self.claimed(complete=complete)])

    def owner(
        self, *, beat: int = 1, at: float | None = None, minibatches: int = 60, **others: Any
    ) -> Put:
        """The row of the run, with its figures."""
        at = self.now if at is None else at
        figures = self.figures(at, minibatches)
        row = OwnerRow(3, "nonce", self.process, beat, at, figures=figures)
        return Put(make_key("owners", self.name), replace(row, **others).dump())

    def figures(self, at: float, minibatches: int) -> RunFigures:
        """What a run writes with its heartbeat."""
        random = Random(self.seed)
        newest: list[MinibatchFigures] = []
        for back in range(minibatches, 0, -1):
            slow = 2.2 if random.random() < 0.06 else 1.0
            newest.append(
                MinibatchFigures(
                    f"1.{self.batch - back}",
                    at - 5.0 * back + random.uniform(-0.3, 0.3),
                    random.uniform(1.2, 2.6) * slow,
                    int(random.gauss(6_000, 700)),
                    1_204 if back == 23 else 0,
                    0,
                    2 if back == 9 else 0,
                )
            )
        recent = newest[-20:]
        rates = (
            RateFigures(
                len(recent),
                5.0 * len(recent),
                sum(each.seconds for each in recent),
                max(each.seconds for each in recent),
                {sink: sum(each.delivered for each in recent) for sink in self.sinks},
            )
            if recent
            else None
        )
        state = StateFigures(
            "dedupe",
            StateKind.CHANGELOG,
            8,
            184_210,
            52_428_800,
            6_100,
            120,
            3,
            3_296,
            41,
            8,
            12,
            734_003_200,
            18_874_368,
            88.1,
            41.7,
            2.4,
        )
        query = QueryFigures(self.batch, 1_203.4, 3_310.9, 1.82, "2026-11-19T10:41:00.000Z")
        return RunFigures(3, at, rates, query, (state,), newest=tuple(newest), suppressed=1_204)

    def claimed(self, *, complete: bool = False, pending: int = 3) -> Iterator[Put]:
        """The partitions of the newest minibatch; the last ones are pending."""
        for sink in self.sinks:
            for at in range(self.partitions):
                is_pending = not complete and at >= self.partitions - pending
                state = PartitionState.PENDING if is_pending else PartitionState.COMPLETE
                row = PartitionRow(
                    f"{at}of{self.partitions}",
                    state,
                    Attempt(3, 900 + at),
                    self.process,
                    at,
                    50_000,
                    10.0,
                    30.0,
                    self.now - 1,
                    count=None if is_pending else 750 + at,
                )
                place = (self.name, sink, 1, self.batch, row.partition)
                yield Put(make_key("streams", *place), row.dump())

    def old_partitions(self, minibatches: int) -> Iterator[Put]:
        """Partitions of earlier minibatches, which no version keeps: a ledger may be worse."""
        sink = next(iter(self.sinks))
        for batch in range(minibatches):
            row = PartitionRow(
                "0of8",
                PartitionState.COMPLETE,
                Attempt(3, batch),
                self.process,
                0,
                batch,
                10.0,
                30.0,
                self.now - minibatches + batch,
                count=1,
            )
            place = (self.name, sink, 0, batch, row.partition)
            yield Put(make_key("streams", *place), row.dump())

    def pacing(self, markers: int = 100, p99_s: float = 4.3) -> Iterator[Put]:
        """The newest markers and the head of their clock."""
        stream = stream_of_pipeline(self.name)
        for number in range(1, markers + 1):
            rate = 1_150.0 + 13 * (number % 9)
            reason = (
                f"every 4.2 s: 5 s are required, a minibatch takes 0.4 s and 0.3 ms for each event "
                f"at {rate:,.0f} events/s"
            )
            row = MarkerRow(
                {"payments/0": 700 * number},
                4.2,
                rate,
                reason,
                self.now - 5.0 * (markers - number),
                6_000,
                4.2,
                1.8,
                f"1.{self.batch - markers + number}",
            )
            yield Put(make_key("markers", stream, number), row.dump())
        head = MarkerHead(markers, {}, "payments", 5.0, 0.9, 2.6, p99_s)
        yield Put(make_key("markers", stream), head.dump())

    def parked(
        self,
        entity: str,
        event: Any,
        state: ParkedState = ParkedState.HELD,
        *,
        sink: str | None = None,
        why: str = "TimeoutError: no reply within 10 s",
        ago_s: float = 600.0,
        **others: Any,
    ) -> Iterator[Put]:
        """One parked event, with the head of its entity if it blocks."""
        sink = sink or next(iter(self.sinks))
        row = ParkedRow(
            entity,
            entity,
            event,
            Minibatch(1, self.batch - 9),
            f"3of{self.partitions}",
            4,
            49_000,
            state,
            why,
            self.now - ago_s,
            not state.final,
            state is ParkedState.HELD,
            {"customer": entity, "payment_id": event, "amount": 4_900},
            SCHEMA,
        )
        row = replace(row, **others)
        yield Put(parked_key(self.name, sink, row), row.dump())
        if row.blocks and state is not ParkedState.WAITING:
            head = HeadRow(entity, entity, 1, 0, f"{entity}#0#{state.value}")
            yield Put(head_key(self.name, sink, (entity, entity)), head.dump())

    def many_parked(self, count: int, state: ParkedState = ParkedState.HELD) -> Iterator[Put]:
        """Very many parked events of very many entities."""
        for number in range(count):
            yield from self.parked(f"c{number:07}", number, state, ago_s=60.0 + number % 86_400)
