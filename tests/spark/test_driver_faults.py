"""The driver is killed, frozen or replaced, and the ledger's server restarts under it."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from semel import Ledger
from semel.protocol import ParkedState
from semel.verify.process_group import descendants, state_of
from semel.verify.servers.postgres import PostgresServer
from support.spark.driver_scripts import Bed, Name, Run, missing, repeated, wait_for
from support.spark.faults import DRIVER_STEPS, LEDGER_STEPS
from support.spark.reconcile import FIVE, Account, counted, judge_held, seed
from support.spark.settings import Settings
from support.spark.version_needs import has

MIDDLE = "somewhere in the middle"

CHAINS = {
    "sqlite": (
        "beat.before",
        MIDDLE,
        "register.after",
        "open.after",
        "complete.before",
        "batch.after",
    ),
    "postgres": (
        "register.before",
        "batch.before",
        MIDDLE,
        "open.before",
        "complete.after",
        "beat.after",
    ),
}
"""Every step of the driver is in one of them; most of these kills meet a recovery."""

ROWS, PARTITIONS = 8, 2
FILES_AT_ONCE = 2
SMALL: dict[str, Any] = {"chunk_rows": 3, "span_chunks": 2, "lease_s": 2.0, "deadline_s": 2.0}

TRIES: Sequence[tuple[str, dict[str, str]]] = (
    ("local[2,4]", {}),
    ("local[1,4]", {"spark.sql.shuffle.partitions": "7", "spark.sql.adaptive.enabled": "false"}),
    (
        "local[4,4]",
        {
            "spark.default.parallelism": "5",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
        },
    ),
    (
        "local[3,4]",
        {
            "spark.sql.files.maxPartitionBytes": "150",
            "spark.sql.files.openCostInBytes": "1",
            "spark.sql.adaptive.coalescePartitions.enabled": "false",
        },
    ),
)
"""What changes between two starts of the same query: none of it may move an event."""


SPOILT = re.compile(r"The checkpoint location file:(\S+)/offsets should be empty")


class Trio:
    """Three pipelines in one ledger, one for each identity, each with a sink of every capability;
    one driver runs them at once. Where the source `positions` cannot be had there are two.
    """

    def __init__(self, bed: Bed, ledger: str) -> None:
        self.bed, self.ledger = bed, ledger
        self.given: list[Name] = []
        self.placed: list[Name] = []
        self.offsets = 0

    def feed(self, batches: int) -> None:
        """Let that many more minibatches come, for each of them."""
        self.bed.expected = self.given
        self.bed.payments(files=batches * FILES_AT_ONCE, rows=ROWS, customers=30)
        self.given = self.bed.expected
        self.offsets += batches * ROWS
        self.bed.positions({number: range(self.offsets) for number in range(PARTITIONS)})
        self.placed = self.bed.expected

    def settings(self, start: int = 0) -> list[Settings]:
        master, conf = TRIES[start % len(TRIES)]
        usual: dict[str, Any] = {
            "ledger": self.ledger,
            "sink": FIVE,
            "sink_settings": {**SMALL, "chunk_rows": 3 + start % 3, "span_chunks": 2 - start % 2},
            "master": master,
            "conf": conf,
            "steps": [*DRIVER_STEPS, *LEDGER_STEPS],
        }
        folder, counter = self.bed.folder, {"identity": "counter", "order_by": "payment_id"}
        made = [
            self.bed.settings(
                name="given", checkpoint=str(folder / "given"), max_files=FILES_AT_ONCE, **usual
            ),
            self.bed.settings(
                name="counter",
                checkpoint=str(folder / "counter"),
                max_files=FILES_AT_ONCE,
                identity={"entity": "customer", **counter},
                **usual,
            ),
        ]
        if not has("positions"):
            return made
        position = self.bed.settings(
            name="position",
            checkpoint=str(folder / "position"),
            max_files=ROWS,
            source="positions",
            identity={"identity": "position"},
            **usual,
        )
        return [*made, position]

    def expected(self, name: str) -> list[Name]:
        if name == "given":
            return self.given
        return counted(self.given) if name == "counter" else self.placed

    def partitions(self, name: str) -> int:
        """Say how many partitions a pipeline has: as many as its first run found best, for ever."""
        with Ledger(self.ledger) as ledger:
            return ledger.summary(name).partitions or PARTITIONS

    def assert_exact(self) -> None:
        """Each event was charged once at each sink, in order, in its own minibatch and partition;
        of an opaque one it is said where that is not known of the last crash.
        """
        for settings in self.settings():
            expected, partitions = self.expected(settings.name), self.partitions(settings.name)
            others = [Account.of(self.bed.house, settings, sink) for sink in FIVE[1:]]
            for account in others:
                account.assert_exact(expected)
            assert_in_place(others, partitions)
            opaque = Account.of(self.bed.house, settings, "opaque")
            opaque.assert_told(expected, in_doubt_max=partitions)
        named = zip(self.expected("counter"), self.given, strict=True)
        payments: dict[Name, Any] = {name: payment for name, (_, payment) in named}
        for charge in self.bed.house.charges():
            if (charge.key or "").startswith("counter/"):
                assert charge.amount == payments[charge.entity, charge.event] % 100


def assert_in_place(accounts: Sequence[Account], partitions: int) -> None:
    """An entity is in the same partition and an event in the same minibatch at every try: one that
    was cut short had reached some of the sinks, and a later one reached the others.
    """
    places: dict[str, set[str | None]] = {}
    minibatches: dict[Name, set[tuple[int, int] | None]] = {}
    for charge in [charge for account in accounts for charge in account.charges]:
        places.setdefault(charge.entity, set()).add(charge.partition)
        minibatches.setdefault((charge.entity, charge.event), set()).add(charge.minibatch)
    assert all(len(found) == 1 for found in places.values())
    assert all(len(found) == 1 for found in minibatches.values())
    assert len(set().union(*places.values())) == partitions


@pytest.mark.rows("S4", "S5", "S10", "S15", "A1", "A8", "A9", "A10", "A11")
@pytest.mark.rows("O10", "O11", "O21", "N1", "N3")
@pytest.mark.parametrize("store", CHAINS)
def test_the_driver_is_killed_at_every_step_and_started_with_other_settings(
    bed: Bed, request: pytest.FixtureRequest, store: str
) -> None:
    luck = random.Random(seed())
    ledger = f"sqlite:///{bed.folder / 'ledger.db'}"
    if store == "postgres":
        ledger = request.getfixturevalue("postgres_url")
    trio = Trio(bed, ledger)
    trio.feed(batches=8)
    for start, step in enumerate(CHAINS[store]):
        if step != MIDDLE:
            bed.house.arm(step, after=luck.randrange(2) if start else 0)
        more = len(bed.house.charges()) + luck.randrange(20, 200)

        def kill(run: Run, step: str = step, more: int = more) -> None:
            if step == MIDDLE:
                wait_for_charges(bed, run, more)
                kill_driver(run, luck)

        run = run_to_its_end(bed, trio.settings(start), kill)
        assert run.wait() == -signal.SIGKILL, f"{step} was not reached\n{run.said()}"
    assert {each.name for each in bed.house.taken()} == {*CHAINS[store]} - {MIDDLE}

    # What is in doubt is judged by the witness, and then everything is exact. On a busy machine a
    # query may have come to nothing before its driver was killed, every time.
    with Ledger(ledger) as opened:
        begun = opened.pipelines()
    for settings in [each for each in trio.settings() if each.name in begun]:
        for sink in FIVE[1:]:
            assert not Account.of(bed.house, settings, sink).parked
        held_max = trio.partitions(settings.name) * len(CHAINS[store])
        assert judge_held(bed.house, settings, "opaque") <= held_max
    trio.feed(batches=2)
    run_to_its_end(bed, trio.settings(len(CHAINS[store]))).finished()
    trio.assert_exact()


def run_to_its_end(
    bed: Bed, every: Sequence[Settings], meanwhile: Callable[[Run], None] = lambda _: None
) -> Run:
    """Run a driver; once more if Spark gave up on a process of its own that started too slowly (it
    waits 10 s for the reader of a Python source, and no setting changes that), or refuses to begin
    where a driver was killed while Spark wrote the very first offsets.
    """
    for _ in range(3):
        run = bed.start(*every, script="support.spark.concurrent_job")
        meanwhile(run)
        if run.wait(240) != 1:
            return run
        spoilt = set(SPOILT.findall(run.said()))
        for checkpoint in spoilt:  # nothing had begun there
            shutil.rmtree(checkpoint)
        if not spoilt and "failed to connect back" not in run.said():
            return run
    raise AssertionError("Spark gives its readers too little time on this machine")


def wait_for_charges(bed: Bed, run: Run, count: int) -> None:
    wait_for(lambda: len(bed.house.charges()) >= count, run, 120)


def kill_driver(run: Run, luck: random.Random) -> None:
    """Kill both halves of a driver, one of them first; its workers notice by themselves."""
    assert run.jvm is not None
    halves = [run.pid, run.jvm]
    luck.shuffle(halves)
    for pid in halves:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.rows("S15", "A9", "N1", "N3")
def test_the_ledgers_server_restarts_while_workers_are_killed_and_the_query_goes_on(
    bed: Bed, postgres: PostgresServer, postgres_url: str
) -> None:
    bed.payments(files=6, rows=30, customers=40)
    steps = ["claim.after", "span.before", "span.after", "effect.before", "effect.after"]
    settings = bed.settings(
        ledger=postgres_url,
        master="local[2,12]",
        sink=FIVE,
        words={"partitions": PARTITIONS},
        sink_settings={**SMALL, "steps": steps},
        delay_s=0.005,
    )
    run = bed.start(settings)
    wait_for_charges(bed, run, 100)
    postgres.stop()
    for step in steps:
        bed.house.arm(step)
    for worker in run.workers()[:1]:
        os.kill(worker, signal.SIGKILL)
    postgres.start()
    run.finished(300)
    assert {each.name for each in bed.house.taken()} == set(steps)
    assert "LedgerUnavailable" not in run.said()
    for sink in FIVE[1:]:
        Account.of(bed.house, settings, sink).assert_exact(bed.expected)
    opaque = Account.of(bed.house, settings, "opaque")
    opaque.assert_told(bed.expected, in_doubt_max=len(steps) + 1)


@pytest.mark.rows("S19", "A17", "A18", "N6")
def test_a_driver_that_beats_is_left_alone_and_a_frozen_one_is_replaced_and_fenced(
    bed: Bed,
) -> None:
    bed.payments(files=2, rows=30, customers=40)
    settings = bed.settings(
        sink=FIVE,
        max_files=2,
        words={"partitions": PARTITIONS},
        sink_settings={**SMALL, "steps": ["effect.before"]},
    )
    # Both workers stop before an effect: one in an early sink, the other in a late one.
    bed.house.arm("effect.before", "stop", after=5)
    bed.house.arm("effect.before", "stop", after=80)
    first = bed.start(settings)
    wait_for(lambda: len(bed.house.taken()) == 2, first)
    wait_for(lambda: all(state_of(each.pid or 0) == "T" for each in bed.house.taken()), first)
    charged = bed.house.charges()

    second = bed.start(settings)
    assert second.wait() == 1, second.said()
    assert "ConfigurationError" in second.said()
    assert f"by process {first.pid} on {socket.gethostname()}" in second.said()
    assert bed.house.charges() == charged
    assert standing(settings)["run"] == 1
    assert standing(settings)["state"] == "running"
    assert first.process.poll() is None

    frozen = descendants(first.pid)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    bed.run(settings)
    assert standing(settings)["run"] == 2
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    assert first.wait() == 1, first.said()
    assert "Fenced" in first.said()
    assert standing(settings)["run"] == 2
    for sink in ("repeatable", "transactional", "sequenced"):
        Account.of(bed.house, settings, sink).assert_exact(bed.expected)
    Account.of(bed.house, settings, "opaque").assert_told(bed.expected, in_doubt_max=PARTITIONS)
    probing = Account.of(bed.house, settings, "probing")
    assert missing(probing.charges, bed.expected) == set()
    assert set(repeated(probing.charges)) <= probing.in_state(ParkedState.LATE)


def standing(settings: Settings) -> dict[str, Any]:
    """Say what `semel status` says."""
    assert settings.ledger is not None
    words = ["status", settings.name, "--watch", "--json", "--ledger", settings.ledger]
    told = subprocess.run(
        [sys.executable, "-c", "from semel.cli.main import main; main()", *words],
        capture_output=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(told.stdout)
    return found
