"""Payments into a Kafka topic, each once, also when the checkpoint is lost (TRANSACTIONAL).

`python examples/kafka.py HOST:PORT [FOLDER]` sends payments to the topic `semel-example`, deletes
the checkpoint and reads them all again; the topic has each of them once. A broker to try it with:
`docker run -d -p 9092:9092 apache/kafka:4.0.0`.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import semel
from semel.sinks import Kafka
from semel.spark import make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "semel-example"


def run(spark: SparkSession, folder: Path, servers: str) -> None:
    """Send what has arrived."""
    schema = "customer string, payment_id bigint, amount bigint"
    payments = spark.readStream.schema(schema).json(str(folder / "payments"))
    query = (
        semel.deliver(
            payments,
            to=Kafka(name="out", servers=servers, topic=TOPIC, config={"compression.type": "lz4"}),
            name=f"payments-{folder.name}",
            entity="customer",
            event="payment_id",
            partitions=2,
            ledger=f"sqlite:///{folder}/ledger.db",
        )
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def create_topic(servers: str) -> None:
    """Create the topic if it does not exist; semel creates only its own topic."""
    admin = AdminClient({"bootstrap.servers": servers})
    try:
        admin.create_topics([NewTopic(TOPIC, 3)])[TOPIC].result(30)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise


def records(servers: str, folder: Path) -> list[tuple[str, int, int]]:
    """Read the topic as consumers should: only committed records."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "semel-example",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found, ended = [], 0
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(3)])
    while ended < 3:
        message = consumer.poll(10)
        if message is None or message.error() is not None:
            ended += 1
            continue
        headers = dict(message.headers() or ())
        if headers["semel-pipeline"] == f"payments-{folder.name}".encode():
            payment = json.loads(message.value() or b"")
            number = int(headers["semel-osn"] or 0)
            found.append((payment["customer"], payment["payment_id"], number))
    consumer.close()
    return found


def main(servers: str, folder: Path) -> None:
    """Send twelve payments, delete the checkpoint, and send again."""
    folder = folder.absolute()
    (folder / "payments").mkdir(parents=True, exist_ok=True)
    rows = [{"customer": f"c{n % 3}", "payment_id": n, "amount": n} for n in range(12)]
    (folder / "payments/1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    create_topic(servers)
    spark = make_session("kafka")
    run(spark, folder, servers)
    print(f"12 payments: {len(records(servers, folder))} records")
    shutil.rmtree(folder / "checkpoint")
    run(spark, folder, servers)
    found = records(servers, folder)
    print(f"checkpoint lost, read again: {len(found)} records, {len(set(found))} of them different")
    for customer in ("c0", "c1", "c2"):
        print(f"{customer}: payments {[payment for who, payment, _ in found if who == customer]}")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/kafka.py HOST:PORT [FOLDER]")
    made = sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="semel-kafka-")
    main(sys.argv[1], Path(made))
