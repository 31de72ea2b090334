"""What is wrong with a pipeline, and what to type next.

Always true: an advice follows from the status alone, and what is not known is never shown as fine.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from semel.operate.status import RunState
from semel.protocol import Capability

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semel.operate.status import PipelineStatus, SinkStatus

RUN = "semel run FILE"
"""The command to start a pipeline; the ledger does not know its file."""


class Severity(StrEnum):
    """How urgent an advice is, the most urgent first."""

    PROBLEM = "problem"  # a person has to act
    WARNING = "warning"  # it may become a problem
    NOTE = "note"  # worth knowing


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing that is wrong: what, what to do about it, and the command for that.

    Attributes:
        sink: where the events are that it is about; None for the whole pipeline.
        states: which parked events it is about, as the page of parked events filters them.
    """

    severity: Severity
    what: str
    do: str
    command: str | None = None
    sink: str | None = None
    states: str | None = None


def advise(status: PipelineStatus) -> tuple[Advice, ...]:
    """Return what is wrong with a pipeline, the most urgent first."""
    found = [*_of_rows(status), *_of_parked(status), *_of_run(status), *_of_latency(status)]
    return tuple(sorted(found, key=lambda each: list(Severity).index(each.severity)))


def _of_rows(status: PipelineStatus) -> Iterator[Advice]:
    count = len(status.damaged)
    if count:
        rows = "1 row of the ledger cannot be read" if count == 1 else f"{count} rows are damaged"
        first = status.damaged[0]
        yield Advice(
            Severity.PROBLEM,
            f"{rows}: {first.table} {first.key}: {first.what}",
            "see which rows are damaged; docs/failures.md says what to do about each table",
            "semel ledger check",
        )


def _of_parked(status: PipelineStatus) -> Iterator[Advice]:
    command = f"semel parked ls {shlex.quote(status.pipeline)}"
    for sink in status.sinks:
        cut = "parked" in sink.cut
        if sink.in_doubt:
            events, one = _events(sink.in_doubt, cut=cut)
            yield Advice(
                Severity.PROBLEM,
                f"{events} {'is' if one else 'are'} in doubt at sink {sink.sink}: "
                f"{'it' if one else 'each'} may have arrived, and it is not known whether it did",
                f"find out whether {'it' if one else 'each'} arrived, then decide: delivered, "
                "resend or discard",
                command,
                sink.sink,
                "held",
            )
        if sink.rejected:
            events, one = _events(sink.rejected, cut=cut)
            yield Advice(
                Severity.PROBLEM,
                f"{events} {'was' if one else 'were'} rejected by sink {sink.sink}: "
                f"{'it' if one else 'they'} did not arrive, and will not unless something changes",
                "fix the cause and resend, or discard",
                command,
                sink.sink,
                "rejected",
            )
        if cut and not sink.in_doubt and not sink.rejected:
            yield Advice(
                Severity.WARNING,
                f"sink {sink.sink} has too many parked rows to count here: whether events wait "
                "for a person is not known",
                "count them; this reads every parked row",
                f"semel status {shlex.quote(status.pipeline)} --check",
                sink.sink,
                "person",
            )


def _events(count: int, *, cut: bool) -> tuple[str, bool]:
    """Return how many events there are in words, and whether it is one."""
    if cut:
        return f"{count:,} or more events", False
    return ("1 event", True) if count == 1 else (f"{count:,} events", False)


def _of_run(status: PipelineStatus) -> Iterator[Advice]:
    run, name = status.run, shlex.quote(status.pipeline)
    again = "start it again from its pipeline file, or as you started it"
    open_ = status.minibatch is not None and not status.complete and not status.finished
    then = f"{again}. {_next_start(status)}" if open_ else again
    match status.state:
        case RunState.GONE:
            yield Advice(
                Severity.PROBLEM,
                f"run {run} is gone: its process {status.process} on {status.host} has ended "
                "without recording an end",
                then,
                RUN,
            )
        case RunState.SILENT:
            yield Advice(
                Severity.PROBLEM,
                f"run {run} on {status.host} is silent: its heartbeat does not move",
                f"look at process {status.process} on {status.host}; if it is dead, {again}. A new "
                "run fences the old one",
                f"semel status {name} --watch",
            )
        case RunState.UNKNOWN:
            yield Advice(
                Severity.WARNING,
                "the row of its run cannot be read: whether it runs is not known",
                "see which rows are damaged",
                "semel ledger check",
            )
        case RunState.UNCONFIRMED:
            yield Advice(
                Severity.NOTE,
                f"run {run} on {status.host} is not confirmed yet: its heartbeat is being watched",
                "wait ten seconds, or watch it yourself",
                f"semel status {name} --watch",
            )
        case RunState.ENDED if open_:
            yield Advice(
                Severity.WARNING,
                f"run {run} ended, and minibatch {status.minibatch} is not complete",
                then,
                RUN,
            )
        case _:
            pass
    asked = sum(sink.resends.asked for sink in status.sinks)
    if asked and status.state in (RunState.ENDED, RunState.GONE, RunState.SILENT):
        yield Advice(
            Severity.WARNING,
            f"{asked:,} to be sent again, and no run is active to send them",
            again,
            RUN,
        )


def _next_start(status: PipelineStatus) -> str:
    """Return what the next start does with partitions that are pending."""
    pending = [sink for sink in status.sinks if sink.pending_partitions]
    words = {_after_restart(sink) for sink in pending}
    return " and ".join(sorted(words)) or "It continues where this one stopped"


def _after_restart(sink: SinkStatus) -> str:
    match sink.capability:
        case Capability.OPAQUE.value:
            return "The next start shows which events of the pending partitions are in doubt"
        case Capability.REPEATABLE.value:
            return "The next start repeats, under the same keys, what may have been sent"
        case _:
            return "The next start asks the destination what it has"


def _of_latency(status: PipelineStatus) -> Iterator[Advice]:
    pacing = status.pacing
    if pacing is None or pacing.latency_s is None or pacing.p99_s is None:
        return
    if pacing.p99_s > pacing.latency_s:
        yield Advice(
            Severity.WARNING,
            f"the p99 of the latency is about {pacing.p99_s:.2g} s, and {pacing.latency_s:g} s are "
            "required",
            "see the choices of the marker clock and their reasons; more cores or a faster sink "
            "shorten a minibatch",
            "semel ledger ls markers",
        )
