"""A Kafka broker to test against: one node, on loopback, from jars of Maven or of a download.

A broker ends with the process that started it, however that ends, and leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from semel.errors import ConfigurationError
from semel.runtime import SystemClock
from semel.spark import kafka_connector
from semel.verify.servers.cleanup import CleanupAtExit
from semel.verify.servers.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping

CLOCK = SystemClock()

FETCH = Path(__file__).parents[4] / ".ci" / "kafka" / "fetch"
PATIENCE_S = 180.0

_CLEAR = """
[ ! -f "$1/pid" ] || kill -9 "$(cat "$1/pid")"
rm -rf "$1" || { sleep 1; rm -rf "$1"; }
"""

# The number of the process is on disk before it is a broker.
_BROKER = 'echo $$ > "$1/pid"; shift; exec "$@"'

_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=NEAR
listeners=NEAR://127.0.0.1:{port},FAR://127.0.0.1:{behind},SASL://127.0.0.1:{sasl},\
CONTROLLER://127.0.0.1:{controller}
advertised.listeners=NEAR://127.0.0.1:{port},FAR://127.0.0.1:{proxy},SASL://127.0.0.1:{sasl}
listener.security.protocol.map=NEAR:PLAINTEXT,FAR:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
listener.name.sasl.sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
log.dirs={folder}/log
auto.create.topics.enable=false
num.partitions=1
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms={session}
broker.heartbeat.interval.ms=500
"""

SESSION_MS = 60_000
"""On a busy machine a broker is late with its heartbeats. After so long without one it loses the
leadership of its partitions, though nothing else could have it.
"""
SESSION_OF_RESTARTED_MS = 5_000
"""A broker that was killed is let in again only when the session it had before is over."""


class KafkaBroker:
    """A Kafka broker in a temporary folder.

    Attributes:
        servers: where anybody may do anything.
        far: the same through a proxy of the caller's on the port `proxy`, which passes what it gets
            on to the port `behind`.
        guarded: where only `user` may come in, by `password`, and may do what it was allowed.
    """

    user = "limited"
    password = "p/w:100%-semel"

    def __init__(
        self,
        *,
        settings: Mapping[str, object] | None = None,
        heap: str = "512m",
        quick: bool = False,
        restarts: bool = False,
        jars: Path | None = None,
    ) -> None:
        """`quick`: up sooner, and slower from then on; `restarts`: for a caller of `restart`;
        `jars`: the folder `libs` of a Kafka, by default what Maven fetches.
        """
        self._jars = jars or fetched("broker")
        self._compiler = 1 if quick else 4
        self._heap = heap
        self._restarts = restarts
        self.port, self.behind, self.proxy, self._sasl, controller = (free_port() for _ in "01234")
        self.servers = f"127.0.0.1:{self.port}"
        self.far = f"127.0.0.1:{self.proxy}"
        self.guarded = f"127.0.0.1:{self._sasl}"
        self._home = Path(tempfile.mkdtemp(prefix="semel-kafka-"))
        self._cleanup = CleanupAtExit(_CLEAR, str(self._home))
        text = _PROPERTIES.format(
            port=self.port,
            behind=self.behind,
            proxy=self.proxy,
            sasl=self._sasl,
            controller=controller,
            session=SESSION_OF_RESTARTED_MS if restarts else SESSION_MS,
            folder=self._home,
            user=self.user,
            password=self.password,
        )
        more = "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
        self._properties = self._home / "server.properties"
        self._properties.write_text(text + more)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._format()
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the broker and wait until it answers."""
        command = self._java("kafka.Kafka", str(self._properties))
        with (self._home / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own words
                ["/bin/sh", "-c", _BROKER, "broker", str(self._home), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )
        self._answers()

    def stop(self) -> None:
        """End the broker at once, as a machine that goes down would; what it has is on disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            (self._home / "pid").unlink(missing_ok=True)
            self._process = None

    def restart(self) -> None:
        """Stop it and start it again."""
        if not self._restarts:
            raise ValueError(f"a broker to restart is made with restarts=True, not {SESSION_MS} ms")
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the broker and wait until its folder is gone."""
        self.stop()
        self._cleanup.close()

    def log(self) -> str:
        """Give what the broker has written into its log."""
        return (self._home / "log.txt").read_text(errors="replace")

    def create_topic(self, name: str | None = None, partitions: int = 1, **settings: object) -> str:
        """Create a topic and give its name; `max_message_bytes=...` is `max.message.bytes`."""
        from confluent_kafka.cimpl import NewTopic

        name = name or f"test-{uuid4().hex}"
        config = {key.replace("_", "."): str(value) for key, value in settings.items()}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        admin = self.admin()  # it has to live until the answer is there
        admin.create_topics([topic])[name].result(PATIENCE_S)
        ends = CLOCK.monotonic() + PATIENCE_S
        while name not in admin.list_topics(timeout=5).topics and CLOCK.monotonic() < ends:
            CLOCK.sleep(0.01)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        admin = self.admin()
        admin.delete_topics([name])[name].result(PATIENCE_S)

    def admin(self) -> Any:
        """Give an administrator's client."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def _java(self, name: str, *arguments: str) -> list[str]:
        java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
        return [
            str(java),
            f"-Xmx{self._heap}",
            "-XX:+UseSerialGC",
            f"-XX:TieredStopAtLevel={self._compiler}",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            str(self._jars / "*"),
            name,
            *arguments,
        ]

    def _format(self) -> None:
        command = self._java(
            "kafka.tools.StorageTool", "format", "-t", "c2VtZWwtdGVzdC1icm9rZQ",
            "-c", str(self._properties),
        )  # fmt: skip
        done = subprocess.run(  # noqa: S603 - our own words
            command, capture_output=True, text=True, check=False, cwd="/"
        )
        if done.returncode:
            raise RuntimeError(f"the broker's folder was not made\n{done.stdout}{done.stderr}")

    def _answers(self) -> None:
        """Wait until the broker leads what it has."""
        ends = CLOCK.monotonic() + PATIENCE_S
        while CLOCK.monotonic() < ends:
            if self._process is None or self._process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                self._leads()
            except Exception:  # noqa: BLE001 - the client has errors of many kinds
                CLOCK.sleep(0.1)  # a server in a process of its own
            else:
                return
        raise RuntimeError(f"the broker does not answer\n{self.log()}")

    def _leads(self) -> None:
        topics = self.admin().list_topics(timeout=5).topics.values()
        led = [part.leader >= 0 for topic in topics for part in topic.partitions.values()]
        if not all(led):
            raise RuntimeError("a partition has no leader yet")


def fetched(what: str) -> Path:
    """Return the folder of the jars: of the `broker`, or of Spark's (`spark`, for the version that
    is installed) or Flink's (`flink`) connector. One process fetches, the others wait for it.

    Raises `ConfigurationError` where they cannot be had.
    """
    if not FETCH.exists():
        raise ConfigurationError(
            "the jars of a Kafka broker are fetched only in a checkout of semel (`semel chaos` "
            "takes the folder `libs` of an unpacked Kafka as --kafka-jars)"
        )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semel"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(  # noqa: S603 - our own words
            [str(FETCH), kafka_connector() if what == "spark" else what],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise ConfigurationError(f"Kafka's jars could not be fetched: {done.stderr.strip()}")
    return Path(done.stdout.strip())
