"""Sinks with slips that a person makes: numbers compared as text, keys that fold or are cut, a row
that does not keep what was refused; and an honest one that does keep it.
"""

from __future__ import annotations

from dataclasses import replace

import semel
from semel.events import Chunk, Event
from semel.sinks import Progress, Receipt
from semel.verify.contract.rows import REFUSE
from support.contract_sinks.honest import HonestRepeatable, HonestTransactional


class ComparesAsText(HonestTransactional):
    """Keeps attempts in a column of text, where 10 comes before 9."""

    def refuse_late(self, stood: Progress) -> None:
        if str(stood.attempt) > str(self.target.attempt):
            raise semel.Fenced(f"the progress row names attempt {stood.attempt}")


class ComparesMinibatchesAsText(HonestTransactional):
    """Keeps minibatches in a column of text, where 1.10 comes before 1.9."""

    def refuse_late(self, stood: Progress) -> None:
        super().refuse_late(stood)
        if str(stood.minibatch) > str(self.target.minibatch):
            raise semel.Fenced(f"the progress row names minibatch {stood.minibatch}")


class KeepsRefused(HonestTransactional):
    """Leaves a refused event and what follows it out of the transaction, and keeps them in the row:
    an honest one.
    """

    def deliver_with(self, chunk: Chunk, progress: Progress) -> Receipt:
        failed: dict[int, semel.DeliveryError] = {}
        with self.transaction():
            moved = self.moved(progress)
            entities: set[str] = set()
            for place, event in enumerate(chunk.events()):
                if event.entity in entities:
                    failed[place] = semel.NotDelivered("one before it was refused")
                elif event.value.get("note") == REFUSE:
                    failed[place] = semel.Rejected("refused")
                    entities.add(event.entity)
                else:
                    self.take(event)
            self.write(self.kept(moved, chunk, failed))
        return Receipt(failed)

    def kept(
        self, moved: Progress, chunk: Chunk, failed: dict[int, semel.DeliveryError]
    ) -> Progress:
        at = {place: int(chunk.rows.positions[place]) for place in failed}
        return replace(
            moved,
            rejected={at[place]: str(why) for place, why in failed.items()},
            rejected_events={
                at[place]: (chunk.rows.scope(place), chunk.rows.id(place)) for place in failed
            },
        )


class ForgetsRefused(KeepsRefused):
    """What the transaction left out stands in no row: a crash before it is parked loses it."""

    def kept(
        self, moved: Progress, chunk: Chunk, failed: dict[int, semel.DeliveryError]
    ) -> Progress:
        del chunk, failed
        return moved


class FoldsCase(HonestRepeatable):
    """Keeps keys in a column whose collation does not tell a from A."""

    def key(self, event: Event) -> str:
        return event.key.casefold()


class CutsKeys(HonestRepeatable):
    """Keeps the first 255 characters of a key, as a column of that width may."""

    def key(self, event: Event) -> str:
        return event.key[:255]


class TrimsKeys(HonestRepeatable):
    """Keeps keys in a column that pads with blanks, so that they do not count at the end."""

    def key(self, event: Event) -> str:
        entity, _, number = event.key.rpartition("/")
        return f"{entity.rstrip()}/{number}"
