"""The rows of the ledger as values: the fields of each payload, and their JSON.

A row is compared by its text, so `dump` of a loaded row returns the text it was loaded from. `load`
takes the key too, for its error: `DamagedRow` if a field is missing or has a wrong value.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from semel.events import Attempt, EntityIds, EventID, Minibatch
from semel.ledger import payloads
from semel.ledger.damage import Fields, Unfit, decode_row, integer, pair
from semel.ledger.keys import EVENTS_TABLE, HEADS_TABLE, OPEN_TABLE, PARKED_TABLE, STREAMS_TABLE
from semel.protocol import Fault, Judgement, ParkedState, PartitionState, SpanState

if TYPE_CHECKING:
    from semel.ledger.store.commit import Key
    from semel.runtime import Process


@dataclass(frozen=True, slots=True)
class Judged:
    """A person's decision about a divergence, with name and reason; the next open acts on it."""

    decision: Judgement
    by: str
    reason: str
    at: float

    def __post_init__(self) -> None:
        payloads.cut_fields(self, "by", "reason")


@dataclass(frozen=True, slots=True)
class OpenRow:
    """The open minibatch and its run. Every write of a task requires this row unchanged.

    Attributes:
        serial: the ledger's own number of the minibatch, increasing across generations.
        query: Spark's query id, from the checkpoint.
        partitions: N, over which entities are spread; None with position identity.
        blocked: the sinks for which an entity is blocked, so that new partitions read heads too.
        complete: whether the driver has completed it; no task may act on it any more.
        version: how often the row was written, so that no two texts of it are ever the same.
        newest: if an older copy of the checkpoint was restored: batch and serial of the minibatch
            after this one, and whether it is complete.
        again: whether this minibatch was complete before and is only counted.
        since: when the generation began.
        judged: a person's decision about this minibatch; removed by the open that acts on it.
        settled: whether a person decided that it stays as recorded: no task runs again.
        continues: whether the generation continues the one before because of a person's decision:
            no checkpoint was lost.
        compared: whether the driver has compared the start of the generation with the ledger.
        sources: Kafka's id of each topic that was ever read, if it could be asked.
        accepted: whether a person accepted, in this generation, that its input does not continue
            where the ledger stood.
        lost: if the generation continues another: the one in which the checkpoint was last lost.
        first: the serial of the first minibatch after the last lost checkpoint; 0 if none was lost,
            or an older version wrote the row.
        inputs: the position of each input after the last complete minibatch, as Spark writes it;
            empty if it is not known, or an older version wrote the row.
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
    accepted: bool = False
    lost: int = 0
    first: int = 0
    inputs: tuple[str, ...] = ()

    @property
    def began(self) -> int:
        """The generation that began with the last lost checkpoint, 1 if none was ever lost."""
        return self.lost or (1 if self.continues else self.minibatch.generation)

    def dump(self) -> str:
        """Return the payload."""
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
                **({"accepted": True} if self.accepted else {}),
                **({"lost": self.lost} if self.lost else {}),
                **({"first": self.first} if self.first else {}),
                **({"inputs": list(self.inputs)} if self.inputs else {}),
            }
        )

    @classmethod
    def load(cls, text: str, at: Key | None = None) -> OpenRow:
        """Read it back."""
        return decode_row(OPEN_TABLE, at, text, cls._of)

    @classmethod
    def _of(cls, payload: dict[str, Any]) -> OpenRow:
        row = Fields(payload)
        return cls(
            run=row.integer("run"),
            minibatch=Minibatch(row.integer("generation"), row.integer("batch")),
            serial=row.integer("serial"),
            query=row.text("query"),
            partitions=row.maybe("partitions", row.integer),
            blocked=row.texts("blocked"),
            complete=row.flag("complete"),
            version=row.integer("version"),
            newest=row.maybe("newest", lambda name: _newest(row.items(name))),
            again=row.flag("again"),
            since=row.number("since"),
            judged=row.maybe("judged", lambda name: _judged(Fields(row.object(name), name))),
            settled=row.flag("settled"),
            continues=row.flag("continues"),
            compared=row.flag("compared"),
            sources=row.object_or_empty("sources"),
            accepted=row.later("accepted", row.flag, False),
            lost=row.later("lost", row.integer, 0),
            first=row.later("first", row.integer, 0),
            inputs=row.later("inputs", row.texts, ()),
        )

    def reached(self) -> tuple[int, int, bool]:
        """Return batch, serial and completeness of the newest minibatch, this one or the next."""
        return self.newest or (self.minibatch.batch, self.serial, self.complete or self.again)


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition of one minibatch: the attempt that has it, and once complete, its content.

    Attributes:
        taken: whether this attempt took it over from another.
        waited: whether no attempt before this one can still act: it was first, or has waited.
        task: Spark's partitionId.
        osn: the last OSN before the partition's first event (L of the minibatch before).
        done: events at the start that a complete row already covered (position identity).
        first: the sort key of the first event; before complete with position identity only.
        location: the destination's place for exactly these events; removed with complete.
        dropped: whether a person decided that none of it counts: its numbers are skipped.
        placed: what the destination returned about the location, once complete; None if it has
        none. columns: the type of each column, in their order; None if there are too many.
        stage: the second stage that gets the placed events; None if there is none.
        absorbed_by: `event`, `chunk` or `place`, at REPEATABLE; None elsewhere and in older rows.
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
    columns: dict[str, str] | None = None
    stage: str | None = None
    absorbed_by: str | None = None

    def dump(self) -> str:
        """Return the payload."""
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
                **({} if self.columns is None else {"columns": list(self.columns.items())}),
                **({} if self.stage is None else {"stage": self.stage}),
                **({} if self.absorbed_by is None else {"absorbed_by": self.absorbed_by}),
            }
        )

    @classmethod
    def load(cls, text: str, at: Key | None = None) -> PartitionRow:
        """Read it back."""
        return decode_row(STREAMS_TABLE, at, text, cls._of)

    @classmethod
    def _of(cls, payload: dict[str, Any]) -> PartitionRow:
        row = Fields(payload)
        return cls(
            partition=row.text("partition"),
            state=row.choice("state", PartitionState),
            attempt=_attempt(row),
            process=row.process("process"),
            task=row.integer("task"),
            osn=row.integer("osn"),
            lease_s=row.number("lease"),
            deadline_s=row.number("deadline"),
            at=row.number("at"),
            taken=row.flag("taken"),
            waited=row.flag("waited"),
            done=row.integer("done"),
            location=row.maybe("location", row.text),
            count=row.maybe("count", row.integer),
            digest=row.maybe("digest", row.text),
            first=row.maybe("first", row.items),
            last=row.maybe("last", row.items),
            dropped=row.flag("dropped"),
            placed=row.later("placed", row.object, None),
            columns=row.later("columns", row.text_pairs, None),
            stage=row.later("stage", row.text, None),
            absorbed_by=row.later("absorbed_by", row.text, None),
        )


@dataclass(frozen=True, slots=True)
class SpanRow:
    """A run of chunks that may have been sent, or surely have been.

    Attributes:
        chunks: their ranges [start, stop) of the order; settled neighbours become one range.
        ids: of all events, a set for each of the chunks.
        running: the digest of the partition from its start to the span's end.
        handled: of those among them that are not sent from here: parked, or delivered before.
        tries: how many attempts repeated it and got no answer (REPEATABLE); 0 if not counted.
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
    tries: int = 0

    @property
    def start(self) -> int:
        """Where it starts in the order."""
        return self.chunks[0][0]

    @property
    def stop(self) -> int:
        """Where it ends in the order, exclusive."""
        return self.chunks[-1][1]

    def dump(self) -> str:
        """Return the payload."""
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
                **({"tries": self.tries} if self.tries else {}),
            }
        )

    @classmethod
    def load(cls, text: str, at: Key | None = None) -> SpanRow:
        """Read it back."""
        return decode_row(EVENTS_TABLE, at, text, cls._of)

    @classmethod
    def _of(cls, payload: dict[str, Any]) -> SpanRow:
        row = Fields(payload)
        chunks = tuple(pair(chunk, "chunks") for chunk in row.items("chunks"))
        ids = tuple(EntityIds.from_json(each) for each in row.items("ids"))
        _require_chunks(chunks, ids)
        return cls(
            number=row.integer("number"),
            chunks=chunks,
            state=row.choice("state", SpanState),
            running=row.text("running"),
            ids=ids,
            attempt=_attempt(row),
            at=row.number("at"),
            osn=row.pair("osn"),
            handled=EntityIds.from_json(row.object("handled")),
            tries=row.later("tries", row.integer, 0),
        )


