"""The commands `semel ledger ls`, `find` and `check`: the rows, one event, and whether all fits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any

import typer

from semel.cli.event_names import read_moment, read_value, write_id
from semel.cli.options import (
    LedgerOption,
    choose_pipeline,
    choose_sinks,
    opened,
    refuse_damaged,
)
from semel.cli.output import JsonOption, plain, show_json, show_table
from semel.cli.output import when as moment
from semel.errors import ConfigurationError
from semel.events.event import EventID
from semel.ledger import TABLES, DamagedRow, Known, Ledger, Trace, check_ledger
from semel.protocol import ParkedState

LS_EPILOG = (
    "Example: semel ledger ls parked --prefix charges/ --limit 20 --ledger sqlite:///charges.db"
)
FIND_EPILOG = (
    "Example: semel ledger find --entity c42 --event 7 --ledger sqlite:///charges.db. "
    "Exit status 1 when no sink has seen it."
)
CHECK_EPILOG = (
    "Example: semel ledger check --ledger sqlite:///charges.db. "
    "Exit status 1 when something is wrong."
)
_UNSEEN = ("not seen", "pending")

app = typer.Typer(
    help="The record of what was delivered: its rows, and one event.", no_args_is_help=True
)


@app.command("ls", epilog=LS_EPILOG)
def list_rows(
    table: Annotated[
        str | None, typer.Argument(help=f"One of {', '.join(TABLES)}.", show_default=False)
    ] = None,
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="Only keys that start so.", show_default=False)
    ] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many rows.")] = 100,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the rows of a table with their payloads expanded; without TABLE, count the tables."""
    if table is not None and table not in TABLES:
        raise ConfigurationError(f"there is no table {table!r}; there are {', '.join(TABLES)}")
    with opened(ledger) as (looked_at, _):
        if table is None:
            counts = [(name, looked_at.count(name)) for name in TABLES]
            if as_json:
                show_json([{"table": name, "rows": count} for name, count in counts])
            else:
                show_table(("table", "rows"), counts, right=("rows",))
            return
        rows = looked_at.listed(table, prefix, limit + 1)
    more, rows = len(rows) > limit, rows[:limit]
    damaged = [row for _, row in rows if isinstance(row, DamagedRow)]
    if as_json:
        show_json([_row_to_json(key, row) for key, row in rows])
        refuse_damaged(damaged)
        return
    for key, row in rows:
        print(plain(key))
        if isinstance(row, DamagedRow):
            print(f"    damaged: {row.what}")
        else:
            print(plain(f"    {json.dumps(row, ensure_ascii=False, sort_keys=True)}"))
    if more:
        print(f"... more than {limit} rows: --limit, or --prefix")
    elif not rows:
        print("no rows")
    refuse_damaged(damaged)


def _row_to_json(key: str, row: dict[str, Any] | DamagedRow) -> dict[str, Any]:
    if isinstance(row, DamagedRow):
        return {"key": key, "payload": None, "damaged": row.what}
    return {"key": key, "payload": row}


