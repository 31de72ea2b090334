"""The checker: what happened to every event of a world, and whether that was allowed.

Always true:
- every event falls into one category; anything that is not allowed is a violation, not a count;
- events that slip because of a policy or a broken deadline are counted and shown;
- a world that stopped before its end is judged as far as possible: its verdict is at best
  `unknown`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from semel.protocol import CAN_BE_IN_DOUBT, Capability, OnDoubt, OnReject, ParkedState
from semel.verify.simulator.cases import Variant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.ledger import ParkedRow
    from semel.verify.simulator.cases import Case
    from semel.verify.simulator.destinations import RecordedEffect
    from semel.verify.simulator.inputs import Fact, Feed


class Category(StrEnum):
    """What happened to an event."""

    DELIVERED = "delivered"
    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    UNEXPECTED = "unexpected"
    IN_DOUBT = "in doubt"
    SLIPPED = "slipped"
    REJECTED = "rejected"
    DISCARDED = "discarded"
    PENDING = "pending"
    NOT_DUE = "not due"


ON_ITS_WAY = {ParkedState.WAITING, ParkedState.RESEND, ParkedState.SENDING}


class Verdict(StrEnum):
    """The verdict on a world."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that happened and is not allowed."""

    category: Category
    message: str

    def __str__(self) -> str:
        return f"{self.category.value}: {self.message}"


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known about a world at its end.

    Attributes:
        effects: the effects at the destination, in the order in which they happened.
        parked: every parked row of the ledger.
        ended: whether the whole input was delivered; otherwise events may still be in flight.
        refused: events that the destination refused at any time.
        disturbances: crashes, pauses and lost replies: each may leave a window in doubt.
        generations: more than one after a lost checkpoint.
        expired: whether more time may have passed than the destination remembers a key.
        required: the events that this sink must get; None for all.
        gateway: whether calls may be refused after an earlier one got no answer.
        broken: events whose call never gets a clear answer.
        poison: events that cannot be sent again.
        drained: whether every resolved event had the time to be sent.
    """

    case: Case
    feed: Feed
    effects: Sequence[RecordedEffect]
    parked: Sequence[ParkedRow]
    ended: bool = True
    refused: frozenset[int] = frozenset()
    disturbances: int = 0
    generations: int = 1
    expired: bool = False
    notes: tuple[str, ...] = ()
    required: frozenset[int] | None = None
    gateway: bool = False
    broken: frozenset[int] = frozenset()
    poison: frozenset[int] = frozenset()
    drained: bool = False


@dataclass(slots=True)
class Assessment:
    """The result of the checker for a world."""

    counts: dict[Category, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    doubted: int = 0
    unreported: int = 0
    ended: bool = True

    @property
    def verdict(self) -> Verdict:
        """Valid, invalid, or unknown if the world did not reach its end."""
        if self.violations:
            return Verdict.INVALID
        open_ = self.counts.get(Category.PENDING, 0)
        return Verdict.VALID if self.ended and not open_ else Verdict.UNKNOWN

    def count(self, category: Category, times: int = 1) -> None:
        """Count an event."""
        self.counts[category] = self.counts.get(category, 0) + times

    def merge(self, other: Assessment, sink: str) -> None:
        """Add the result for another sink of the same world."""
        for category, times in other.counts.items():
            self.count(category, times)
        self.violations += [
            Violation(each.category, f"sink {sink}: {each.message}") for each in other.violations
        ]
        self.doubted += other.doubted
        self.unreported += other.unreported
        self.ended = self.ended and other.ended

    def find(self, category: Category, message: str) -> None:
        """Count an event and add a violation."""
        self.count(category)
        self.violations.append(Violation(category, message))


def judge(evidence: Evidence) -> Assessment:
    """Check what happened to every event; return counts and violations."""
    assessment = Assessment(ended=evidence.ended)
    effects: dict[int, list[RecordedEffect]] = defaultdict(list)
    for effect in evidence.effects:
        effects[effect.number].append(effect)
    rows: dict[int, list[ParkedRow]] = defaultdict(list)
    for row in evidence.parked:
        number = _number(evidence, row)
        if number is None:
            message = f"event {row.event} of {row.entity!r} is parked, but there is no such event"
            assessment.find(Category.UNEXPECTED, message)
        else:
            rows[number].append(row)
    known = {fact.number: fact for fact in evidence.feed.facts}
    for number in effects.keys() - known.keys():
        assessment.find(Category.UNEXPECTED, f"event {number} does not exist in this world")
    for fact in evidence.feed.facts:
        _Event(evidence, assessment, fact, effects[fact.number], rows[fact.number]).judge()
    _judge_order(evidence, assessment, rows)
    _judge_numbers(evidence, assessment)
    _judge_doubts(evidence, assessment, rows)
    _judge_stuck(evidence, assessment)
    for note in evidence.notes:
        assessment.find(Category.UNEXPECTED, note)
    return assessment


def _number(evidence: Evidence, row: ParkedRow) -> int | None:
    return evidence.feed.numbers.get((row.scope, row.event))


@dataclass(frozen=True, slots=True)
class _Event:
    """One event with its effects at the destination and its rows in the ledger."""

    evidence: Evidence
    assessment: Assessment
    fact: Fact
    effects: list[RecordedEffect]
    rows: list[ParkedRow]

    def judge(self) -> None:
        if not self.effects:
            self._absent()
        elif len(self.effects) > 1:
            self._repeated()
        else:
            self._once()

    @property
    def _name(self) -> str:
        return f"event {self.fact.number} of {self.fact.entity!r}"

    @property
    def _required(self) -> bool:
        required = self.evidence.required
        return required is None or self.fact.number in required

    @property
    def _states(self) -> set[ParkedState]:
        return {row.state for row in self.rows}

    @property
    def _waits_unsent(self) -> bool:
        """Whether it waits and the ledger does not record that it may have arrived."""
        return any(row.state is ParkedState.WAITING and not row.doubted for row in self.rows)

    def _absent(self) -> None:
        """Check an event without effect: allowed only if the ledger says why."""
        states = self._states
        if ParkedState.HELD in states:
            self.assessment.count(Category.IN_DOUBT)
        elif ParkedState.REJECTED in states:
            if self.fact.number not in self.evidence.refused:
                self.assessment.find(
                    Category.LOST, f"{self._name}: parked as rejected, but was not"
                )
                return
            self.assessment.count(Category.REJECTED)
        elif states & ON_ITS_WAY:
            self.assessment.count(Category.PENDING)
        elif ParkedState.DISCARDED in states:
            self.assessment.count(Category.DISCARDED)
        elif ParkedState.SKIPPED in states and self.evidence.case.on_doubt is OnDoubt.SKIP:
            self.assessment.count(Category.SLIPPED)
        elif not self._required:
            self.assessment.count(Category.NOT_DUE)
        elif self.evidence.ended:
            recorded = ", ".join(sorted(states)) or "the ledger has no record of it"
            self.assessment.find(Category.LOST, f"{self._name} never took effect ({recorded})")
        else:
            self.assessment.count(Category.PENDING)

    def _once(self) -> None:
        """Check an event with one effect: it must not be waiting or recorded as undelivered."""
        states, fact = self._states, self.fact
        if ParkedState.HELD in states:
            self.assessment.count(Category.IN_DOUBT)
            return
        if ParkedState.DISCARDED in states:
            self.assessment.find(Category.UNEXPECTED, f"{self._name} was discarded, but arrived")
        elif ParkedState.REJECTED in states:
            self.assessment.find(Category.UNEXPECTED, f"{self._name} was rejected, but arrived")
        elif self._waits_unsent and not self.effects[0].late:
            self.assessment.find(Category.UNEXPECTED, f"{self._name} is waiting, but arrived")
        elif states & ON_ITS_WAY and not self.effects[0].late:
            self.assessment.count(Category.PENDING)
        else:
            self.assessment.count(Category.DELIVERED)
        del fact

    def _repeated(self) -> None:
        """Check an event with several effects: allowed only if a policy or a broken deadline
        explains them.
        """
        extra = len(self.effects) - 1
        case = self.evidence.case
        doubted = any(row.doubted for row in self.rows)
        if case.on_doubt is OnDoubt.RESEND and doubted and _may_doubt(self.evidence):
            self.assessment.count(Category.SLIPPED)
            return
        late = sum(effect.late for effect in self.effects)
        if late >= extra and self._may_slip():
            self.assessment.count(Category.SLIPPED)
            if ParkedState.LATE not in self._states:
                self.assessment.unreported += 1
            return
        who = ", ".join(f"{effect.attempt} at {effect.at:.2f}" for effect in self.effects)
        message = f"{self._name} took effect {len(self.effects)} times ({who})"
        self.assessment.find(Category.DUPLICATED, message)

    def _may_slip(self) -> bool:
        """Whether a call after its deadline can repeat an event at such a destination."""
        case = self.evidence.case
        if case.capability is Capability.PROBING or case.variant is Variant.PLACES:
            return True
        if case.capability is Capability.REPEATABLE:
            return self.evidence.expired
        return case.capability is Capability.OPAQUE and case.on_doubt in (
            OnDoubt.RESEND,
            OnDoubt.PROBE,
        )


def _may_doubt(evidence: Evidence) -> bool:
    """Whether events may be in doubt at all in such a world."""
    if evidence.case.capability in CAN_BE_IN_DOUBT or evidence.generations > 1:
        return True
    # A refusal undoes nothing: after a call that may have arrived it leaves a doubt.
    left_open = evidence.expired or evidence.refused or evidence.gateway or evidence.broken
    return evidence.case.capability is Capability.REPEATABLE and bool(left_open)


def _judge_order(
    evidence: Evidence, assessment: Assessment, rows: dict[int, list[ParkedRow]]
) -> None:
    """Check that the first effects of an entity's events are in the order of the events."""
    if not evidence.case.identities.ordered:
        return
    facts = {fact.number: fact for fact in evidence.feed.facts}
    last: dict[tuple[str, str], int] = {}
    seen: set[int] = set()
    for effect in evidence.effects:
        fact = facts.get(effect.number)
        if fact is None or fact.number in seen:
            continue
        seen.add(fact.number)
        if _exempt(evidence, effect, rows[fact.number]):
            continue
        place = (fact.partition, fact.entity)
        if last.get(place, 0) > fact.number:
            message = f"event {fact.number} of {fact.entity!r} came after event {last[place]}"
            assessment.find(Category.REORDERED, message)
        last[place] = max(last.get(place, 0), fact.number)


