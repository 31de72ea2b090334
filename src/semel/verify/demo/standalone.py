"""Spark on this machine in separate processes: a standalone cluster and a Connect server.

Always true:
- everything comes from the pip package of Spark and listens on loopback;
- executors and their Python workers are found as descendants of the processes started here, so
  that a test can kill, stop and continue a certain one;
- nothing is left behind: see `process_group`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from semel.errors import MissingExtra
from semel.runtime import SystemClock
from semel.spark import scala
from semel.verify.process_group import Closable, ProcessGroup, command_of, descendants

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

    from semel.runtime import Clock

HOST = "127.0.0.1"
UP_WITHIN_S = 60.0

SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss1m"
"""JVM options for tests: it starts quickly, and two of them fit on a small machine."""

SMALL_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.task.killTimeout": "0ms",
    "spark.executor.extraJavaOptions": SMALL_JVM,
}
"""Settings of a small session; the driver's JVM takes `spark.driver.extraJavaOptions`."""

_SRC = Path(__file__).parents[3]
_DAEMON = re.compile(r"-m pyspark\.daemon( pyspark\.worker)?$")
"""PySpark 3.5 does not name the module of task workers; other workers are named."""
_REGISTERED = r"(Successfully registered with master)"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def python_workers(root: int) -> list[int]:
    """Return the Python workers of tasks below a process: the JVM of a driver or an executor.

    Workers are children of a `pyspark.daemon`; idle ones are included.
    """
    daemons: list[int] = []
    workers: list[int] = []
    for pid in descendants(root):
        if _DAEMON.search(command_of(pid)):
            (workers if _parent(pid) in daemons else daemons).append(pid)
    return workers


def spark_environment(folder: Path, python_path: Sequence[str | Path] = ()) -> dict[str, str]:
    """Return an environment in which Spark uses only `folder`, loopback and this Python."""
    paths = [*map(str, python_path), str(_SRC), os.environ.get("PYTHONPATH", "")]
    local = folder / "local"
    local.mkdir(parents=True, exist_ok=True)
    return {
        "SPARK_HOME": str(spark_home()),
        "SPARK_SCALA_VERSION": scala(),  # a worker looks for build folders without it
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LOCAL_DIRS": str(local),
        "TMPDIR": str(local),  # files that a killed JVM leaves are removed with the folder
        "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={local}",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, paths))),
    }


def spark_home() -> Path:
    """Find the pip package of Spark."""
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise MissingExtra("PySpark is not installed: pip install 'semel[spark]'")
    return Path(package.origin).parent


