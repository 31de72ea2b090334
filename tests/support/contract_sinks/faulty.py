"""Sinks that claim what they do not keep, each with one fault: the suite has to name it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import Any

import semel
from semel.events import Chunk, EntityIds, Event, Minibatch
from semel.sinks import DELIVERED, Progress, Receipt, Tail, Target
from semel.verify.contract.rows import REFUSE
from semel.verify.demo.charge_server import charge_client
from support.contract_sinks.honest import (
    Box,
    HonestProbing,
    HonestRepeatable,
    HonestSequenced,
    HonestTransactional,
    Opaque,
    Whole,
    WritingFunction,
)

# -- TRANSACTIONAL


class TwoTransactions(HonestTransactional):
    """The effect first, then the progress row: a crash in between repeats it."""

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        with self.transaction():
            moved = self.moved(progress)
            self.effect(chunk)
        time.sleep(0.005)
        with self.transaction():
            self.write(moved)
        return DELIVERED


class RowFirst(HonestTransactional):
    """The progress row first, then the effect: a crash in between loses it."""

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        with self.transaction():
            self.write(self.moved(progress))
        time.sleep(0.005)
        with self.transaction():
            self.effect(chunk)
        return DELIVERED


class IgnoresLaterAttempts(HonestTransactional):
    """A zombie may write: what the row names is not looked at."""

    def refuse_late(self, stood: Progress) -> None:
        return


class IgnoresStart(HonestTransactional):
    """A call of its own that arrives late counts again."""

    def moved(self, progress: Progress) -> Progress:
        stood = self.read()
        if stood is not None and stood.minibatch == progress.minibatch:
            return replace(progress, ids=stood.ids | progress.ids)
        return progress


class KeepsLastIds(HonestTransactional):
    """Only the ids of the last chunk stand in the row."""

    def moved(self, progress: Progress) -> Progress:
        ids = progress.ids
        return replace(super().moved(progress), ids=ids)


class TellsNothing(HonestTransactional):
    """It does not report what stood in the row."""

    def take_over(self) -> Progress | None:
        super().take_over()
        return None


class ForgetsSortKey(HonestTransactional):
    """Whether a resend arrived cannot be known without it."""

    def write(self, progress: Progress) -> None:
        super().write(replace(progress, sort_key=None))


class PassesOver(HonestTransactional):
    """Leaves a refused event out of the transaction, and goes on with its entity."""

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        failed: dict[int, semel.DeliveryError] = {}
        with self.transaction():
            self.write(self.moved(progress))
            for place, event in enumerate(chunk.events()):
                try:
                    self.take(event)
                except semel.Rejected as error:
                    failed[place] = error
        return Receipt(failed)


class TurnsRound(HonestTransactional):
    """The last event of a transaction comes first."""

    def effect(self, chunk: Chunk) -> None:
        for event in reversed(list(chunk.events())):
            self.take(event)


# -- REPEATABLE


class KeysInMemory(HonestRepeatable):
    """The keys are gone with the process."""

    def __init__(self, sink: Box, target: Target) -> None:
        super().__init__(sink, target)
        self.known: set[str] = set()

    def is_new(self, key: str) -> bool:
        new = key not in self.known
        self.known.add(key)
        return new


class KeyOfAttempt(HonestRepeatable):
    """The key changes with the attempt."""

    def key(self, event: Event) -> str:
        return f"{event.key}@{self.target.attempt}"


class KeyFirst(HonestRepeatable):
    """The key is remembered before the effect happens."""

    def deliver(self, chunk: Chunk) -> Receipt:
        with self.transaction():
            new = [event for event in chunk.events() if self.is_new(event.key)]
        time.sleep(0.005)
        with self.transaction():
            for event in new:
                self.take(event)
        return DELIVERED


class BreaksOrder(HonestRepeatable):
    """An event after a refused one of its entity is delivered."""

    def deliver(self, chunk: Chunk) -> Receipt:
        failed: dict[int, semel.DeliveryError] = {}
        with self.transaction():
            for place, event in enumerate(chunk.events()):
                if event.value["note"] == REFUSE:
                    failed[place] = semel.Rejected("refused")
                elif self.is_new(event.key):
                    self.take(event)
        return Receipt(failed)


class ChunkKeys(HonestRepeatable):
    """Absorbs by the chunk's key, and says by the event's: another cut repeats."""

    def deliver(self, chunk: Chunk) -> Receipt:
        with self.transaction():
            if self.is_new(chunk.key):
                self.effect(chunk)
        return DELIVERED


class LosesRefused(HonestRepeatable):
    """What is refused is left out, and not reported."""

    def deliver(self, chunk: Chunk) -> Receipt:
        with self.transaction():
            for event in chunk.events():
                if event.value["note"] != REFUSE and self.is_new(event.key):
                    self.take(event)
        return DELIVERED


# -- places that are written whole


class PutsAfterAll(Whole):
    """Whoever puts last stands there, replaced or not."""

    def refuse_replaced(self) -> None:
        return


class LeavesThePlace(Whole):
    """What an attempt before it put there stays, where nothing is to stand."""

    def empty(self) -> None:
        if self.written:
            super().empty()


class AddsToThePlace(Whole):
    """What an attempt before it put there stays, beside what is put."""

    def empty(self) -> None:
        return


# -- PROBING


class RefusesOne(HonestProbing):
    """Leaves a refused event out and names it alone."""

    def deliver(self, chunk: Chunk) -> Receipt:
        failed: dict[int, semel.DeliveryError] = {}
        with self.transaction():
            self.connection.execute("insert or ignore into keys values (?)", (chunk.key,))
            for place, event in enumerate(chunk.events()):
                if event.entity in {chunk.event(at).entity for at in failed}:
                    failed[place] = semel.NotDelivered("one before it was refused")
                elif event.value["note"] == REFUSE:
                    failed[place] = semel.Rejected("refused")
                else:
                    self.take(event)
        return Receipt(failed)


class NeverArrived(HonestProbing):
    def arrived(self, key: str) -> bool:
        return False


class AlwaysArrived(HonestProbing):
    def arrived(self, key: str) -> bool:
        return True


# -- SEQUENCED


class StaleWriter(HonestSequenced):
    """Remembers where its log stood, instead of looking; and no epoch is looked at."""

    def __init__(self, sink: Box, target: Target) -> None:
        super().__init__(sink, target)
        self.seen = super().tail().osn

    def refuse_replaced(self) -> None:
        return

    def stands_at(self) -> int:
        return self.seen

    def append(self, chunk: Chunk, progress: Progress | None, resend: int) -> Receipt:
        receipt = super().append(chunk, progress, resend)
        self.seen = max(self.seen, *chunk.osns().tolist())
        return receipt


class NoEpoch(HonestSequenced):
    """Looks at numbers alone: a replaced writer is accepted as long as they fit."""

    def refuse_replaced(self) -> None:
        return


class TellsNoIds(HonestSequenced):
    def delivered_ids(self, minibatch: Minibatch) -> EntityIds:
        return EntityIds.EMPTY


class TellsNoResends(HonestSequenced):
    def tail(self) -> Tail:
        return replace(super().tail(), resent=0)


class AppendsSome(HonestSequenced):
    """Leaves what is refused out of the log, and names it alone."""

    def append(self, chunk: Chunk, progress: Progress | None, resend: int) -> Receipt:
        refused = [
            place for place, event in enumerate(chunk.events()) if event.value["note"] == REFUSE
        ]
        super().append(chunk, progress, resend)
        return Receipt({place: semel.Rejected("refused") for place in refused})

    def take(self, event: Event) -> None:
        if event.value["note"] != REFUSE:
            super().take(event)


# -- anybody


class Swallows(Opaque):
    """Whatever goes wrong, it says that all is well."""

    def deliver(self, chunk: Chunk) -> Receipt:
        try:
            return super().deliver(chunk)
        except Exception:
            return DELIVERED


class Drops(Opaque):
    """Loses an event now and then."""

    def take(self, event: Event) -> None:
        if event.id != 2:
            super().take(event)


class NoPairs(Opaque):
    """No receipt, but a word."""

    def deliver(self, chunk: Chunk) -> Receipt:
        super().deliver(chunk)
        answer: Any = json.dumps("fine")
        return answer  # type: ignore[no-any-return]


# -- functions with a destination to ask


@dataclass(frozen=True)
class NeverSaw:
    """Says of every event that it has not arrived."""

    def __call__(self, event: Event) -> bool:
        return False


class WritesTwice(WritingFunction):
    """Writes an event again that may have come before."""

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if event.id == 2:
            super().__call__(event)


# -- functions that call the charge server


def charge_of(event: Event) -> dict[str, Any]:
    return {"entity": event.entity, "event": event.id, "osn": event.osn, "key": event.key}


@dataclass(frozen=True)
class Charging:
    """Charges one event: an honest function over a connection."""

    url: str

    def __call__(self, event: Event) -> None:
        self.charge(event)

    def charge(self, event: Event) -> None:
        charge_client(self.url).ask("/charge", {"charges": [charge_of(event)]})


class RetriesInside(Charging):
    """Tries again when there was no answer: the first may have arrived."""

    def __call__(self, event: Event) -> None:
        try:
            self.charge(event)
        except semel.OutcomeUnknown:
            self.charge(event)


class CallsUnknownNotDelivered(Charging):
    def __call__(self, event: Event) -> None:
        try:
            self.charge(event)
        except semel.OutcomeUnknown as error:
            raise semel.NotDelivered(str(error)) from error


class CallsUnknownRejected(Charging):
    def __call__(self, event: Event) -> None:
        try:
            self.charge(event)
        except semel.OutcomeUnknown as error:
            raise semel.Rejected(str(error)) from error
