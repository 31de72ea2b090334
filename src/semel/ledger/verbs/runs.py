"""Runs of a pipeline: registration, what may not change under a name, heartbeat and stop.

Always true:
- run numbers of a pipeline only grow, and every `start()` gets its own;
- a name whose heartbeat moves belongs to a live run, and no other run registers it. Which starts of
  this very process are alive is known without watching.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from semel.errors import ConfigurationError, Fenced
from semel.ledger.figures import RunFigures
from semel.ledger.keys import PIPELINES_TABLE, make_key
from semel.ledger.payloads import (
    LATER,
    Row,
    dump_payload,
)
from semel.ledger.rows import OpenRow, read_description
from semel.ledger.store.commit import Absent, Conflict, Delete, Equals, Put
from semel.runtime import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from semel.ledger.client import LedgerClient
    from semel.ledger.store.commit import Key, Requirement, Update

OWNERS_TABLE = "owners"
NAMES_TABLE = "names"

LOOKS = 20
"""How often the owner is looked at during one lease, so that no start waits longer than needed."""
FINISHED = "finished"
"""The field with what a batch job delivered, once it is finished."""
KNOWN_AS = "known_as"
"""The field with the name under which destinations know a renamed pipeline: its first one."""
RESCALED = "rescaled"
"""The field with the serial of the newest minibatch when the number of partitions last changed:
rows of it and of older ones belong to other partitions. Version 0.1 did not write it.
"""

_living: dict[str, Callable[[], bool]] = {}
"""The starts of this process that have a heartbeat, by nonce, and whether each is active."""
_starting: dict[tuple[str, str], threading.Lock] = {}


def register_start(nonce: str, active: Callable[[], bool]) -> None:
    """Record that a start of this process is alive while `active()`."""
    _living[nonce] = active


def forget_start(nonce: str) -> None:
    """Record that a start of this process has ended."""
    _living.pop(nonce, None)


@contextmanager
def starting_pipeline(ledger: str, pipeline: str) -> Iterator[None]:
    """Let the threads of this process start a pipeline one by one: each checks whether it runs, and
    registers, before the next one checks.
    """
    with _starting.setdefault((ledger, pipeline), threading.Lock()):
        yield


ROUTING = "routing"
"""The field that describes how entities are spread over partitions; without it, by hash."""
STAGE_OF = "stage_of"
"""In the description of a second stage: the sink that it comes after."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Who asked a run to stop, and when."""

    by: str
    at: float


@dataclass(frozen=True, slots=True)
class OwnerRow(Row):
    """The run that has a pipeline. `nonce` is unique to a start; `ended` is set if it stopped by
    itself; `figures` are the newest, of this run or of an earlier one; `stop` asks it to stop.
    """

    TABLE = OWNERS_TABLE

    run: int
    nonce: str
    process: Process
    beat: int
    at: float
    ended: bool = False
    figures: Annotated[RunFigures | None, LATER] = None
    stop: Annotated[StopRequest | None, LATER] = None


@dataclass(frozen=True, slots=True)
class NameRow(Row):
    """A name that no pipeline may take: its pipeline has another name now, or is being forgotten.

    Attributes:
        renamed_to: the name that replaced it; empty while its pipeline is being forgotten.
        by: who did it.
    """

    TABLE = NAMES_TABLE

    renamed_to: str
    at: float
    by: str

    def refusal(self, name: str) -> str:
        """Return why the name cannot be used, and what to do."""
        if self.renamed_to:
            return (
                f"pipeline {name!r} was renamed to {self.renamed_to!r} by {self.by}; use that "
                "name. A new pipeline needs a name of its own, because destinations may know "
                f"the events of {self.renamed_to!r} by the name {name!r}"
            )
        return (
            f"pipeline {name!r} is being forgotten, and some of its rows are left: run `semel "
            f"forget {name} --yes` again, which removes the rest"
        )