class StandaloneCluster(Closable):
    """A master and its workers, each a JVM; every application gets its executors from them.

    Workers have different hosts (127.0.0.1, 127.0.0.2, ...): Spark never speculates on the host
    where the first copy runs. What the master knows outlives its process.
    """

    def __init__(
        self,
        workers: int = 2,
        cores: int = 1,
        memory: str = "512m",
        *,
        python_path: Sequence[str | Path] = (),
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._cores, self._memory = cores, memory
        self._group = ProcessGroup("cluster")
        self._environment = spark_environment(self._group.folder, python_path)
        try:
            self._master, self.url = self._start_master(port=0)
            self._workers = [self._start_worker(number) for number in range(workers)]
            for number, worker in enumerate(self._workers):
                self._await(worker, f"worker-{number}", _REGISTERED)
        except BaseException:
            self.close()
            raise

    @property
    def master(self) -> int:
        """The master's JVM."""
        return self._master.pid

    @property
    def workers(self) -> list[int]:
        """The JVMs of the workers."""
        return [worker.pid for worker in self._workers]

    def executors(self) -> list[int]:
        """Return the JVMs of the living executors, in the order of their workers."""
        return [
            pid
            for worker in self._workers
            for pid in descendants(worker.pid)
            if _EXECUTOR in command_of(pid)
        ]

    def restart_master(self) -> None:
        """Start a master that was killed, at the address that it had."""
        self._master.wait()
        self._master, _ = self._start_master(port=int(self.url.rpartition(":")[2]))

    def restart_worker(self, number: int) -> None:
        """Start a worker that was killed; it registers as soon as the master answers."""
        self._workers[number].wait()
        self._workers[number] = self._start_worker(number)

    def close(self) -> None:
        """End every process of the cluster, including stopped ones."""
        self._group.close()

    def _start_master(self, *, port: int) -> tuple[subprocess.Popen[bytes], str]:
        recovery = self._group.folder / "recovery"
        recovery.mkdir(exist_ok=True)
        settings = {"recoveryMode": "FILESYSTEM", "recoveryDirectory": recovery}
        master = self._java(
            ("master", HOST, "master.Master"),
            ("--port", str(port), "--webui-port", "0"),
            [f"-Dspark.deploy.{name}={value}" for name, value in settings.items()],
        )
        return master, self._await(master, "master", r"Starting Spark master at (spark://\S+)")

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        work = self._group.folder / f"work-{number}"
        places = ("--port", "0", "--webui-port", "0", "--work-dir", str(work))
        size = ("--cores", str(self._cores), "--memory", self._memory)
        name = (f"worker-{number}", f"127.0.0.{number + 1}", "worker.Worker")
        return self._java(name, (*places, *size, self.url))

    def _java(
        self,
        named: tuple[str, str, str],
        arguments: Sequence[str],
        properties: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        name, host, role = named
        command = [
            _java(),
            *("-Xmx256m", *SMALL_JVM.split(), "-Dspark.master.rest.enabled=false", *properties),
            *("-cp", f"{spark_home()}/jars/*", f"org.apache.spark.deploy.{role}", "--host", host),
            *arguments,
        ]
        log = self._group.folder / f"{name}.log"
        log.unlink(missing_ok=True)  # what an earlier process wrote is not about this one
        return self._group.start(command, {**self._environment, "SPARK_LOCAL_IP": host}, log)

    def _await(self, started: subprocess.Popen[bytes], name: str, pattern: str) -> str:
        log = self._group.folder / f"{name}.log"
        return await_line(self._clock, started, log, pattern)


class ConnectServer(Closable):
    """A Spark Connect server with local tasks (`local[2,4]` by default)."""

    def __init__(
        self,
        master: str = "local[2,4]",
        *,
        conf: Mapping[str, str] | None = None,
        python_path: Sequence[str | Path] = (),
        clock: Clock | None = None,
    ) -> None:
        self._group = ProcessGroup("connect")
        settings = {
            **SMALL_CONF,
            "spark.driver.extraJavaOptions": SMALL_JVM,
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": "0",
            "spark.sql.warehouse.dir": str(self._group.folder / "warehouse"),
            **(conf or {}),
        }
        command = [
            str(spark_home() / "bin" / "spark-submit"),
            *("--master", master),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
            "spark-internal",
        ]
        log = self._group.folder / "server.log"
        environment = spark_environment(self._group.folder, python_path)
        self._process = self._group.start(command, environment, log)
        try:
            line = r"Spark Connect server started at: \S*?:(\d+)"
            port = await_line(clock or SystemClock(), self._process, log, line)
        except BaseException:
            self.close()
            raise
        self.url = f"sc://{HOST}:{port}"

    @property
    def pid(self) -> int:
        """The server's JVM; `python_workers(pid)` returns its workers."""
        return self._process.pid

    def close(self) -> None:
        """End the server and its workers."""
        self._group.close()


def await_line(clock: Clock, started: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    """Wait until the log of a process matches `pattern`; return its first group."""
    deadline = clock.monotonic() + UP_WITHIN_S
    while clock.monotonic() < deadline:
        text = log.read_text(errors="replace")
        if found := re.search(pattern, text):
            return found[1]
        if started.poll() is not None:
            break
        clock.sleep(0.05)
    raise RuntimeError(f"{started.args!r} did not start\n{log.read_text(errors='replace')}")


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"
