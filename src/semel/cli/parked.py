"""The commands `semel parked ls` and `semel parked show`: what is kept out of the way."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from semel.cli.event_names import Parked, find_event, sift_events
from semel.cli.options import LedgerOption, choose_pipeline, opened, refuse_damaged
from semel.cli.output import (
    JsonOption,
    age_s,
    ago,
    plain,
    shortened,
    show_json,
    show_pairs,
    show_table,
)
from semel.cli.output import when as moment
from semel.ledger import PARKED_TABLE, SENT_AGAIN, DamagedRow, ParkedRow, decode_row, keys
from semel.ledger.store import Key
from semel.protocol import ParkedState

LS_EPILOG = (
    "Example: semel parked ls charges --ledger sqlite:///charges.db. The first two columns name an "
    "event for `semel parked show` and `semel resolve`: the short form or the long one."
)
SHOW_EPILOG = "Example: semel parked show @3f9a2c --ledger sqlite:///charges.db"
EventArgument = Annotated[
    str,
    typer.Argument(
        metavar="EVENT",
        help="As `semel parked ls` prints it: @3f9a2c, or PIPELINE/SINK/ENTITY/EVENT; what is in "
        "front of ENTITY may be left out.",
        show_default=False,
    ),
]

app = typer.Typer(
    help="Events in doubt, rejected, or waiting behind such a one.", no_args_is_help=True
)


@app.command("ls", epilog=LS_EPILOG)
def list_parked(
    pipeline: Annotated[
        str | None, typer.Argument(help="Only of this pipeline.", show_default=False)
    ] = None,
    also_final: Annotated[
        bool, typer.Option("--all", help="Also what is delivered, discarded or skipped by now.")
    ] = False,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """List parked events: those that wait for a person, and those that wait for their turn.

    State `held` is in doubt, `rejected` is a dead letter: both wait for `semel resolve`. `waiting`
    stands behind one of its entity; `resend` and `sending` are on their way.
    """
    with opened(ledger) as (looked_at, _):
        if pipeline is not None:
            choose_pipeline(looked_at, pipeline)
        events, damaged = sift_events(looked_at)
    behind = count_behind(events)
    damaged = [each for each in damaged if _is_of(each, pipeline)]
    chosen = [
        each
        for each in events
        if pipeline in (None, each.pipeline) and (also_final or not each.row.state.final)
    ]
    if as_json:
        show_json([_brief(each, behind) for each in chosen] + [_damaged(each) for each in damaged])
    elif not chosen and not damaged:
        print("nothing is parked")
    else:
        show_table(
            ("short", "event", "state", "why", "since", "resends", "behind"),
            [
                (
                    each.short,
                    each.handle,
                    each.row.state.value,
                    shortened(each.row.why) if sys.stdout.isatty() else each.row.why,
                    moment(each.row.at),
                    each.row.attempts,
                    behind[each.key],
                )
                for each in chosen
            ]
            + [("-", each.key, "damaged", each.what, None, None, None) for each in damaged],
            right=("resends", "behind"),
        )
    refuse_damaged(damaged)


def _is_of(row: DamagedRow, pipeline: str | None) -> bool:
    return pipeline is None or (row.key or "").startswith(keys.make_prefix(pipeline))


def _damaged(row: DamagedRow) -> dict[str, Any]:
    return {"key": row.key, "state": "damaged", "why": row.what}


@app.command("show", epilog=SHOW_EPILOG)
def show_parked(
    event: EventArgument, ledger: LedgerOption = None, as_json: JsonOption = False
) -> None:
    """Show everything about one parked event, with its payload."""
    with opened(ledger) as (looked_at, store):
        events, damaged = sift_events(looked_at)
        found = find_event(events, event, damaged)
        behind = count_behind(events)
        payload = decode_row(PARKED_TABLE, found.key, store.read([found.key])[found.key], dict)
    if as_json:
        show_json(_brief(found, behind) | {"row": payload})
        return
    row = found.row
    show_pairs(
        [
            ("event", found.handle),
            ("short", found.short),
            ("pipeline", found.pipeline),
            ("sink", found.sink),
            ("entity", row.shown or row.entity),
            *([("source partition", row.scope)] if row.scope != row.entity else []),
            ("event id", row.event),
            ("minibatch", row.minibatch),
            ("partition", f"{row.partition}, position {row.position}"),
            ("OSN", row.osn),
            ("state", f"{row.state.value}: {_meaning(row)}"),
            ("why", row.why),
            ("since", f"{moment(row.at)} ({ago(age_s(row.at))})"),
            ("resends", row.attempts),
            (_ARRIVED.get(row.state, "may have arrived"), "yes" if row.doubted else "no"),
            ("blocks its entity", "yes" if row.blocks and not row.state.final else "no"),
            ("wait behind it", behind[found.key]),
            *([("resolved by", row.by), ("reason", row.reason)] if row.by else []),
        ]
    )
    if row.trace is not None:
        print("traceback of the call, the first that failed so:")
        for line in row.trace.splitlines():
            print(f"  {plain(line)}")
    if row.value is None:
        print("payload: none yet; it comes when the query reads the event again")
        return
    print("payload:")
    for name, value in row.value.items():
        print(f"  {plain(name)}: {plain(repr(value))}")


MEANING = {
    ParkedState.HELD: "in doubt; a person decides",
    ParkedState.REJECTED: "nothing arrived and nothing will as it is; a person decides",
    ParkedState.WAITING: "behind an event of its entity",
    ParkedState.RESEND: "to be sent again; nobody has taken it yet",
    ParkedState.SENDING: "somebody took it and may be sending it",
    ParkedState.DELIVERED: "sent again, and the destination took it",
    ParkedState.DISCARDED: "a person discarded it",
    ParkedState.SKIPPED: "skipped by policy: it was in doubt, and is not sent again",
    ParkedState.RESENT: "was in doubt, and policy resend sent it again",
    ParkedState.LATE: "a replaced attempt's call ended late; it may have arrived twice",
}


_ARRIVED = {
    ParkedState.DELIVERED: "was in doubt",
    ParkedState.RESENT: "may have arrived twice",
    ParkedState.LATE: "may have arrived twice",
}
"""What a doubt means once the event has come to its end; else: that it may have arrived."""


def _meaning(row: ParkedRow) -> str:
    if row.state is ParkedState.DELIVERED and row.why != SENT_AGAIN:
        return "a person said that it arrived" if row.by else "it arrived"
    return MEANING[row.state]


def count_behind(events: list[Parked]) -> dict[Key, int]:
    """Say of each event how many of its entity wait for it."""
    entities: dict[tuple[str, str, str, str], list[Parked]] = {}
    for each in events:
        entity = (each.pipeline, each.sink, each.row.entity, each.row.scope)
        entities.setdefault(entity, []).append(each)
    behind: dict[Key, int] = {}
    for members in entities.values():
        waiting = 0
        for each in reversed(members):  # they stand in the order in which they came
            row = each.row
            behind[each.key] = waiting if row.blocks and not row.state.final else 0
            waiting += row.state is ParkedState.WAITING
    return behind


def _brief(event: Parked, behind: dict[Key, int]) -> dict[str, Any]:
    row = event.row
    return {
        "event": event.handle,
        "short": event.short,
        "pipeline": event.pipeline,
        "sink": event.sink,
        "entity": row.entity,
        "id": row.event,
        "minibatch": str(row.minibatch),
        "state": row.state.value,
        "why": row.why,
        "since": moment(row.at),
        "resends": row.attempts,
        "behind": behind[event.key],
    }
