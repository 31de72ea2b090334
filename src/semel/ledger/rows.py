"""The rows of the ledger as values: what stands in each payload, and how it is written as JSON.

A row is compared by its text, so `dump` of a loaded row gives the text it was loaded from.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from semel.events import EntityIds
from semel.events.ids import Attempt, EventID, Minibatch
from semel.ledger import payloads
from semel.ledger.processes import Process
from semel.protocol import Judgement, ParkedState, PartitionState, SpanState


@dataclass(frozen=True, slots=True)
class Judged:
    """What a person decided about a divergence, who and why; it waits for the next open."""

    decision: Judgement
    by: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class OpenRow:
    """Which minibatch is open, for which run. Every write of a task requires it as it stands.

    Attributes:
        serial: the ledger's own number of the minibatch, increasing across generations.
        query: Spark's query id, from the checkpoint.
        partitions: N, over how many of them entities are spread; None with position identity.
        blocked: the sinks for which an entity is blocked, so that new partitions read heads too.
        complete: whether the driver has completed it; no task may act on it any more.
        version: how often the row was written: no two texts of it are ever the same.
        newest: where an older copy of the checkpoint was restored: batch and serial of the
            minibatch after this one, and whether it is complete.
        again: whether this minibatch was complete before and is only counted.
        since: when the generation began.
        judged: what a person said of this minibatch; gone with the open that acts on it.
        settled: whether a person said that it stands as recorded: nothing of it is run again.
        continues: whether the generation goes on where the one before stood, because a person said
            so: no checkpoint was lost.
        compared: whether the driver has compared the start of the generation with the ledger.
        sources: Kafka's id of each topic that was ever read, where it could be asked.
    """

    run: int
    minibatch: Minibatch
    serial: int
    query: str
    partitions: int | None = None
    blocked: tuple[str, ...] = ()
    complete: bool = False
    version: int = 1
    newest: tuple[int, int, bool] | None = None
    again: bool = False
    since: float = 0.0
    judged: Judged | None = None
    settled: bool = False
    continues: bool = False
    compared: bool = False
    sources: dict[str, str] = field(default_factory=dict)

    def dump(self) -> str:
        """Give the payload."""
        return payloads.dump(
            {
                "run": self.run,
                "generation": self.minibatch.generation,
                "batch": self.minibatch.batch,
                "serial": self.serial,
                "query": self.query,
                "partitions": self.partitions,
                "blocked": list(self.blocked),
                "complete": self.complete,
                "version": self.version,
                "newest": None if self.newest is None else list(self.newest),
                "again": self.again,
                "since": self.since,
                "judged": None if self.judged is None else asdict(self.judged),
                "settled": self.settled,
                "continues": self.continues,
                "compared": self.compared,
                **({"sources": self.sources} if self.sources else {}),
            }
        )

    @classmethod
    def load(cls, text: str) -> OpenRow:
        """Read it back."""
        row = payloads.load(text)
        judged = row["judged"]
        return cls(
            run=row["run"],
            minibatch=Minibatch(row["generation"], row["batch"]),
            serial=row["serial"],
            query=row["query"],
            partitions=row["partitions"],
            blocked=tuple(row["blocked"]),
            complete=row["complete"],
            version=row["version"],
            newest=None if row["newest"] is None else tuple(row["newest"]),
            again=row["again"],
            since=row["since"],
            judged=None
            if judged is None
            else Judged(**{**judged, "decision": Judgement(judged["decision"])}),
            settled=row["settled"],
            continues=row["continues"],
            compared=row["compared"],
            sources=row.get("sources", {}),
        )

    def reached(self) -> tuple[int, int, bool]:
        """Give batch, serial and completeness of the newest minibatch, this one or the next."""
        return self.newest or (self.minibatch.batch, self.serial, self.complete or self.again)


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One partition of one minibatch: who has it, and once complete, what it held.

    Attributes:
        taken: whether this attempt took it over from another.
        waited: whether no attempt before this one can still act: it was first, or has waited.
        task: Spark's partitionId.
        osn: the last OSN before the partition's first event (L of the minibatch before).
        done: events at the start of the order that a complete row already covered (position
            identity).
        first: the sort key of the first event; before complete with position identity only.
        location: the destination's place for exactly these events; removed with complete.
        dropped: whether a person said that none of it counts: it is only numbered past.
        placed: what the destination told of the place, once complete; None where it has none.
    """

    partition: str
    state: PartitionState
    attempt: Attempt
    process: Process
    task: int
    osn: int
    lease_s: float
    deadline_s: float
    at: float
    taken: bool = False
    waited: bool = True
    done: int = 0
    location: str | None = None
    count: int | None = None
    digest: str | None = None
    first: list[Any] | None = None
    last: list[Any] | None = None
    dropped: bool = False
    placed: dict[str, Any] | None = None

    def dump(self) -> str:
        """Give the payload."""
        return payloads.dump(
            {
                "partition": self.partition,
                "state": self.state.value,
                "attempt": [self.attempt.run, self.attempt.task],
                "process": self.process.to_json(),
                "task": self.task,
                "osn": self.osn,
                "lease": self.lease_s,
                "deadline": self.deadline_s,
                "at": self.at,
                "taken": self.taken,
                "waited": self.waited,
                "done": self.done,
                "location": self.location,
                "count": self.count,
                "digest": self.digest,
                "first": self.first,
                "last": self.last,
                "dropped": self.dropped,
                **({} if self.placed is None else {"placed": self.placed}),
            }
        )

    @classmethod
    def load(cls, text: str) -> StreamRow:
        """Read it back."""
        row = payloads.load(text)
        return cls(
            partition=row["partition"],
            state=PartitionState(row["state"]),
            attempt=Attempt(*row["attempt"]),
            process=Process.from_json(row["process"]),
            task=row["task"],
            osn=row["osn"],
            lease_s=row["lease"],
            deadline_s=row["deadline"],
            at=row["at"],
            taken=row["taken"],
            waited=row["waited"],
            done=row["done"],
            location=row["location"],
            count=row["count"],
            digest=row["digest"],
            first=row["first"],
            last=row["last"],
            dropped=row["dropped"],
            placed=row.get("placed"),
        )


