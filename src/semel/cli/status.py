"""The command `semel status`: which run has each pipeline, how far it is, and what waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import JsonOption, LedgerOption, opened
from semel.cli.output import ago, plain, show_json, show_table

if TYPE_CHECKING:
    from semel.operate import PipelineStatus, SinkStatus

EPILOG = (
    "Example: semel status charges --check --ledger sqlite:///charges.db. "
    "Exit status 1 with --check when events wait for a person."
)


def status(
    pipeline: Annotated[
        str | None, typer.Argument(help="Only this pipeline.", show_default=False)
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 when events wait for a person.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Watch heartbeats for up to 10 seconds: is each run alive?"),
    ] = False,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print for each pipeline which run has it, which minibatch is open, and what is parked.

    A run is `running`, `ended`, `gone` (its process on this machine has ended), or `unconfirmed`:
    it has not recorded an end, and its process cannot be checked from here. With --watch it is
    `running` or `silent` (its heartbeat did not move) instead of `unconfirmed`.

    `last OSN` is the sum over partitions: how many events of complete minibatches got an output
    sequence number. `delivered` is how many of them are delivered: not those in doubt, rejected,
    waiting, skipped (policy `skip`) or discarded (by a person). `transmitted` is the same sum of
    the last numbers that are known to have reached the destination; it is lower where the last
    events are parked, and higher where events of the open minibatch have arrived. `oldest parked`
    is how long the oldest event that is in doubt, rejected or waiting is parked in this state.

    Then how fast the newest minibatches were delivered, and the state that the query keeps in
    Spark: rows, and how many changelogs and snapshots were written and read (w/r) by this run.
    They are as of the last heartbeat.
    """
    from semel.operate import (
        choose_pipeline,
        read_statuses,
        refuse_damaged,
        waits_for_a_person,
    )

    with opened(ledger) as looked_at:
        if pipeline is None:
            names = looked_at.pipelines()
        else:
            names = [choose_pipeline(looked_at, pipeline)]
        found = read_statuses(looked_at, names, watch=watch)
        waits = check and waits_for_a_person(looked_at, found)
    if as_json:
        shown = [each.to_json() for each in found]
        show_json(shown if pipeline is None else shown[0])
    elif not found:
        print("no pipeline has run with this ledger yet")
    else:
        _show(found)
    refuse_damaged([row for each in found for row in each.damaged])
    if waits:
        raise typer.Exit(1)


def _show(found: Sequence[PipelineStatus]) -> None:
    _show_pipelines(found)
    print()
    _show_sinks(found)
    _show_rates(found)
    _show_state(found)
    for each in found:
        for row in each.damaged:
            print(f"\ndamaged: {plain(row.table)} {plain(row.key)}: {row.what}")
        _show_pacing(each)
        for sink in each.sinks:
            _show_open(each, sink)
            _show_repeats(each, sink)
            _show_resends(each, sink)
            _show_pending(each, sink)
        if each.state == "unconfirmed" and each.beat_age_s is not None:
            print(
                f"\n{plain(each.pipeline)}: run {each.run} is not confirmed: its last heartbeat "
                f"was {ago(each.beat_age_s)} by the clock of {plain(each.host)}; "
                "`semel status --watch` watches it for 10 s"
            )
    waiting = sum(each.waits_for_a_person for each in found)
    if any(sink.cut for each in found for sink in each.sinks):
        print("\nvery many events are parked: numbers with a + are least numbers")
    if waiting:
        more = "+" if any("parked" in sink.cut for each in found for sink in each.sinks) else ""
        events = "1 parked event waits"
        if waiting > 1 or more:
            events = f"{waiting}{more} parked events wait"
        print(f"\n{events} for a person: semel parked ls")


def _show_pipelines(found: Sequence[PipelineStatus]) -> None:
    show_table(
        ("pipeline", "run", "state", "process", "minibatch", "identity", "N"),
        [
            (
                each.pipeline,
                each.run,
                each.state.value + ("" if each.beat_age_s is None else f", {ago(each.beat_age_s)}"),
                f"{each.process} on {each.host}",
                _minibatch(each),
                _identity(each.identity),
                each.partitions,
            )
            for each in found
        ],
        right=("run", "N"),
    )


def _show_sinks(found: Sequence[PipelineStatus]) -> None:
    numbers = (
        "last OSN",
        "delivered",
        "transmitted",
        "pending",
        "in doubt",
        "rejected",
        "waiting",
        "skipped",
        "discarded",
        "blocked",
    )
    show_table(
        ("pipeline", "sink", "capability", *numbers, "oldest parked"),
        [
            (
                each.pipeline,
                sink.sink,
                sink.capability,
                sink.last_osn,
                sink.delivered,
                sink.transmitted,
                sink.pending_partitions,
                *(
                    _least(sink, count, "parked")
                    for count in (sink.in_doubt, sink.rejected, sink.waiting)
                ),
                *(
                    _least(sink, count, "parked", "outcomes")
                    for count in (sink.skipped, sink.discarded)
                ),
                _least(sink, sink.blocked_entities, "heads"),
                None if sink.oldest_s is None else ago(sink.oldest_s),
            )
            for each in found
            for sink in each.sinks
        ],
        right=numbers,
    )


def _least(sink: SinkStatus, count: int, *tables: str) -> str:
    """Write a number, with a + if a table that it is counted from was not read to its end."""
    return f"{count}{'+' if {*tables} & {*sink.cut} else ''}"


