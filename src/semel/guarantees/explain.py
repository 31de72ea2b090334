"""Explains the guarantee of a pipeline or a sink: what holds, why, and what does not.

Always true:
- every capability and policy has its text in a table, and a test proves the tables complete;
- the limits of the promise are stated as clearly as the promise.
"""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from semel.delivery import PipelineSpec
from semel.errors import ConfigurationError
from semel.guarantees.costs import Cost, cost
from semel.guarantees.wording import (
    AFTER_A_CRASH,
    AFTER_A_LOST_CHECKPOINT,
    AFTER_A_ZOMBIE,
    AFTER_AN_OPAQUE_ZOMBIE,
    ASKED,
    BECAUSE,
    DROPPED_REPEATS,
    DROPS_REPEATS,
    GAP_ACCEPTED,
    GAP_REFUSED,
    ON_DOUBT,
    ON_REJECT,
    REJECTED_WHOLE,
    REPEATS,
    REPEATS_OF_A_SINK,
)
from semel.notebook import table
from semel.protocol import Capability
from semel.sinks import Sink, sink

if TYPE_CHECKING:
    from collections.abc import Callable


_WIDTH = 100
_HEADINGS = (
    "sink",
    "capability",
    "because",
    "after a crash, a retry or a restart",
    "after a zombie",
    "in doubt",
    "rejected",
    "costs and destination",
)


@dataclass(frozen=True)
class SinkPromise:
    """What holds at one sink.

    Attributes:
        in_doubt_per_partition: how many events one crash of one partition can leave in doubt.
        in_doubt_at_once: the same for all partitions together, if their number is known.
        destination: the sink's own notes about its destination.
        costs: the cost in the ledger as text; `cost` has the figures.
    """

    name: str
    capability: str
    because: str
    after_a_crash: str
    after_a_zombie: str
    in_doubt: str
    in_doubt_per_partition: int
    in_doubt_at_once: int | None
    rejected: str
    costs: str
    cost: Cost
    destination: tuple[str, ...] = ()


@dataclass(frozen=True)
class IdentityPromise:
    """What makes two events the same event, and what that survives."""

    kind: str
    same: str
    lost_checkpoint: str
    survives_lost_checkpoint: bool
    order: str


@dataclass(frozen=True)
class Explanation:
    """The guarantee of a pipeline or of a single sink; `str()` returns it as paragraphs."""

    pipeline: str | None
    sinks: tuple[SinkPromise, ...]
    identity: IdentityPromise | None
    not_promised: tuple[str, ...]
    pacing: str | None = None

    def __str__(self) -> str:
        parts: list[str] = []
        if self.pipeline is not None:
            parts.append(f"Pipeline {self.pipeline!r}")
        for each in self.sinks:
            parts += [
                _wrapped(f"Sink {each.name!r} is {each.capability.upper()}: {each.because}"),
                _wrapped(f"After a crash, a retry or a restart: {each.after_a_crash}"),
                _wrapped(
                    "After a zombie (an attempt that was paused, was replaced, and wakes up): "
                    f"{each.after_a_zombie}"
                ),
                _wrapped(f"In doubt: {each.in_doubt}"),
                _wrapped(f"Rejected: {each.rejected}"),
                _wrapped(f"Costs: {each.costs}"),
            ]
            if each.destination:
                parts.append(_wrapped(f"Destination: {' '.join(each.destination)}"))
        if self.identity is not None:
            parts += [
                _wrapped(f"The same event ({self.identity.kind}): {self.identity.same}"),
                _wrapped(f"After a lost checkpoint: {self.identity.lost_checkpoint}"),
                _wrapped(f"Order: {self.identity.order}"),
            ]
        if self.pacing is not None:
            parts.append(_wrapped(f"Pacing: {self.pacing}"))
        parts.append(
            "Not promised:\n"
            + "\n".join(_wrapped(each, first="- ", rest="  ") for each in self.not_promised)
        )
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        """Return it as tables, for a notebook."""
        rows = [
            (
                each.name,
                each.capability.upper(),
                each.because,
                each.after_a_crash,
                each.after_a_zombie,
                each.in_doubt,
                each.rejected,
                " ".join((each.costs, *each.destination)),
            )
            for each in self.sinks
        ]
        title = "The guarantee" if self.pipeline is None else f"Pipeline {self.pipeline!r}"
        made = table(title, _HEADINGS, rows)
        about = [("pacing", self.pacing)] if self.pacing is not None else []
        if self.identity is not None:
            about = [
                ("the same event", f"({self.identity.kind}) {self.identity.same}"),
                ("after a lost checkpoint", self.identity.lost_checkpoint),
                ("order", self.identity.order),
                *about,
            ]
        about += [("not promised", each) for each in self.not_promised]
        return made + table("All sinks", ("about", "what holds"), about)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "pipeline": self.pipeline,
            "sinks": [asdict(each) for each in self.sinks],
            "identity": None if self.identity is None else asdict(self.identity),
            "not_promised": list(self.not_promised),
            "pacing": self.pacing,
        }