def name_key(pipeline: str) -> Key:
    """Return the key of what is recorded of a name that no pipeline may take."""
    return make_key(NAMES_TABLE, pipeline)


def _differences(what: str, was: Any, now: Any) -> Iterator[str]:
    """Return what differs between two objects, field by field."""
    if not (isinstance(was, dict) and isinstance(now, dict)):
        if was != now:
            yield f"{what} was {was!r} and is {now!r}"
        return
    for name in sorted(was.keys() | now.keys()):
        yield from _differences(f"{what}: {name}", was.get(name), now.get(name))


def require_known(client: LedgerClient) -> None:
    """Raise `ConfigurationError` if the ledger does not know a pipeline that uses it: then not a
    later run is the reason, but the ledger itself is gone.
    """
    if client.read_one(make_key(PIPELINES_TABLE, client.pipeline)) is None:
        raise ConfigurationError(
            f"pipeline {client.pipeline!r}: the ledger does not know it any more: it was removed, "
            "emptied or replaced while the pipeline ran, and nothing more is recorded. Stop the "
            "query and restore the ledger: without it semel does not know what was delivered"
        )


def _spread(routing: dict[str, Any] | None) -> str:
    """Return a short description of how entities are spread."""
    if routing is None:
        return "hash"
    if routing["kind"] == "range":
        return f"range, at {', '.join(map(repr, routing['bounds']))}"
    return f"directory, {routing.get('function') or 'a table'}"


