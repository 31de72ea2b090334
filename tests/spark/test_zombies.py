"""Python workers that sleep, are replaced, and wake up: they repeat nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from semel.protocol import ParkedState
from semel.verify.demo.charge_server import Call
from semel.verify.demo.standalone import StandaloneCluster
from support.spark.clusters import (
    BOTH,
    LONG_S,
    SPECULATING,
    driver,
    executor_of,
    go_on,
    held_by,
    kill,
    partitions,
    release,
    wait_until_complete,
)
from support.spark.driver_scripts import Bed, Run, missing, names, repeated, wait_for
from support.spark.reconcile import Account
from support.spark.settings import Settings

ROWS = 80


def refused(call: Call) -> bool:
    return call.status == 409


def absorbed(call: Call) -> bool:
    return call.effects == 0


@pytest.mark.rows("S19", "A17")
@pytest.mark.parametrize(
    ("capability", "harmless"),
    [("transactional", refused), ("sequenced", refused), ("repeatable", absorbed)],
)
def test_a_worker_that_speculation_replaced_wakes_up_and_repeats_nothing(
    bed: Bed, cluster: StandaloneCluster, capability: str, harmless: Callable[[Call], bool]
) -> None:
    house = bed.house
    steps = ["claim.after", "effect.before"]
    settings = bed.settings(
        master=cluster.url,
        sink=capability,
        sink_settings={"steps": [*steps, "effect.after"], "chunk_rows": 2, "span_chunks": 1},
        trigger=0.2,
        delay_s=0.1,
        conf=SPECULATING,
    )
    with driver(bed, settings) as run:
        for batch, step in enumerate(steps):
            stopped = partial(taken_since, bed, step, len(house.taken(step)))
            house.arm(step, "stop", after=0 if step == "claim.after" else 3)
            bed.payments(files=1, rows=ROWS, customers=8)
            zombie = wait_for(stopped, run, LONG_S)[0]
            winner = hold_the_winner(bed, run, settings, batch, zombie)
            calls = partial(calls_since, bed, zombie, len(house.calls()))
            go_on(zombie)
            wait_for(calls, run, LONG_S)
            go_on(winner)
            wait_until_complete(run, settings, batch)
            assert all(harmless(call) for call in calls())
            attempts = {tuple(row["attempt"]) for row in partitions(settings, batch).values()}
            assert not attempts & {call.attempt for call in calls()}, "its report was used"
            Account.of(house, settings).assert_exact(bed.expected)
        bed.payments(files=1, rows=ROWS, customers=8)
        wait_until_complete(run, settings, len(steps))
    Account.of(house, settings).assert_exact(bed.expected)


def taken_since(bed: Bed, step: str, before: int) -> list[int]:
    """Give the processes that stopped at a step since."""
    return [each.pid for each in bed.house.taken(step)[before:] if each.pid is not None]


def calls_since(bed: Bed, pid: int, before: int) -> list[Call]:
    """Give what a process has asked for since."""
    return [call for call in bed.house.calls()[before:] if call.pid == pid]


def hold_the_winner(bed: Bed, run: Run, settings: Settings, batch: int, zombie: int) -> int:
    """Wait until another attempt has the zombie's partition and is beyond it; stop that one too."""
    row = held_by(settings, batch, zombie)

    def taken() -> bool:
        return bool(partitions(settings, batch)[row["partition"]]["attempt"] > row["attempt"])

    wait_for(taken, run, LONG_S)
    stopped = partial(taken_since, bed, "effect.after", len(bed.house.taken("effect.after")))
    bed.house.arm("effect.after", "stop", after=4)
    winner: int = wait_for(stopped, run, LONG_S)[0]
    assert winner != zombie
    return winner


def lose_a_map_output(bed: Bed, run: Run, cluster: StandaloneCluster, step: str) -> int:
    """Stop both workers at a step and kill the executor of one: the map stage, and with it both
    partitions, are tried again. Give the other worker: its task lives on.
    """
    stopped = partial(taken_since, bed, step, len(bed.house.taken(step)))
    bed.house.arm(step, "stop", times=2, after=2)
    wait_for(lambda: len(stopped()) == 2, run, LONG_S)
    zombie, killed = stopped()
    kill(executor_of(cluster, killed))
    return zombie


def retried(bed: Bed, cluster: StandaloneCluster, capability: str) -> Settings:
    """Two minibatches whose two map tasks ran on two executors."""
    bed.payments(files=4, rows=ROWS // 2, customers=8)
    chunks = {"chunk_rows": 2, "span_chunks": 1}
    times = {"lease_s": 1.0, "deadline_s": 1.0}
    return bed.settings(
        master=cluster.url,
        sink=capability,
        sink_settings={"steps": ["effect.before", "effect.after"], **chunks, **times},
        max_files=2,
        delay_s=0.1,
        conf=BOTH,
    )


@pytest.mark.rows("S15", "S19", "S21", "A17", "N3", "N6")
@pytest.mark.parametrize("capability", ["opaque", "transactional"])
def test_two_attempts_of_a_partition_live_at_once_when_a_stage_is_tried_again(
    bed: Bed, cluster: StandaloneCluster, capability: str
) -> None:
    house = bed.house
    settings = retried(bed, cluster, capability)
    run = bed.start(settings)

    # In the first minibatch a worker sleeps until its replacement is far beyond it.
    zombie = lose_a_map_output(bed, run, cluster, "effect.before")
    winner = hold_the_winner(bed, run, settings, 0, zombie)
    calls = partial(calls_since, bed, zombie, len(house.calls()))
    go_on(zombie)
    wait_for(calls, run, LONG_S)
    go_on(winner)
    if capability == "transactional":
        assert all(refused(call) for call in calls())

    # In the second one both go on at once.
    wait_until_complete(run, settings, 0)
    zombie = lose_a_map_output(bed, run, cluster, "effect.before")
    row = held_by(settings, 1, zombie)
    wait_for(
        lambda: partitions(settings, 1)[row["partition"]]["attempt"] > row["attempt"], run, LONG_S
    )
    go_on(zombie)
    run.finished(LONG_S)

    told = Account.of(house, settings)
    told.assert_told(bed.expected, in_doubt_max=4 if capability == "opaque" else 0)
    if capability == "opaque":
        assert told.held
        release(bed, settings)
    Account.of(house, settings).assert_exact(bed.expected)


@pytest.mark.rows("S19")
def test_a_probing_destination_is_told_at_most_the_call_in_flight_again_and_that_is_reported(
    bed: Bed, cluster: StandaloneCluster
) -> None:
    house = bed.house
    settings = retried(bed, cluster, "probing")
    run = bed.start(settings)
    zombie = lose_a_map_output(bed, run, cluster, "effect.before")
    winner = hold_the_winner(bed, run, settings, 0, zombie)
    calls = partial(calls_since, bed, zombie, len(house.calls()))
    go_on(zombie)
    wait_for(calls, run, LONG_S)
    go_on(winner)
    run.finished(LONG_S)
    charges = house.charges()
    twice = repeated(charges)
    assert len(calls()) == 1
    assert sum(twice.values()) == 2 * len(twice) == 4
    assert Account.of(house, settings).in_state(ParkedState.LATE) == set(twice)
    assert missing(charges, bed.expected) == set()
    assert set(names(charges)) == set(bed.expected)
