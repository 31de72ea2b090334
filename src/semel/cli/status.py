"""The command `semel status`: who runs each pipeline, how far it is, and what waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from semel.cli.options import LedgerOption, choose_pipeline, opened, refuse_damaged
from semel.cli.output import JsonOption, age_s, ago, plain, show_json, show_table
from semel.cli.output import when as moment
from semel.ledger import OWNERS_TABLE, Ledger
from semel.protocol import Capability, ParkedState, PartitionState

EPILOG = (
    "Example: semel status charges --check --ledger sqlite:///charges.db. "
    "Exit status 1 with --check when something waits for a person."
)
WATCH_S = 10.0
"""For so long it is watched whether a run beats, on the clock of this process alone; one that lives
beats every 3 seconds.
"""

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

    A run is `beating`, `ended`, `gone` (its process is not there any more) or `silent` (it did not
    beat while it was watched, for up to 10 seconds). `last OSN` is the sum over partitions: how
    many events got an output sequence number. `delivered` of them are: what is in doubt, rejected,
    waiting, skipped (policy `skip`) or discarded (by a person) is not. `transmitted` is the same
    sum of the last numbers that are known to have reached the destination; it is less where the
    last events are parked.
    """
    with opened(ledger) as (looked_at, _):
        names = looked_at.pipelines() if pipeline is None else [pipeline]
        if pipeline is not None:
            choose_pipeline(looked_at, pipeline)
        found = read_standings(looked_at, names)
    damaged = [row for each in found for row in each.pop("damaged_rows")]
    if as_json:
        show_json(found if pipeline is None else found[0])
    elif not found:
        print("no pipeline has run with this ledger yet")
    else:
        _show(found)
    refuse_damaged(damaged)
    if check and any(each["waits_for_a_person"] for each in found):
        raise typer.Exit(1)


def read_standing(ledger: Ledger, pipeline: str) -> dict[str, Any]:
    """Give everything that `status` tells of one pipeline; watch whether it beats."""
    [found] = read_standings(ledger, [pipeline])
    return found


def read_standings(ledger: Ledger, pipelines: Sequence[str]) -> list[dict[str, Any]]:
    """Give the same for several pipelines, which are watched together."""
    moving = ledger.watch(pipelines, WATCH_S)
    return [_standing(ledger, name, moves=name in moving) for name in pipelines]


def _standing(ledger: Ledger, pipeline: str, *, moves: bool) -> dict[str, Any]:
    summary = ledger.summary(pipeline)
    sinks = [
        {
            "sink": name,
            "capability": sink["capability"],
            "last_osn": sink["last_osn"],
            "delivered": sink["delivered"],
            "transmitted": None if summary["finished"] else sum(sink["transmitted"].values()),
            "pending_partitions": sink["partitions"].get(PartitionState.PENDING.value, 0),
            "in_doubt": sink["parked"].get(_HELD, 0),
            "rejected": sink["parked"].get(_REJECTED, 0),
            "waiting": sum(sink["parked"].get(state, 0) for state in _TURN),
            "skipped": sink["parked"].get(ParkedState.SKIPPED.value, 0),
            "discarded": sink["parked"].get(ParkedState.DISCARDED.value, 0),
            "blocked_entities": sink["blocked"],
            "resends": _resends(sink),
        }
        for name, sink in summary["sinks"].items()
    ]
    return {
        "pipeline": pipeline,
        "run": summary["run"],
        "state": _state_of(summary, moves=moves),
        "since": moment(summary["beat_at"]),
        "seconds_since": None if summary["run"] is None else round(age_s(summary["beat_at"]), 1),
        "host": summary["host"],
        "process": summary["pid"],
        "minibatch": summary["minibatch"],
        "complete": summary["complete"],
        "finished": summary["finished"],
        "inputs": summary["inputs"],
        "identity": summary["identity"],
        "partitions": summary["partitions"],
        "waits_for_a_person": sum(each["in_doubt"] + each["rejected"] for each in sinks),
        "sinks": sinks,
        "damaged": [
            {"table": row.table, "key": row.key, "what": row.what} for row in summary["damaged"]
        ],
        "damaged_rows": summary["damaged"],
    }


def _resends(sink: dict[str, Any]) -> dict[str, Any]:
    """Say how many events are to be sent again, how many are being sent, and what came of the last
    one.
    """
    last = sink["last_resend"]
    return {
        "asked": sink["parked"].get(ParkedState.RESEND.value, 0),
        "sending": sink["parked"].get(ParkedState.SENDING.value, 0),
        "last": None if last is None else {**last, "at": moment(last["at"])},
    }