@app.command("check", epilog=CHECK_EPILOG)
def check(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Look at every row of the ledger: can it be read, and does it agree with the other rows.

    Nothing is written. It may be run while pipelines run.
    """
    with opened(ledger) as (_, store):
        count, problems = check_ledger(store)
    if as_json:
        found = [{"table": each.table, "key": each.key, "what": each.what} for each in problems]
        show_json({"rows": count, "problems": found})
    elif problems:
        show_table(("table", "key", "what"), problems)
    else:
        print(f"{count} rows, and nothing is wrong with them")
    if problems:
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
            help="The event id; repeat it where several columns are the id. A timestamp as "
            "2026-11-16T10:00:00Z, or in UTC without a zone.",
            show_default=False,
        ),
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(help="Which pipeline, if there are several.", show_default=False)
    ] = None,
    sink: Annotated[str | None, typer.Option(help="Only at this sink.", show_default=False)] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what became of one event at each sink; without --event, what is known of the entity.

    An event is delivered (a record says so), handled (the ledger has passed its id), discarded,
    skipped by policy, in doubt, parked, pending (an attempt has its partition, and only the
    destination knows how far it came) or not seen.
    """
    with opened(ledger) as (looked_at, _):
        name = choose_pipeline(looked_at, pipeline)
        sinks = choose_sinks(looked_at, name, sink)
        if not event:
            known = [each for at in sinks for each in looked_at.about(name, entity, at)]
            _tell_entity(known, as_json=as_json)
            seen = any(known)
        else:
            meant = _meant(event, looked_at.id_forms(name))
            traces = [_trace(looked_at, name, entity, meant, at) for at in sinks]
            _tell_event(traces, as_json=as_json)
            seen = any(trace.state not in _UNSEEN for trace in traces)
    if not seen:
        raise typer.Exit(1)


def _meant(typed: list[str], forms: Sequence[str | None]) -> list[EventID]:
    """Give every id that may be meant: digits are a number, or a text of digits; what reads as a
    date or a timestamp is one where the id is.
    """
    known = forms if len(forms) == len(typed) else [None] * len(typed)
    meanings = [
        [*read_moment(text, form), *read_value(text)]
        for text, form in zip(typed, known, strict=True)
    ]
    return [each if len(each) > 1 else each[0] for each in product(*meanings)]


def _trace(ledger: Ledger, pipeline: str, entity: str, meant: list[EventID], sink: str) -> Trace:
    """Look for every id that may be meant."""
    found = [trace for each in meant for trace in ledger.find(pipeline, entity, each, sink)]
    return next((trace for trace in found if trace.state not in _UNSEEN), found[0])


def _tell_event(traces: list[Trace], *, as_json: bool) -> None:
    if as_json:
        show_json([_trace_to_json(each) for each in traces])
        return
    show_table(
        ("sink", "state", "when", "minibatch", "attempt", "OSN", "why"),
        [
            (
                each.sink,
                each.state,
                moment(each.at),
                each.minibatch,
                each.attempt,
                _numbers(each.osn),
                each.why,
            )
            for each in traces
        ],
    )


def _trace_to_json(trace: Trace) -> dict[str, Any]:
    return {
        "sink": trace.sink,
        "state": trace.state,
        "when": moment(trace.at),
        "minibatch": None if trace.minibatch is None else str(trace.minibatch),
        "attempt": trace.attempt,
        "osn": None if trace.osn is None else list(trace.osn),
        "why": trace.why,
    }


def _numbers(osn: tuple[int, int] | None) -> str | None:
    """Tell an OSN, or the range of the span in which the event's is."""
    if osn is None:
        return None
    return str(osn[0]) if osn[0] == osn[1] else f"{osn[0]}..{osn[1]}"


def _tell_entity(known: list[Known], *, as_json: bool) -> None:
    if as_json:
        show_json([_known_to_json(each) for each in known])
        return
    show_table(
        ("sink", "handled up to", "single ids", "parked", "blocked", "wait"),
        [
            (
                each.sink,
                None if each.upto is None else write_id(each.upto),
                len(each.ids) or None,
                len([row for _, row in each.parked if not row.state.final]),
                "yes" if each.heads else "no",
                _waiting(each),
            )
            for each in known
        ],
        right=("single ids", "parked", "wait"),
    )


def _known_to_json(known: Known) -> dict[str, Any]:
    return {
        "sink": known.sink,
        "handled_up_to": known.upto,
        "handled_ids": known.ids.to_json(),
        "parked": [
            {"id": row.event, "state": row.state.value, "minibatch": str(row.minibatch)}
            for _, row in known.parked
        ],
        "blocked": bool(known.heads),
        "waiting": _waiting(known),
    }


def _waiting(known: Known) -> int:
    return sum(row.state is ParkedState.WAITING for _, row in known.parked)
