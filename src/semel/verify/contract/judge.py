"""The judge: compares what arrived with what the capability promises, event by event.

Always true:
- every event of a scenario arrived once, or the ledger says why not; anything else is a violation;
- errors that only semel can cause are violations too: the promise needs both.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.protocol import Capability, OnDoubt, OnReject, ParkedState
from semel.verify.contract.faults import What
from semel.verify.contract.rows import SOURCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from semel.ledger import ParkedRow
    from semel.verify.contract.rows import Pair
    from semel.verify.contract.sandbox import Sandbox, SandboxProcess

FENCES = (Capability.TRANSACTIONAL, Capability.SEQUENCED)

ON_ITS_WAY = (ParkedState.WAITING, ParkedState.RESEND, ParkedState.SENDING)


@dataclass(frozen=True)
class ScenarioVerdict:
    """The result of one scenario."""

    violations: tuple[str, ...] = ()
    events: int = 0
    in_doubt: int = 0


def judge(sandbox: Sandbox, arrived: Sequence[Pair]) -> ScenarioVerdict:
    """Check every event of a scenario; return the violations and the counts."""
    return _Judge(sandbox, arrived).judge()


class _Judge:
    def __init__(self, sandbox: Sandbox, arrived: Sequence[Pair]) -> None:
        self.sandbox = sandbox
        self.sink = sandbox.sink
        self.arrived = [pair for pair in arrived if pair[0].startswith(sandbox.name)]
        self.counts = Counter(self.arrived)
        self.records = sandbox.records()
        self.expected: dict[Pair, str] = {
            pair: partition
            for rows in sandbox.delivered.values()
            for partition, pairs in rows.events.items()
            for pair in pairs
        }
        self.rows: dict[Pair, list[ParkedRow]] = {}
        offsets = {event: entity for entity, event in self.expected}
        for row in sandbox.parked():
            # An event that a lost checkpoint left in doubt is identified by its position only.
            entity = offsets.get(str(row.event), SOURCE) if row.entity == SOURCE else row.entity
            self.rows.setdefault((entity, str(row.event)), []).append(row)
        self.in_flight = {pair for zombie in sandbox.zombies for pair in _in_flight(zombie)}
        self.on_its_way = {
            pair
            for zombie in sandbox.zombies
            if zombie.order.fault is not None and zombie.order.fault.what is not What.STOP_AFTER
            for pair in _in_flight(zombie)
        }  # the calls of the others had ended, so a probe knows about them

    def judge(self) -> ScenarioVerdict:
        held = [pair for pair in self.expected if ParkedState.HELD in self._states(pair)]
        found = [
            *self._unexpected(),
            *(text for pair in self.expected for text in self._event(pair)),
            *self._order(),
            *self._doubts(held),
            *self._not_refused(),
            *self._not_noticed(),
            *(text for record in self.records for text in record.wrong()),
        ]
        return ScenarioVerdict(tuple(dict.fromkeys(found)), len(self.expected), len(held))

    def _states(self, pair: Pair) -> set[ParkedState]:
        return {row.state for row in self.rows.get(pair, [])}

    # -- one event

    def _event(self, pair: Pair) -> Iterator[str]:
        count, states = self.counts[pair], self._states(pair)
        if ParkedState.REJECTED in states:
            yield from self._rejected(pair, count)
        elif not count:
            yield from self._absent(pair, states)
        elif count > 1 and not self._slipped(pair, count, states):
            how = "twice" if count == 2 else f"{count} times"
            yield f"duplicated: {_name(pair)} arrived {how}{self._answers(pair)}"
        elif count == 1 and states & set(ON_ITS_WAY) and pair not in self.in_flight:
            yield f"unexpected: {_name(pair)} arrived, but the ledger still has it waiting"

    def _rejected(self, pair: Pair, count: int) -> Iterator[str]:
        if count:
            yield f"unexpected: {_name(pair)} was rejected, but arrived"
        elif pair not in self.sandbox.rejects | self.sandbox.refusable:
            why = next(row.why for row in self.rows[pair] if row.state is ParkedState.REJECTED)
            yield f"lost: {_name(pair)} was rejected, although it is valid ({why})"

    def _absent(self, pair: Pair, states: set[ParkedState]) -> Iterator[str]:
        if ParkedState.HELD in states:
            return
        if states & set(ON_ITS_WAY) and self._blocked(pair[0]):
            return
        recorded = ", ".join(sorted(states)) or "the ledger has no record of it"
        yield f"lost: {_name(pair)} never arrived ({recorded}){self._answers(pair)}"

    def _blocked(self, entity: str) -> bool:
        """Whether an event of the entity is held or refused, so that others wait behind it."""
        blocks = {ParkedState.HELD}
        if self.sink.on_reject is OnReject.BLOCK:
            blocks.add(ParkedState.REJECTED)
        return any(blocks & self._states(pair) for pair in self.rows if pair[0] == entity)

    def _slipped(self, pair: Pair, count: int, states: set[ParkedState]) -> bool:
        """Whether a repeat is a zombie's call in flight, allowed with a probe if it is reported."""
        probing = self.sink.capability is Capability.PROBING
        probed = self.sink.capability is Capability.OPAQUE and self.sink.on_doubt is OnDoubt.PROBE
        if not (probing or probed) or pair not in self.on_its_way:
            return False
        return count == 2 and ParkedState.LATE in states

    def _answers(self, pair: Pair) -> str:
        """Return what the sessions answered about an event."""
        answers: list[str] = []
        for number, record in enumerate(self.records, 1):
            calls = {line["call"]: line["events"] for line in record.lines if "call" in line}
            for line in record.lines:
                events = calls.get(line.get("of"), [])
                if list(pair) in events:
                    answers.append(f"process {number}: {_answer(line, events.index(list(pair)))}")
        return f"; its sessions answered: {', '.join(answers)}" if answers else ""

    # -- all events

    def _unexpected(self) -> Iterator[str]:
        for pair in self.counts:
            if pair not in self.expected:
                yield f"unexpected: {_name(pair)} arrived, but was never sent"

    def _order(self) -> Iterator[str]:
        """Check that first arrivals are in order by entity, at SEQUENCED by log."""
        by_log = self.sink.capability is Capability.SEQUENCED
        places = {pair: at for at, pair in enumerate(self.expected)}
        last: dict[str, Pair] = {}
        for pair in dict.fromkeys(self.arrived):
            if pair not in places or pair in self.sandbox.resent:
                continue
            scope = self.expected[pair] if by_log else pair[0]
            before = last.get(scope)
            if before is not None and places[before] > places[pair]:
                yield f"out of order: {_name(pair)} arrived after {_name(before)}"
            else:
                last[scope] = pair

    def _doubts(self, held: list[Pair]) -> Iterator[str]:
        """Check that only OPAQUE leaves events in doubt: a window for each disturbance, one more
        after a lost checkpoint. REPEATABLE may leave events that are refused after they may have
        arrived: of the same entity by event key, of the same chunk by chunk key.
        """
        if not held:
            return
        sink, lost = self.sink, len({query for query, _ in self.sandbox.delivered}) > 1
        by_chunk = sink.capability is Capability.REPEATABLE and not sink.keyed_by_event
        refused = {entity for entity, _ in self.sandbox.rejects | self.sandbox.refusable}
        by_event = sink.capability is Capability.REPEATABLE and sink.keyed_by_event
        refusal = by_event and refused.issuperset(entity for entity, _ in held)
        explained = refusal or (by_chunk and (lost or bool(refused)))
        if sink.capability is not Capability.OPAQUE and not explained:
            yield (
                f"in doubt: {_name(held[0])} ({self.rows[held[0]][0].why}), but a "
                f"{sink.capability.value} destination must leave nothing in doubt"
            )
            return
        window = sink.chunk_rows * sink.span_chunks
        most = window * max(1, self.sandbox.disturbances)
        if len(held) > most:
            yield f"in doubt: {len(held)} events, at most {most} are allowed"

    def _not_refused(self) -> Iterator[str]:
        """Check that a fencing destination refuses a call that begins after a take-over, and a
        place that is written after a later attempt wrote or emptied it.
        """
        if self.sink.capability not in FENCES and not self.sink.whole:
            return
        for zombie in self.sandbox.zombies:
            fault = zombie.order.fault
            if fault is None or fault.what is not What.STOP_BEFORE:
                continue
            answers = [
                line
                for line in zombie.record().lines
                if line.get("of") == fault.number and "failures" in line and line["name"] != "write"
            ]
            for line in answers:
                if self._replaced_before(line):
                    yield (
                        f"not refused: attempt {_attempt(line)} was replaced by a later one, which "
                        f"had {'written the place' if self.sink.whole else 'taken over'}, but its "
                        "call was still accepted"
                    )

    def _not_noticed(self) -> Iterator[str]:
        """Check that a call that claims more than the row has is refused as `Diverged`."""
        for process in self.sandbox.processes:
            fault = process.order.fault
            if fault is None or fault.what is not What.BEHIND:
                continue
            for line in process.record().lines:
                if line.get("of") == fault.number and line.get("raised") != "Diverged":
                    yield (
                        f"not noticed: call {fault.number} claims more progress than the row has; "
                        f"its outcome was {line.get('raised', 'accepted')}, not Diverged"
                    )

    def _replaced_before(self, answer: dict[str, Any]) -> bool:
        name, answered = ("finish", "failures") if self.sink.whole else ("take_over", "answered")
        return any(
            line.get("name") == name
            and answered in line
            and line["partition"] == answer["partition"]
            and (not self.sink.whole or line["minibatch"] == answer["minibatch"])
            and line["attempt"] > answer["attempt"]
            and line["at"] < answer["at"]
            for record in self.records
            for line in record.lines
        )


def _in_flight(zombie: SandboxProcess) -> list[Pair]:
    """Return the events of the call that a zombie was stopped at."""
    fault = zombie.order.fault
    if fault is None:
        return []
    return [
        (entity, event)
        for line in zombie.record().lines
        if line.get("call") == fault.number
        for entity, event in line["events"]
    ]


def _answer(line: dict[str, Any], place: int) -> str:
    if "raised" in line:
        return str(line["raised"])
    return str(line["failures"].get(str(place), "delivered"))


def _attempt(line: dict[str, Any]) -> str:
    return ".".join(map(str, line["attempt"]))


def _name(pair: Pair) -> str:
    return f"event {pair[1]} of {pair[0]!r}"
