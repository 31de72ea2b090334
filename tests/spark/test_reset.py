"""Reset on real Spark: the old checkpoint is moved aside, and the query begins elsewhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from semel import Ledger
from semel.operate import ResetPlan, open_ledger, reset_pipeline, status
from semel.spark import checkpoints
from semel.streams import Inbox, NewEvent
from semel.verify.process_group import ProcessGroup
from semel.verify.servers.kafka import KafkaBroker
from support.sinks.kafka_inputs import produce
from support.spark.driver_scripts import names
from support.spark.pipeline_place import PipelinePlace
from support.spark.sessions import Desk

pytestmark = pytest.mark.rows("O22")


@pytest.fixture(autouse=True)
def _ended_runs_are_not_watched_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "WATCH_S", 0.4)


def reset(url: str, pipeline: str, to: str, *, repeat: bool = False) -> ResetPlan:
    with open_ledger(url) as ledger:
        return reset_pipeline(
            ledger, pipeline, to, by="ann", reason="a test", repeat=repeat, dry_run=False
        )


def counted(desk: Desk) -> dict[tuple[str, Any], int]:
    return dict(Counter(names(desk.charges())))


def test_files_are_read_again_and_only_what_never_was_is_delivered_or_all_of_it(
    desk: Desk,
) -> None:
    """With given ids a reset is a backfill; what was delivered is repeated only if a person said
    so.
    """
    desk.payments(files=3, rows=10)
    settings = desk.settings(sink="transactional", where="payment_id % 3 > 0")
    assert settings.ledger is not None
    desk.deliver(settings)
    first = counted(desk)
    assert len(first) == 20
    plan = reset(settings.ledger, desk.name, "earliest")
    assert (plan.total("repeated"), plan.partitions) == (None, ()), "files have no offsets"
    desk.deliver(desk.settings(sink="transactional"))  # the filter left out a third of them
    again = counted(desk)
    assert again == dict.fromkeys(desk.expected, 1)
    checkpoint = Path(settings.checkpoint)
    assert (checkpoint.parent / "checkpoint.before-reset-1" / "metadata").exists()
    # Once more, to repeat: every event arrives a second time, and a lost checkpoint repeats none.
    reset(settings.ledger, desk.name, "earliest", repeat=True)
    desk.deliver(desk.settings(sink="transactional"))
    desk.lose_checkpoint()
    desk.deliver(desk.settings(sink="transactional"))
    assert counted(desk) == dict.fromkeys(desk.expected, 2)
    with Ledger(settings.ledger) as ledger:
        rows = [row for _, row in ledger.rows("resets")]
    assert [(row["by"], row["reason"], row["repeat"]) for row in rows] == [
        ("ann", "a test", False),
        ("ann", "a test", True),
    ]


@pytest.mark.needs("markers")
def test_an_inbox_is_delivered_again_from_exactly_the_position_that_was_given(desk: Desk) -> None:
    url = f"sqlite:///{desk.folder / 'ledger.db'}"
    with Inbox(url, "orders", partitions=1) as inbox:
        for start in (0, 10):
            inbox.append([NewEvent(entity="c", value=b"%d" % n) for n in range(start, start + 10)])
    options = {"ledger": url, "stream": "orders", "startingOffsets": "earliest"}
    words: dict[str, Any] = {
        "source": "semel.inbox",
        "sink": "transactional",
        "identity": {"identity": "position"},
        "ledger": url,
    }
    desk.deliver(desk.settings(options=options, **words))
    assert counted(desk) == {("orders/0", at): 1 for at in range(20)}
    plan = reset(url, desk.name, '{"orders": {"0": 15}}', repeat=True)
    assert (plan.total("repeated"), plan.total("skipped")) == (5, 0)
    # A start elsewhere is refused with the option to set, and the next one is right.
    told = desk.refused(desk.settings(options=options, **words))
    assert "orders/0 begins at 0 and not at 15" in told
    assert json.loads(plan.starting_offsets) == {"orders": {"0": 15}}
    begins = {**options, "startingOffsets": plan.starting_offsets}
    desk.deliver(desk.settings(options=begins, **words))
    assert counted(desk) == {("orders/0", at): 1 + (at >= 15) for at in range(20)}
    late = {**options, "startingOffsets": "latest"}
    # To the end: what was put meanwhile is skipped, and the number is known before.
    with Inbox(url, "orders") as inbox:
        inbox.append([NewEvent(entity="c", value=b"skipped") for _ in range(7)])
    plan = reset(url, desk.name, "latest")
    assert (plan.total("repeated"), plan.total("skipped")) == (0, 7)
    desk.deliver(desk.settings(options=late, **words))
    with Inbox(url, "orders") as inbox:
        inbox.append([NewEvent(entity="c", value=b"new")])
    desk.deliver(desk.settings(options=late, **words))
    assert counted(desk) == {
        **{("orders/0", at): 1 + (at >= 15) for at in range(20)},
        ("orders/0", 27): 1,
    }


@pytest.mark.needs("markers")
def test_kafka_is_read_again_from_exactly_the_position_that_was_given(
    desk: Desk, kafka: KafkaBroker
) -> None:
    topic = kafka.create_topic(partitions=2)
    for partition in (0, 1):
        produce(kafka, topic, [str(n) for n in range(10)], partition)
    options = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic}
    words: dict[str, Any] = {
        "source": "semel.kafka",
        "sink": "transactional",
        "identity": {"identity": "position"},
    }
    first = desk.settings(options={**options, "startingOffsets": "earliest"}, **words)
    assert first.ledger is not None
    desk.deliver(first)
    plan = reset(first.ledger, desk.name, json.dumps({topic: {"1": 6}}), repeat=True)
    assert (plan.total("repeated"), plan.total("skipped")) == (4, 0)
    assert json.loads(plan.starting_offsets) == {topic: {"0": 10, "1": 6}}
    begins = {**options, "startingOffsets": plan.starting_offsets}
    desk.deliver(desk.settings(options=begins, **words))
    assert counted(desk) == {
        **{(f"{topic}/0", at): 1 for at in range(10)},
        **{(f"{topic}/1", at): 1 + (at >= 6) for at in range(10)},
    }


# -- a pipeline file begins there by itself

SINK = """
import os

import semel


@semel.sink(window=1)
def note(event):
    with open(os.environ["SEMEL_TEST_FOLDER"] + "/noted.txt", "a") as notes:
        notes.write(f"{event.id}\\n")
"""

PIPELINE = """
[pipeline]
name = "orders"
ledger = "sqlite:///charges.db"
checkpoint = "checkpoints/orders"

[source]
format = "semel.inbox"
options = { ledger = "sqlite:///FOLDER/charges.db", stream = "orders", startingOffsets = "latest" }

[identity]
identity = "position"

[[sinks]]
type = "notes:note"
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[PipelinePlace]:
    with ProcessGroup("reset") as group:
        yield PipelinePlace(tmp_path, group)


@pytest.mark.needs("markers")
def test_the_next_semel_run_begins_where_the_reset_says_whatever_the_file_has(
    place: PipelinePlace,
) -> None:
    (place.folder / "notes.py").write_text(SINK)
    file = place.folder / "orders.toml"
    file.write_text(PIPELINE.replace("FOLDER", str(place.folder)))
    url = f"sqlite:///{place.folder}/charges.db"
    with Inbox(url, "orders", partitions=1) as inbox:
        inbox.append([NewEvent(entity="c", value=b"x") for _ in range(6)])
    place.start("run", str(file), "--once").finished()  # it begins at the end
    with Inbox(url, "orders") as inbox:
        inbox.append([NewEvent(entity="c", value=b"x") for _ in range(4)])
    place.start("run", str(file), "--once").finished()
    notes = place.folder / "noted.txt"
    assert notes.read_text().split() == ["6", "7", "8", "9"]
    where = '{"orders": {"0": 4}}'
    told = place.semel(
        *("reset", "orders", "--to", where, "--repeat", "--reason", "x", "--yes"),
        *("--ledger", url, "--json"),
    )
    assert (json.loads(told)["repeated"], json.loads(told)["number"]) == (6, 1)
    for _ in range(2):
        place.start("run", str(file), "--once").finished()
        assert notes.read_text().split() == ["6", "7", "8", "9", "4", "5", "6", "7", "8", "9"]


# -- what happens to the old checkpoint


def test_a_checkpoint_is_moved_and_never_deleted_or_written_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "checkpoint"
    assert checkpoints.move_aside(spark, str(place), 1) is None
    place.mkdir()
    assert checkpoints.move_aside(spark, str(place), 1) is None, "it is not a checkpoint yet"
    for name in ("checkpoint.before-reset-1", "checkpoint.before-reset-1-1"):
        place.mkdir(exist_ok=True)
        (place / "metadata").write_text(name)
        assert checkpoints.move_aside(spark, str(place), 1) == tmp_path / name
        assert not place.exists()
        assert (tmp_path / name / "metadata").read_text() == name
    place.mkdir()
    (place / "metadata").write_text("{}")
    assert checkpoints.move_aside(spark, place.as_uri(), 2) == (
        tmp_path / "checkpoint.before-reset-2"
    )