def _show_pacing(pipeline: PipelineStatus) -> None:
    """Print the newest marker of a paced pipeline, why it is there, and the latency."""
    pacing = pipeline.pacing
    if pacing is None:
        return
    reached = "no event yet"
    if pacing.p50_s is not None and pacing.p99_s is not None:
        reached = f"p50 about {pacing.p50_s:.2g} s, p99 about {pacing.p99_s:.2g} s"
    wanted = "" if pacing.latency_s is None else f" of {pacing.latency_s:g} s"
    print(
        f"\n{plain(pipeline.pipeline)}: marker {pacing.marker}, {plain(pacing.reason)}\n"
        f"{plain(pipeline.pipeline)}: latency{wanted}: {reached} (estimate)"
    )


def _show_rates(found: Sequence[PipelineStatus]) -> None:
    """Print throughput and latency of the newest minibatches, where a run wrote them."""
    rows = [
        (
            each.pipeline,
            sink,
            f"{rates.per_second(sink):.1f}",
            f"{rates.seconds_each:.3f}",
            f"{rates.seconds_max:.3f}",
            rates.minibatches,
        )
        for each in found
        if each.figures is not None and (rates := each.figures.rates) is not None
        for sink in rates.delivered
    ]
    if rows:
        print()
        numbers = ("events/s", "s/minibatch", "longest", "of the newest")
        show_table(("pipeline", "sink", *numbers), rows, right=numbers)


def _show_state(found: Sequence[PipelineStatus]) -> None:
    """Print the state that each query keeps, where a run wrote it."""
    rows = [
        (
            each.pipeline,
            state.operator,
            state.kind.value,
            state.rows,
            state.rows_updated,
            state.rows_removed,
            _megabytes(state.memory_bytes),
            f"{plain(state.changelogs_written)} / {plain(state.changelogs_loaded)}",
            f"{plain(state.snapshots_written)} / {plain(state.loads)}",
            f"{state.seconds_writing:.1f} / {_seconds(state.seconds_loading)}",
        )
        for each in found
        for state in (each.figures.state or () if each.figures is not None else ())
    ]
    if rows:
        print()
        numbers = ("rows", "updated", "removed", "memory")
        written = ("changelogs w/r", "snapshots w/r", "seconds w/r")
        headings = ("pipeline", "state", "kept as", *numbers, *written)
        show_table(headings, rows, right=(*numbers, *written))


def _megabytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _show_open(pipeline: PipelineStatus, sink: SinkStatus) -> None:
    """Print how much of the open minibatch is delivered, and why more is transmitted."""
    so_far, more = sink.delivered_in_open, (sink.transmitted or 0) - sink.last_osn
    if so_far is None or (so_far == 0 and more <= 0):
        return
    place = f"{plain(pipeline.pipeline)}, sink {plain(sink.sink)}"
    print(
        f"\n{place}: minibatch {pipeline.minibatch} is open: {so_far} of its events are delivered "
        f"so far. `transmitted` includes {max(more, 0)} of its output sequence numbers, `last OSN` "
        "and `delivered` count complete minibatches only"
    )


def _show_repeats(pipeline: PipelineStatus, sink: SinkStatus) -> None:
    """Print how many repeats of producers were dropped, if any."""
    count = 0 if pipeline.figures is None else pipeline.figures.repeats.get(sink.sink, 0)
    if count:
        place = f"{plain(pipeline.pipeline)}, sink {plain(sink.sink)}"
        print(f"\n{place}: events of the run dropped as repeats (drop_repeats): {count}")


def _show_resends(pipeline: PipelineStatus, sink: SinkStatus) -> None:
    """Print which resends are not done, and the outcome of the last one."""
    resends = sink.resends
    parts = [f"{resends.asked} to be sent"] if resends.asked else []
    parts += [f"{resends.sending} being sent"] if resends.sending else []
    last = resends.last
    if last is not None:
        from semel.operate import utc_text

        event = f"{plain(last.entity)}/{plain(last.id)}"
        asked = f", asked for by {plain(last.by)}" if last.by else ""
        outcome = f"{last.state.value} at {utc_text(last.at)} ({plain(last.why)})"
        parts.append(f"the last, {event}{asked}: {outcome}")
    if parts:
        place = f"{plain(pipeline.pipeline)}, sink {plain(sink.sink)}"
        print(f"\n{place}: resends: {'; '.join(parts)}")


_AFTER_RESTART = {
    "opaque": "the next start shows which of their events are in doubt",
    "repeatable": "the next start repeats, under the same keys, what may have been sent",
}


def _show_pending(pipeline: PipelineStatus, sink: SinkStatus) -> None:
    """Print what happens to the pending partitions of a run that is not running."""
    count = sink.pending_partitions
    if not count or pipeline.state not in ("gone", "silent", "ended"):
        return
    pending = "1 partition is pending" if count == 1 else f"{count} partitions are pending"
    then = _AFTER_RESTART.get(
        sink.capability or "", "the next start asks the destination what it has"
    )
    place = f"{plain(pipeline.pipeline)}, sink {plain(sink.sink)}"
    print(f"\n{place}: {pending}, and no run is active; {then}")


def _minibatch(status: PipelineStatus) -> str:
    if status.minibatch is None:
        return "finished" if status.finished else "none yet"
    return f"{status.minibatch} {'complete' if status.complete else 'open'}"


def _identity(described: Mapping[str, Any] | None) -> str:
    """Return an identity in a few words: `given: customer, payment_id`."""
    if described is None:
        return "unknown"
    names = [described.get("entity"), *described.get("event", []), *described.get("ordinals", [])]
    columns = ", ".join(name for name in names if name)
    increasing = " (increasing)" if described.get("increasing") else ""
    return f"{described.get('kind')}{f': {columns}' if columns else ''}{increasing}"