def _exempt(evidence: Evidence, effect: RecordedEffect, rows: list[ParkedRow]) -> bool:
    """Whether a policy, a decision, a broken deadline or a re-read explains the order."""
    if effect.late:
        return True
    if evidence.case.on_doubt is OnDoubt.SKIP and any(row.doubted for row in rows):
        return True
    if evidence.generations > 1 and evidence.case.identities.by_source and rows:
        return True
    owed = evidence.required
    if evidence.generations > 1 and owed is not None and effect.number not in owed:
        return True  # from before the sink was added; a second re-read may begin before the first
    dead_letter = effect.number in evidence.refused and evidence.case.on_reject is OnReject.PARK
    return dead_letter and bool(rows)


def _judge_numbers(evidence: Evidence, assessment: Assessment) -> None:
    """Check that ids are those of the events, and that an OSN belongs to one event on every try and
    rises in a log.
    """
    scoped = evidence.case.identities.by_source
    facts = {fact.number: fact for fact in evidence.feed.facts}
    osns: dict[tuple[str, int, int], int] = {}
    risen: dict[tuple[str, int], int] = {}
    for effect in evidence.effects:
        fact = facts.get(effect.number)
        if fact is None:
            continue
        scope = fact.partition if scoped else effect.entity
        if evidence.feed.numbers.get((scope, effect.event)) != effect.number:
            message = f"event {effect.number} of {fact.entity!r} was sent as {effect.event}"
            assessment.find(Category.UNEXPECTED, message)
        if effect.resend:
            continue
        place = (effect.partition, effect.scale)
        owner = osns.setdefault((*place, effect.osn), effect.number)
        if owner != effect.number:
            message = f"events {owner} and {effect.number} were both sent as OSN {effect.osn}"
            assessment.find(Category.UNEXPECTED, message)
        if evidence.case.capability is Capability.SEQUENCED:
            if effect.osn <= risen.get(place, 0):
                message = f"OSN {effect.osn} came after {risen[place]} in the log"
                assessment.find(Category.UNEXPECTED, message)
            risen[place] = max(effect.osn, risen.get(place, 0))