class Owners:
    """Registers runs of one pipeline and keeps their heartbeat. Runs on the driver."""

    def __init__(self, client: LedgerClient) -> None:
        self._client = client
        self._pipeline = make_key(PIPELINES_TABLE, client.pipeline)
        self._owner = make_key(OWNERS_TABLE, client.pipeline)
        self._name = name_key(client.pipeline)
        self._before: str | None = None

    def owner(self) -> OwnerRow | None:
        """Return the row of the run that has the pipeline, or None."""
        text = self._client.read_one(self._owner)
        return None if text is None else OwnerRow.load(text, self._owner)

    def known_as(self) -> str:
        """Return the name under which destinations know the pipeline; empty if it is its own."""
        return str((self.described() or {}).get(KNOWN_AS) or "")

    def taken(self) -> NameRow | None:
        """Return why no pipeline may have this name; None if one may."""
        text = self._client.read_one(self._name)
        return None if text is None else NameRow.load(text, self._name)

    def described(self) -> dict[str, Any] | None:
        """Return the description of the pipeline; None if it never ran."""
        text = self._client.read_one(self._pipeline)
        return None if text is None else read_description(text, self._pipeline)

    def alive(self, me: Process, lease_s: float) -> bool:
        """Watch for one lease whether the owner's heartbeat moves; a process that is known to be
        gone and a start of the own process need no watching.
        """
        before = self.owner()
        if before is None:
            return False
        if before.process == me:
            active = _living.get(before.nonce)
            return active is not None and not before.ended and active()
        for _ in range(LOOKS):
            owner = self.owner()
            if owner is None or owner.ended or owner.process.gone():
                return False
            if owner != before:
                return True
            self._client.clock.sleep(lease_s / LOOKS)
        return self.owner() not in (None, before)

    def register(
        self,
        description: dict[str, Any],
        me: Process,
        nonce: str,
        after: OwnerRow | Literal["any"] | None = "any",
    ) -> int:
        """Begin a run and return its number. May be repeated with the same `nonce`.

        Raises `ConfigurationError` if the name was used with another identity, sink or rule, or if
        the run that has the pipeline is not the one `after` which it is to begin.
        """
        while True:
            rows = self._client.read(self._pipeline, self._owner, self._name)
            text = rows.get(self._owner)
            owner = None if text is None else OwnerRow.load(text, self._owner)
            if owner is not None and owner.nonce == nonce:
                return owner.run
            if after not in ("any", owner):
                raise ConfigurationError(
                    f"pipeline {self._client.pipeline!r} was started elsewhere at the same time"
                    + ("" if owner is None else f" (run {owner.run})")
                )
            self._refuse_taken(rows.get(self._name))
            self._before = rows.get(self._pipeline)
            requirements, updates = self._described(self._before, description)
            run = 1 if owner is None else owner.run + 1
            figures = None if owner is None else owner.figures
            row = OwnerRow(run, nonce, me, 0, self._client.clock.wall(), figures=figures)
            requirements.append(Absent(self._owner) if text is None else Equals(self._owner, text))
            updates.append(Put(self._owner, row.dump()))
            try:
                self._client.commit(requirements, updates)
            except Conflict:
                continue
            return run

    def withdraw(self, nonce: str) -> bool:
        """Undo what `register` of this object wrote, if the run was refused before it opened
        anything: its name is not listed then. Returns whether it did.
        """
        opened = self._client.open_key
        while True:
            rows = self._client.read(self._pipeline, self._owner, opened)
            text, written = rows.get(self._owner), rows.get(self._pipeline)
            owner = None if text is None else OwnerRow.load(text, self._owner)
            if text is None or written is None or owner is None or owner.nonce != nonce:
                return False
            if FINISHED in read_description(written, self._pipeline):
                return False  # a finished batch has no open minibatch any more
            if opened in rows and OpenRow.load(rows[opened], opened).run == owner.run:
                return False
            updates: list[Update] = []
            if self._before is None:
                updates = [Delete(self._pipeline), Delete(self._owner)]
            elif self._before != written:
                updates = [Put(self._pipeline, self._before)]
            if not updates:
                return False
            try:
                self._client.commit(
                    [Equals(self._owner, text), Equals(self._pipeline, written)], updates
                )
            except Conflict:
                continue
            return True

    def refuse_changed(self, description: dict[str, Any]) -> None:
        """Raise `ConfigurationError` if `register` would, and write nothing."""
        rows = self._client.read(self._pipeline, self._name)
        self._refuse_taken(rows.get(self._name))
        self._described(rows.get(self._pipeline), description)

    def _refuse_taken(self, text: str | None) -> None:
        """Refuse a name that was given up by a rename, or whose pipeline is being forgotten."""
        if text is not None:
            raise ConfigurationError(NameRow.load(text, self._name).refusal(self._client.pipeline))

    def beat(
        self, run: int, nonce: str, *, ended: bool = False, figures: RunFigures | None = None
    ) -> StopRequest | None:
        """Record that the run is alive, or that it has ended, and its figures in the same commit;
        without any, the recorded ones stay. Return the request to stop, if there is one. Raises
        `Fenced` if a later run has the name.
        """
        while True:
            text = self._client.read_one(self._owner)
            owner = None if text is None else OwnerRow.load(text, self._owner)
            if text is None or owner is None:
                raise Fenced(
                    f"pipeline {self._client.pipeline!r}: the ledger has no owner of it any more, "
                    f"so run {run} stops: it was removed, emptied or replaced while the pipeline "
                    "ran. Put the ledger back, then start the query again"
                )
            if owner.nonce != nonce:
                raise Fenced(
                    f"pipeline {self._client.pipeline!r}: run {run} was replaced by run "
                    f"{owner.run} and stops. Start it again only after run {owner.run} has ended"
                )
            if owner.ended:
                return owner.stop
            row = replace(
                owner,
                beat=owner.beat + 1,
                at=self._client.clock.wall(),
                ended=ended,
                figures=figures or owner.figures,
            )
            try:
                self._client.commit([Equals(self._owner, text)], [Put(self._owner, row.dump())])
            except Conflict:
                continue
            return owner.stop

    def request_stop(self, by: str, run: int | None = None) -> OwnerRow | None:
        """Ask the run that has the pipeline to stop, or `run` only if it has it; return its row, or
        None if no run has it or it has ended. May be repeated.

        Its driver learns it with the next heartbeat. Its tasks learn it at once: the row `open`,
        which each of their writes requires, says it in the same commit; if there is no such row
        yet, from the driver's next heartbeat on.
        """
        opened = self._client.open_key
        while True:
            rows = self._client.read(self._owner, opened)
            text, open_text = rows.get(self._owner), rows.get(opened)
            if text is None:
                return None
            owner = OwnerRow.load(text, self._owner)
            if owner.ended or run not in (None, owner.run):
                return None
            asked = owner.stop or StopRequest(by, self._client.clock.wall())
            asking = replace(owner, stop=asked)
            updates: list[Update] = []
            if owner.stop is None:
                updates.append(Put(self._owner, asking.dump()))
            required: list[Requirement] = [Equals(self._owner, text)]
            if open_text is not None:
                required.append(Equals(opened, open_text))
                row = OpenRow.load(open_text, opened)
                if row.stopping != owner.run:
                    updates.append(Put(opened, row.asked_to_stop(owner.run).dump()))
            if not updates:
                return owner
            try:
                self._client.commit(required, updates)
            except Conflict:
                continue
            return asking

    def _refuse_rerouted(self, before: dict[str, Any], asked: dict[str, Any]) -> None:
        """Refuse another routing: entities would move to other partitions."""
        from semel.events import is_continued

        had, wanted = before.get(ROUTING), asked.get(ROUTING)
        if is_continued(had, wanted):
            return
        name = self._client.pipeline
        how = f"`semel rescale {name} {asked.get('partitions')} --hash`"
        if wanted is not None:
            how = "`semel rescale` (--range or --hash), or start a new pipeline under another name"
        raise ConfigurationError(
            f"pipeline {name!r} spreads entities by {_spread(had)}, and {_spread(wanted)} was "
            "requested: an entity would change its partition while its events are known in the old "
            f"one. Start it as before; or, while it is stopped, {how}"
        )

    def _described(
        self, recorded: str | None, description: dict[str, Any]
    ) -> tuple[list[Requirement], list[Update]]:
        """Compare a description with the recorded one; return the commit that adds new sinks."""
        text = dump_payload(description)
        if recorded is None:
            return [Absent(self._pipeline)], [Put(self._pipeline, text)]
        before = read_description(recorded, self._pipeline)
        if (before.get(KNOWN_AS) or "") != self._client.known_as:
            raise ConfigurationError(
                f"pipeline {self._client.pipeline!r} was renamed while it was started; start it "
                "again"
            )
        had, asked = before.get("partitions"), description.get("partitions")
        rescaled = None not in (had, asked) and had != asked
        self._refuse_rerouted(before, description)
        aside = {"sinks", FINISHED, RESCALED, ROUTING, KNOWN_AS} | (
            {"partitions"} if rescaled else set()
        )
        changed = [
            difference
            for name in before
            if name not in aside
            for difference in _differences(name, before[name], description.get(name))
        ]
        known: dict[str, Any] = before.get("sinks", {})
        wanted: dict[str, Any] = description.get("sinks", {})
        changed += [
            difference
            for name in sorted(known.keys() & wanted.keys())
            for difference in _differences(f"sink {name!r}", known[name], wanted[name])
        ]
        if changed:
            raise ConfigurationError(
                f"pipeline {self._client.pipeline!r}: {'; '.join(changed)}. What was delivered "
                "under this name cannot be compared with that: give the changed pipeline a new name"
            )
        if rescaled:
            raise ConfigurationError(
                f"pipeline {self._client.pipeline!r} has {had} partitions, and partitions={asked} "
                "was requested. While it is stopped, run `semel rescale "
                f"{self._client.pipeline} {asked}`; or start it with {had}"
            )
        merged = dump_payload({**before, **description, "sinks": {**known, **wanted}})
        if merged == recorded:
            return [], []
        return [Equals(self._pipeline, recorded)], [Put(self._pipeline, merged)]
