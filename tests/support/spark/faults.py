"""Kills, stops or fails a process at a named step of the protocol, once per armed token.

A step is `<kind>.before` or `<kind>.after`: a commit to the ledger, named by the tables it touches,
or a word of a destination. `install` watches steps in this process; the charge server decides at
which of them, in whatever process, something happens: `house.arm("claim.after")`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any

from semel.ledger import payloads
from semel.ledger.store.commit import Absent, Put, Requirement, Sweep, Update
from semel.ledger.store.sqlite import SqliteStore
from semel.verify.demo.charge_server import charge_client

COMMITS = (
    "register",  # the run gets its number
    "beat",  # the run lives, or has ended
    "open",  # the driver opens a minibatch
    "claim",  # a task inserts its partition's row, with the first span if there is one
    "take",  # another attempt is written into a partition's row
    "span",  # a span is recorded, settled or withdrawn
    "park",  # an event is parked or resolved, and nothing else
    "complete",  # the driver completes a minibatch
    "close",  # a partition that an older generation left is folded and removed
    "other",
)

LEDGER_STEPS = tuple(f"{kind}.{when}" for kind in COMMITS for when in ("before", "after"))

SINK_STEPS = ("session.open", "effect.before", "effect.after")
"""A session was opened; an effect is about to be asked for; it happened, and was not used yet."""

DRIVER_STEPS = ("batch.before", "batch.after")
"""Around what `foreachBatch` calls: before it opens, and after complete, before Spark commits."""

STEPS = (*DRIVER_STEPS, *LEDGER_STEPS, *SINK_STEPS)

_watched: dict[str, set[str]] = {}


class ToldToFail(Exception):
    """The charge server said `fail`."""


def reach(url: str, step: str) -> None:
    """Ask at the charge server what happens to this process now, and let it happen."""
    match charge_client(url).token(step):
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "fail":
            raise ToldToFail(step)
        case None:
            return


def install(url: str, steps: Collection[str]) -> None:
    """Watch the commits of this process to any ledger, for the `steps` among `LEDGER_STEPS`."""
    wanted = set(steps) & set(LEDGER_STEPS)
    if not wanted:
        return
    if not _watched:
        from semel.ledger.store.postgres import PostgresStore  # slow, and most workers need none

        for store in (SqliteStore, PostgresStore):
            store.commit = _watching(store.commit)  # type: ignore[method-assign]
    _watched.setdefault(url, set()).update(wanted)


def kind_of(requirements: Sequence[Requirement], updates: Sequence[Update]) -> str:
    """Tell a commit by the tables that it touches."""
    put = {update.key.table for update in updates if isinstance(update, Put)}
    absent = {each.key.table for each in requirements if isinstance(each, Absent)}
    swept = {update.table for update in updates if isinstance(update, Sweep)}
    beats = _beats(updates)
    rules = (
        ("register", 0 in beats),
        ("beat", bool(beats)),
        ("complete", "open" in put and bool(put & {"streams", "sequences"})),
        ("open", "open" in put),
        ("claim", "streams" in absent),
        ("close", "events" in swept),
        ("span", "events" in put),
        ("take", "streams" in put),
        ("park", "parked" in put),
    )
    return next((kind for kind, holds in rules if holds), "other")


def _beats(updates: Sequence[Update]) -> list[int]:
    """Give the beats that a commit writes; a row of `owners` without one is the slot of resends."""
    owners = [each for each in updates if isinstance(each, Put) and each.key.table == "owners"]
    rows = [payloads.load_payload(each.payload) for each in owners]
    return [row["beat"] for row in rows if "beat" in row]


def _watching(commit: Callable[..., None]) -> Callable[..., None]:
    @wraps(commit)
    def watched(self: Any, requirements: Sequence[Requirement], updates: Sequence[Update]) -> None:
        kind = kind_of(requirements, updates)
        _reach_all(f"{kind}.before")
        commit(self, requirements, updates)
        _reach_all(f"{kind}.after")

    return watched


def _reach_all(step: str) -> None:
    for url, steps in _watched.items():
        if step in steps:
            reach(url, step)
