"""The second stage of a delivery: each minibatch that a sink concludes is an event of a next sink.

The steps for one minibatch: 1. record it as due, once the ledger has the minibatch complete; 2.
claim it, which is the stage's intent; 3. send it; 4. record the outcome, the stage's complete.

Always true:
- it is recorded once for its minibatch, whichever run concludes it and however often: its key is
  the same;
- one that may have been sent is sent again only if the destination absorbs, reports or refuses a
  repeat, or if the policy or a person says so: it is sent like every resend (`parking.resend`);
- they are sent one at a time, in the order of their minibatches.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING

from semel.delivery.observer import StageStopped
from semel.delivery.parking.parking import stop_if_held
from semel.delivery.parking.resend import Resending
from semel.delivery.parking.resend_attempt import IN_VAIN_MAX
from semel.errors import Fenced, HeldInDoubt, NotDelivered
from semel.ledger import (
    OpenRow,
    ParkedRow,
    parked_key,
    plan_parking,
    read_heads,
    read_parked,
)
from semel.ledger.store import Conflict, Delete, Equals
from semel.protocol import ParkedState

if TYPE_CHECKING:
    from semel.delivery.observer import Observer
    from semel.events import Minibatch
    from semel.ledger import LedgerClient
    from semel.ledger.store import Key, Requirement, Update
    from semel.runtime import Process, Runtime
    from semel.sinks import Ended, Sink

_DECIDED = (ParkedState.HELD, ParkedState.REJECTED)


class Stages:
    """Hands what one run has concluded to second stages. Runs on the driver."""

    def __init__(
        self,
        client: LedgerClient,
        run: int,
        process: Process,
        runtime: Runtime,
        observer: Observer,
    ) -> None:
        self._client = client
        self._run = run
        self._process = process
        self._runtime = runtime
        self._observer = observer

    def hand_over(self, sink: Sink, ended: Ended) -> None:
        """Hand a concluded minibatch to the second stage of a sink, if there is one.

        Raises `NotDelivered` if it surely did not arrive, `HeldInDoubt` under policy `stop`,
        `Fenced` if the run was replaced.
        """
        stage = sink.stage
        if stage is None:
            return
        row = self._due(sink, stage, ended)
        at = parked_key(self._client.pipeline, stage.name, row)
        if not self._stands(at):
            self._record(stage, at, row)
        for _ in range(IN_VAIN_MAX + 1):
            standing = self._standing(at)
            if standing is None or standing.state.final or self._blocked(stage, at):
                break
            self._wait_for_sender(stage)
            self._resending(stage).drain()
            after = self._standing(at)
            if after is None or not after.doubted or after.state is not ParkedState.RESEND:
                break
        self._report(stage, at, ended)

    # -- the steps

    def _due(self, sink: Sink, stage: Sink, ended: Ended) -> ParkedRow:
        """Return the row that says what is to be sent."""
        batch = sink.announce(ended)
        return ParkedRow(
            entity=ended.sink,
            scope=ended.sink,
            event=str(ended.minibatch),
            minibatch=ended.minibatch,
            partition=stage.name,
            position=0,
            osn=0,
            state=ParkedState.RESEND,
            why="due",
            at=self._client.clock.wall(),
            blocks=True,
            value=batch.to_pylist()[0],
            schema=base64.b64encode(batch.schema.serialize().to_pybytes()).decode(),
        )

    def _record(self, stage: Sink, at: Key, row: ParkedRow) -> None:
        """Record it as due; delete older ones that were delivered without a doubt."""
        open_key = self._client.open_key
        while True:
            text = self._client.read_one(open_key)
            if text is None or OpenRow.load(text, open_key).run != self._run:
                raise Fenced(
                    f"pipeline {self._client.pipeline!r}: run {self._run} was replaced before it "
                    f"passed minibatch {row.minibatch} to {stage.name!r}; the later run does so"
                )
            heads = read_heads(self._client, stage.name)
            if heads:
                self._limit(stage, row)
            due = replace(row, state=ParkedState.WAITING) if heads else row
            parks = plan_parking(self._client.pipeline, stage.name, [due], heads)
            requirements: list[Requirement] = [Equals(open_key, text), *parks.requirements]
            updates: list[Update] = list(parks.updates)
            for old_key, old, old_text in read_parked(self._client, stage.name):
                if _is_spent(old, row.minibatch):
                    requirements.append(Equals(old_key, old_text))
                    updates.append(Delete(old_key))
            try:
                self._client.commit(requirements, updates, lambda: self._stands(at))
            except Conflict:
                if self._stands(at):
                    return
                continue
            return

    def _limit(self, stage: Sink, row: ParkedRow) -> None:
        """Raise `HeldInDoubt` if more would wait than the stage allows."""
        rows = read_parked(self._client, stage.name)
        waiting = sum(not each.state.final for _, each, _ in rows)
        if waiting >= stage.park_limit:
            raise HeldInDoubt(
                f"{self._place(stage, row.minibatch)}: {waiting} manifests wait behind one that "
                f"needs a decision, and park_limit is {stage.park_limit}. Resolve what `semel "
                "parked ls` lists, then restart the query"
            )

    def _wait_for_sender(self, stage: Sink) -> None:
        """Wait until an earlier sender that is not known to be gone had all the time that a lease
        and a call may take.
        """
        left_s = self._resending(stage).left_to_sender_s()
        if left_s > 0:
            self._runtime.clock.sleep(left_s)

    def _resending(self, stage: Sink) -> Resending:
        return Resending(self._client, stage, self._process, self._runtime, observer=self._observer)

    def _report(self, stage: Sink, at: Key, ended: Ended) -> None:
        """Notify the observer of what waits for a person; raise if it can be tried again."""
        place = self._place(stage, ended.minibatch)
        row = self._standing(at)
        if row is None or row.state in (ParkedState.DELIVERED, ParkedState.DISCARDED):
            return
        stop_if_held(self._client, stage, place)
        if row.state.final or row.state in _DECIDED or self._blocked(stage, at):
            self._observer.observe(StageStopped(place, row.state.value, row.why))
            return
        raise NotDelivered(
            f"{place}: its events are delivered and its manifest is written, but the manifest "
            f"could not be sent to {stage.name!r} ({row.why}). Check that the destination can be "
            "reached, then restart the query: it sends the manifest"
        )

    # -- looking

    def _stands(self, at: Key) -> bool:
        return self._client.read_one(at) is not None

    def _standing(self, at: Key) -> ParkedRow | None:
        text = self._client.read_one(at)
        return None if text is None else ParkedRow.load(text, at)

    def _blocked(self, stage: Sink, at: Key) -> bool:
        """Whether it waits for a person, or behind one that does."""
        for each, row, _ in read_parked(self._client, stage.name):
            if row.blocks and row.state in _DECIDED:
                return True
            if each == at:
                return False
        return False

    def _place(self, stage: Sink, minibatch: Minibatch) -> str:
        return f"pipeline {self._client.pipeline!r}, sink {stage.name!r}, minibatch {minibatch}"


def _is_spent(row: ParkedRow, current: Minibatch) -> bool:
    """Whether a row is not needed any more: its minibatch is not concluded again once the next but
    one was, and it was never in doubt.
    """
    newer = (current.generation, current.batch - 1)
    older = (row.minibatch.generation, row.minibatch.batch) < newer
    clean = row.state is ParkedState.DELIVERED and not row.doubted and row.by is None
    return older and clean
