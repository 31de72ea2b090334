"""Everything that a chaos run starts: servers, the network to them, a cluster, drivers, the input.

Always true:
- a driver and its tasks reach a server only through its `TcpProxy`; the run itself goes around it;
- all of it is on loopback and in folders of its own, and ends with this process, however that ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, LedgerError
from semel.ledger import Ledger
from semel.runtime import SystemClock
from semel.verify.chaos.job import PARTITIONS, PIPELINES, JobSettings
from semel.verify.demo.standalone import (
    SMALL_CONF,
    SMALL_JVM,
    StandaloneCluster,
    python_workers,
    spark_environment,
)
from semel.verify.process_group import Closable, ProcessGroup, descendants
from semel.verify.servers.http_witness import HttpWitness
from semel.verify.servers.kafka import KafkaBroker
from semel.verify.servers.postgres import PostgresServer
from semel.verify.servers.proxy import TcpProxy
from semel.verify.servers.redis import RedisServer

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

TOPIC, COPIED = "payments", "copies"
DISK_MB = 160
FIRST_WITHIN_S = 40.0
SERVICE_S = 0.1
"""A charge takes so long, and counts when it begins: faults hit calls in flight."""
TABLE = (
    "create table copies (customer text, payment_id bigint, amount bigint, at double precision,"
    " arrived timestamptz default clock_timestamp(), number bigserial)"
)
CONF = {
    **SMALL_CONF,
    "spark.driver.extraJavaOptions": SMALL_JVM,
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.default.parallelism": str(PARTITIONS),
    "spark.locality.wait": "0s",
    "spark.ui.showConsoleProgress": "false",
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.minTaskRuntime": "2s",
}


@dataclass(eq=False)
class DriverProcess:
    """A driver: its process, its log, and which pipelines it has."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    started_at: float
    read_bytes: int = 0
    lines: list[str] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    speculated: int = 0
    stopped: bool = False

    @property
    def pids(self) -> list[int]:
        """Its process and its JVM, and what they started."""
        return descendants(self.process.pid)

    def look(self) -> None:
        """Read what it has printed since the last time."""
        with self.log.open("rb") as log:
            log.seek(self.read_bytes)
            new = log.read()
        new = new[: new.rfind(b"\n") + 1]
        self.read_bytes += len(new)
        for line in new.decode(errors="replace").splitlines():
            if "as speculatable" in line:
                self.speculated += 1
            if not line.startswith("chaos: "):
                continue
            said = line.removeprefix("chaos: ")
            self.lines.append(said)
            what, _, rest = said.partition(" ")
            name = rest.partition(":")[0]
            if what == "running":
                self.running.add(name)
            elif what in ("ended", "failed"):
                self.running.discard(name)

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to it and everything below it."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, how)


