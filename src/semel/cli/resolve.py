"""The command `semel resolve`: a person says what became of an event, or which rows are right."""

from __future__ import annotations

import getpass
import socket
from typing import Annotated, Any

import typer

from semel.cli.handles import Parked, find_event, read_events
from semel.cli.ledgers import LedgerOption, opened
from semel.cli.parked import count_behind
from semel.cli.showing import JsonOption, plain, show_json
from semel.cli.status import read_standing
from semel.errors import ConfigurationError
from semel.ledger import Ledger, Scribe
from semel.ledger.parked import resolve as resolve_parked
from semel.ledger.store import Store
from semel.protocol import Capability, ParkedState

EPILOG = (
    "Example: semel resolve @3f9a2c delivered --reason 'seen in the mailbox' "
    "--ledger sqlite:///charges.db"
)
_DECISIONS = {
    "delivered": ParkedState.DELIVERED,
    "resend": ParkedState.RESEND,
    "discard": ParkedState.DISCARDED,
}


def resolve(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="EVENT",
            help="As `semel parked ls` prints it: @3f9a2c, or PIPELINE/SINK/ENTITY/EVENT.",
            show_default=False,
        ),
    ],
    decision: Annotated[
        str,
        typer.Argument(
            metavar="delivered|resend|discard",
            help="It arrived; send it again; or give it up.",
            show_default=False,
        ),
    ],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the ledger.", show_default=False)],
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who says so.", show_default="user@host")
    ] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what became of an event that is in doubt or rejected.

    What waits behind it goes on as soon as the pipeline runs. May be repeated: the same decision
    twice changes nothing.
    """
    who = by or _me()
    if not reason.strip():
        raise ConfigurationError("--reason is empty: say why, for whoever reads the ledger later")
    if decision not in _DECISIONS:
        raise ConfigurationError(
            f"{decision!r} is no decision: an event is {' | '.join(_DECISIONS)}"
        )
    with opened(ledger) as (looked_at, store):
        told = _resolve_event(looked_at, store, subject, _DECISIONS[decision], (who, reason))
    if as_json:
        show_json(told)
    else:
        print(f"{told['event']}: {told['state']} (by {plain(who)})")
        print(told["next"])


def _resolve_event(
    ledger: Ledger, store: Store, typed: str, decision: ParkedState, said: tuple[str, str]
) -> dict[str, Any]:
    events = read_events(ledger)
    found = find_event(events, typed)
    row = resolve_parked(Scribe(store, found.pipeline), found.sink, found.key, decision, *said)
    standing = read_standing(ledger, found.pipeline)
    return {
        "event": found.handle,
        "state": row.state.value,
        "by": row.by,
        "reason": row.reason,
        "next": _next(found, decision, count_behind(found, events), standing),
    }


def _next(event: Parked, decision: ParkedState, behind: int, standing: dict[str, Any]) -> str:
    """Say what will happen now, and whether anybody runs who can do it."""
    if decision is not ParkedState.RESEND and not behind:
        return "nothing waits behind it"
    what = "it is sent" if decision is ParkedState.RESEND else f"{behind} events go on"
    if decision is ParkedState.RESEND and behind:
        what = f"it is sent, and the {behind} events behind it go on"
    sequenced = any(
        sink["sink"] == event.sink and sink["capability"] == Capability.SEQUENCED.value
        for sink in standing["sinks"]
    )
    place = "with the next minibatch of its partition" if sequenced else "before the next minibatch"
    name = plain(event.pipeline)
    if standing["state"] == "beating":
        return f"{what} {place}: run {standing['run']} of {name} is beating"
    return (
        f"pipeline {name} does not seem to run ({standing['state']}): {what} {place} "
        "once it is started"
    )


def _me() -> str:
    """Name the person at this terminal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no such user in this container
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
