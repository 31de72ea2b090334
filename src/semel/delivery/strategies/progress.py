"""Delivery to TRANSACTIONAL and SEQUENCED: they report what is done, so no intents are needed.

Always true:
- fence first, then ask: an attempt that finds the partition pending takes the progress row or the
  log's epoch before it reads how far they are;
- an event is parked before progress or C passes it;
- an unknown outcome is asked for, never assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from semel.delivery.calling import Faults, call_patiently, open_session
from semel.delivery.observer import NO_FIGURES, Figures
from semel.delivery.parking.parking import parked_row, state_after
from semel.delivery.parking.resend import Resending
from semel.delivery.strategies import Finish, Step, replay_check
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

    from semel.delivery.assignment import SinkPartition
    from semel.delivery.parking.parking import PartitionParking
    from semel.delivery.partition import Buffer
    from semel.events import Rows
    from semel.ledger import ParkedRow
    from semel.sinks import SequencedSession, TransactionalSession

ASK_MAX = 20
"""How often an outcome is asked for before the task gives up."""


@dataclass(frozen=True, slots=True)
class Done:
    """How far the destination says it is, and how that can be checked against the replay."""

    events: int = 0
    digest_at: tuple[int, str] | None = None
    sort_key: list[object] | None = None
    rejected: Mapping[int, str] = field(default_factory=dict)


class ProgressStrategy:
    """Delivers chunks whose progress the destination keeps, one transaction or append at a time."""

    def __init__(self, partition: SinkPartition, parking: PartitionParking, buffer: Buffer) -> None:
        self._partition = partition
        self._parking = parking
        self._buffer = buffer
        self._faults = Faults(partition)
        self._figures = NO_FIGURES
        self._session: TransactionalSession | SequencedSession | None = None
        self._action: Action | None = None
        self._done = Done()
        self._parked: set[int] = set()
        self._sent = 0

    def wants(self) -> int:
        """Return the size of a chunk; while skipping, up to the progress or to a known digest."""
        position = self._buffer.position
        if self._action is Action.COUNT:
            return replay_check.wants(self._partition, position)
        stops = [self._done.events]
        if self._done.digest_at is not None:
            stops.append(self._done.digest_at[0])
        ahead = [stop - position for stop in stops if stop > position]
        return min([self._partition.sink.chunk_rows, *ahead])

    def step(self, rows: Rows) -> Step:
        """Claim, skip or deliver, depending on what was found."""
        done = self._step(rows)
        figures, self._figures = self._figures, NO_FIGURES
        return Step(done, figures)

    def _step(self, rows: Rows) -> bool:
        partition, buffer = self._partition, self._buffer
        if self._action is None:
            self._claim(rows)
            return False
        if self._action is Action.COUNT:
            if not replay_check.goes_on(partition, buffer, rows):
                self._note(replay_check.count_rows(self._parking, buffer.position, rows))
                return True
            self._action = RESUME[Found.PENDING, partition.sink.capability].action
            self._resume()
            return False
        self._compare(rows)
        if buffer.position < self._done.events:
            before = self._figures.parked
            self._park_rejected(rows)
            parked = self._figures.parked - before
            done = range(buffer.position, buffer.position + len(rows))
            self._note(self._parking.count_before(done, parked_now=parked))
        else:
            self._deliver(rows)
        return True

    def _note(self, figures: Figures) -> None:
        """Add to the figures of this step."""
        self._figures += figures
        self._faults.note(figures)

    def finish(self) -> Finish:
        """Check that the replay covers what the destination says is done."""
        if self._action is Action.COUNT:
            return Finish(self._sent)
        short = self._buffer.position < self._done.events
        self._partition.within_lease()
        return Finish(self._sent, short)

    def give_up(self) -> None:
        """Do nothing: the destination knows what is done."""

    def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            session, self._session = self._session, None
            session.close()

    # -- claim and resume

    def _claim(self, rows: Rows) -> None:
        partition = self._partition
        # 1. Claim in the ledger before the first effect: after a crash the next attempt finds the
        #    partition pending, and asks the destination.
        found = partition.claim.claim(
            None,
            location=partition.sink.locate(partition.target),
            begins=rows.sort_key(0),
            columns=self._buffer.columns,
        )
        # 2. A new partition has nothing to ask for. Only if the last opener wins, fence now: a
        #    replaced attempt may open a session at any time, and then the ledger decides.
        self._action = RESUME[found, partition.sink.capability].action
        if self._action is Action.DELIVER:
            self._parking.look_at_heads(Found.NEW)
            if partition.sink.last_opener_wins:
                self._ask()
            self._resend()
        elif self._action in (Action.ASK_PROGRESS, Action.ASK_TAIL):
            # 3. An earlier attempt began it and may have crashed after any transaction: fence and
            #    ask.
            self._resume()

    def _resume(self) -> None:
        """Read what is parked, fence, ask, and resend."""
        # 1. Read what is parked: an attempt may have crashed after parking an event and before
        #    progress passed it.
        self._parking.look_at_heads(Found.PENDING)
        parked = self._parking.read_marks()
        self._parked.update(row.position for row in parked if not row.state.only_marks)
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
        partition = self._partition
        if partition.sink.capability is not Capability.SEQUENCED or not self._parking.has_heads:
            return
        session = cast("SequencedSession", self._opened)
        resending = Resending(
            partition.client,
            partition.sink,
            partition.assignment.process,
            partition.runtime,
            partition.assignment.partition,
            session,
            observer=partition.observer,
        )
        resending.drain()
        if partition.sink.last_opener_wins:
            partition.claim.check()  # a resend that was requested took the fence again
        self._parking.reread_heads()

    def _ask(self) -> None:
        """Take the progress row or the epoch again, and read how far delivery is."""
        partition = self._partition
        reached = self._take_over()
        if partition.sink.last_opener_wins:
            partition.claim.check()  # a zombie can take such a fence too: the ledger decides
        self._done = (
            self._from_tail(reached) if isinstance(reached, Tail) else self._from_row(reached)
        )
        row = partition.claim.row
        if row is not None and row.done > self._done.events:
            self._done = replace(self._done, events=row.done)

    def _take_over(self) -> Progress | Tail | None:
        """Open a session and fence with it; retrying is safe: fencing has no other effect."""
        partition = self._partition
        last: Exception | None = None
        for _ in partition.sink.retry.tries(partition.runtime):
            self.close()
            self._open()
            try:
                return self._opened.take_over()
            except DeliveryError as error:
                last = error
            except SemelError:
                raise  # final: asking again would only hide it
            except Exception as error:  # noqa: BLE001 - asking sends nothing
                self._faults.look_at_opening(error)
                last = error
        raise NotDelivered(
            f"{partition.place}: the destination does not report its progress "
            f"({last}). Nothing was sent. Check that it runs, then restart the query"
        ) from last

    def _open(self) -> None:
        partition, look_at = self._partition, self._faults.look_at_opening
        session = open_session(partition.sink, partition.target, partition.runtime, look_at)
        self._session = cast("TransactionalSession | SequencedSession", session)

    @property
    def _opened(self) -> TransactionalSession | SequencedSession:
        if self._session is None:
            self._open()
        return cast("TransactionalSession | SequencedSession", self._session)

    def _from_row(self, reached: Progress | None) -> Done:
        partition = self._partition
        partition.require_kept(
            partition.acknowledged(self._sent), 0 if reached is None else reached.osn
        )
        if (
            reached is None
            or reached.minibatch != partition.assignment.opening.row.minibatch
            or not reached.done
        ):
            return Done()
        self._sent = max(self._sent, reached.osn)
        return Done(reached.done, (reached.done, reached.digest), rejected=reached.rejected)

    def _from_tail(self, tail: Tail) -> Done:
        partition = self._partition
        compared = outstanding(partition.claim.osn, tail.osn)
        partition.require_kept(partition.acknowledged(self._sent), tail.osn)
        self._sent = max(self._sent, tail.osn)
        minibatch = partition.assignment.opening.row.minibatch
        stamp = tail.stamp
        digest_at = (stamp.done, stamp.digest) if stamp and stamp.minibatch == minibatch else None
        key = tail.sort_key if compared.suppressed else None
        return Done(compared.suppressed, digest_at, key)

    def _compare(self, rows: Rows) -> None:
        """Require that the replay is what was delivered, as far as the destination reports it."""
        partition, done = self._partition, self._done
        stop = self._buffer.position + len(rows)
        if done.digest_at is not None and done.digest_at[0] == stop:
            running = self._buffer.digest_to(stop)
            if running != done.digest_at[1]:
                recorded, found = f"digest {done.digest_at[1]}", f"digest {running}"
                raise partition.diverged(stop, recorded, found, rows)
        if done.sort_key is not None and done.events == stop:
            found_key = rows.sort_key(len(rows) - 1)
            if found_key != done.sort_key:
                recorded, found = f"sort key {done.sort_key}", f"sort key {found_key}"
                raise partition.diverged(stop, recorded, found, rows)

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
        start = self._buffer.position
        self._send(rows, start, start + len(rows))

    def _send(self, rows: Rows, start: int, stop: int) -> None:
        """Send the range [start, stop); split it if the destination rejects it, ask if the outcome
        is unknown.
        """
        partition, position = self._partition, self._buffer.position
        for _ in range(ASK_MAX):
            # 1. Leave out what is parked: it was parked first, so that no crash lets progress pass
            #    an event that is neither delivered nor parked.
            chosen = rows.slice(start - position, stop - position)
            if self._parked:
                chosen = chosen.take(~np.isin(chosen.positions, list(self._parked)))
            if not len(chosen):
                return
            # 2. One transaction or append with its progress: a crash leaves both or neither.
            result = self._call(rows, chosen, start, stop)
            if isinstance(result, Receipt):
                if partition.sink.capability is Capability.SEQUENCED:
                    refuse_single_failures(partition, result)
                self._note(Figures(delivered=len(chosen) - len(result.failures)))
                self._sent = partition.claim.osn + int(chosen.positions[-1]) + 1
                # 3. Park what it refused before the next chunk. After a crash in between, the
                #    progress row names it, and the next attempt parks it.
                self._park(chosen, result.failures)
                return
            if isinstance(result, Rejected):
                self._isolate(rows, chosen, start, stop, result)
                return
            if isinstance(result, NotDelivered):
                raise partition.unreached(result)
            # 4. The outcome is unknown: fence, ask, and send only what is missing. A crash while
            #    asking changes nothing: the next attempt asks too.
            self._faults.look_at(chosen, result)
            self._ask_again(result)
            self._park_rejected(rows)
            start = max(start, self._done.events)
        raise NotDelivered(
            f"{partition.place}: the reply of the destination was lost {ASK_MAX} times in a "
            "row. No event is in doubt. Check that the destination runs, then restart the query"
        )

    def _call(
        self, rows: Rows, chosen: Rows, start: int, stop: int
    ) -> Receipt | DeliveryError | Fenced:
        """Make one transaction or append of the range, with the progress after it."""
        partition, session = self._partition, self._opened
        progress = self._progress(rows, start, stop)
        chunk = partition.chunk(chosen, start, stop)
        try:
            return call_patiently(
                lambda: session.deliver_with(chunk, progress),
                partition.sink.retry,
                partition.runtime,
            )
        except Fenced as fenced:
            partition.claim.check()
            return fenced

    def _progress(self, rows: Rows, start: int, stop: int) -> Progress:
        """Return the progress after the range [start, stop), which includes what was parked."""
        partition, position = self._partition, self._buffer.position
        opening = partition.assignment.opening
        return Progress(
            minibatch=opening.row.minibatch,
            attempt=partition.assignment.attempt,
            done=stop,
            start=start,
            after=partition.acknowledged(self._sent),
            osn=partition.claim.osn + stop,
            digest=self._buffer.digest_to(stop),
            sort_key=rows.sort_key(stop - position - 1),
            ids=partition.assignment.identity.progress_ids(
                rows.slice(start - position, stop - position)
            ),
        )

    def _ask_again(self, result: DeliveryError | Fenced) -> None:
        """Fence again and ask, after an unknown outcome or an epoch lost to a zombie."""
        partition = self._partition
        if not isinstance(result, Fenced):
            partition.runtime.clock.sleep(partition.sink.retry.first_s)
        partition.claim.check()
        try:
            self._ask()
        except Fenced:
            partition.claim.check()

    def _isolate(self, rows: Rows, chosen: Rows, start: int, stop: int, why: Rejected) -> None:
        """Halve the range until the rejected event is alone, and park it."""
        if len(chosen) == 1:
            self._park(chosen, {0: why})
            return
        middle = int(chosen.positions[len(chosen) // 2])
        position = self._buffer.position
        self._send(rows, start, middle)
        self._park_followers(rows.slice(middle - position, stop - position))
        self._send(rows, middle, stop)

    # -- parking

    def _park(self, rows: Rows, refused: Mapping[int, DeliveryError]) -> None:
        """Park what the destination did not take, before progress passes it."""
        partition = self._partition
        made = [
            parked_row(partition, rows, at, state_after(why), str(why))
            for at, why in refused.items()
        ]
        while made and not self._parks(made):
            pass  # a head moved: park with the heads as they are now

    def _park_followers(self, rows: Rows) -> None:
        """Park the events whose entity waits, a chunk at a time; those whose head is gone are
        delivered.
        """
        partition = self._partition
        while True:
            made = [
                parked_row(
                    partition, rows, at, ParkedState.WAITING, "an event of its entity is parked"
                )
                for at in np.flatnonzero(self._parking.blocked(rows)).tolist()
                if int(rows.positions[at]) not in self._parked
            ]
            if not made or self._parks(made):
                return

    def _parks(self, made: list[ParkedRow]) -> bool:
        """Park these rows in one commit; False if a head moved, after the heads are read again."""
        parking = self._parking
        parks = parking.plan(made)
        parking.limit(parks)
        try:
            self._partition.claim.write(parks=parks)
        except HeadMoved:
            parking.reread_heads()
            return False
        self._note(parking.committed(parks))
        self._parked.update(row.position for row in made)
        return True