def _judge_doubts(
    evidence: Evidence, assessment: Assessment, rows: dict[int, list[ParkedRow]]
) -> None:
    """Check that only OPAQUE leaves events in doubt, at most a window for each disturbance."""
    doubted = [number for number, kept in rows.items() if any(row.doubted for row in kept)]
    assessment.doubted = len(doubted)
    if not doubted:
        return
    if not _may_doubt(evidence):
        message = f"events {sorted(doubted)} are in doubt, but this destination must leave none"
        assessment.find(Category.UNEXPECTED, message)
    elif evidence.generations == 1 and evidence.case.capability is Capability.OPAQUE:
        most = evidence.case.window * (evidence.disturbances + len(evidence.broken))
        if len(doubted) > most:
            message = (
                f"{len(doubted)} events are in doubt after {evidence.disturbances} disturbances"
            )
            assessment.find(Category.UNEXPECTED, f"{message}: at most {most}")


def _judge_stuck(evidence: Evidence, assessment: Assessment) -> None:
    """Check that every event that can be sent again was sent, once there was time."""
    if not evidence.drained or evidence.case.capability is Capability.SEQUENCED:
        return
    first: dict[tuple[str, str], ParkedRow] = {}
    for row in sorted(evidence.parked, key=lambda each: (each.minibatch, each.position)):
        if row.blocks and not row.state.final:
            first.setdefault((row.entity, row.scope), row)
    hopeless = evidence.broken | evidence.poison
    for row in first.values():
        if row.state is ParkedState.RESEND and _number(evidence, row) in hopeless:
            continue  # a person can still discard it
        if row.state in (ParkedState.RESEND, ParkedState.SENDING) and row.value is not None:
            message = (
                f"event {row.event} of {row.entity!r} is {row.state} and is never sent: {row.why}"
            )
            assessment.find(Category.UNEXPECTED, message)
