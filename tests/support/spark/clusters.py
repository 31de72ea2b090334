"""What tests on a standalone cluster share: who runs where, and how far the ledger is."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import xxhash

from semel import Ledger
from semel.delivery.parking.resend import Resending
from semel.errors import ConfigurationError
from semel.events import bucket_name
from semel.ledger import keys
from semel.ledger.client import LedgerClient
from semel.ledger.store.opening import open_store
from semel.runtime import Process, Runtime
from semel.verify.demo.standalone import StandaloneCluster, python_workers
from semel.verify.process_group import state_of
from support.spark.charge_sinks import make_sink
from support.spark.driver_scripts import Bed, Name, Run, wait_for
from support.spark.reconcile import judge_held
from support.spark.settings import Settings

LONG_S = 300.0
"""How long anything may take on a machine that has other things to do."""

BOTH = {
    "spark.cores.max": "2",
    "spark.locality.wait": "0s",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{LONG_S:.0f}s",
}
"""A session that waits for both executors, and gives a task to whichever is free."""

ADAPTIVE = {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.forceApply": "true",
    "spark.sql.adaptive.coalescePartitions.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1b",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "1kb",
    "spark.sql.adaptive.optimizeSkewsInRebalancePartitions.enabled": "true",
    "spark.sql.adaptive.skewJoin.enabled": "true",
    "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "1.1",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "1kb",
    "spark.sql.adaptive.localShuffleReader.enabled": "true",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}
"""Adaptive execution that joins and splits tasks wherever it may."""

SPECULATING = {
    **BOTH,
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.minTaskRuntime": "5s",  # longer than a Python worker takes to come up
}
"""When one of two tasks has ended and the other one goes on and on, its copy starts elsewhere."""

BUCKETS = 2


def partition_of(entity: str) -> str:
    """Name the bucket of an entity, as Spark hashes it."""
    return bucket_name(xxhash.xxh64(entity.encode(), seed=42).intdigest() % BUCKETS, BUCKETS)


def calls_of(events: Iterable[Name], chunk_rows: int) -> int:
    """Say how many chunks of a minibatch there are, over all partitions."""
    found: dict[str, int] = {}
    for entity, _ in events:
        found[partition_of(entity)] = found.get(partition_of(entity), 0) + 1
    return sum(-(-count // chunk_rows) for count in found.values())


def executor_of(cluster: StandaloneCluster, worker: int) -> int:
    """Give the executor's JVM that a Python worker works for."""
    return next(each for each in cluster.executors() if worker in python_workers(each))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def go_on(pid: int) -> None:
    """Let a process go on that has stopped itself, or is just about to."""
    wait_for(lambda: state_of(pid) in ("T", "Z", ""))
    if state_of(pid) == "T":
        os.kill(pid, signal.SIGCONT)


def completed(settings: Settings) -> int:
    """Give the last batch that is complete in the ledger, -1 when none is."""
    assert settings.ledger is not None
    try:
        with Ledger(settings.ledger) as ledger:
            rows = ledger.rows("open")
    except ConfigurationError:
        return -1
    if not rows:
        return -1
    row = rows[0][1]
    return int(row["batch"]) if row["complete"] else int(row["batch"]) - 1


def wait_until_complete(run: Run, settings: Settings, batch: int) -> None:
    wait_for(lambda: completed(settings) >= batch, run, LONG_S)


def partitions(settings: Settings, batch: int, sink: str = "charge") -> dict[str, dict[str, Any]]:
    """Give the rows of a minibatch's partitions, as they stand in the ledger now."""
    assert settings.ledger is not None
    with Ledger(settings.ledger) as ledger:
        rows = ledger.rows("streams", keys.make_prefix(settings.name, sink, 1, batch))
    return {row["partition"]: row for _, row in rows}


def held_by(settings: Settings, batch: int, pid: int) -> dict[str, Any]:
    """Give the row of the partition that a process has."""
    return next(row for row in partitions(settings, batch).values() if row["process"]["pid"] == pid)


def hold_both(bed: Bed) -> None:
    """Let both tasks of the next minibatch stop as soon as they have their partitions."""
    bed.house.arm("claim.after", "stop", times=2)


def stop_in_the_middle(
    bed: Bed, run: Run, settings: Settings, batch: int, after: Callable[[str], int]
) -> int:
    """Of the two that are held, let one go on until it has had so many effects as `after` says of
    its partition and one more, where it stops; then the other one to its end. Give the first.

    Spark copies a task only once another one has ended: on a machine that is slow, too, no copy
    starts before the original stands where it is meant to.
    """
    house = bed.house
    wait_for(lambda: len(house.taken("claim.after")) == 2 * (batch + 1), run, LONG_S)
    original, other = [int(each.pid or 0) for each in house.taken("claim.after")[-2:]]
    before = len(house.taken("effect.after"))
    house.arm("effect.after", "stop", after=after(held_by(settings, batch, original)["partition"]))
    go_on(original)
    [stopped] = wait_for(lambda: house.taken("effect.after")[before:], run, LONG_S)
    assert stopped.pid == original
    go_on(other)
    return original


@contextmanager
def driver(bed: Bed, settings: Settings) -> Iterator[Run]:
    """A driver that runs until the test has seen enough, and ends with all that it started."""
    run = bed.start(settings)
    yield run
    run.kill()
    bed.end_leftovers()


def release(bed: Bed, settings: Settings, sink: str = "charge", capability: str = "opaque") -> int:
    """Decide about everything in doubt as the witness knows it, and send what waited; say how many
    were in doubt.
    """
    assert settings.ledger is not None
    judged = judge_held(bed.house, settings, sink)
    store = open_store(settings.ledger)
    described = make_sink(capability, settings.house, sink, lease_s=0.0, deadline_s=0.0)
    client = LedgerClient(store, settings.name)
    Resending(client, described, Process.here(), Runtime()).drain()
    store.close()
    return judged
