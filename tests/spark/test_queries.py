"""Stateful continuous queries that are killed half-way give each output once."""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict

import pytest

from semel import Ledger
from semel.verify.demo.charge_server import Charge
from semel.verify.demo.standalone import spark_environment
from support.spark.driver_scripts import TESTS, Bed, Run, assert_once, assert_ordered
from support.spark.settings import Settings
from support.spark.stateful_job import BEGAN_S, QUERIES, STEP_S, WINDOW_S

LONG_S = 300.0
KILLED = ["open.after", "complete.before", "complete.after"]


def start(bed: Bed, settings: Settings, *chosen: str) -> Run:
    """Start a driver of `support.spark.stateful_job`."""
    bed.starts += 1
    told = bed.folder / f"settings-{bed.starts}.json"
    settings.save(told)
    log = bed.folder / f"driver-{bed.starts}.log"
    environment = spark_environment(bed.group.folder, [TESTS])
    command = [sys.executable, "-m", "support.spark.stateful_job", str(told), *chosen]
    return Run(bed.group.start(command, environment, log), log)


def payments_of(bed: Bed) -> list[tuple[str, int]]:
    return [(customer, int(str(number))) for customer, number in bed.expected]


def windows(bed: Bed) -> dict[tuple[str, int], int]:
    """What each customer paid in each window that has ended when the last payment comes."""
    found: dict[tuple[str, int], int] = defaultdict(int)
    ends = max(number for _, number in payments_of(bed)) * STEP_S + BEGAN_S
    for customer, number in payments_of(bed):
        began = (number * STEP_S + BEGAN_S) // WINDOW_S * WINDOW_S
        if began + WINDOW_S <= ends:
            found[customer, began] += number % 100
    return found


def risen(bed: Bed) -> list[tuple[str, int]]:
    """The payments that are greater than the one before them of their customer."""
    last: dict[str, int] = {}
    found = []
    for customer, number in sorted(payments_of(bed), key=lambda each: each[1]):
        amount = number * 7 % 13
        if customer in last and amount > last[customer]:
            found.append((customer, number))
        last[customer] = amount
    return found


def amounts(charges: list[Charge]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for charge in charges:
        found[charge.entity].append(int(charge.amount or 0))
    return found


@pytest.mark.rows("O4", "O7", "O22", "S4", "A1", "O21")
def test_stateful_queries_that_are_killed_give_each_output_once(bed: Bed) -> None:
    bed.payments(files=4, rows=24)
    second = bed.folder / "second"
    second.mkdir()
    for file in sorted(bed.input.iterdir())[:3]:
        shutil.copy2(file, second)  # with its time: Spark reads files in that order
    bed.house.arm("open.after", after=3)
    bed.house.arm("complete.before", after=9)
    bed.house.arm("complete.after", after=9)
    settings = bed.settings(
        sink="transactional", steps=KILLED, conf={"spark.semel.second": str(second)}
    )
    codes = []
    for _ in range(6):
        run = start(bed, settings, *QUERIES)
        codes.append(run.wait())
        assert codes[-1] in (0, -9), run.said()
        if codes[-1] == 0:
            break
        bed.end_leftovers()
    assert codes == [-9, -9, -9, 0]

    expected = windows(bed)
    of = {name: bed.house.charges(name) for name in QUERIES}
    first = [charge for charge in of["both"] if int(str(charge.event)) < 10_000]
    other = [charge for charge in of["both"] if int(str(charge.event)) >= 10_000]
    for charges in (first, other, *(of[name] for name in QUERIES if name != "both")):
        assert_ordered(charges)

    assert_once(of["windowed"], [(who, began * 1_000_000) for who, began in expected])
    assert {(c.entity, c.event): c.amount for c in of["windowed"]} == {
        (who, began * 1_000_000): amount for (who, began), amount in expected.items()
    }
    by_customer: dict[str, list[int]] = defaultdict(list)
    for (who, _), amount in sorted(expected.items()):
        by_customer[who].append(amount)
    assert {who: sorted(found) for who, found in amounts(of["counted"]).items()} == {
        who: sorted(found) for who, found in by_customer.items()
    }
    for name in ("counted", "totals"):
        for who in by_customer:
            ids = [charge.event for charge in of[name] if charge.entity == who]
            assert ids == list(range(1, len(ids) + 1))
    totals = {who: found[-1] for who, found in amounts(of["totals"]).items()}
    for who, total in totals.items():
        assert total == sum(at % 100 for customer, at in payments_of(bed) if customer == who)
    assert len(of["totals"]) == 4 * 4
    assert_once(of["joined"], [(who, at) for who, at in bed.expected if who in ("c0", "c2")])
    assert_once(of["deduplicated"], bed.expected)
    again = [(who, at + 10_000) for who, at in payments_of(bed) if at < 72]
    assert_once(of["both"], [*bed.expected, *again])
    assert settings.ledger is not None
    with Ledger(settings.ledger) as ledger:
        assert sorted(ledger.pipelines()) == sorted(QUERIES)
        assert all(not ledger.parked(name) for name in QUERIES)
        for name in QUERIES:  # L, and where each input stands, whatever the identity
            inputs = ledger.summary(name).inputs
            assert len(inputs) == (2 if name == "both" else 1), (name, inputs)
            assert all("logOffset" in each for each in inputs), (name, inputs)


def killed_half_way(bed: Bed, *chosen: str, after: int) -> dict[str, list[Charge]]:
    """Run queries over four files, kill their driver once, run them to their end; give what each of
    them has charged.
    """
    bed.payments(files=4, rows=24)
    second = bed.folder / "second"
    second.mkdir()
    for file in sorted(bed.input.iterdir())[:3]:
        shutil.copy2(file, second)
    bed.house.arm("complete.before", after=after)
    settings = bed.settings(
        sink="transactional", steps=KILLED, conf={"spark.semel.second": str(second)}
    )
    run = start(bed, settings, *chosen)
    assert run.wait(LONG_S) == -9, run.said()
    bed.end_leftovers()
    start(bed, settings, *chosen).finished(LONG_S)
    return {name: bed.house.charges(name) for name in chosen}


@pytest.mark.rows("O4", "O21")
def test_a_join_of_two_streams_and_times_are_the_same_after_a_kill(bed: Bed) -> None:
    of = killed_half_way(bed, "paired", "stamped", after=3)
    assert_once(of["paired"], [(who, at) for who, at in bed.expected if int(str(at)) < 72])
    assert {c.event: c.amount for c in of["paired"]} == {at: at % 100 * 2 for at in range(72)}
    assert_once(of["stamped"], bed.expected)
    stamps = [
        {c.amount for c in of["stamped"] if int(str(c.event)) // 24 == file} for file in range(4)
    ]
    assert all(len(times) == 1 for times in stamps)  # one time for each micro-batch


@pytest.mark.rows("O4", "O21")
@pytest.mark.needs("pandas state")
def test_a_pattern_over_single_events_is_the_same_after_a_kill(bed: Bed) -> None:
    of = killed_half_way(bed, "risen", after=2)
    assert_once(of["risen"], risen(bed))
