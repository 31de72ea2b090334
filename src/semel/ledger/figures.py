"""The figures of a run, kept with its owner: how fast it delivers, and the state of its query.

Always true:
- figures are for people: nothing that is delivered depends on them;
- what Spark does not report is None, and never 0;
- they are written with the heartbeat, and cost no commit of their own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from semel.ledger.journal import SnapshotFigures
from semel.ledger.payloads import (
    LATER,
    Form,
    Unfit,
    codec_of,
    read_integer,
    read_list,
    read_object,
)


class StateKind(StrEnum):
    """How Spark keeps the state of an operator."""

    CHANGELOG = "changelog"  # RocksDB: each micro-batch writes its changes, snapshots follow
    SNAPSHOTS = "snapshots"  # RocksDB: each micro-batch writes a full snapshot
    MEMORY = "memory"  # Spark's default: in the memory of the JVM, with delta files
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class StateFigures:
    """The state of one stateful operator of a query, over all its stores.

    `stores`, `rows`, `memory_bytes` and `bytes_copied` are as of the newest micro-batch; the others
    are sums over the run. None: this version of Spark, or this store, does not report it.

    Attributes:
        stores: how many state stores it has: one for each partition, several for a join.
        rows_late: input rows that were dropped, because they came after the watermark.
        changelogs_written: one for each store and micro-batch.
        snapshots_written: with a changelog, Spark uploads them in the background and reports those
            of the five stores that are furthest behind: then it is a least number.
        loads: how often a store was read from the checkpoint, from its newest snapshot on; None for
            aggregations, whose loads Spark does not report.
        changelogs_loaded: how many changelogs were replayed by those loads.
        bytes_written: what was written into the store, uncompressed.
        bytes_copied: the files that the newest snapshot of each store copied to the checkpoint, or
            from it.
        seconds_updating: summed over tasks, as the other two.
        seconds_writing: the commits of the store, in which changelogs or snapshots are written.
        seconds_loading: the loads, and the replay of changelogs.
    """

    operator: str
    kind: StateKind
    stores: int
    rows: int
    memory_bytes: int
    rows_updated: int = 0
    rows_removed: int = 0
    rows_late: int = 0
    changelogs_written: int | None = None
    snapshots_written: int | None = None
    loads: int | None = None
    changelogs_loaded: int | None = None
    bytes_written: int | None = None
    bytes_copied: int | None = None
    seconds_updating: float = 0.0
    seconds_writing: float = 0.0
    seconds_loading: float | None = None

    def then(self, later: StateFigures) -> StateFigures:
        """Return the figures after a later micro-batch."""
        return StateFigures(
            later.operator,
            later.kind,
            later.stores,
            later.rows,
            later.memory_bytes,
            self.rows_updated + later.rows_updated,
            self.rows_removed + later.rows_removed,
            self.rows_late + later.rows_late,
            _sum(self.changelogs_written, later.changelogs_written),
            _sum(self.snapshots_written, later.snapshots_written),
            _sum(self.loads, later.loads),
            _sum(self.changelogs_loaded, later.changelogs_loaded),
            _sum(self.bytes_written, later.bytes_written),
            later.bytes_copied,
            self.seconds_updating + later.seconds_updating,
            self.seconds_writing + later.seconds_writing,
            None
            if self.seconds_loading is None or later.seconds_loading is None
            else self.seconds_loading + later.seconds_loading,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {**_rounded(asdict(self)), "kind": self.kind.value}


@dataclass(frozen=True, slots=True)
class QueryFigures:
    """The newest micro-batch of Spark's query, as Spark reports it.

    Attributes:
        rows_in_per_s: rows that arrived per second since the micro-batch before.
        rows_per_s: rows that the query took per second while it ran.
        seconds: the whole micro-batch, with planning and Spark's own checkpoint.
        watermark: the event time up to which windows are closed; None without a watermark.
    """

    batch: int
    rows_in_per_s: float
    rows_per_s: float
    seconds: float
    watermark: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return _rounded(asdict(self))


def _read_counts(value: Any, name: str) -> dict[str, int]:
    return {sink: read_integer(count, name) for sink, count in read_object(value, name).items()}


_COUNTS = Form(_read_counts)


@dataclass(frozen=True, slots=True)
class RateFigures:
    """The newest complete minibatches of a run.

    Attributes:
        minibatches: how many these are.
        elapsed_s: from the begin of the first to the end of the last.
        seconds: from opening a minibatch until it is complete and concluded, summed.
        seconds_max: the longest of them.
        delivered: events that were delivered in them, by sink.
    """

    minibatches: int
    elapsed_s: float
    seconds: float
    seconds_max: float
    delivered: Annotated[dict[str, int], _COUNTS]

    @property
    def seconds_each(self) -> float:
        """The mean duration of a minibatch."""
        return self.seconds / self.minibatches

    def per_second(self, sink: str) -> float:
        """Return how many events were delivered to a sink per second, pauses included."""
        return self.delivered.get(sink, 0) / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        made = {
            "minibatches": self.minibatches,
            "elapsed_s": self.elapsed_s,
            "seconds_per_minibatch": self.seconds_each,
            "seconds_per_minibatch_max": self.seconds_max,
            "sinks": {
                sink: {"delivered": count, "events_per_s": round(self.per_second(sink), 3)}
                for sink, count in sorted(self.delivered.items())
            },
        }
        return _rounded(made)


@dataclass(frozen=True, slots=True)
class MinibatchFigures:
    """One complete minibatch of a run; except for `delivered`, the events of all sinks are summed.

    Attributes:
        minibatch: GENERATION.BATCH.
        at: when it was complete, by the clock of the run's machine.
        seconds: from opening it until it was complete and concluded.
        delivered: events that were delivered at the sink that got the most.
        suppressed: events that were not sent again, because an earlier attempt had delivered,
            parked or dropped them.
        skipped: events that were handled before a checkpoint was lost, and were not sent.
        parked: events that were parked, those in doubt included.
    """

    minibatch: str
    at: float
    seconds: float
    delivered: int
    suppressed: int = 0
    skipped: int = 0
    parked: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return _rounded(asdict(self))


def _read_newest(value: Any, name: str) -> tuple[MinibatchFigures, ...]:
    found = []
    for each in read_list(value, name):
        match each:
            case [str(minibatch), int() | float() as at, int() | float() as seconds, *counts] if (
                len(counts) == 4
            ):
                numbers = [read_integer(count, name) for count in counts]
                found.append(MinibatchFigures(minibatch, float(at), float(seconds), *numbers))
            case _:
                raise Unfit(f"the field {name!r} must be a list of minibatches")
    return tuple(found)


def _write_newest(newest: tuple[MinibatchFigures, ...]) -> list[Any]:
    return [list(each.to_json().values()) for each in newest]


_NEWEST = Form(_read_newest, _write_newest)


def _read_states(value: Any, name: str) -> tuple[StateFigures, ...]:
    codec = codec_of(StateFigures)
    return tuple(codec.read_as(each, "a state") for each in read_list(value, name))


_STATES = Form(_read_states, lambda states: [codec_of(StateFigures).write(each) for each in states])


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What is known of a run when its heartbeat is written.

    Attributes:
        run: the run that wrote them; an earlier one until the newest has written its own.
        at: when they were written, by the clock of the run's machine.
        rates: of the newest minibatches; None before the first is complete.
        query: of Spark's query; None if it is not known.
        state: of each stateful operator, in Spark's order; empty if the query keeps no state, None
            if it is not known.
        unknown: why `query` and `state` are not known.
        ledger: the snapshots of semel's own state (counters, watermarks) that were written to and
            loaded from the ledger, summed over the run.
        newest: the newest complete minibatches, the oldest of them first.
        suppressed: events that were not sent again, because an earlier attempt had delivered,
            parked or dropped them, or because they were handled before a checkpoint was lost;
            summed over the run.
        repeats: by sink, how many events of the run were dropped because their ids came in an
            earlier minibatch (`drop_repeats`).
    """

    run: int
    at: float
    rates: Annotated[RateFigures | None, LATER] = None
    query: Annotated[QueryFigures | None, LATER] = None
    state: Annotated[tuple[StateFigures, ...] | None, _STATES, LATER] = None
    unknown: Annotated[str, LATER] = ""
    ledger: Annotated[SnapshotFigures, LATER] = field(default_factory=SnapshotFigures)
    newest: Annotated[tuple[MinibatchFigures, ...], _NEWEST, LATER] = ()
    suppressed: Annotated[int, LATER] = 0
    repeats: Annotated[dict[str, int], _COUNTS, LATER] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "run": self.run,
            "newest_minibatches": None if self.rates is None else self.rates.to_json(),
            "query": None if self.query is None else self.query.to_json(),
            "state": None if self.state is None else [each.to_json() for each in self.state],
            "unknown": self.unknown,
            "ledger_state": _rounded(asdict(self.ledger)),
            "minibatches": [each.to_json() for each in self.newest],
            "suppressed": self.suppressed,
            "repeats_dropped": dict(self.repeats),
        }


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _rounded(made: dict[str, Any]) -> dict[str, Any]:
    """Return numbers with three decimals: milliseconds, as Spark has them."""
    return {
        name: round(value, 3) if isinstance(value, float) else value for name, value in made.items()
    }