@dataclass(frozen=True, slots=True)
class SpanRow:
    """A run of chunks that may have been sent, or surely have been.

    Attributes:
        chunks: their ranges [start, stop) of the order; neighbours once settled are told as one
            range.
        ids: of all events, a set for each of the chunks.
        running: the digest of the partition from its start to the span's end.
        handled: of those among them that are not sent from here: parked, or delivered before.
    """

    number: int
    chunks: tuple[tuple[int, int], ...]
    state: SpanState
    running: str
    ids: tuple[EntityIds, ...]
    attempt: Attempt
    at: float
    osn: tuple[int, int]
    handled: EntityIds = field(default=EntityIds.EMPTY)

    @property
    def start(self) -> int:
        """Where it starts in the order."""
        return self.chunks[0][0]

    @property
    def stop(self) -> int:
        """Where it ends in the order, exclusive."""
        return self.chunks[-1][1]

    def dump(self) -> str:
        """Give the payload."""
        return payloads.dump(
            {
                "number": self.number,
                "chunks": [list(chunk) for chunk in self.chunks],
                "state": self.state.value,
                "running": self.running,
                "ids": [ids.written() for ids in self.ids],
                "attempt": [self.attempt.run, self.attempt.task],
                "at": self.at,
                "osn": list(self.osn),
                "handled": self.handled.written(),
            }
        )

    @classmethod
    def load(cls, text: str) -> SpanRow:
        """Read it back."""
        row = payloads.load(text)
        return cls(
            number=row["number"],
            chunks=tuple((start, stop) for start, stop in row["chunks"]),
            state=SpanState(row["state"]),
            running=row["running"],
            ids=tuple(EntityIds.from_json(ids) for ids in row["ids"]),
            attempt=Attempt(*row["attempt"]),
            at=row["at"],
            osn=(row["osn"][0], row["osn"][1]),
            handled=EntityIds.from_json(row["handled"]),
        )


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """An event kept with its payload, out of the way of the stream.

    Attributes:
        value: the event's columns; None when it was in doubt before a new generation began and has
            not come again yet.
        blocks: whether later events of its entity wait for it.
        doubted: whether it was ever in doubt: it may have arrived although nobody said so.
        attempts: how often it was tried since it was parked.
        shown: the entity as a sink sees it, where it was not known yet when the row was made.
    """

    entity: str
    scope: str
    event: EventID
    minibatch: Minibatch
    partition: str
    position: int
    osn: int
    state: ParkedState
    why: str
    at: float
    blocks: bool
    doubted: bool = False
    value: dict[str, Any] | None = None
    schema: str | None = None
    attempts: int = 0
    by: str | None = None
    reason: str | None = None
    shown: str | None = None

    def dump(self) -> str:
        """Give the payload."""
        return payloads.dump(
            {
                "entity": self.entity,
                "scope": self.scope,
                "event": list(self.event) if isinstance(self.event, tuple) else self.event,
                "minibatch": [self.minibatch.generation, self.minibatch.batch],
                "partition": self.partition,
                "position": self.position,
                "osn": self.osn,
                "state": self.state.value,
                "why": self.why,
                "at": self.at,
                "blocks": self.blocks,
                "doubted": self.doubted,
                "value": None if self.value is None else _encoded(self.value),
                "schema": self.schema,
                "attempts": self.attempts,
                "by": self.by,
                "reason": self.reason,
                "shown": self.shown,
            }
        )

    @classmethod
    def load(cls, text: str) -> ParkedRow:
        """Read it back."""
        row = payloads.load(text)
        event = row["event"]
        value = row["value"]
        return cls(
            entity=row["entity"],
            scope=row["scope"],
            event=tuple(event) if isinstance(event, list) else event,
            minibatch=Minibatch(*row["minibatch"]),
            partition=row["partition"],
            position=row["position"],
            osn=row["osn"],
            state=ParkedState(row["state"]),
            why=row["why"],
            at=row["at"],
            blocks=row["blocks"],
            doubted=row["doubted"],
            value=None if value is None else _decoded(value),
            schema=row["schema"],
            attempts=row["attempts"],
            by=row["by"],
            reason=row["reason"],
            shown=row["shown"],
        )


@dataclass(frozen=True, slots=True)
class HeadRow:
    """An entity that is blocked. Whoever parks behind, drains or unblocks it requires it as it
    stands; its origin is the event that made it, so that no two heads ever have the same text.
    """

    entity: str
    scope: str
    version: int
    waiting: int
    origin: str = ""

    def dump(self) -> str:
        """Give the payload."""
        return payloads.dump(
            {
                "entity": self.entity,
                "scope": self.scope,
                "version": self.version,
                "waiting": self.waiting,
                "origin": self.origin,
            }
        )

    @classmethod
    def load(cls, text: str) -> HeadRow:
        """Read it back."""
        row = payloads.load(text)
        return cls(row["entity"], row["scope"], row["version"], row["waiting"], row["origin"])


def _encoded(value: dict[str, Any]) -> dict[str, Any]:
    return {name: payloads.encode_value(item) for name, item in value.items()}


def _decoded(value: dict[str, Any]) -> dict[str, Any]:
    return {name: payloads.decode_value(item) for name, item in value.items()}
