"""The command `semel resolve`: a person says what became of an event, or which rows are right."""

from __future__ import annotations

import getpass
import re
import socket
from typing import Annotated, Any

import typer

from semel.cli.event_names import Parked, find_event, sift_events, write_text
from semel.cli.options import LedgerOption, choose_pipeline, opened
from semel.cli.output import JsonOption, plain, show_json
from semel.cli.parked import count_behind
from semel.cli.status import read_standing
from semel.errors import ConfigurationError
from semel.events import Minibatch
from semel.ledger import Ledger, LedgerClient, judge_minibatch, key_text, resolve_parked
from semel.ledger.store import Store
from semel.protocol import Capability, Judgement, ParkedState

EPILOG = (
    "Example: semel resolve @3f9a2c delivered --reason 'seen in the mailbox' "
    "--ledger sqlite:///charges.db. Of a minibatch that diverged: semel resolve charges/1.57 "
    "as-recorded --reason 'the query sorted by a random number'"
)
_MINIBATCH = re.compile(r"(.+)/([0-9]{1,18})\.([0-9]{1,18})", re.DOTALL)
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
            help="As `semel parked ls` prints it: @3f9a2c, or PIPELINE/SINK/ENTITY/EVENT. Or a "
            "minibatch that diverged: PIPELINE/GENERATION.BATCH.",
            show_default=False,
        ),
    ],
    decision: Annotated[
        str,
        typer.Argument(
            metavar="DECISION",
            help="Of an event: delivered (it arrived), resend, or discard. Of a minibatch: "
            "as-recorded (what was delivered stands) or as-replayed (all of it is delivered anew).",
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
    """Say what became of an event that is in doubt or rejected, or which rows of a minibatch are
    right.

    What waits behind an event goes on as soon as the pipeline runs. A minibatch is judged while the
    query stands still, and the next start acts on it. May be repeated: the same decision twice
    changes nothing.
    """
    who = by or _me()
    if not reason.strip():
        raise ConfigurationError("--reason is empty: say why, for whoever reads the ledger later")
    if decision not in {*_DECISIONS, *Judgement}:
        raise ConfigurationError(
            f"{decision!r} is no decision: of an event it is {' | '.join(_DECISIONS)}, of a "
            f"minibatch {' | '.join(Judgement)}"
        )
    with opened(ledger) as (looked_at, store):
        if decision in _DECISIONS:
            told = _resolve_event(looked_at, store, subject, _DECISIONS[decision], (who, reason))
        else:
            told = _judge(looked_at, store, subject, Judgement(decision), (who, reason))
    if as_json:
        show_json(told)
    else:
        subject = told.get("event") or told["minibatch"]
        print(f"{subject}: {told['state']} (by {plain(who)})")
        print(told["next"])


def _resolve_event(
    ledger: Ledger, store: Store, typed: str, decision: ParkedState, said: tuple[str, str]
) -> dict[str, Any]:
    events, damaged = sift_events(ledger)
    found = find_event(events, typed, damaged)
    row = resolve_parked(
        LedgerClient(store, found.pipeline), found.sink, found.key, decision, *said
    )
    standing = read_standing(ledger, found.pipeline)
    return {
        "event": found.handle,
        "state": row.state.value,
        "by": row.by,
        "reason": row.reason,
        "next": _next(found, decision, count_behind(events)[found.key], standing),
    }


_JUDGED = {
    Judgement.AS_RECORDED: "what was delivered of it stands; where it was not complete, the other "
    "events that the query gives are delivered too",
    Judgement.AS_REPLAYED: "all that the query gives for it is delivered anew, also what was "
    "delivered before",
}


def _judge(
    ledger: Ledger, store: Store, typed: str, decision: Judgement, said: tuple[str, str]
) -> dict[str, Any]:
    named = _MINIBATCH.fullmatch(typed)
    if named is None:
        raise ConfigurationError(
            f"{typed!r} is no minibatch: {decision.value} is said of PIPELINE/GENERATION.BATCH, as "
            "in charges/1.57"
        )
    pipeline = named[1] if named[1] in ledger.pipelines() else key_text(named[1])
    standing = read_standing(ledger, choose_pipeline(ledger, pipeline))
    if standing["state"] == "beating":
        raise ConfigurationError(
            f"run {standing['run']} of pipeline {pipeline!r} is beating: a minibatch is judged "
            "while nobody works at it. Stop the query first"
        )
    minibatch = Minibatch(int(named[2]), int(named[3]))
    judge_minibatch(LedgerClient(store, pipeline), minibatch, decision, *said)
    return {
        "minibatch": f"{write_text(pipeline)}/{minibatch}",
        "state": decision.value,
        "by": said[0],
        "reason": said[1],
        "next": f"when the query is started again, {_JUDGED[decision]}",
    }


def _next(event: Parked, decision: ParkedState, behind: int, standing: dict[str, Any]) -> str:
    """Say what will happen now, and whether anybody runs who can do it."""
    if decision is not ParkedState.RESEND and not behind:
        return "nothing waits behind it"
    follow = "the event behind it follows" if behind == 1 else f"the {behind} behind it follow"
    if decision is not ParkedState.RESEND:
        what = follow
    else:
        what = f"it is sent, and {follow}," if behind else "it is sent"
    sequenced = any(
        sink["sink"] == event.sink and sink["capability"] == Capability.SEQUENCED.value
        for sink in standing["sinks"]
    )
    place = "with the next minibatch of its partition" if sequenced else "before the next minibatch"
    if decision is ParkedState.RESEND and not sequenced:
        place += ", once no earlier call can be on its way"
    name = plain(event.pipeline)
    if standing["state"] == "beating":
        return f"{what} {place}: run {standing['run']} of {name} is beating"
    return (
        f"pipeline {name} does not seem to run ({standing['state']}): once it is started, "
        f"{what} {place}"
    )


def _me() -> str:
    """Name the person at this terminal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no such user in this container
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