def explain(subject: object) -> Explanation:
    """Explain what is promised for a sink, or for the writer that `semel.deliver` returned.

    A function without parameters is called for one of these; a function that takes an event is
    explained as a sink. Raises `ConfigurationError` for anything else.
    """
    return _explain(subject, called=False)


def _plain(function: Callable[..., object]) -> Explanation:
    """Explain a plain function as a sink, with a note that it was taken for one."""
    explanation = _explain(sink(function), called=True)
    [promise] = explanation.sinks
    note = (
        f"{promise.name!r} is a plain function with a parameter, so it is explained as a sink that "
        "is called with each event. To explain a pipeline, use a function without parameters that "
        "returns the result of semel.deliver."
    )
    noted = replace(promise, destination=(note, *promise.destination))
    return replace(explanation, sinks=(noted,))


def _explain(subject: object, *, called: bool) -> Explanation:
    spec = subject if isinstance(subject, PipelineSpec) else getattr(subject, "spec", None)
    if isinstance(subject, Sink):
        return Explanation(None, (_sink(subject, None),), None, _not_promised(None))
    if isinstance(spec, PipelineSpec):
        return Explanation(
            spec.name,
            tuple(_sink(each, spec) for each in spec.sinks),
            _identity(spec),
            _not_promised(spec),
            _pacing(spec),
        )
    if inspect.isroutine(subject) and not called:
        return _plain(subject) if _takes_an_event(subject) else _explain(subject(), called=True)
    what = f"the class {subject.__name__}" if isinstance(subject, type) else type(subject).__name__
    raise ConfigurationError(
        f"{what} cannot be explained: pass a sink, the writer that semel.deliver returned, or a "
        "function without parameters that returns one of them"
    )


def _takes_an_event(function: Any) -> bool:
    """Whether a function takes a positional argument: it may be a sink, and is never called."""
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    return any(each.kind not in named for each in inspect.signature(function).parameters.values())


def _pacing(spec: PipelineSpec) -> str | None:
    """Say when micro-batches begin; None if Spark's trigger decides alone."""
    application = spec.application
    if application is None:
        return None
    planned = application.safety * application.latency_s
    text = (
        f"application {application.name!r}: an event is to be delivered within "
        f"{application.latency_s:g} s of its arrival, {application.safety:.0%} of which is "
        "planned. After each minibatch semel waits as long as the measured rate of events and cost "
        f"of minibatches allow (interval + cost is at most {planned:g} s), and Spark's next "
        "micro-batch takes what has arrived by then. It does not wait if Spark's own trigger is "
        "longer, is availableNow or once, or if Spark left input behind. The latency in `semel "
        "status` is an estimate from these times; a timestamp column of the source is not read."
    )
    if spec.limits:
        named = ", ".join(f"{name}={value}" for name, value in sorted(spec.limits.items()))
        text += f" The source limits a micro-batch ({named}): a full one is followed at once."
    return text


