"""The rows of the ledger as values: the fields of each payload, and how each is written."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

from semel.errors import ConfigurationError
from semel.events import Attempt, EntityIds, EventID, Minibatch
from semel.events.encoding import decode_value, encode_value
from semel.ledger import keys
from semel.ledger.keys import (
    EVENTS_TABLE,
    HEADS_TABLE,
    OPEN_TABLE,
    PARKED_TABLE,
    PIPELINES_TABLE,
    STREAMS_TABLE,
)
from semel.ledger.payloads import (
    ADDED,
    INLINE,
    LATER,
    Form,
    Row,
    Unfit,
    codec_of,
    decode_row,
    each_of,
    pair_of,
    read_integer,
    read_list,
    read_object,
    read_row,
    read_text,
)
from semel.protocol import Fault, Judgement, ParkedState, PartitionState, SpanState
from semel.runtime import Process

if TYPE_CHECKING:
    from semel.ledger.store.commit import Key

WORDS_MAX = 2_000
"""How many characters of a reason are kept: the text of an exception may have 50 MB."""


def _cut_fields(row: Any, *names: str) -> None:
    """Cut texts of people and destinations to `WORDS_MAX` where they enter the ledger."""
    for name in names:
        text = getattr(row, name)
        if text is not None and len(text) > WORDS_MAX:
            left = f"... ({len(text) - WORDS_MAX} more characters)"
            object.__setattr__(row, name, text[: WORDS_MAX - len(left)] + left)


def _read_newest(value: Any, name: str) -> tuple[int, int, bool]:
    found = read_list(value, name)
    if len(found) != 3 or not isinstance(found[2], bool):
        raise Unfit("the field 'newest' must be a batch, a serial and true or false")
    return read_integer(found[0], name), read_integer(found[1], name), found[2]


def _read_columns(value: Any, name: str) -> dict[str, str]:
    """Return a list of pairs of texts, as a dict."""
    for each in read_list(value, name):
        if not (isinstance(each, list) and list(map(type, each)) == [str, str]):
            raise Unfit(f"the field {name!r} must be a list of pairs of texts")
    return dict(value)


_SOURCES = Form(lambda value, name: {} if value is None else read_object(value, name))
_NEWEST = Form(_read_newest)
_COLUMNS = Form(_read_columns, lambda columns: list(columns.items()))
_POSITION = Form(lambda value, name: read_integer(value, name, -(2**63)))
_MINIBATCH = pair_of(Minibatch)
_ATTEMPT = pair_of(Attempt, -1)  # the driver acts as task -1
_VALUES = Form(
    lambda value, name: {at: decode_value(each) for at, each in read_object(value, name).items()},
    lambda values: {name: encode_value(each) for name, each in values.items()},
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A person's decision about a divergence, with name and reason; the next open acts on it."""

    decision: Judgement
    by: str
    reason: str
    at: float

    def __post_init__(self) -> None:
        _cut_fields(self, "by", "reason")


def _read_positions(value: Any, name: str) -> dict[str, int]:
    """Return an object of positions by source partition."""
    found = read_object(value, name)
    return {at: read_integer(each, name) for at, each in found.items()}


POSITIONS = Form(_read_positions)


@dataclass(frozen=True, slots=True)
class PendingReset:
    """A person's reset that the next start of the pipeline acts on; see `ResetRow`.

    Attributes:
        starts: where the query has to begin, in the partitions that the person named.
        accepts_gap: whether the query may begin after what the ledger has.
    """

    number: int
    starts: Annotated[dict[str, int], POSITIONS] = field(default_factory=dict)
    accepts_gap: bool = False