def _state_of(summary: dict[str, Any], *, moves: bool) -> str:
    """Say whether the run that has a pipeline lives, as far as can be known from here."""
    if summary["run"] is None:
        unread = any(row.table == OWNERS_TABLE for row in summary["damaged"])
        return "unknown" if unread else "never run"
    if summary["ended"]:
        return "ended"
    if summary["gone"]:
        return "gone"
    return "beating" if moves else "silent"


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
    told = (
        ("last OSN", "last_osn"),
        ("delivered", "delivered"),
        ("transmitted", "transmitted"),
        ("pending", "pending_partitions"),
        ("in doubt", "in_doubt"),
        ("rejected", "rejected"),
        ("waiting", "waiting"),
        ("skipped", "skipped"),
        ("discarded", "discarded"),
        ("blocked", "blocked_entities"),
    )
    numbers = tuple(title for title, _ in told)
    show_table(
        ("pipeline", "sink", "capability", *numbers),
        [
            (
                each["pipeline"],
                sink["sink"],
                sink["capability"],
                *("-" if sink[name] is None else sink[name] for _, name in told),
            )
            for each in found
            for sink in each["sinks"]
        ],
        right=numbers,
    )
    for each in found:
        for row in each["damaged"]:
            print(f"\ndamaged: {plain(row['table'])} {plain(row['key'])}: {row['what']}")
        _tell_resends(each)
        if each["state"] in ("gone", "silent", "ended"):
            _tell_pending(each)
    waiting = sum(each["waits_for_a_person"] for each in found)
    if waiting:
        events = "1 parked event waits" if waiting == 1 else f"{waiting} parked events wait"
        print(f"\n{events} for a person: semel parked ls")


def _tell_resends(standing: dict[str, Any]) -> None:
    """Say which resends are on their way, and what came of the last one."""
    for sink in standing["sinks"]:
        told = sink["resends"]
        parts = [f"{told['asked']} to be sent"] if told["asked"] else []
        parts += [f"{told['sending']} being sent"] if told["sending"] else []
        last = told["last"]
        if last is not None:
            event = f"{plain(last['entity'])}/{plain(last['id'])}"
            asked = f", asked for by {plain(last['by'])}" if last["by"] else ""
            outcome = f"{last['state']} at {last['at']} ({plain(last['why'])})"
            parts.append(f"the last, {event}{asked}: {outcome}")
        if parts:
            place = f"{plain(standing['pipeline'])}, sink {plain(sink['sink'])}"
            print(f"\n{place}: resends: {'; '.join(parts)}")


_AT_THE_NEXT_START = {
    Capability.OPAQUE.value: "what of it is in doubt shows after the next start",
    Capability.REPEATABLE.value: "the next start repeats what may have been sent, under its keys",
}


def _tell_pending(standing: dict[str, Any]) -> None:
    """Say what becomes of partitions that nobody works at."""
    for sink in standing["sinks"]:
        count = sink["pending_partitions"]
        if not count:
            continue
        pending = "1 partition is" if count == 1 else f"{count} partitions are"
        then = _AT_THE_NEXT_START.get(
            sink["capability"], "the destination is asked at the next start"
        )
        place = f"{plain(standing['pipeline'])}, sink {plain(sink['sink'])}"
        print(f"\n{place}: {pending} pending, and nobody runs it; {then}")


def _state(standing: dict[str, Any]) -> str:
    age = standing["seconds_since"]
    return str(standing["state"]) + ("" if age is None else f", {ago(age)}")


def _minibatch(standing: dict[str, Any]) -> str:
    if standing["minibatch"] is None:
        return "finished" if standing["finished"] else "none yet"
    return f"{standing['minibatch']} {'complete' if standing['complete'] else 'open'}"


def _identity(described: dict[str, Any] | None) -> str:
    """Tell an identity in a few words: `given: customer, payment_id`."""
    if described is None:
        return "unknown"
    names = [described.get("entity"), *described.get("event", []), *described.get("ordinals", [])]
    columns = ", ".join(name for name in names if name)
    increasing = " (increasing)" if described.get("increasing") else ""
    return f"{described.get('kind')}{f': {columns}' if columns else ''}{increasing}"