@dataclass(frozen=True, slots=True)
class ParkedRow:
    """An event that is kept with its payload, beside the stream.

    Attributes:
        value: the event's columns; None if it was in doubt before a new generation began and has
            not arrived again yet.
        blocks: whether later events of its entity wait for it.
        doubted: whether it was ever in doubt: it may have arrived without being recorded.
        attempts: how often it was tried since it was parked.
        shown: the entity as a sink sees it, if it was not known when the row was written.
        fault: how a call for it failed without a known outcome, if one did; one for each call.
        trace: the traceback of that, if it is the first of its kind.
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
    fault: Fault | None = None
    trace: str | None = None

    def __post_init__(self) -> None:
        payloads.cut_fields(self, "why", "by", "reason")

    def dump(self) -> str:
        """Return the payload."""
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
                **({} if self.fault is None else {"fault": self.fault.value}),
                **({} if self.trace is None else {"trace": self.trace}),
            }
        )

    @classmethod
    def load(cls, text: str, at: Key | None = None) -> ParkedRow:
        """Read it back."""
        return decode_row(PARKED_TABLE, at, text, cls._of)

    @classmethod
    def _of(cls, payload: dict[str, Any]) -> ParkedRow:
        row = Fields(payload)
        return cls(
            entity=row.text("entity"),
            scope=row.text("scope"),
            event=row.event("event"),
            minibatch=Minibatch(*row.pair("minibatch")),
            partition=row.text("partition"),
            position=row.integer("position", -(2**63)),
            osn=row.integer("osn"),
            state=row.choice("state", ParkedState),
            why=row.text("why"),
            at=row.number("at"),
            blocks=row.flag("blocks"),
            doubted=row.flag("doubted"),
            value=row.maybe("value", lambda name: _decoded(row.object(name))),
            schema=row.maybe("schema", row.text),
            attempts=row.integer("attempts"),
            by=row.maybe("by", row.text),
            reason=row.maybe("reason", row.text),
            shown=row.maybe("shown", row.text),
            fault=row.later("fault", lambda name: row.choice(name, Fault), None),
            trace=row.later("trace", row.text, None),
        )


@dataclass(frozen=True, slots=True)
class HeadRow:
    """A blocked entity. Parking behind it, draining and unblocking it require the row unchanged;
    its origin is the event that created it, so that no two heads ever have the same text.
    """

    entity: str
    scope: str
    version: int
    waiting: int
    origin: str = ""

    def dump(self) -> str:
        """Return the payload."""
        names = ("entity", "scope", "version", "waiting", "origin")
        return payloads.dump({name: getattr(self, name) for name in names})

    @classmethod
    def load(cls, text: str, at: Key | None = None) -> HeadRow:
        """Read it back."""
        return decode_row(HEADS_TABLE, at, text, cls._of)

    @classmethod
    def _of(cls, payload: dict[str, Any]) -> HeadRow:
        row = Fields(payload)
        return cls(
            row.text("entity"),
            row.text("scope"),
            row.integer("version"),
            row.integer("waiting"),
            row.text("origin"),
        )


def _attempt(row: Fields) -> Attempt:
    """Return the attempt of a row; the driver acts as task -1, below every task."""
    return Attempt(*row.pair("attempt", -1))


def _newest(value: list[Any]) -> tuple[int, int, bool]:
    if len(value) != 3 or not isinstance(value[2], bool):
        raise Unfit("the field 'newest' must be a batch, a serial and true or false")
    return integer(value[0], "newest"), integer(value[1], "newest"), value[2]


def _judged(row: Fields) -> Judged:
    decision = row.choice("decision", Judgement)
    return Judged(decision, row.text("by"), row.text("reason"), row.number("at"))


def _require_chunks(chunks: tuple[tuple[int, int], ...], ids: tuple[EntityIds, ...]) -> None:
    """Check that chunks follow each other, that none is empty, and that each has its ids."""
    if not chunks or len(chunks) != len(ids):
        raise Unfit("the fields 'chunks' and 'ids' must be of one length, and not empty")
    meet = all(one[1] == other[0] for one, other in pairwise(chunks))
    if not meet or any(start >= stop for start, stop in chunks):
        raise Unfit("the field 'chunks' must be ranges that follow each other")


def _encoded(value: dict[str, Any]) -> dict[str, Any]:
    return {name: payloads.encode_value(item) for name, item in value.items()}


def _decoded(value: dict[str, Any]) -> dict[str, Any]:
    return {name: payloads.decode_value(item) for name, item in value.items()}
