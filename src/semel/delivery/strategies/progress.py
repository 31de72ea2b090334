"""Delivery to TRANSACTIONAL and SEQUENCED: they report what is done, so no intents are needed.

Always true:
- fence first, then ask: an attempt that finds the partition pending takes the progress row or the
  log's epoch before it reads how far they are;
- an event is parked before progress or C passes it;
- an unknown outcome is asked for, never assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from semel.delivery.calling import call_patiently, open_session
from semel.delivery.parking.parking import parked_row, state_after
from semel.delivery.parking.resend import Resending
from semel.delivery.strategies import replay_check
from semel.delivery.strategies.caller import refuse_single_failures
from semel.errors import (
    DeliveryError,
    Fenced,
    NotDelivered,
    Rejected,
    SemelError,
)
from semel.ledger import HeadMoved
from semel.protocol import (
    RESUME,
    Action,
    Capability,
    Found,
    ParkedState,
    outstanding,
)
from semel.sinks import Progress, Receipt, Tail

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semel.delivery.lane import Lane
    from semel.events import Rows
    from semel.ledger import ParkedRow
    from semel.sinks import SequencedSession, TransactionalSession

ASK_MAX = 20
"""How often an outcome is asked for before the task gives up."""


@dataclass(slots=True)
class Done:
    """How far the destination says it is, and how that can be checked against the replay."""

    events: int = 0
    digest_at: tuple[int, str] | None = None
    sort_key: list[object] | None = None
    rejected: dict[int, str] = field(default_factory=dict)


class ProgressStrategy:
    """Delivers chunks whose progress the destination keeps, one transaction or append at a time."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._session: TransactionalSession | SequencedSession | None = None
        self._action: Action | None = None
        self._done = Done()
        self._parked: set[int] = set()

    def wants(self) -> int:
        """Return the size of a chunk; while skipping, up to the progress or to a known digest."""
        lane = self._lane
        if self._action is Action.COUNT:
            return replay_check.wants(lane)
        stops = [self._done.events]
        if self._done.digest_at is not None:
            stops.append(self._done.digest_at[0])
        ahead = [stop - lane.position for stop in stops if stop > lane.position]
        return min([lane.sink.chunk_rows, *ahead])

    def step(self, rows: Rows) -> int:
        """Claim, skip or deliver, depending on what was found."""
        lane = self._lane
        if self._action is None:
            self._claim(rows)
            return 0
        if self._action is Action.COUNT:
            if not replay_check.goes_on(lane, rows):
                return replay_check.count_rows(lane, rows)
            self._action = RESUME[Found.PENDING, lane.sink.capability].action
            self._resume()
            return 0
        self._compare(rows)
        if lane.position < self._done.events:
            before = lane.figures.parked
            self._park_rejected(rows)
            parked = lane.figures.parked - before
            done = range(lane.position, lane.position + len(rows))
            lane.count_before(done, parked_now=parked)
        else:
            self._deliver(rows)
        return len(rows)

    def finish(self) -> None:
        """Check that the replay covers what the destination says is done."""
        if self._action is Action.COUNT:
            return
        if self._lane.position < self._done.events:
            self._lane.short = True
        self._lane.within_lease()

    def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            session, self._session = self._session, None
            session.close()

    # -- claim and resume

    def _claim(self, rows: Rows) -> None:
        lane = self._lane
        # 1. Claim in the ledger before the first effect: after a crash the next attempt finds the
        #    partition pending, and asks the destination.
        location = lane.sink.locate(lane.assignment.target(lane.sink))
        found = lane.claim.claim(None, location=location, begins=rows.sort_key(0))
        # 2. A new partition has nothing to ask for. Only if the last opener wins, fence now: a
        #    replaced attempt may open a session at any time, and then the ledger decides.
        self._action = RESUME[found, lane.sink.capability].action
        if self._action is Action.DELIVER:
            lane.look_at_heads(Found.NEW)
            if lane.sink.last_opener_wins:
                self._ask()
            self._resend()
        elif self._action in (Action.ASK_PROGRESS, Action.ASK_TAIL):
            # 3. An earlier attempt began it and may have crashed after any transaction: fence and
            #    ask.
            self._resume()

    def _resume(self) -> None:
        """Read what is parked, fence, ask, and resend."""
        lane = self._lane
        # 1. Read what is parked: an attempt may have crashed after parking an event and before
        #    progress passed it.
        lane.look_at_heads(Found.PENDING)
        self._parked.update(row.position for row in lane.read_marks() if not row.state.only_marks)
        # 2. Fence, then ask: a call of an attempt that is still alive can no longer change the
        #    answer.
        self._ask()
        # 3. Resend only now that earlier appends are known: one that landed before a crash is not
        #    repeated.
        self._resend()

    def _resend(self) -> None:
        """Append the parked events that are free to go, before the partition's own: a log has one
        writer.
        """
        lane = self._lane
        if lane.sink.capability is not Capability.SEQUENCED or not lane.heads:
            return
        session = cast("SequencedSession", self._opened)
        resending = Resending(
            lane.client,
            lane.sink,
            lane.assignment.process,
            lane.runtime,
            lane.assignment.partition,
            session,
        )
        resending.drain()
        if lane.sink.last_opener_wins:
            lane.claim.check()  # a resend that was requested took the fence again
        lane.reread_heads()

    def _ask(self) -> None:
        """Take the progress row or the epoch again, and read how far delivery is."""
        lane = self._lane
        told = self._take_over()
        if lane.sink.last_opener_wins:
            lane.claim.check()  # a zombie can take such a fence too: the ledger decides
        self._done = self._from_tail(told) if isinstance(told, Tail) else self._from_row(told)
        row = lane.claim.row
        if row is not None and row.done > self._done.events:
            self._done.events = row.done

    def _take_over(self) -> Progress | Tail | None:
        """Open a session and fence with it; retrying is safe: fencing has no other effect."""
        lane = self._lane
        last: Exception | None = None
        for _ in lane.sink.retry.tries(lane.runtime):
            self.close()
            self._open()
            try:
                return self._opened.take_over()
            except DeliveryError as error:
                last = error
            except SemelError:
                raise  # final: asking again would only hide it
            except Exception as error:  # noqa: BLE001 - asking sends nothing
                lane.faults.look_at_opening(error)
                last = error
        raise NotDelivered(
            f"{lane.assignment.place(lane.sink)}: the destination does not say what is done "
            f"({last}). Nothing was sent; see that it runs, then restart the query"
        ) from last

    def _open(self) -> None:
        target = self._lane.assignment.target(self._lane.sink)
        look_at = self._lane.faults.look_at_opening
        session = open_session(self._lane.sink, target, self._lane.runtime, look_at)
        self._session = cast("TransactionalSession | SequencedSession", session)

    @property
    def _opened(self) -> TransactionalSession | SequencedSession:
        if self._session is None:
            self._open()
        return cast("TransactionalSession | SequencedSession", self._session)

    def _from_row(self, told: Progress | None) -> Done:
        lane = self._lane
        lane.require_kept(0 if told is None else told.osn)
        if told is None or told.minibatch != lane.assignment.opening.row.minibatch or not told.done:
            return Done()
        lane.sent = max(lane.sent, told.osn)
        return Done(told.done, (told.done, told.digest), rejected=told.rejected)

    def _from_tail(self, tail: Tail) -> Done:
        lane = self._lane
        compared = outstanding(lane.last_osn_before, tail.osn)
        lane.require_kept(tail.osn)
        lane.sent = max(lane.sent, tail.osn)
        minibatch = lane.assignment.opening.row.minibatch
        stamp = tail.stamp
        digest_at = (stamp.done, stamp.digest) if stamp and stamp.minibatch == minibatch else None
        key = tail.sort_key if compared.suppressed else None
        return Done(compared.suppressed, digest_at, key)

    def _compare(self, rows: Rows) -> None:
        """Require that the replay is what was delivered, as far as the destination reports it."""
        lane, done = self._lane, self._done
        stop = lane.position + len(rows)
        if done.digest_at is not None and done.digest_at[0] == stop:
            running = lane.running_after(rows, len(rows))
            if running != done.digest_at[1]:
                recorded, found = f"digest {done.digest_at[1]}", f"digest {running}"
                raise lane.diverged(stop, recorded, found, rows)
        if done.sort_key is not None and done.events == stop:
            found_key = rows.sort_key(len(rows) - 1)
            if found_key != done.sort_key:
                recorded, found = f"sort key {done.sort_key}", f"sort key {found_key}"
                raise lane.diverged(stop, recorded, found, rows)

    def _park_rejected(self, rows: Rows) -> None:
        """Park what the destination refused in its last script, before the next chunk starts."""
        refused = {
            at: Rejected(self._done.rejected[position])
            for at, position in enumerate(rows.positions.tolist())
            if position in self._done.rejected and position not in self._parked
        }
        self._park(rows, refused)

    # -- deliver

    def _deliver(self, rows: Rows) -> None:
        """Park the followers of blocked entities, then send the rest."""
        self._park_followers(rows)
        self._send(rows, self._lane.position, self._lane.position + len(rows))

    def _send(self, rows: Rows, start: int, stop: int) -> None:
        """Send the range [start, stop); split it if the destination rejects it, ask if the outcome
        is unknown.
        """
        lane = self._lane
        for _ in range(ASK_MAX):
            # 1. Leave out what is parked: it was parked first, so that no crash lets progress pass
            #    an event that is neither delivered nor parked.
            chosen = rows.slice(start - lane.position, stop - lane.position)
            if self._parked:
                chosen = chosen.take(~np.isin(chosen.positions, list(self._parked)))
            if not len(chosen):
                return
            # 2. One transaction or append with its progress: a crash leaves both or neither.
            result = self._call(rows, chosen, start, stop)
            if isinstance(result, Receipt):
                if lane.sink.capability is Capability.SEQUENCED:
                    refuse_single_failures(lane, result)
                lane.figures.delivered += len(chosen) - len(result.failures)
                lane.sent = lane.last_osn_before + int(chosen.positions[-1]) + 1
                # 3. Park what it refused before the next chunk. After a crash in between, the
                #    progress row names it, and the next attempt parks it.
                self._park(chosen, result.failures)
                return
            if isinstance(result, Rejected):
                self._isolate(rows, chosen, start, stop, result)
                return
            if isinstance(result, NotDelivered):
                raise lane.unreached(result)
            # 4. The outcome is unknown: fence, ask, and send only what is missing. A crash while
            #    asking changes nothing: the next attempt asks too.
            lane.faults.look_at(chosen, result)
            self._ask_again(result)
            self._park_rejected(rows)
            start = max(start, self._done.events)
        raise NotDelivered(
            f"{lane.assignment.place(lane.sink)}: {ASK_MAX} times in a row the destination's "
            "answer was lost. Nothing is in doubt; see that it runs, then restart the query"
        )

    def _call(
        self, rows: Rows, chosen: Rows, start: int, stop: int
    ) -> Receipt | DeliveryError | Fenced:
        """Make one transaction or append of the range, with the progress after it."""
        lane, session = self._lane, self._opened
        progress = self._progress(rows, start, stop)
        chunk = lane.chunk(chosen, start, stop)
        try:
            return call_patiently(
                lambda: session.deliver_with(chunk, progress), lane.sink.retry, lane.runtime
            )
        except Fenced as fenced:
            lane.claim.check()
            return fenced

    def _progress(self, rows: Rows, start: int, stop: int) -> Progress:
        """Return the progress after the range [start, stop), which includes what was parked."""
        lane = self._lane
        count = stop - lane.position
        opening = lane.assignment.opening
        return Progress(
            minibatch=opening.row.minibatch,
            attempt=lane.assignment.attempt,
            done=stop,
            start=start,
            after=lane.acknowledged,
            osn=lane.last_osn_before + stop,
            digest=lane.running_after(rows, count),
            sort_key=rows.sort_key(count - 1),
            ids=lane.assignment.identity.progress_ids(rows.slice(start - lane.position, count)),
        )

    def _ask_again(self, result: DeliveryError | Fenced) -> None:
        """Fence again and ask, after an unknown outcome or an epoch lost to a zombie."""
        lane = self._lane
        if not isinstance(result, Fenced):
            lane.runtime.clock.sleep(lane.sink.retry.first_s)
        lane.claim.check()
        try:
            self._ask()
        except Fenced:
            lane.claim.check()

    def _isolate(self, rows: Rows, chosen: Rows, start: int, stop: int, why: Rejected) -> None:
        """Halve the range until the rejected event is alone, and park it."""
        if len(chosen) == 1:
            self._park(chosen, {0: why})
            return
        middle = int(chosen.positions[len(chosen) // 2])
        self._send(rows, start, middle)
        self._park_followers(rows.slice(middle - self._lane.position, stop - self._lane.position))
        self._send(rows, middle, stop)

    # -- parking

    def _park(self, rows: Rows, refused: Mapping[int, DeliveryError]) -> None:
        """Park what the destination did not take, before progress passes it."""
        lane = self._lane
        made = [
            parked_row(lane, rows, at, state_after(why), str(why)) for at, why in refused.items()
        ]
        while made and not self._parks(made):
            pass  # a head moved: park with the heads as they are now

    def _park_followers(self, rows: Rows) -> None:
        """Park the events whose entity waits, a chunk at a time; those whose head is gone are
        delivered.
        """
        lane = self._lane
        while True:
            made = [
                parked_row(lane, rows, at, ParkedState.WAITING, "an event of its entity is parked")
                for at in np.flatnonzero(lane.blocked(rows)).tolist()
                if int(rows.positions[at]) not in self._parked
            ]
            if not made or self._parks(made):
                return

    def _parks(self, made: list[ParkedRow]) -> bool:
        """Park these rows in one commit; False if a head moved, after the heads are read again."""
        lane = self._lane
        parks = lane.parks(made)
        lane.limit_parks(parks)
        try:
            lane.claim.write(parks=parks)
        except HeadMoved:
            lane.reread_heads()
            return False
        lane.parked(parks)
        self._parked.update(row.position for row in made)
        return True
