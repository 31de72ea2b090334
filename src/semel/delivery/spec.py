"""The specification of a pipeline, and the guard that keeps it from starting.

Always true: after `only_look`, no pipeline starts in this process, not even from a thread that a
user's module left behind; so there is one flag per process, and it is never cleared.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError
from semel.events import Routing
from semel.ledger import REMEMBER_S
from semel.protocol import OnDoubt, OnReject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semel.events import Identity
    from semel.sinks import AuditLog, Sink
    from semel.streams import Application


FILES_LIMIT = "maxfilespertrigger"
LIMITS = (
    FILES_LIMIT,
    "maxbytespertrigger",
    "maxoffsetspertrigger",
    "maxrecordspertrigger",
    "maxrowspertrigger",
    "maxrecordsperbatch",
)
"""The options with which sources limit a micro-batch, in lower case."""


def limits_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a source that limit a micro-batch, by their lower-case names."""
    return {name.lower(): value for name, value in options.items() if name.lower() in LIMITS}


@dataclass(frozen=True)
class PipelineSpec:
    """One pipeline as the user specified it. It is sent to wherever the pipeline runs.

    Attributes:
        name: the pipeline's name in the ledger; a batch job's is `name@batch`.
        partitions: the number of partitions over which entities are spread; if None, semel chooses.
        order: whether the events of an entity arrive in order, if one is named.
        accept_gap: proceed even if the input does not continue where the ledger stands.
        remember_s: how long ids, and the outcomes of parked events, are kept.
        forms: the type of each id column: integer, text, date, ...; the same event with an id of
            another type would be another event.
        partition_by: which partition an entity belongs to, if not by its hash.
        unknown_source: with position identity, why semel cannot detect a recreated topic; empty if
            Kafka is asked.
        application: how soon events must be delivered; None leaves it to Spark's trigger.
        limits: the options with which the source limits a micro-batch, by their lower-case names.
        drop_repeats: drop events whose ids the ledger remembers from earlier minibatches.
        known_as: the name under which destinations know it, if it was renamed; from the ledger.
        audit: where the outcome of every event is kept for longer than the ledger does.
        hidden: texts that neither the ledger nor a message may have: secrets of a pipeline file.
    """

    name: str
    sinks: tuple[Sink, ...]
    identity: Identity
    partitions: int | None = None
    order: bool = True
    accept_gap: bool = False
    remember_s: float = REMEMBER_S
    forms: Mapping[str, str] = field(default_factory=dict)
    unknown_source: str = "its id is not known"
    partition_by: Routing | None = None
    application: Application | None = None
    limits: Mapping[str, str] = field(default_factory=dict)
    drop_repeats: bool = False
    known_as: str = ""
    audit: AuditLog | None = None
    hidden: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigurationError('a pipeline needs a name: pass name="charges"')
        if not self.sinks:
            raise ConfigurationError(
                f"pipeline {self.name!r}: to= is empty; pass a sink, or several"
            )
        object.__setattr__(self, "sinks", tuple(self._worded(sink) for sink in self.sinks))
        for sink in self.sinks:
            self._refuse_park_limit(sink)
        stages = filter(None, (sink.stage for sink in self.sinks))
        names = [sink.name for sink in (*self.sinks, *stages)]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(
                    f"pipeline {self.name!r}: two sinks have the name {name!r}; the ledger "
                    'distinguishes sinks by name, so pass another name="..." for one of them'
                )
        self._take_routing()
        if self.drop_repeats and not self.identity.memory.keeps_ids:
            raise ConfigurationError(
                f"pipeline {self.name!r}: drop_repeats=True needs ids that the ledger remembers: "
                f"pass entity= and event=. With {self.identity.kind} identity every row is an "
                "event of its own"
            )
        if self.partitions is not None and self.partitions < 1:
            raise ConfigurationError(
                f"pipeline {self.name!r}: partitions must be at least 1, got {self.partitions}"
            )

    def _take_routing(self) -> None:
        """Take the number of partitions from the routing, if it has one."""
        if self.partition_by is None:
            return
        if not isinstance(self.partition_by, Routing):
            raise ConfigurationError(
                f"pipeline {self.name!r}: partition_by must be semel.by_range([...]) or "
                f"semel.by_directory(...), got {self.partition_by!r}; without it, entities are "
                "spread by their hash"
            )
        own = self.partition_by.partitions
        if own is None and self.partitions is None:
            raise ConfigurationError(
                f"pipeline {self.name!r}: partition_by is a function, so the number of "
                "partitions is not known: pass partitions=8"
            )
        if own is not None and self.partitions not in (None, own):
            raise ConfigurationError(
                f"pipeline {self.name!r}: partitions={self.partitions}, but partition_by spreads "
                f"entities over {own}; remove partitions=, or make both equal"
            )
        if own is not None:
            object.__setattr__(self, "partitions", own)

    def _refuse_park_limit(self, sink: Sink) -> None:
        """Refuse a `park_limit` below what can be parked at once: the pipeline could stop with
        nothing to resolve.
        """
        if 0 < sink.park_limit < sink.parked_at_once:
            raise ConfigurationError(
                f"pipeline {self.name!r}, sink {sink.name!r}: park_limit={sink.park_limit} is less "
                f"than the {sink.parked_at_once} events that can be parked at once. Pass a "
                f"park_limit of {sink.parked_at_once} or more, or a smaller chunk_rows (for a "
                "function: window)"
            )

    def _worded(self, sink: Sink) -> Sink:
        """Return the sink with policies of the protocol's enums, if they were given as strings."""
        if isinstance(sink.on_doubt, OnDoubt) and isinstance(sink.on_reject, OnReject):
            return sink
        try:
            doubt, reject = OnDoubt(sink.on_doubt), OnReject(sink.on_reject)
        except ValueError as error:
            raise ConfigurationError(
                f"pipeline {self.name!r}, sink {sink.name!r}: {error}; on_doubt is "
                f"one of {', '.join(OnDoubt)}, on_reject one of {', '.join(OnReject)}"
            ) from None
        return replace(sink, on_doubt=doubt, on_reject=reject)


# -- a command that only inspects a user's module starts nothing

_looking: list[str] = []


def only_look(doing: str) -> None:
    """Refuse to start any pipeline for the rest of the life of this process.

    `doing` completes "start() is refused while ...".
    """
    _looking[:] = [doing]


def refuse_while_looking(pipeline: str, call: str) -> None:
    """Raise `ConfigurationError` if `call` would deliver while a command only looks."""
    for doing in _looking:
        raise ConfigurationError(
            f"pipeline {pipeline!r}: {call} is refused while {doing}; nothing was started and "
            'nothing was sent. Put what starts it under `if __name__ == "__main__":`, and name an '
            "object that does not start it"
        )
