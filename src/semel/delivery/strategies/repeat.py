"""The calls for one chunk at a REPEATABLE destination, until each of its events has an outcome.

Always true:
- by chunk key a chunk is repeated whole, under its key; by event key only events without an outcome
  are repeated, each under its own key;
- a refusal counts as one if the event was never sent before, or if its earlier calls were all
  answered; of any other event it is a doubt (`RefusedInDoubt`);
- an event that was never sent is not in doubt.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from semel.delivery.calling import Forgotten, RefusedInDoubt
from semel.errors import DeliveryError, NotDelivered, OutcomeUnknown, Rejected
from semel.protocol import OnReject
from semel.sinks import DELIVERED, Receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from semel.delivery.assignment import SinkPartition
    from semel.events import Chunk

UNANSWERED_MAX = 10
"""So many events of a chunk without an answer look like a destination that is down."""

TRIES_MAX = 3
"""How many attempts repeat events that a destination did not answer, before the next attempt holds
them."""

UNTRIED = NotDelivered("not tried: an earlier event of its entity failed")


def unanswered(failures: Mapping[int, DeliveryError], count: int) -> list[DeliveryError]:
    """Return the unanswered failures if so little of a chunk of `count` events was answered that
    the destination may be down: no event was answered, or too many were not.
    """
    refused = any(isinstance(why, Rejected | RefusedInDoubt) for why in failures.values())
    silent = [why for why in failures.values() if _silent(why)]
    answered = refused or len(failures) < count
    return [] if answered and len(silent) < UNANSWERED_MAX else silent


def _silent(why: DeliveryError | None) -> bool:
    return isinstance(why, OutcomeUnknown) and not isinstance(why, RefusedInDoubt)


class Repeating:
    """The delivery of one chunk.

    Attributes:
        unsure: the positions of events that may have arrived without an answer: at first those that
            an earlier attempt left so, then as the calls show. `send` gets them.
        arrived: the positions of the events that are known to have arrived.
    """

    def __init__(
        self,
        partition: SinkPartition,
        chunk: Chunk,
        unsure: AbstractSet[int],
        send: Callable[[Chunk, AbstractSet[int]], Receipt | DeliveryError],
    ) -> None:
        self._partition, self._chunk, self._send = partition, chunk, send
        self.unsure = set(unsure)
        self._by_event = partition.sink.keyed_by_event
        self.arrived: set[int] = set()
        self._failures: dict[int, DeliveryError] = {}
        self._unanswered = 0

    def run(self) -> Receipt | Rejected:
        """Call until every outcome is known or the retries are used up.

        Returns `Rejected` only if the whole chunk was refused and nothing of it was sent before.
        Raises `NotDelivered` if the destination cannot be reached.
        """
        left: Sequence[int] = range(len(self._chunk))
        result: Receipt | DeliveryError = DELIVERED
        try:
            for _ in self._partition.sink.retry.tries(self._partition.runtime):
                result = self._call(left)
                if not self._failures:
                    return DELIVERED
                if isinstance(result, Rejected) and not self._doubtful(left):
                    if len(left) == len(self._chunk):
                        return result
                    self._isolate(left)
                elif isinstance(result, Rejected) and self._by_event:
                    self._isolate(left)
                left = self._left(left)
                if not left:
                    return self._receipt()
            if self._by_event and not isinstance(result, Receipt):
                self._isolate(left)
        except Forgotten:
            self._forget()
        return self._receipt()

    @cached_property
    def _positions(self) -> list[int]:
        positions: list[int] = self._chunk.rows.positions.tolist()
        return positions

    def _call(self, places: Sequence[int]) -> Receipt | DeliveryError:
        """Send these events and note the outcome of each."""
        chunk = self._chunk
        if len(places) < len(chunk):
            chosen = np.zeros(len(chunk), np.bool_)
            chosen[list(places)] = True
            chunk = replace(chunk, rows=chunk.rows.take(chosen))
        result = self._send(chunk, self.unsure)
        if isinstance(result, Receipt) and not (result.failures or self.unsure or self._failures):
            return result  # nearly always: no single event to note
        for at, place in enumerate(places):
            self._note(place, result.failures.get(at) if isinstance(result, Receipt) else result)
        return result

    def _note(self, place: int, why: DeliveryError | None) -> None:
        """Note one outcome, given the earlier calls."""
        position = self._positions[place]
        if why is None:
            self._failures.pop(place, None)
            self.unsure.discard(position)
            self.arrived.add(position)
            return
        if position in self.arrived:
            return  # by chunk key it was repeated with the others: it has arrived all the same
        if isinstance(why, OutcomeUnknown):
            self.unsure.add(position)
        elif position in self.unsure:
            doubt = RefusedInDoubt.after(why) if isinstance(why, Rejected) else None
            why = doubt or OutcomeUnknown(f"it may have arrived with an earlier call; then: {why}")
        self._failures[place] = why

    def _left(self, places: Sequence[int]) -> list[int]:
        """Return what is to be repeated: everything, or the events that have their own key and no
        outcome, and wait for no earlier event of their entity.
        """
        open_ = [place for place in places if self._open(place)]
        if not self._by_event:
            return list(places) if open_ else []
        blocked = self._blocked(len(self._chunk), lambda why: not _silent(why)) if open_ else {}
        return [place for place in open_ if blocked.get(self._entity(place), place) >= place]

    def _entity(self, place: int) -> tuple[str, str]:
        return self._chunk.rows.entity(place), self._chunk.rows.scope(place)

    def _blocked(
        self, before: int, counts: Callable[[DeliveryError], bool] = lambda _: True
    ) -> dict[tuple[str, str], int]:
        """Return the entities that wait for an event of theirs which failed at a place `before`,
        each with the first such place; a dead letter blocks only under `OnReject.BLOCK`.
        """
        if not self._partition.ordered(self._chunk.rows):
            return {}
        blocks = self._partition.sink.on_reject is OnReject.BLOCK
        found: dict[tuple[str, str], int] = {}
        for place, why in sorted(self._failures.items()):
            if place < before and counts(why) and (blocks or not isinstance(why, Rejected)):
                found.setdefault(self._entity(place), place)
        return found

    def _open(self, place: int) -> bool:
        return _silent(self._failures.get(place))

    def _doubtful(self, places: Sequence[int]) -> bool:
        return any(self._positions[place] in self.unsure for place in places)

    # -- one answer for several events, by event key

    def _isolate(self, places: Sequence[int]) -> None:
        """Find out which events of a refused or unanswered call are the cause."""
        if len(places) > 1:
            for place in places:
                if self._positions[place] in self.unsure:
                    if not self._open(place):
                        self._failures[place] = OutcomeUnknown("it may have arrived with others")
                else:
                    self._failures[place] = NotDelivered("refused with others, not tried alone")
        self._unanswered = 0
        self._part(places)

    def _part(self, places: Sequence[int]) -> None:
        """Send halves of what got one answer, once each, until every event has its own answer; an
        event behind an unanswered one of its entity is not sent.
        """
        if len(places) < 2:
            self._unanswered += any(self._open(place) for place in places)
            return
        middle = len(places) // 2
        for half in (places[:middle], places[middle:]):
            free = self._free(half)
            if not free or self._unanswered >= UNANSWERED_MAX:
                continue
            result = self._call(free)
            if not isinstance(result, Receipt):
                self._part(free)

    def _free(self, places: Sequence[int]) -> list[int]:
        """Leave out events that wait behind one that failed; at least they were not sent again."""
        blocked = self._blocked(places[0])
        free = []
        for place in places:
            if self._entity(place) not in blocked:
                free.append(place)
            elif self._positions[place] not in self.unsure:
                self._failures[place] = UNTRIED
        return free

    # -- the result

    def _forget(self) -> None:
        """Doubt what may have arrived, since its key may be forgotten; the rest was not sent."""
        doubt = OutcomeUnknown("it may have been sent longer ago than its key is remembered")
        for place, position in enumerate(self._positions):
            if position in self.unsure:
                self._failures.setdefault(place, doubt)
            elif position not in self.arrived:
                self._failures.setdefault(place, NotDelivered("not sent"))

    def _receipt(self) -> Receipt:
        return Receipt(dict(sorted(self._failures.items()))) if self._failures else DELIVERED
