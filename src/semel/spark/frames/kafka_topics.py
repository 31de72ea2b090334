"""Asks Kafka for the ids of the topics that a query reads.

For Spark's own source in a classic session Spark's Kafka client is asked, with the options of the
source. Beside a Spark Connect server that is not possible; confluent-kafka is used there, which
does not understand the JVM options of a secured broker. It is used for `semel.kafka` too, whose
options are its own. Always true: an id that cannot be asked for is unknown, with
the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semel.errors import SemelError
from semel.ledger import Sources
from semel.sinks import Topics
from semel.spark.frames.plan import is_classic, streams

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame

FORMAT = "kafka"
OWN_FORMAT = "semel.kafka"
PREFIX = "kafka."
SERVERS = "bootstrap.servers"
SECURED = ("security.", "sasl.", "ssl.")
PATIENCE_MS = "10000"

OTHER = "the query does not read Kafka alone, through Spark's own connector or semel.kafka"
JVM_ONLY = (
    "the broker is secured, and beside a Spark Connect server semel cannot use the security "
    "options of Spark's source"
)


@dataclass(frozen=True)
class KafkaSource:
    """How a Kafka source reaches its brokers. It is sent to where the driver's part runs and no
    further, because it may contain secrets.

    Attributes:
        own: whether it is `semel.kafka`, with the options of confluent-kafka.
    """

    config: Mapping[str, str] = field(repr=False)
    own: bool = False


def find(frame: DataFrame) -> KafkaSource | None:
    """Return the Kafka source of a streaming DataFrame; None if it reads anything else as well."""
    found = streams(frame)
    kinds = [kind.lower() for kind, _ in found]
    if kinds not in ([FORMAT], [OWN_FORMAT]):
        return None
    options = {name.lower(): value for name, value in found[0][1].items()}
    return KafkaSource(
        {
            name.removeprefix(PREFIX): value
            for name, value in options.items()
            if name.startswith(PREFIX)
        },
        kinds == [OWN_FORMAT],
    )


def unknown(frame: DataFrame, source: KafkaSource | None) -> str:
    """Return why topic ids cannot be asked for; "" if they can."""
    if source is None:
        return OTHER
    secured = not source.own and any(name.startswith(SECURED) for name in source.config)
    return JVM_ONLY if secured and not is_classic(frame) else ""


def ask(frame: DataFrame, source: KafkaSource | None, topics: Iterable[str]) -> Sources:
    """Ask Kafka for the ids of topics. Runs on the driver, or beside a Connect server."""
    why = unknown(frame, source)
    if why or source is None:
        return Sources(why=why)
    wanted = sorted(set(topics))
    if source.own:
        ids, refused = _ask_here(source.config, wanted)
    elif is_classic(frame):
        ids, refused = _ask_spark(frame, source.config, wanted)
    else:
        ids, refused = _ask_here({SERVERS: source.config.get(SERVERS, "")}, wanted)
    plain = {topic: each.translate(_ALPHABET) for topic, each in ids.items()}
    return Sources(plain, "; ".join(refused))


_ALPHABET = str.maketrans("/+", "_-", "=")
"""Clients write the same id in one of two base64 alphabets."""


def _ask_spark(
    frame: DataFrame, config: Mapping[str, str], topics: list[str]
) -> tuple[dict[str, str], list[str]]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    jvm: Any = frame.sparkSession._jvm  # noqa: SLF001 - Spark's client has no other door
    settings, names = jvm.java.util.HashMap(), jvm.java.util.ArrayList()
    patience = {"default.api.timeout.ms": PATIENCE_MS, "request.timeout.ms": PATIENCE_MS}
    for name, value in {**config, **patience}.items():
        settings.put(name, value)
    for topic in topics:
        names.add(topic)
    ids: dict[str, str] = {}
    refused: list[str] = []
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    except (Py4JError, TypeError) as error:  # TypeError: there is no such class
        return {}, [f"Spark's Kafka client could not be asked ({_short(error)})"]
    try:
        described = admin.describeTopics(names).topicNameValues()
        for topic in topics:
            try:
                ids[topic] = str(described.get(topic).get().topicId().toString())
            except Py4JError as error:
                refused.append(f"Kafka did not return the id of topic {topic!r} ({_short(error)})")
    finally:
        admin.close()
    return ids, refused


def _ask_here(config: Mapping[str, str], topics: list[str]) -> tuple[dict[str, str], list[str]]:
    ids: dict[str, str] = {}
    refused: list[str] = []
    for topic in topics:
        try:
            found = Topics(config, "the source").find(topic)
        except SemelError as error:
            refused.append(f"Kafka did not return the id of topic {topic!r} ({error})")
            continue
        if found is None:
            refused.append(f"topic {topic!r} does not exist or is not visible")
        else:
            ids[topic] = found.id
    return ids, refused


def _short(error: Exception) -> str:
    """Return the first line of a Java exception's message."""
    cause = getattr(error, "java_exception", None)
    return str(error if cause is None else cause.getMessage()).partition("\n")[0]
