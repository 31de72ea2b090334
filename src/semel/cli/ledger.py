"""The commands `semel ledger ls`, `find` and `check`: rows, one event, and consistency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import JsonOption, LedgerOption, opened
from semel.cli.output import plain, show_json, show_table

if TYPE_CHECKING:
    from semel.ledger import DamagedRow, EntityTrace, Trace

LS_EPILOG = (
    "Example: semel ledger ls parked --prefix charges/ --limit 20 --ledger sqlite:///charges.db"
)
FIND_EPILOG = (
    "Example: semel ledger find --entity c42 --event 7 --ledger sqlite:///charges.db. "
    "Exit status 1 when no sink has seen it."
)
CHECK_EPILOG = (
    "Example: semel ledger check --ledger sqlite:///charges.db. Exit status 1 when it finds a "
    "problem."
)

PRUNE_EPILOG = "Example: semel ledger prune --audit audit --days 400"

app = typer.Typer(
    help="The record of what was delivered: its rows, and one event.",
    no_args_is_help=True,
    epilog="Example: semel ledger ls --ledger sqlite:///charges.db",
)


@app.command("ls", epilog=LS_EPILOG)
def list_rows(
    table: Annotated[
        str | None,
        typer.Argument(
            help="One of pipelines, owners, open, streams, events, sequences, parked, heads, "
            "outcomes, journal, inbox, inbox_ends, inbox_readers, counters, producers, "
            "markers, resets, names.",
            show_default=False,
        ),
    ] = None,
    prefix: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Only keys that start with this.", show_default=False),
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many rows.")] = 100,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the rows of a table with their payloads expanded; without TABLE, count the rows of each
    table.
    """
    from semel.operate import count_rows

    with opened(ledger) as looked_at:
        if table is not None:
            rows = looked_at.listed(table, prefix, limit + 1)
        else:
            _show_counts(count_rows(looked_at), as_json=as_json)
            return
    _show_rows(rows[:limit], limit, more=len(rows) > limit, as_json=as_json)


def _show_counts(counts: Sequence[tuple[str, int]], *, as_json: bool) -> None:
    if as_json:
        show_json([{"table": name, "rows": count} for name, count in counts])
    else:
        show_table(("table", "rows"), counts, right=("rows",))


def _show_rows(
    rows: Sequence[tuple[str, dict[str, Any] | DamagedRow]],
    limit: int,
    *,
    more: bool,
    as_json: bool,
) -> None:
    from semel.events.encoding import json_text
    from semel.operate import refuse_damaged

    damaged = {key: row for key, row in rows if not isinstance(row, dict)}
    if as_json:
        show_json(
            [
                {"key": key, "payload": None, "damaged": damaged[key].what}
                if key in damaged
                else {"key": key, "payload": row}
                for key, row in rows
            ]
        )
        refuse_damaged([*damaged.values()])
        return
    for key, row in rows:
        print(plain(key))
        if key in damaged:
            print(f"    damaged: {damaged[key].what}")
        else:
            print(plain(f"    {json_text(row)}"))
    if more:
        print(f"... more than {limit} rows: pass a higher --limit, or --prefix")
    elif not rows:
        print("no rows")
    refuse_damaged([*damaged.values()])


@app.command("check", epilog=CHECK_EPILOG)
def check(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Check every row of the ledger: that it can be read, and that it agrees with the other rows.

    Nothing is written. The command may run while pipelines run.
    """
    from semel.operate import check_rows

    with opened(ledger) as looked_at:
        found = check_rows(looked_at)
    if as_json:
        show_json(found.to_json())
    elif found.problems:
        show_table(("table", "key", "what"), found.problems)
    else:
        print(f"{found.rows} rows, no problems")
    if found.problems:
        raise typer.Exit(1)


@app.command("find", epilog=FIND_EPILOG)
def find(
    entity: Annotated[
        str,
        typer.Option(
            help="The entity; with position identity the source partition: topic/3.",
            show_default=False,
        ),
    ],
    event: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="The event id; repeat the option if the id has several columns. A timestamp is "
            "2026-11-16T10:00:00Z; without a zone it is UTC.",
            show_default=False,
        ),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(help="The pipeline, if the ledger has several.", show_default=False),
    ] = None,
    sink: Annotated[str | None, typer.Option(help="Only this sink.", show_default=False)] = None,
    audit: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="The audit log of the pipeline, which is asked where the ledger has no record of "
            "the event.",
            show_default=False,
        ),
    ] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what the ledger knows of one event at each sink; without --event, of the entity.

    An event is delivered (there is a record of it), handled (the ledger is past its id),
    discarded, skipped by policy, in doubt, parked, pending (an attempt has its partition, and only
    the destination knows how far it came) or not seen.
    """
    from semel.operate import find_entity, find_event, is_seen

    with opened(ledger) as looked_at:
        if event:
            traces = find_event(looked_at, entity, event, pipeline, sink, audit)
            _show_traces(traces, as_json=as_json)
            seen = any(map(is_seen, traces))
        else:
            known = find_entity(looked_at, entity, pipeline, sink)
            _show_entity(known, as_json=as_json)
            seen = any(known)
    if not seen:
        raise typer.Exit(1)


@app.command("prune", epilog=PRUNE_EPILOG)
def prune(
    audit: Annotated[
        str, typer.Option(metavar="FOLDER", help="The audit log.", show_default=False)
    ],
    days: Annotated[int, typer.Option(min=1, help="How many days to keep.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Remove the old days of an audit log, of every pipeline in it. The ledger prunes itself."""
    from semel.operate import prune_audit

    removed = prune_audit(audit, days)
    if as_json:
        show_json(removed)
    for name, old in {} if as_json else removed.items():
        print(plain(f"{name}: removed {len(old)} days, {old[0]} to {old[-1]}"))
    if not removed and not as_json:
        print(f"nothing is older than {days} days")


def _show_traces(traces: Sequence[Trace], *, as_json: bool) -> None:
    from semel.operate import trace_to_json, utc_text

    if as_json:
        show_json([{**trace_to_json(each), "source": each.source} for each in traces])
        return
    show_table(
        ("sink", "state", "when", "minibatch", "attempt", "OSN", "source", "why"),
        [
            (
                each.sink,
                each.state,
                utc_text(each.at),
                each.minibatch,
                each.attempt,
                _range(each.osn),
                each.source,
                each.why,
            )
            for each in traces
        ],
    )


def _range(osn: tuple[int, int] | None) -> str | None:
    """Return an OSN, or the range of OSNs of the span that holds the event."""
    if osn is None:
        return None
    return str(osn[0]) if osn[0] == osn[1] else f"{osn[0]}..{osn[1]}"


def _show_entity(known: Sequence[EntityTrace], *, as_json: bool) -> None:
    from semel.operate import entity_to_json, write_id

    if as_json:
        show_json([entity_to_json(each) for each in known])
        return
    show_table(
        ("sink", "handled up to", "single ids", "parked", "blocked", "waiting"),
        [
            (
                each.sink,
                None if each.upto is None else write_id(each.upto),
                len(each.ids) or None,
                len([row for _, row in each.parked if not row.state.final]),
                "yes" if each.heads else "no",
                each.waiting,
            )
            for each in known
        ],
        right=("single ids", "parked", "waiting"),
    )
