"""The command `semel status`: who runs each pipeline, how far it is, and what waits for whom."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from semel.cli.ledgers import LedgerOption, choose_pipeline, opened
from semel.cli.showing import JsonOption, age_s, ago, plain, show_json, show_table
from semel.cli.showing import when as moment
from semel.ledger import Ledger
from semel.protocol import Capability, ParkedState, PartitionState

EPILOG = (
    "Example: semel status charges --check --ledger sqlite:///charges.db. "
    "Exit status 1 with --check when something waits for a person."
)
SILENT_AFTER_S = 30.0
"""A run that has not said for so long that it lives is not called beating any more."""

_HELD, _REJECTED = ParkedState.HELD.value, ParkedState.REJECTED.value
_TURN = (ParkedState.WAITING.value, ParkedState.RESEND.value, ParkedState.SENDING.value)


def status(
    pipeline: Annotated[
        str | None, typer.Argument(help="Only this pipeline.", show_default=False)
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 when something waits for a person.")
    ] = False,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say of each pipeline who runs it, which minibatch is open, and what is parked.

    A run is `beating`, `ended`, `gone` (its process is not there any more) or `silent` (nobody
    knows). `last OSN` is the sum over partitions: how many events got an output sequence number.
    """
    with opened(ledger) as (looked_at, _):
        names = looked_at.pipelines() if pipeline is None else [pipeline]
        if pipeline is not None:
            choose_pipeline(looked_at, pipeline)
        found = [read_standing(looked_at, name) for name in names]
    if as_json:
        show_json(found if pipeline is None else found[0])
    elif not found:
        print("no pipeline has run with this ledger yet")
    else:
        _show(found)
    if check and any(each["waits_for_a_person"] for each in found):
        raise typer.Exit(1)


def read_standing(ledger: Ledger, pipeline: str) -> dict[str, Any]:
    """Give everything that `status` tells of one pipeline."""
    summary = ledger.summary(pipeline)
    sinks = [
        {
            "sink": name,
            "capability": sink["capability"],
            "last_osn": sink["delivered"],
            "pending_partitions": sink["partitions"].get(PartitionState.PENDING.value, 0),
            "in_doubt": sink["parked"].get(_HELD, 0),
            "rejected": sink["parked"].get(_REJECTED, 0),
            "waiting": sum(sink["parked"].get(state, 0) for state in _TURN),
            "blocked_entities": sink["blocked"],
        }
        for name, sink in summary["sinks"].items()
    ]
    return {
        "pipeline": pipeline,
        "run": summary["run"],
        "state": state_of(summary),
        "since": moment(summary["beat_at"]),
        "seconds_since": None if summary["run"] is None else round(age_s(summary["beat_at"]), 1),
        "host": summary["host"],
        "process": summary["pid"],
        "minibatch": summary["minibatch"],
        "complete": summary["complete"],
        "identity": summary["identity"],
        "partitions": summary["partitions"],
        "waits_for_a_person": sum(each["in_doubt"] + each["rejected"] for each in sinks),
        "sinks": sinks,
    }


def state_of(summary: dict[str, Any]) -> str:
    """Say whether the run that has a pipeline lives, as far as can be known from here."""
    if summary["run"] is None:
        return "never run"
    if summary["ended"]:
        return "ended"
    if summary["gone"]:
        return "gone"
    return "silent" if age_s(summary["beat_at"]) > SILENT_AFTER_S else "beating"


def _show(found: list[dict[str, Any]]) -> None:
    show_table(
        ("pipeline", "run", "state", "process", "minibatch", "identity", "N"),
        [
            (
                each["pipeline"],
                each["run"],
                _state(each),
                f"{each['process']} on {each['host']}",
                _minibatch(each),
                _identity(each["identity"]),
                each["partitions"],
            )
            for each in found
        ],
        right=("run", "N"),
    )
    print()
    numbers = ("last OSN", "pending", "in doubt", "rejected", "waiting", "blocked")
    show_table(
        ("pipeline", "sink", "capability", *numbers),
        [
            (
                each["pipeline"],
                sink["sink"],
                sink["capability"],
                sink["last_osn"],
                sink["pending_partitions"],
                sink["in_doubt"],
                sink["rejected"],
                sink["waiting"],
                sink["blocked_entities"],
            )
            for each in found
            for sink in each["sinks"]
        ],
        right=numbers,
    )
    for each in found:
        if each["state"] in ("gone", "silent", "ended"):
            _tell_pending(each)
    waiting = sum(each["waits_for_a_person"] for each in found)
    if waiting:
        events = "1 parked event waits" if waiting == 1 else f"{waiting} parked events wait"
        print(f"\n{events} for a person: semel parked ls")


def _tell_pending(standing: dict[str, Any]) -> None:
    """Say what becomes of partitions that nobody works at."""
    for sink in standing["sinks"]:
        count = sink["pending_partitions"]
        if not count:
            continue
        pending = "1 partition is" if count == 1 else f"{count} partitions are"
        opaque = sink["capability"] == Capability.OPAQUE.value
        then = (
            "what of it is in doubt shows after the next start"
            if opaque
            else "the destination is asked at the next start"
        )
        place = f"{plain(standing['pipeline'])}, sink {plain(sink['sink'])}"
        print(f"\n{place}: {pending} pending, and nobody runs it; {then}")


def _state(standing: dict[str, Any]) -> str:
    age = standing["seconds_since"]
    return str(standing["state"]) + ("" if age is None else f", {ago(age)}")


def _minibatch(standing: dict[str, Any]) -> str:
    if standing["minibatch"] is None:
        return "none yet"
    return f"{standing['minibatch']} {'complete' if standing['complete'] else 'open'}"


def _identity(described: dict[str, Any] | None) -> str:
    """Tell an identity in a few words: `given: customer, payment_id`."""
    if described is None:
        return "unknown"
    names = [described.get("entity"), *described.get("event", []), *described.get("ordinals", [])]
    columns = ", ".join(name for name in names if name)
    increasing = " (increasing)" if described.get("increasing") else ""
    return f"{described['kind']}{f': {columns}' if columns else ''}{increasing}"
