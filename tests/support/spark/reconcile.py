"""Compares what a witness counted with what the ledger says, sink by sink."""

from __future__ import annotations

import os
import random
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from semel import Ledger
from semel.ledger.client import LedgerClient
from semel.ledger.rows import ParkedRow
from semel.ledger.store.opening import open_store
from semel.ledger.verbs.parked import resolve_parked
from semel.protocol import ParkedState
from semel.verify.demo.charge_server import Charge, ChargeServer
from support.spark.driver_scripts import Name, assert_once, assert_ordered, names, repeated
from support.spark.settings import Settings

FIVE = ["opaque", "repeatable", "probing", "transactional", "sequenced"]


def seed() -> int:
    """Give the seed of this run: $SEMEL_SEED, or always the same; another one in each soak."""
    usual = random.randrange(2**32) if os.environ.get("SEMEL_SOAK") else 20_261_114
    chosen = int(os.environ.get("SEMEL_SEED") or usual)
    sys.stdout.write(f"SEMEL_SEED={chosen}\n")
    return chosen


@dataclass(frozen=True)
class Account:
    """One sink of one pipeline: what was charged there, and what the ledger has parked."""

    charges: list[Charge]
    parked: list[ParkedRow]

    @classmethod
    def of(cls, house: ChargeServer, settings: Settings, sink: str = "charge") -> Account:
        assert settings.ledger is not None
        mine = [
            charge
            for charge in house.charges(sink)
            if (charge.key or "").startswith(f"{settings.name}/{sink}/")
        ]
        with Ledger(settings.ledger) as ledger:
            return cls(mine, [row for _, row in ledger.parked(settings.name, sink)])

    def in_state(self, *states: ParkedState) -> set[Name]:
        return {(row.scope, row.event) for row in self.parked if row.state in states}

    @property
    def held(self) -> set[Name]:
        return self.in_state(ParkedState.HELD)

    def assert_exact(self, expected: Iterable[Name]) -> None:
        """Each was charged once and in order, and nothing is in anybody's way."""
        assert_once(self.charges, expected)
        assert_ordered(self.charges)
        assert not self.in_state(
            ParkedState.HELD, ParkedState.WAITING, ParkedState.REJECTED, ParkedState.SENDING
        )

    def assert_told(self, expected: Iterable[Name], *, in_doubt_max: int) -> None:
        """None was charged twice; what was not charged is parked; no more is in doubt than said."""
        wanted, charged = set(expected), set(names(self.charges))
        waiting = self.in_state(ParkedState.WAITING)
        assert repeated(self.charges) == {}
        assert charged <= wanted
        assert wanted - charged <= self.held | waiting, "lost"
        assert not waiting & charged, "an event that waits was charged"
        assert len(self.held) <= in_doubt_max
        assert_ordered(self.charges)
        first: dict[str, Any] = {}
        for entity, event in sorted(self.held, key=str):
            first[entity] = min(first.get(entity, event), event)
        assert all(first[entity] < event for entity, event in waiting), "it waits for nobody"


def judge_held(house: ChargeServer, settings: Settings, sink: str) -> int:
    """Say of each event in doubt what the witness knows, as a person would; say how many."""
    assert settings.ledger is not None
    charged = set(names(Account.of(house, settings, sink).charges))
    with Ledger(settings.ledger) as ledger:
        parked = ledger.parked(settings.name, sink)
    store = open_store(settings.ledger)
    held = [(at, row) for at, row in parked if row.state is ParkedState.HELD]
    for at, row in held:
        arrived = (row.scope, row.event) in charged
        decision = ParkedState.DELIVERED if arrived else ParkedState.RESEND
        resolve_parked(
            LedgerClient(store, settings.name), sink, at, decision, "witness", "it was counted"
        )
    store.close()
    return len(held)


def counted(expected: Iterable[Name]) -> list[Name]:
    """Give the names that counted ids have: the entity's first event is 1, and so on."""
    last: dict[str, int] = defaultdict(int)
    found: list[Name] = []
    for entity, _ in expected:
        last[entity] += 1
        found.append((entity, last[entity]))
    return found