# -- sinks


def _sink(described: Sink, spec: PipelineSpec | None) -> SinkPromise:
    capability = described.capability
    span = described.chunk_rows * described.span_chunks
    opaque = capability is Capability.OPAQUE
    partitions = None if spec is None else _partitions(spec)
    crash = AFTER_A_CRASH[capability]
    if described.whole:
        crash = (
            "one effect. Each partition is written to its own place from its first event on, and "
            "replaces what an earlier attempt left there."
        )
    per_partition = span if opaque else 0
    known = 0 if not opaque else None if partitions is None else span * partitions
    found = cost(described, spec)
    return SinkPromise(
        name=described.name,
        capability=capability.value,
        because=ASKED if opaque and described.probe is not None else BECAUSE[capability],
        after_a_crash=crash,
        after_a_zombie=_after_a_zombie(described),
        in_doubt=_in_doubt(described, span, partitions, _waits(spec)),
        in_doubt_per_partition=per_partition,
        in_doubt_at_once=known,
        rejected=REJECTED_WHOLE if described.whole else ON_REJECT[described.on_reject],
        costs=_costs(described, spec, found),
        cost=found,
        destination=described.notes(),
    )


def _after_a_zombie(described: Sink) -> str:
    if described.capability is not Capability.OPAQUE:
        return AFTER_A_ZOMBIE[described.capability].format(deadline=described.deadline_s)
    wait = described.lease_s + described.deadline_s
    return AFTER_AN_OPAQUE_ZOMBIE[described.on_doubt].format(wait=wait)


def _in_doubt(described: Sink, span: int, partitions: int | None, waits: str) -> str:
    policy = ON_DOUBT[described.on_doubt].format(wait=waits)
    then = f"Policy {described.on_doubt.value!r}: {policy}"
    match described.capability:
        case Capability.OPAQUE:
            most = f"at most {_events(span)} per partition and crash"
            if partitions is not None:
                most += f", so {span * partitions} in all {partitions} partitions"
            return f"{most}. {then}"
        case Capability.REPEATABLE if not described.whole:
            safe_s = max(0.0, described.remembers_s - described.deadline_s)
            return (
                f"none, as long as the destination answers repeats without refusing them, and the "
                f"query is never down for longer than {_duration(safe_s)}: the destination "
                f"remembers keys for {_duration(described.remembers_s)}, and a repeat may take "
                f"{_duration(described.deadline_s)} of that to arrive. After a longer time at most "
                f"{_events(span)} per partition are in doubt; so are events that were refused or "
                f"never answered after they may have arrived. {then}"
            )
        case _:
            return "none, ever; the destination knows what arrived."


def _costs(described: Sink, spec: PipelineSpec | None, found: Cost) -> str:
    """Return what a sink costs in the ledger, and which settings reduce it."""
    sentences = [_commits(described, found)]
    load = found.load
    if spec is None:
        return (
            f"{sentences[0]} What the ledger keeps of each event depends on the identity: "
            "explain the result of semel.deliver to see it."
        )
    if found.remembered_per == "event":
        assert found.kept_s is not None
        kept = found.bytes_per_day * found.kept_s / 86_400
        sentences.append(
            f"Remembers each id for {_duration(found.kept_s)}: about {found.bytes_each:.0f} bytes "
            f"per event, {_size(found.bytes_per_day)} per day and {_size(kept)} in all at "
            f"{load.events_per_s:g} events/s in micro-batches of {load.minibatch_s:g} s. "
            "increasing=True, where the ids of an entity only rise, remembers one id per entity "
            "instead; longer micro-batches write fewer, larger rows; a smaller remember_s forgets "
            "sooner."
        )
    elif found.remembered_per == "entity":
        sentences.append(
            f"Remembers the last id of each entity, about {found.bytes_each:.0f} bytes, for as "
            "long as the pipeline exists; nothing per event."
        )
    else:
        sentences.append("Remembers nothing per event.")
    return " ".join(sentences)


