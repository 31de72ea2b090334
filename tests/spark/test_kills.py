"""Python workers are killed at every step of the protocol, and at any time."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from semel.protocol import ParkedState
from semel.verify.demo.charge_server import ChargeServer
from support.spark.driver_scripts import Bed, Name, Run, missing, names, repeated, wait_for
from support.spark.reconcile import FIVE, Account, counted, seed
from support.spark.settings import Settings
from support.spark.version_needs import has

GIVEN = {"entity": "customer", "event": "payment_id"}
COUNTER = {"identity": "counter", "entity": "customer", "order_by": "payment_id"}
POSITION = {"identity": "position"}

IDENTITIES = {
    "opaque": GIVEN,
    "repeatable": POSITION if has("positions") else GIVEN,
    "probing": COUNTER,
    "transactional": GIVEN,
    "sequenced": COUNTER,
}
"""Each capability at every step; every identity with both kinds of them."""

CLAIMS = {"claim.before": 6, "claim.after": 6, "take.before": 2, "take.after": 2}
EFFECTS = {"effect.before": 20, "effect.after": 20}
SPANS = {"span.before": 8, "span.after": 8}
SESSIONS = {"session.open": 6}

STEPS = {
    "opaque": CLAIMS | EFFECTS | SPANS,
    "repeatable": CLAIMS | EFFECTS | SPANS | SESSIONS,
    "probing": CLAIMS | EFFECTS | SPANS | SESSIONS,
    "transactional": CLAIMS | EFFECTS | SESSIONS,
    "sequenced": CLAIMS | EFFECTS | SESSIONS,
}
"""The steps of a task, and how often each is reached at least: `take` only by whoever recovers."""

SMALL: dict[str, Any] = {"chunk_rows": 2, "span_chunks": 2, "lease_s": 1.0, "deadline_s": 1.0}


class Rounds:
    """Queries that one driver runs in turn, each with a witness of its own."""

    def __init__(self, bed: Bed, stack: ExitStack) -> None:
        self._bed, self._stack = bed, stack
        self.houses: dict[str, ChargeServer] = {}
        self.settings: dict[str, Settings] = {}

    def add(self, name: str, identity: dict[str, str], **changes: Any) -> ChargeServer:
        house = self._stack.enter_context(ChargeServer())
        positions = identity == POSITION
        self.houses[name] = house
        self.settings[name] = self._bed.settings(
            name=name,
            house=house.url,
            checkpoint=str(self._bed.folder / name),
            master="local[2,12]",  # a task may fail often
            identity=identity,
            source="positions" if positions else "files",
            words={} if positions else {"partitions": 2},
            max_files=12 if positions else 1,
            **changes,
        )
        return house

    def account(self, name: str, sink: str = "charge") -> Account:
        return Account.of(self.houses[name], self.settings[name], sink)


@pytest.fixture
def rounds(bed: Bed) -> Iterator[Rounds]:
    with ExitStack() as stack:
        yield Rounds(bed, stack)


@pytest.mark.rows("S4", "S5", "S10", "S15", "A9", "A10", "O8", "O10", "N1", "N3")
def test_workers_are_killed_at_every_step_and_nothing_is_lost_or_repeated(
    bed: Bed, rounds: Rounds
) -> None:
    luck = random.Random(seed())
    bed.payments(files=4, rows=24, customers=24)
    given = bed.expected
    bed.positions({0: range(48), 1: range(48)})
    expected = {"entity": given, "counter": counted(given), "position": bed.expected}
    for sink, steps in STEPS.items():
        house = rounds.add(
            sink, IDENTITIES[sink], sink=sink, sink_settings={**SMALL, "steps": list(steps)}
        )
        for step, reached in steps.items():
            house.arm(step, after=luck.randrange(reached))
    for policy in ("resend", "skip"):
        settled = {"on_doubt": policy, "steps": list(EFFECTS), **SMALL}
        house = rounds.add(policy, GIVEN, sink="opaque", sink_settings=settled)
        for step in EFFECTS:
            house.arm(step, after=luck.randrange(20))
    rounds.add("random", GIVEN, sink=FIVE, sink_settings=SMALL)

    run = bed.start(*rounds.settings.values(), script="support.spark.sequential_job")
    wait_for(lambda: "begin random" in run.said(), run, 400)
    killed = kill_workers_at_random(run, luck)
    run.finished()

    for name, identity in IDENTITIES.items():
        taken = Counter(each.name for each in rounds.houses[name].taken())
        assert taken == dict.fromkeys(STEPS[name], 1), f"{name}: not every step was reached"
        wanted = expected[identity.get("identity", "entity")]
        if name == "opaque":
            rounds.account(name).assert_told(wanted, in_doubt_max=len(STEPS[name]))
        else:
            rounds.account(name).assert_exact(wanted)
    for sink in FIVE[1:]:
        rounds.account("random", sink).assert_exact(given)
    rounds.account("random", "opaque").assert_told(given, in_doubt_max=killed)
    assert_resent(rounds.account("resend"), given)
    assert_skipped(rounds.account("skip"), given)


def kill_workers_at_random(run: Run, luck: random.Random, kills: int = 6) -> int:
    """Kill Python workers while the last round runs; say how many."""
    killed = 0
    while killed < kills and "end random" not in run.said() and run.process.poll() is None:
        time.sleep(luck.uniform(0.2, 1.0))
        workers = run.workers()
        if workers:
            with suppress(ProcessLookupError):
                os.kill(luck.choice(workers), signal.SIGKILL)
            killed += 1
    return killed


def assert_resent(account: Account, expected: Iterable[Name]) -> None:
    """Two were in doubt and sent again: the one that had arrived is there twice, as reported."""
    told = account.in_state(ParkedState.RESENT)
    assert missing(account.charges, expected) == set()
    assert len(told) == 2
    assert set(repeated(account.charges)) <= told
    assert len(account.charges) == len(set(names(account.charges))) + 1


def assert_skipped(account: Account, expected: Iterable[Name]) -> None:
    """Two were in doubt and not sent again: the one that had not arrived is not there."""
    told = account.in_state(ParkedState.SKIPPED)
    assert repeated(account.charges) == {}
    assert len(told) == 2
    assert len(missing(account.charges, expected)) == 1
    assert missing(account.charges, expected) <= told