@dataclass(frozen=True, slots=True)
class OpenRow(Row):
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
        reset: a reset that no start has acted on yet; removed by the open that does.
        stopping: the run that is asked to stop; 0 if none is.
    """

    TABLE = OPEN_TABLE

    run: int
    minibatch: Annotated[Minibatch, INLINE]
    serial: int
    query: str
    partitions: int | None = None
    blocked: tuple[str, ...] = ()
    complete: bool = False
    version: int = 1
    newest: Annotated[tuple[int, int, bool] | None, _NEWEST] = None
    again: bool = False
    since: float = 0.0
    judged: Judged | None = None
    settled: bool = False
    continues: bool = False
    compared: bool = False
    sources: Annotated[dict[str, str], _SOURCES, LATER] = field(default_factory=dict)
    accepted: Annotated[bool, LATER] = False
    lost: Annotated[int, LATER] = 0
    first: Annotated[int, LATER] = 0
    inputs: Annotated[tuple[str, ...], LATER] = ()
    reset: Annotated[PendingReset | None, LATER] = None
    stopping: Annotated[int, LATER] = 0

    def asked_to_stop(self, run: int) -> OpenRow:
        """Return the row once a run is asked to stop: each write of its tasks meets a conflict."""
        return replace(self, stopping=run, version=self.version + 1)

    def is_stop_of(self, text: str) -> bool:
        """Whether this is the row of `text`, and nothing changed but that a run was asked to stop:
        a later row has another version.
        """
        before = replace(self, stopping=0, version=self.version - 1)
        return self.stopping == self.run and before.dump() == text

    @property
    def began(self) -> int:
        """The generation that began with the last lost checkpoint, 1 if none was ever lost."""
        return self.lost or (1 if self.continues else self.minibatch.generation)

    def reached(self) -> tuple[int, int, bool]:
        """Return batch, serial and completeness of the newest minibatch, this one or the next."""
        return self.newest or (self.minibatch.batch, self.serial, self.complete or self.again)


_WAYS = {
    "event": "by the key of each event (keyed_by_event=True)",
    "chunk": "by the key of each chunk (keyed_by_event=False)",
    "place": "by its place, which is overwritten (whole)",
}


@dataclass(frozen=True, slots=True)
class PartitionRow(Row):
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
            none.
        columns: the type of each column, in their order; None if there are too many.
        stage: the second stage that gets the placed events; None if there is none.
        absorbed_by: `event`, `chunk` or `place`, at REPEATABLE; None elsewhere and in older rows.
        audited: its files in the audit log by their names, once complete; None without one.
    """

    TABLE = STREAMS_TABLE

    partition: str
    state: PartitionState
    attempt: Annotated[Attempt, _ATTEMPT]
    process: Process
    task: int
    osn: int
    lease_s: Annotated[float, "lease"]
    deadline_s: Annotated[float, "deadline"]
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
    placed: Annotated[dict[str, Any] | None, LATER] = None
    columns: Annotated[dict[str, str] | None, _COLUMNS, LATER] = None
    stage: Annotated[str | None, LATER] = None
    absorbed_by: Annotated[str | None, LATER] = None
    audited: Annotated[dict[str, Any] | None, LATER] = None

    def refuse_other_keys(self, where: str, absorbed_by: str | None) -> None:
        """Refuse to repeat a half-delivered partition in another way than it was sent: what arrived
        of it would not be recognised, and arrive twice. Rows of older versions are not compared.
        """
        before = self.absorbed_by
        if before is None or before == absorbed_by:
            return
        raise ConfigurationError(
            f"{where}: the partition is half delivered, and a repeat of it is absorbed "
            f"{_WAYS.get(before, before)}, but the sink was changed to absorb "
            f"{_WAYS.get(absorbed_by or '', 'nothing')}. Nothing was sent. Start with the sink as "
            "it was, let the minibatch complete, then change it"
        )


@dataclass(frozen=True, slots=True)
class SpanRow(Row):
    """A run of chunks that may have been sent, or surely have been.

    Attributes:
        chunks: their ranges [start, stop) of the order; settled neighbours become one range.
        ids: of all events, a set for each of the chunks.
        running: the digest of the partition from its start to the span's end.
        handled: of those among them that are not sent from here: parked, or delivered before.
        tries: how many attempts repeated it and got no answer (REPEATABLE); 0 if not counted.
    """

    TABLE = EVENTS_TABLE

    number: int
    chunks: tuple[tuple[int, int], ...]
    state: SpanState
    running: str
    ids: tuple[EntityIds, ...]
    attempt: Annotated[Attempt, _ATTEMPT]
    at: float
    osn: tuple[int, int]
    handled: EntityIds = field(default=EntityIds.EMPTY)
    tries: Annotated[int, LATER] = 0

    @property
    def start(self) -> int:
        """Where it starts in the order."""
        return self.chunks[0][0]

    @property
    def stop(self) -> int:
        """Where it ends in the order, exclusive."""
        return self.chunks[-1][1]

    def settled(self) -> SpanRow:
        """Return the span as it is once settled: one range, one set."""
        return replace(
            self,
            chunks=((self.start, self.stop),),
            ids=self.ids if len(self.ids) == 1 else (EntityIds.union(self.ids),),
            state=SpanState.SETTLED,
            tries=0,
        )

    def check(self) -> None:
        """Check that chunks follow each other, that none is empty, and that each has its ids."""
        if not self.chunks or len(self.chunks) != len(self.ids):
            raise Unfit("the fields 'chunks' and 'ids' must be of one length, and not empty")
        meet = all(one[1] == other[0] for one, other in pairwise(self.chunks))
        if not meet or any(start >= stop for start, stop in self.chunks):
            raise Unfit("the field 'chunks' must be ranges that follow each other")


