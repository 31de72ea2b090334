"""The faults of a chaos run: what each kind does to the stage, and how it is undone.

An action begins a fault. It returns what it did and how that is undone, or raises `NotPossible` if
there is nothing that it could happen to now.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError, SemelError
from semel.ledger import Ledger
from semel.operate import rescale_pipeline, stop_run
from semel.runtime import user_at_host
from semel.verify.chaos.job import COPIES, PARTITIONS, PARTITIONS_MAX, PIPELINES
from semel.verify.chaos.stage import SPECULATION, TOPIC, ChaosStage, DriverProcess
from semel.verify.demo.standalone import python_workers
from semel.verify.process_group import descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from semel.verify.chaos.schedule import ScheduledFault

    Chosen = TypeVar("Chosen")

TOPIC_PARTITIONS_MAX = 6
SPECULATES_AFTER_S = 25.0
STANDS_STILL_S = 8.0
SLOW_S = 0.25
STOP_WITHIN_S = 20.0
COMPLETE_WITHIN_S = 15.0


class NotPossible(SemelError):
    """The fault has nothing to happen to now."""


def _nothing() -> str:
    return ""


@dataclass(eq=False)
class BegunFault:
    """A fault that has happened.

    Attributes:
        what: what it did, in words.
        undo: ends it; returns what is to be added to `what`.
        later: what belongs to it and happens while it lasts, with the seconds after its beginning.
    """

    what: str
    undo: Callable[[], str] = _nothing
    later: list[tuple[float, Callable[[], None]]] = field(default_factory=list)


def begin(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    """Let a fault happen."""
    if fault.kind in stage.absent:
        raise NotPossible(stage.absent[fault.kind])
    return ACTIONS[fault.kind](stage, fault)


# -- processes


def _kill_workers(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    found = stage.python_workers()
    if not found:
        raise NotPossible("there is no Python worker")
    chosen = found if fault.luck < 0.3 else [_choose(found, fault.luck)]
    _signal(chosen, signal.SIGKILL)
    return BegunFault(f"{len(chosen)} of {len(found)} Python workers")


def _stop_workers(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    found = stage.python_workers()
    if not found:
        raise NotPossible("there is no Python worker")
    chosen = found if fault.luck < 0.3 else [_choose(found, fault.luck)]
    return _stopped(chosen, f"{len(chosen)} of {len(found)} Python workers")


def _kill_executor(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    pid = _executor(stage, fault)
    _signal(descendants(pid), signal.SIGKILL)
    return BegunFault(f"executor {pid}")


def _stop_executor(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    pid = _executor(stage, fault)
    return _stopped(descendants(pid), f"executor {pid}")


def _executor(stage: ChaosStage, fault: ScheduledFault) -> int:
    """Return an executor, one that has Python workers if there is any."""
    found = stage.cluster.executors()
    if not found:
        raise NotPossible("there is no executor")
    return _choose([pid for pid in found if python_workers(pid)] or found, fault.luck)


def _kill_node(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    number = int(fault.luck * len(stage.cluster.workers))
    _signal(descendants(stage.cluster.workers[number]), signal.SIGKILL)

    def start() -> str:
        stage.cluster.restart_worker(number)
        return ""

    return BegunFault(f"Spark worker {number} with its executors", start)


def _stop_node(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    number = int(fault.luck * len(stage.cluster.workers))
    return _stopped([stage.cluster.workers[number]], f"Spark worker {number}")


def _kill_master(stage: ChaosStage, _: ScheduledFault) -> BegunFault:
    _signal([stage.cluster.master], signal.SIGKILL)

    def start() -> str:
        stage.cluster.restart_master()
        return ""

    return BegunFault("the Spark master", start)


def _stop_master(stage: ChaosStage, _: ScheduledFault) -> BegunFault:
    return _stopped([stage.cluster.master], "the Spark master")


# -- drivers


def _kill_driver(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    driver = _one_of(stage.active(), fault, "no driver has a pipeline")
    stage.kill_driver(driver)
    return BegunFault(f"driver {driver.number}, which had {_has(driver)}")


def _stop_driver(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    driver = _one_of(stage.active(), fault, "no driver has a pipeline")
    return _stopped_driver(stage, driver, f"driver {driver.number}, which had {_has(driver)}")


def _drain_driver(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    pipeline = _choose(PIPELINES, fault.luck)
    try:
        with Ledger(stage.ledger.url()) as ledger:
            stopped = stop_run(ledger, pipeline, by=user_at_host(), wait_s=STOP_WITHIN_S)
    except ConfigurationError as error:
        raise NotPossible(str(error)) from error
    how = "ended" if stopped.ended else "did not end in time"
    return BegunFault(f"run {stopped.run} of {pipeline} {how}, {stopped.in_doubt} in doubt")


def _kill_standby(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    driver = _one_of(stage.standbys(), fault, "no driver is a standby")
    stage.kill_driver(driver)
    return BegunFault(f"driver {driver.number}")


def _stop_standby(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    driver = _one_of(stage.standbys(), fault, "no driver is a standby")
    return _stopped_driver(stage, driver, f"driver {driver.number}")


def _stopped_driver(stage: ChaosStage, driver: DriverProcess, what: str) -> BegunFault:
    begun = _stopped(driver.pids, what)
    driver.stopped = True

    def go_on() -> str:
        driver.stopped = False
        took = [each.number for each in stage.active() if each is not driver]
        begun.undo()
        return f"; driver {took[0]} had taken over" if took else ""

    return BegunFault(what, go_on)


def _change_drivers(stage: ChaosStage) -> None:
    """Let drivers start again, with other settings."""
    stage.kill_drivers()
    stage.look()


def _speculate(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    """OPAQUE sinks refuse speculation, so their pipeline has no driver meanwhile."""
    before = stage.settings
    stage.change(pipelines=(COPIES,), conf={**before.conf, **SPECULATION})
    _change_drivers(stage)
    seen: list[DriverProcess] = list(stage.drivers)

    still: list[int] = []

    def stand_still() -> None:
        found = [pid for pid in stage.cluster.executors() if python_workers(pid)]
        if found:
            still.extend(python_workers(_choose(found, fault.luck)))
        _signal(still, signal.SIGSTOP)

    def go_on() -> None:
        _signal(still, signal.SIGCONT)

    def end() -> str:
        for driver in seen:
            if driver in stage.drivers:
                driver.look()
        stage.change(pipelines=before.pipelines, conf={**stage.settings.conf, **_none(SPECULATION)})
        _change_drivers(stage)
        return f", {sum(each.speculated for each in seen)} tasks were speculated"

    steps = [(SPECULATES_AFTER_S, stand_still), (SPECULATES_AFTER_S + STANDS_STILL_S, go_on)]
    return BegunFault(f"only {COPIES}", end, steps)


def _none(settings: dict[str, str]) -> dict[str, str]:
    return {name: "false" for name in settings if name == "spark.speculation"}


def _other_parallelism(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    now = stage.settings.conf["spark.cores.max"]
    cores = _choose([each for each in ("1", "2", "3") if each != now], fault.luck)
    at_once = int(50 + 400 * fault.luck)
    conf = {**stage.settings.conf, "spark.cores.max": cores, "spark.sql.shuffle.partitions": cores}
    stage.change(conf=conf, at_once=at_once)
    _change_drivers(stage)
    return BegunFault(f"{cores} cores, at most {at_once} events in a micro-batch")


def _rescale(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    """Let what has arrived be delivered, stop, and rescale a pipeline."""
    stage.input_held.set()
    until = stage.clock.monotonic() + COMPLETE_WITHIN_S
    while stage.clock.monotonic() < until and not all(map(stage.is_complete, PIPELINES)):
        stage.clock.sleep(0.5)
    stage.stop_drivers()
    first = _choose(PIPELINES, fault.luck)
    refused = ""
    try:
        for pipeline in sorted(PIPELINES, key=lambda name: name != first):
            count = PARTITIONS_MAX if stage.partitions[pipeline] == PARTITIONS else PARTITIONS
            try:
                with Ledger(stage.ledger.url()) as ledger:
                    rescale_pipeline(ledger, pipeline, count)
            except ConfigurationError as error:
                refused = str(error)
                continue
            stage.partitions[pipeline] = count
            return BegunFault(f"{pipeline} has {count} partitions")
    finally:
        stage.input_held.clear()
        stage.look()
    raise NotPossible(refused)


def _delete_checkpoint(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    stage.kill_drivers()
    names = PIPELINES if fault.luck < 0.4 else (_choose(PIPELINES, fault.luck),)
    for name in names:
        stage.delete_checkpoint(name)
    stage.look()
    return BegunFault(f"of {' and '.join(names)}")


# -- servers and the network


def _kill_server(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    network = stage.network[fault.target]
    network.cut()  # a server that is down refuses; a proxy alone would accept
    match fault.target:
        case "ledger":
            stage.ledger.kill()
        case "postgres":
            stage.postgres.kill()
        case "redis":
            stage.redis.stop(signal.SIGKILL)
        case "kafka":
            stage.kafka.stop()
        case _:
            stage.http.stop()

    def start() -> str:
        _start_server(stage, fault.target)
        network.restore()
        return ""

    return BegunFault(fault.target, start)


def _start_server(stage: ChaosStage, name: str) -> None:
    match name:
        case "redis":
            stage.redis.start()
        case "kafka":
            stage.kafka.start()
        case "http":
            stage.http.start()
        case _:
            server = stage.ledger if name == "ledger" else stage.postgres
            for _ in range(20):  # other processes of the one that was killed may still end
                with suppress(RuntimeError):
                    server.start()
                    return
                stage.clock.sleep(0.5)
            server.start()


def _cut(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    stage.network[fault.target].cut()

    def restore() -> str:
        stage.network[fault.target].restore()
        return ""

    return BegunFault(f"the network to {fault.target}", restore)


def _slow(stage: ChaosStage, fault: ScheduledFault) -> BegunFault:
    delay_s = round(SLOW_S * (0.2 + fault.luck), 2)
    stage.network[fault.target].delay_s = delay_s

    def restore() -> str:
        stage.network[fault.target].delay_s = 0.0
        return ""

    return BegunFault(f"{delay_s} s more to {fault.target}", restore)


def _fill(stage: ChaosStage, _: ScheduledFault) -> BegunFault:
    stage.ledger.fill()

    def free() -> str:
        stage.ledger.free()
        ended = False
        for _ in range(60):
            if not stage.ledger.is_running():  # it could not write its log
                _start_server(stage, "ledger")
                ended = True
            if _answers(stage):
                break
            stage.clock.sleep(0.5)
        return ", and the server had ended" if ended else ""

    return BegunFault("the disk of the ledger", free)


def _answers(stage: ChaosStage) -> bool:
    import psycopg

    try:
        return bool(stage.ledger.execute("select 1"))
    except psycopg.Error:
        return False


def _add_partition(stage: ChaosStage, _: ScheduledFault) -> BegunFault:
    from confluent_kafka.cimpl import NewPartitions

    if stage.topic_partitions >= TOPIC_PARTITIONS_MAX:
        raise NotPossible(f"the topic has {stage.topic_partitions} partitions")
    count = stage.topic_partitions + 1
    admin = stage.kafka.admin()
    admin.create_partitions([NewPartitions(TOPIC, count)])[TOPIC].result(30)
    stage.topic_partitions = count
    return BegunFault(f"the topic has {count} partitions")


ACTIONS: dict[str, Callable[[ChaosStage, ScheduledFault], BegunFault]] = {
    "worker.kill": _kill_workers,
    "worker.stop": _stop_workers,
    "executor.kill": _kill_executor,
    "executor.stop": _stop_executor,
    "node.kill": _kill_node,
    "node.stop": _stop_node,
    "master.kill": _kill_master,
    "master.stop": _stop_master,
    "driver.kill": _kill_driver,
    "driver.stop": _stop_driver,
    "driver.drain": _drain_driver,
    "standby.kill": _kill_standby,
    "standby.stop": _stop_standby,
    "server.kill": _kill_server,
    "network.cut": _cut,
    "network.slow": _slow,
    "ledger.full": _fill,
    "speculation": _speculate,
    "parallelism": _other_parallelism,
    "rescale": _rescale,
    "checkpoint.delete": _delete_checkpoint,
    "partitions.add": _add_partition,
}


def _choose(found: Sequence[Chosen], luck: float) -> Chosen:
    return found[int(luck * 997) % len(found)]


def _one_of(found: list[DriverProcess], fault: ScheduledFault, otherwise: str) -> DriverProcess:
    if not found:
        raise NotPossible(otherwise)
    return _choose(found, fault.luck)


def _has(driver: DriverProcess) -> str:
    return " and ".join(sorted(driver.running))


def _stopped(pids: Sequence[int], what: str) -> BegunFault:
    _signal(pids, signal.SIGSTOP)

    def go_on() -> str:
        _signal(pids, signal.SIGCONT)
        return ""

    return BegunFault(what, go_on)


def _signal(pids: Sequence[int], how: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, how)
