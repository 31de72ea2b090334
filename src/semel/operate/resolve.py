"""Decisions of a person: about a parked event, or about a minibatch that diverged."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError
from semel.events import Minibatch
from semel.ledger import LedgerClient, judge_minibatch, key_text, resolve_parked
from semel.operate.event_names import write_text
from semel.operate.ledgers import choose_pipeline
from semel.operate.parked import read_parked_events
from semel.operate.status import RunState, read_status
from semel.protocol import Capability, Judgement, ParkedState

if TYPE_CHECKING:
    from semel.ledger import Ledger
    from semel.operate.parked import ParkedEvent
    from semel.operate.status import PipelineStatus

_MINIBATCH = re.compile(r"(.+)/([0-9]{1,18})\.([0-9]{1,18})", re.DOTALL)
DECISIONS = {
    "delivered": ParkedState.DELIVERED,
    "resend": ParkedState.RESEND,
    "discard": ParkedState.DISCARDED,
}
_JUDGED = {
    Judgement.AS_RECORDED: "the delivered events stand; if the minibatch was not complete, the "
    "other events that the query produces are delivered too",
    Judgement.AS_REPLAYED: "all events that the query produces for it are delivered again, "
    "including those that were delivered before",
}


@dataclass(frozen=True, slots=True)
class ResolvedEvent:
    """A decision about a parked event, as it is recorded.

    Attributes:
        event: the full name of the event.
        next: what happens now, in words.
    """

    event: str
    state: ParkedState
    by: str | None
    reason: str | None
    next: str

    @property
    def subject(self) -> str:
        """What was decided about."""
        return self.event

    def to_json(self) -> dict[str, str | None]:
        """Return it as a JSON object."""
        return {
            "event": self.event,
            "state": self.state.value,
            "by": self.by,
            "reason": self.reason,
            "next": self.next,
        }


@dataclass(frozen=True, slots=True)
class JudgedMinibatch:
    """A decision about a minibatch that diverged, as it is recorded.

    Attributes:
        minibatch: PIPELINE/GENERATION.BATCH.
        next: what happens now, in words.
    """

    minibatch: str
    state: Judgement
    by: str
    reason: str
    next: str

    @property
    def subject(self) -> str:
        """What was decided about."""
        return self.minibatch

    def to_json(self) -> dict[str, str]:
        """Return it as a JSON object."""
        return {
            "minibatch": self.minibatch,
            "state": self.state.value,
            "by": self.by,
            "reason": self.reason,
            "next": self.next,
        }


def require_reason(reason: str) -> None:
    """Raise `ConfigurationError` for an empty reason."""
    if not reason.strip():
        raise ConfigurationError("the reason is empty; write why, it is kept in the ledger")


def require_decision(decision: str, reason: str) -> None:
    """Raise `ConfigurationError` for an unknown decision or an empty reason."""
    require_reason(reason)
    if decision not in {*DECISIONS, *Judgement}:
        raise ConfigurationError(
            f"unknown decision {decision!r}; use {', '.join(DECISIONS)} for an event, "
            f"{' or '.join(Judgement)} for a minibatch"
        )


def record_decision(
    ledger: Ledger, subject: str, decision: str, *, by: str, reason: str
) -> ResolvedEvent | JudgedMinibatch:
    """Record a decision about a parked event or a minibatch that diverged. May be repeated: the
    same decision again changes nothing. The heartbeat of the run is watched, for up to 10 seconds.

    Raises `ConfigurationError` when the subject does not exist or cannot be decided so, and for a
    minibatch while its pipeline is running.
    """
    require_decision(decision, reason)
    if decision in DECISIONS:
        return _resolve_event(ledger, subject, DECISIONS[decision], by, reason)
    return _judge(ledger, subject, Judgement(decision), by, reason)


def _resolve_event(
    ledger: Ledger, typed: str, decision: ParkedState, by: str, reason: str
) -> ResolvedEvent:
    found = read_parked_events(ledger).find(typed)
    client = LedgerClient(ledger.store, found.pipeline)
    row = resolve_parked(client, found.sink, found.key, decision, by, reason)
    status = read_status(ledger, found.pipeline, watch=True)
    return ResolvedEvent(
        found.handle, row.state, row.by, row.reason, what_follows(found, decision, status)
    )


def _judge(
    ledger: Ledger, typed: str, decision: Judgement, by: str, reason: str
) -> JudgedMinibatch:
    named = _MINIBATCH.fullmatch(typed)
    if named is None:
        raise ConfigurationError(
            f"{typed!r} is not a minibatch; {decision.value} needs PIPELINE/GENERATION.BATCH, as "
            "in charges/1.57"
        )
    written = named[1] if named[1] in ledger.pipelines() else key_text(named[1])
    pipeline = choose_pipeline(ledger, written)
    status = read_status(ledger, pipeline, watch=True)
    if status.state is RunState.RUNNING:
        raise ConfigurationError(
            f"pipeline {pipeline!r} is running (run {status.run}); stop the query before you judge "
            "a minibatch"
        )
    minibatch = Minibatch(int(named[2]), int(named[3]))
    judge_minibatch(LedgerClient(ledger.store, pipeline), minibatch, decision, by, reason)
    return JudgedMinibatch(
        f"{write_text(pipeline)}/{minibatch}",
        decision,
        by,
        reason,
        f"when the query is started again, {_JUDGED[decision]}",
    )


def what_follows(event: ParkedEvent, decision: ParkedState, status: PipelineStatus) -> str:
    """Return what happens now, and whether the pipeline is running to do it."""
    resend, behind = decision is ParkedState.RESEND, event.behind
    if not resend and not behind:
        return "no event waits behind it"
    follow = "the event behind it follows" if behind == 1 else f"the {behind} behind it follow"
    what = follow if not resend else f"it is sent, and {follow}," if behind else "it is sent"
    sequenced = any(
        sink.sink == event.sink and sink.capability == Capability.SEQUENCED.value
        for sink in status.sinks
    )
    place = "with the next minibatch of its partition" if sequenced else "before the next minibatch"
    if resend and not sequenced:
        place += ", once no earlier call can still be in flight"
    if status.state is RunState.RUNNING:
        return f"{what} {place}: pipeline {event.pipeline} is running (run {status.run})"
    return (
        f"pipeline {event.pipeline} does not seem to run ({status.state.value}): once it is "
        f"started, {what} {place}"
    )
