"""Begins a run: its driver, and whether another run has the pipeline.

Always true: no run begins while the heartbeat of another one moves.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.delivery import Driver, LogObserver, Observers
from semel.errors import ConfigurationError, LedgerUnavailable, SemelError
from semel.ledger import Owners, starting_pipeline
from semel.runtime import Process

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from semel.delivery import Observer, PipelineSpec
    from semel.ledger import LedgerClient, OwnerRow
    from semel.spark.heartbeat import Heartbeat

OWNER_LEASE_S = 10.0
LOOK_S = 0.5
PARTITIONS = 8

log = logging.getLogger("semel")


class StandbyEnded(Exception):
    """A standby was asked to end before it had its turn."""


def make_driver(
    client: LedgerClient,
    spec: PipelineSpec,
    nonce: str,
    spark: SparkSession,
    observer: Observer | None = None,
) -> Driver:
    """Create the driver's part of a pipeline. Raises `ConfigurationError`."""
    positions = spec.identity.uses_source_partitions
    if positions and spec.partition_by is not None:
        raise ConfigurationError(
            f"pipeline {spec.name!r}: partition_by= does not apply to position identity, "
            "which delivers the source's own partitions; remove it, or pass entity= and event="
        )
    if positions and spec.partitions is not None:
        raise ConfigurationError(
            f"pipeline {spec.name!r}: partitions={spec.partitions} does not apply to "
            "position identity, which delivers the source's own partitions; remove it"
        )
    return Driver(
        client,
        spec.sinks,
        spec.identity,
        Process.here(),
        nonce,
        partitions=spec.partitions,
        default_partitions=None if positions else _parallelism(spark),
        accept_gap=spec.accept_gap,
        drop_repeats=spec.drop_repeats,
        audit=spec.audit,
        remember_s=spec.remember_s,
        forms=spec.forms,
        routing=None if spec.partition_by is None else spec.partition_by.describe(),
        observer=LogObserver() if observer is None else Observers((LogObserver(), observer)),
    )


def withdraw(driver: Driver, heartbeat: Heartbeat) -> None:
    """Remove a run that was refused before it opened anything, and end its heartbeat. Errors of the
    ledger are suppressed, so that the caller raises the refusal itself.
    """
    heartbeat.stop()
    heartbeat.join()
    with suppress(SemelError):
        driver.withdraw()


def refuse_living(client: LedgerClient, known: OwnerRow | None = None) -> OwnerRow | None:
    """Refuse a name that another run uses: its beat moves. Return an owner whose beat does not.

    An owner that was watched before and has not moved since is not watched again.
    """
    owners = Owners(client)
    standing = owners.owner()
    if standing is not None and standing == known:
        return standing
    me = Process.here()
    # A run that was just stopped may beat once more; a running one beats again.
    if owners.alive(me, OWNER_LEASE_S) and owners.alive(me, OWNER_LEASE_S):
        owner = owners.owner()
        where = "" if owner is None else f" ({_who(owner, me)})"
        raise ConfigurationError(
            f"pipeline {client.pipeline!r} is running{where}. Stop that query first, or use "
            "another name"
        )
    return owners.owner()


def begin_unless_running(
    client: LedgerClient, known: OwnerRow | None, begin: Callable[[OwnerRow | None], object]
) -> None:
    """Begin a run, unless another one has the pipeline. An owner that changes between the look and
    the begin is looked at again: it may have ended just then, or have begun and be running.
    """
    owners = Owners(client)
    while True:
        owner = refuse_living(client, known)
        with suppress(_Overtaken):
            _begin_after(owners, owner, begin)
            return


def stand_by(
    client: LedgerClient, begin: Callable[[OwnerRow | None], object], ended: Callable[[], bool]
) -> None:
    """Wait until no run has the pipeline, then `begin` after it. Of several standbys one begins,
    and the others go on waiting. Raises `StandbyEnded` if `ended()`.

    A run has it no more if it ended, if its process is known to be gone, or if its heartbeat did
    not move for a lease. While the ledger is away nothing is decided.
    """
    me, owners, clock = Process.here(), Owners(client), client.clock
    seen: OwnerRow | None = None
    since = clock.monotonic()
    while True:
        try:
            owner = owners.owner()
            if _is_gone(owners, owner, me) or (
                owner == seen and clock.monotonic() - since > OWNER_LEASE_S
            ):
                with suppress(_Overtaken):
                    _begin_after(owners, owner, begin)
                    return
            elif owner is not None and owner != seen:
                if seen is None or seen.run != owner.run:
                    log.warning(
                        "pipeline %r is running (%s); this start waits, and takes over when that "
                        "run ends",
                        client.pipeline,
                        _who(owner, me),
                    )
                seen, since = owner, clock.monotonic()
        except LedgerUnavailable as error:
            log.warning("pipeline %r, waiting as a standby: %s", client.pipeline, error)
            since = clock.monotonic()
        if ended():
            raise StandbyEnded
        clock.sleep(LOOK_S)


@dataclass
class Begun:
    """A run with its heartbeat, in its process."""

    driver: Driver
    ledger: str
    between: threading.Lock
    heartbeat: Heartbeat
    spark: SparkSession

    def register(self, after: OwnerRow | None) -> None:
        """Register the run after another one, and let its heart beat. Raises `ConfigurationError`
        if yet another one was registered.
        """
        with starting_pipeline(self.ledger, self.driver.client.pipeline):
            self.driver.start(after)
            self.heartbeat.start()

    def withdraw(self) -> None:
        """Remove the run if it was refused before it opened anything."""
        withdraw(self.driver, self.heartbeat)


class _Overtaken(Exception):
    """Another run began, or the owner moved on."""


def _begin_after(
    owners: Owners, owner: OwnerRow | None, begin: Callable[[OwnerRow | None], object]
) -> None:
    """Begin after a run that is gone. Raises `_Overtaken` if another one began meanwhile."""
    try:
        begin(owner)
    except ConfigurationError:
        if owners.owner() == owner:
            raise
        raise _Overtaken from None


def _is_gone(owners: Owners, owner: OwnerRow | None, me: Process) -> bool:
    """Whether a run is known to have ended, without watching its heartbeat."""
    if owner is None or owner.ended or owner.process.gone():
        return True
    return owner.process == me and not owners.alive(me, 0.0)


def _who(owner: OwnerRow, me: Process) -> str:
    """Return which run it is, and where."""
    here = "this process" if owner.process == me else f"process {owner.process.pid}"
    return f"run {owner.run}, by {here} on {owner.process.host}"


def _parallelism(spark: SparkSession) -> int:
    """Return the default number of partitions: the number of tasks that run at the same time."""
    configured = spark.conf.get("spark.default.parallelism", "") or ""
    if configured.isdecimal():
        return int(configured)
    context = getattr(spark, "_sc", None)
    return PARTITIONS if context is None else int(context.defaultParallelism)
