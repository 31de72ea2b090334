"""The audit log for a person: what became of an event that the ledger has pruned, and retention.

Always true: the ledger answers first. The audit log is asked only where the ledger has no record of
the event itself, and its answer is that of a row, never a conclusion.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError
from semel.events import Minibatch
from semel.ledger import LedgerClient, Owners, Trace
from semel.runtime import SystemClock
from semel.sinks import AuditLog, days_ago

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.events import EventID
    from semel.ledger import Ledger
    from semel.sinks import AuditRecord

AUDIT = "audit log"
_WEAK = ("handled", "not seen")
_FINAL = ("delivered", "discarded", "skipped by policy")


def with_audit(
    ledger: Ledger,
    audit: str,
    pipeline: str,
    entity: str,
    ids: Sequence[EventID],
    traces: Sequence[Trace],
) -> list[Trace]:
    """Return the answers with those of the audit log where the ledger has no record of the event.

    Raises `ConfigurationError` if the audit log cannot be read.
    """
    log = AuditLog(audit)
    asked = {each.sink for each in traces if each.state in _WEAK}
    if not asked:
        return list(traces)
    known_as = Owners(LedgerClient(ledger.store, pipeline)).known_as() or pipeline
    by_partition = ledger.identity(pipeline).get("kind") == "position"
    newest: dict[str, AuditRecord] = {}
    try:
        if not log.has(known_as):
            raise ConfigurationError(
                f"the audit log at {log.where} has nothing of pipeline {known_as!r}; pass the "
                "folder that audit= of semel.deliver names"
            )
        for record in log.find(known_as, entity, ids, by_partition=by_partition):
            newest.setdefault(record.sink, record)
            if asked <= set(newest):
                break
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the audit log at {log.where} cannot be read ({type(error).__name__}: {error}); pass "
            "the folder that audit= of semel.deliver names"
        ) from error
    return [
        _combined(each, newest[each.sink]) if each.sink in asked & set(newest) else each
        for each in traces
    ]


def _combined(trace: Trace, record: AuditRecord) -> Trace:
    """Return the answer of a row; what was unsettled then stays `handled` if the ledger is past it
    now.
    """
    if trace.state == "handled" and record.outcome not in _FINAL:
        then = f"the audit log has it {record.outcome} in minibatch {record.minibatch}"
        why = f"{trace.why}; {then}" if trace.why else then
        return replace(trace, why=why, source=AUDIT)
    generation, _, batch = record.minibatch.partition(".")
    return Trace(
        trace.sink,
        record.outcome,
        Minibatch(int(generation), int(batch)),
        record.attempt,
        None if record.osn is None else (record.osn, record.osn),
        record.time,
        record.why,
        source=AUDIT,
    )


def prune_audit(audit: str, days: int) -> dict[str, list[str]]:
    """Remove the days of an audit log that are older than `days` days; return them by pipeline."""
    if days < 1:
        raise ConfigurationError(f"days must be at least 1, got {days}")
    log = AuditLog(audit)
    if not log.pipelines():
        raise ConfigurationError(f"there is no audit log at {log.where}")
    return log.prune(days_ago(SystemClock().wall(), days))