@dataclass(frozen=True, slots=True)
class Edited:
    """A person's change of the payload of a parked event: who, why, when, and what it was before
    the first change.
    """

    by: str
    reason: str
    at: float
    before: Annotated[dict[str, Any], _VALUES]

    def __post_init__(self) -> None:
        _cut_fields(self, "by", "reason")


@dataclass(frozen=True, slots=True)
class ParkedRow(Row):
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
        unsure: whether a policy, and not a person, decided that it is sent again: it was sent since
            the last decision, with an unknown outcome.
        edited: the last change that a person made to `value`, if any. The digests of its minibatch
            are of what the query produced, so a replay does not compare `value`.
        recorded: the file of the audit log that has its final outcome.
    """

    TABLE = PARKED_TABLE

    entity: str
    scope: str
    event: EventID
    minibatch: Annotated[Minibatch, _MINIBATCH]
    partition: str
    position: Annotated[int, _POSITION]
    osn: int
    state: ParkedState
    why: str
    at: float
    blocks: bool
    doubted: bool = False
    value: Annotated[dict[str, Any] | None, _VALUES] = None
    schema: str | None = None
    attempts: int = 0
    by: str | None = None
    reason: str | None = None
    shown: str | None = None
    fault: Annotated[Fault | None, LATER] = None
    trace: Annotated[str | None, LATER] = None
    edited: Annotated[Edited | None, LATER] = None
    unsure: Annotated[bool, LATER] = False
    recorded: Annotated[str | None, LATER] = None

    def __post_init__(self) -> None:
        _cut_fields(self, "why", "by", "reason")


@dataclass(frozen=True, slots=True)
class HeadRow(Row):
    """A blocked entity. Parking behind it, draining and unblocking it require the row unchanged;
    its origin is the event that created it, so that no two heads ever have the same text.
    """

    TABLE = HEADS_TABLE

    entity: str
    scope: str
    version: int
    waiting: int
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a finished batch job delivered to one sink.

    Attributes:
        digest: over partition, count and digest of every partition; None if a person judged the
            batch, because then no replay equals what was delivered.
    """

    count: int
    digest: str | None


@dataclass(frozen=True, slots=True)
class _Identity:
    kind: Annotated[str, LATER] = ""
    entity: Annotated[str | None, ADDED] = None
    increasing: Annotated[bool, LATER] = False
    event: Annotated[tuple[str, ...], LATER] = ()
    ordinals: Annotated[tuple[str, ...], LATER] = ()
    order_by: Annotated[tuple[str, ...], LATER] = ()


@dataclass(frozen=True, slots=True)
class _Range:
    bounds: list[Any]


@dataclass(frozen=True, slots=True)
class _Directory:
    table: Annotated[dict[str, Any] | None, ADDED] = None
    function: Annotated[str, LATER] = ""


@dataclass(frozen=True, slots=True)
class _Sink:
    capability: Annotated[str, LATER] = ""


def _read_routing(value: Any, name: str) -> dict[str, Any]:
    routing = read_object(value, name)
    kinds: dict[str, type[Any]] = {"range": _Range, "directory": _Directory}
    kind = read_text(routing.get("kind", ""), "kind")
    if kind in kinds:
        codec_of(kinds[kind]).read(routing)
    return routing


_SINKS = each_of(_Sink, "the description of a sink")
_FINISHED = each_of(Finished, "what is recorded of a finished batch")


@dataclass(frozen=True, slots=True)
class _Description:
    """What the fields of a description must be, where it has them; it is used as a JSON object."""

    identity: Annotated[_Identity | None, ADDED] = None
    partitions: Annotated[int | None, ADDED] = None
    rescaled: Annotated[int, LATER] = 0
    forms: Annotated[dict[str, Any] | None, ADDED] = None
    routing: Annotated[dict[str, Any] | None, Form(_read_routing), ADDED] = None
    sinks: Annotated[dict[str, _Sink], _SINKS] = field(default_factory=dict)
    finished: Annotated[dict[str, Finished] | None, _FINISHED, ADDED] = None
    known_as: Annotated[str | None, ADDED] = None


_DESCRIPTION = codec_of(_Description)


def read_description(text: str | None, at: Key | None = None) -> dict[str, Any]:
    """Read the description of a pipeline, empty if there is none. Raises `DamagedRow`."""
    if text is None:
        return {}
    return decode_row(PIPELINES_TABLE, at, text, _DESCRIPTION.checked)


@dataclass(frozen=True, slots=True)
class SchemaRow(Row):
    """The version of the ledger's table."""

    TABLE = "semel"

    version: int


def minibatch_of(at: Key) -> Minibatch:
    """Read the minibatch in the key of a row of `streams` or `events`. Raises `DamagedRow`."""

    def decode() -> Minibatch:
        parts = keys.split_key(at.key)
        return Minibatch(keys.key_number(parts[2]), keys.key_number(parts[3]))

    return read_row(at.table, at, decode)
