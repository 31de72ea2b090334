"""A person's decision about all parked events that a filter chooses.

Always true:
- what is decided is what the filter chose at the moment the event was read: an event that the query
  or another person changed since is left as it is, and counted;
- a run that is interrupted leaves decided and undecided events, never half a decision; the same
  command again decides the rest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.ledger import LedgerClient, ParkedChange, change_parked, decided, refuse_reason
from semel.operate.bulk.parked_filter import read_filter
from semel.operate.bulk.scanning import EXAMPLES_MAX, ParkedGroups, ParkedScan
from semel.operate.resolve import DECISIONS, require_decision
from semel.protocol import Judgement, ParkedState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from semel.ledger import DamagedRow, Ledger
    from semel.operate.bulk.scanning import ChosenEvent
    from semel.runtime import Clock


@dataclass
class BulkDecision:
    """A decision about many parked events: what the filter chose, and what was done.

    Attributes:
        done: whether the decisions were recorded; otherwise this was a dry run.
        chosen: the events that it decides, by sink, state and reason.
        left: how many others fit the filter, by state, and cannot be decided in that state.
        resolved: how many decisions were recorded.
        changed: how many events the query or another person changed before theirs was.
        changed_examples: some of those.
        read: how many parked events were read.
        pipelines: those to which the chosen events belong.
    """

    where: str
    decision: ParkedState
    by: str
    reason: str
    done: bool
    chosen: ParkedGroups = field(default_factory=ParkedGroups)
    left: Counter[ParkedState] = field(default_factory=Counter)
    resolved: int = 0
    changed: int = 0
    changed_examples: list[str] = field(default_factory=list)
    read: int = 0
    pipelines: set[str] = field(default_factory=set)
    damaged: list[DamagedRow] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "where": self.where,
            "state": self.decision.value,
            "by": self.by,
            "reason": self.reason,
            "dry_run": not self.done,
            "chosen": self.chosen.total,
            "groups": self.chosen.to_json(),
            "examples": self.chosen.examples,
            "not_decidable": {state.value: count for state, count in sorted(self.left.items())},
            "resolved": self.resolved,
            "changed_meanwhile": self.changed,
            "changed_examples": self.changed_examples,
            "read": self.read,
            "damaged": [{"key": row.key, "why": row.what} for row in self.damaged],
        }


def resolve_many(
    ledger: Ledger,
    where: str,
    decision: str,
    *,
    by: str,
    reason: str,
    dry_run: bool,
    progress: Callable[[int, int], None] | None = None,
    clock: Clock | None = None,
) -> BulkDecision:
    """Record a decision about every parked event that fits the filter and waits for a person; with
    `dry_run`, only count them. An event that was released to be sent again is meant only if the
    filter has `state=resend`. May be repeated. `progress` gets how many events were read and
    resolved.

    Raises `ConfigurationError` for a wrong filter or decision.
    """
    chooses = read_filter(where)
    if decision in list(Judgement):
        raise ConfigurationError(
            f"{decision} decides about a minibatch; --where chooses events, which are "
            f"{', '.join(DECISIONS)}"
        )
    require_decision(decision, reason)
    refuse_reason(reason)
    found = BulkDecision(where, DECISIONS[decision], by, reason, done=not dry_run)
    scan = ParkedScan(ledger, chooses, progress=lambda read: _report(progress, read, found))
    if clock is not None:
        scan.clock = clock
    also = {ParkedState.RESEND} if chooses.names_resend else set()
    may = ({ParkedState.HELD, ParkedState.REJECTED} | also) - {found.decision}
    for page in scan.pages():
        waiting = [each for each in page if each.row.state in may]
        found.left.update(each.row.state for each in page if each.row.state not in may)
        for each in waiting:
            found.chosen.add(each)
        found.pipelines.update(each.pipeline for each in waiting)
        if found.done and waiting:
            _decide(LedgerClient(ledger.store, page[0].pipeline, scan.clock), found, waiting)
    found.read, found.damaged = scan.read, scan.damaged
    return found


def _report(progress: Callable[[int, int], None] | None, read: int, found: BulkDecision) -> None:
    if progress is not None:
        progress(read, found.resolved)


def _decide(client: LedgerClient, found: BulkDecision, events: Sequence[ChosenEvent]) -> None:
    """Record the decision about events of one sink, in one commit if nothing interferes."""
    changes = [
        ParkedChange(
            each.key, each.text, each.row, decided(each.row, found.decision, found.by, found.reason)
        )
        for each in events
    ]
    made = change_parked(client, events[0].sink, changes)
    missed = [each for each in events if each.key not in made]
    found.resolved += len(made)
    found.changed += len(missed)
    room = EXAMPLES_MAX - len(found.changed_examples)
    found.changed_examples += [each.handle for each in missed[:room]]
