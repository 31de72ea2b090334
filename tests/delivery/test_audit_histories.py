"""The audit log over random histories: crashes, lost replies, decisions, renames, lost checkpoints
and days that are removed, in any order. Each event has one row, and one more if it was resolved.

`SEMEL_SEED` repeats a run; the seed is in the name of what failed.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import date
from pathlib import Path
from random import Random

import pytest

from semel.delivery import audit
from semel.delivery.audit import Auditing
from semel.ledger import Lifecycle
from semel.ledger.verbs import audited
from semel.protocol import ParkedState
from semel.sinks import AuditLog, days_ago
from semel.streams import stream_of_pipeline
from support.audit import audit_rows
from support.destinations import Crash, fine, lost, lost_on_the_way
from support.pipeline import KINDS, World

SEED = int(os.environ.get("SEMEL_SEED", "20261119"))
HISTORIES = 30
STEPS = 14
DAY_S = 86_400.0
REMEMBERED_S = 6 * DAY_S
"""A checkpoint is not lost later than this: ids that are forgotten then stop the pipeline."""


class History:
    """One pipeline, and what has to be in its audit log."""

    def __init__(self, seed: str, folder: Path) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.kind = self.random.choice(sorted(KINDS))
        destination, settings = KINDS[self.kind]()
        self.world = World(audit=AuditLog(folder))
        self.world.add(destination, **settings)
        self.world.start()
        self.batch, self.query, self.names = 0, "q0", 0
        self.events: list[str] = []
        self.resolved: set[str] = set()
        self.removed_before = date.min
        self.told: list[str] = []

    def live(self) -> None:
        """Take some random steps, then two without a fault."""
        steps = [self.deliver, self.deliver, self.deliver, self.start, self.decide, self.rename]
        steps += [self.lose_checkpoint, self.pass_time, self.remove_days]
        for _ in range(STEPS):
            self.random.choice(steps)()
        self.start()
        for _ in range(2):
            self.deliver(faults=False)

    def deliver(self, *, faults: bool = True, again: str = "") -> None:
        """Deliver a minibatch; whatever dies is started again and replays it."""
        fresh = [
            f"{self.random.choice('abc')}{len(self.events) + at + 1}"
            for at in range(self.random.randint(1, 4))
        ]
        text = " ".join([*again.split(), *fresh])
        world = self.world
        world.wire.forget()
        if faults:
            replies = [fine, fine, fine, lost, lost_on_the_way]
            world.out.plan(*(self.random.choice(replies) for _ in range(self.random.randint(0, 4))))
            if self.random.random() < 0.3:
                world.out.refuses.add(self.random.choice(fresh))
            if self.random.random() < 0.5:
                moment = self.random.choice(("crash_before", "crash_after"))
                setattr(world.wire, moment, self.random.randint(1, 25))
        self.told.append(f"deliver {text!r} {vars(world.wire)}")
        self.events += fresh
        while True:
            try:
                world.minibatch(self.batch, text, self.query)
            except Crash:
                world.wire.forget()
                world.clock.move(100)
                self.start()
                if self.random.random() < 0.35 and world.clock.now < REMEMBERED_S:
                    self.told.append("its checkpoint is lost")
                    self.query, self.batch, text = f"q{self.query}", 0, " ".join(self.events)
            else:
                break
        world.wire.forget()
        self.batch += 1

    def start(self) -> None:
        self.told.append("start")
        self.world.start()

    def decide(self) -> None:
        """A person resolves an event that waits for one."""
        states = (ParkedState.HELD, ParkedState.REJECTED)
        waiting = [row for _, row in self.world.parked_rows() if row.state in states]
        if waiting:
            row = self.random.choice(waiting)
            name = self.world._name(row)
            decision = self.random.choice(("delivered", "discarded", "resend"))
            self.told.append(f"{decision} {name}")
            self.world.resolve(name, decision)

    def rename(self) -> None:
        self.names += 1
        new = f"pay{self.names}"
        self.told.append(f"rename {new}")
        stream = stream_of_pipeline(self.world.client.pipeline)
        Lifecycle(self.world.client, stream).rename(new, stream_of_pipeline(new), "ann")
        self.world.take_name(new)
        self.world.start()

    def lose_checkpoint(self) -> None:
        """Spark reads everything again."""
        if self.world.clock.now > REMEMBERED_S:
            return
        self.told.append("lose checkpoint")
        self.query, self.batch = f"q{self.query}", 0
        self.world.clock.move(100)
        self.world.start()
        self.deliver(again=" ".join(self.events))

    def pass_time(self) -> None:
        self.told.append("a day passes")
        self.world.clock.move(DAY_S)

    def remove_days(self) -> None:
        """Remove what is older than a day."""
        before = days_ago(self.world.clock.wall(), 1)
        if before > date(1970, 1, 1):
            self.told.append(f"remove before {before}")
            AuditLog(self.folder).prune(before)
            self.removed_before = max(before, self.removed_before)

    def findings(self) -> list[str]:
        rows = audit_rows(self.folder, "pay")
        delivered = Counter(f"{each['entity']}{each['event']}" for each in rows if each["attempt"])
        later = Counter(f"{each['entity']}{each['event']}" for each in rows if not each["attempt"])
        wrong = [f"{name} has {count} rows" for name, count in delivered.items() if count != 1]
        wrong += [f"{name} resolved {count} times" for name, count in later.items() if count != 1]
        if self.removed_before == date.min:
            wrong += [f"{name} has no row" for name in self.events if name not in delivered]
        settled = (ParkedState.DELIVERED, ParkedState.DISCARDED)
        for _, row in self.world.parked_rows():
            name = self.world._name(row)
            if row.state in settled and row.recorded and not later[name]:
                day = row.recorded[4:14]
                if date.fromisoformat(day) >= self.removed_before:
                    wrong.append(f"{name} is resolved and has no row")
            if row.state not in settled and later[name]:
                wrong.append(f"{name} is {row.state.value} and has a row that it is resolved")
        arrived = Counter(self.world.out.seen.split())
        wrong += [
            f"{name} is recorded as delivered and did not arrive"
            for each in rows
            if each["attempt"]
            and each["outcome"] == "delivered"
            and not arrived[name := f"{each['entity']}{each['event']}"]
        ]
        return wrong


PLANTED = {
    "what was complete is not shown again": (Auditing, "show_left", lambda *_: None),
    "what is left is not recorded": (Auditing, "record_closed", lambda *_: None),
    "what was resolved is recorded again": (
        audited,
        "needs_record",
        lambda row: row.state in (ParkedState.DELIVERED, ParkedState.DISCARDED),
    ),
    "what is parked is delivered": (audit, "_outcome", lambda _: 0),
    "no file is shown": (AuditLog, "show", lambda *_: None),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_mistake_is_found(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*PLANTED[planted])
    for at in range(60):
        history = History(f"planted/{at}", tmp_path / str(at))
        history.live()
        if history.findings():
            return
    raise AssertionError("no history found it")


@pytest.mark.parametrize("at", range(HISTORIES))
def test_any_history_leaves_each_event_one_row(at: int, tmp_path: Path) -> None:
    seed = f"{SEED}/{at}"
    history = History(seed, tmp_path)
    history.live()
    assert history.findings() == [], "\n".join([seed, history.kind, *history.told])
