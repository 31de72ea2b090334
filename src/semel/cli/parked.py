"""The commands on parked events: `semel parked ls` and `show`, and `semel resolve`."""

from __future__ import annotations

import getpass
import socket
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.options import JsonOption, LedgerOption, opened
from semel.cli.output import ago, plain, shorten, show_json, show_pairs, show_table

if TYPE_CHECKING:
    from semel.operate import ParkedEvent, ParkedEvents

LS_EPILOG = (
    "Example: semel parked ls charges --ledger sqlite:///charges.db. The first two columns are the "
    "names of an event for `semel parked show` and `semel resolve`: short and full."
)
SHOW_EPILOG = "Example: semel parked show @3f9a2c --ledger sqlite:///charges.db"
EventArgument = Annotated[
    str,
    typer.Argument(
        metavar="EVENT",
        help="As `semel parked ls` prints it: @3f9a2c, or PIPELINE/SINK/ENTITY/EVENT; the parts "
        "before ENTITY may be left out.",
        show_default=False,
    ),
]

app = typer.Typer(
    help="Events that are in doubt, rejected, or waiting behind one of these.",
    no_args_is_help=True,
)


@app.command("ls", epilog=LS_EPILOG)
def list_parked(
    pipeline: Annotated[
        str | None, typer.Argument(help="Only this pipeline.", show_default=False)
    ] = None,
    also_final: Annotated[
        bool, typer.Option("--all", help="Also events that are delivered, discarded or skipped.")
    ] = False,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """List parked events: those that wait for a person, and those that wait for another event.

    State `held` is in doubt, `rejected` is a dead letter: both wait for `semel resolve`. `waiting`
    is behind another event of its entity; `resend` and `sending` are about to be sent again.
    """
    from semel import operate

    with opened(ledger) as looked_at:
        found = operate.list_parked(looked_at, pipeline, also_final=also_final)
    if as_json:
        show_json(found.to_json())
    elif not found.events and not found.damaged:
        print("nothing is parked")
    else:
        _show_list(found)
    operate.refuse_damaged(found.damaged)


def _show_list(found: ParkedEvents) -> None:
    from semel.operate import utc_text

    show_table(
        ("short", "event", "state", "why", "since", "resends", "behind"),
        [
            (
                each.short,
                each.handle,
                each.row.state.value,
                shorten(each.row.why) if sys.stdout.isatty() else each.row.why,
                utc_text(each.row.at),
                each.row.attempts,
                each.behind,
            )
            for each in found.events
        ]
        + [("-", each.key, "damaged", each.what, None, None, None) for each in found.damaged],
        right=("resends", "behind"),
    )


@app.command("show", epilog=SHOW_EPILOG)
def show_parked(
    event: EventArgument, ledger: LedgerOption = None, as_json: JsonOption = False
) -> None:
    """Show everything about one parked event, with its payload."""
    from semel.operate import read_parked_event

    with opened(ledger) as looked_at:
        found, row = read_parked_event(looked_at, event)
    if as_json:
        show_json(found.to_json() | {"row": row})
    else:
        _show_event(found)


def _show_event(found: ParkedEvent) -> None:
    from semel.operate import age_s, utc_text

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
            ("state", f"{row.state.value}: {found.meaning}"),
            ("why", row.why),
            ("since", f"{utc_text(row.at)} ({ago(age_s(row.at))})"),
            ("resends", row.attempts),
            (found.doubt, "yes" if row.doubted else "no"),
            ("blocks its entity", "yes" if found.blocks else "no"),
            ("waiting behind it", found.behind),
            *([("resolved by", row.by), ("reason", row.reason)] if row.by else []),
        ]
    )
    if row.trace is not None:
        print("traceback of the first call that failed with this error:")
        for line in row.trace.splitlines():
            print(f"  {plain(line)}")
    if row.value is None:
        print("payload: none yet; it is recorded when the query reads the event again")
        return
    print("payload:")
    for name, value in row.value.items():
        print(f"  {plain(name)}: {plain(repr(value))}")


RESOLVE_EPILOG = (
    "Example: semel resolve @3f9a2c delivered --reason 'seen in the mailbox' "
    "--ledger sqlite:///charges.db. For a minibatch that diverged: semel resolve charges/1.57 "
    "as-recorded --reason 'the query sorted by a random number'"
)


def resolve(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="EVENT",
            help="As `semel parked ls` prints it: @3f9a2c, or PIPELINE/SINK/ENTITY/EVENT. Or a "
            "minibatch that diverged: PIPELINE/GENERATION.BATCH.",
            show_default=False,
        ),
    ],
    decision: Annotated[
        str,
        typer.Argument(
            metavar="DECISION",
            help="For an event: delivered (it arrived), resend, or discard. For a minibatch: "
            "as-recorded (the delivered events stand) or as-replayed (all of it is delivered "
            "again).",
            show_default=False,
        ),
    ],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the ledger.", show_default=False)],
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who decides.", show_default="user@host")
    ] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decide what happens to an event that is in doubt or rejected, or which rows of a diverged
    minibatch are right.

    Events that wait behind a resolved event continue as soon as the pipeline runs. A minibatch is
    judged while the query is stopped; the next start acts on it. The command may be repeated: the
    same decision again changes nothing.
    """
    from semel.operate import record_decision

    who = by or _user_at_host()
    with opened(ledger) as looked_at:
        decided = record_decision(looked_at, subject, decision, by=who, reason=reason)
    if as_json:
        show_json(decided.to_json())
    else:
        print(f"{decided.subject}: {decided.state.value} (by {plain(who)})")
        print(plain(decided.next))


def _user_at_host() -> str:
    """Return the name of the person at this terminal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # this container has no such user
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