def _commits(described: Sink, found: Cost) -> str:
    fixed = "2 per minibatch and 1 per partition of it"
    if not found.commits_per_event:
        return f"no ledger commit per event, {fixed}."
    span = described.chunk_rows * described.span_chunks
    each = "event" if span == 1 else f"{span} events"
    commits = f"1 ledger commit per {each}, besides {fixed}."
    if described.capability is not Capability.OPAQUE:
        return commits
    larger = max(100, 10 * span)
    return (
        f"{commits} A larger window costs less and leaves more in doubt after a crash: "
        f"window={larger} costs 1 per {larger} events."
    )


def _waits(spec: PipelineSpec | None) -> str:
    """Return which events wait behind an event in doubt."""
    if spec is None:
        return ", later events of its entity wait behind it if order is kept"
    if spec.order and spec.identity.entity is not None:
        return ", later events of its entity wait behind it"
    return ""


def _partitions(spec: PipelineSpec) -> int | None:
    """Return the number of partitions; a source's own are not known before it runs."""
    return None if spec.identity.uses_source_partitions else spec.partitions


# -- identity


def _identity(spec: PipelineSpec) -> IdentityPromise:
    identity = spec.identity
    return IdentityPromise(
        kind=identity.kind,
        same=identity.explain() + _drops_repeats(spec),
        lost_checkpoint=_after_a_lost_checkpoint(spec),
        survives_lost_checkpoint=identity.survives_lost_checkpoint,
        order=_order(spec),
    )


def _drops_repeats(spec: PipelineSpec) -> str:
    """Return what is dropped as a repeat of a producer; empty if nothing is."""
    if not spec.drop_repeats:
        return ""
    text = DROPS_REPEATS[spec.identity.memory]
    return text.format(remembered=_duration(spec.remember_s))


def _after_a_lost_checkpoint(spec: PipelineSpec) -> str:
    why = spec.unknown_source
    return AFTER_A_LOST_CHECKPOINT[spec.identity.memory].format(
        gap=GAP_ACCEPTED if spec.accept_gap else GAP_REFUSED,
        recreated=f"is detected only when it reaches that offset: {why}" if why else "stops it too",
        remembered=_duration(spec.remember_s),
    )


def _order(spec: PipelineSpec) -> str:
    entity = spec.identity.entity
    if entity is None:
        return (
            "the events of a source partition are sent in order of their offsets. No entity is "
            "named, so no event waits behind a parked one."
        )
    if not spec.order:
        return "off: no event waits behind a parked one."
    return (
        f"the events of one {entity} arrive in order of {spec.identity.explain_order()}. Later "
        "events wait behind a held one; other entities continue."
    )


# -- limits


def _not_promised(spec: PipelineSpec | None) -> tuple[str, ...]:
    durable = "The ledger and the destination must keep what they acknowledged."
    query = (
        "The query must return the same rows for the same input. If it does not, semel detects it "
        "and stops the pipeline (Diverged); it does not repair it."
    )
    return _repeats_of_producers(spec), durable, query


def _repeats_of_producers(spec: PipelineSpec | None) -> str:
    """Return what happens to a record that a producer writes a second time."""
    if spec is None:
        return REPEATS_OF_A_SINK
    if spec.drop_repeats:
        return DROPPED_REPEATS[spec.identity.memory].format(remembered=_duration(spec.remember_s))
    return REPEATS[spec.identity.memory]


# -- formatting


def _events(count: int) -> str:
    return "1 event" if count == 1 else f"{count} events"


def _size(count: float) -> str:
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= length:
            return f"{count / length:.3g} {unit}"
    return f"{count:.0f} bytes"


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} seconds"


def _wrapped(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )
