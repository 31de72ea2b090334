"""A setting that names a column is compared with the columns before anything is delivered."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from semel.errors import ConfigurationError
from semel.sinks import Files, Http, Kafka, Postgres, Redis, Sink
from semel.sinks.postgres.manifest_loader import PostgresLoad

SCHEMA = pa.schema(
    [
        ("customer", pa.string()),
        ("payment_id", pa.int64()),
        ("amount", pa.decimal128(10, 2)),
        ("lines", pa.list_(pa.string())),
        ("window", pa.struct([("start", pa.timestamp("us", "UTC"))])),
        ("body", pa.binary()),
        ("semel_osn", pa.int64()),
    ]
)
URL = "http://127.0.0.1:1/pay"
DATABASE = "postgresql://127.0.0.1:1/bank"


def http(**settings: object) -> Http:
    return Http(**{"name": "out", "url": URL, **settings})  # type: ignore[arg-type]


def kafka(**settings: object) -> Kafka:
    return Kafka(**{"name": "out", "servers": "h:1", "topic": "t", **settings})  # type: ignore[arg-type]


def redis(key: str, *arguments: str) -> Redis:
    url = "redis://127.0.0.1:1/0"
    return Redis(name="out", url=url, command="SET", key=key, arguments=arguments)


def postgres(**settings: object) -> Postgres:
    return Postgres(**{"name": "out", "url": DATABASE, **settings})  # type: ignore[arg-type]


def loading(tmp_path: str, *columns: str) -> Files:
    return Files(
        name="out", url=tmp_path, then=PostgresLoad(url=DATABASE, table="t", columns=columns)
    )


WRONG: dict[str, tuple[Sink, str]] = {
    "a URL": (http(url=f"{URL}/{{payment}}"), "url names the column 'payment'.*'payment_id'?"),
    "a query": (http(url=f"{URL}?a={{Amount}}"), "url names the column 'Amount'.*'amount'?"),
    "a header": (http(headers={"X-Id": "{id}"}), "header X-Id names the column 'id'"),
    "a body": (http(body={"a": ["x", "{amont}"]}), "body names the column 'amont'.*'amount'?"),
    "a body's text": (http(body={"a": "no {no}"}), "body names the column 'no'"),
    "a body's column": (http(body_column="boddy"), "body_column names the column 'boddy'"),
    "a probe": (http(probe=f"{URL}/{{paid}}"), "probe names the column 'paid'"),
    "a field in a URL": (http(url=f"{URL}/{{window.start}}"), "'window.start'.*of its own"),
    "a list in a URL": (http(url=f"{URL}/{{lines}}"), "url needs a string.*'lines' is list"),
    "a list in a header": (http(headers={"X": "{lines}"}), "header X needs.*'lines' is list"),
    "a list in a text": (http(body={"a": "x{lines}"}), "body needs a string.*'lines' is list"),
    "a number as body": (http(body_column="amount"), "'amount' is decimal.*text or bytes"),
    "a key of Kafka": (kafka(key="client"), "the key names the column 'client'"),
    "a value of Kafka": (kafka(value="bodi"), "the value names the column 'bodi'.*'body'"),
    "a header of Kafka": (kafka(headers={"t": "trace"}), "header 't' names the column 'trace'"),
    "a topic of Kafka": (
        kafka(topic=None, topic_column="topic"),
        "the topic names the column 'topic'",
    ),
    "a topic that is a number": (kafka(topic=None, topic_column="payment_id"), "name must be text"),
    "a partition of Kafka": (kafka(partition="p"), "the partition names the column 'p'"),
    "a partition that is text": (kafka(partition="customer"), "a partition must be an integer"),
    "a value that is a list": (kafka(value="lines"), r"'lines' is list.*the value must be text"),
    "a key of Redis": (redis("paid:{client}", "1"), "key names the column 'client'"),
    "an argument of Redis": (redis("a", "{amout}"), "arguments names the column 'amout'.*'amount'"),
    "a field of Redis": (redis("a", "{window.end}"), "arguments: there is no field 'end'"),
    "a list for Redis": (redis("{lines}", "1"), "key: column 'lines' is list"),
    "columns of PostgreSQL": (
        postgres(table="t", columns=["customer", "amout"]),
        "columns names the column 'amout'.*'amount'?",
    ),
    "columns that are renamed": (
        postgres(table="t", columns={"client": "customer"}),
        "columns names the column 'client'",
    ),
    "a statement per event": (
        postgres(each="insert into t values (%(client)s, %(semel_key)s)"),
        "each names the column 'client'",
    ),
    "a name of semel's": (postgres(apply="select 1"), "names that semel uses: semel_osn"),
    "columns to load": (loading("/lake", "customer", "amout"), "then: columns.*'amout'.*'amount'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_setting_that_names_no_column_is_refused_with_the_columns(case: str) -> None:
    sink, said = WRONG[case]
    with pytest.raises(ConfigurationError, match=f"(?s)sink 'out'.*{said}") as refused:
        sink.refuse(SCHEMA)
    if "names the column" in said:
        assert "It has customer, payment_id, amount" in str(refused.value)


def test_settings_whose_columns_are_there_are_taken(tmp_path: Path) -> None:
    url = f"{URL}/{{customer}}?a={{amount}}&b={{semel.key}}"
    body = {"a": "{lines}", "b": ["x {amount}", 3, None, "{{no}}"]}
    fine = [
        http(url=url, headers={"X": "{payment_id}", "Y": "${SECRET}"}, body=body),
        http(body_column="body"),
        http(body_column="customer", probe=f"{URL}/{{semel.key}}"),
        kafka(key="payment_id", value="body", partition="payment_id", headers={"a": "customer"}),
        kafka(topic=None, topic_column="customer"),
        redis("a:{customer}", "{window.start}"),
        postgres(table="t", columns={"customer": "Client"}),
        postgres(table="t"),
        postgres(each="select %(customer)s, %(semel_osn)s, %(semel_key)s, '100%%'"),
        loading(str(tmp_path), "customer"),
    ]
    for sink in fine:
        sink.refuse(SCHEMA)