class ChaosStage(Closable):
    """The servers and processes of one run; `report` is called with each step of the start."""

    def __init__(
        self, report: Callable[[str], None], *, liar: bool, kafka_jars: Path | None = None
    ) -> None:
        self.liar = liar
        self.clock = SystemClock()
        self.absent: dict[str, str] = {}
        self.drivers: list[DriverProcess] = []
        self.ended: list[str] = []
        self.input_held = threading.Event()
        self.topic_partitions = PARTITIONS
        self.partitions = dict.fromkeys(PIPELINES, PARTITIONS)
        self._started = 0
        self._stack = ExitStack()
        try:
            self.group = self._opened(ProcessGroup("chaos"))
            self.folder = self.group.folder
            report("starting PostgreSQL (twice), Redis, Kafka and the HTTP witness")
            self._start_servers(kafka_jars)
            report("starting a Spark master and two workers")
            self.cluster = StandaloneCluster(workers=2, cores=2, memory="1g")
            self._stack.callback(self.cluster.close)
            self.settings = self._job_settings()
            self.look()
        except BaseException:
            self.close()
            raise

    def _opened(self, group: ProcessGroup) -> ProcessGroup:
        self._stack.callback(group.close)
        return group

    def _start_servers(self, kafka_jars: Path | None) -> None:
        self.ledger = self._ledger_server()
        self.postgres = PostgresServer(durable=False)
        self._stack.callback(self.postgres.close)
        self.redis = RedisServer()
        self._stack.callback(self.redis.close)
        self.kafka = KafkaBroker(quick=True, restarts=True, jars=kafka_jars)
        self._stack.callback(self.kafka.close)
        journal = self.folder / "charges.jsonl"
        self.http = HttpWitness(absorbs=False, delay_s=SERVICE_S, journal=journal)
        self._stack.callback(self.http.stop)
        self.network = {
            "ledger": TcpProxy(self.ledger.port),
            "http": TcpProxy(int(self.http.url.rpartition(":")[2])),
            "postgres": TcpProxy(self.postgres.port),
            "redis": TcpProxy(self.redis.port),
            "kafka": TcpProxy(self.kafka.behind, self.kafka.proxy),
        }
        for each in self.network.values():
            self._stack.callback(each.close)
        self.postgres.execute(TABLE)
        self.kafka.create_topic(TOPIC, PARTITIONS)
        self.kafka.create_topic(COPIED, PARTITIONS)

    def _ledger_server(self) -> PostgresServer:
        try:
            server = PostgresServer(durable=False, disk_mb=DISK_MB)
        except (OSError, PermissionError) as error:
            self.absent["ledger.full"] = str(error)
            server = PostgresServer(durable=False)
        self._stack.callback(server.close)
        return server

    def _job_settings(self) -> JobSettings:
        ports = {name: proxy.port for name, proxy in self.network.items()}
        return JobSettings(
            master=self.cluster.url,
            brokers=self.kafka.far,
            topic=TOPIC,
            http=f"http://127.0.0.1:{ports['http']}",
            postgres=self.postgres.url(port=ports["postgres"]),
            redis=self.redis.url(port=ports["redis"]),
            ledger=self.ledger.url(port=ports["ledger"]),
            folder=str(self.folder),
            conf=CONF,
            liar=self.liar,
        )

    # -- drivers

    @property
    def drivers_wanted(self) -> int:
        """With semel there is a standby; two plain drivers would share one checkpoint."""
        return 1 if self.liar else 2

    def start_driver(self) -> DriverProcess:
        """Start one more driver with the settings of now."""
        self._started += 1
        number = self._started
        file, log = self.folder / f"driver-{number}.json", self.folder / f"driver-{number}.log"
        self.settings.write(file)
        command = [sys.executable, "-m", "semel.verify.chaos.job", str(file)]
        environment = {**spark_environment(self.folder), "SEMEL_LEDGER": ""}
        process = self.group.start(command, environment, log)
        driver = DriverProcess(number, process, log, self.clock.monotonic())
        self.drivers.append(driver)
        return driver

    def look(self) -> None:
        """Read what drivers print, and replace those that have ended."""
        for driver in list(self.drivers):
            driver.look()
            if driver.process.poll() is not None:
                self._forget(driver)
                last = driver.lines[-1] if driver.lines else "it printed nothing"
                self.ended.append(f"driver {driver.number}: {last}")
        while len(self.drivers) < self.drivers_wanted and not self._awaits_first():
            self.start_driver()

    def _awaits_first(self) -> bool:
        """Whether a driver has just been started and is to have every pipeline, so that the next
        one is its standby.
        """
        has = {name for each in self.drivers for name in each.running}
        if has >= set(self.settings.pipelines):
            return False
        now = self.clock.monotonic()
        return any(
            not each.stopped and now - each.started_at < FIRST_WITHIN_S for each in self.drivers
        )

    def kill_driver(self, driver: DriverProcess) -> None:
        """Kill a driver; `look` starts another one."""
        driver.end()
        driver.process.wait()
        driver.look()
        self._forget(driver)

    def stop_drivers(self, within_s: float = 60.0) -> None:
        """Let every driver end in order (SIGTERM), and kill what is left."""
        for driver in self.drivers:
            driver.process.terminate()
        until = self.clock.monotonic() + within_s
        while self.clock.monotonic() < until:
            if all(each.process.poll() is not None for each in self.drivers):
                break
            self.clock.sleep(0.2)
        for driver in list(self.drivers):
            self.kill_driver(driver)

    def kill_drivers(self) -> None:
        """Kill every driver."""
        for driver in list(self.drivers):
            self.kill_driver(driver)

    def change(self, **settings: Any) -> None:
        """Change the settings of drivers that start from now on."""
        self.settings = replace(self.settings, **settings)

    def active(self) -> list[DriverProcess]:
        """Return the drivers that have a pipeline."""
        return [each for each in self.drivers if each.running and not each.stopped]

    def standbys(self) -> list[DriverProcess]:
        """Return the drivers that wait."""
        return [each for each in self.drivers if not each.running and not each.stopped]

    def python_workers(self) -> list[int]:
        """Return every Python worker of tasks."""
        return [pid for each in self.cluster.executors() for pid in python_workers(each)]

    def await_running(self, within_s: float) -> None:
        """Wait until every pipeline of the settings has a driver. Raises `RuntimeError`."""
        until = self.clock.monotonic() + within_s
        while self.clock.monotonic() < until:
            self.look()
            has = {name for each in self.drivers for name in each.running}
            if has >= set(self.settings.pipelines):
                return
            self.clock.sleep(0.2)
        logs = [each.log.read_text(errors="replace")[-2_000:] for each in self.drivers]
        raise RuntimeError("the pipelines did not start\n" + "\n".join(logs))

    def is_complete(self, name: str) -> bool:
        """Whether the last minibatch of a pipeline is complete."""
        try:
            with Ledger(self.ledger.url()) as ledger:
                return ledger.summary(name).complete is True
        except (ConfigurationError, LedgerError):
            return False

    def delete_checkpoint(self, name: str) -> None:
        """Delete the checkpoint of a pipeline."""
        shutil.rmtree(self.folder / "checkpoints" / name, ignore_errors=True)

    def close(self) -> None:
        """End everything; nothing is left behind."""
        for driver in self.drivers:  # they would complain about each server that ends
            driver.end()
        self._stack.close()

    def _forget(self, driver: DriverProcess) -> None:
        driver.end()  # what it started may outlive it
        self.drivers.remove(driver)
