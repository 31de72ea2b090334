"""The command `semel resolve`: a person decides about a parked event or a diverged minibatch."""

from __future__ import annotations

import getpass
import socket
from typing import Annotated

import typer

from semel.cli.options import JsonOption, LedgerOption, opened
from semel.cli.output import plain, show_json

EPILOG = (
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
