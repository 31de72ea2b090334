"""The checker of a chaos run: what became of every event at every sink, and whether that may be.

Always true:
- it gets what was produced, what each witness remembers and what the ledger says, and asks
  nothing itself;
- every event falls into one category, and what is not allowed is a violation;
- what still waits at the end is `unknown`, never ok.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.protocol import CAN_BE_IN_DOUBT, Capability, ParkedState
from semel.verify.simulator import Assessment, Category

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WAITS = {ParkedState.WAITING, ParkedState.RESEND, ParkedState.SENDING}


@dataclass(frozen=True, slots=True)
class ProducedEvent:
    """An event of the input, and when it was produced."""

    entity: str
    event: int
    at: float


@dataclass(frozen=True, slots=True)
class WitnessedEffect:
    """An effect that a witness remembers; `produced_at` came with the event."""

    entity: str
    event: int
    produced_at: float
    at: float


@dataclass(frozen=True, slots=True)
class ParkedFact:
    """What the ledger says of an event beside the stream."""

    entity: str
    event: int
    state: ParkedState
    doubted: bool


@dataclass(frozen=True, slots=True)
class SinkEvidence:
    """What is known about a sink at the end.

    Attributes:
        effects: in the order in which they happened, at least within an entity.
        in_doubt_max: how many events may have been in doubt: a window for each fault and partition.
        ended: whether the input was delivered to its end.
        notes: what must not happen and did.
    """

    sink: str
    capability: Capability | None
    effects: Sequence[WitnessedEffect]
    parked: Sequence[ParkedFact]
    in_doubt_max: int
    ended: bool = True
    notes: tuple[str, ...] = ()


def judge_sink(produced: Sequence[ProducedEvent], evidence: SinkEvidence) -> Assessment:
    """Check what became of every event at a sink; return counts and violations."""
    assessment = Assessment(ended=evidence.ended)
    counts = Counter((effect.entity, effect.event) for effect in evidence.effects)
    states = {(fact.entity, fact.event): fact for fact in evidence.parked}
    known = {(each.entity, each.event) for each in produced}
    for name in sorted({*counts, *states} - known):
        assessment.find(Category.UNEXPECTED, f"{_named(name)} was never produced")
    for name in sorted(known):
        _judge_event(assessment, name, counts[name], states.get(name), ended=evidence.ended)
    _judge_order(assessment, evidence.effects)
    _judge_doubts(assessment, evidence)
    for note in evidence.notes:
        assessment.find(Category.UNEXPECTED, note)
    return assessment


def _judge_event(
    assessment: Assessment,
    name: tuple[str, int],
    count: int,
    parked: ParkedFact | None,
    *,
    ended: bool,
) -> None:
    state = None if parked is None else parked.state
    if count > 1:
        assessment.find(Category.DUPLICATED, f"{_named(name)} took effect {count} times")
    elif state is ParkedState.HELD:
        assessment.count(Category.IN_DOUBT)
    elif state in (ParkedState.REJECTED, ParkedState.DISCARDED, ParkedState.SKIPPED):
        assessment.find(Category.UNEXPECTED, f"{_named(name)} is {state}, but nothing asked for it")
    elif state in WAITS:
        if count and parked is not None and not parked.doubted:
            assessment.find(Category.UNEXPECTED, f"{_named(name)} waits, but took effect")
        else:
            assessment.count(Category.PENDING)
    elif count:
        assessment.count(Category.DELIVERED)
    elif ended:
        recorded = "the ledger has no record of it" if state is None else f"it is {state}"
        assessment.find(Category.LOST, f"{_named(name)} never took effect ({recorded})")
    else:
        assessment.count(Category.PENDING)


def _judge_order(assessment: Assessment, effects: Iterable[WitnessedEffect]) -> None:
    """Check that the first effects of an entity's events are in the order of the events."""
    seen: set[tuple[str, int]] = set()
    last: dict[str, int] = defaultdict(int)
    for effect in effects:
        name = (effect.entity, effect.event)
        if name in seen:
            continue
        seen.add(name)
        if effect.event < last[effect.entity]:
            message = f"{_named(name)} came after event {last[effect.entity]}"
            assessment.find(Category.REORDERED, message)
        last[effect.entity] = max(last[effect.entity], effect.event)


def _judge_doubts(assessment: Assessment, evidence: SinkEvidence) -> None:
    """Check that only what cannot be asked leaves doubts, and no more than the promise says."""
    assessment.doubted = sum(fact.doubted for fact in evidence.parked)
    if not assessment.doubted:
        return
    if evidence.capability not in CAN_BE_IN_DOUBT:
        message = f"{assessment.doubted} events are in doubt; this destination must leave none"
        assessment.find(Category.UNEXPECTED, message)
    elif assessment.doubted > evidence.in_doubt_max:
        message = (
            f"{assessment.doubted} events were in doubt; a window for each fault and partition is "
            f"{evidence.in_doubt_max}"
        )
        assessment.find(Category.UNEXPECTED, message)


def recovery_times(
    began: Sequence[float], sinks: Iterable[Sequence[WitnessedEffect]]
) -> list[float | None]:
    """Return, for each time at which a fault began, how long it took until every sink had an event
    that was produced after that; None where one never had.
    """
    firsts = [_firsts(began, effects) for effects in sinks]
    return [
        None if None in found else max(at for at in found if at is not None) - start
        for start, found in zip(began, zip(*firsts, strict=True), strict=True)
    ]


def _firsts(began: Sequence[float], effects: Sequence[WitnessedEffect]) -> list[float | None]:
    """Return when the first effect of an event that is younger than each time arrived."""
    oldest_last = sorted(effects, key=lambda effect: effect.produced_at)
    found: dict[float, float | None] = {}
    first: float | None = None
    for start in sorted(set(began), reverse=True):
        while oldest_last and oldest_last[-1].produced_at >= start:
            at = oldest_last.pop().at
            first = at if first is None else min(first, at)
        found[start] = first
    return [found[start] for start in began]


def _named(name: tuple[str, int]) -> str:
    return f"event {name[1]} of {name[0]!r}"
